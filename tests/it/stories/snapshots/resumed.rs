//! Transfers that break, and go on from the byte that was reached.

use counterfoil::proto::{pb::download_snapshot_response::Part, refusal::Reason};

use super::places;
use crate::harness::{
    files::length,
    pair::directory,
    proxy::Proxy,
    publisher::{Publisher, channel},
    refusal::refused,
    snapshot::{Content, Snapshots, files},
    wait::wait_until,
};

/// SNP-08, from the other side: what was cut short is no snapshot, and nothing of it is
/// sent twice.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_goes_on_after_a_broken_link_and_after_a_kill() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let place = places(&publisher, 2).await.remove(1);
    let content = Content::new(1, 1_234_567);
    let snapshot = content.at(&place);
    let proxy = Proxy::to(publisher.address).await;
    let link = Snapshots::over(channel(proxy.address));
    let (part, _) = files(&publisher, &snapshot);
    let arrives = async |upto: u64| {
        wait_until("the bytes have arrived", async || (length(&part) == upto).then_some(())).await;
    };

    assert_eq!(link.offset(&snapshot).await, 0);
    let upload = link.open_upload(&snapshot);
    upload.send(&content, 0, 300_007, 100_003).await;
    arrives(300_007).await;
    proxy.cut();
    upload.told().await.expect_err("the link is broken");

    assert_eq!(link.offset(&snapshot).await, 300_007);
    let upload = link.open_upload(&snapshot);
    upload.send(&content, 300_007, 700_001, 65_537).await;
    arrives(700_001).await;
    publisher.process.kill();
    upload.told().await.expect_err("the publisher is gone");

    publisher = publisher.restart();
    let snapshots = Snapshots::of(&publisher);
    let early = snapshots.upload(&snapshot, &content, 700_001, 65_537).await;
    refused(early, Reason::NotFound);
    assert!(snapshots.list().await.is_empty());
    assert_eq!(snapshots.offset(&snapshot).await, 700_001);
    snapshots.upload(&snapshot, &content, 700_001, 65_537).await.expect("stored");
    assert_eq!(snapshots.places().await, [1]);
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_stops_too_soon_goes_on() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 400_000);
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.offset(&snapshot).await, 0);
    let upload = snapshots.open_upload(&snapshot);
    upload.send(&content, 0, 123_456, 50_000).await;
    let short = refused(upload.answer().await, Reason::InvalidField);
    assert_eq!(short.number("offset"), 123_456);
    assert!(snapshots.list().await.is_empty());
    assert_eq!(snapshots.offset(&snapshot).await, 123_456);
    snapshots.upload(&snapshot, &content, 123_456, 50_000).await.expect("stored");
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
}

/// A download goes on where it was, also from another process, and also of a snapshot
/// that has made room for newer ones since it started.
#[tokio::test(flavor = "multi_thread")]
async fn a_download_goes_on_after_a_kill_and_outlives_its_snapshot() {
    let dir = directory();
    let config = "[logs.main]\nkeep_snapshots = 1\n";
    let mut publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 2).await;
    // More than is under way on a connection at any time.
    let content = Content::new(1, 20_000_000);
    let snapshot = content.at(&places[0]);
    let snapshots = Snapshots::of(&publisher);
    snapshots.store(&snapshot, &content).await.expect("stored");
    let mut download = snapshots.download(&snapshot.sha256, 0).await.expect("opened");
    let mut reached = 0;
    while reached < 1_000_000 {
        match download.next().await.expect("a chunk") {
            Some(Part::Chunk(chunk)) => reached += chunk.data.len() as u64,
            other => panic!("{other:?}"),
        }
    }
    publisher.process.kill();
    let broken = download.rest(&snapshot, &content).await;
    broken.expect_err("the publisher is gone");

    publisher = publisher.restart();
    let snapshots = Snapshots::of(&publisher);
    let download = snapshots.download(&snapshot.sha256, reached).await.expect("opened");
    let newer = Content::new(2, 1_000);
    snapshots.store(&newer.at(&places[1]), &newer).await.expect("stored");
    assert_eq!(snapshots.places().await, [1]);
    download.rest(&snapshot, &content).await.expect("to its end");
    refused(snapshots.downloads(&snapshot, &content, reached).await, Reason::NotFound);
}

/// One at a time: who comes last goes on, who came first is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_offer_takes_over_from_an_upload() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 300_000);
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    let (part, _) = files(&publisher, &snapshot);
    let stalled = async |from: u64| {
        assert_eq!(snapshots.offset(&snapshot).await, from);
        let upload = snapshots.open_upload(&snapshot);
        upload.send(&content, from, from + 100_000, 100_000).await;
        wait_until("a piece has arrived", async || (length(&part) == from + 100_000).then_some(()))
            .await;
        upload
    };
    let first = stalled(0).await;
    let second = stalled(100_000).await;
    first.piece(200_000, content.read(200_000, 10)).await;
    refused(first.answer().await, Reason::TransferEnded);
    second.send(&content, 200_000, 300_000, 100_000).await;
    second.answer().await.expect("stored");
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");

    // A receiver that has made another one does not go on with the first.
    let (older, newer) = (Content::new(2, 9_000), Content::new(3, 9_000));
    let upload = {
        assert_eq!(snapshots.offset(&older.at(&place)).await, 0);
        let upload = snapshots.open_upload(&older.at(&place));
        upload.send(&older, 0, 5_000, 5_000).await;
        let (part, _) = files(&publisher, &older.at(&place));
        wait_until("a piece has arrived", async || (length(&part) == 5_000).then_some(())).await;
        upload
    };
    assert_eq!(snapshots.offset(&newer.at(&place)).await, 0);
    let (part, _) = files(&publisher, &older.at(&place));
    assert!(!part.exists(), "its bytes are gone");
    upload.send(&older, 5_000, 9_000, 4_000).await;
    refused(upload.answer().await, Reason::TransferEnded);
}

/// Told to end, it ends; both sides know where to go on.
#[tokio::test(flavor = "multi_thread")]
async fn transfers_do_not_hold_up_the_end_of_the_process() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let places = places(&publisher, 2).await;
    let snapshots = Snapshots::of(&publisher);
    let content = Content::new(1, 20_000_000);
    let snapshot = content.at(&places[0]);
    snapshots.store(&snapshot, &content).await.expect("stored");
    let download = snapshots.download(&snapshot.sha256, 0).await.expect("opened");
    let other = Content::new(2, 500_000);
    assert_eq!(snapshots.offset(&other.at(&places[1])).await, 0);
    let upload = snapshots.open_upload(&other.at(&places[1]));
    upload.send(&other, 0, 200_000, 100_000).await;
    let (part, _) = files(&publisher, &other.at(&places[1]));
    wait_until("the pieces have arrived", async || (length(&part) == 200_000).then_some(())).await;

    let successor = publisher.successor();
    let started = std::time::Instant::now();
    let ending = tokio::task::spawn_blocking(move || publisher.terminate());
    assert!(refused(upload.told().await, Reason::ShuttingDown).retry);
    assert!(refused(download.rest(&snapshot, &content).await, Reason::ShuttingDown).retry);
    assert_eq!(ending.await.expect("ended").code(), Some(0));
    assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());

    let publisher = successor.start();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.offset(&other.at(&places[1])).await, 200_000);
}
