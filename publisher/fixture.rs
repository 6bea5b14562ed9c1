//! A log's directory as format 1 left it, kept in `tests/fixtures/log-format-1`:
//! every later version opens it and finds the same. It has seen truncation, a
//! release, acknowledgements and a restart.

use std::{fs, path::Path};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    durable::{self, Latch},
    log::{
        Entry, EventLog as _, Extent,
        segment::{Options, SegmentLog},
    },
    positions::{Position, Positions},
    receipts::{self, Accepted, Names, hash},
    recover,
};
use crate::proto::{
    chain::{Chain, Cursor, EMPTY_CHAIN, link},
    event::{DataKind, Event, Intent, Time},
    wire,
};

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/log-format-1");
const OPTIONS: Options = Options { segment_bytes: 600 };
const EVENTS: i64 = 10;
const FLOOR: i64 = 7;

fn event(sequence: i64) -> Event {
    Event {
        sequence,
        subject_version: sequence / 2 + 1,
        accept_time: Time::from_unix_millis(1_796_000_000_000 + sequence),
        intent: Intent {
            key: format!("key-{sequence}").into(),
            event_type: "stock.adjusted".into(),
            subject: ["camera", "lens"][sequence as usize % 2].into(),
            content_type: "application/json".into(),
            kind: DataKind::Json,
            data: Bytes::from_static(br#"{"delta":3}"#),
            attributes: vec![("shop".to_owned(), "7".to_owned())],
            expected_version: None,
            first_attempt_time: None,
            time: None,
            fingerprint: [sequence as u8; 32],
        },
    }
}

fn accepted(sequence: i64) -> Accepted {
    Accepted {
        sequence,
        subject_version: sequence / 2 + 1,
        fingerprint: [sequence as u8; 32],
        accepted_at_ms: 1_796_000_000_000 + sequence,
        time_ms: None,
    }
}

fn entries() -> Vec<Entry> {
    let mut chain = EMPTY_CHAIN;
    (0..EVENTS)
        .map(|sequence| {
            let Event { intent, .. } = event(sequence);
            chain = link(&chain, sequence, &intent.fingerprint, &intent.key);
            let accepted_at_ms = accepted(sequence).accepted_at_ms;
            Entry { chain, accepted_at_ms, body: wire::stored(&event(sequence)) }
        })
        .collect()
}

fn chain_at(sequence: i64) -> Chain {
    entries()[sequence as usize].chain
}

fn position(log_id: Uuid) -> Position {
    let acked = Cursor { log_id, sequence: 8, chain: chain_at(8) };
    Position { name: "shop".to_owned(), session: 4, acked, reported: -1, seen_ms: 0 }
}

fn positions(dir: &Path) -> Positions {
    Positions::open(dir, Latch::open(dir).expect("open")).expect("opens")
}

fn check(dir: &Path) {
    let latch = Latch::open(dir).expect("open");
    let mut log = SegmentLog::open(dir, OPTIONS, latch.clone()).expect("opens");
    let reader = log.reader();
    let Extent { log_id, floor, next, head_chain, .. } = reader.extent();
    assert_eq!((floor, next, head_chain), (FLOOR, EVENTS, chain_at(EVENTS - 1)));
    assert_eq!(reader.chain_at(FLOOR - 1).expect("kept"), chain_at(FLOOR - 1));
    let read = reader.read(FLOOR, usize::MAX, usize::MAX).expect("readable");
    // What an event says counts, not in which order its fields were written.
    let said = |entry: &Entry| {
        let event = wire::decode_stored(entry.body.clone()).expect("an event");
        (entry.chain, entry.accepted_at_ms, event)
    };
    let expected = entries()[FLOOR as usize..].iter().map(said).collect::<Vec<_>>();
    assert_eq!(read.iter().map(said).collect::<Vec<_>>(), expected);
    let (receipts, _) = receipts::open(dir, latch, &*reader).expect("opens");
    let receipts = receipts::look(&receipts);
    for sequence in 0..EVENTS {
        let found = receipts.find(&hash(&format!("key-{sequence}"))).expect("readable");
        assert_eq!(found, Some(accepted(sequence)));
    }
    let version = |subject| receipts.subject_version(&hash(subject));
    assert_eq!((version("camera"), version("lens")), (5, 5));
    assert_eq!(positions(dir).all().collect::<Vec<_>>(), [&position(log_id)]);
    log.commit(&entries()[..1], FLOOR).expect("it can be continued");
}

fn copied() -> tempfile::TempDir {
    let parent = durable::scratch();
    let dir = parent.path().join("main");
    fs::create_dir(&dir).expect("created");
    for file in fs::read_dir(FIXTURE).expect("the fixture is there") {
        let file = file.expect("listed");
        fs::copy(file.path(), dir.join(file.file_name())).expect("copied");
    }
    parent
}

#[test]
fn files_of_format_1_are_read_and_continued() {
    check(&copied().path().join("main"));
}

#[test]
fn a_recovery_of_them_holds_the_same() {
    let parent = copied();
    let dir = parent.path().join("main");
    let report = recover::recover(&dir).expect("recovered").expect("a log");
    assert_eq!((report.positions, report.extent.next), (1, EVENTS));
    assert!((1..FLOOR as u64).contains(&report.receipts.receipts));
    check(&dir);
    check(&report.kept);
}

/// What a version writes, the same version opens. The fixture of a new format is
/// a copy of this directory.
#[test]
fn files_written_now_hold_the_same() {
    let parent = tempfile::tempdir().expect("a directory");
    let dir = &parent.path().join("main");
    fs::create_dir_all(dir).expect("created");
    let latch = Latch::open(dir).expect("open");
    let mut log = SegmentLog::open(dir, OPTIONS, latch.clone()).expect("opens");
    let (receipts, mut store) = receipts::open(dir, latch, &*log.reader()).expect("opens");
    for group in entries().chunks(2) {
        log.commit(group, 0).expect("stored");
    }
    let all = entries();
    for (sequence, _) in (0..).zip(&all) {
        let Intent { key, subject, .. } = event(sequence).intent;
        let names = Names::of(&key, &subject, None);
        receipts::change(&receipts).insert(names, accepted(sequence));
    }
    log.commit(&[], FLOOR).expect("moved");
    let range = log.releasable().expect("a whole segment");
    store.save_below(range.end, &receipts).expect("saved");
    log.release(range).expect("released");
    let log_id = log.reader().extent().log_id;
    positions(dir).record(&[position(log_id)]).expect("recorded");
    drop((log, receipts));
    check(dir);
}
