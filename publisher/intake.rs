//! One request from its message to its receipts: decode, check, hand in and,
//! once it is answered, encode. What Publish and PublishStream share.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;

use super::{
    admit::distinct_keys,
    group::Receipt,
    hub::{Hub, Log},
    publish::Submitted,
};
use crate::proto::{
    event::{Intent, Time, duration_millis},
    limits::MAX_BATCH_EVENTS,
    pb,
    refusal::{Reason, Refusal},
    wire,
};

/// The log that a request names.
///
/// # Errors
/// INVALID_FIELD, LOG_NOT_FOUND.
pub fn log<'a>(hub: &'a Hub, name: &str) -> Result<&'a Log, Refusal> {
    hub.log(wire::log_name(name)?)
}

/// Hands a request to its log's appender. Returns once it stands in the queue:
/// of two requests, the one submitted first comes first in the log.
///
/// # Errors
/// The refusals that need no look at what is stored: INVALID_FIELD,
/// LOG_NOT_FOUND, EVENT_TOO_LARGE, BATCH_TOO_LARGE; LOG_HALTED and SHUTTING_DOWN.
pub async fn submit(hub: &Hub, request: pb::PublishRequest) -> Result<Accepting, Refusal> {
    let log = log(hub, &request.log)?;
    let intents = intents(request.events, log.clock.now())?;
    log.payloads.check(&intents)?;
    let submitted = log.publisher.submit(intents).await?;
    Ok(Accepting { submitted, key_window: log.limits.key_window })
}

/// A request in the queue. Resolves to its receipts once its events are on
/// stable storage, or to its refusal; dropping it changes nothing about that.
#[derive(Debug)]
pub struct Accepting {
    submitted: Submitted,
    key_window: Duration,
}

impl Accepting {
    /// What the request weighs.
    pub fn weight(&self) -> usize {
        self.submitted.weight()
    }
}

impl Future for Accepting {
    type Output = Result<Vec<pb::Receipt>, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let receipts = ready!(Pin::new(&mut self.submitted).poll(cx))?;
        let message = |receipt| message(receipt, self.key_window);
        Poll::Ready(Ok(receipts.into_iter().map(message).collect()))
    }
}

fn intents(events: Vec<pb::NewEvent>, now: Time) -> Result<Vec<Intent>, Refusal> {
    if events.is_empty() {
        return Err(Refusal::field(
            "events",
            format!("is empty; 1 to {MAX_BATCH_EVENTS} events are allowed"),
        ));
    }
    if events.len() > MAX_BATCH_EVENTS {
        let count = events.len();
        return Err(Refusal::new(
            Reason::BatchTooLarge,
            format!("events: has {count} events, at most {MAX_BATCH_EVENTS} are allowed"),
        )
        .at_field("events", format!("has {count} events"))
        .with("limit", MAX_BATCH_EVENTS));
    }
    let intents = events
        .into_iter()
        .enumerate()
        .map(|(index, event)| wire::intent(event, format_args!("events[{index}]"), now))
        .collect::<Result<Vec<_>, _>>()?;
    distinct_keys(&intents)?;
    Ok(intents)
}

/// A receipt as the wire carries it; `key_window` tells until when it is kept.
pub fn message(receipt: Receipt, key_window: Duration) -> pb::Receipt {
    let Receipt { log_id, key, accepted, duplicate } = receipt;
    let outcome = match duplicate {
        false => pb::PublishOutcome::Appended,
        true => pb::PublishOutcome::Duplicate,
    };
    pb::Receipt {
        log_id: log_id.to_string(),
        sequence: Some(accepted.sequence),
        key,
        subject_version: Some(accepted.subject_version),
        fingerprint: Bytes::copy_from_slice(&accepted.fingerprint),
        accept_time: Some(wire::timestamp(Time::from_unix_millis(accepted.accepted_at_ms))),
        expire_time: accepted.time_ms.map(|time_ms| {
            let end_ms = time_ms.saturating_add(duration_millis(key_window));
            wire::timestamp(Time::from_unix_millis(end_ms))
        }),
        outcome: outcome.into(),
    }
}
