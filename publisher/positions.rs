//! How far each receiver has come, durably: a journal of what changed, rewritten
//! when most of it is out of date. Knows nothing of events; whether a position
//! may move is decided elsewhere.
//!
//! One call of [`Positions::record`] is one frame of a [`journal`](super::journal), whole or
//! absent; [`table`] draws what is in it.

mod table;

use std::{fs, path::Path};

use self::table::{FORMAT, Table, frame, put_removal, put_start};
use super::{
    durable::{self, Latch},
    journal::Journal,
    log::{CommitError, OpenError},
};
use crate::proto::{chain::Cursor, crash, event::Sequence};

const FILE: &str = "positions";
/// Starts that follow each other within this part of a lease are told as one.
const STARTS_IN_A_LEASE: i64 = 64;
/// A journal below this size is not worth rewriting.
const COMPACT_BYTES: u64 = 256 * 1024;

/// How far one receiver has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The receiver.
    pub name: String,
    /// Its newest session.
    pub session: i64,
    /// Everything it has applied.
    pub acked: Cursor,
    /// Up to here it has reported what it did; -1: nothing. At most `acked.sequence`.
    pub reported: Sequence,
    /// When this was recorded, by the publisher's clock, milliseconds since the Unix
    /// epoch; 0: not known.
    pub seen_ms: i64,
}

impl Position {
    /// The same, with nothing reported from `lost_from` on.
    pub fn reported_below(self, lost_from: Option<Sequence>) -> Self {
        let reported =
            lost_from.map_or(self.reported, |lost_from| self.reported.min(lost_from - 1));
        Position { reported, ..self }
    }
}

/// All receivers' positions. One owner; blocking.
#[derive(Debug)]
pub struct Positions {
    table: Table,
    /// None: in memory only.
    journal: Option<(Journal, Latch)>,
}

impl Positions {
    /// Opens the positions kept in a directory; there are none at first. What it
    /// answers from is on stable storage.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, mut latch: Latch) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        let mut table = Table::default();
        if !fs::exists(&path).map_err(|error| OpenError::io("find", &path, error))? {
            let journal = Journal::create(&path, &FORMAT)
                .map_err(|error| OpenError::io("create", &path, error))?;
            return Ok(Positions { table, journal: Some((journal, latch)) });
        }
        let (mut journal, version) =
            Journal::open(&path, &FORMAT, &mut latch, |version, body| table.note(version, body))?;
        if version < FORMAT.version {
            // It takes no frames of this version.
            journal
                .rewrite(&table.frame())
                .map_err(|error| OpenError::io("rewrite", &path, error))?;
        }
        Ok(Positions { table, journal: Some((journal, latch)) })
    }

    /// Positions that end with the process.
    pub fn in_memory() -> Self {
        Positions { table: Table::default(), journal: None }
    }

    /// One receiver's position.
    pub fn get(&self, name: &str) -> Option<&Position> {
        self.table.positions.get(name)
    }

    /// All positions, by name.
    pub fn all(&self) -> impl Iterator<Item = &Position> {
        self.table.positions.values()
    }

    /// The last session of receivers that are not known any more: those of a new one
    /// start above it.
    pub fn removed(&self) -> i64 {
        self.table.removed
    }

    /// Records positions, the last of a name counting. On return all are on
    /// stable storage: one write, one sync.
    ///
    /// # Errors
    /// [`CommitError`]; then none of them is recorded.
    pub fn record(&mut self, changed: &[Position]) -> Result<(), CommitError> {
        if changed.is_empty() {
            return Ok(());
        }
        self.append(&frame(|out| changed.iter().for_each(|position| position.put(out))))?;
        for position in changed {
            self.table.positions.insert(position.name.clone(), position.clone());
        }
        Ok(())
    }

    /// Takes note that the publisher has started, by its clock, where that may decide when a
    /// lease ends. On return it is on stable storage.
    ///
    /// # Errors
    /// [`CommitError`]; then it is not noted.
    pub fn start(&mut self, now_ms: i64, lease_ms: i64) -> Result<(), CommitError> {
        let starts = &mut self.table.starts;
        // Of those a lease ago and longer the last tells as much as all.
        let old = starts.partition_point(|&at_ms| at_ms < now_ms.saturating_sub(lease_ms));
        starts.drain(..old.saturating_sub(1));
        let step_ms = lease_ms / STARTS_IN_A_LEASE;
        if starts.last().is_some_and(|&last| now_ms.saturating_sub(last) < step_ms) {
            return Ok(());
        }
        self.append(&frame(|out| put_start(now_ms, out)))?;
        self.table.starts.push(now_ms);
        Ok(())
    }

    /// When the publisher was started, rising, milliseconds since the Unix epoch: as far back
    /// as a lease, and the last one before.
    pub fn starts(&self) -> &[i64] {
        &self.table.starts
    }

    /// Forgets a receiver. On return that is on stable storage.
    ///
    /// # Errors
    /// [`CommitError`]; then it is known as before.
    pub fn remove(&mut self, name: &str) -> Result<(), CommitError> {
        let Some(session) = self.get(name).map(|position| position.session) else {
            return Ok(());
        };
        self.append(&frame(|out| put_removal(name, session, out)))?;
        self.table.remove(name, session);
        Ok(())
    }

    fn append(&mut self, frame: &[u8]) -> Result<(), CommitError> {
        if let Some((journal, latch)) = &mut self.journal {
            compact(journal, latch, &self.table)?;
            journal.append(frame, latch)?;
            crash::point(crash::PUBLISHER_AFTER_ACK_SYNC);
        }
        Ok(())
    }
}

/// The positions kept in a directory, read and nothing else.
///
/// # Errors
/// [`OpenError`].
pub fn read(dir: &Path) -> Result<Vec<Position>, OpenError> {
    let table = Table::read(dir)?;
    Ok(table.unwrap_or_default().positions.into_values().collect())
}

/// Copies the positions of one directory into a new file in another, durably,
/// and says how many there are. From `lost_from` on outcomes are to be reported
/// again.
///
/// # Errors
/// [`OpenError`], as for opening them.
pub fn copy(from: &Path, to: &Path, lost_from: Option<Sequence>) -> Result<usize, OpenError> {
    let Some(mut table) = Table::read(from)? else { return Ok(0) };
    for position in table.positions.values_mut() {
        *position = position.clone().reported_below(lost_from);
    }
    let target = to.join(FILE);
    let content = [FORMAT.header(), table.frame()].concat();
    durable::replace(&target, &content).map_err(|error| OpenError::io("write", &target, error))?;
    Ok(table.positions.len())
}

/// Rewrites the journal where less than a quarter of it still counts.
fn compact(journal: &mut Journal, latch: &mut Latch, table: &Table) -> Result<(), CommitError> {
    latch.check()?;
    if journal.length() < COMPACT_BYTES {
        return Ok(());
    }
    let whole = table.frame();
    if journal.length() < 4 * whole.len() as u64 {
        return Ok(());
    }
    match journal.rewrite(&whole) {
        Ok(()) => Ok(()),
        // The long journal still serves.
        Err(error) if durable::has_run_out(&error) => Ok(()),
        Err(error) => Err(latch.close("rewriting the positions", &error)),
    }
}

#[cfg(test)]
mod tests;
