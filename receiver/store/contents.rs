//! What a database says of the projection that has filled it: rows of `counterfoil_meta`,
//! written in the transaction that makes or changes the tables.

use rusqlite::{
    Connection, OptionalExtension as _, Transaction, TransactionBehavior, ffi, params, types::Type,
};

use super::{
    Kind, OpenError,
    fit::{self, Digests, Fit, fit},
    guard::{Guard, Mode},
    kind,
    reserved::Reserved,
    trouble,
};
use crate::{
    proto::{crash, event::Sequence},
    receiver::projection::Projection,
};

/// What is noted of the projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: i64,
    /// The digests of its parts; none: a database of before.
    pub parts: Option<Digests>,
    /// How many of its migrations have run.
    pub migrations: usize,
    /// The last event that an earlier version has applied, before it was migrated; -1: this
    /// one has applied all there is.
    pub since: Sequence,
    /// The text of its file; none: it is written in Rust, or a database of before.
    pub source: Option<String>,
}

impl Contents {
    /// Reads it.
    ///
    /// # Errors
    /// Whatever SQLite says, an unreadable value included.
    pub fn read(database: &Connection) -> rusqlite::Result<Self> {
        let meta = |name: &str| meta(database, name);
        let missing = || rusqlite::Error::QueryReturnedNoRows;
        let version = meta("projection_version")?.ok_or_else(missing)?;
        let parts = match meta("projection_parts")? {
            Some(text) => Some(serde_json::from_str(&text).map_err(|e| unreadable(e.into()))?),
            None => None,
        };
        let number = |name: &str, absent: i64| match meta(name)? {
            Some(text) => text.parse().map_err(|e: std::num::ParseIntError| unreadable(e.into())),
            None => Ok(absent),
        };
        Ok(Contents {
            name: meta("projection")?.ok_or_else(missing)?,
            version: version.parse().map_err(|e: std::num::ParseIntError| unreadable(e.into()))?,
            parts,
            migrations: usize::try_from(number("projection_migrations", 0)?)
                .map_err(|e| unreadable(e.into()))?,
            since: number("projection_since", -1)?,
            source: meta("projection_source")?,
        })
    }
}

/// The version of the projection that the tables are of, as a reader sees them.
///
/// # Errors
/// Whatever SQLite says.
pub fn version(database: &Connection) -> rusqlite::Result<String> {
    database
        .prepare_cached("SELECT value FROM counterfoil_meta WHERE name = 'projection_version'")?
        .query_row([], |row| row.get(0))
}

fn meta(database: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    let value = "SELECT value FROM counterfoil_meta WHERE name = ?1";
    database.query_row(value, [name], |row| row.get(0)).optional()
}

fn unreadable(error: Box<dyn std::error::Error + Send + Sync>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(0, Type::Text, error)
}

/// Notes what a projection is, within the transaction of its steps.
pub(super) fn note(transaction: &Connection, projection: &dyn Projection) -> Result<(), OpenError> {
    let parts = serde_json::to_string(&fit::digests(&projection.parts()))
        .map_err(|error| OpenError::Refused(format!("its parts cannot be noted: {error}")))?;
    let rows = [
        ("projection", Some(projection.name().to_owned())),
        ("projection_version", Some(projection.version().to_string())),
        ("projection_parts", Some(parts)),
        ("projection_migrations", Some(projection.migrations().len().to_string())),
        ("projection_source", projection.source().map(str::to_owned)),
    ];
    for (name, value) in rows {
        match value {
            Some(value) => transaction.execute(
                "INSERT INTO counterfoil_meta (name, value) VALUES (?1, ?2)
                 ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                params![name, value],
            )?,
            None => transaction.execute("DELETE FROM counterfoil_meta WHERE name = ?1", [name])?,
        };
    }
    Ok(())
}

/// Runs the steps from the one numbered `from` on, within a transaction.
pub(super) fn run_steps(
    transaction: &Connection,
    guard: &Guard,
    projection: &dyn Projection,
    from: usize,
) -> Result<(), OpenError> {
    let before = Reserved::of(transaction)?;
    for (n, step) in projection.migrations().iter().enumerate().skip(from) {
        let run = guard.during(Mode::Migration, || transaction.execute_batch(&step.sql));
        let place = format!("migration[{n}]");
        let stopped = |place, code, said| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            Err(OpenError::Step { place, said, error })
        };
        if let Some(said) = guard.took_last_row() {
            // Of the statement, whatever SQLite has called it: the disk has room.
            return stopped(place, ffi::SQLITE_CONSTRAINT_ROWID, said.to_owned());
        }
        run.map_err(|error| failed(place.clone(), error, guard))?;
        if let Some(name) = Reserved::of(transaction)?.new_since(&before) {
            let said = format!("it may not give the name {name}, which is the receiver's");
            return stopped(place, ffi::SQLITE_AUTH, said);
        }
    }
    Ok(())
}

/// A step that is wrong says so with its place; what the disk says needs none.
fn failed(place: String, error: rusqlite::Error, guard: &Guard) -> OpenError {
    let refused = guard.take_refused();
    match trouble::judge(&error) {
        trouble::Trouble::Statement => {
            let said = match refused {
                Some(what) => format!("it may not use {what}"),
                None => error.to_string(),
            };
            OpenError::Step { place, said, error }
        }
        _ => OpenError::Sql(error),
    }
}

/// Sees to it that the database is one of this projection: it may be already, or becomes
/// it in one transaction.
///
/// # Errors
/// [`OpenError`]: the database is as it was then.
pub(super) fn settle(
    connection: &Connection,
    guard: &Guard,
    log: &str,
    projection: &dyn Projection,
) -> Result<(), OpenError> {
    let found: String = meta(connection, "log")?.unwrap_or_default();
    if found != log {
        return Err(OpenError::Refused(fit::other("log", &found, log)));
    }
    let contents = Contents::read(connection)?;
    match fit(&contents, projection).map_err(OpenError::Refused)? {
        Fit::Same => Ok(()),
        Fit::Unsaid { ran } => {
            if !kind::stand_in(connection, &projection.migrations()[..ran])? {
                return Err(OpenError::Refused(format!(
                    "its tables are not those that version {} of projection {} begins with",
                    projection.version(),
                    contents.name
                )));
            }
            go_on(connection, guard, log, projection, &contents, ran)
        }
        Fit::Migrate { ran } => go_on(connection, guard, log, projection, &contents, ran),
        Fit::Rebuild => Err(OpenError::Earlier(Box::new(contents))),
    }
}

/// The steps that the database lacks, and what is noted of them, in one transaction.
fn go_on(
    connection: &Connection,
    guard: &Guard,
    log: &str,
    projection: &dyn Projection,
    contents: &Contents,
    ran: usize,
) -> Result<(), OpenError> {
    let (from, to) = (contents.version, projection.version());
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    run_steps(&transaction, guard, projection, ran)?;
    note(&transaction, projection)?;
    if from != to {
        transaction.execute(
            "INSERT INTO counterfoil_meta (name, value)
             SELECT 'projection_since', CAST(sequence AS TEXT) FROM counterfoil_cursor WHERE log = ?1
             ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            [log],
        )?;
        crash::point(crash::RECEIVER_BEFORE_MIGRATION_COMMIT);
    }
    // Constraints that are checked last fail here.
    let last = format!("the end of migration[{}]", projection.migrations().len().saturating_sub(1));
    transaction.commit().map_err(|error| failed(last, error, guard))?;
    if from != to {
        let steps = projection.migrations().len() - ran;
        tracing::info!(projection = contents.name, from, to, steps, "the database was migrated");
        crash::point(crash::RECEIVER_AFTER_MIGRATION_COMMIT);
    }
    Ok(())
}

/// What keeps a file from being one of a kind, as far as it says what it was filled by;
/// none: nothing does.
///
/// # Errors
/// Whatever SQLite says.
pub(super) fn unlike(database: &Connection, kind: &Kind) -> rusqlite::Result<Option<String>> {
    let contents = Contents::read(database)?;
    let log = meta(database, "log")?.unwrap_or_default();
    let version = kind.projection_version;
    let expected = [
        ("log", log, &kind.log),
        ("projection", contents.name, &kind.projection),
        ("projection_version", contents.version.to_string(), &version.to_string()),
    ];
    for (name, found, ours) in expected {
        if found != *ours {
            return Ok(Some(fit::other(name, &found, ours)));
        }
    }
    let difference = contents.parts.and_then(|noted| fit::difference(&noted, &kind.parts));
    Ok(difference.map(|difference| {
        let projection = &kind.projection;
        format!(
            "it was filled by other content of projection {projection} version {version}: \
             {difference}"
        )
    }))
}

#[cfg(test)]
mod tests;
