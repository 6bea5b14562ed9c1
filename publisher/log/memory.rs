//! The shortest correct engine: a list behind a lock. The reference that the
//! durable one is compared with, and what tests of the paths above run on. It
//! keeps nothing across processes.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use uuid::Uuid;

use super::{CommitError, Entry, EventLog, Extent, LogReader, ReadError};
use crate::proto::{
    chain::{Chain, EMPTY_CHAIN},
    event::Sequence,
};

/// A log in memory. A clone is the same log: what opening its files a second
/// time is to the durable engine.
#[derive(Debug, Clone)]
pub struct MemoryLog(Arc<Mutex<State>>);

/// Invariant: `first <= floor <= next`, where `next = first + entries.len()`.
#[derive(Debug)]
struct State {
    log_id: Uuid,
    /// The first entry not yet released.
    first: Sequence,
    /// The chain at `first - 1`.
    chain_before: Chain,
    floor: Sequence,
    entries: VecDeque<Entry>,
    /// Of the entries from `floor` on.
    bytes: u64,
    /// What the next commit answers instead of storing anything.
    failing: Option<CommitError>,
    halted: Option<String>,
}

impl MemoryLog {
    /// An empty log.
    pub fn new(log_id: Uuid) -> Self {
        MemoryLog(Arc::new(Mutex::new(State {
            log_id,
            first: 0,
            chain_before: EMPTY_CHAIN,
            floor: 0,
            entries: VecDeque::new(),
            bytes: 0,
            failing: None,
            halted: None,
        })))
    }

    /// Lets the next commit fail. `Halted` latches, as it does on a real disk.
    pub fn fail_next(&self, error: CommitError) {
        self.lock().failing = Some(error);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change below is whole before anything that could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn next(&self) -> Sequence {
        self.first + self.entries.len() as Sequence
    }

    fn index(&self, sequence: Sequence) -> usize {
        (sequence - self.first) as usize
    }

    fn chain_at(&self, sequence: Sequence) -> Chain {
        if sequence < self.first {
            self.chain_before
        } else {
            self.entries[self.index(sequence)].chain
        }
    }

    fn read(
        &self,
        lowest: Sequence,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        if from < lowest {
            return Err(ReadError::Truncated { asked: from, floor: lowest });
        }
        if from >= self.next() {
            return Ok(Vec::new());
        }
        let mut bytes = 0;
        let mut read = Vec::new();
        for entry in self.entries.range(self.index(from)..).take(max_entries) {
            bytes += entry.body.len();
            if bytes > max_bytes && !read.is_empty() {
                break;
            }
            read.push(entry.clone());
        }
        Ok(read)
    }
}

impl EventLog for MemoryLog {
    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::new(self.clone())
    }

    fn commit(&mut self, entries: &[Entry], floor: Sequence) -> Result<(), CommitError> {
        let mut state = self.lock();
        if let Some(why) = &state.halted {
            return Err(CommitError::Halted(why.clone()));
        }
        if let Some(error) = state.failing.take() {
            if let CommitError::Halted(why) = &error {
                state.halted = Some(why.clone());
            }
            return Err(error);
        }
        assert!(floor <= state.next() + entries.len() as Sequence, "the floor is within the log");
        state.bytes += entries.iter().map(|entry| entry.body.len() as u64).sum::<u64>();
        state.entries.extend(entries.iter().cloned());
        while state.floor < floor {
            let dropped = state.index(state.floor);
            state.bytes -= state.entries[dropped].body.len() as u64;
            state.floor += 1;
        }
        Ok(())
    }

    fn releasable(&self) -> Option<Range<Sequence>> {
        let state = self.lock();
        (state.first < state.floor).then_some(state.first..state.floor)
    }

    fn release(&mut self, range: Range<Sequence>) -> Result<(), CommitError> {
        let mut state = self.lock();
        assert_eq!(range, state.first..state.floor, "exactly what is releasable is released");
        state.chain_before = state.chain_at(range.end - 1);
        state.entries.drain(..(range.end - range.start) as usize);
        state.first = range.end;
        Ok(())
    }
}

impl LogReader for MemoryLog {
    fn extent(&self) -> Extent {
        let state = self.lock();
        Extent {
            log_id: state.log_id,
            floor: state.floor,
            next: state.next(),
            head_chain: state.chain_at(state.next() - 1),
            bytes: state.bytes,
        }
    }

    fn read(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let state = self.lock();
        state.read(state.floor, from, max_entries, max_bytes)
    }

    fn recent(&self, from: Sequence, max_entries: usize, max_bytes: usize) -> Option<Vec<Entry>> {
        let read = LogReader::read(self, from, max_entries, max_bytes).ok()?;
        (!read.is_empty()).then_some(read)
    }

    fn read_stored(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let state = self.lock();
        state.read(state.first, from, max_entries, max_bytes)
    }

    fn chain_at(&self, sequence: Sequence) -> Result<Chain, ReadError> {
        let state = self.lock();
        if sequence < state.floor - 1 {
            return Err(ReadError::Truncated { asked: sequence, floor: state.floor });
        }
        if sequence >= state.next() {
            return Err(ReadError::Beyond { asked: sequence, next: state.next() });
        }
        Ok(state.chain_at(sequence))
    }
}
