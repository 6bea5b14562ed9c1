//! Which are kept: the newest few of each projection, within the bytes, as long as
//! something retained follows them.

use counterfoil::proto::{
    pb::{Cursor, ReplayRequest, Snapshot, replay_request::Start},
    refusal::Reason,
};

use super::places;
use crate::harness::{
    events::{adjusted, adjustments, cursors},
    files::{put_copy, with_extension},
    pair::directory,
    publisher::Publisher,
    refusal::refused,
    snapshot::{Content, Snapshots, files},
};

/// One of so many bytes at a place. Places are also what makes their bytes differ.
fn sized(cursor: &Cursor, projection: &str, bytes: u64) -> (Snapshot, Content) {
    let place = cursor.sequence.expect("a place") as u8;
    let content =
        Content::new(place.wrapping_add(100u8.wrapping_mul(projection.len() as u8)), bytes);
    let snapshot = Snapshot { projection: projection.into(), ..content.at(cursor) };
    (snapshot, content)
}

fn stored_files(publisher: &Publisher) -> usize {
    let count = |kind| with_extension(publisher.dir(), kind).len();
    assert_eq!(count("db"), count("meta"));
    assert_eq!(count("part"), 0);
    count("db")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_of_each_projection_are_kept() {
    let dir = directory();
    let config = "[logs.main]\nkeep_snapshots = 2\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 10).await;
    let snapshots = Snapshots::of(&publisher);
    let store = async |place: usize, projection: &str| {
        let (snapshot, content) = sized(&places[place], projection, 3_000);
        snapshots.store(&snapshot, &content).await
    };
    store(0, "ab").await.expect("stored");
    for place in [1, 3, 4] {
        store(place, "a").await.expect("stored");
    }
    assert_eq!(snapshots.places().await, [4, 3, 0], "two of one, one of the other");
    let late = refused(store(2, "a").await, Reason::WrongState);
    assert!(late.message.contains("2 newer"), "{late:?}");
    // Another version of a projection is another projection.
    let (snapshot, content) = sized(&places[2], "a", 3_001);
    let next_version = Snapshot { projection_version: Some(2), ..snapshot };
    snapshots.store(&next_version, &content).await.expect("stored");
    assert_eq!(snapshots.places().await, [4, 3, 2, 0]);
    // Between two that are kept: the older one goes.
    store(9, "a").await.expect("stored");
    store(8, "a").await.expect("stored");
    assert_eq!(snapshots.places().await, [9, 8, 2, 0]);
    assert_eq!(stored_files(&publisher), 4);
    let publisher = publisher.restart();
    assert_eq!(Snapshots::of(&publisher).places().await, [9, 8, 2, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_are_bounded_and_the_newest_of_another_projection_does_not_go() {
    let dir = directory();
    let config = "[logs.main]\nkeep_snapshots = 9\nmax_snapshot_bytes = 100000\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 10).await;
    let snapshots = Snapshots::of(&publisher);
    let store = async |place: usize, projection: &str, bytes: u64| {
        let (snapshot, content) = sized(&places[place], projection, bytes);
        snapshots.store(&snapshot, &content).await
    };
    let large = refused(store(0, "a", 100_001).await, Reason::SnapshotTooLarge);
    assert_eq!((large.number("limit"), large.number("held")), (100_000, 0));
    assert!(large.message.contains("max_snapshot_bytes"), "{large:?}");
    store(0, "a", 30_000).await.expect("stored");
    store(1, "a", 30_000).await.expect("stored");
    store(2, "ab", 30_000).await.expect("stored");
    assert_eq!(snapshots.places().await, [2, 1, 0]);
    store(3, "a", 30_000).await.expect("the oldest of the same makes room");
    assert_eq!(snapshots.places().await, [3, 2, 1]);
    store(4, "a", 70_000).await.expect("its older ones make room, the newest too");
    assert_eq!(snapshots.places().await, [4, 2]);
    let held = refused(store(5, "a", 70_001).await, Reason::SnapshotTooLarge);
    assert_eq!(held.number("held"), 30_000);
    let held = refused(store(5, "ab", 30_001).await, Reason::SnapshotTooLarge);
    assert_eq!(held.number("held"), 70_000, "not for another's gain");
    assert_eq!(snapshots.places().await, [4, 2], "a refusal costs none");
    // What is being uploaded counts with all its bytes; an offer alone takes no room.
    store(5, "ab", 10_000).await.expect("stored");
    assert_eq!(snapshots.places().await, [5, 4], "the older one had to go for it");
    let (only_offered, _) = sized(&places[8], "abcde", 20_000);
    assert_eq!(snapshots.offset(&only_offered).await, 0);
    let (begun, content) = sized(&places[6], "abc", 20_000);
    assert_eq!(snapshots.offset(&begun).await, 0);
    let upload = snapshots.open_upload(&begun);
    upload.send(&content, 0, 1_000, 1_000).await;
    refused(upload.answer().await, Reason::InvalidField);
    let beside = refused(store(7, "abcd", 1).await, Reason::SnapshotTooLarge);
    assert_eq!(beside.number("held"), 100_000);
    assert_eq!(snapshots.places().await, [5, 4]);
    assert_eq!(with_extension(publisher.dir(), "db").len(), 2);
}

/// What nothing can follow any more is not shown and not kept, and the newest of the
/// others is what a receiver behind the retained range is told of.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_fall_out_of_retention_vanish() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 10\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 10).await;
    let snapshots = Snapshots::of(&publisher);
    for place in [3, 7] {
        let (snapshot, content) = sized(&places[place], "a", 3_000);
        snapshots.store(&snapshot, &content).await.expect("stored");
    }
    let (offered, _) = sized(&places[2], "ab", 3_000);
    assert_eq!(snapshots.offset(&offered).await, 0);
    publisher.publish(adjustments("l", 4)).await.expect("accepted");
    assert_eq!(snapshots.places().await, [7, 3], "3 is right below the floor");
    let gone = snapshots.upload(&offered, &Content::new(0, 3_000), 0, 3_000).await;
    refused(gone, Reason::NotFound);

    publisher.accepts(adjusted("one more", "a", 1)).await;
    let behind = |start| ReplayRequest { start, ..Default::default() };
    for start in [None, Some(Start::After(places[2].clone()))] {
        let expired = publisher.replay(behind(start)).await.map(drop);
        let expired = refused(expired, Reason::CursorExpired);
        assert_eq!(expired.number("snapshot_sequence"), 7);
        assert_eq!(expired.numbers["snapshot"].len(), 64, "{expired:?}");
    }
    assert_eq!(publisher.log().await.snapshot.as_ref(), Some(&places[7]));
    assert_eq!(snapshots.places().await, [7]);
    assert_eq!(stored_files(&publisher), 1);

    publisher.publish(adjustments("m", 9)).await.expect("accepted");
    assert_eq!(publisher.log().await.snapshot, None);
    assert_eq!(stored_files(&publisher), 1, "who looks at the log removes nothing");
    assert!(snapshots.places().await.is_empty());
    assert_eq!(stored_files(&publisher), 0, "who asks for snapshots does");
    let expired = publisher.replay(behind(None)).await.map(drop);
    let expired = refused(expired, Reason::CursorExpired);
    assert!(!expired.numbers.contains_key("snapshot"), "{expired:?}");
}

/// Old files may hold what never reached the disk: what is taken along is read first.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_takes_along_those_that_are_whole() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let places = places(&publisher, 2).await;
    let snapshots = Snapshots::of(&publisher);
    let [(whole, content), (damaged, other)] =
        [0, 1].map(|place| sized(&places[place], "a", 30_000));
    snapshots.store(&whole, &content).await.expect("stored");
    snapshots.store(&damaged, &other).await.expect("stored");
    let (_, path) = files(&publisher, &damaged);
    std::fs::write(path, vec![0; 30_000]).expect("written");
    let (successor, log) = (publisher.successor(), publisher.dir().join("logs/main"));
    assert_eq!(publisher.terminate().code(), Some(0));
    std::fs::write(log.join("HALTED"), "a sync failed\n").expect("written");
    let recovered = Publisher::recover(dir.path());
    assert_eq!(recovered.code(), Some(0), "{recovered:?}");
    assert!(recovered.stdout.contains("1 snapshots"), "{recovered:?}");
    let publisher = successor.start();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.places().await, [0]);
    snapshots.downloads(&whole, &content, 0).await.expect("whole");
}

/// An older copy of the log under newer snapshots: those that it has not got as far as are
/// not shown, and not removed either. A fork keeps those of what both have in common.
#[tokio::test(flavor = "multi_thread")]
async fn those_of_another_history_are_not_shown() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let (successor, data) = (publisher.successor(), publisher.dir().to_owned());
    assert_eq!(publisher.terminate().code(), Some(0));
    let backup = dir.path().join("backup");
    put_copy(&data, &backup);

    let publisher = successor.clone().start();
    receipts.extend(publisher.publish(adjustments("l", 5)).await.expect("accepted"));
    let seen = cursors(&receipts);
    let snapshots = Snapshots::of(&publisher);
    for place in [3, 8] {
        let (snapshot, content) = sized(&seen[place], "a", 3_000);
        snapshots.store(&snapshot, &content).await.expect("stored");
    }
    publisher.follows("ahead", seen.last()).await.expect("known");
    assert_eq!(publisher.terminate().code(), Some(0));
    let (kept, aside) = (data.join("logs/main/snapshots"), dir.path().join("aside"));
    std::fs::rename(&kept, &aside).expect("put aside");
    put_copy(&backup, &data);
    std::fs::rename(&aside, &kept).expect("put back");

    let publisher = successor.clone().start();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.places().await, [3]);
    let (ahead, _) = sized(&seen[8], "a", 3_000);
    refused(snapshots.offer(&ahead).await, Reason::CursorAhead);
    assert_eq!(stored_files(&publisher), 2, "what may be of use to somebody stays");
    let refusal = publisher.follows("ahead", seen.last()).await.map(drop);
    refused(refusal, Reason::CursorAhead);
    assert_eq!(publisher.terminate().code(), Some(0));

    let forked = Publisher::fork(dir.path(), &[]);
    assert_eq!(forked.code(), Some(0), "{forked:?}");
    let publisher = successor.start();
    let snapshots = Snapshots::of(&publisher);
    let listed = snapshots.list().await;
    let (common, content) = sized(&seen[3], "a", 3_000);
    assert_eq!(listed, std::slice::from_ref(&common), "under the log_id that it was made of");
    snapshots.downloads(&common, &content, 0).await.expect("whole");
    refused(snapshots.offer(&ahead).await, Reason::LogMismatch);
    let log = publisher.log().await;
    assert_eq!(log.snapshot.as_ref(), Some(&seen[3]));
    let (newest, content) = sized(&log.head.expect("a head"), "a", 3_000);
    snapshots.store(&newest, &content).await.expect("stored");
    assert_eq!(
        snapshots.places().await,
        [newest.cursor.expect("a place").sequence.expect("set"), 3]
    );
}
