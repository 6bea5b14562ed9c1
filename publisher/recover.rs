//! Brings a log back into service after a write or a sync has failed: all that
//! can be read is copied into new files, those are synced, and one step swaps
//! the directories. Going on with the old files would lose what the system has
//! marked clean without having written it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    durable::{self, Latch},
    fork,
    log::{Extent, OpenError, segment},
    outcomes, positions, receipts, snapshots, suspects,
};
use crate::proto::event::Sequence;

/// What a recovery did.
#[derive(Debug)]
pub struct Report {
    /// What the log holds; its `bytes` are not counted.
    pub extent: Extent,
    /// Bytes of a commit that never became whole. Nobody was told of it.
    pub torn_bytes: u64,
    /// Receivers whose position was copied.
    pub positions: usize,
    /// What was copied of receipts in files.
    pub receipts: receipts::Copied,
    /// From here on receivers report outcomes again: some were damaged.
    pub outcomes_lost_from: Option<Sequence>,
    /// Snapshots that were copied; those that are damaged were not.
    pub snapshots: usize,
    /// Where the old files are now.
    pub kept: PathBuf,
}

/// Whether a log refuses service until it has been recovered.
///
/// # Errors
/// [`OpenError::Io`]: it cannot be told.
pub fn is_needed(log_dir: &Path) -> Result<bool, OpenError> {
    Latch::is_closed(log_dir)
}

/// Recovers one log. The caller holds the data directory. None: there is no log,
/// and nothing was done.
///
/// # Errors
/// [`OpenError`]; the log's directory is as it was. Damage before the last
/// commit is one: nothing that was acknowledged is dropped.
pub fn recover(log_dir: &Path) -> Result<Option<Report>, OpenError> {
    let fresh = beside(log_dir, "recovering");
    let swap_error = |error| OpenError::io("put new files in the place of", log_dir, error);
    if fresh.exists() {
        fs::remove_dir_all(&fresh).map_err(|error| OpenError::io("remove", &fresh, error))?;
    }
    fs::create_dir(&fresh).map_err(|error| OpenError::io("create", &fresh, error))?;
    let Some(segment::Copied { extent, torn_bytes }) = segment::copy(log_dir, &fresh)? else {
        fs::remove_dir(&fresh).map_err(|error| OpenError::io("remove", &fresh, error))?;
        return Ok(None);
    };
    let outcomes_lost_from = outcomes::copy(log_dir, &fresh)?;
    let positions = positions::copy(log_dir, &fresh, outcomes_lost_from)?;
    suspects::copy(log_dir, &fresh)?;
    fork::copy(log_dir, &fresh)?;
    let receipts = receipts::copy(log_dir, &fresh)?;
    let snapshots = snapshots::copy(log_dir, &fresh)?;
    durable::sync_dir(&fresh).map_err(|error| OpenError::io("sync", &fresh, error))?;

    // The new files take the name that the old ones will have, then both change
    // places in one step: at no time is the log's name missing or half there.
    let parent = log_dir.parent().unwrap_or(Path::new("."));
    let kept = (1..)
        .map(|n| beside(log_dir, &format!("before-{n}")))
        .find(|path| !path.exists())
        .expect("one of endless names is free");
    fs::rename(&fresh, &kept).map_err(swap_error)?;
    durable::sync_dir(parent).map_err(swap_error)?;
    renameat_with(CWD, &kept, CWD, log_dir, RenameFlags::EXCHANGE)
        .map_err(|error| swap_error(error.into()))?;
    durable::sync_dir(parent).map_err(swap_error)?;
    Ok(Some(Report {
        extent,
        torn_bytes,
        positions,
        receipts,
        outcomes_lost_from,
        snapshots,
        kept,
    }))
}

/// A name beside the log's that is no log's name.
fn beside(log_dir: &Path, what: &str) -> PathBuf {
    let name = log_dir.file_name().unwrap_or_default().to_string_lossy();
    log_dir.with_file_name(format!("{name}~{what}"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use bytes::Bytes;

    use super::*;
    use crate::{
        proto::{
            chain::Cursor,
            outcome::{Outcome, Report, Reported},
        },
        publisher::{
            durable::MARKER,
            log::{
                Entry, EventLog as _,
                segment::{Options, SegmentLog},
            },
            outcomes::Outcomes,
            positions::{Position, Positions},
        },
    };

    fn entry(n: i64) -> Entry {
        Entry { chain: [n as u8; 32], accepted_at_ms: n, body: Bytes::from(vec![n as u8; 20]) }
    }

    fn open(dir: &Path) -> Result<SegmentLog, OpenError> {
        SegmentLog::open(dir, Options { segment_bytes: 300 }, Latch::open(dir)?)
    }

    #[test]
    fn a_halted_log_is_back_with_all_it_had_and_the_old_files_are_kept() {
        let data = tempfile::tempdir().expect("a directory");
        let dir = data.path().join("logs/main");
        fs::create_dir_all(&dir).expect("created");
        let mut log = open(&dir).expect("opens");
        for n in 0..10 {
            log.commit(&[entry(n)], n - 5).expect("stored");
        }
        let before = log.reader().extent();
        let acked = Cursor { log_id: before.log_id, sequence: 7, chain: [7; 32] };
        let position = Position { name: "shop".into(), session: 3, acked, reported: 5, seen_ms: 0 };
        let positions = || Positions::open(&dir, Latch::open(&dir).expect("open")).expect("opens");
        positions().record(std::slice::from_ref(&position)).expect("recorded");
        let outcomes = || Outcomes::open(&dir, Latch::open(&dir).expect("open")).expect("opens");
        let rejected = Reported {
            sequence: 2,
            outcome: Outcome::Rejected,
            reason: "no_stock".into(),
            result: String::new(),
        };
        let report = Report { after: None, through: 5, outcomes: vec![rejected.clone()] };
        let mut reported = outcomes();
        reported.add("shop", -1, &report).expect("taken");
        reported.commit().expect("kept");
        drop(log);
        Latch::open(&dir).expect("open").close("a sync", &io::Error::from_raw_os_error(5));

        assert!(is_needed(&dir).expect("known"));
        assert!(matches!(open(&dir), Err(OpenError::Halted(_))));
        let report = recover(&dir).expect("recovered").expect("a log");
        assert!(!is_needed(&dir).expect("known") && report.kept.join(MARKER).exists());
        assert_eq!((report.extent.floor, report.extent.next, report.positions), (4, 10, 1));
        let log = open(&dir).expect("opens");
        assert_eq!(log.reader().extent(), before);
        let read = log.reader().read(4, 99, 999).expect("readable");
        assert_eq!(read, (4..10).map(entry).collect::<Vec<_>>());
        assert_eq!(positions().get("shop"), Some(&position));
        let told = outcomes().reader().of(2).expect("readable");
        assert_eq!(told, [("shop".to_owned(), rejected)].into());
        assert_eq!(report.outcomes_lost_from, None);
        assert_eq!(report.kept.file_name().and_then(|name| name.to_str()), Some("main~before-1"));

        // Damaged outcomes are reported again.
        let damaged = dir.join(format!("{:020}.outcomes", 0));
        fs::write(&damaged, "damaged").expect("written");
        let report = recover(&dir).expect("recovered").expect("a log");
        assert_eq!(report.outcomes_lost_from, Some(0));
        assert!(
            !damaged.exists()
                && report.kept.join(damaged.file_name().expect("it has one")).exists()
        );
        assert_eq!(positions().get("shop"), Some(&Position { reported: -1, ..position }));
    }

    #[test]
    fn a_torn_end_is_left_behind_and_damage_stops_everything() {
        let data = tempfile::tempdir().expect("a directory");
        let dir = data.path().join("main");
        fs::create_dir(&dir).expect("created");
        let mut log = open(&dir).expect("opens");
        for n in 0..3 {
            log.commit(&[entry(n)], 0).expect("stored");
        }
        drop(log);
        let path = dir.join(format!("{:020}.seg", 0));
        let whole = fs::read(&path).expect("read");
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        let report = recover(&dir).expect("recovered").expect("a log");
        assert_eq!((report.extent.next, report.torn_bytes), (2, 95));

        let mut damaged = whole;
        damaged[100] ^= 1;
        fs::write(&path, damaged).expect("written");
        let refused = recover(&dir).expect_err("damaged");
        assert!(matches!(refused, OpenError::Corrupt { sequence: 0, .. }), "{refused}");
        assert!(path.exists());
    }

    #[test]
    fn where_there_is_no_log_nothing_is_done() {
        let data = tempfile::tempdir().expect("a directory");
        let dir = data.path().join("main");
        fs::create_dir(&dir).expect("created");
        assert!(recover(&dir).expect("nothing to do").is_none());
        assert_eq!(fs::read_dir(data.path()).expect("listed").count(), 1);
    }
}
