//! How near the end of what is retained comes to who still has to read: what is told
//! before events are evicted, not after. Pure.

use super::{
    log::Extent,
    retention::{Hold, Limits},
};
use crate::proto::event::Sequence;

/// Events that a log may hold, these being as large as they are on average. At least 1.
pub fn capacity(limits: &Limits, extent: &Extent) -> i64 {
    let by_bytes = match (extent.count(), extent.bytes) {
        (1.., 1..) => {
            u128::from(limits.max_bytes) * u128::from(extent.count()) / u128::from(extent.bytes)
        }
        _ => u128::MAX,
    };
    let events = by_bytes.min(u128::from(limits.max_events)).max(1);
    i64::try_from(events).unwrap_or(i64::MAX)
}

/// Events that can still come before the one at `needs` is evicted to make room.
pub fn events(limits: &Limits, extent: &Extent, needs: Sequence) -> i64 {
    let behind = (extent.next - needs).max(0);
    (capacity(limits, extent) - behind).max(0)
}

/// A projection whose newest snapshot is below this sequence is due for another: from one at
/// it, or above, it can be gone on from for half of what the log retains. 0: none is needed
/// yet, since nothing has been evicted and the log is not half full.
pub fn snapshot_due_below(limits: &Limits, extent: &Extent) -> Sequence {
    let Extent { floor, next, .. } = *extent;
    let by_room = next - capacity(limits, extent) / 2;
    let by_floor = if floor > 0 { floor + (next - floor) / 2 } else { 0 };
    by_room.max(by_floor).max(0)
}

/// Events a second, of so many that came in so many milliseconds.
pub fn rate(events: i64, in_ms: i64) -> f64 {
    events as f64 / (in_ms.max(1) as f64 / 1e3)
}

/// Seconds until an event is evicted that has so much headroom, at a rate, or that grows
/// too old in `left_ms`; none: there is no sign that it will be.
pub fn eviction_seconds(headroom: i64, rate: Option<f64>, left_ms: Option<i64>) -> Option<f64> {
    let by_room = rate.filter(|&rate| rate > 0.0).map(|rate| headroom as f64 / rate);
    let by_age = left_ms.map(|left_ms| left_ms.max(0) as f64 / 1e3);
    match (by_room, by_age) {
        (Some(by_room), Some(by_age)) => Some(by_room.min(by_age)),
        (by_room, by_age) => by_room.or(by_age),
    }
}

/// When a reader is told that its next event is about to be evicted: once there is less
/// headroom than an eighth of what the log may hold, and again when it has halved.
#[derive(Debug, Default)]
pub struct Alarm {
    told: Option<i64>,
}

impl Alarm {
    /// The headroom of who needs this event next, if it is time to tell.
    pub fn look(&mut self, limits: &Limits, extent: &Extent, needs: Sequence) -> Option<i64> {
        let behind = extent.next - needs;
        // Nearly all are near the head, nearly always.
        let is_near = behind <= extent.next - extent.floor - behind;
        if is_near || !Hold::needs_no_look(limits) || needs < extent.floor {
            self.told = None;
            return None;
        }
        let headroom = events(limits, extent, needs);
        if headroom.saturating_mul(8) >= capacity(limits, extent) {
            self.told = None;
            return None;
        }
        let has_halved = |told: i64| headroom < told && headroom <= told / 2;
        let tell = self.told.is_none_or(has_halved);
        tell.then(|| {
            self.told = Some(headroom);
            headroom
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::publisher::{retention::WhenFull, testing::wide};

    fn limits(max_events: u64, max_bytes: u64) -> Limits {
        Limits { max_events, max_bytes, ..wide() }
    }

    fn extent(floor: Sequence, next: Sequence, bytes: u64) -> Extent {
        Extent { log_id: Uuid::nil(), floor, next, head_chain: [0; 32], bytes }
    }

    #[test]
    fn headroom_is_by_whichever_bound_comes_first() {
        // (bounds, floor, next, bytes, capacity, headroom of who needs the floor)
        let cases = [
            ((100, 1_000), 0, 0, 0, 100, 100),
            ((100, 1_000), 0, 10, 50, 100, 90),
            ((100, 1_000), 5, 15, 200, 50, 40),
            ((100, 1_000), 5, 105, 900, 100, 0),
            ((100, 1_000), 0, 50, 1_000, 50, 0),
            ((5, 1_000), 0, 50, 1_000, 5, 0), // the bound was lowered
            ((100, 10), 0, 1, 1_000, 1, 0),
            ((u64::MAX, u64::MAX), 0, 1, 1, i64::MAX, i64::MAX - 1),
        ];
        for ((max_events, max_bytes), floor, next, bytes, expected, headroom) in cases {
            let (limits, extent) = (limits(max_events, max_bytes), extent(floor, next, bytes));
            assert_eq!(capacity(&limits, &extent), expected, "{limits:?} {extent:?}");
            assert_eq!(events(&limits, &extent, floor), headroom, "{limits:?} {extent:?}");
            assert_eq!(events(&limits, &extent, next), expected, "nobody is behind");
        }
    }

    #[test]
    fn a_snapshot_is_due_once_half_is_gone_or_would_be() {
        // (floor, next, due below), of a log of 100 events
        let cases = [
            (0, 0, 0),
            (0, 50, 0),
            (0, 51, 1),
            (0, 100, 50),
            (20, 120, 70),
            (90, 100, 95), // most of it has grown too old
            (100, 100, 100),
        ];
        for (floor, next, due) in cases {
            let due_below = snapshot_due_below(&limits(100, 1 << 30), &extent(floor, next, 1));
            assert_eq!(due_below, due, "{floor}..{next}");
        }
    }

    #[test]
    fn an_eviction_comes_by_room_or_by_age() {
        assert_eq!(rate(50, 10_000), 5.0);
        assert!(rate(50, 0).is_finite());
        let cases = [
            (100, Some(5.0), None, Some(20.0)),
            (100, Some(5.0), Some(8_000), Some(8.0)),
            (100, Some(5.0), Some(90_000), Some(20.0)),
            (100, None, Some(90_000), Some(90.0)),
            (100, None, Some(-5), Some(0.0)),
            (100, Some(0.0), None, None),
            (0, Some(5.0), None, Some(0.0)),
        ];
        for (headroom, rate, left_ms, expected) in cases {
            assert_eq!(eviction_seconds(headroom, rate, left_ms), expected);
        }
    }

    #[test]
    fn the_alarm_sounds_below_an_eighth_and_each_time_that_has_halved() {
        let limits = limits(80, 1 << 30);
        let mut alarm = Alarm::default();
        // The reader needs event 0; the log fills up.
        let told: Vec<i64> =
            (0..=80).filter_map(|next| alarm.look(&limits, &extent(0, next, 1), 0)).collect();
        assert_eq!(told, [9, 4, 2, 1, 0]);
        assert_eq!(alarm.look(&limits, &extent(0, 80, 1), 0), None, "it has been told");
        assert_eq!(alarm.look(&limits, &extent(1, 81, 1), 0), None, "it is too late");
        assert_eq!(alarm.look(&limits, &extent(1, 81, 1), 60), None, "it has caught up");
        assert_eq!(alarm.look(&limits, &extent(1, 81, 1), 1), Some(0), "and fallen behind again");
    }

    #[test]
    fn nobody_is_told_where_nothing_is_evicted_for_room() {
        let full = extent(0, 80, 1);
        let rejecting = Limits { when_full: WhenFull::Reject, ..limits(80, 1 << 30) };
        let holding = Limits { hold_for_receivers: true, ..limits(80, 1 << 30) };
        for limits in [rejecting, holding] {
            assert_eq!(Alarm::default().look(&limits, &full, 0), None);
        }
    }
}
