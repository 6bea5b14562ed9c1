//! The database as the apply thread writes to it: one attempt at a time, on a
//! connection that is replaced when it is not to be trusted any more. Decides
//! nothing about trying again.

use std::path::PathBuf;

use rusqlite::ffi;

use super::{
    decide::Step,
    projection::Projection,
    store::{
        self, OpenError, Store,
        baseline::{self, Baseline},
        cursor, lock,
        prune::{self, Bound},
        trouble::{self, Trouble},
    },
    transaction::{self, Committed, EventFault},
};
use crate::proto::{chain::Cursor, event::Sequence};

/// The store, what fills it, and how far.
pub struct Writer {
    /// None between a failed COMMIT, or a panic, and the next open.
    store: Option<Store>,
    projection: Box<dyn Projection>,
    db: PathBuf,
    log: String,
    committed: Option<Cursor>,
    /// What a COMMIT of unknown outcome has brought, if it has.
    unsure: Option<Committed>,
}

/// Why an attempt failed. Nothing of it is committed, as far as can be known.
#[derive(Debug)]
pub enum Failed {
    /// One event could not be applied.
    Event(EventFault),
    /// The store could not take it.
    Store(rusqlite::Error),
    /// A file operation beside SQLite failed.
    Disk(std::io::Error),
    /// The database is not what it was. One sentence.
    Changed(String),
}

impl Writer {
    /// Takes over an opened store that has committed up to `committed`.
    pub fn new(store: Store, committed: Option<Cursor>, projection: Box<dyn Projection>) -> Self {
        let (db, log) = (store.db().to_owned(), store.log.clone());
        Writer { store: Some(store), projection, db, log, committed, unsure: None }
    }

    /// What is committed.
    pub fn committed(&self) -> Option<Cursor> {
        self.committed
    }

    /// Applies and commits a group, or nothing. On return it is on stable storage.
    ///
    /// # Errors
    /// [`Failed`]. After an error of the store the same group has to be
    /// attempted again: it may turn out to be committed.
    pub fn attempt(&mut self, steps: &[Step]) -> Result<Committed, Failed> {
        // Where a rollback failed, the connection is not to be trusted.
        self.store.take_if(|store| !store.connection.is_autocommit());
        let store = match self.store.take() {
            Some(store) => store,
            None => self.open()?,
        };
        let store = self.store.insert(store);
        if let Some(came_through) = self.unsure.take_if(|group| group.cursor == self.committed) {
            return Ok(came_through);
        }
        self.unsure = None;
        let from = self.committed.as_ref();
        match transaction::commit(store, self.projection.as_ref(), from, steps) {
            Ok(group) => {
                self.committed = group.cursor.or(self.committed);
                Ok(group)
            }
            Err(transaction::Failed::Event(why)) => {
                if matches!(why, EventFault::Panicked) {
                    self.store = None;
                }
                Err(Failed::Event(why))
            }
            Err(transaction::Failed::Store(error)) => Err(Failed::Store(error)),
            Err(transaction::Failed::Unknown(error, group)) => {
                // When the disk failed the connection stays: another one would
                // read back what may not be on the disk.
                if trouble::judge(&error) != Trouble::Broken {
                    self.store = None;
                    self.unsure = Some(group);
                }
                Err(Failed::Store(error))
            }
            Err(transaction::Failed::CursorMoved) => Err(cursor_moved()),
        }
    }

    /// Opens the store again, with its barrier, and looks where the cursor is:
    /// after a COMMIT of unknown outcome, that is the answer.
    fn open(&mut self) -> Result<Store, Failed> {
        let store = match store::open(&self.db, &self.log, self.projection.as_ref()) {
            Ok(store) => store,
            Err(OpenError::Sql(error)) => return Err(Failed::Store(error)),
            Err(OpenError::Held) => return Err(Failed::Store(busy())),
            Err(OpenError::Io(error)) => return Err(Failed::Disk(error)),
            Err(OpenError::Refused(why)) => return Err(Failed::Changed(why)),
        };
        let found = cursor::read(&store.connection, &self.log).map_err(Failed::Store)?;
        if found != self.committed {
            match &self.unsure {
                Some(group) if group.cursor == found => self.committed = found,
                _ => return Err(cursor_moved()),
            }
        }
        Ok(store)
    }

    /// The first sequence that the ledger has a row of; none: that is not known now.
    pub fn ledger_from(&self) -> Option<Sequence> {
        self.store.as_ref().and_then(|store| baseline::from(&store.connection).ok())
    }

    /// Takes ledger rows away that may go, and commits that. None: there were none.
    ///
    /// # Errors
    /// [`Failed`], but for an event's. Another attempt finds out what has come about.
    pub fn prune(&mut self, bound: Bound) -> Result<Option<Baseline>, Failed> {
        self.store.take_if(|store| !store.connection.is_autocommit());
        let Some(store) = &self.store else { return Ok(None) };
        prune::prune(store, bound).map_err(|failed| match failed {
            prune::Failed::Store(error) => Failed::Store(error),
            prune::Failed::Unknown(error) => {
                // As after any COMMIT that failed.
                if trouble::judge(&error) != Trouble::Broken {
                    self.store = None;
                }
                Failed::Store(error)
            }
            prune::Failed::Hole(sequence) => Failed::Changed(format!(
                "the ledger has lost the row of sequence {sequence}: something else writes to the \
                 database"
            )),
        })
    }

    /// Keeps the write-ahead log small; to be called after each commit.
    ///
    /// # Errors
    /// Whatever SQLite says: but for a full disk, the store is broken.
    pub fn after_commit(&mut self) -> rusqlite::Result<()> {
        self.store.as_mut().map_or(Ok(()), Store::after_commit)
    }

    /// Empties the write-ahead log; to be called in quiet times, and when the
    /// disk is full. `true`: nothing is left to do.
    ///
    /// # Errors
    /// As [`Writer::after_commit`].
    pub fn when_idle(&mut self) -> rusqlite::Result<bool> {
        self.store.as_mut().map_or(Ok(true), Store::when_idle)
    }

    /// The disk failed: leaves the marker that keeps the database out of service.
    pub fn mark_halted(&self, why: &str) {
        lock::mark_halted(&self.db, why);
    }

    /// Copies what is left into the database and closes it.
    ///
    /// # Errors
    /// As [`Writer::after_commit`].
    pub fn close(&mut self) -> rusqlite::Result<()> {
        self.store.take().map_or(Ok(()), Store::close)
    }
}

fn cursor_moved() -> Failed {
    Failed::Changed(
        "the cursor is not where this receiver left it: something else writes to the database"
            .to_owned(),
    )
}

fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
}
