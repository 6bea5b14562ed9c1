//! The copy that events are tried on: a database of its own in a directory that goes away.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rusqlite::{Connection, params};

use super::report::Report;
use crate::{
    process::Failure,
    proto::{chain::Cursor, event::Sequence},
    receiver::{
        copy,
        decide::Step,
        isolate,
        projection::{Projection, Upgrade},
        store::{self, OpenError, contents::Contents, cursor, skipped::Aside},
        transaction::{Committed, EventFault},
        writer::{Failed, Writer},
    },
};

/// A directory that goes away with this value.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Result<Self, Failure> {
        let path = env::temp_dir().join(format!("counterfoil-check-{}", uuid::Uuid::new_v4()));
        fs::create_dir(&path)
            .map_err(|error| Failure::Runtime(format!("{}: {error}", path.display())))?;
        Ok(Directory(path))
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // within the system's own temporary directory
    }
}

/// The copy, and what has come of it.
pub struct Scratch {
    writer: Writer,
    log: String,
    report: Report,
    /// Where the first event is to come after, whatever the copy has.
    rewind: Option<Rewind>,
    _directory: Directory,
}

/// The copy's cursor is yet to be set: to the place before the first event.
struct Rewind {
    first: Sequence,
    before: Option<Cursor>,
}

impl Scratch {
    /// A copy of a database, brought to the projection's version; an empty one where there
    /// is none, or where the projection would not go on from it.
    pub fn of(
        db: Option<&Path>,
        log: &str,
        projection: Arc<dyn Projection>,
    ) -> Result<Self, Failure> {
        let directory = Directory::new()?;
        let path = directory.0.join("scratch.db");
        let version = projection.version();
        let mut against = "against an empty database".to_owned();
        if let Some(db) = db {
            if !db.exists() {
                let shown = db.display();
                return Err(Failure::Usage(format!(
                    "--db {shown}: there is no such file; without --db the events are run against \
                     an empty database"
                )));
            }
            let contents = copied(db, &path)?;
            let shown = db.display();
            let Contents { name, version: was, .. } = &contents;
            let rebuilds = projection.upgrade() == Upgrade::Rebuild && *was < version;
            if name != projection.name() || rebuilds {
                fs::remove_file(&path).map_err(|error| Failure::Runtime(error.to_string()))?;
                against = format!(
                    "against an empty database ({shown} has projection {name} version {was})"
                );
            } else if *was < version {
                against = format!("against a copy of {shown}, migrated from version {was}");
            } else {
                against = format!("against a copy of {shown}");
            }
        }
        let unfit = |error: OpenError| {
            let shown = db.map_or_else(|| "the copy".into(), |db| db.display().to_string());
            Failure::Runtime(format!("the projection does not go on from {shown}: {error}"))
        };
        let store = store::open(&path, log, &*projection).map_err(unfit)?;
        let said = |error: rusqlite::Error| Failure::Runtime(format!("the copy: {error}"));
        // It is thrown away whatever happens.
        store.connection.pragma_update(None, "synchronous", "OFF").map_err(said)?;
        let committed = cursor::read(&store.connection, log).map_err(said)?;
        let writer = Writer::new(store, committed, projection);
        let report = Report::of(against);
        let log = log.to_owned();
        Ok(Scratch { writer, log, report, rewind: None, _directory: directory })
    }

    /// What the copy has.
    pub fn committed(&self) -> Option<Cursor> {
        self.writer.committed()
    }

    /// The event after what the copy has.
    pub fn next(&self) -> Sequence {
        self.committed().map_or(0, |cursor| cursor.sequence + 1)
    }

    /// The first event is this one, whatever the copy has; none: the one that follows.
    pub fn begin_at(&mut self, first: Option<Sequence>) {
        self.rewind = first.map(|first| Rewind { first, before: None });
    }

    /// Where the stream begins.
    pub fn pass(&mut self, cursor: Option<Cursor>) {
        if let Some(rewind) = &mut self.rewind {
            rewind.before = cursor;
        }
    }

    /// An event before the first one.
    pub fn pass_step(&mut self, step: &Step) {
        if let Step::Next { after, .. } = step {
            self.pass(Some(*after));
        }
    }

    /// The log goes on under another name, with the same history.
    pub fn adopt(&mut self, to: Cursor) -> Result<(), Failure> {
        self.writer.adopt(to).map_err(|failed| broken(&failed))
    }

    /// Applies events that follow. Those that fail are set aside, and counted.
    pub fn apply(&mut self, steps: &[Step]) -> Result<(), Failure> {
        if steps.is_empty() {
            return Ok(());
        }
        if let Some(Rewind { first, before }) = self.rewind.take() {
            self.rewind_to(first, before)?;
        }
        isolate::apply(&mut self.writer, steps, &mut self.report).map_err(|Broken(failure)| failure)
    }

    /// What the copy says of the first event and those after it was never said; what its
    /// tables hold stays.
    fn rewind_to(&mut self, first: Sequence, before: Option<Cursor>) -> Result<(), Failure> {
        let before = before.filter(|before| before.sequence >= 0);
        if before.map_or(0, |before| before.sequence + 1) != first {
            return Err(Failure::Runtime(format!("event {first} did not come")));
        }
        let log = self.log.clone();
        let set = move |tables: &Connection| -> rusqlite::Result<()> {
            for table in ["counterfoil_ledger", "counterfoil_outbox", "counterfoil_skipped"] {
                tables.execute(&format!("DELETE FROM {table} WHERE sequence >= ?1"), [first])?;
            }
            tables.execute("DELETE FROM counterfoil_cursor WHERE log = ?1", [&log])?;
            if let Some(Cursor { log_id, sequence, chain }) = before {
                tables.execute(
                    "INSERT INTO counterfoil_cursor (log, log_id, sequence, chain)
                     VALUES (?1, ?2, ?3, ?4)",
                    params![log, log_id.to_string(), sequence, chain],
                )?;
            }
            Ok(())
        };
        self.writer.amend(before, set).map_err(|failed| broken(&failed))
    }

    /// What came of it all.
    pub fn into_report(self, first: Sequence, end: Sequence) -> Report {
        let Scratch { mut report, .. } = self;
        (report.first, report.end) = (first, end);
        report
    }
}

/// The copy cannot be written.
pub struct Broken(Failure);

impl From<Failed> for Broken {
    fn from(failed: Failed) -> Self {
        Broken(broken(&failed))
    }
}

/// Those that fail are set aside, and counted.
impl isolate::Hears for Report {
    type Stop = Broken;

    fn committed(&mut self, group: &Committed) {
        self.count(group);
    }

    fn fails(&mut self, writer: &mut Writer, step: &Step, why: EventFault) -> Result<(), Broken> {
        let Step::Next { event, after, .. } = step else { return Ok(()) };
        self.fail(event, &why);
        let aside = Aside { reason: "it fails".to_owned(), fault: why.noted() };
        writer.set_aside(event, *after, &aside)?;
        Ok(())
    }
}

/// Copies the database, which may be in use, and says what is in it.
fn copied(db: &Path, to: &Path) -> Result<Contents, Failure> {
    let named = |what: &dyn std::fmt::Display| format!("{}: {what}", db.display());
    copy::copy_unsynced(db, to).map_err(|error| Failure::Runtime(named(&error)))?;
    let tables = Connection::open(to).map_err(|error| Failure::Runtime(named(&error)))?;
    store::is_receivers(&tables).map_err(|error| Failure::Usage(named(&error)))?;
    Contents::read(&tables).map_err(|error| Failure::Runtime(named(&error)))
}

fn broken(failed: &Failed) -> Failure {
    Failure::Runtime(format!("the copy cannot be written: {failed:?}"))
}
