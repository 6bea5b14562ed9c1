//! A gibibyte: larger than any message, and than what the publisher may hold in memory.

use std::time::Instant;

use super::places;
use crate::harness::{
    pair::directory,
    publisher::Publisher,
    snapshot::{Content, Snapshots},
};

#[tokio::test(flavor = "multi_thread")]
async fn a_gibibyte_goes_both_ways_in_little_memory() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 1 << 30);
    let snapshot = content.at(&place);
    let snapshots = Snapshots::of(&publisher);
    let started = Instant::now();
    snapshots.offer(&snapshot).await.expect("an offer");
    snapshots.upload(&snapshot, &content, 0, 1 << 20).await.expect("stored");
    let uploaded = started.elapsed();
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
    let peak = publisher.process.peak_memory_kib();
    println!("up in {uploaded:?}, down in {:?}, {peak} KiB", started.elapsed() - uploaded);
    assert!(0 < peak && peak < 256 * 1024, "{peak} KiB");
    assert_eq!(snapshots.list().await, [snapshot]);
}
