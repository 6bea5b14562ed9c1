//! Compares what a publisher says with what the model says, and remembers what the
//! publisher was free to choose: that has to stay as it was.

use std::collections::BTreeMap;

use bytes::Bytes;
use counterfoil::proto::{
    event::{Time, hex},
    pb::{Event, GetReceiptResponse, Log, NewEvent, PublishOutcome, Receipt, ReceiptState},
    wire::timestamp,
};
use prost_types::Timestamp;

use super::{Answer, Hour, Intent, Key, Known, Model};
use crate::harness::{
    clock::HOUR_MS,
    events::{adjusted, uuid_v7},
    publish_stream,
    refusal::refused,
};

const HALF_HOUR_MS: i64 = HOUR_MS / 2;

/// The hours of a history in real time, and what was seen of one log.
pub struct Witness {
    /// When the history began, milliseconds since the Unix epoch.
    began_ms: i64,
    log_id: String,
    /// By content.
    fingerprints: BTreeMap<Intent, Bytes>,
    /// By sequence.
    accept_times: BTreeMap<usize, Timestamp>,
    /// The promise itself, kept apart from the model: one intent, one sequence.
    sequences: BTreeMap<Intent, usize>,
}

/// An intent without its key: that is no part of the content.
fn content(intent: &Intent) -> Intent {
    Intent { key: Key::Text(0), ..*intent }
}

impl Witness {
    pub fn new(began_ms: i64, log_id: String) -> Self {
        Witness {
            began_ms,
            log_id,
            fingerprints: BTreeMap::new(),
            accept_times: BTreeMap::new(),
            sequences: BTreeMap::new(),
        }
    }

    /// The middle of an hour.
    fn middle_ms(&self, hour: Hour) -> i64 {
        self.began_ms + hour * HOUR_MS + HALF_HOUR_MS
    }

    pub fn time(&self, hour: Hour) -> Timestamp {
        timestamp(Time::from_unix_millis(self.middle_ms(hour)))
    }

    /// A key as it is written.
    pub fn key(&self, key: Key) -> String {
        match key {
            Key::Text(number) => format!("order-{number}"),
            Key::Uuid(hour, number) => uuid_v7(self.middle_ms(hour), number),
        }
    }

    /// A request as it is sent.
    pub fn messages(&self, intents: &[Intent]) -> Vec<NewEvent> {
        let message = |intent: &Intent| NewEvent {
            first_attempt_time: intent.stated.map(|hour| self.time(hour)),
            expected_version: intent.expected_version,
            ..adjusted(&self.key(intent.key), &subject(intent), intent.delta)
        };
        intents.iter().map(message).collect()
    }

    /// An answer of Publish.
    pub fn answer(&mut self, model: &Model, expected: &Answer, answer: publish_stream::Answer) {
        match expected {
            Answer::Appended(sequences) => {
                let receipts = answer.unwrap_or_else(|status| panic!("{expected:?}: {status:?}"));
                self.receipts(model, sequences, &receipts, PublishOutcome::Appended);
            }
            Answer::Duplicate(sequences) => {
                let receipts = answer.unwrap_or_else(|status| panic!("{expected:?}: {status:?}"));
                self.receipts(model, sequences, &receipts, PublishOutcome::Duplicate);
            }
            Answer::Refused(reason, numbers) => {
                let refusal = refused(answer, *reason);
                for (name, number) in numbers {
                    assert_eq!(refusal.number(name), *number, "{expected:?}: {refusal:?}");
                }
                if let Some((_, sequence)) = numbers.iter().find(|(name, _)| *name == "sequence") {
                    let original = content(&model.log[*sequence as usize].intent);
                    if let Some(known) = self.fingerprints.get(&original) {
                        assert_eq!(refusal.numbers["fingerprint"], hex(known), "{refusal:?}");
                    }
                }
            }
        }
    }

    fn receipts(
        &mut self,
        model: &Model,
        sequences: &[usize],
        receipts: &[Receipt],
        outcome: PublishOutcome,
    ) {
        assert_eq!(receipts.len(), sequences.len(), "{receipts:?}");
        for (&sequence, receipt) in sequences.iter().zip(receipts) {
            assert_eq!(receipt.outcome(), outcome, "{receipt:?}");
            self.receipt(model, sequence, receipt);
        }
    }

    fn receipt(&mut self, model: &Model, sequence: usize, receipt: &Receipt) {
        let accepted = &model.log[sequence];
        assert_eq!(receipt.log_id, self.log_id);
        assert_eq!(receipt.sequence, Some(sequence as i64), "{receipt:?}");
        assert_eq!(receipt.key, self.key(accepted.intent.key));
        assert_eq!(receipt.subject_version, Some(accepted.subject_version), "{receipt:?}");
        let expires = accepted.intent.hour().map(|hour| self.time(hour + model.bounds.key_window));
        assert_eq!(receipt.expire_time, expires, "{receipt:?}");
        self.stays(model, sequence, &receipt.fingerprint, receipt.accept_time);
    }

    /// What was chosen at the first look stays so.
    fn stays(&mut self, model: &Model, sequence: usize, print: &Bytes, at: Option<Timestamp>) {
        let accepted = &model.log[sequence];
        let first = *self.sequences.entry(accepted.intent).or_insert(sequence);
        assert_eq!(first, sequence, "{:?} has a second sequence", accepted.intent);
        let known = self.fingerprints.entry(content(&accepted.intent)).or_insert(print.clone());
        assert_eq!(known, print, "the fingerprint of {:?}", accepted.intent);
        let at = at.expect("an accept time");
        assert_eq!(*self.accept_times.entry(sequence).or_insert(at), at, "of {sequence}");
        self.is_in_hour(accepted.at, &at, "accept_time");
    }

    fn is_in_hour(&self, hour: Hour, at: &Timestamp, what: &str) {
        let at_ms = at.seconds * 1_000 + i64::from(at.nanos) / 1_000_000;
        let begin_ms = self.began_ms + hour * HOUR_MS;
        let since_ms = at_ms - begin_ms;
        // The key floor follows the clock with a delay of a minute at most.
        assert!((-60_000..HALF_HOUR_MS).contains(&since_ms), "{what}: {since_ms} ms off {hour} h");
    }

    /// An answer of GetReceipt.
    pub fn known(&mut self, model: &Model, expected: Known, answer: &GetReceiptResponse) {
        let right = match (expected, answer.state()) {
            (Known::Accepted(sequence), ReceiptState::Accepted) => {
                self.receipt(model, sequence, answer.receipt.as_ref().expect("it is accepted"));
                true
            }
            (Known::Never | Known::NeverOrExpired, ReceiptState::NeverAccepted) => true,
            (Known::Expired | Known::NeverOrExpired, ReceiptState::Expired) => true,
            _ => false,
        };
        assert!(right, "expected {expected:?}, got {answer:?}");
    }

    /// An answer of GetLog, but for the floor of the events.
    pub fn log(&self, model: &Model, log: &Log) {
        assert_eq!(log.log_id, self.log_id);
        assert_eq!(log.next_sequence, Some(model.log.len() as i64), "{log:?}");
        assert_eq!(log.untimed_keys, Some(model.untimed() as i64), "{log:?}");
        // Receipts that have expired are swept away bit by bit.
        let keys = log.keys.expect("always set") as usize;
        assert!((model.keys()..=model.log.len()).contains(&keys), "{log:?}");
        let key_floor = log.key_floor_time.as_ref().expect("a key floor");
        self.is_in_hour(model.key_floor, key_floor, "key_floor_time");
    }

    /// All retained events.
    pub fn events(&mut self, model: &Model, events: &[Event]) {
        assert_eq!(events.len(), model.log.len() - model.floor, "{events:?}");
        for (sequence, event) in (model.floor..).zip(events) {
            let accepted = &model.log[sequence];
            let stated = &self.messages(&[accepted.intent])[0];
            assert_eq!(event.sequence, Some(sequence as i64), "a hole: {event:?}");
            assert_eq!(event.subject_version, Some(accepted.subject_version), "{event:?}");
            assert_eq!((&event.key, &event.subject), (&stated.key, &stated.subject));
            assert_eq!(event.expected_version, stated.expected_version, "{event:?}");
            assert_eq!(event.first_attempt_time, stated.first_attempt_time, "{event:?}");
            assert_eq!(format!("{:?}", event.data), format!("{:?}", stated.data));
            self.stays(model, sequence, &event.fingerprint, event.accept_time);
        }
    }
}

fn subject(intent: &Intent) -> String {
    format!("item-{}", intent.subject)
}
