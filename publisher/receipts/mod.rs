//! What is looked up by key and by subject: the receipt of a key, the version
//! of a subject. Derived from the log, kept beyond it: a receipt outlives its
//! event. Decides nothing.
//!
//! ```text
//!   0                    retired.end            next
//!   |  rows in *.retired  |  entries in the log  |
//!   [ . . . . . . . . . . ][ . . . . . . . . . . ]
//!   [ index: hash of every key, by sequence      ]
//! ```
//! Memory holds a hash and a slot for each key and each subject; the rest of a
//! receipt is read where it stands.

mod fold;
mod index;
mod retired;

use std::{ops::Range, path::Path, sync::Arc};

pub use self::retired::copy;
use self::{
    index::{Keys, Subjects},
    retired::{Retired, Row},
};
use super::log::{CommitError, Entry, LogReader, OpenError, ReadError};
use crate::proto::{
    crash,
    event::{Fingerprint, Sequence, Time, intent_time_ms},
};

/// Entries read in one go while catching up with the log.
const SCAN_ENTRIES: usize = 4_096;
const SCAN_BYTES: usize = 1024 * 1024;

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
    /// By which its receipt is kept, milliseconds since the Unix epoch; none: for ever.
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

/// The receipts of one log. Look-ups share, changes exclude: the owner puts a
/// lock around it.
pub struct Receipts {
    reader: Arc<dyn LogReader>,
    keys: Keys,
    subjects: Subjects,
    retired: Retired,
}

impl Receipts {
    /// Opens what a directory keeps of truncated events, and catches up with the log.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, reader: Arc<dyn LogReader>) -> Result<Self, OpenError> {
        let mut receipts = Receipts {
            reader,
            keys: Keys::default(),
            subjects: Subjects::default(),
            retired: Retired::open(dir)?,
        };
        let Receipts { keys, subjects, retired, .. } = &mut receipts;
        retired.each(|row| {
            keys.push(row.key);
            subjects.raise(row.subject, row.subject_version);
        })?;
        receipts.catch_up().map_err(|error| match error {
            ReadError::Io(source) => OpenError::io("read the log in", dir, source),
            ReadError::Truncated { asked, floor } => OpenError::Corrupt {
                path: dir.display().to_string(),
                sequence: asked,
                what: format!("the receipts of {asked} to {} are missing", floor - 1),
            },
            other => {
                OpenError::Damaged { path: dir.display().to_string(), what: other.to_string() }
            }
        })?;
        Ok(receipts)
    }

    /// Receipts of a log in memory, up to date with it.
    ///
    /// # Panics
    /// Where the log cannot be read or has been released in part: a log in
    /// memory that is used from its beginning is neither.
    pub fn in_memory(reader: Arc<dyn LogReader>) -> Self {
        let mut receipts = Receipts {
            reader,
            keys: Keys::default(),
            subjects: Subjects::default(),
            retired: Retired::in_memory(),
        };
        receipts.catch_up().expect("a log in memory can be read from its beginning");
        receipts
    }

    fn catch_up(&mut self) -> Result<(), ReadError> {
        loop {
            let from = self.keys.next();
            let entries = self.reader.read_stored(from, SCAN_ENTRIES, SCAN_BYTES)?;
            if entries.is_empty() {
                return Ok(());
            }
            for (sequence, entry) in (from..).zip(&entries) {
                let row = row(sequence, entry)?;
                self.keys.push(row.key);
                self.subjects.raise(row.subject, row.subject_version);
            }
        }
    }

    /// The receipt of a key, however long ago its event was truncated.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn find(&self, key: &str) -> Result<Option<Accepted>, ReadError> {
        let hash = fold::hash(key);
        let Some(sequence) = self.keys.find(&hash) else { return Ok(None) };
        if sequence < self.retired.end() {
            let row = self.retired.row(sequence)?;
            return Ok((row.key == hash).then(|| row.accepted(sequence)));
        }
        let entries = self.reader.read_stored(sequence, 1, 0)?;
        let Some(entry) = entries.first() else {
            return Err(corrupt(sequence, "a receipt has no event"));
        };
        let stored = fold::stored(&entry.body).map_err(|what| corrupt(sequence, what))?;
        // Equal hashes of other keys are not to be expected, and cost nothing to rule out.
        Ok((stored.key == key).then_some(Accepted {
            sequence,
            subject_version: stored.subject_version,
            fingerprint: stored.fingerprint,
            accepted_at_ms: entry.accepted_at_ms,
            time_ms: None,
        }))
    }

    /// How many events of a subject have been accepted. 0: none.
    pub fn subject_version(&self, subject: &str) -> i64 {
        self.subjects.version(&fold::hash(subject))
    }

    /// The receipts of all events below this sequence can be found.
    pub fn next(&self) -> Sequence {
        self.keys.next()
    }

    /// How many keys have a receipt.
    pub fn keys(&self) -> u64 {
        self.keys.len()
    }

    /// How many of those keys have no time.
    pub fn untimed(&self) -> u64 {
        self.keys.len()
    }

    /// What is known of a key that has no receipt, and that may have been stated
    /// with a first attempt's time.
    pub fn unknown(&self, key: &str, first_attempt_time: Option<Time>) -> Unknown {
        match intent_time_ms(key, first_attempt_time) {
            Some(time_ms) if time_ms < self.key_floor_ms() => Unknown::Expired,
            _ => Unknown::NeverAccepted,
        }
    }

    /// No receipt is held of intents from before this time, milliseconds since the Unix epoch.
    pub fn key_floor_ms(&self) -> i64 {
        0
    }

    /// Takes note of an event that is on stable storage. Called in the order of
    /// the log, for each event once.
    ///
    /// # Panics
    /// Out of order: receipts would be found at wrong places.
    pub fn insert(&mut self, key: &str, subject: &str, accepted: &Accepted) {
        assert_eq!(accepted.sequence, self.keys.next(), "receipts come in the order of the log");
        self.keys.push(fold::hash(key));
        self.subjects.raise(fold::hash(subject), accepted.subject_version);
    }

    /// Saves the receipts of entries that are about to be released. Durable on
    /// return; repeating it is harmless.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn retire(&mut self, range: Range<Sequence>, entries: &[Entry]) -> Result<(), CommitError> {
        let rows: Vec<Row> = (range.start..)
            .zip(entries)
            .map(|(sequence, entry)| row(sequence, entry))
            .collect::<Result<_, _>>()
            .map_err(|error| CommitError::Halted(error.to_string()))?;
        assert_eq!(rows.len() as i64, range.end - range.start, "every entry of the range is there");
        self.retired.add(range.start, rows)?;
        crash::point(crash::PUBLISHER_AFTER_RETIRE);
        Ok(())
    }
}

fn row(sequence: Sequence, entry: &Entry) -> Result<Row, ReadError> {
    let stored = fold::stored(&entry.body).map_err(|what| corrupt(sequence, what))?;
    Ok(Row {
        key: fold::hash(stored.key),
        fingerprint: stored.fingerprint,
        subject: fold::hash(stored.subject),
        subject_version: stored.subject_version,
        accepted_at_ms: entry.accepted_at_ms,
    })
}

fn corrupt(sequence: Sequence, what: &str) -> ReadError {
    ReadError::Corrupt { sequence, what: what.to_owned() }
}

#[cfg(test)]
mod tests;
