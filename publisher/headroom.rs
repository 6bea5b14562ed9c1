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
/// it, or above, it can be gone on from for half of what the log retains, in events and in
/// time. At most the newest event's: that is where a receiver at the head is. 0: none is
/// needed yet, since nothing has been evicted, the log is not half full, and nothing has
/// reached half its age. Events below `half_below` have.
pub fn snapshot_due_below(limits: &Limits, extent: &Extent, half_below: Sequence) -> Sequence {
    let Extent { floor, next, .. } = *extent;
    let by_room = next - capacity(limits, extent) / 2;
    let by_floor = if floor > 0 { floor + (next - floor) / 2 } else { 0 };
    let by_age = half_below - 1;
    by_room.max(by_floor).max(by_age).min(next - 1).max(0)
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
/// headroom than an eighth of what the log may hold, and again when it has halved; and once
/// when an eighth of its age is left.
#[derive(Debug, Default)]
pub struct Alarm {
    told: Option<i64>,
    told_of_age: bool,
}

impl Alarm {
    /// The headroom of who needs this event next, if it is time to tell. Of events below
    /// `late_below` an eighth of their age is left.
    pub fn look(
        &mut self,
        limits: &Limits,
        extent: &Extent,
        needs: Sequence,
        late_below: Sequence,
    ) -> Option<i64> {
        let by_age = self.by_age(limits, extent, needs, late_below);
        self.by_room(limits, extent, needs).or(by_age)
    }

    /// What a receiver holds does not go by age.
    fn by_age(
        &mut self,
        limits: &Limits,
        extent: &Extent,
        needs: Sequence,
        late_below: Sequence,
    ) -> Option<i64> {
        let is_late = (extent.floor..late_below).contains(&needs) && !limits.hold_for_receivers;
        let tell = is_late && !self.told_of_age;
        self.told_of_age = is_late;
        tell.then(|| events(limits, extent, needs))
    }

    fn by_room(&mut self, limits: &Limits, extent: &Extent, needs: Sequence) -> Option<i64> {
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
        // (capacity, floor, next, below which half the age is reached, due below)
        let cases = [
            (100, 0, 0, 0, 0),
            (100, 0, 50, 0, 0),
            (100, 0, 51, 0, 1),
            (100, 0, 100, 0, 50),
            (100, 20, 120, 0, 70),
            (100, 90, 100, 0, 95),    // most of it has grown too old
            (100, 100, 100, 100, 99), // all of it has
            (100, 0, 40, 1, 0),
            (100, 0, 40, 30, 29),
            (100, 0, 40, 40, 39), // no more than the newest event's
            (100, 0, 100, 30, 50),
            (1, 0, 1, 0, 0),
            (1, 7, 8, 0, 7),
            (2, 7, 9, 0, 8),
        ];
        for (capacity, floor, next, half_below, due) in cases {
            let limits = limits(capacity, 1 << 30);
            let due_below = snapshot_due_below(&limits, &extent(floor, next, 1), half_below);
            assert_eq!(due_below, due, "{floor}..{next} of {capacity}, {half_below}");
            assert!(due_below < next.max(1), "a receiver at the head can make it");
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
            (0..=80).filter_map(|next| alarm.look(&limits, &extent(0, next, 1), 0, 0)).collect();
        assert_eq!(told, [9, 4, 2, 1, 0]);
        assert_eq!(alarm.look(&limits, &extent(0, 80, 1), 0, 0), None, "it has been told");
        assert_eq!(alarm.look(&limits, &extent(1, 81, 1), 0, 0), None, "it is too late");
        assert_eq!(alarm.look(&limits, &extent(1, 81, 1), 60, 0), None, "it has caught up");
        assert_eq!(
            alarm.look(&limits, &extent(1, 81, 1), 1, 0),
            Some(0),
            "and fallen behind again"
        );
    }

    #[test]
    fn nobody_is_told_where_nothing_is_evicted_for_room() {
        let full = extent(0, 80, 1);
        let rejecting = Limits { when_full: WhenFull::Reject, ..limits(80, 1 << 30) };
        let holding = Limits { hold_for_receivers: true, ..limits(80, 1 << 30) };
        for limits in [rejecting, holding] {
            assert_eq!(Alarm::default().look(&limits, &full, 0, 0), None);
        }
    }

    #[test]
    fn the_alarm_sounds_once_when_an_eighth_of_the_age_is_left() {
        let plain = limits(80, 1 << 30);
        let rejecting = Limits { when_full: WhenFull::Reject, ..plain.clone() };
        let of_10 = extent(2, 10, 1);
        for limits in [plain.clone(), rejecting] {
            let mut alarm = Alarm::default();
            // (needs, late below, what is told)
            for (needs, late_below, told) in [
                (4, 0, None),
                (4, 4, None),
                (4, 5, Some(74)),
                (4, 6, None),     // it has been told
                (6, 6, None),     // it has caught up
                (6, 7, Some(76)), // and fallen behind again
                (1, 7, None),     // it is too late
                (10, 10, None),   // at the head
            ] {
                let looked = alarm.look(&limits, &of_10, needs, late_below);
                assert_eq!(looked, told, "{needs} {late_below}");
            }
        }
        let holding = Limits { hold_for_receivers: true, ..plain };
        assert_eq!(Alarm::default().look(&holding, &of_10, 4, 9), None, "it is held");
    }
}
