//! The database beside the live one, filled by the new version of the projection. Runs on
//! threads that may block; knows nothing of the network.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::mpsc;

use super::{Stuck, aside::SetAside, carry, place, room};
use crate::{
    proto::{chain::Cursor, crash, event::Sequence},
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
            lock, skipped,
            trouble::{self, Trouble},
        },
        turns::Turns,
        writer::{Failed, Writer},
    },
};

/// What it has behind the live one's name.
const ENDING: &str = ".rebuild";
/// Events whose follow-ups are taken over in one transaction.
const CARRIED_TOGETHER: Sequence = 512;

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
    /// None: nothing has been taken over yet, or by an earlier attempt.
    carried: Option<Carried>,
}

/// Which follow-up events have been taken over from the live one.
struct Carried {
    /// Those of the events up to here.
    to: Sequence,
    /// What had been applied later there by then.
    late: BTreeSet<Sequence>,
    /// Events whose follow-ups are to be taken over again.
    renew: BTreeSet<Sequence>,
    /// The board's number then.
    rewritten: u64,
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
        Ok(Beside { writer, live: db.to_owned(), log: log.to_owned(), on_error, carried: None })
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
        // What has been applied later in the live one, after what is there already.
        self.apply_late(aside)?;
        let mut rest = steps;
        while let [first, others @ ..] = rest {
            rest = match (first, aside.holds(first.event())) {
                // What was set aside in the live one is so here too.
                (Step::Next { event, after, .. }, Some(why)) => {
                    self.writer.set_aside(event, *after, &why).map_err(Stuck::from)?;
                    others
                }
                (Step::Earlier(_), Some(_)) => others,
                (_, None) => {
                    let sequences = rest.iter().map(|step| step.event().sequence);
                    let (now, later) = rest.split_at(aside.turns().run_of(sequences));
                    isolate::apply(&mut self.writer, now, aside)?;
                    later
                }
            };
            self.apply_late(aside)?;
        }
        Ok(())
    }

    /// What was set aside, and has been applied later in the live one, up to here.
    fn apply_late(&mut self, aside: &mut SetAside) -> Result<(), Stuck> {
        let last = place(self.committed());
        for sequence in aside.due(last) {
            let store = self.writer.store().map_err(Stuck::from)?;
            let waits = skipped::find(&store.connection, sequence)?
                .is_some_and(|kept| kept.applied_after.is_none());
            if !waits {
                continue; // done before, or never set aside here: in its turn, in a snapshot
            }
            match self.writer.apply_late(sequence) {
                Ok(Ok(_)) => {}
                Ok(Err(damaged)) => return Err(Stuck::Broken(damaged.message)),
                Err(Failed::Event(faulty)) => aside.fails_late(sequence, &faulty.why)?,
                Err(failed) => return Err(failed.into()),
            }
            if let Some(carried) = &mut self.carried {
                carried.renew.insert(sequence);
            }
        }
        Ok(())
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

    /// Takes over what the earlier version has let follow from the events up to `at`, and what
    /// people and the other publisher have made of that. What was taken over before is not
    /// looked at again where it cannot have changed, unless `rewritten`, the board's number,
    /// is another one than then.
    pub fn carry(&mut self, at: Option<Cursor>, rewritten: u64) -> Result<(), Stuck> {
        let live = store::open_for_reading(&self.live)?;
        // Before the rows: what is applied later from now on is renewed the next time.
        let late = Turns::read(&live)?.late();
        let to = place(at).min(place(self.committed()));
        let mut carried = match self.carried.take() {
            Some(carried) if carried.rewritten == rewritten => carried,
            _ => Carried { to: -1, late: late.clone(), renew: BTreeSet::new(), rewritten },
        };
        carried.renew.extend(late.difference(&carried.late));
        carried.late = late;
        while carried.to < to {
            let last = to.min(carried.to + CARRIED_TOGETHER);
            let store = self.writer.store().map_err(Stuck::from)?;
            carry::span(&live, &store.connection, carried.to + 1, last)?;
            self.writer.after_commit()?;
            carried.to = last;
            crash::point(crash::RECEIVER_REBUILD_CARRYING);
        }
        let store = self.writer.store().map_err(Stuck::from)?;
        carry::changed(&live, &store.connection, carried.to, &carried.renew)?;
        carried.renew.clear();
        self.carried = Some(carried);
        self.writer.after_commit()?;
        Ok(())
    }

    /// Puts what is there on stable storage, so that little is left to be done in the hold, and
    /// sees whether the live one's disk has room for the exchange.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        self.writer.when_idle()?;
        fs::File::open(path(&self.live))?.sync_all()?;
        let store = self.writer.store().map_err(Stuck::from)?;
        let number = |pragma: &str| {
            store.connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0))
        };
        let (pages, size) = (number("page_count")?, number("page_size")?);
        match room::missing(&self.live, pages.unsigned_abs(), size.unsigned_abs())? {
            None => Ok(()),
            Some(missing) => Err(Stuck::Again(format!(
                "it is filled, and to take the earlier one's place it needs {missing} bytes more \
                 on the disk than are free: make room"
            ))),
        }
    }

    /// Takes over what has changed in the live one since, up to where that is, and leaves
    /// everything in one file on stable storage. Nobody writes to the live one meanwhile.
    pub fn finish(
        mut self,
        at: Option<Cursor>,
        rewritten: u64,
    ) -> Result<(PathBuf, Option<Cursor>), Stuck> {
        let mut aside = SetAside::of(&self.live, self.on_error)?;
        self.apply_late(&mut aside)?;
        self.carry(at, rewritten)?;
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
        match error {
            OpenError::Sql(error) => {
                // Whoever asks for the status is not shown which file it is.
                tracing::warn!("the rebuilt database cannot be opened: {error}");
                error.into()
            }
            OpenError::Io(error) => error.into(),
            error => Stuck::Again(error.to_string()),
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
