//! What is looked up by key and by subject: the receipt of a key, the version of a
//! subject. Derived from the log, kept beyond it: a receipt outlives its event, and
//! lives on the clock alone. Decides nothing.
//!
//! ```text
//!   0                          position                 next
//!   |  rows in *.receipts files  |  rows in memory        |
//!   [ . . . . . . . . . . . . . . ][ . . . . . . . . . . . ]
//!   [ index: part of each key's hash, and its sequence    ]
//!
//!   intent's time:  forgotten  |  held, and found
//!                         key floor = largest clock - key_window, as it is stored
//! ```
//! Memory holds an entry of 10 bytes for each key, which takes up to 13 with the room in
//! its table, a hash and a version for each subject, and the rows that no file has yet.
//! [`Receipts`] is what is looked up; [`Store`] writes it, for the appender.
//! [`format`] draws a file, [`manifest`] says which count.

mod check;
mod copy;
mod file;
mod fold;
mod forget;
mod format;
mod index;
mod load;
mod manifest;
mod open;
mod rebuild;
mod retired;
mod store;
mod subjects;

use std::{
    ops::Range,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use uuid::Uuid;

pub use self::{
    check::check,
    copy::{Copied, copy},
    fold::{Hash, Names, hash},
    open::open,
    rebuild::{Rebuilt, rebuild},
    store::{FLUSH_ROWS, Store},
};
use self::{index::Index, manifest::Manifest, subjects::Subjects};
use super::log::ReadError;
use crate::proto::event::{Fingerprint, Sequence, Time, intent_time_ms};

/// What the publisher answered for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// Where the event stands, or stood.
    pub sequence: Sequence,
    /// Number of its subject's events up to it, itself included.
    pub subject_version: i64,
    /// Of its content.
    pub fingerprint: Fingerprint,
    /// When it was accepted, milliseconds since the Unix epoch.
    pub accepted_at_ms: i64,
    /// The intent's time, by which its receipt is kept, milliseconds since the Unix epoch;
    /// none: for ever.
    pub time_ms: Option<i64>,
}

/// What is known of a key without a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It was never accepted.
    NeverAccepted,
    /// It may have been accepted, long ago.
    Expired,
}

/// Receipts that one thread changes and many look up. The lock is never held while
/// something is written to the disk.
pub type Shared = Arc<RwLock<Receipts>>;

/// Looks. Every change is whole before anything that could panic.
pub fn look(receipts: &RwLock<Receipts>) -> RwLockReadGuard<'_, Receipts> {
    receipts.read().unwrap_or_else(PoisonError::into_inner)
}

/// Changes. Only the owner of the [`Store`] does.
pub fn change(receipts: &RwLock<Receipts>) -> RwLockWriteGuard<'_, Receipts> {
    receipts.write().unwrap_or_else(PoisonError::into_inner)
}

/// The receipts of one log.
#[derive(Debug)]
pub struct Receipts {
    /// Where the files are.
    dir: PathBuf,
    /// What is on stable storage. `clock_ms` and `oldest_stated_ms` run ahead of it:
    /// they follow from the events, too.
    manifest: Manifest,
    /// Invariant: it names the place of every receipt that can be found, and no other
    /// place: it changes together with the rows.
    index: Index,
    subjects: Subjects,
    /// The events from the position on, one a sequence.
    fresh: Vec<(Names, Accepted)>,
    /// Receipts that are kept for ever.
    untimed: u64,
}

impl Receipts {
    fn new(dir: PathBuf, manifest: Manifest) -> Self {
        Receipts {
            dir,
            manifest,
            index: Index::default(),
            subjects: Subjects::default(),
            fresh: Vec::new(),
            untimed: 0,
        }
    }

    /// Receipts of a new log in memory, with the store that keeps nothing of them.
    pub fn in_memory(log_id: Uuid) -> (Shared, Store) {
        let receipts = Receipts::new(PathBuf::new(), Manifest::new(log_id));
        (Arc::new(RwLock::new(receipts)), Store::in_memory())
    }

    /// To be called before many keys are looked for: it is faster then.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k Hash>) {
        self.index.prefetch(keys);
    }

    /// The receipt of a key, however long ago its event was truncated.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn find(&self, key: &Hash) -> Result<Option<Accepted>, ReadError> {
        for sequence in self.index.candidates(key) {
            // What has expired is no longer found, though it may still be held; so a
            // key has one receipt at most.
            let (hash, accepted) = self.receipt(sequence)?;
            if hash == *key && is_live(accepted.time_ms, self.key_floor_ms()) {
                return Ok(Some(accepted));
            }
        }
        Ok(None)
    }

    /// The receipt that the index names. It is held, so not to find it is damage,
    /// and never an answer: a retry would be executed twice.
    fn receipt(&self, sequence: Sequence) -> Result<(Hash, Accepted), ReadError> {
        match self.manifest.part(sequence) {
            Some(part) => file::receipt(&self.dir, part, sequence),
            None => self
                .fresh
                .get((sequence - self.position()) as usize)
                .map(|(names, accepted)| (names.key, accepted.clone()))
                .ok_or_else(|| ReadError::Corrupt {
                    sequence,
                    what: "its receipt is held nowhere".to_owned(),
                }),
        }
    }

    /// How many events of a subject have been accepted. 0: none.
    pub fn subject_version(&self, subject: &Hash) -> i64 {
        self.subjects.version(subject)
    }

    /// The receipts of all events below this sequence are in files.
    fn position(&self) -> Sequence {
        self.manifest.position()
    }

    /// The receipts of all events below this sequence can be found.
    pub fn next(&self) -> Sequence {
        self.position() + self.fresh.len() as Sequence
    }

    /// How many receipts are held. Some of them may have expired a moment ago.
    pub fn keys(&self) -> u64 {
        self.index.len()
    }

    /// How many of them have no time.
    pub fn untimed(&self) -> u64 {
        self.untimed
    }

    /// Whether a receipt of these events, all of them accepted, may still be held.
    pub fn holds_any(&self, range: Range<Sequence>) -> bool {
        let parts = &self.manifest.parts;
        let from = parts.partition_point(|part| part.end <= range.start);
        let mut within = parts[from..].iter().take_while(|part| part.first < range.end);
        let in_memory = self.position().max(range.start)..self.next().min(range.end);
        within.any(|part| part.rows > 0) || !in_memory.is_empty()
    }

    /// What is known of a key that has no receipt, and that may have been stated
    /// with a first attempt's time.
    pub fn unknown(&self, key: &str, first_attempt_time: Option<Time>) -> Unknown {
        let floor_ms = self.key_floor_ms();
        // A key without a time may have had one beside it.
        let oldest_ms =
            intent_time_ms(key, first_attempt_time).unwrap_or(self.manifest.oldest_stated_ms);
        if oldest_ms < floor_ms { Unknown::Expired } else { Unknown::NeverAccepted }
    }

    /// No receipt is found of intents from before this time, milliseconds since the
    /// Unix epoch. It is on stable storage and never moves back.
    pub fn key_floor_ms(&self) -> i64 {
        self.manifest.key_floor_ms
    }

    /// The largest value of the publisher's clock that is known, milliseconds since the
    /// Unix epoch: where the clock goes on after a restart.
    pub fn clock_ms(&self) -> i64 {
        self.manifest.clock_ms
    }

    /// Takes note of an event that is on stable storage. Called in the order of
    /// the log, for each event once.
    ///
    /// # Panics
    /// Out of order: receipts would be found at wrong places.
    pub fn insert(&mut self, names: Names, accepted: Accepted) {
        assert_eq!(accepted.sequence, self.next(), "receipts come in the order of the log");
        self.index.insert(&names.key, accepted.sequence);
        self.subjects.raise(names.subject, accepted.subject_version);
        self.untimed += u64::from(accepted.time_ms.is_none());
        let manifest = &mut self.manifest;
        manifest.clock_ms = manifest.clock_ms.max(accepted.accepted_at_ms);
        if let Some(time_ms) = accepted.time_ms.filter(|_| names.stated) {
            manifest.oldest_stated_ms = manifest.oldest_stated_ms.min(time_ms);
        }
        self.fresh.push((names, accepted));
    }
}

/// Whether a receipt has not expired.
fn is_live(time_ms: Option<i64>, key_floor_ms: i64) -> bool {
    time_ms.is_none_or(|time_ms| time_ms >= key_floor_ms)
}

#[cfg(test)]
mod tests;
