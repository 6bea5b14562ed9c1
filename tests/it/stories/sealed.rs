//! A start of a long log reads its end, and leaves full segments to those who read
//! their events.

use std::{
    fs,
    path::{Path, PathBuf},
};

use counterfoil::proto::{
    pb::{ReplayRequest, StartAt, replay_request::Start},
    refusal::Reason,
};

use crate::harness::{
    events::{adjusted, event},
    files::{contents, segments, with_extension},
    pair::directory,
    publisher::Publisher,
    refusal::refused,
    tools::{has, skip, strace},
    wait::wait_until,
};

/// Every event has a segment of its own.
const RESTLESS: &str = "[logs.main]\nmax_events = 40\nsegment_bytes = 1\n";
const RETAINED: usize = 40;
/// More than are retained.
const EVENTS: i64 = 50;
/// Together far more than is read ahead of the oldest events.
const DATA_BYTES: usize = 20_000;
/// Bytes of a segment's header.
const HEADER: u64 = 80;

async fn long_log(dir: &Path) -> Publisher {
    let publisher = Publisher::at(dir).config(RESTLESS).start();
    let data = format!("{{\"note\":\"{}\"}}", "x".repeat(DATA_BYTES));
    for n in 0..EVENTS {
        publisher.accepts(event(&format!("k{n}"), "note.taken", "a", &data)).await;
    }
    // By then receipts are in files, too.
    wait_until("the segments of truncated events are gone", async || {
        (segments(publisher.dir()).len() == RETAINED).then_some(())
    })
    .await;
    publisher
}

/// The segment of an event.
fn segment(data: &Path, sequence: i64) -> PathBuf {
    let name = format!("{sequence:020}.seg");
    segments(data).into_iter().find(|path| path.ends_with(&name)).expect("it is retained")
}

/// Bytes that were read of a file, according to strace.
fn bytes_read(trace: &str, path: &Path) -> u64 {
    let name = format!("{}>", path.file_name().expect("a name").to_string_lossy());
    let reads = trace.lines().filter(|line| line.contains("read") && line.contains(&name));
    reads.filter_map(|line| line.rsplit_once(" = ")?.1.trim().parse::<u64>().ok()).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_reads_no_event_of_a_full_segment() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let dir = directory();
    let publisher = long_log(dir.path()).await;
    let (before, again) = (publisher.log().await, publisher.successor());
    assert_eq!(publisher.terminate().code(), Some(0));
    let trace = dir.path().join("strace");
    let options = ["-e", "trace=read,readv,pread64,preadv,mmap"];
    let publisher = again.wrapped(strace(&trace, &options)).start();
    let log = publisher.log().await;
    assert_eq!(log.next_sequence, before.next_sequence);
    assert_eq!(log.bytes, before.bytes, "also what is not read is counted");
    let text = fs::read_to_string(&trace).expect("strace has written");
    let data = publisher.dir().to_owned();
    // What is before these is read ahead, to know when it is too old.
    for sequence in 30..EVENTS - 1 {
        assert_eq!(bytes_read(&text, &segment(&data, sequence)), HEADER, "segment {sequence}");
    }
    assert!(bytes_read(&text, &segment(&data, EVENTS - 1)) > HEADER, "the last is read");
    assert_eq!(publisher.everything().await.len(), RETAINED);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_in_a_full_segment_is_told_to_its_reader_and_by_the_check() {
    let dir = directory();
    let publisher = long_log(dir.path()).await;
    let (data, again) = (publisher.dir().to_owned(), publisher.successor());
    publisher.terminate();
    let whole = Publisher::check(dir.path());
    assert_eq!(whole.code(), Some(0), "{whole:?}");
    assert!(whole.stdout.contains("events 10 to 49 are whole"), "{whole:?}");

    let damaged = segment(&data, 20);
    let mut bytes = fs::read(&damaged).expect("readable");
    let place = bytes.windows(3).position(|three| three == b"k20").expect("stored as it was sent");
    bytes[place] ^= 0x20;
    fs::write(&damaged, &bytes).expect("written");
    let before = contents(&data);
    let said = Publisher::check(dir.path());
    assert_eq!(said.code(), Some(3), "{said:?}");
    assert!(said.stderr.contains("sequence 20"), "{said:?}");
    assert_eq!(contents(&data), before, "the check changes nothing");

    let publisher = again.start();
    let oldest = Some(Start::StartAt(StartAt::Oldest.into()));
    let replay = ReplayRequest { start: oldest, ..Default::default() };
    let mut frames = publisher.replay(replay).await.expect("it starts");
    let refusal = refused(frames.rest().await, Reason::Corrupt);
    assert_eq!(refusal.number("sequence"), 20);
    // Up to there the log goes on, the damaged event's receipt included.
    assert_eq!(publisher.receipt("k20").await.receipt.expect("kept").sequence, Some(20));
    for n in 0..9 {
        publisher.accepts(adjusted(&format!("more-{n}"), "a", 1)).await;
    }
    // The damaged event would be the oldest now, and nobody knows how old it is.
    refused(publisher.publish(vec![adjusted("one-more", "a", 1)]).await, Reason::Corrupt);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_without_seals_starts_as_well_and_has_them_afterwards() {
    let dir = directory();
    let publisher = long_log(dir.path()).await;
    let (data, again) = (publisher.dir().to_owned(), publisher.successor());
    publisher.terminate();
    let seals = || with_extension(&data, "sealed");
    assert_eq!(seals().len(), segments(&data).len() - 1);
    for seal in seals() {
        fs::remove_file(seal).expect("removed");
    }
    let publisher = again.start();
    assert_eq!(publisher.everything().await.len(), RETAINED);
    assert_eq!(seals().len(), segments(&data).len() - 1);
}
