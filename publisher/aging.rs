//! Up to where a log's events have grown so old that age takes them soon: looked up on the
//! appender's thread, where the floor moves, and told to readers by their numbers. It
//! decides nothing.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::Duration,
};

use super::{
    log::{Extent, LogReader, ReadError},
    resume,
};
use crate::proto::event::{Sequence, duration_millis};

/// What readers are told of the age of a log's events.
#[derive(Debug, Default)]
pub struct Aging {
    half: AtomicI64,
    late: AtomicI64,
}

impl Aging {
    /// Below this sequence events have reached half the age that is allowed; 0: none has.
    pub fn half_below(&self) -> Sequence {
        self.half.load(Ordering::Acquire)
    }

    /// Below this sequence less than an eighth of the age that is allowed is left; 0: of none.
    pub fn late_below(&self) -> Sequence {
        self.late.load(Ordering::Acquire)
    }

    /// Looks again, at few events: those from where the last look ended.
    pub fn look(&self, max_age: Option<Duration>, log: &dyn LogReader, now_ms: i64) {
        let Some(max_ms) = max_age.map(duration_millis) else { return };
        for (below, age_ms) in [(&self.half, max_ms / 2), (&self.late, max_ms - max_ms / 8)] {
            let from = below.load(Ordering::Acquire);
            match first_younger(log, from, now_ms.saturating_sub(age_ms)) {
                Ok(first) => below.store(first, Ordering::Release),
                // What was known stays so.
                Err(error) => drop(resume::failed(&error)),
            }
        }
    }
}

/// The first retained event, from `from` on, that was accepted after a time; the log's next
/// one where none was. Times rise with the sequence.
fn first_younger(log: &dyn LogReader, from: Sequence, at_ms: i64) -> Result<Sequence, ReadError> {
    let Extent { floor, next, .. } = log.extent();
    let is_younger = |sequence| {
        let entries = log.read(sequence, 1, 0)?;
        Ok::<_, ReadError>(entries.first().is_none_or(|entry| entry.accepted_at_ms > at_ms))
    };
    // Steps that double, then halves: nearly always the first look is the last one.
    let (mut low, mut high, mut step) = (from.max(floor).min(next), next, 1);
    while low + step <= high {
        if is_younger(low + step - 1)? {
            high = low + step - 1;
            break;
        }
        low += step;
        step *= 2;
    }
    while low < high {
        let middle = low + (high - low) / 2;
        if is_younger(middle)? { high = middle } else { low = middle + 1 }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::publisher::log::{Entry, EventLog as _, memory::MemoryLog};

    #[test]
    fn it_follows_the_clock_whatever_it_has_known() {
        let mut log = MemoryLog::new(Uuid::nil());
        let reader = log.reader();
        let aging = Aging::default();
        let most = Some(Duration::from_millis(800));
        let told = |now_ms, max_age| {
            aging.look(max_age, &*reader, now_ms);
            (aging.half_below(), aging.late_below())
        };
        assert_eq!(told(5_000, most), (0, 0), "of an empty log");
        let entry = |n: i64| Entry {
            chain: [0; 32],
            accepted_at_ms: 10_000 + n,
            body: Bytes::from_static(b"x"),
        };
        let entries: Vec<Entry> = (0..1_000).map(entry).collect();
        log.commit(&entries, 0).expect("memory");
        assert_eq!(told(10_399, None), (0, 0), "nothing grows too old");
        // (now, below which half the age is reached, seven eighths)
        for (now_ms, half, late) in [
            (10_399, 0, 0),
            (10_400, 1, 0),
            (10_700, 301, 1),
            (11_000, 601, 301),
            (11_001, 602, 302),
            (11_500, 1_000, 801),
            (99_999, 1_000, 1_000),
        ] {
            assert_eq!(told(now_ms, most), (half, late), "{now_ms}");
            let fresh = Aging::default();
            fresh.look(most, &*reader, now_ms);
            assert_eq!((fresh.half_below(), fresh.late_below()), (half, late), "at once");
        }
        log.commit(&[], 1_000).expect("memory");
        assert_eq!(told(99_999, most), (1_000, 1_000), "all are gone");
    }
}
