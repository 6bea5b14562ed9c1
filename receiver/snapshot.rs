//! A snapshot of the database, for the publisher to keep: a copy at one moment, in a file
//! beside it, with its hash and the cursor in it. Runs on a thread that may block; knows
//! nothing of the network.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::{
    copy::{self, CopyError},
    store::{
        Kind, lock,
        staged::{self, Unfit},
    },
};
use crate::proto::{chain::Cursor, crash};

/// What the file of a snapshot has behind the database's name.
const ENDING: &str = ".snapshot";

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum MakeError {
    /// There is no copy.
    #[error("{0}")]
    Copy(#[from] CopyError),
    /// Nobody could go on from the copy.
    #[error("nobody could go on from a copy of this database: {0}")]
    Unfit(#[from] Unfit),
}

/// A snapshot in its file, which goes away with it.
#[derive(Debug)]
pub struct Made {
    /// The file.
    pub file: PathBuf,
    /// Everything up to here is in it, and nothing else.
    pub cursor: Cursor,
    /// Its size in bytes.
    pub size: u64,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.file) {
            tracing::warn!(%error, file = %self.file.display(), "a snapshot's file cannot be removed");
        }
    }
}

/// Takes away what a process before this one has left.
pub fn sweep(db: &Path) {
    let file = lock::beside(db, ENDING);
    match fs::remove_file(&file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, file = %file.display(), "a snapshot's file cannot be removed");
        }
        _ => {}
    }
}

/// Makes a snapshot. On return it is on stable storage. None: nothing is applied yet.
///
/// # Errors
/// [`MakeError`].
pub fn make(db: &Path, kind: &Kind) -> Result<Option<Made>, MakeError> {
    let file = lock::beside(db, ENDING);
    sweep(db);
    copy::copy_unsynced(db, &file)?;
    crash::point(crash::RECEIVER_SNAPSHOT_COPIED);
    let nothing = Cursor::beginning(uuid::Uuid::nil());
    let mut made = Made { file, cursor: nothing, size: 0, sha256: [0; 32] };
    copy::sync(&made.file)?;
    let cursor = staged::cursor_in(&made.file, &kind.log).map_err(CopyError::from)?;
    let Some(cursor) = cursor else { return Ok(None) };
    // As whoever goes on from it will: one that nobody can install is not offered.
    staged::check(&made.file, kind, Some(&cursor))?;
    made.cursor = cursor;
    (made.size, made.sha256) = hash(&made.file).map_err(CopyError::from)?;
    crash::point(crash::RECEIVER_SNAPSHOT_MADE);
    Ok(Some(made))
}

fn hash(file: &Path) -> io::Result<(u64, [u8; 32])> {
    let mut file = File::open(file)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut size = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok((size, hash.finalize().into())),
            count => {
                hash.update(&buffer[..count]);
                size += count as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{
        decide::place,
        inventory::Inventory,
        store,
        testing::{adjustments, cursor_after},
        transaction,
    };

    #[test]
    fn a_snapshot_is_the_database_at_one_moment_and_goes_away() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        let kind = Kind::of("main", &Inventory).expect("declared");
        assert!(make(&db, &kind).expect("copied").is_none(), "nothing is applied");
        let events = adjustments(0, 3);
        let after = cursor_after(&events);
        let (steps, _) = place(cursor_after(&[]), events, &after).expect("fits");
        transaction::commit(&store, &Inventory, None, &steps).expect("committed");
        let made = make(&db, &kind).expect("copied").expect("three events");
        let bytes = fs::read(&made.file).expect("readable");
        assert_eq!((made.cursor, made.size), (after, bytes.len() as u64));
        assert_eq!(made.sha256, <[u8; 32]>::from(Sha256::digest(&bytes)));
        staged::check(&made.file, &kind, Some(&after)).expect("what is made is fit");
        let file = made.file.clone();
        drop(made);
        assert!(!file.exists());
        store.connection.execute_batch("ALTER TABLE stock ADD COLUMN place TEXT").expect("altered");
        let unfit = make(&db, &kind).expect_err("nobody could install it").to_string();
        assert!(unfit.contains("its tables are not those of this version"), "{unfit}");
        assert!(!file.exists());
        fs::write(&file, "a leftover").expect("written");
        sweep(&db);
        assert!(!file.exists());
        assert!(db.exists());
    }
}
