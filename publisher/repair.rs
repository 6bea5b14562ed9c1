//! The commands that find out what is wrong with a data directory, and that bring it
//! back into service. Each takes the directory as a publisher would, and says what it
//! has done.

use std::path::Path;

use super::{
    clock::Clock,
    data_dir::DataDir,
    durable::Latch,
    fork,
    log::{
        EventLog as _, Extent,
        segment::{self, Options, SegmentLog},
    },
    positions,
    receipts::{self, Rebuilt},
    recover, snapshots, suspects,
};
use crate::{
    process::Failure,
    proto::{event::Sequence, wire},
};

/// Makes the receipts of a directory's logs anew, or those of one log.
///
/// # Errors
/// [`Failure`] with one sentence; the receipts of the log it names are as they were.
pub fn rebuild_receipts(
    data_dir: &Path,
    only: Option<&str>,
    forget_truncated: bool,
) -> Result<(), Failure> {
    let dir = existing(data_dir)?;
    let logs = dir.logs()?;
    if let Some(name) = only.filter(|name| !logs.iter().any(|log| log == name)) {
        return Err(Failure::Usage(format!("--log {name}: there is no such log")));
    }
    for name in logs.iter().filter(|name| only.is_none_or(|only| only == *name)) {
        let log_dir = dir.log_dir(name)?;
        let latch = Latch::open(&log_dir)?;
        let log = SegmentLog::open(&log_dir, Options::default(), latch.clone())?;
        let Rebuilt { receipts, set_aside, lost, list_lost, key_floor_ms } =
            receipts::rebuild(&log_dir, latch, &*log.reader(), forget_truncated)?;
        let key_floor = wire::time_text(key_floor_ms);
        println!("log {name}: {receipts} receipts are held");
        for path in set_aside {
            println!("log {name}: what is damaged is kept as {}", path.display());
        }
        if list_lost {
            println!(
                "log {name}: the list of receipts files was lost; the key floor is set back to \
                 {key_floor}"
            );
        }
        for range in &lost {
            println!("log {name}: forgot the receipts of {} to {}", range.start, range.end - 1);
        }
        if !lost.is_empty() {
            println!(
                "log {name}: late retries of intents from before {key_floor} are refused as expired; \
                 those of the forgotten keys without a time are executed as new; subjects without \
                 later events start again at version 0"
            );
        }
        if key_floor_ms > Clock::after(0).now_ms() {
            println!(
                "log {name}: until {key_floor} every publish with a time is refused as expired"
            );
        }
    }
    Ok(())
}

/// Makes one log of a directory another incarnation, whose next event gets the number
/// `from`; none: one above everything any receiver is known to have seen.
///
/// # Errors
/// [`Failure`] with one sentence. Where it is one of usage, nothing has been done;
/// otherwise the command may be repeated.
pub fn fork(data_dir: &Path, name: &str, from: Option<Sequence>) -> Result<(), Failure> {
    let dir = existing(data_dir)?;
    if !dir.logs()?.iter().any(|log| log == name) {
        return Err(Failure::Usage(format!("--log {name}: there is no such log")));
    }
    let Some(fork::Report { log_id, parent, last, from }) = fork::fork(&dir.log_dir(name)?, from)?
    else {
        println!("log {name}: holds nothing");
        return Ok(());
    };
    println!("log {name}: is {log_id} from now on, and was {parent}; the next event gets {from}");
    if from > last + 1 {
        println!(
            "log {name}: events {} to {} are lost; events of type counterfoil.lost stand for them",
            last + 1,
            from - 1
        );
    }
    println!(
        "log {name}: receivers that have seen nothing beyond {last} go on by themselves; others stop \
         with LOG_MISMATCH until they are resynced"
    );
    Ok(())
}

/// Reads a directory's logs but for outcomes, the snapshots of all last, which are copies:
/// a start reads only what it needs. Changes nothing.
///
/// # Errors
/// [`Failure`] with one sentence: the first damage that was found.
pub fn check(data_dir: &Path) -> Result<(), Failure> {
    let dir = existing(data_dir)?;
    let mut logs = Vec::new();
    for name in dir.logs()? {
        let log_dir = dir.log_dir(&name)?;
        let extent = segment::check(&log_dir)?;
        let receipts = receipts::check(&log_dir)?;
        positions::read(&log_dir)?;
        suspects::read(&log_dir)?;
        fork::check(&log_dir)?;
        logs.push((name, log_dir, extent, receipts));
    }
    for (name, log_dir, extent, receipts) in logs {
        let snapshots = snapshots::check(&log_dir)?;
        match extent {
            Some(Extent { floor, next, .. }) if floor < next => println!(
                "log {name}: events {floor} to {} are whole, and so are {receipts} receipts in files and \
                 {snapshots} snapshots",
                next - 1
            ),
            _ => println!(
                "log {name}: holds no events; {receipts} receipts in files and {snapshots} snapshots \
                 are whole"
            ),
        }
    }
    Ok(())
}

/// Takes a directory that has to be there.
fn existing(data_dir: &Path) -> Result<DataDir, Failure> {
    if !data_dir.is_dir() {
        return Err(Failure::Usage(format!(
            "--data-dir {}: no such directory",
            data_dir.display()
        )));
    }
    Ok(DataDir::open(data_dir)?)
}

/// Recovers every log of a directory that needs it.
///
/// # Errors
/// [`Failure`] with one sentence; the log it names is as it was.
pub fn recover(data_dir: &Path) -> Result<(), Failure> {
    let dir = existing(data_dir)?;
    for name in dir.logs()? {
        let log_dir = dir.log_dir(&name)?;
        if !recover::is_needed(&log_dir)? {
            println!("log {name}: no write to its disk has failed; nothing to recover");
            continue;
        }
        match recover::recover(&log_dir)? {
            Some(recover::Report {
                extent,
                torn_bytes,
                positions,
                receipts,
                outcomes_lost_from,
                snapshots,
                kept,
            }) => {
                println!(
                    "log {name}: recovered events {} to {}, {positions} receivers, {} receipts in \
                     files, {snapshots} snapshots; {torn_bytes} bytes of an unfinished write were left out; the old files \
                     are kept as {}",
                    extent.floor,
                    extent.next - 1,
                    receipts.receipts,
                    kept.display()
                );
                for path in receipts.damaged {
                    println!(
                        "log {name}: {} holds damaged receipts and was copied as it is: run \
                         `publisher rebuild-receipts` next",
                        path.display()
                    );
                }
                for path in receipts.left_out {
                    println!(
                        "log {name}: {} is damaged and was left out: run `publisher \
                         rebuild-receipts` next",
                        path.display()
                    );
                }
                if let Some(lost_from) = outcomes_lost_from {
                    println!(
                        "log {name}: damaged outcomes were left out; receivers report again from \
                         {lost_from} on"
                    );
                }
            }
            None => println!("log {name}: holds nothing"),
        }
    }
    Ok(())
}
