//! Figures of storage and index together; run by hand:
//! `cargo test --release --no-default-features --features publisher --lib figures -- --ignored --nocapture --test-threads 1`

use std::{fs, path::Path, time::Instant};

use super::{tests::entry, *};
use crate::publisher::log::{
    EventLog as _,
    segment::{Options, SegmentLog},
};

const EVENTS: Sequence = 1_000_000;
const GROUP: Sequence = 128;

/// Memory of this process: now, and at most so far, in MiB.
fn memory() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap_or_default();
        kib / 1024
    };
    format!("{} MiB now, {} MiB at most", of("VmRSS:"), of("VmHWM:"))
}

fn event(n: Sequence) -> Entry {
    let key = format!("0192f5c4-1111-7000-8000-{n:012}");
    entry(n, &key, &format!("item-{}", n % 1000), n / 1000 + 1).0
}

fn open(dir: &Path) -> (SegmentLog, Receipts) {
    let started = Instant::now();
    let log = SegmentLog::open(dir, Options::default()).expect("opens");
    let opened = started.elapsed();
    let receipts = Receipts::open(dir, log.reader()).expect("opens");
    println!(
        "opened {} receipts in {:?} (log alone {opened:?}); {}",
        receipts.keys(),
        started.elapsed(),
        memory()
    );
    (log, receipts)
}

#[test]
#[ignore = "figures, not a check"]
fn figures() {
    let dir = tempfile::tempdir_in(std::env::var("FIGURES_DIR").unwrap_or("/tmp".into()))
        .expect("a directory");
    let mut log = SegmentLog::open(dir.path(), Options::default()).expect("opens");
    let mut slowest = std::time::Duration::ZERO;
    let mut spent = std::time::Duration::ZERO;
    for first in (0..EVENTS).step_by(GROUP as usize) {
        let group: Vec<_> = (first..(first + GROUP).min(EVENTS)).map(event).collect();
        let started = Instant::now();
        log.commit(&group, 0).expect("stored");
        slowest = slowest.max(started.elapsed());
        spent += started.elapsed();
    }
    let extent = log.reader().extent();
    println!(
        "appended {EVENTS} events of {} stored bytes in groups of {GROUP}: {:.0}/s durable, slowest commit {slowest:?}; {}",
        extent.bytes / extent.count(),
        EVENTS as f64 / spent.as_secs_f64(),
        memory()
    );
    drop(log);
    let (mut log, mut receipts) = open(dir.path());

    let reader = log.reader();
    let started = Instant::now();
    let mut at = 0;
    while at < EVENTS {
        at += reader.read(at, 512, 128 * 1024).expect("readable").len() as Sequence;
    }
    println!("read in frames: {:.0}/s", EVENTS as f64 / started.elapsed().as_secs_f64());
    let started = Instant::now();
    for n in (0..EVENTS).step_by(101) {
        let found = receipts.find(&format!("0192f5c4-1111-7000-8000-{n:012}")).expect("readable");
        assert_eq!(found.map(|accepted| accepted.sequence), Some(n));
    }
    println!("found by key: {:?} each; {}", started.elapsed() / (EVENTS / 101) as u32, memory());

    let started = Instant::now();
    log.commit(&[], EVENTS - 10).expect("moved");
    println!("floor moved over everything in {:?}", started.elapsed());
    let started = Instant::now();
    let mut count = 0;
    while let Some(range) = log.releasable() {
        let entries = log.read_released(range.clone()).expect("readable");
        receipts.retire(range.clone(), &entries).expect("saved");
        log.release(range).expect("released");
        count += 1;
    }
    println!("released {count} segments, {:?} each; {}", started.elapsed() / count, memory());
    drop((log, receipts));
    open(dir.path());

    let mut log = SegmentLog::open(dir.path(), Options::default()).expect("opens");
    let started = Instant::now();
    for n in 0..1_000 {
        log.commit(&[event(EVENTS + n)], EVENTS - 9 + n).expect("stored");
    }
    println!("one event and one truncated: {:?} each", started.elapsed() / 1_000);
}
