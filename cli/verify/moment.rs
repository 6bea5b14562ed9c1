//! A receiver's file at one moment: a read transaction that stays open, beside a receiver
//! that goes on.

use std::path::Path;

use counterfoil::{
    proto::{chain::Cursor, event::Sequence},
    receiver::store::{self, OpenError, baseline::Baseline, contents::Contents, cursor},
};
use rusqlite::Connection;

use super::{Stop, report::Difference};
use crate::failure::Failure;

/// The file as it was when it was first read.
pub struct Moment {
    /// In a transaction, read-only.
    pub tables: Connection,
    /// The log that it follows.
    pub log: String,
    /// What fills it, as far as it says so.
    pub contents: Contents,
    /// The last event applied; none: nothing yet.
    pub cursor: Option<Cursor>,
    /// Where its ledger begins.
    pub baseline: Baseline,
}

impl Moment {
    /// Reads what it is.
    ///
    /// # Errors
    /// [`Failure::Usage`] for a file that is none of a receiver's, or follows another log;
    /// [`Failure::Runtime`] for one that cannot be read.
    pub fn of(db: &Path, log: &str) -> Result<Moment, Failure> {
        let named = |what: String| format!("{}: {what}", db.display());
        if !db.is_file() {
            return Err(Failure::Usage(named("there is no such file".to_owned())));
        }
        let unreadable = |error: rusqlite::Error| Failure::Runtime(named(error.to_string()));
        let tables = store::open_for_reading(db).map_err(unreadable)?;
        store::is_receivers(&tables).map_err(|error| match error {
            OpenError::Refused(why) => Failure::Usage(named(why)),
            error => Failure::Runtime(named(error.to_string())),
        })?;
        tables.execute_batch("BEGIN").map_err(unreadable)?;
        let moment = Self::read(tables, log).map_err(unreadable)?;
        if moment.log != log {
            let follows = format!("it follows the log {}, not {log}; see --log", moment.log);
            return Err(Failure::Usage(named(follows)));
        }
        Ok(moment)
    }

    fn read(tables: Connection, log: &str) -> rusqlite::Result<Moment> {
        let meta = |name: &str| -> rusqlite::Result<String> {
            let value = "SELECT value FROM counterfoil_meta WHERE name = ?1";
            tables.query_row(value, [name], |row| row.get(0))
        };
        let (followed, contents) = (meta("log")?, Contents::read(&tables)?);
        let (cursor, baseline) = (cursor::read(&tables, log)?, Baseline::read(&tables)?);
        Ok(Moment { log: followed, contents, cursor, baseline, tables })
    }

    /// The last sequence applied; -1: none.
    pub fn last(&self) -> Sequence {
        self.cursor.map_or(-1, |cursor| cursor.sequence)
    }

    /// Whether SQLite finds the file whole, indexes and all.
    pub fn is_whole(&self) -> Result<(), Stop> {
        let check = "PRAGMA integrity_check(1)";
        let said: String = self.tables.query_row(check, [], |row| row.get(0))?;
        match said.as_str() {
            "ok" => Ok(()),
            said => Err(Difference::new("the file", "a whole SQLite database", said).into()),
        }
    }
}
