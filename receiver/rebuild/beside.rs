//! The database beside the live one, filled by the new version of the projection. Runs on
//! threads that may block; knows nothing of the network.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{Stuck, aside::SetAside, carry};
use crate::{
    proto::chain::Cursor,
    receiver::{
        config::OnError,
        decide::Step,
        download,
        feed::{self, Fed},
        isolate,
        projection::Projection,
        store::{
            self, OpenError, cursor,
            descent::{self, Descent},
            lock,
            trouble::{self, Trouble},
        },
        writer::{Failed, Writer},
    },
};

/// What it has behind the live one's name.
const ENDING: &str = ".rebuild";

/// Where it stands.
pub fn path(db: &Path) -> PathBuf {
    lock::beside(db, ENDING)
}

/// Takes it away, with all that lies beside it.
pub fn sweep(db: &Path) {
    if let Err(error) = make_way(db) {
        tracing::warn!(%error, "a rebuilt database cannot be removed");
    }
    download::sweep(&path(db), None);
}

/// Takes the database itself away, and its write-ahead log.
///
/// # Errors
/// What the file system says.
pub fn make_way(db: &Path) -> io::Result<()> {
    for ending in ["", "-wal", "-shm"] {
        match fs::remove_file(lock::beside(&path(db), ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Opened, and how far it is.
pub struct Beside {
    writer: Writer,
    live: PathBuf,
    log: String,
    on_error: OnError,
}

impl Beside {
    /// Opens it, and goes on with what there is, if that is of the same content; otherwise it
    /// is begun anew.
    pub fn open(
        db: &Path,
        log: &str,
        projection: &Arc<dyn Projection>,
        on_error: OnError,
    ) -> Result<Self, Stuck> {
        let opened = match store::open(&path(db), log, &**projection) {
            Err(
                error @ (OpenError::Refused(_) | OpenError::Step { .. } | OpenError::Earlier(_)),
            ) => {
                tracing::info!("what there is of the rebuilt database is of no use: {error}");
                sweep(db);
                store::open(&path(db), log, &**projection)
            }
            opened => opened,
        };
        let store = opened.map_err(Stuck::from)?;
        // Not acknowledged to anybody: after a power cut it goes on from what is left.
        store.connection.pragma_update(None, "synchronous", "NORMAL").map_err(Stuck::from)?;
        let committed = cursor::read(&store.connection, log).map_err(Stuck::from)?;
        let writer = Writer::new(store, committed, projection.clone());
        Ok(Beside { writer, live: db.to_owned(), log: log.to_owned(), on_error })
    }

    /// What is committed in it.
    pub fn committed(&self) -> Option<Cursor> {
        self.writer.committed()
    }

    /// Applies what is fed, in groups, until there is no more of it. `told` hears of each
    /// commit.
    pub fn fill(
        &mut self,
        mut fed: mpsc::Receiver<Fed>,
        told: &dyn Fn(Cursor),
    ) -> Result<(), Stuck> {
        let mut aside = SetAside::of(&self.live, self.on_error)?;
        let mut pending = Vec::new();
        while let Some(next) = fed.blocking_recv() {
            let mut next = Some(next);
            while let Some(fed_now) = next.take() {
                match fed_now {
                    Fed::Events(steps) => pending.extend(steps),
                    Fed::Begins(_) => {}
                    Fed::Adopt(to) => {
                        self.apply(&std::mem::take(&mut pending), &mut aside)?;
                        self.writer.adopt(to).map_err(Stuck::from)?;
                    }
                }
                if !feed::is_full(&pending) {
                    next = fed.try_recv().ok();
                }
            }
            self.apply(&std::mem::take(&mut pending), &mut aside)?;
            if let Some(committed) = self.committed() {
                told(committed);
            }
        }
        Ok(())
    }

    fn apply(&mut self, steps: &[Step], aside: &mut SetAside) -> Result<(), Stuck> {
        let mut rest = steps;
        // What was set aside in the live one is so here too.
        while let Some(at) = rest.iter().position(|step| aside.holds(step)) {
            isolate::apply(&mut self.writer, &rest[..at], aside)?;
            aside.again(&mut self.writer, &rest[at])?;
            rest = &rest[at + 1..];
        }
        isolate::apply(&mut self.writer, rest, aside)
    }

    /// Whether it goes on from the live one's cursor: at the same place, or further on with
    /// a ledger that shows the same history.
    pub fn reaches(&mut self, live: Option<&Cursor>) -> Result<bool, Stuck> {
        let ours = self.committed();
        let Some(live) = live else { return Ok(true) };
        match ours {
            Some(ours) if (ours.sequence, ours.chain) == (live.sequence, live.chain) => {
                // The log may have been forked since: then it has another name by now.
                self.writer.adopt(*live).map_err(Stuck::from)?;
                Ok(true)
            }
            Some(ours) if ours.sequence > live.sequence => {
                let store = self.writer.store().map_err(Stuck::from)?;
                let found = descent::of(&store.connection, &self.log, live)?;
                Ok(matches!(found, Descent::Same))
            }
            Some(ours) if ours.sequence == live.sequence => Err(Stuck::History(format!(
                "what was rebuilt is of another history at sequence {}",
                live.sequence
            ))),
            _ => Ok(false),
        }
    }

    /// Takes over what people and the other publisher have made of the live one's events, up
    /// to where that is, and leaves everything in one file on stable storage. Nobody writes to the live one
    /// meanwhile.
    pub fn finish(mut self, at: Option<Cursor>) -> Result<(PathBuf, Option<Cursor>), Stuck> {
        let store = self.writer.store().map_err(Stuck::from)?;
        carry::outbox(&self.live, &store.connection, at.map_or(-1, |at| at.sequence))?;
        let committed = self.committed();
        self.writer.close()?;
        let file = path(&self.live);
        fs::File::open(&file)?.sync_all()?;
        lock::sync_directory(&file)?;
        Ok((file, committed))
    }
}

impl From<OpenError> for Stuck {
    fn from(error: OpenError) -> Self {
        match error.trouble() {
            Some(Trouble::Full) => Stuck::Full,
            Some(Trouble::Broken) => Stuck::Broken(error.to_string()),
            _ => Stuck::Again(error.to_string()),
        }
    }
}

impl From<rusqlite::Error> for Stuck {
    fn from(error: rusqlite::Error) -> Self {
        match trouble::judge(&error) {
            Trouble::Full => Stuck::Full,
            Trouble::Broken => Stuck::Broken(trouble::said(&error)),
            Trouble::Busy | Trouble::Statement => Stuck::Again(trouble::said(&error)),
        }
    }
}

impl From<io::Error> for Stuck {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::StorageFull => Stuck::Full,
            _ => Stuck::Broken(error.to_string()),
        }
    }
}

impl From<Failed> for Stuck {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Store(error) => error.into(),
            Failed::Disk(error) => error.into(),
            Failed::Changed(why) => Stuck::Broken(why),
            Failed::Event(faulty) => Stuck::Again(faulty.why.said()),
        }
    }
}
