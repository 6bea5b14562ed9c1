//! What a log may hold, and what has to go so that more fits. Pure: the floor is
//! decided here, and moved with the append that needs it.

use std::time::Duration;

use crate::proto::{
    event::{Sequence, duration_millis},
    refusal::{Reason, Refusal},
};

/// The bounds of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Most events retained; at least 1.
    pub max_events: u64,
    /// Most bytes of stored events retained; at least 1.
    pub max_bytes: u64,
    /// Longest time an event is retained, by the publisher's own clock.
    pub max_age: Option<Duration>,
    /// What makes room.
    pub when_full: WhenFull,
    /// How long after an intent's time its receipt is kept.
    pub key_window: Duration,
    /// Most keys without a time.
    pub max_untimed_keys: u64,
    /// Whether events stay, also over their age, until every receiver within its lease
    /// has acknowledged them.
    pub hold_for_receivers: bool,
    /// How long a receiver counts that is not connected.
    pub hold_lease: Duration,
    /// What a receiver that has seen more or other history means for a publish.
    pub on_ahead: OnAhead,
}

/// What a log does with new events while a receiver has seen more or other history than
/// it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnAhead {
    /// Takes them, and says so.
    Alarm,
    /// Refuses them.
    RefusePublish,
}

impl OnAhead {
    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            OnAhead::Alarm => "alarm",
            OnAhead::RefusePublish => "refuse_publish",
        }
    }
}

/// What happens when one more event does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The oldest events go, whoever may still need them.
    DropOldest,
    /// Only what every known receiver has acknowledged goes; then the publish is refused.
    Reject,
}

impl WhenFull {
    /// Its name in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            WhenFull::DropOldest => "drop_oldest",
            WhenFull::Reject => "reject",
        }
    }
}

/// What a log holds, as far as bounds go. Invariant: `0 <= floor <= next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Oldest retained sequence.
    pub floor: Sequence,
    /// Sequence of the next event.
    pub next: Sequence,
    /// Bytes of the retained events.
    pub bytes: u64,
}

/// One stored event, as far as bounds go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Its bytes.
    pub bytes: u64,
    /// When it was accepted, milliseconds since the Unix epoch.
    pub accepted_at_ms: i64,
}

/// A receiver, as far as retention goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading<'a> {
    /// Its name.
    pub name: &'a str,
    /// Sequence of the first event that it has not acknowledged.
    pub needs: Sequence,
    /// Whether it is connected.
    pub connected: bool,
    /// From when on its lease counts, milliseconds since the Unix epoch.
    pub lease_from_ms: i64,
}

/// When the lease of a receiver began that is not connected: when it was last heard of, or at
/// the first start of the publisher after that, since while that was down nobody could be
/// heard. No later start prolongs it. `starts` rise; all are milliseconds since the Unix
/// epoch.
pub fn lease_from(seen_ms: i64, starts: &[i64]) -> i64 {
    starts.iter().copied().find(|&at_ms| at_ms >= seen_ms).unwrap_or(seen_ms)
}

/// What of a log may go, and who keeps the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// Below this sequence events may go to make room.
    pub room_below: Sequence,
    /// Below this sequence events may go for their age.
    pub age_below: Sequence,
    /// The receivers that hold it there.
    pub holders: Vec<String>,
}

impl Hold {
    /// Nobody keeps anything.
    pub const NOTHING: Hold =
        Hold { room_below: Sequence::MAX, age_below: Sequence::MAX, holders: Vec::new() };

    /// Whether it does not matter who the receivers are.
    pub fn needs_no_look(limits: &Limits) -> bool {
        limits.when_full == WhenFull::DropOldest && !limits.hold_for_receivers
    }

    /// What receivers keep of a log with this floor.
    ///
    /// A log that rejects keeps what some known receiver has not acknowledged; where none
    /// is known, everything. One that holds counts only receivers within their lease, and of
    /// those only whose next event is still there: to the others nothing here is of use.
    pub fn by<'a>(
        limits: &Limits,
        floor: Sequence,
        receivers: impl Iterator<Item = Reading<'a>> + Clone,
        now_ms: i64,
    ) -> Self {
        if Self::needs_no_look(limits) {
            return Self::NOTHING;
        }
        let holds = limits.hold_for_receivers;
        let lease_ms = duration_millis(limits.hold_lease);
        let counts = |reading: &Reading<'_>| {
            let heard =
                reading.connected || now_ms.saturating_sub(reading.lease_from_ms) <= lease_ms;
            !holds || (heard && reading.needs >= floor)
        };
        let counted = receivers.filter(counts);
        let lowest = counted.clone().map(|reading| reading.needs).min();
        let room_below = match (lowest, limits.when_full) {
            (Some(lowest), _) => lowest.max(floor),
            (None, WhenFull::Reject) => floor,
            (None, WhenFull::DropOldest) => Sequence::MAX,
        };
        Hold {
            room_below,
            age_below: lowest.filter(|_| holds).unwrap_or(Sequence::MAX),
            holders: counted
                .filter(|reading| Some(reading.needs) == lowest)
                .map(|reading| reading.name.to_owned())
                .collect(),
        }
    }
}

/// Why there is no room.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRoom<E> {
    /// This bound is reached, and nothing may be dropped for it.
    Full(&'static str),
    /// The oldest event cannot be looked at.
    Unreadable(E),
}

/// A request that would not even fit into an empty log is no matter of space.
///
/// # Errors
/// BATCH_TOO_LARGE, or EVENT_TOO_LARGE for a single event.
pub fn fits_at_all(limits: &Limits, events: u64, bytes: u64) -> Result<(), Refusal> {
    let reason = if events == 1 { Reason::EventTooLarge } else { Reason::BatchTooLarge };
    let refuse = |name: &'static str, has: u64, most: u64| {
        Err(Refusal::new(
            reason,
            format!(
                "events: the request has {has} {} and this log's {name} is {most}: it can never fit",
                if name == "max_events" { "events" } else { "stored bytes" }
            ),
        )
        .at_field("events", format!("is larger than the log's {name}"))
        .with("limit", name)
        .with(name, most))
    };
    if events > limits.max_events {
        return refuse("max_events", events, limits.max_events);
    }
    if bytes > limits.max_bytes {
        return refuse("max_bytes", bytes, limits.max_bytes);
    }
    Ok(())
}

/// What the log holds once enough has been dropped for some more to fit: what is
/// too old, and then no more than has to go, and nothing that is held. `oldest` looks at
/// a retained event.
///
/// # Errors
/// [`NoRoom`]; then nothing may be dropped either.
pub fn make_room<E>(
    limits: &Limits,
    mut held: Held,
    (events, bytes): (u64, u64),
    hold: &Hold,
    now_ms: i64,
    mut oldest: impl FnMut(Sequence) -> Result<Size, E>,
) -> Result<Held, NoRoom<E>> {
    let may_go_below = hold.room_below.min(held.next);
    let newest_expired_ms =
        limits.max_age.map(|age| now_ms.saturating_sub(duration_millis(age)).saturating_sub(1));
    loop {
        let count = (held.next - held.floor) as u64;
        let over = if count + events > limits.max_events {
            Some("max_events")
        } else if held.bytes + bytes > limits.max_bytes {
            Some("max_bytes")
        } else {
            None
        };
        let may_go = held.floor < may_go_below;
        let may_expire = newest_expired_ms.is_some() && held.floor < hold.age_below;
        let looked_at = (count > 0 && (may_expire || (over.is_some() && may_go)))
            .then(|| oldest(held.floor).map_err(NoRoom::Unreadable))
            .transpose()?;
        let expired = |size: &Size| may_expire && newest_expired_ms >= Some(size.accepted_at_ms);
        match (looked_at, over) {
            (Some(size), over) if expired(&size) || (over.is_some() && may_go) => {
                held.floor += 1;
                held.bytes = held.bytes.saturating_sub(size.bytes);
            }
            // With nothing to add, as much has gone as may go.
            (_, None) => return Ok(held),
            _ if (events, bytes) == (0, 0) => return Ok(held),
            (_, Some(limit)) => return Err(NoRoom::Full(limit)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn limits(when_full: WhenFull) -> Limits {
        Limits {
            max_events: 5,
            max_bytes: 100,
            max_age: Some(Duration::from_secs(86_400)),
            when_full,
            key_window: Duration::from_secs(86_400),
            max_untimed_keys: 100,
            hold_for_receivers: false,
            hold_lease: Duration::from_secs(60),
            on_ahead: OnAhead::Alarm,
        }
    }

    /// What is kept where every receiver has acknowledged what is below.
    fn kept(rule: WhenFull, acknowledged: Sequence) -> Hold {
        match rule {
            WhenFull::DropOldest => Hold::NOTHING,
            WhenFull::Reject => Hold { room_below: acknowledged, ..Hold::NOTHING },
        }
    }

    /// Events 10 to 13 of 10, 20, 30 and 40 bytes, accepted an hour apart from 0 on.
    const HELD: Held = Held { floor: 10, next: 14, bytes: 100 };

    fn oldest(sequence: Sequence) -> Result<Size, ()> {
        let index = sequence - 10;
        Ok(Size { bytes: 10 * (index as u64 + 1), accepted_at_ms: index * 3_600_000 })
    }

    #[test]
    fn room_is_made_by_the_rule() {
        use WhenFull::{DropOldest, Reject};
        let held = |floor, bytes| Ok(Held { floor, bytes, ..HELD });
        // (case, rule, events and bytes to add, acknowledged below, now, expectation)
        let cases = [
            ("nothing to add", DropOldest, (0, 0), 10, 0, held(10, 100)),
            ("one byte more", DropOldest, (1, 1), 10, 0, held(11, 90)),
            ("no more than has to go", DropOldest, (1, 10), 10, 0, held(11, 90)),
            ("two have to go for bytes", DropOldest, (1, 30), 10, 0, held(12, 70)),
            ("by count", DropOldest, (2, 0), 10, 0, held(11, 90)),
            ("everything goes", DropOldest, (5, 100), 10, 0, held(14, 0)),
            ("nobody has acknowledged", Reject, (1, 1), 10, 0, Err(NoRoom::Full("max_bytes"))),
            ("no room by count", Reject, (2, 0), 10, 0, Err(NoRoom::Full("max_events"))),
            ("acknowledged, so it goes", Reject, (1, 1), 11, 0, held(11, 90)),
            ("acknowledged, but not needed", Reject, (1, 0), 14, 0, held(10, 100)),
            ("not enough is acknowledged", Reject, (1, 20), 11, 0, Err(NoRoom::Full("max_bytes"))),
            ("exactly as old as allowed stays", Reject, (0, 0), 10, DAY_MS, held(10, 100)),
            ("too old", Reject, (0, 0), 10, DAY_MS + 1, held(11, 90)),
            ("two too old", DropOldest, (0, 0), 10, DAY_MS + 3_600_001, held(12, 70)),
            ("all too old", Reject, (0, 0), 10, 9 * DAY_MS, held(14, 0)),
            ("a clock far back", DropOldest, (0, 0), 10, i64::MIN, held(10, 100)),
        ];
        for (case, rule, adding, acknowledged, now, expected) in cases {
            let hold = kept(rule, acknowledged);
            let room = make_room(&limits(rule), HELD, adding, &hold, now, oldest);
            assert_eq!(room, expected, "{case}");
        }
    }

    #[test]
    fn age_is_kept_over_a_bound_that_was_lowered() {
        let lowered = Limits { max_bytes: 50, ..limits(WhenFull::Reject) };
        let hold = kept(WhenFull::Reject, 10);
        let room = |adding| make_room(&lowered, HELD, adding, &hold, DAY_MS + 1, oldest);
        assert_eq!(room((0, 0)), Ok(Held { floor: 11, bytes: 90, ..HELD }));
        assert_eq!(room((1, 1)), Err(NoRoom::Full("max_bytes")));
    }

    #[test]
    fn what_is_held_stays_over_bounds_and_age() {
        let held = |floor, bytes| Ok(Held { floor, bytes, ..HELD });
        // (case, held from, events and bytes to add, now, expectation)
        let cases = [
            ("nothing is held", Sequence::MAX, (1, 30), 0, held(12, 70)),
            ("no room is made of it", 11, (1, 30), 0, Err(NoRoom::Full("max_bytes"))),
            ("what is below it goes", 12, (1, 30), 0, held(12, 70)),
            ("none of it grows too old", 11, (0, 0), 9 * DAY_MS, held(11, 90)),
            ("all of it is held", 10, (0, 0), 9 * DAY_MS, held(10, 100)),
        ];
        for (case, from, adding, now, expected) in cases {
            let hold = Hold { room_below: from, age_below: from, holders: Vec::new() };
            let limits = limits(WhenFull::DropOldest);
            assert_eq!(make_room(&limits, HELD, adding, &hold, now, oldest), expected, "{case}");
        }
    }

    #[test]
    fn receivers_hold_by_the_rule() {
        use WhenFull::{DropOldest, Reject};
        const ALL: Sequence = Sequence::MAX;
        let reading = |name, needs, connected, seen_s: i64| Reading {
            name,
            needs,
            connected,
            lease_from_ms: seen_s * 1_000,
        };
        // The lease is a minute; now is second 100.
        let (slow, fast) = (reading("slow", 11, true, 0), reading("fast", 13, false, 40));
        let (gone, lost) = (reading("gone", 10, false, 39), reading("lost", 8, true, 99));
        // (rule, holding, receivers, below which may go for room and age, holders)
        let cases: [(_, _, &[Reading<'_>], _, _, &[&str]); 12] = [
            (DropOldest, false, &[slow, fast], ALL, ALL, &[]),
            (DropOldest, true, &[], ALL, ALL, &[]),
            (DropOldest, true, &[slow, fast], 11, 11, &["slow"]),
            (DropOldest, true, &[fast], 13, 13, &["fast"]),
            (DropOldest, true, &[gone, fast], 13, 13, &["fast"]),
            (DropOldest, true, &[gone, lost], ALL, ALL, &[]),
            (Reject, false, &[], 10, ALL, &[]),
            (Reject, false, &[slow, fast], 11, ALL, &["slow"]),
            (Reject, false, &[gone, fast], 10, ALL, &["gone"]),
            (Reject, false, &[lost], 10, ALL, &["lost"]),
            (Reject, true, &[gone], 10, ALL, &[]),
            (Reject, true, &[gone, fast, slow], 11, 11, &["slow"]),
        ];
        for (rule, holding, receivers, room, age, holders) in cases {
            let limits = Limits { hold_for_receivers: holding, ..limits(rule) };
            let hold = Hold::by(&limits, 10, receivers.iter().copied(), 100_000);
            let expected = Hold {
                room_below: room,
                age_below: age,
                holders: holders.iter().map(|&name| name.to_owned()).collect(),
            };
            assert_eq!(hold, expected, "{rule:?} {holding} {receivers:?}");
        }
    }

    #[test]
    fn a_lease_begins_with_the_first_start_that_may_have_been_missed() {
        // (last heard of, starts, from when on it counts)
        let cases: [(_, &[i64], _); 6] = [
            (50, &[], 50),
            (50, &[10], 50),
            (50, &[10, 60], 60),
            (50, &[10, 60, 70, 80], 60),
            (0, &[60, 70], 60),
            (90, &[60, 70, 80], 90),
        ];
        for (seen_ms, starts, from_ms) in cases {
            assert_eq!(lease_from(seen_ms, starts), from_ms, "{seen_ms} {starts:?}");
        }
    }

    #[test]
    fn an_event_that_cannot_be_looked_at_is_not_dropped() {
        let limits = limits(WhenFull::DropOldest);
        let room = make_room(&limits, HELD, (1, 1), &Hold::NOTHING, 0, |_| Err("damaged"));
        assert_eq!(room, Err(NoRoom::Unreadable("damaged")));
    }

    #[test]
    fn what_can_never_fit_is_too_large() {
        let limits = limits(WhenFull::Reject);
        let reason = |events, bytes| fits_at_all(&limits, events, bytes).map_err(|r| r.reason);
        assert_eq!(reason(5, 100), Ok(()));
        assert_eq!(reason(6, 10), Err(Reason::BatchTooLarge));
        assert_eq!(reason(2, 101), Err(Reason::BatchTooLarge));
        assert_eq!(reason(1, 101), Err(Reason::EventTooLarge));
    }
}
