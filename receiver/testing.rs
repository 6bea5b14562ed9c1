//! Events and cursors for the unit tests of this half.

use bytes::Bytes;
use uuid::Uuid;

use crate::proto::{
    chain::Cursor,
    event::{DataKind, Event, Intent, Time, fingerprint},
};

/// The incarnation that all unit tests speak of.
pub fn log_id() -> Uuid {
    Uuid::from_u128(1)
}

/// An accepted event with JSON content.
pub fn event(sequence: i64, key: &str, event_type: &str, subject: &str, json: &str) -> Event {
    let mut intent = Intent {
        key: key.into(),
        event_type: event_type.into(),
        subject: subject.into(),
        content_type: "application/json".into(),
        kind: DataKind::Json,
        data: Bytes::from(json.to_owned()),
        attributes: vec![],
        expected_version: None,
        first_attempt_time: None,
        time: None,
        fingerprint: [0; 32],
    };
    intent.fingerprint = fingerprint(&intent.content());
    let accept_time = Time { seconds: 1_796_000_000, nanos: 0 };
    Event { sequence, subject_version: 1, accept_time, intent }
}

/// Events `from..to` that each add one to `camera`.
pub fn adjustments(from: i64, to: i64) -> Vec<Event> {
    (from..to)
        .map(|n| event(n, &format!("k{n}"), "stock.adjusted", "camera", r#"{"delta":1}"#))
        .collect()
}

/// The cursor after events that start at sequence 0.
pub fn cursor_after(events: &[Event]) -> Cursor {
    events.iter().fold(Cursor::beginning(log_id()), |cursor, event| {
        cursor.advance(&event.intent.fingerprint, &event.intent.key)
    })
}
