//! Events and cursors for the unit tests of this half.

use std::borrow::Cow;

use bytes::Bytes;
use uuid::Uuid;

use super::projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables, Upgrade};
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

/// A projection `steps` of which only the steps matter.
#[derive(Debug, Clone)]
pub struct Steps {
    /// Its version.
    pub version: i64,
    /// How its tables come about.
    pub migrations: Vec<Migration>,
    /// What a database of an earlier version gets.
    pub upgrade: Upgrade,
}

impl Steps {
    /// Of this version, migrated by these steps.
    pub fn new(version: i64, steps: &[&'static str]) -> Self {
        let steps = steps.iter().map(|sql| Migration { sql: Cow::Borrowed(sql) });
        Steps { version, migrations: steps.collect(), upgrade: Upgrade::Migrate }
    }
}

impl Projection for Steps {
    fn name(&self) -> &str {
        "steps"
    }

    fn version(&self) -> i64 {
        self.version
    }

    fn migrations(&self) -> &[Migration] {
        &self.migrations
    }

    fn apply<'t>(&'t self, _: &Tables<'t>, _: &Event) -> Result<Applied, Fault> {
        Ok(Applied::Ignored)
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }

    fn upgrade(&self) -> Upgrade {
        self.upgrade
    }
}
