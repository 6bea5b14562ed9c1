//! The sizes and times of a log's oldest events, read ahead, so that making room
//! costs one read for many events. Knows nothing of bounds.

use std::collections::VecDeque;

use super::{
    log::{LogReader, ReadError},
    retention::Size,
};
use crate::proto::event::Sequence;

/// Events looked at in one read, unless a commit has more.
const AHEAD_ENTRIES: usize = 1_024;
const AHEAD_BYTES: usize = 256 * 1024;

/// What is known of the oldest events.
#[derive(Debug, Default)]
pub struct Oldest {
    /// Sequence of the first of `sizes`.
    first: Sequence,
    sizes: VecDeque<Size>,
}

impl Oldest {
    /// The size of a committed, retained event. Asked for in rising order, it
    /// forgets what came before.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn at(&mut self, sequence: Sequence, log: &dyn LogReader) -> Result<Size, ReadError> {
        while self.first < sequence && self.sizes.pop_front().is_some() {
            self.first += 1;
        }
        if self.first != sequence || self.sizes.is_empty() {
            self.first = sequence;
            self.sizes.clear();
            let entries = log.read_commits(sequence, AHEAD_ENTRIES, AHEAD_BYTES)?;
            self.sizes.extend(entries.iter().map(|entry| Size {
                bytes: entry.body.len() as u64,
                accepted_at_ms: entry.accepted_at_ms,
            }));
        }
        self.sizes.front().copied().ok_or(ReadError::Beyond { asked: sequence, next: sequence })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use uuid::Uuid;

    use super::*;
    use crate::publisher::log::{Entry, EventLog as _, memory::MemoryLog};

    #[test]
    fn it_follows_the_floor_and_may_be_asked_again() {
        let mut log = MemoryLog::new(Uuid::nil());
        let entry = |n: i64| Entry {
            chain: [0; 32],
            accepted_at_ms: n,
            body: Bytes::from(vec![0; n as usize]),
        };
        let entries: Vec<Entry> = (0..2_000).map(entry).collect();
        log.commit(&entries, 0).expect("memory");
        let reader = log.reader();
        let mut oldest = Oldest::default();
        for sequence in [0, 0, 1, 5, 1_500, 1_999, 3] {
            let size = oldest.at(sequence, &*reader).expect("retained");
            assert_eq!(size, Size { bytes: sequence as u64, accepted_at_ms: sequence });
        }
        assert!(matches!(oldest.at(2_000, &*reader), Err(ReadError::Beyond { .. })));
    }
}
