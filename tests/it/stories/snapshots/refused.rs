//! What is not taken: places of other histories, holes, other bytes than announced.

use bytes::Bytes;
use counterfoil::proto::{
    limits::MAX_SNAPSHOT_TRANSFERS,
    pb::{Cursor, Snapshot},
    refusal::Reason,
};

use super::places;
use crate::harness::{
    pair::directory,
    publisher::Publisher,
    refusal::refused,
    snapshot::{Content, Snapshots, files},
    tools::counterfoil,
};

#[tokio::test(flavor = "multi_thread")]
async fn only_places_that_a_receiver_could_go_on_from_are_taken() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 5\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 5).await;
    let place = places[4].clone();
    let content = Content::new(1, 1_000);
    let snapshots = Snapshots::of(&publisher);
    let offer = async |cursor: Cursor| snapshots.offer(&content.at(&cursor)).await;
    let foreign = Cursor { log_id: "00000000-0000-4000-8000-000000000000".into(), ..place.clone() };
    refused(offer(foreign).await, Reason::LogMismatch);
    let ahead = Cursor { sequence: Some(5), ..place.clone() };
    assert_eq!(refused(offer(ahead).await, Reason::CursorAhead).number("next"), 5);
    let forked = Cursor { chain: Bytes::from_static(&[9; 32]), ..place.clone() };
    refused(offer(forked).await, Reason::Diverged);
    let nothing = refused(offer(Cursor::default()).await, Reason::InvalidField);
    assert_eq!(nothing.fields, ["snapshot.cursor.sequence"]);
    let elsewhere = Snapshot { log: "other".into(), ..content.at(&place) };
    refused(snapshots.offer(&elsewhere).await, Reason::LogNotFound);

    publisher.publish(crate::harness::events::adjustments("l", 3)).await.expect("accepted");
    let expired = refused(offer(places[1].clone()).await, Reason::CursorExpired);
    assert_eq!((expired.number("floor"), expired.number("next")), (3, 8));
    assert!(expired.message.contains("make another one"), "{expired:?}");
    offer(places[2].clone()).await.expect("right below the floor");
    offer(place).await.expect("taken");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hole_and_what_is_too_much_are_refused_with_the_place() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 2_000_000);
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    refused(snapshots.upload(&snapshot, &content, 0, 1_000).await, Reason::NotFound);
    assert_eq!(snapshots.offset(&snapshot).await, 0);

    let upload = snapshots.open_upload(&snapshot);
    upload.send(&content, 0, 100_000, 50_000).await;
    upload.piece(100_001, content.read(100_001, 10)).await;
    let hole = refused(upload.answer().await, Reason::InvalidField);
    assert_eq!((hole.fields, hole.numbers["offset"].as_str()), (vec!["offset".into()], "100000"));

    // (what is sent behind what is here, where, the field at fault)
    let cases = [
        ("before the end", content.read(0, 10), 99_999, "offset"),
        ("beyond the size", Content::new(1, 1_900_001).read(0, 1 << 20), 2_000_000, "offset"),
        ("a piece too large", content.read(100_000, (1 << 20) + 1), 100_000, "data"),
    ];
    for (case, data, offset, field) in cases {
        assert_eq!(snapshots.offset(&snapshot).await, 100_000, "{case}");
        let upload = snapshots.open_upload(&snapshot);
        upload.piece(offset, data).await;
        assert_eq!(refused(upload.answer().await, Reason::InvalidField).fields, [field], "{case}");
    }
    assert_eq!(snapshots.offset(&snapshot).await, 100_000);
    let upload = snapshots.open_upload(&snapshot);
    upload.send(&content, 100_000, 1_999_000, 1 << 20).await;
    upload.piece(1_999_000, Content::new(2, 1_001).read(0, 1_001)).await;
    let long = refused(upload.answer().await, Reason::InvalidField);
    assert_eq!(long.fields, ["data"]);
    assert!(long.message.contains("2000000"), "{long:?}");
    assert_eq!(snapshots.offset(&snapshot).await, 1_999_000);
    snapshots.upload(&snapshot, &content, 1_999_000, 1_000).await.expect("stored");
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
    let beyond = snapshots.downloads(&snapshot, &content, content.size + 1).await;
    assert_eq!(refused(beyond, Reason::InvalidField).fields, ["offset"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_bytes_than_announced_are_thrown_away() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let (content, other) = (Content::new(1, 300_000), Content::new(2, 300_000));
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.offset(&snapshot).await, 0);
    let damaged = snapshots.upload(&snapshot, &other, 0, 70_000).await;
    refused(damaged, Reason::SnapshotDamaged);
    assert!(snapshots.list().await.is_empty());
    let (part, whole) = files(&publisher, &snapshot);
    assert!(!part.exists() && !whole.exists(), "nothing stays");
    // Not offered any more: what was said about it may be as wrong.
    refused(snapshots.upload(&snapshot, &content, 0, 70_000).await, Reason::NotFound);
    assert_eq!(snapshots.offset(&snapshot).await, 0);
    snapshots.upload(&snapshot, &content, 0, 70_000).await.expect("stored");

    // A whole one that goes bad on the disk is found by who checks, and by who is sent it.
    let mut bytes = std::fs::read(&whole).expect("readable");
    bytes[250_000] ^= 1;
    std::fs::write(&whole, bytes).expect("written");
    let half = snapshots.downloads(&snapshot, &content, 270_000).await;
    half.expect("these bytes are right");
    let mut download = snapshots.download(&snapshot.sha256, 0).await.expect("opened");
    let ended = loop {
        match download.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ends as if it were whole"),
            Err(status) => break status,
        }
    };
    refused(Err::<(), _>(ended), Reason::SnapshotDamaged);
    assert!(snapshots.list().await.is_empty() && !whole.exists(), "nobody is sent it again");
    assert_eq!(publisher.log().await.state().as_str_name(), "LOG_STATE_ACTIVE");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_reads_snapshots_too() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 100_000);
    let snapshot = content.at(&place);
    Snapshots::of(&publisher).store(&snapshot, &content).await.expect("stored");
    let (_, whole) = files(&publisher, &snapshot);
    let successor = publisher.successor();
    assert_eq!(publisher.terminate().code(), Some(0));
    let check = Publisher::check(dir.path());
    assert_eq!(check.code(), Some(0), "{check:?}");
    assert!(check.stdout.contains("and 1 snapshots"), "{check:?}");

    // Cut short, it is none: a start says so, and goes on without it.
    let bytes = std::fs::read(&whole).expect("readable");
    let mut flipped = bytes.clone();
    flipped[77] ^= 1;
    std::fs::write(&whole, &flipped).expect("written");
    let check = Publisher::check(dir.path());
    assert_eq!(check.code(), Some(3), "{check:?}");
    assert!(check.stderr.contains("another hash"), "{check:?}");
    std::fs::write(&whole, &bytes[..99_999]).expect("written");
    let publisher = successor.start();
    assert!(Snapshots::of(&publisher).list().await.is_empty());
    assert!(!whole.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_transfers_at_a_time_and_no_more() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 20_000_000);
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    snapshots.store(&snapshot, &content).await.expect("stored");
    let mut open = Vec::new();
    // On connections of their own: what is not read there is in nobody's way.
    for _ in 0..MAX_SNAPSHOT_TRANSFERS {
        let reader = Snapshots::of(&publisher);
        open.push(reader.download(&snapshot.sha256, 0).await.expect("opened"));
    }
    let more =
        refused(snapshots.download(&snapshot.sha256, 0).await.map(drop), Reason::StreamsFull);
    assert_eq!(more.number("limit"), MAX_SNAPSHOT_TRANSFERS as i64);
    // Everything else goes on meanwhile.
    assert_eq!(snapshots.places().await, [0]);
    publisher.accepts(crate::harness::events::adjusted("more", "a", 1)).await;
    let status = counterfoil(["snapshots", "--publisher", &publisher.url()]).run();
    assert_eq!(status.code(), Some(0), "{status:?}");
    open.pop();
    crate::harness::wait::wait_until("there is room again", async || {
        snapshots.downloads(&snapshot, &content, 19_000_000).await.ok()
    })
    .await;
}
