//! The newest entries in memory, for the readers that follow: they all share one
//! copy, and neither open nor read a file for it. What they do not find here they read
//! from the log.

use std::collections::VecDeque;

use super::Entry;
use crate::proto::{
    event::Sequence,
    limits::{MAX_RECENT_BYTES, MAX_RECENT_EVENTS},
};

/// The newest committed entries, without a hole, within bounds.
#[derive(Debug)]
pub struct Recent {
    entries: VecDeque<Entry>,
    /// Behind the last of them.
    next: Sequence,
    /// Of their bodies.
    bytes: usize,
}

impl Recent {
    /// Nothing yet of a log that goes on at `next`.
    pub fn new(next: Sequence) -> Self {
        Recent { entries: VecDeque::new(), next, bytes: 0 }
    }

    /// Takes in a committed group; the oldest make room. Its bodies may be slices of the frame
    /// that was written, which stays until the last of them has gone: so there are up to one
    /// frame and the headers of the records in memory beside the bytes that count.
    pub fn push(&mut self, group: impl IntoIterator<Item = Entry>) {
        for entry in group {
            self.bytes += entry.body.len();
            self.next += 1;
            self.entries.push_back(entry);
        }
        while self.bytes > MAX_RECENT_BYTES || self.entries.len() > MAX_RECENT_EVENTS {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.body.len();
        }
    }

    /// Entries from a sequence on, with the bounds of [`super::LogReader::read`].
    /// None: the first of them is not here.
    pub fn read(&self, from: Sequence, max_entries: usize, max_bytes: usize) -> Option<Vec<Entry>> {
        let first = self.next - self.entries.len() as Sequence;
        let skipped = usize::try_from(from - first).ok()?;
        if skipped >= self.entries.len() {
            return None;
        }
        let mut bytes = 0;
        let fitting = self.entries.range(skipped..).take(max_entries).take_while(|entry| {
            let is_first = bytes == 0;
            bytes += entry.body.len();
            is_first || bytes <= max_bytes
        });
        Some(fitting.cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Entries with bodies of so many bytes, told apart by their chain.
    fn group(from: u8, count: u8, bytes: usize) -> Vec<Entry> {
        (from..from + count)
            .map(|n| Entry { chain: [n; 32], accepted_at_ms: 0, body: vec![n; bytes].into() })
            .collect()
    }

    fn chains(entries: Option<Vec<Entry>>) -> Option<Vec<u8>> {
        entries.map(|entries| entries.iter().map(|entry| entry.chain[0]).collect())
    }

    #[test]
    fn what_is_here_is_given_within_the_bounds_asked_for() {
        let mut recent = Recent::new(100);
        assert_eq!(recent.read(100, 9, 999), None);
        recent.push(group(0, 3, 10));
        recent.push(group(3, 2, 10));
        // (from, most entries, most bytes, what comes)
        let cases: [(Sequence, usize, usize, Option<&[u8]>); 8] = [
            (100, 9, 999, Some(&[0, 1, 2, 3, 4])),
            (102, 9, 999, Some(&[2, 3, 4])),
            (102, 2, 999, Some(&[2, 3])),
            (102, 9, 29, Some(&[2, 3])),
            (102, 9, 1, Some(&[2])),
            (104, 9, 999, Some(&[4])),
            (99, 9, 999, None),
            (105, 9, 999, None),
        ];
        for (from, entries, bytes, expected) in cases {
            let read = chains(recent.read(from, entries, bytes));
            assert_eq!(read.as_deref(), expected, "{from} {entries} {bytes}");
        }
    }

    #[test]
    fn the_oldest_make_room() {
        let mut recent = Recent::new(0);
        for n in 0..5 {
            recent.push(group(n, 1, MAX_RECENT_BYTES / 4));
        }
        assert_eq!(recent.read(0, 9, usize::MAX), None);
        assert_eq!(chains(recent.read(1, 9, usize::MAX)), Some(vec![1, 2, 3, 4]));
        // One that fits nowhere is not kept, and nothing before it is either.
        recent.push(group(5, 1, MAX_RECENT_BYTES + 1));
        assert_eq!(recent.read(5, 9, usize::MAX), None);
        recent.push(group(6, 1, 1));
        assert_eq!(chains(recent.read(6, 9, usize::MAX)), Some(vec![6]));

        let mut recent = Recent::new(0);
        let many = vec![group(0, 1, 1).remove(0); MAX_RECENT_EVENTS + 1];
        recent.push(many);
        assert_eq!(recent.read(0, 1, 1), None);
        assert_eq!(recent.read(1, 1, 1).map(|entries| entries.len()), Some(1));
    }
}
