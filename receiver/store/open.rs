//! Opening the database: what it must be, the settings that the promises rest
//! on, and the barrier.

use std::{path::Path, sync::Arc, time::Duration};

use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, config::DbConfig};

use super::{
    Kind, SCHEMA, SCHEMA_VERSION, Store, checkpoint,
    contents::{self, Contents},
    guard::Guard,
    lock, migrate,
    trouble::{self, Trouble},
};
use crate::receiver::projection::Projection;

/// Marks a database as a receiver's: "CfRc".
const APPLICATION_ID: i32 = 0x4366_5263;
/// What SQLite gives a page of a new database. One with other pages cannot be copied
/// over it.
pub(super) const PAGE_BYTES: i64 = 4_096;
/// 3.51.3: earlier ones may damage a file that is written and checkpointed at once.
const LEAST_SQLITE: i32 = 3_051_003;
/// How long a statement waits for another process. Short: the ending of the
/// process waits for it too, and whoever gave up tries again.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// How often the barrier is tried while a reader is in the way.
const BARRIER_ATTEMPTS: usize = 5;
/// Of page cache for the writer, in KiB. Keeps the index of keys in memory.
const CACHE_KIB: i64 = 16 * 1024;

/// Statements that stay prepared: the receiver's own, and those of a large projection.
const CACHED_STATEMENTS: usize = 512;

/// Why a database could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not one that this process may use. One sentence.
    #[error("{0}")]
    Refused(String),
    /// Another process is reading it and does not let go.
    #[error(
        "another process is reading it and does not let go; nothing is served before everything \
         in it is on stable storage"
    )]
    Held,
    /// SQLite failed.
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    /// A step of the projection's tables failed; the database is as it was.
    #[error("{place} failed: {said}; the database is as it was")]
    Step {
        /// Which one.
        place: String,
        /// Why, in words.
        said: String,
        /// What SQLite says.
        error: rusqlite::Error,
    },
    /// An earlier version of the projection has filled it, and this one does not migrate
    /// but rebuild. What is noted of the earlier one.
    #[error(
        "it was filled by version {} of projection {}, and this version is not migrated to but \
         rebuilt",
        .0.version, .0.name
    )]
    Earlier(Box<Contents>),
    /// The file system failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}

/// Opens the database for writing, and makes it where there is none. On return
/// everything in it is on stable storage. The caller holds the lock.
///
/// # Errors
/// [`OpenError`].
pub fn open(db: &Path, log: &str, projection: &dyn Projection) -> Result<Store, OpenError> {
    open_across(db, log, projection, true)
}

/// Opens it again where this process knows that all of it is on stable storage: then a
/// reader that keeps an older moment open is in nobody's way.
///
/// # Errors
/// [`OpenError`].
pub fn reopen(db: &Path, log: &str, projection: &dyn Projection) -> Result<Store, OpenError> {
    open_across(db, log, projection, false)
}

fn open_across(
    db: &Path,
    log: &str,
    projection: &dyn Projection,
    barrier: bool,
) -> Result<Store, OpenError> {
    if rusqlite::version_number() < LEAST_SQLITE {
        let version = rusqlite::version();
        return Err(OpenError::Refused(format!("SQLite {version} is older than 3.51.3")));
    }
    let mut connection = Connection::open(db)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Closing must not checkpoint by itself: after a failed sync that does harm.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let fresh = examine(&connection)?;
    let guard = Guard::on(&mut connection)?;
    configure(&connection)?;
    if barrier {
        cross_barrier(&connection)?;
    }
    if fresh {
        create(&connection, &guard, log, projection)?;
    } else {
        migrate::migrate(&connection)?;
    }
    lock::sync_directory(db)?;
    contents::settle(&connection, &guard, log, projection)?;
    let kind = Arc::new(Kind::of(log, projection)?);
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    guard.bound_steps(&mut connection)?;
    let wal = checkpoint::Wal::watch(&mut connection, db)?;
    Ok(Store { connection, guard, kind, log: log.to_owned(), db: db.to_owned(), wal })
}

impl Store {
    /// The path of the database.
    pub fn db(&self) -> &Path {
        &self.db
    }
}

/// Looks before anything is changed. `true`: there is nothing in it yet.
pub(super) fn examine(connection: &Connection) -> Result<bool, OpenError> {
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get(0));
    let application_id: i32 = match number("application_id") {
        Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::NotADatabase) => {
            return Err(OpenError::Refused("it is not a SQLite database".to_owned()));
        }
        read => read?,
    };
    let version: i32 = number("user_version")?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application_id == 0 && version == 0 && tables == 0 {
        return Ok(true);
    }
    if application_id != APPLICATION_ID {
        return Err(OpenError::Refused(
            "it is a database of another application, not a receiver's".to_owned(),
        ));
    }
    if version > SCHEMA_VERSION {
        return Err(OpenError::Refused(format!(
            "it has format {version}, written by a newer version; this one knows {SCHEMA_VERSION}"
        )));
    }
    Ok(false)
}

/// Whether a database is one of a receiver's that this program can read.
///
/// # Errors
/// [`OpenError::Refused`] where it is not; [`OpenError::Sql`].
pub fn is_receivers(connection: &Connection) -> Result<(), OpenError> {
    match examine(connection)? {
        false => Ok(()),
        true => Err(OpenError::Refused("there is nothing in it yet".to_owned())),
    }
}

fn configure(connection: &Connection) -> Result<(), OpenError> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(OpenError::Refused(format!(
            "its directory cannot hold a write-ahead log (journal mode stayed {mode:?}); use a local disk"
        )));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Not taken on trust: a build of SQLite may be without either.
    for (pragma, expected) in [("synchronous", 2), ("foreign_keys", 1)] {
        let set: i32 = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
        if set != expected {
            return Err(OpenError::Refused(format!("SQLite does not keep the setting {pragma}")));
        }
    }
    Ok(())
}

fn cross_barrier(connection: &Connection) -> Result<(), OpenError> {
    for _ in 0..BARRIER_ATTEMPTS {
        if checkpoint::barrier(connection)? {
            return Ok(());
        }
    }
    Err(OpenError::Held)
}

fn create(
    connection: &Connection,
    guard: &Guard,
    log: &str,
    projection: &dyn Projection,
) -> Result<(), OpenError> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    transaction.execute_batch(SCHEMA)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.execute("INSERT INTO counterfoil_meta VALUES ('log', ?1)", [log])?;
    contents::run_steps(&transaction, guard, projection, 0)?;
    contents::note(&transaction, projection)?;
    transaction.commit()?;
    Ok(())
}

/// Makes a file that holds what a new database does. It is on stable storage on return.
///
/// # Errors
/// [`OpenError`].
pub fn make_empty(file: &Path, log: &str, projection: &dyn Projection) -> Result<(), OpenError> {
    let mut connection = Connection::open(file)?;
    let guard = Guard::on(&mut connection)?;
    create(&connection, &guard, log, projection)?;
    connection.close().map_err(|(_, error)| error)?;
    std::fs::File::open(file)?.sync_all()?;
    Ok(())
}

/// Opens the database for reading, beside the writer.
///
/// # Errors
/// Whatever SQLite says.
pub fn open_for_reading(db: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(
        db,
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "query_only", true)?;
    Ok(connection)
}

impl OpenError {
    /// What it means for the store; none: it may not be used at all.
    pub fn trouble(&self) -> Option<Trouble> {
        match self {
            OpenError::Refused(_) | OpenError::Earlier(_) => None,
            OpenError::Held => Some(Trouble::Busy),
            OpenError::Sql(error) | OpenError::Step { error, .. } => Some(trouble::judge(error)),
            OpenError::Io(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                Some(Trouble::Full)
            }
            OpenError::Io(_) => Some(Trouble::Broken),
        }
    }
}
