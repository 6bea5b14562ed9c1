//! Events that stand for lost ones, so that a forked log has no hole: each says of which
//! log and number it takes the place. They follow from the fork's intent alone, so a fork
//! that is completed later writes the same.

use bytes::Bytes;

use super::intent::Intent as Fork;
use crate::{
    proto::{
        chain::link,
        crash,
        event::{DataKind, Event, Intent, LOST_TYPE, Sequence, Time, fingerprint},
        limits::MAX_GROUP_EVENTS,
        wire,
    },
    publisher::{
        log::{CommitError, Entry, EventLog},
        payloads::OWN_KEYS,
    },
};

/// Their type. No producer may publish it.
pub const TYPE: &str = LOST_TYPE;

/// Appends them up to the number of the first new event.
///
/// # Errors
/// [`CommitError`].
pub fn stand_in(log: &mut dyn EventLog, fork: &Fork) -> Result<(), CommitError> {
    let reader = log.reader();
    loop {
        let extent = reader.extent();
        let end = fork.from.min(extent.next + MAX_GROUP_EVENTS as Sequence);
        if extent.next >= end {
            return Ok(());
        }
        let mut chain = extent.head_chain;
        let entry = |sequence| {
            let event = event(fork, sequence);
            chain = link(&chain, sequence, &event.intent.fingerprint, &event.intent.key);
            Entry { chain, accepted_at_ms: fork.at_ms, body: wire::stored(&event) }
        };
        let entries: Vec<Entry> = (extent.next..end).map(entry).collect();
        log.commit(&entries, extent.floor)?;
        crash::point(crash::PUBLISHER_AFTER_FORK_EVENTS);
    }
}

fn event(fork: &Fork, sequence: Sequence) -> Event {
    let Fork { parent, last, at_ms, .. } = fork;
    let at = Time::from_unix_millis(*at_ms);
    let mut intent = Intent {
        key: format!("{OWN_KEYS}{parent}/{sequence}").into(),
        event_type: TYPE.into(),
        // One for each fork, so that its version needs no look at what is stored.
        subject: format!("{OWN_KEYS}{parent}").into(),
        content_type: DataKind::Json.default_content_type().into(),
        kind: DataKind::Json,
        data: Bytes::from(format!(r#"{{"log_id":"{parent}","sequence":{sequence}}}"#)),
        attributes: Vec::new(),
        expected_version: None,
        // Its receipt expires as others do.
        first_attempt_time: Some(at),
        time: None,
        fingerprint: [0; 32],
    };
    intent.fingerprint = fingerprint(&intent.content());
    Event { sequence, subject_version: sequence - last, accept_time: at, intent }
}
