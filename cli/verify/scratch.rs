//! The projection made once more, with the receiver's own code, in a file of its own.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use counterfoil::{
    proto::{chain::Cursor, event::Sequence},
    receiver::{
        decide::Step,
        projection::Projection,
        skip::{self, NotLate},
        store::{
            self, Store,
            baseline::Baseline,
            cursor,
            skipped::{self, Aside},
        },
        transaction::{self, Failed, Faulty},
        turns::Turns,
    },
};

use super::{Stop, report::Difference};
use crate::failure::Failure;

/// A temporary directory, gone with this value.
pub struct Directory(PathBuf);

impl Directory {
    /// Within another one, or where the system makes them.
    pub fn within(parent: Option<&Path>) -> Result<Self, Failure> {
        let parent = parent.map_or_else(env::temp_dir, Path::to_owned);
        let path = parent.join(format!("counterfoil-verify-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path)
            .map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))?;
        Ok(Directory(path))
    }

    /// Where the database is made.
    pub fn database(&self) -> PathBuf {
        self.0.join("scratch.db")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What the projection is made again from.
pub enum Base {
    /// It is not.
    None,
    /// Nothing.
    Empty {
        /// Where.
        path: PathBuf,
        /// What.
        projection: Arc<dyn Projection>,
    },
    /// A snapshot.
    Snapshot {
        /// The snapshot itself.
        path: PathBuf,
        /// What.
        projection: Arc<dyn Projection>,
        /// Where it is said to be.
        at: Sequence,
    },
}

/// The database that is made.
pub struct Scratch {
    store: Store,
    /// What makes it.
    pub projection: Arc<dyn Projection>,
    cursor: Option<Cursor>,
    /// What the receiver has not applied in its turn.
    turns: Turns,
}

impl Scratch {
    /// Begins with the base. None: there is none.
    pub fn begin(base: Base, log: &str, start: Cursor, turns: Turns) -> Result<Option<Self>, Stop> {
        let (path, projection, at) = match base {
            Base::None => return Ok(None),
            Base::Empty { path, projection } => (path, projection, -1),
            Base::Snapshot { path, projection, at } => (path, projection, at),
        };
        let failed = |error: &dyn std::fmt::Display| {
            let what = if at < 0 { "the scratch database" } else { "the snapshot" };
            Failure::Runtime(format!("{what} cannot be used: {error}"))
        };
        let store = store::open(&path, log, &*projection).map_err(|error| failed(&error))?;
        // It is thrown away whatever happens.
        store.connection.pragma_update(None, "synchronous", "OFF")?;
        // A snapshot may have been made in an ancestor of the log.
        let rename = "UPDATE counterfoil_cursor SET log_id = ?1";
        store.connection.execute(rename, [start.log_id.to_string()])?;
        let cursor = cursor::read(&store.connection, log)?;
        let mut scratch = Scratch { store, projection, cursor, turns };
        if scratch.last() != at {
            let expected = format!("a database at sequence {at}, as it was offered");
            let found = format!("one at {}", scratch.last());
            return Err(Difference::new("the publisher's snapshot", expected, found).into());
        }
        scratch.apply_late()?;
        Ok(Some(scratch))
    }

    /// What is applied; -1: nothing.
    pub fn last(&self) -> Sequence {
        self.cursor.map_or(-1, |cursor| cursor.sequence)
    }

    /// Holds its chain against the log's where both are at the same sequence.
    pub fn agrees(&self, log: &Cursor) -> Result<(), Difference> {
        match self.cursor {
            Some(ours) if ours.sequence == log.sequence && ours.chain != log.chain => {
                let place = format!("the publisher's snapshot at sequence {}", log.sequence);
                Err(Difference::new(place, "the chain of the publisher's log", "another one"))
            }
            _ => Ok(()),
        }
    }

    /// Applies events that follow, each with the cursor after it, but for what the receiver
    /// has set aside; and that where it has applied it later.
    pub fn apply(&mut self, steps: &[Step]) -> Result<(), Stop> {
        let mut rest = steps;
        while let [first, others @ ..] = rest {
            if let Some((_, aside)) = self.turns.aside(first.event().sequence) {
                let aside = aside.clone();
                self.skip(first, &aside)?;
                rest = others;
            } else {
                let sequences = rest.iter().map(|step| step.event().sequence);
                let (now, later) = rest.split_at(self.turns.run_of(sequences));
                self.commit(now)?;
                rest = later;
            }
            self.apply_late()?;
            self.store.after_commit()?;
        }
        Ok(())
    }

    fn commit(&mut self, steps: &[Step]) -> Result<(), Stop> {
        let cursor = self.cursor.as_ref();
        match transaction::commit(&self.store, &*self.projection, cursor, steps) {
            Ok(committed) => self.cursor = committed.cursor.or(self.cursor),
            // Which of them it is shows when each is applied alone.
            Err(Failed::Event(_)) if steps.len() > 1 => {
                return steps.chunks(1).try_for_each(|step| self.commit(step));
            }
            Err(failed) => return Err(cannot_be_applied(steps[0].event().sequence, failed)),
        }
        Ok(())
    }

    fn skip(&mut self, step: &Step, aside: &Aside) -> Result<(), Stop> {
        let Step::Next { event, after, .. } = step else { return Ok(()) };
        let cursor = self.cursor.as_ref();
        let done = skip::set_aside(&self.store, &*self.projection, cursor, event, *after, aside)
            .map_err(|failed| cannot_be_applied(event.sequence, failed))?;
        self.cursor = done.cursor.or(self.cursor);
        Ok(())
    }

    /// What was set aside and has been applied at this place.
    fn apply_late(&mut self) -> Result<(), Stop> {
        let last = self.last();
        for &sequence in self.turns.after(last) {
            let done = skipped::find(&self.store.connection, sequence)?
                .is_some_and(|kept| kept.applied_after.is_some());
            if done {
                continue; // in the snapshot already
            }
            skip::apply_late(&self.store, &*self.projection, sequence, last).map_err(|not| {
                match not {
                    NotLate::Failed(failed) => cannot_be_applied(sequence, failed),
                    not => {
                        let place = format!("event {sequence}, which was set aside");
                        let found = format!("{not:?}");
                        Difference::new(place, "that it can be applied later", found).into()
                    }
                }
            })?;
        }
        Ok(())
    }

    /// Its tables.
    pub fn tables(&self) -> &rusqlite::Connection {
        &self.store.connection
    }

    /// Where its ledger begins.
    pub fn baseline(&self) -> Result<Baseline, Stop> {
        Ok(Baseline::read(&self.store.connection)?)
    }
}

fn cannot_be_applied(sequence: Sequence, failed: Failed) -> Stop {
    match failed {
        Failed::Event(Faulty { why, .. }) => {
            let place = format!("the projection, event {sequence}");
            let found = format!("that it cannot be: {}", why.said());
            Difference::new(place, "that it can be applied", found).into()
        }
        failed => {
            let why = format!("the scratch database cannot be written: {failed:?}");
            Failure::Runtime(why).into()
        }
    }
}
