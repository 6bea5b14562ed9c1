//! The status as JSON, under the names of the .proto, numbers as numbers. Pure.

use counterfoil::proto::{
    event::hex,
    pb::{Cursor, Failure, GetStatusResponse, Log},
};
use serde_json::{Value, json};

use super::{Both, word};

/// One JSON object with `publisher` and `receiver`; an end that is down has
/// only `url` and `error`.
pub fn show(both: &Both) -> String {
    let down = |url: &str, error: &str| json!({ "url": url, "error": error });
    let publisher = match &both.publisher {
        Ok(log) => json!({ "url": both.publisher_url, "log": of_log(log) }),
        Err(error) => down(&both.publisher_url, error),
    };
    let receiver = match &both.receiver {
        Ok(status) => json!({ "url": both.receiver_url, "status": of_status(status) }),
        Err(error) => down(&both.receiver_url, error),
    };
    format!("{:#}", json!({ "publisher": publisher, "receiver": receiver }))
}

fn of_log(log: &Log) -> Value {
    let receivers: Vec<_> = log
        .receivers
        .iter()
        .map(|receiver| {
            json!({
                "name": receiver.name,
                "session": receiver.session,
                "connected": receiver.connected,
                "acked": of_cursor(receiver.acked.as_ref()),
                "lagEvents": receiver.lag_events,
                "lagSeconds": receiver.lag_seconds,
                "headroomEvents": receiver.headroom_events,
                "evictionSeconds": receiver.eviction_seconds,
                "needsResync": receiver.needs_resync,
                "holdsFloor": receiver.holds_floor,
                "lastSeenTime": receiver.last_seen_time.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let suspects: Vec<_> = log
        .suspects
        .iter()
        .map(|suspect| {
            json!({
                "receiver": suspect.receiver,
                "reason": suspect.reason,
                "seen": of_cursor(suspect.seen.as_ref()),
                "time": suspect.time.as_ref().map(ToString::to_string),
            })
        })
        .collect();
    let ancestors: Vec<_> = log
        .ancestors
        .iter()
        .map(|one| json!({ "logId": one.log_id, "lastSequence": one.last_sequence }))
        .collect();
    json!({
        "name": log.name,
        "state": word(log.state().as_str_name(), "LOG_STATE_"),
        "stateDetail": log.state_detail,
        "logId": log.log_id,
        "floorSequence": log.floor_sequence,
        "nextSequence": log.next_sequence,
        "head": of_cursor(log.head.as_ref()),
        "bytes": log.bytes,
        "keys": log.keys,
        "limits": log.limits.as_ref().map(|limits| json!({
            "maxEvents": limits.max_events,
            "maxBytes": limits.max_bytes,
            "maxAgeSeconds": limits.max_age.as_ref().map(|age| age.seconds),
            "whenFull": limits.when_full,
            "holdForReceivers": limits.hold_for_receivers,
            "holdLeaseSeconds": limits.hold_lease.as_ref().map(|lease| lease.seconds),
            "onAhead": limits.on_ahead,
        })),
        "headroomEvents": log.headroom_events,
        "receivers": receivers,
        "suspects": suspects,
        "ancestors": ancestors,
    })
}

fn of_status(status: &GetStatusResponse) -> Value {
    json!({
        "receiver": status.receiver,
        "log": status.log,
        "state": word(status.state().as_str_name(), "RECEIVER_STATE_"),
        "stateDetail": status.state_detail,
        "cursor": of_cursor(status.cursor.as_ref()),
        "acked": of_cursor(status.acked.as_ref()),
        "nextSequence": status.next_sequence,
        "lagEvents": status.lag_events,
        "lagSeconds": status.lag_seconds,
        "failure": status.failure.as_ref().map(of_failure),
        "projection": status.projection,
        "projectionVersion": status.projection_version,
        "connectAttempts": status.connect_attempts,
        "commits": status.commits,
        "outcomes": status.outcomes,
        "snapshotSequence": status.snapshot_sequence,
        "resyncs": status.resyncs,
        "headroomEvents": status.headroom_events,
        "ledgerFromSequence": status.ledger_from_sequence,
        "outboxPending": status.outbox_pending,
        "forwardFailure": status.forward_failure.as_ref().map(of_failure),
        "skippedEvents": status.skipped_events,
        "rebuild": status.rebuild.as_ref().map(|rebuild| json!({
            "fromVersion": rebuild.from_version,
            "toVersion": rebuild.to_version,
            "sequence": rebuild.sequence,
            "nextSequence": rebuild.next_sequence,
            "step": rebuild.step,
        })),
    })
}

/// A cursor under the names of the .proto.
pub fn of_cursor(cursor: Option<&Cursor>) -> Option<Value> {
    cursor.map(|cursor| {
        json!({
            "logId": cursor.log_id,
            "sequence": cursor.sequence,
            "chain": hex(&cursor.chain),
        })
    })
}

fn of_failure(failure: &Failure) -> Value {
    json!({
        "reason": failure.reason,
        "message": failure.message,
        "sequence": failure.sequence,
        "key": failure.key,
        "type": failure.r#type,
        "subject": failure.subject,
        "attempts": failure.attempts,
        "followUp": failure.follow_up,
        "nextAttemptTime": failure.next_attempt_time.as_ref().map(ToString::to_string),
        "statement": failure.statement,
        "class": failure.class,
    })
}
