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
/// too old, and then no more than has to go. `acknowledged` is the sequence below
/// which every known receiver has everything; `oldest` looks at a retained event.
///
/// # Errors
/// [`NoRoom`]; then nothing may be dropped either.
pub fn make_room<E>(
    limits: &Limits,
    mut held: Held,
    (events, bytes): (u64, u64),
    acknowledged: Sequence,
    now_ms: i64,
    mut oldest: impl FnMut(Sequence) -> Result<Size, E>,
) -> Result<Held, NoRoom<E>> {
    let may_go_below = match limits.when_full {
        WhenFull::DropOldest => held.next,
        WhenFull::Reject => acknowledged.min(held.next),
    };
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
        let looked_at = (count > 0 && (newest_expired_ms.is_some() || (over.is_some() && may_go)))
            .then(|| oldest(held.floor).map_err(NoRoom::Unreadable))
            .transpose()?;
        let expired = |size: &Size| newest_expired_ms >= Some(size.accepted_at_ms);
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
            let room = make_room(&limits(rule), HELD, adding, acknowledged, now, oldest);
            assert_eq!(room, expected, "{case}");
        }
    }

    #[test]
    fn age_is_kept_over_a_bound_that_was_lowered() {
        let lowered = Limits { max_bytes: 50, ..limits(WhenFull::Reject) };
        let room = |adding| make_room(&lowered, HELD, adding, 10, DAY_MS + 1, oldest);
        assert_eq!(room((0, 0)), Ok(Held { floor: 11, bytes: 90, ..HELD }));
        assert_eq!(room((1, 1)), Err(NoRoom::Full("max_bytes")));
    }

    #[test]
    fn an_event_that_cannot_be_looked_at_is_not_dropped() {
        let room =
            make_room(&limits(WhenFull::DropOldest), HELD, (1, 1), 10, 0, |_| Err("damaged"));
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
