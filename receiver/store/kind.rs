//! What a database of this receiver is: the log that fills it, and the tables that the
//! receiver and its projection declare. Worked out on an empty database in memory, so that
//! tables and indexes that somebody has added to the file do not count.

use rusqlite::Connection;
use sha2::{Digest as _, Sha256};

use super::{
    SCHEMA,
    fit::{self, Digests},
};
use crate::receiver::projection::{Migration, Projection};

/// What has to be the same in two databases of which one may stand in for the other.
#[derive(Debug, Clone)]
pub struct Kind {
    /// The log.
    pub log: String,
    /// The projection's name.
    pub projection: String,
    /// The projection's version.
    pub projection_version: i64,
    /// SHA-256 of what is declared: of each table, index, view and trigger, in the order
    /// they are made, type, name and SQL, each as be32 length and bytes.
    pub digest: [u8; 32],
    pub(super) declared: Vec<[String; 3]>,
    /// What the projection is made of, part by part.
    pub(super) parts: Digests,
}

impl Kind {
    /// Of a receiver of this log with this projection.
    ///
    /// # Errors
    /// Whatever SQLite says to what the projection declares.
    pub fn of(log: &str, projection: &dyn Projection) -> rusqlite::Result<Self> {
        let declared = declared(projection.migrations())?;
        Ok(Kind {
            log: log.to_owned(),
            projection: projection.name().to_owned(),
            projection_version: projection.version(),
            digest: digest(&declared),
            declared,
            parts: fit::digests(&projection.parts()),
        })
    }

    /// Whether all that is declared stands in a database, word for word.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn stands_in(&self, database: &Connection) -> rusqlite::Result<bool> {
        contains(database, &self.declared)
    }

    /// What a database has that is not declared and would be run, or read as something that
    /// it is not: a trigger, a view or a virtual table. Type and name.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn foreign_in(&self, database: &Connection) -> rusqlite::Result<Option<String>> {
        let foreign = objects(database)?.into_iter().find(|object| {
            let [kind, _, sql] = object;
            let begins = sql.trim_start().get(..14).unwrap_or_default();
            let is_virtual = begins.eq_ignore_ascii_case("CREATE VIRTUAL");
            (kind == "trigger" || kind == "view" || is_virtual) && !self.declared.contains(object)
        });
        Ok(foreign.map(|[kind, name, _]| {
            let kind = if kind == "table" { "virtual table" } else { kind.as_str() };
            format!("{kind} {name}")
        }))
    }
}

/// Whether what these steps make, and the receiver's own tables, stand in a database word
/// for word.
///
/// # Errors
/// Whatever SQLite says.
pub(super) fn stand_in(database: &Connection, steps: &[Migration]) -> rusqlite::Result<bool> {
    contains(database, &declared(steps)?)
}

fn contains(database: &Connection, declared: &[[String; 3]]) -> rusqlite::Result<bool> {
    let found = objects(database)?;
    Ok(declared.iter().all(|object| found.contains(object)))
}

fn declared(steps: &[Migration]) -> rusqlite::Result<Vec<[String; 3]>> {
    let empty = Connection::open_in_memory()?;
    empty.execute_batch(SCHEMA)?;
    for step in steps {
        empty.execute_batch(&step.sql)?;
    }
    objects(&empty)
}

fn objects(database: &Connection) -> rusqlite::Result<Vec<[String; 3]>> {
    let mut select = database
        .prepare("SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY rowid")?;
    let rows = select.query_map([], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]))?;
    rows.collect()
}

fn digest(declared: &[[String; 3]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for text in declared.iter().flatten() {
        hash.update((text.len() as u32).to_be_bytes());
        hash.update(text);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{inventory::Inventory, store};

    #[test]
    fn what_is_declared_is_found_whatever_stands_beside_it() {
        let kind = Kind::of("main", &Inventory).expect("declared");
        assert_eq!(kind.digest, Kind::of("other", &Inventory).expect("declared").digest);
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        assert!(kind.stands_in(&store.connection).expect("readable"));
        let changes = [
            ("CREATE INDEX mine ON stock (available)", true),
            ("CREATE TABLE yours (a)", true),
            ("ALTER TABLE stock ADD COLUMN place TEXT", false),
        ];
        for (change, stands) in changes {
            store.connection.execute_batch(change).expect("plain SQL");
            assert_eq!(kind.stands_in(&store.connection).expect("readable"), stands, "{change}");
        }
        assert!(objects(&store.connection).expect("readable").len() > kind.declared.len());
    }
}
