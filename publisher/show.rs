//! A log as GetLog shows it. Reads files; changes nothing.

use super::{
    ack::Receiver,
    headroom::{events, eviction_seconds, rate},
    hub::Log,
    log::{Extent, LogReader, ReadError},
    receipts,
    retention::Hold,
    suspects::Suspect,
};
use crate::proto::{
    chain::Ancestor,
    event::{Sequence, Time, duration_millis},
    pb, wire,
};

/// The rate of late is that of so many newest events.
const LATE_EVENTS: i64 = 1_024;

/// Everything about one log, as far as it can be read. Blocking.
pub fn show(log: &Log) -> pb::Log {
    let extent = log.reader.extent();
    let now_ms = log.clock.now_ms();
    let suspects = log.receivers.suspicion().all();
    let (state, state_detail) = state(log, &extent, &suspects);
    let hold = log.receivers.hold(&log.limits, extent.floor, now_ms);
    let rate = rate_of_late(&*log.reader, now_ms);
    let about = About { log, extent: &extent, hold: &hold, rate, now_ms };
    let receivers = log.receivers.all().iter().map(|known| about.receiver(known)).collect();
    let (keys, untimed_keys, key_floor_ms) = {
        let receipts = receipts::look(&log.receipts);
        (receipts.keys(), receipts.untimed(), receipts.key_floor_ms())
    };
    pb::Log {
        name: log.name.to_string(),
        state: state.into(),
        state_detail,
        log_id: extent.log_id.to_string(),
        floor_sequence: Some(extent.floor),
        next_sequence: Some(extent.next),
        head: Some(wire::cursor_message(&extent.head())),
        bytes: Some(signed(extent.bytes)),
        keys: Some(signed(keys)),
        limits: Some(limits(log)),
        receivers,
        headroom_events: Some(events(&log.limits, &extent, extent.floor)),
        key_floor_time: Some(wire::timestamp(Time::from_unix_millis(key_floor_ms))),
        untimed_keys: Some(signed(untimed_keys)),
        suspects: suspects.into_iter().map(suspect).collect(),
        ancestors: log.reader.ancestors().iter().map(ancestor).collect(),
        snapshot: log
            .snapshots
            .newest(&*log.reader)
            .map(|snapshot| wire::cursor_message(&snapshot.cursor)),
    }
}

/// What the log does, and a sentence about it; HALTED comes before SUSPECT.
fn state(log: &Log, extent: &Extent, suspects: &[Suspect]) -> (pb::LogState, String) {
    if log.halt.is_closed() {
        return (pb::LogState::Halted, log.halt.sentence());
    }
    if suspects.is_empty() {
        return (pb::LogState::Active, String::new());
    }
    (pb::LogState::Suspect, log.receivers.suspicion().sentence(suspects, extent))
}

fn limits(log: &Log) -> pb::LogLimits {
    let (limits, snapshots) = (&log.limits, log.snapshots.bounds());
    pb::LogLimits {
        max_events: Some(signed(limits.max_events)),
        max_bytes: Some(signed(limits.max_bytes)),
        max_age: limits.max_age.and_then(|age| age.try_into().ok()),
        when_full: limits.when_full.as_str().to_owned(),
        key_window: limits.key_window.try_into().ok(),
        max_untimed_keys: Some(signed(limits.max_untimed_keys)),
        hold_for_receivers: Some(limits.hold_for_receivers),
        hold_lease: limits.hold_lease.try_into().ok(),
        on_ahead: limits.on_ahead.as_str().to_owned(),
        keep_snapshots: Some(signed(snapshots.keep)),
        max_snapshot_bytes: Some(signed(snapshots.max_bytes)),
    }
}

fn suspect(Suspect { name, reason, seen, at_ms, .. }: Suspect) -> pb::Suspect {
    pb::Suspect {
        receiver: name,
        reason: reason.as_str().to_owned(),
        seen: Some(wire::cursor_message(&seen)),
        time: Some(wire::timestamp(Time::from_unix_millis(at_ms))),
    }
}

fn ancestor(Ancestor { log_id, last }: &Ancestor) -> pb::Ancestor {
    pb::Ancestor { log_id: log_id.to_string(), last_sequence: Some(*last) }
}

/// What a receiver is seen against.
struct About<'a> {
    log: &'a Log,
    extent: &'a Extent,
    hold: &'a Hold,
    /// Events a second.
    rate: Option<f64>,
    now_ms: i64,
}

impl About<'_> {
    fn receiver(&self, receiver: &Receiver) -> pb::ReceiverPosition {
        let Receiver { position, connected, seen_ms } = receiver;
        let needs = position.acked.sequence + 1;
        let lag = (self.extent.next - needs).max(0);
        let age_ms = (lag > 0).then(|| self.age_ms(needs.max(self.extent.floor))).flatten();
        let max_age = self.log.limits.max_age.map(duration_millis);
        let headroom = events(&self.log.limits, self.extent, needs);
        let needs_resync = needs < self.extent.floor;
        // What is held is not evicted.
        let rate = self.rate.filter(|_| needs < self.hold.room_below);
        let left_ms = max_age.zip(age_ms).map(|(most_ms, age_ms)| most_ms - age_ms);
        let left_ms = left_ms.filter(|_| needs < self.hold.age_below);
        pb::ReceiverPosition {
            name: position.name.clone(),
            session: Some(position.session),
            connected: *connected,
            acked: Some(wire::cursor_message(&position.acked)),
            lag_events: Some(lag),
            lag_seconds: match lag {
                0 => Some(0.0),
                _ => age_ms.map(|age_ms| age_ms as f64 / 1e3),
            },
            headroom_events: Some(if needs_resync { 0 } else { headroom }),
            eviction_seconds: match needs_resync {
                true => Some(0.0),
                false => eviction_seconds(headroom, rate, left_ms),
            },
            needs_resync,
            last_seen_time: Some(if *connected { self.now_ms } else { *seen_ms })
                .filter(|&seen_ms| seen_ms > 0)
                .map(|seen_ms| wire::timestamp(Time::from_unix_millis(seen_ms))),
            holds_floor: self.hold.holders.contains(&position.name),
        }
    }

    /// How long ago an event was accepted; 0 where it has been truncated meanwhile,
    /// none where it cannot be read.
    fn age_ms(&self, sequence: Sequence) -> Option<i64> {
        let accepted_at_ms = accepted_at_ms(&*self.log.reader, sequence)?;
        Some(accepted_at_ms.map_or(0, |at_ms| (self.now_ms - at_ms).max(0)))
    }
}

/// Events a second that came of late; none where there are none, or they cannot be read.
/// Blocking.
pub fn rate_of_late(log: &dyn LogReader, now_ms: i64) -> Option<f64> {
    let Extent { floor, next, .. } = log.extent();
    let count = (next - floor).min(LATE_EVENTS);
    if count == 0 {
        return None;
    }
    let first_at_ms = accepted_at_ms(log, next - count)??;
    Some(rate(count, now_ms - first_at_ms))
}

/// When an event was accepted; `Some(None)` where it has been truncated meanwhile, none
/// where it cannot be read.
pub fn accepted_at_ms(log: &dyn LogReader, sequence: Sequence) -> Option<Option<i64>> {
    match log.read(sequence, 1, 0) {
        Ok(entries) => Some(entries.first().map(|entry| entry.accepted_at_ms)),
        Err(ReadError::Truncated { .. }) => Some(None),
        Err(error) => {
            tracing::warn!(%error, "the age of an event cannot be told");
            None
        }
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::{chain::Cursor, refusal::Reason},
        publisher::{
            log::CommitError,
            retention::{Limits, WhenFull},
            testing::{intent, start, wide},
        },
    };

    #[tokio::test]
    async fn halted_comes_before_suspect() {
        let running = start(wide());
        running.fill(3).await;
        assert_eq!(show(&running.log).state(), pb::LogState::Active);
        let seen = Cursor { sequence: 9, ..running.cursor(2) };
        running.suspect("shop", Reason::CursorAhead, seen).await;
        let shown = show(&running.log);
        assert_eq!((shown.state(), shown.suspects.len()), (pb::LogState::Suspect, 1));
        running.engine.fail_next(CommitError::Halted("an injected failure".to_owned()));
        running.publish(intent("lost", "camera")).await.expect_err("halted");
        let shown = show(&running.log);
        assert_eq!((shown.state(), shown.suspects.len()), (pb::LogState::Halted, 1));
        assert!(shown.state_detail.contains("publisher recover"), "{shown:?}");
    }

    #[tokio::test]
    async fn what_is_held_is_not_said_to_be_evicted() {
        let shown = async |limits: Limits| {
            let running = start(limits);
            running.fill(3).await;
            let _session = running.log.receivers.open("r", running.cursor(0), None).await;
            let receiver = show(&running.log).receivers.remove(0);
            (receiver.headroom_events, receiver.eviction_seconds.is_some(), receiver.holds_floor)
        };
        let plain = Limits { max_events: 10, ..wide() };
        let rejecting = Limits { when_full: WhenFull::Reject, ..plain.clone() };
        let holding = Limits { hold_for_receivers: true, ..plain.clone() };
        let ages = Some(std::time::Duration::from_secs(60));
        // (bounds, headroom, whether an eviction is told of, whether it is held)
        let cases = [
            (plain.clone(), Some(8), true, false),
            (rejecting.clone(), Some(8), false, true),
            (holding.clone(), Some(8), false, true),
            (Limits { max_age: ages, ..rejecting }, Some(8), true, true), // by age alone
            (Limits { max_age: ages, ..holding }, Some(8), false, true),
        ];
        for (limits, headroom, told, holds) in cases {
            assert_eq!(shown(limits.clone()).await, (headroom, told, holds), "{limits:?}");
        }
    }
}
