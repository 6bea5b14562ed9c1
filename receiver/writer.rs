//! The database as the apply thread writes to it: one attempt at a time, on a
//! connection that is replaced when it is not to be trusted any more. Decides
//! nothing about trying again.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, Transaction, TransactionBehavior, ffi};

use super::{
    current::{Current, Serving},
    decide::Step,
    projection::Projection,
    skip::{self, Late, NotLate},
    store::{
        self, OpenError, Store,
        baseline::{self, Baseline},
        contents, cursor,
        gate::Gate,
        ledger::{self, Entry},
        lock, outbox,
        prune::{self, Bound},
        replace,
        skipped::{self, Aside},
        staged,
        trouble::{self, Trouble},
    },
    transaction::{self, Committed, EventFault, Faulty},
};
use crate::proto::{
    chain::Cursor,
    crash,
    event::{Event, Sequence},
    refusal::Refusal,
};

/// The store, what fills it, and how far.
pub struct Writer {
    /// None between a failed COMMIT, or a panic, and the next open.
    store: Option<Store>,
    current: Current,
    /// What takes over if a commit of unknown outcome has come through.
    successor: Option<Serving>,
    db: PathBuf,
    log: String,
    committed: Option<Cursor>,
    /// What a COMMIT of unknown outcome has brought, if it has.
    unsure: Option<Committed>,
    /// Where an installation or an adoption of unknown outcome has left the cursor, if it
    /// came through.
    perhaps: Option<Option<Cursor>>,
    /// For those who read beside it, whatever store is open.
    gate: Gate,
}

/// How the store is opened: with its barrier or without.
type Open = fn(&Path, &str, &dyn Projection) -> Result<Store, OpenError>;

/// Why an attempt failed. Nothing of it is committed, as far as can be known.
#[derive(Debug)]
pub enum Failed {
    /// One event could not be applied.
    Event(Faulty),
    /// The store could not take it.
    Store(rusqlite::Error),
    /// A file operation beside SQLite failed.
    Disk(std::io::Error),
    /// The database is not what it was. One sentence.
    Changed(String),
}

impl Writer {
    /// Takes over an opened store that has committed up to `committed`.
    pub fn new(store: Store, committed: Option<Cursor>, projection: Arc<dyn Projection>) -> Self {
        let (db, log) = (store.db().to_owned(), store.log.clone());
        let current = Current::new(projection, store.kind.clone());
        let gate = store.gate().clone();
        Writer {
            store: Some(store),
            current,
            successor: None,
            db,
            log,
            committed,
            unsure: None,
            perhaps: None,
            gate,
        }
    }

    /// What fills the database, also once that has changed.
    pub fn current(&self) -> &Current {
        &self.current
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
        self.commit(|store, projection, from| transaction::commit(store, projection, from, steps))
    }

    /// Sets aside the event that comes next, whose cursor is `after`. On return that is on
    /// stable storage.
    ///
    /// # Errors
    /// As [`Writer::attempt`].
    pub fn set_aside(
        &mut self,
        event: &Event,
        after: Cursor,
        aside: &Aside,
    ) -> Result<Committed, Failed> {
        self.commit(|store, projection, from| {
            skip::set_aside(store, projection, from, event, after, aside)
        })
    }

    /// Makes the effect of an event that was set aside. None: none was at that sequence.
    ///
    /// # Errors
    /// As [`Writer::attempt`]; a refusal where what is kept of it is damaged.
    pub fn apply_late(
        &mut self,
        sequence: Sequence,
    ) -> Result<Result<Option<Late>, Refusal>, Failed> {
        self.ready()?;
        let Some(store) = self.store.as_mut() else { return Err(Failed::Store(busy())) };
        let last = self.committed.map_or(-1, |cursor| cursor.sequence);
        match skip::apply_late(store, &*self.current.projection(), sequence, last) {
            Ok(late) => Ok(Ok(Some(late))),
            Err(NotLate::Unknown) => Ok(Ok(None)),
            Err(NotLate::Damaged(refusal)) => Ok(Err(refusal)),
            // Whether it has come through, the next attempt reads in its row.
            Err(NotLate::Failed(failed)) => Err(self.after_failure(failed)),
        }
    }

    /// One transaction that moves the cursor, or nothing.
    fn commit(
        &mut self,
        run: impl FnOnce(
            &Store,
            &dyn Projection,
            Option<&Cursor>,
        ) -> Result<Committed, transaction::Failed>,
    ) -> Result<Committed, Failed> {
        self.ready()?;
        let Some(store) = self.store.as_mut() else { return Err(Failed::Store(busy())) };
        if let Some(came_through) = self.unsure.take_if(|group| group.cursor == self.committed) {
            return Ok(came_through);
        }
        self.unsure = None;
        let projection = self.current.projection();
        match run(store, &*projection, self.committed.as_ref()) {
            Ok(group) => {
                self.committed = group.cursor.or(self.committed);
                Ok(group)
            }
            Err(failed) => Err(self.after_failure(failed)),
        }
    }

    /// What a transaction that failed leaves behind.
    fn after_failure(&mut self, failed: transaction::Failed) -> Failed {
        match failed {
            transaction::Failed::Event(faulty) => {
                if matches!(faulty.why, EventFault::Panicked) {
                    self.store = None;
                }
                Failed::Event(faulty)
            }
            transaction::Failed::Store(error) => Failed::Store(error),
            transaction::Failed::Unknown(error, group) => {
                // When the disk failed the connection stays: another one would
                // read back what may not be on the disk.
                if trouble::judge(&error) != Trouble::Broken {
                    self.store = None;
                    self.unsure = group.cursor.is_some().then_some(group);
                }
                Failed::Store(error)
            }
            transaction::Failed::CursorMoved => cursor_moved(),
        }
    }

    /// The store itself, open.
    ///
    /// # Errors
    /// [`Failed`].
    pub(super) fn store(&mut self) -> Result<&Store, Failed> {
        self.ready()?;
        self.store.as_ref().ok_or_else(|| Failed::Store(busy()))
    }

    /// Sees to it that the store is open, and that it is known what is committed.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn ready(&mut self) -> Result<(), Failed> {
        // Where a rollback failed, the connection is not to be trusted.
        self.store.take_if(|store| !store.connection.is_autocommit());
        if self.store.is_none() {
            self.store = Some(self.open(store::open)?);
        }
        Ok(())
    }

    /// Puts a checked file, or without one an empty database, in the place of all that the
    /// database holds, in one transaction. `brings`: the cursor in it. On return it is on
    /// stable storage, and the store is open again unless something that will pass is in
    /// the way. `false`: `go_on` has said no, and nothing has changed.
    ///
    /// # Errors
    /// [`Failed`]. Then [`Writer::ready`] tells whether it came through.
    pub fn install(
        &mut self,
        staged: Option<&Path>,
        brings: Option<Cursor>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, Failed> {
        self.ready()?;
        let empty = lock::beside(&self.db, ".resync-empty");
        let staged = match staged {
            Some(staged) => staged,
            None => {
                let _ = std::fs::remove_file(&empty); // an earlier attempt's
                let projection = self.current.projection();
                store::make_empty(&empty, &self.log, &*projection).map_err(failed)?;
                empty.as_path()
            }
        };
        if !self.replace(staged, brings, go_on)? {
            return Ok(false);
        }
        let _ = std::fs::remove_file(&empty);
        crash::point(crash::RECEIVER_RESYNC_REOPENED);
        Ok(true)
    }

    /// Whether a file that has been checked is of the version that fills the database now.
    ///
    /// # Errors
    /// [`Failed`].
    pub fn is_of_ours(&self, staged: &Path) -> Result<bool, Failed> {
        let found = staged::open_staged(staged).and_then(|file| contents::version(&file));
        let ours = self.current.projection().version().to_string();
        found.map(|found| found == ours).map_err(Failed::Store)
    }

    /// Puts a file that a later version of the projection has filled in the place of all
    /// that the database holds, as [`Writer::install`] does; from then on it is that version
    /// that goes on.
    ///
    /// # Errors
    /// [`Failed`]. Then [`Writer::ready`] tells whether it came through.
    pub fn take_over(
        &mut self,
        staged: &Path,
        brings: Option<Cursor>,
        successor: Serving,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, Failed> {
        self.ready()?;
        self.successor = Some(successor);
        self.replace(staged, brings, go_on)
    }

    /// The pages of a file in the place of the database's. On return the store is open
    /// again, unless something that will pass is in the way.
    fn replace(
        &mut self,
        staged: &Path,
        brings: Option<Cursor>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, Failed> {
        let Some(mut store) = self.store.take() else { return Err(Failed::Store(busy())) };
        match replace::replace(&mut store, staged, go_on) {
            Ok(true) => {}
            Ok(false) => {
                self.store = Some(store);
                self.successor = None;
                return Ok(false);
            }
            Err(error) => {
                self.after_unknown(store, &error, brings);
                return Err(Failed::Store(error));
            }
        }
        (self.committed, self.unsure) = (brings, None);
        if let Some(successor) = self.successor.take() {
            self.current.replace(successor);
        }
        drop(store);
        // The commit was synced: an older reader need not be waited for.
        match self.open(store::reopen) {
            Ok(store) => self.store = Some(store),
            // The next one who needs it opens it.
            Err(Failed::Store(error))
                if matches!(trouble::judge(&error), Trouble::Busy | Trouble::Full) => {}
            Err(failed) => return Err(failed),
        }
        Ok(true)
    }

    /// Takes over the incarnation of `to`, whose sequence and chain are those committed, in
    /// one transaction.
    ///
    /// # Errors
    /// [`Failed`]. Then [`Writer::ready`] tells whether it came through.
    pub fn adopt(&mut self, to: Cursor) -> Result<(), Failed> {
        self.ready()?;
        let from = match self.committed {
            Some(from) if from == to => return Ok(()),
            Some(from) if Cursor { log_id: to.log_id, ..from } == to => from,
            _ => return Err(Failed::Changed("another history was to be adopted".to_owned())),
        };
        let Some(store) = self.store.take() else { return Err(Failed::Store(busy())) };
        let adopted = adopt(&store, &from, &to);
        match adopted {
            Ok(true) => {
                self.committed = Some(to);
                self.store = Some(store);
                Ok(())
            }
            Ok(false) => {
                self.store = Some(store);
                Err(cursor_moved())
            }
            Err(error) => {
                self.after_unknown(store, &error, Some(to));
                Err(Failed::Store(error))
            }
        }
    }

    /// Changes the receiver's own rows of a database that is nobody's, after which the cursor
    /// is at `to`.
    ///
    /// # Errors
    /// [`Failed`].
    pub(super) fn amend(
        &mut self,
        to: Option<Cursor>,
        change: impl FnOnce(&Connection) -> rusqlite::Result<()>,
    ) -> Result<(), Failed> {
        let transaction =
            self.store()?.connection.unchecked_transaction().map_err(Failed::Store)?;
        change(&transaction).and_then(|()| transaction.commit()).map_err(Failed::Store)?;
        self.committed = to;
        Ok(())
    }

    /// After a commit that may have come through: the store is opened anew and will tell.
    /// When the disk failed it stays: another connection would read back what may not be on
    /// the disk.
    fn after_unknown(&mut self, store: Store, error: &rusqlite::Error, to: Option<Cursor>) {
        if trouble::judge(error) == Trouble::Broken {
            self.store = Some(store);
        } else {
            self.perhaps = Some(to);
        }
    }

    /// Opens the store again, with its barrier, and looks where the cursor is:
    /// after a COMMIT of unknown outcome, that is the answer.
    fn open(&mut self, open: Open) -> Result<Store, Failed> {
        let mut store = self.open_by_whoever(open).map_err(failed)?;
        store.take_over(self.gate.clone());
        let found = cursor::read(&store.connection, &self.log).map_err(Failed::Store)?;
        if found != self.committed {
            match &self.unsure {
                Some(group) if group.cursor == found => self.committed = found,
                _ if self.perhaps == Some(found) => self.committed = found,
                _ => return Err(cursor_moved()),
            }
        }
        self.perhaps = None;
        Ok(store)
    }

    /// By the projection that fills the database; or by its successor, if that has taken over
    /// in a commit of unknown outcome.
    fn open_by_whoever(&mut self, open: Open) -> Result<Store, OpenError> {
        let ours = self.current.projection();
        let store = match (open(&self.db, &self.log, &*ours), &self.successor) {
            (Err(OpenError::Refused(_)), Some(successor)) => {
                let store = open(&self.db, &self.log, &*successor.projection)?;
                self.current.replace(successor.clone());
                store
            }
            (opened, _) => opened?,
        };
        self.successor = None;
        Ok(store)
    }

    /// What the ledger says of a sequence; none: nothing, or that is not known now.
    pub fn entry(&self, sequence: Sequence) -> Option<Entry> {
        let store = self.store.as_ref()?;
        ledger::by_sequence(&store.connection, &store.log, sequence).ok().flatten()
    }

    /// How many events are set aside and wait for their effect; none: that is not known now.
    pub fn waiting(&self) -> Option<i64> {
        self.store.as_ref().and_then(|store| skipped::waiting(&store.connection).ok())
    }

    /// The gate that readers of this database come through.
    pub fn gate(&self) -> &Gate {
        &self.gate
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

    /// How many follow-up events wait to be forwarded; none: that is not known now.
    pub fn outbox_pending(&self) -> Option<i64> {
        self.store.as_ref().and_then(|store| outbox::count_pending(&store.connection).ok())
    }

    /// Changes something of the receiver's own that has nothing to do with the cursor, and
    /// commits that.
    ///
    /// # Errors
    /// [`Failed`], but for an event's. Another attempt finds out what has come about.
    pub fn change<T>(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, Failed> {
        self.ready()?;
        let Some(store) = &self.store else { return Err(Failed::Store(busy())) };
        let begin =
            || Transaction::new_unchecked(&store.connection, TransactionBehavior::Immediate);
        let transaction = begin().map_err(Failed::Store)?;
        let changed = change(&transaction).map_err(Failed::Store)?;
        if let Err(error) = transaction.commit() {
            // As after any COMMIT that failed.
            if trouble::judge(&error) != Trouble::Broken {
                self.store = None;
            }
            return Err(Failed::Store(error));
        }
        Ok(changed)
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
        // Without a store there is one to open first, and then to look after.
        self.store.as_mut().map_or(Ok(false), Store::when_idle)
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

fn adopt(store: &Store, from: &Cursor, to: &Cursor) -> rusqlite::Result<bool> {
    let transaction =
        Transaction::new_unchecked(&store.connection, TransactionBehavior::Immediate)?;
    let adopted = cursor::adopt(&transaction, &store.log, from, to.log_id)?;
    transaction.commit()?;
    Ok(adopted)
}

fn failed(error: OpenError) -> Failed {
    match error {
        OpenError::Sql(error) => Failed::Store(error),
        OpenError::Held => Failed::Store(busy()),
        OpenError::Io(error) => Failed::Disk(error),
        error @ (OpenError::Refused(_) | OpenError::Step { .. } | OpenError::Earlier(_)) => {
            Failed::Changed(error.to_string())
        }
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
