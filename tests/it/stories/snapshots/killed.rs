//! The publisher dies at every place on the way of an upload. The places come from
//! the one list, so a new one is covered by itself.

use counterfoil::proto::crash;

use super::places;
use crate::harness::{
    files::with_extension,
    pair::directory,
    publisher::Publisher,
    snapshot::{Content, Snapshots},
};

/// Two are kept, so the first goes once the third is whole.
const KEEPS_TWO: &str = "[logs.main]\nkeep_snapshots = 2\n";
/// There are bytes for two, so the first goes before the third comes.
const HAS_ROOM_FOR_TWO: &str = "[logs.main]\nkeep_snapshots = 2\nmax_snapshot_bytes = 100000000\n";
/// More than two steps that are synced by themselves.
const SIZE: u64 = 40_000_000;

async fn dies_at(config: &str, point: &str, after: u32) {
    println!("{point}, after {after} passes");
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config(config).start();
    let places = places(&publisher, 5).await;
    let contents: Vec<_> = (0..3).map(|seed| Content::new(seed, SIZE)).collect();
    let all: Vec<_> =
        contents.iter().zip(&places).map(|(content, place)| content.at(place)).collect();
    let snapshots = Snapshots::of(&publisher);
    for n in 0..2 {
        snapshots.store(&all[n], &contents[n]).await.expect("stored");
    }
    let dying = publisher.successor().dies_at(point, after);
    drop(publisher);

    let mut publisher = dying.start();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.offset(&all[2]).await, 0);
    let upload = snapshots.upload(&all[2], &contents[2], 0, 1 << 20).await;
    upload.expect_err("it dies");
    let status = publisher.process.wait_for_end();
    assert!(!status.success(), "it died: {status}");
    assert!(publisher.process.said().contains(point), "elsewhere than at {point}");

    let publisher = publisher.restart();
    let snapshots = Snapshots::of(&publisher);
    // What was whole is whole, and what is shown is.
    let shown = snapshots.list().await;
    assert!(shown.contains(&all[1]), "{shown:?}");
    for snapshot in &shown {
        let n = all.iter().position(|one| one == snapshot).expect("one of ours");
        snapshots.downloads(snapshot, &contents[n], 0).await.expect("whole");
    }
    let offer = snapshots.offer(&all[2]).await.expect("an offer");
    let makes_room_first = config == HAS_ROOM_FOR_TWO;
    let named = [crash::PUBLISHER_AFTER_SNAPSHOT_RENAME, crash::PUBLISHER_AFTER_SNAPSHOT_DROP];
    assert_eq!(offer.stored, named.contains(&point) && !makes_room_first);
    if !offer.stored {
        let from = offer.offset.expect("always set") as u64;
        assert_eq!(from == 0, makes_room_first, "what had come is still here");
        snapshots.upload(&all[2], &contents[2], from, 1 << 20).await.expect("stored");
    }
    snapshots.downloads(&all[2], &contents[2], 0).await.expect("whole");
    // A third may be left until the next is stored.
    let newer = Content::new(9, 1_000);
    snapshots.store(&newer.at(&places[4]), &newer).await.expect("stored");
    assert_eq!(snapshots.list().await, [newer.at(&places[4]), all[2].clone()]);
    for (kind, count) in [("db", 2), ("meta", 2), ("part", 0), ("tmp", 0)] {
        assert_eq!(with_extension(publisher.dir(), kind).len(), count, "{kind}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_every_place_of_an_upload_and_it_goes_on() {
    for point in crash::PUBLISHER_SNAPSHOTS {
        dies_at(KEEPS_TWO, point, 0).await;
    }
}

/// The first two syncs are on the way, the third is the last.
#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_later_bytes_of_an_upload_and_it_goes_on() {
    for after in [1, 2] {
        dies_at(KEEPS_TWO, crash::PUBLISHER_AFTER_SNAPSHOT_BYTES, after).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_when_room_is_made_for_an_upload_and_the_newest_is_still_there() {
    dies_at(HAS_ROOM_FOR_TWO, crash::PUBLISHER_AFTER_SNAPSHOT_DROP, 0).await;
}
