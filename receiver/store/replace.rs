//! Puts a staged file in the place of all that the database holds: page by page, in one
//! transaction. Whoever reads meanwhile sees the old content, and the new one from the
//! commit on; after a crash it is one or the other.

use std::path::Path;

use rusqlite::{
    backup::{Backup, StepResult},
    ffi,
};

use super::{Store, staged::open_staged};
use crate::proto::{crash, limits::INSTALL_PIECE_PAGES};

/// Copies a file that has been checked over the database. On return the commit is on
/// stable storage, and the store has to be opened again: what it knows of the write-ahead
/// log is no longer true. `false`: `go_on` has said no, and nothing has changed.
///
/// # Errors
/// Whatever SQLite says. After an error of the commit the outcome is not known.
pub fn replace(
    store: &mut Store,
    staged: &Path,
    go_on: &dyn Fn() -> bool,
) -> rusqlite::Result<bool> {
    let source = open_staged(staged)?;
    let copy = Backup::new(&source, &mut store.connection)?;
    // How many pages there are is known only after a first step.
    let mut pages = 1;
    loop {
        if !go_on() {
            return Ok(false);
        }
        // The step that copies the last page also commits.
        if (1..=pages).contains(&copy.progress().remaining) {
            crash::point(crash::RECEIVER_RESYNC_BEFORE_COMMIT);
        }
        match copy.step(pages)? {
            StepResult::Done => break,
            StepResult::More => crash::point(crash::RECEIVER_RESYNC_COPYING),
            _ => return Err(busy()),
        }
        pages = INSTALL_PIECE_PAGES;
    }
    crash::point(crash::RECEIVER_RESYNC_AFTER_COMMIT);
    Ok(true)
}

fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
}
