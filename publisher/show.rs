//! A log as GetLog shows it. Reads files; changes nothing.

use super::{
    hub::Log,
    log::{Extent, ReadError},
    positions::Position,
    receipts,
};
use crate::proto::{
    event::{Sequence, Time},
    pb, wire,
};

/// Everything about one log, as far as it can be read. Blocking.
pub fn show(log: &Log) -> pb::Log {
    let extent = log.reader.extent();
    let halted = log.halt.is_closed();
    let receivers = log
        .receivers
        .all()
        .iter()
        .map(|(position, connected)| receiver(log, &extent, position, *connected))
        .collect();
    let (keys, untimed_keys, key_floor_ms) = {
        let receipts = receipts::look(&log.receipts);
        (receipts.keys(), receipts.untimed(), receipts.key_floor_ms())
    };
    let limits = &log.limits;
    pb::Log {
        name: log.name.to_string(),
        state: if halted { pb::LogState::Halted } else { pb::LogState::Active }.into(),
        state_detail: if halted { log.halt.sentence() } else { String::new() },
        log_id: extent.log_id.to_string(),
        floor_sequence: Some(extent.floor),
        next_sequence: Some(extent.next),
        head: Some(wire::cursor_message(&extent.head())),
        bytes: Some(signed(extent.bytes)),
        keys: Some(signed(keys)),
        limits: Some(pb::LogLimits {
            max_events: Some(signed(limits.max_events)),
            max_bytes: Some(signed(limits.max_bytes)),
            max_age: limits.max_age.and_then(|age| age.try_into().ok()),
            when_full: limits.when_full.as_str().to_owned(),
            key_window: limits.key_window.try_into().ok(),
            max_untimed_keys: Some(signed(limits.max_untimed_keys)),
            keep_snapshots: Some(signed(log.snapshots.bounds().keep)),
            max_snapshot_bytes: Some(signed(log.snapshots.bounds().max_bytes)),
            ..Default::default()
        }),
        receivers,
        headroom_events: Some(headroom(log, extent.next - extent.floor)),
        key_floor_time: Some(wire::timestamp(Time::from_unix_millis(key_floor_ms))),
        untimed_keys: Some(signed(untimed_keys)),
        snapshot: log
            .snapshots
            .newest(&*log.reader)
            .map(|snapshot| wire::cursor_message(&snapshot.cursor)),
        ..Default::default()
    }
}

fn receiver(
    log: &Log,
    extent: &Extent,
    position: &Position,
    connected: bool,
) -> pb::ReceiverPosition {
    let wanted = position.acked.sequence + 1;
    let lag = (extent.next - wanted).max(0);
    pb::ReceiverPosition {
        name: position.name.clone(),
        session: Some(position.session),
        connected,
        acked: Some(wire::cursor_message(&position.acked)),
        lag_events: Some(lag),
        lag_seconds: match lag {
            0 => Some(0.0),
            _ => age_seconds(log, wanted.max(extent.floor)),
        },
        headroom_events: Some(headroom(log, lag)),
        ..Default::default()
    }
}

/// How long ago an event was accepted; 0 where it has been truncated meanwhile,
/// none where it cannot be read.
fn age_seconds(log: &Log, sequence: Sequence) -> Option<f64> {
    let entries = match log.reader.read(sequence, 1, 0) {
        Ok(entries) => entries,
        Err(ReadError::Truncated { .. }) => Vec::new(),
        Err(error) => {
            tracing::warn!(%error, "the age of a receiver's next event cannot be told");
            return None;
        }
    };
    let now_ms = log.clock.now_ms();
    Some(entries.first().map_or(0.0, |entry| (now_ms - entry.accepted_at_ms).max(0) as f64 / 1e3))
}

/// Events that can come before the oldest of the newest `count` is evicted.
fn headroom(log: &Log, count: i64) -> i64 {
    (signed(log.limits.max_events) - count).max(0)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
