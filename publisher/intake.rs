//! One request from its message to its place in a batch, and from its receipts to
//! its answer. What Publish and PublishStream share.

use std::time::Duration;

use bytes::BytesMut;
use tonic::Status;

use super::{
    admit::{Prepared, distinct_keys, small_enough},
    batch::Batch,
    group::Receipt,
    hub::{Hub, Log},
};
use crate::proto::{
    event::{Time, duration_millis},
    limits::MAX_BATCH_EVENTS,
    pb,
    publishing::{NewEvent, PublishRequest},
    refusal::{Reason, Refusal},
    wire::{self, Receipted},
};

/// The log that a request names.
///
/// # Errors
/// INVALID_FIELD, LOG_NOT_FOUND.
pub fn log<'a>(hub: &'a Hub, name: &str) -> Result<&'a Log, Refusal> {
    hub.log(wire::log_name(name)?)
}

/// Checks a request and encodes its events behind what others have in `room`. Returns
/// its log; `events`, which is empty, holds them then.
///
/// # Errors
/// The refusals that need no look at what is stored: INVALID_FIELD,
/// LOG_NOT_FOUND, EVENT_TOO_LARGE, BATCH_TOO_LARGE. `events` is empty again.
pub fn prepare<'a>(
    hub: &'a Hub,
    request: PublishRequest,
    room: &mut BytesMut,
    events: &mut Vec<Prepared>,
) -> Result<&'a Log, Refusal> {
    // Whoever decodes has found it to be text.
    let log = log(hub, &String::from_utf8_lossy(&request.log))?;
    prepare_events(log, request.events, room, events).inspect_err(|_| events.clear())?;
    Ok(log)
}

/// One request to its receipts.
///
/// # Errors
/// As the contract has them for Publish.
pub async fn publish(hub: &Hub, request: PublishRequest) -> Result<Vec<pb::Receipt>, Refusal> {
    let (mut events, mut batch) = (Vec::new(), Batch::default());
    let log = prepare(hub, request, &mut BytesMut::new(), &mut events)?;
    batch.add(&mut events);
    let receipts = log.publisher.submit(batch).await.only()?;
    Ok(receipts.iter().map(|receipt| message(receipt, log.limits.key_window)).collect())
}

/// What becomes of a message with texts that are none: it is no message.
pub fn malformed() -> Status {
    Status::internal(
        "failed to decode Protobuf message: invalid string value: data is not UTF-8 encoded",
    )
}

fn prepare_events(
    log: &Log,
    events: Vec<NewEvent>,
    room: &mut BytesMut,
    prepared: &mut Vec<Prepared>,
) -> Result<(), Refusal> {
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
    let now = log.clock.now();
    // Said only of a request whose fields are in order.
    let mut unreadable = Ok(());
    for (index, mut event) in events.into_iter().enumerate() {
        let mut attributes = Vec::new();
        let at = format_args!("events[{index}]");
        let intent = wire::stated(&mut event, &mut attributes, at, now)?;
        if unreadable.is_ok() {
            unreadable = log.payloads.check(index, &intent);
        }
        prepared.push(Prepared::new(&intent, room));
    }
    distinct_keys(prepared)?;
    unreadable?;
    small_enough(prepared)
}

/// A receipt for the wire; `key_window` tells until when it is kept.
pub fn receipted(receipt: &Receipt, key_window: Duration) -> Receipted<'_> {
    let Receipt { log_id, key, accepted, duplicate } = receipt;
    Receipted {
        log_id: *log_id,
        key,
        sequence: accepted.sequence,
        subject_version: accepted.subject_version,
        fingerprint: &accepted.fingerprint,
        accept_time: Time::from_unix_millis(accepted.accepted_at_ms),
        expire_time: accepted.time_ms.map(|time_ms| {
            Time::from_unix_millis(time_ms.saturating_add(duration_millis(key_window)))
        }),
        duplicate: *duplicate,
    }
}

/// The same as a message.
pub fn message(receipt: &Receipt, key_window: Duration) -> pb::Receipt {
    wire::receipt(&receipted(receipt, key_window))
}
