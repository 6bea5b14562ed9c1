//! A full disk: writes are refused, reads go on, and it heals without a restart.

use std::{fs, io::Write as _, path::Path, process::Command};

use counterfoil::proto::{
    crash,
    pb::{LogState, Outcome, ReceiverState, ReplayRequest},
    refusal::Reason,
};
use tempfile::TempDir;

use crate::harness::{
    events::{adjusted, adjustments, cursors, rejected},
    pair::{Pair, directory},
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    snapshot::{Content, Snapshots},
    tools::skip,
    wait::wait_until,
};

/// A small file system of its own, in memory. Unmounted with its owner.
struct SmallDisk {
    at: TempDir,
}

impl SmallDisk {
    /// Nothing where mounting is not allowed.
    fn mount() -> Option<SmallDisk> {
        let at = directory();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(at.path());
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk { at })
    }

    /// Fills it to the last block.
    fn fill(&self) {
        let mut filler = fs::File::create(self.at.path().join("filler")).expect("a file");
        let mut size = 64 * 1024;
        while size >= 1 {
            match filler.write(&vec![0; size]) {
                Ok(count) if count == size => {}
                _ => size /= 2,
            }
        }
    }

    /// Gives so many bytes of the filler's back.
    fn free_some(&self, bytes: u64) {
        let filler = self.at.path().join("filler");
        let filler = fs::OpenOptions::new().write(true).open(filler).expect("the filler is there");
        let size = filler.metadata().expect("readable").len();
        filler.set_len(size.checked_sub(bytes).expect("the filler is larger")).expect("cut");
    }

    /// Gives the space back.
    fn free(&self) {
        fs::remove_file(self.at.path().join("filler")).expect("the filler is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.at.path()).status();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_publishes_keeps_reads_and_heals() {
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let publisher = Publisher::start(disk.at.path());
    publisher.publish(adjustments("k", 10)).await.expect("accepted");
    disk.fill();
    let mut refusals = 0;
    let mut accepted = 10;
    for n in 0..300 {
        match publisher.publish(adjustments(&format!("full{n}"), 20)).await {
            Ok(_) => accepted += 20,
            Err(status) => {
                let refusal = refused(Err::<(), _>(status), Reason::LogFull);
                assert_eq!(refusal.numbers["limit"], "disk");
                refusals += 1;
            }
        }
        if refusals >= 5 {
            break;
        }
    }
    assert!(refusals >= 5, "the disk is full");
    let log = publisher.log().await;
    assert_eq!((log.state(), log.next_sequence), (LogState::Active, Some(accepted)));
    assert_eq!(publisher.everything().await.len() as i64, accepted, "reads go on");
    // A repeat is answered from what is known.
    publisher.publish(adjustments("k", 10)).await.expect("known");

    disk.free();
    // LOG-12: not even an error of the disk burns a number.
    let receipt = publisher.accepts(adjusted("after", "a", 1)).await;
    assert_eq!(receipt.sequence, Some(accepted));
    let publisher = publisher.restart();
    assert_eq!(publisher.everything().await.len() as i64, accepted + 1);
}

/// What cannot be kept is not answered for, and not told of.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_refuses_reports_and_they_are_taken_once_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let publisher = Publisher::start(disk.at.path());
    let receipts = publisher.publish(adjustments("k", 2)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let request = ReplayRequest { receiver: "r".into(), ..Default::default() };
    let started = publisher.replay(request).await.expect("admitted").started;
    let session = started.session.expect("always set");
    disk.fill();
    for _ in 0..3 {
        let report = publisher.reports("r", session, &cursors[1], vec![rejected(1)]).await;
        assert_eq!(refused(report, Reason::LogFull).numbers["limit"], "disk");
        assert_eq!(publisher.outcomes("k-1").await, []);
        assert_eq!(publisher.log().await.state(), LogState::Active);
    }
    disk.free();
    publisher.reports("r", session, &cursors[1], vec![rejected(1)]).await.expect("kept");
    let publisher = publisher.restart();
    assert_eq!(publisher.outcomes("k-0").await, [("r".to_owned(), Outcome::Applied)]);
    assert_eq!(publisher.outcomes("k-1").await, [("r".to_owned(), Outcome::Rejected)]);
}

/// What has come of a snapshot stays, and the log is none the worse for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_holds_an_upload_up_and_it_goes_on_once_there_is_room() {
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let publisher = Publisher::start(disk.at.path());
    let receipts = publisher.publish(adjustments("k", 2)).await.expect("accepted");
    let content = Content::new(1, 1_000_000);
    let snapshot = content.at(&cursors(&receipts)[1]);
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.offset(&snapshot).await, 0);
    let upload = snapshots.open_upload(&snapshot);
    upload.send(&content, 0, 300_000, 100_000).await;
    refused(upload.answer().await, Reason::InvalidField);
    disk.fill();
    for _ in 0..3 {
        assert_eq!(snapshots.offset(&snapshot).await, 300_000);
        let full = snapshots.upload(&snapshot, &content, 300_000, 500_000).await;
        assert_eq!(refused(full, Reason::LogFull).numbers["limit"], "disk");
        assert_eq!(publisher.log().await.state(), LogState::Active);
    }
    disk.free();
    assert_eq!(snapshots.offset(&snapshot).await, 300_000);
    snapshots.upload(&snapshot, &content, 300_000, 500_000).await.expect("stored");
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
    publisher.accepts(adjusted("after", "a", 1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_holds_the_receiver_up_and_it_heals() {
    let dir = directory();
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let publisher = Publisher::start(dir.path());
    let receiver = Receiver::start(disk.at.path(), &publisher.url());
    let pair = Pair { receiver, publisher, dir };
    pair.carries(adjustments("k", 10)).await;
    disk.fill();
    let status = wait_until("the receiver says that the disk is full", async || {
        let batch = pair.publisher.log().await.next_sequence;
        let events = adjustments(&format!("full{batch:?}"), 200);
        pair.publisher.publish(events).await.expect("accepted");
        let status = pair.receiver.status().await;
        (status.state() == ReceiverState::Retrying).then_some(status)
    })
    .await;
    assert_eq!(status.failure.expect("why").reason, "DISK_FULL");
    pair.receiver.query("total").await.expect("reads go on");
    let before = pair.receiver.ledger();
    before.check(&pair.publisher.accepted().await, None);

    disk.free();
    let ledger = pair.settles().await;
    assert!(ledger.rows.len() > before.rows.len());
    assert!(pair.receiver.status().await.failure.is_none());
}

/// Who has seen more is refused also where that cannot be kept, and kept once it can.
#[tokio::test(flavor = "multi_thread")]
async fn a_suspect_that_cannot_be_kept_is_kept_once_there_is_room() {
    let Some(disk) = SmallDisk::mount() else { skip!("no file system may be mounted here") };
    let publisher = Publisher::start(disk.at.path());
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let mut ahead = cursors(&receipts)[2].clone();
    ahead.sequence = Some(9);
    disk.fill();
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);
    let log = publisher.log().await;
    assert_eq!((log.state(), log.suspects.len()), (LogState::Active, 0), "{log:?}");
    disk.free();
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);
    let log = publisher.log().await;
    assert_eq!((log.state(), log.suspects.len()), (LogState::Suspect, 1), "{log:?}");
    publisher.accepts(adjusted("more", "a", 1)).await;
}

/// The flag for a projection that keeps a text for each event.
fn notes(dir: &Path, version: i64, text: &str) -> String {
    let path = dir.join(format!("version-{version}.toml"));
    let content = format!(
        "[projection]\nname = \"notes\"\nversion = {version}\nupgrade = \"rebuild\"\n\
         [[migration]]\nsql = \"CREATE TABLE note (text TEXT NOT NULL) STRICT\"\n\
         [[on]]\ntype = \"stock.adjusted\"\nsql = \"INSERT INTO note VALUES ({text})\"\n\
         [[query]]\nname = \"notes-{version}\"\nsql = \"SELECT count(*) AS notes FROM note\"\n"
    );
    fs::write(&path, content).expect("written");
    format!("--projection={}", path.display())
}

/// What a later version would fill does not fit beside the live database: that one goes on,
/// and gets the room back.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_does_not_fit_stops_nothing() {
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 300)).await.expect("accepted");
    let file = |version: i64, text: &str| notes(dir.path(), version, text);
    let setup = Receiver::at(disk.at.path(), &publisher.url());
    let receiver = setup.clone().arg(file(1, ":subject")).start();
    receiver.applies(299).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = setup.arg(file(2, "hex(zeroblob(10000))")).start();
    wait_until("it says that the disk is full", async || {
        let rebuild = receiver.try_status().await.ok()?.rebuild?;
        rebuild.step.contains("the disk is full").then_some(())
    })
    .await;
    for n in 0..5 {
        let sequence = publisher.accepts(adjusted(&format!("more-{n}"), "a", 1)).await.sequence;
        receiver.applies(sequence.expect("always set")).await;
    }
    receiver.query("notes-1").await.expect("the earlier version answers");
    assert_eq!(receiver.status().await.projection_version, Some(1));
    assert_eq!(receiver.terminate().code(), Some(0));
}

/// What a later version has filled fits beside the live database, and not into its write-ahead
/// log: it is said how much is missing, and nothing is tried before there is room.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_that_cannot_be_exchanged_says_what_is_missing() {
    let Some(disk) = SmallDisk::mount() else {
        skip!("no file system can be mounted here");
    };
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 200)).await.expect("accepted");
    let setup = Receiver::at(disk.at.path(), &publisher.url());
    let receiver = setup.clone().arg(notes(dir.path(), 1, ":subject")).start();
    receiver.applies(199).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let setup = setup.arg(notes(dir.path(), 2, "hex(zeroblob(2500))"));
    setup.clone().dies_at(crash::RECEIVER_REBUILD_FILLED, 0).dies();
    disk.fill();
    disk.free_some(700_000);
    let receiver = setup.start();
    wait_until("it says how much is missing", async || {
        let rebuild = receiver.try_status().await.ok()?.rebuild?;
        assert!(!rebuild.step.contains("full"), "{}", rebuild.step);
        rebuild.step.contains("bytes more on the disk than are free").then_some(())
    })
    .await;
    for n in 0..5 {
        let sequence = publisher.accepts(adjusted(&format!("more-{n}"), "a", 1)).await.sequence;
        receiver.applies(sequence.expect("always set")).await;
    }
    receiver.query("notes-1").await.expect("the earlier version answers");
    disk.free();
    wait_until("the later version takes over", async || {
        let status = receiver.try_status().await.ok()?;
        (status.projection_version == Some(2) && status.rebuild.is_none()).then_some(())
    })
    .await;
    receiver.applies(204).await;
}
