//! The files beside the database: a lock that keeps a second receiver out, and
//! a marker that keeps a damaged database out of service.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::process::Failure;

/// A file beside the database: its name with something added.
pub fn beside(db: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(db.as_os_str());
    name.push(ending);
    PathBuf::from(name)
}

/// The files beside a database whose names are its own with something added that begins
/// so, each with what comes then. None where the directory cannot be read.
pub fn all_beside(db: &Path, beginning: &str) -> Vec<(PathBuf, OsString)> {
    let begins = beside(db, beginning);
    let Some(begins) = begins.file_name() else { return Vec::new() };
    let Ok(entries) = fs::read_dir(directory(db)) else { return Vec::new() };
    let found = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let rest = name.as_bytes().strip_prefix(begins.as_bytes())?;
        Some((entry.path(), OsStr::from_bytes(rest).to_owned()))
    });
    found.collect()
}

/// One name for one database, whatever links lead to it: what stands beside it
/// must be found by everyone.
///
/// # Errors
/// What the file system says.
pub fn real_name(db: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(db) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = fs::canonicalize(directory(db))?;
            let name = db.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            Ok(directory.join(name))
        }
        found => found,
    }
}

fn directory(db: &Path) -> &Path {
    match db.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Held for as long as it lives, and by the kernel until the process is gone.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// Takes `DB.lock`.
///
/// # Errors
/// [`Failure::InUse`] when another process holds it, or the database has two
/// names; [`Failure::Runtime`]
/// when it cannot be made.
pub fn lock(db: &Path) -> Result<Lock, Failure> {
    // Another name would have another lock and another write-ahead log.
    if let Ok(file) = fs::metadata(db)
        && file.nlink() > 1
    {
        return Err(Failure::InUse(format!(
            "the database {} has {} names (hard links); it may have only one",
            db.display(),
            file.nlink()
        )));
    }
    let path = beside(db, ".lock");
    // The file stays when the process ends: taking it away would let two lock two files.
    let file =
        OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(
            |error| Failure::Runtime(format!("cannot open {}: {error}", path.display())),
        )?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock { _file: file }),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Failure::InUse(format!(
            "the database {} is in use by another receiver",
            db.display()
        ))),
        Err(error) => Err(Failure::Runtime(format!("cannot lock {}: {error}", path.display()))),
    }
}

/// Leaves the marker `DB.halted` with the sentence that says why. Best effort:
/// the disk that failed may be the one it is written to.
pub fn mark_halted(db: &Path, why: &str) {
    let path = beside(db, ".halted");
    let written = File::create(&path)
        .and_then(|mut file| writeln!(file, "{why}").and_then(|()| file.sync_all()))
        .and_then(|()| sync_directory(db));
    if let Err(error) = written {
        tracing::error!(%error, path = %path.display(), "the marker of a failed database could not be written");
    }
}

/// Refuses a database with a marker.
///
/// # Errors
/// [`Failure::Runtime`] that names the command.
pub fn refuse_halted(db: &Path) -> Result<(), Failure> {
    match fs::read_to_string(beside(db, ".halted")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        why => Err(Failure::Runtime(format!(
            "an earlier write to this database failed and may be lost ({}); run `receiver recover --db {}` first",
            why.as_deref().unwrap_or("unreadable").trim(),
            db.display()
        ))),
    }
}

/// Takes the marker away.
///
/// # Errors
/// What the file system says.
pub fn unmark_halted(db: &Path) -> io::Result<()> {
    match fs::remove_file(beside(db, ".halted")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => sync_directory(db),
    }
}

/// Makes names in the database's directory durable.
///
/// # Errors
/// What the file system says.
pub fn sync_directory(db: &Path) -> io::Result<()> {
    File::open(directory(db))?.sync_all()
}
