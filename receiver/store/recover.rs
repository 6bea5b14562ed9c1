//! `receiver recover`: copies a database whose disk failed into a new file.
//!
//! Going on with the old files would be wrong even if they read well: after a
//! failed sync the page cache may hold what the disk does not. A copy into new
//! files makes the disk take all of it again.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    lock::{self, beside},
    open,
};
use crate::process::Failure;

/// Copies, checks, swaps, and lets the database back into service. The old
/// files stay beside it; the answer is where. May be run again after it was
/// interrupted anywhere.
///
/// # Errors
/// [`Failure`]; the database is as it was, and still out of service.
pub fn recover(db: &Path) -> Result<PathBuf, Failure> {
    let db = &lock::real_name(db).map_err(|wrong| failed(db, &wrong))?;
    let _lock = lock::lock(db)?;
    let copy = beside(db, ".recovered");
    // Only a complete copy bears this name: then an earlier run died while swapping.
    if !copy.exists() {
        if !db.exists() {
            return Err(Failure::Runtime(format!("there is no database {}", db.display())));
        }
        make_copy(db, &copy).map_err(|wrong| failed(db, &wrong))?;
    }
    swap(db, &copy).map_err(|wrong| failed(db, &wrong))
}

fn failed(db: &Path, wrong: &dyn std::fmt::Display) -> Failure {
    Failure::Runtime(format!(
        "{} could not be recovered: {wrong}. Nothing was taken away",
        db.display()
    ))
}

fn make_copy(db: &Path, copy: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let unfinished = beside(db, ".recovering");
    remove(&unfinished)?;
    {
        let old = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        old.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        old.pragma_update(None, "wal_autocheckpoint", 0)?;
        // Swapped under another application's feet, its later commits would be lost.
        open::examine(&old)?;
        let target = unfinished.to_str().ok_or("the path is not UTF-8")?;
        old.execute("VACUUM INTO ?1", [target])?;
    }
    // SQLite does not sync what VACUUM INTO writes.
    File::open(&unfinished)?.sync_all()?;
    let new = Connection::open_with_flags(&unfinished, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    let found: String = new.pragma_query_value(None, "integrity_check", |row| row.get(0))?;
    if found != "ok" {
        return Err(format!("the copy is damaged: {found}").into());
    }
    drop(new);
    fs::rename(&unfinished, copy)?;
    lock::sync_directory(db)?;
    Ok(())
}

fn swap(db: &Path, copy: &Path) -> Result<PathBuf, io::Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let kept = beside(db, &format!(".kept-{now}"));
    // The old write-ahead log goes first: it would be applied to the new database.
    for ending in ["-wal", "-shm", ""] {
        match fs::rename(beside(db, ending), beside(&kept, ending)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    lock::sync_directory(db)?;
    fs::rename(copy, db)?;
    lock::sync_directory(db)?;
    lock::unmark_halted(db)?;
    Ok(kept)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
