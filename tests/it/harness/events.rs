//! Events as the stories tell of them.

use bytes::Bytes;
use counterfoil::proto::{
    chain,
    event::Time,
    pb::{AckOutcome, Cursor, Event, NewEvent, Outcome, Receipt, new_event::Data},
    wire,
};
use uuid::Builder;

/// Some JSON text under a key.
pub fn event(key: &str, kind: &str, subject: &str, json: &str) -> NewEvent {
    NewEvent {
        key: key.into(),
        r#type: kind.into(),
        subject: subject.into(),
        data: Some(Data::JsonText(json.into())),
        ..Default::default()
    }
}

/// `stock.adjusted` by an amount.
pub fn adjusted(key: &str, item: &str, delta: i64) -> NewEvent {
    event(key, "stock.adjusted", item, &format!(r#"{{"delta":{delta}}}"#))
}

/// `stock.reserved` against a version of the item.
pub fn reserved(key: &str, item: &str, task: &str, quantity: i64, version: i64) -> NewEvent {
    let json = format!(r#"{{"task":"{task}","quantity":{quantity},"expected_version":{version}}}"#);
    event(key, "stock.reserved", item, &json)
}

/// Bytes that say nothing of stock.
pub fn blob(key: &str, bytes: impl Into<Bytes>) -> NewEvent {
    let data = Some(Data::Binary(bytes.into()));
    NewEvent { data, ..event(key, "file.stored", "x", "") }
}

/// Many adjustments by one, keys `PREFIX-0` and so on.
pub fn adjustments(prefix: &str, count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| adjusted(&format!("{prefix}-{n}"), &format!("item-{}", n % 7), 1)).collect()
}

/// The same, only if the subject has exactly this version.
pub fn at_version(event: NewEvent, version: i64) -> NewEvent {
    NewEvent { expected_version: Some(version), ..event }
}

/// The same, first attempted at this time.
pub fn first_attempted(event: NewEvent, at_ms: i64) -> NewEvent {
    let first_attempt_time = Some(wire::timestamp(Time::from_unix_millis(at_ms)));
    NewEvent { first_attempt_time, ..event }
}

/// A key that is a UUIDv7 of this time; `number` tells those of one time apart.
pub fn uuid_v7(at_ms: i64, number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    let random = [0, 0, 0, 0, 0, 0, 0, 0, high, low];
    Builder::from_unix_timestamp_millis(at_ms as u64, &random).into_uuid().to_string()
}

/// A receipt without what differs between attempts.
pub fn without_outcome(receipt: &Receipt) -> Receipt {
    Receipt { outcome: 0, ..receipt.clone() }
}

/// The cursor after each of a log's first receipts, by sequence.
pub fn cursors(receipts: &[Receipt]) -> Vec<Cursor> {
    let log_id = receipts[0].log_id.parse().expect("a UUID");
    let mut cursor = chain::Cursor::beginning(log_id);
    receipts
        .iter()
        .map(|receipt| {
            let fingerprint = receipt.fingerprint.as_ref().try_into().expect("32 bytes");
            cursor = cursor.advance(&fingerprint, &receipt.key);
            assert_eq!(receipt.sequence, Some(cursor.sequence), "not the log's first receipts");
            wire::cursor_message(&cursor)
        })
        .collect()
}

/// That a receiver had to reject an event.
pub fn rejected(sequence: i64) -> AckOutcome {
    AckOutcome {
        sequence,
        outcome: Outcome::Rejected.into(),
        reason: "no_stock".into(),
        result: r#"{"available":0}"#.into(),
    }
}

/// The sequences of some events.
pub fn sequences(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.sequence.expect("always set")).collect()
}
