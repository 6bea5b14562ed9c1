//! What is given up on order stays beside the database, one copy for one order, until a
//! person removes it. It has its name only once it is whole.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::receiver::{
    copy::{self, CopyError},
    store::lock,
};

/// What a copy that is not whole yet has behind the database's name.
const PART: &str = ".before-resync.part";

/// Takes away what a process that was killed has left.
pub fn sweep(db: &Path) {
    let part = lock::beside(db, PART);
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, file = %part.display(), "half a copy cannot be removed");
        }
        _ => {}
    }
}

/// Copies the database. On return the copy is on stable storage.
///
/// # Errors
/// [`CopyError`]. Then there is none.
pub fn keep(db: &Path) -> Result<PathBuf, CopyError> {
    sweep(db);
    let part = lock::beside(db, PART);
    let kept = name(&part, db).inspect_err(|_| sweep(db))?;
    lock::sync_directory(db)?;
    Ok(kept)
}

fn name(part: &Path, db: &Path) -> Result<PathBuf, CopyError> {
    copy::copy(db, part)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let kept = lock::beside(db, &format!(".before-resync-{}", now.as_millis()));
    if kept.exists() {
        return Err(io::Error::from(io::ErrorKind::AlreadyExists).into());
    }
    fs::rename(part, &kept)?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{inventory::Inventory, store};

    #[test]
    fn what_is_kept_is_whole_or_not_there() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        let part = lock::beside(&db, PART);
        fs::write(&part, "a leftover").expect("written");
        let kept = keep(&db).expect("kept");
        assert!(!part.exists());
        let tables = store::open_for_reading(&kept).expect("opened");
        store::is_receivers(&tables).expect("whole");
        drop(store);
        fs::write(&part, "a leftover").expect("written");
        sweep(&db);
        assert!(!part.exists() && kept.exists());
        keep(&directory.path().join("none.db")).expect_err("there is nothing to keep");
        assert!(!lock::beside(&directory.path().join("none.db"), PART).exists());
    }
}
