//! The publisher's directory: one process at a time, a format, a directory for
//! each log. Knows nothing of what is in those.
//!
//! ```text
//! DIR/LOCK                    held locked by the process that uses DIR
//! DIR/FORMAT                  the version of this layout
//! DIR/logs/NAME/              one log: segments, positions, suspects, receipts, outcomes, snapshots
//! DIR/logs/NAME~before-N/     what a recovery has put aside
//! ```
//! A log's name has no `~`, so what stands beside logs is never taken for one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use super::{durable, log::OpenError};

const FORMAT: u32 = 1;
const LOCK_FILE: &str = "LOCK";
const FORMAT_FILE: &str = "FORMAT";
const LOGS: &str = "logs";

/// A directory that this process alone uses, until this value is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// The system lets go of the lock when the process ends, however it ends.
    _lock: File,
}

impl DataDir {
    /// Takes a directory, which is made if it does not exist.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        make_dir(path)?;
        let lock_path = path.join(LOCK_FILE);
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(|error| OpenError::io("lock", &lock_path, error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(OpenError::InUse(format!(
                    "{} is in use by another publisher",
                    path.display()
                )));
            }
            Err(error) => return Err(OpenError::io("lock", &lock_path, error.into())),
        }
        check_format(path)?;
        make_dir(&path.join(LOGS))?;
        Ok(DataDir { path: path.to_owned(), _lock: lock })
    }

    /// The directory of a log, which is made if it does not exist. `name` has
    /// been checked to be a log's name.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn log_dir(&self, name: &str) -> Result<PathBuf, OpenError> {
        let dir = self.path.join(LOGS).join(name);
        make_dir(&dir)?;
        Ok(dir)
    }

    /// The names of the logs that there are, sorted.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn logs(&self) -> Result<Vec<String>, OpenError> {
        let dir = self.path.join(LOGS);
        let listed = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for file in fs::read_dir(&dir)? {
                let file = file?;
                if let Ok(name) = file.file_name().into_string()
                    && !name.contains('~')
                    && file.file_type()?.is_dir()
                {
                    names.push(name);
                }
            }
            names.sort_unstable();
            Ok(names)
        };
        listed().map_err(|error| OpenError::io("list", &dir, error))
    }
}

/// Makes a directory, and those above it, whose names are durable.
fn make_dir(path: &Path) -> Result<(), OpenError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    make_dir(parent)?;
    fs::create_dir(path)
        .and_then(|()| durable::sync_dir(parent))
        .map_err(|error| OpenError::io("make the directory", path, error))
}

/// Checks the version of the layout, or writes it into a directory that is new.
fn check_format(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(FORMAT_FILE);
    match fs::read_to_string(&path) {
        Ok(text) => match text.trim_end().parse::<u32>() {
            Ok(FORMAT) => Ok(()),
            Ok(newer) if newer > FORMAT => Err(OpenError::Format(format!(
                "{} has format {newer}, made by a newer version; this one reads up to {FORMAT}",
                dir.display()
            ))),
            _ => Err(OpenError::Format(format!(
                "{} holds no version of a data directory's format",
                path.display()
            ))),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(other) = stranger(dir)? {
                return Err(OpenError::Format(format!(
                    "{} is not a publisher's data directory: it holds {other:?} and no file {FORMAT_FILE}",
                    dir.display()
                )));
            }
            durable::replace(&path, format!("{FORMAT}\n").as_bytes())
                .map_err(|error| OpenError::io("write", &path, error))?;
            Ok(())
        }
        Err(error) => Err(OpenError::io("read", &path, error)),
    }
}

/// Something that a new data directory does not hold.
fn stranger(dir: &Path) -> Result<Option<String>, OpenError> {
    let files = fs::read_dir(dir).map_err(|error| OpenError::io("list", dir, error))?;
    for file in files {
        let name = file.map_err(|error| OpenError::io("list", dir, error))?.file_name();
        let name = name.to_string_lossy();
        // `lost+found` stands at the root of some file systems.
        if name != LOCK_FILE && name != "lost+found" && !name.ends_with(durable::UNFINISHED) {
            return Ok(Some(name.into_owned()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().expect("a directory");
        let held = DataDir::open(dir.path()).expect("free");
        let refused = DataDir::open(dir.path()).expect_err("in use");
        assert!(matches!(&refused, OpenError::InUse(text) if text.contains("in use")));
        drop(held);
        DataDir::open(dir.path()).expect("free again");
    }

    #[test]
    fn logs_are_listed_and_what_stands_beside_them_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let data = DataDir::open(&dir.path().join("new/deep")).expect("made");
        for name in ["main", "audit", "main~before-1"] {
            assert!(data.log_dir(name).expect("made").is_dir());
        }
        assert_eq!(data.logs().expect("listed"), ["audit", "main"]);
    }

    #[test]
    fn a_newer_or_foreign_directory_is_refused_in_one_sentence() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FORMAT_FILE), "2\n").expect("written");
        let newer = DataDir::open(dir.path()).expect_err("newer").to_string();
        assert!(newer.contains("format 2") && newer.contains("up to 1"), "{newer}");
        fs::remove_file(dir.path().join(FORMAT_FILE)).expect("removed");
        fs::write(dir.path().join("holiday.jpg"), "").expect("written");
        let foreign = DataDir::open(dir.path()).expect_err("foreign").to_string();
        assert!(foreign.contains("holiday.jpg"), "{foreign}");
    }

    #[test]
    fn a_file_in_the_place_of_the_directory_is_said() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        fs::write(&path, "").expect("written");
        let refused = DataDir::open(&path).expect_err("a file").to_string();
        assert!(refused.starts_with("cannot make the directory"), "{refused}");
    }
}
