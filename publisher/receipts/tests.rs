//! Receipts against a log, through truncation.

use bytes::Bytes;
use uuid::Uuid;

use super::*;
use crate::{
    proto::{
        event::{DataKind, Event, Intent, Time},
        wire,
    },
    publisher::log::{EventLog, memory::MemoryLog},
};

/// A stored event and its receipt.
pub fn entry(
    sequence: Sequence,
    key: &str,
    subject: &str,
    subject_version: i64,
) -> (Entry, Accepted) {
    let fingerprint = [sequence as u8; 32];
    let accepted_at_ms = 1_000 + sequence;
    let event = Event {
        sequence,
        subject_version,
        accept_time: Time::from_unix_millis(accepted_at_ms),
        intent: Intent {
            key: key.to_owned(),
            event_type: "stock.adjusted".to_owned(),
            subject: subject.to_owned(),
            content_type: "application/octet-stream".to_owned(),
            kind: DataKind::Binary,
            data: Bytes::from_static(&[b'x'; 100]),
            attributes: Vec::new(),
            expected_version: None,
            first_attempt_time: None,
            time: None,
            fingerprint,
        },
    };
    (
        Entry { chain: [0; 32], accepted_at_ms, body: wire::stored(&event) },
        Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms: None },
    )
}

fn publish(log: &mut MemoryLog, receipts: &mut Receipts, sequence: Sequence) {
    let key = format!("key-{sequence}");
    let subject = if sequence % 2 == 0 { "even" } else { "odd" };
    let (entry, accepted) = entry(sequence, &key, subject, sequence / 2 + 1);
    log.commit(&[entry], 0).expect("stored");
    receipts.insert(&key, subject, &accepted);
}

fn check(receipts: &Receipts, events: Sequence) {
    assert_eq!(receipts.keys(), events as u64);
    for sequence in 0..events {
        let (_, accepted) = entry(sequence, "", "", sequence / 2 + 1);
        let found = receipts.find(&format!("key-{sequence}")).expect("readable");
        assert_eq!(found, Some(accepted));
    }
    assert_eq!(receipts.find("other").expect("readable"), None);
    assert_eq!(receipts.subject_version("even"), (events + 1) / 2);
    assert_eq!(receipts.subject_version("odd"), events / 2);
    assert_eq!(receipts.subject_version("none"), 0);
}

#[test]
fn receipts_and_versions_survive_the_truncation_of_everything_and_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = MemoryLog::new(Uuid::nil());
    let open = |log: &MemoryLog| Receipts::open(dir.path(), log.reader());
    let mut receipts = open(&log).expect("opens");
    for sequence in 0..10 {
        publish(&mut log, &mut receipts, sequence);
    }
    check(&receipts, 10);
    check(&open(&log).expect("opens"), 10);

    log.commit(&[], 7).expect("stored");
    check(&receipts, 10); // below the floor, not yet released
    check(&open(&log).expect("opens"), 10);

    let range = log.releasable().expect("0..7");
    let entries = log.read_released(range.clone()).expect("readable");
    receipts.retire(range.clone(), &entries).expect("saved");
    check(&receipts, 10); // retired, not yet released
    check(&open(&log).expect("opens"), 10);
    let mut again = open(&log).expect("opens");
    again.retire(range.clone(), &entries).expect("saved before the crash");
    check(&again, 10);

    log.release(range).expect("released");
    check(&receipts, 10);
    let mut receipts = open(&log).expect("opens");
    check(&receipts, 10);

    log.commit(&[], 10).expect("stored");
    let range = log.releasable().expect("7..10");
    let entries = log.read_released(range.clone()).expect("readable");
    receipts.retire(range.clone(), &entries).expect("saved");
    log.release(range).expect("released");
    check(&open(&log).expect("opens"), 10);
    publish(&mut log, &mut receipts, 10);
    check(&open(&log).expect("opens"), 11);
}

#[test]
fn released_without_having_been_retired_is_said() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut log = MemoryLog::new(Uuid::nil());
    let (first, _) = entry(0, "a", "s", 1);
    log.commit(&[first], 1).expect("stored");
    log.release(0..1).expect("released");
    let (second, _) = entry(1, "b", "s", 2);
    log.commit(&[second], 1).expect("stored");
    let refused = Receipts::open(dir.path(), log.reader()).err().expect("a hole");
    assert!(matches!(refused, OpenError::Corrupt { sequence: 0, .. }), "{refused}");
}

#[test]
fn in_memory_it_does_the_same() {
    let mut log = MemoryLog::new(Uuid::nil());
    let mut receipts = Receipts::in_memory(log.reader());
    for sequence in 0..4 {
        publish(&mut log, &mut receipts, sequence);
    }
    log.commit(&[], 3).expect("stored");
    let entries = log.read_released(0..3).expect("readable");
    receipts.retire(0..3, &entries).expect("saved");
    log.release(0..3).expect("released");
    check(&receipts, 4);
}
