//! The port to a log's storage. [`segment`] is the durable engine, [`memory`]
//! the shortest correct one; [`conformance`] proves both against this contract.
//!
//! ```text
//!            floor                              next
//!              |                                  |
//!   truncated  v           retained               v   not yet accepted
//!   . . . . . [ 7 ][ 8 ][ 9 ][ 10 ][ 11 ][ 12 ] . . . .
//!          ^                                ^
//!   chain(floor-1) is kept          chain(next-1) = head chain
//! ```
//!
//! An engine stores bytes; it knows nothing of keys, types or fingerprints.

pub mod memory;
pub mod recent;
pub mod segment;

#[cfg(test)]
mod conformance;

use std::ops::Range;

use bytes::Bytes;
use uuid::Uuid;

use crate::{
    process::Failure,
    proto::{
        chain::{Ancestor, Chain, Cursor},
        event::Sequence,
    },
};

/// One event as an engine stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The running hash up to and including this entry.
    pub chain: Chain,
    /// The publisher's clock when it was accepted, milliseconds since the Unix epoch.
    pub accepted_at_ms: i64,
    /// The event, encoded.
    pub body: Bytes,
}

/// What a log holds. Invariant: `0 <= floor <= next`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// This incarnation.
    pub log_id: Uuid,
    /// Oldest retained sequence; equal to `next` when nothing is retained.
    pub floor: Sequence,
    /// Sequence that the next entry will get. Never goes back, never reused.
    pub next: Sequence,
    /// The chain at `next - 1`.
    pub head_chain: Chain,
    /// Bytes of the retained entries' bodies.
    pub bytes: u64,
}

impl Extent {
    /// The cursor of someone who has applied everything.
    pub fn head(&self) -> Cursor {
        Cursor { log_id: self.log_id, sequence: self.next - 1, chain: self.head_chain }
    }

    /// Retained entries.
    pub fn count(&self) -> u64 {
        (self.next - self.floor) as u64
    }
}

/// Why a commit failed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// No space was left. Nothing of the group is stored, nothing else changed;
    /// a later commit may succeed.
    #[error("the disk is full")]
    DiskFull,
    /// A write or a sync failed: what is on the disk is unknown. The engine is
    /// latched, and every later commit fails with this too.
    #[error("{0}")]
    Halted(String),
}

/// Why entries could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// They are below the floor.
    #[error("sequence {asked} is below the floor {floor}")]
    Truncated {
        /// The sequence asked for.
        asked: Sequence,
        /// The floor.
        floor: Sequence,
    },
    /// They lie at or above `next`. `read` never gives this: it answers with
    /// nothing there.
    #[error("sequence {asked} is beyond the end {next}")]
    Beyond {
        /// The sequence asked for.
        asked: Sequence,
        /// The end.
        next: Sequence,
    },
    /// Stored bytes are damaged.
    #[error("the log is damaged at sequence {sequence}: {what}")]
    Corrupt {
        /// The first sequence that cannot be read.
        sequence: Sequence,
        /// What was found.
        what: String,
    },
    /// The disk failed.
    #[error("the log cannot be read: {0}")]
    Io(#[from] std::io::Error),
}

/// Why stored data could not be opened. Each carries one sentence for the person
/// who started the process; nothing on the disk has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{0}")]
    InUse(String),
    /// It was written by a newer version, or is something else.
    #[error("{0}")]
    Format(String),
    /// A write or a sync had failed, so what is on the disk is unknown: it has
    /// to be recovered first.
    #[error("{0}")]
    Halted(String),
    /// Bytes that had been committed are damaged or missing.
    #[error("{path} is damaged at sequence {sequence}: {what}")]
    Corrupt {
        /// The file or directory.
        path: String,
        /// The first sequence that cannot be read.
        sequence: Sequence,
        /// What was found.
        what: String,
    },
    /// A file beside the log is damaged.
    #[error("{path} is damaged: {what}")]
    Damaged {
        /// The file.
        path: String,
        /// What was found.
        what: String,
    },
    /// The operating system refused.
    #[error("cannot {doing} {path}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// With what.
        path: String,
        /// What came back.
        source: std::io::Error,
    },
}

impl OpenError {
    /// [`OpenError::Io`] at a path.
    pub fn io(doing: &'static str, path: &std::path::Path, source: std::io::Error) -> Self {
        OpenError::Io { doing, path: path.display().to_string(), source }
    }
}

impl From<OpenError> for Failure {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Io { .. } => Failure::Runtime(error.to_string()),
            _ => Failure::InUse(error.to_string()),
        }
    }
}

/// The writing side of a log: one owner, one thread. Blocking.
pub trait EventLog: Send {
    /// A reading side. Cheap; may be called often.
    fn reader(&self) -> std::sync::Arc<dyn LogReader>;

    /// Appends entries at `next` and moves the floor up to `floor`, as one
    /// durable, atomic step: on return all of it is on stable storage and
    /// readers see it; after a crash there is all of it or none. Either part
    /// may be empty (no entries; a floor that is not above the present one).
    /// `floor` is at most `next + entries.len()`.
    ///
    /// # Errors
    /// [`CommitError`]; readers never see a failed group.
    fn commit(&mut self, entries: &[Entry], floor: Sequence) -> Result<(), CommitError>;

    /// The oldest part of the storage that lies wholly below the floor and
    /// could be given back: a range of sequences that [`LogReader::read_stored`]
    /// can still read. None where there is none.
    fn releasable(&self) -> Option<Range<Sequence>>;

    /// Gives back the storage of [`EventLog::releasable`], exactly that range.
    /// Crash-safe: an interrupted release is found again as releasable.
    ///
    /// # Errors
    /// [`CommitError::Halted`].
    fn release(&mut self, range: Range<Sequence>) -> Result<(), CommitError>;
}

/// The reading side: any thread, any number. Blocking, short; [`LogReader::extent`] and
/// [`LogReader::recent`] wait for no disk.
pub trait LogReader: Send + Sync {
    /// What the log holds now. Everything in it is on stable storage.
    fn extent(&self) -> Extent;

    /// The incarnations that this one was forked from, the newest first. They do not change
    /// while it is open.
    fn ancestors(&self) -> &[Ancestor] {
        &[]
    }

    /// Whether an identity is this log's, or that of an ancestor.
    fn covers(&self, log_id: Uuid) -> bool {
        self.extent().log_id == log_id
            || self.ancestors().iter().any(|ancestor| ancestor.log_id == log_id)
    }

    /// Entries from `from` on, in order and without a hole: at most
    /// `max_entries`, and at most `max_bytes` of bodies, though the first is
    /// always given. Empty at `from >= next`. Damage ends what is given; a read from
    /// there on says it.
    ///
    /// # Errors
    /// [`ReadError::Truncated`] below the floor, also when the floor has moved
    /// since the caller looked; [`ReadError::Corrupt`]; [`ReadError::Io`].
    fn read(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError>;

    /// The same for who goes through the log. An engine that reads and checks commits as a
    /// whole gives the entry's commit to its end, however much that is, and of those after it
    /// whole ones, as far as they fit the bounds together with what stands before them: so none
    /// is read twice.
    ///
    /// # Errors
    /// The same.
    fn read_commits(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        self.read(from, max_entries, max_bytes)
    }

    /// As [`LogReader::read`], out of memory, at once: for who follows. None where the first of them
    /// is not there any more, and from outside the log: then [`LogReader::read`] tells.
    fn recent(&self, from: Sequence, max_entries: usize, max_bytes: usize) -> Option<Vec<Entry>>;

    /// As [`LogReader::read`], but also below the floor, as far as the storage there has not
    /// been released: for what is derived from the log and must outlive it.
    ///
    /// # Errors
    /// [`ReadError::Truncated`] where it has been released, with the first
    /// sequence that is still stored as `floor`; [`ReadError::Corrupt`]; [`ReadError::Io`].
    fn read_stored(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError>;

    /// The chain at a sequence from `floor - 1` to `next - 1`.
    ///
    /// # Errors
    /// [`ReadError`], `Beyond` included.
    fn chain_at(&self, sequence: Sequence) -> Result<Chain, ReadError>;
}
