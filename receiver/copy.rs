//! A copy of the database as it is at one moment, compact, made beside whoever writes to it.

use std::{fs::File, path::Path};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::store::lock;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// SQLite failed.
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
    /// The file system failed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The path cannot be handed to SQLite.
    #[error("its path is not UTF-8")]
    Path,
}

/// Writes a copy to a file that there is not yet. On return it is on stable storage. Reads
/// in one transaction of its own: writers go on, only their write-ahead log grows meanwhile.
///
/// # Errors
/// [`CopyError`]; what there is of the file then is nothing.
pub fn copy(db: &Path, target: &Path) -> Result<(), CopyError> {
    copy_unsynced(db, target)?;
    sync(target)
}

/// The same, not yet on stable storage.
///
/// # Errors
/// As [`copy`].
pub fn copy_unsynced(db: &Path, target: &Path) -> Result<(), CopyError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(db, flags)?;
    source.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    let path = target.to_str().ok_or(CopyError::Path)?;
    let copied = source.execute("VACUUM INTO ?1", [path]);
    if copied.is_err() {
        let _ = std::fs::remove_file(target);
    }
    copied?;
    Ok(())
}

/// Makes a copy durable.
///
/// # Errors
/// [`CopyError::Io`].
pub fn sync(target: &Path) -> Result<(), CopyError> {
    File::open(target)?.sync_all()?;
    lock::sync_directory(target)?;
    Ok(())
}
