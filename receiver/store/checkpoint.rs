//! Keeps the write-ahead log small. SQLite's own checkpoints are off, because
//! they swallow errors of a sync; here every error is told.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, hooks::Wal as Handle, wal::CheckpointMode};

use super::{Store, gate::Gate, lock, trouble};
use crate::proto::crash;

/// Pages after which the log is copied into the database: 4 MiB at 4 KiB each.
const CHECKPOINT_PAGES: u32 = 1_024;
/// A file that has grown beyond this is cut, as soon as no reader needs it.
/// Copying alone never shrinks it.
const TRUNCATE_BYTES: u64 = 16 * 1024 * 1024;
/// Pages at which readers are in the way if the log has not started over by then.
const CROWDED_PAGES: u32 = 4 * CHECKPOINT_PAGES;
/// How often the size of the file is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// What is known of the write-ahead log.
pub(super) struct Wal {
    file: PathBuf,
    /// Pages in it, as the last commit told.
    pages: Arc<AtomicU32>,
    /// The number of pages at which to copy next.
    next: u32,
    /// Pages at the commit before, to see when it starts over.
    before: u32,
    looked: Instant,
    /// For those who read beside the writer.
    gate: Gate,
}

impl Wal {
    pub(super) fn watch(
        connection: &mut Connection,
        db: &std::path::Path,
    ) -> rusqlite::Result<Self> {
        let pages = Arc::new(AtomicU32::new(0));
        let told = pages.clone();
        connection.wal_hook(Some(move |_: &mut Handle, count: std::ffi::c_int| {
            told.store(u32::try_from(count).unwrap_or(0), Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Wal {
            file: lock::beside(db, "-wal"),
            pages,
            next: CHECKPOINT_PAGES,
            before: 0,
            looked: Instant::now(),
            gate: Gate::default(),
        })
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.file).map_or(0, |file| file.len())
    }
}

/// The barrier after an open: what a killed predecessor has left in the page
/// cache is made durable before anything of it is served or acknowledged.
/// `false`: a reader is in the way.
pub(super) fn barrier(connection: &Connection) -> rusqlite::Result<bool> {
    checkpoint(connection, CheckpointMode::TRUNCATE)
}

/// `false`: others use the file, and part of it has to wait.
fn checkpoint(connection: &Connection, mode: CheckpointMode) -> rusqlite::Result<bool> {
    let done = match connection.wal_checkpoint_v2(None::<&str>, mode) {
        Ok((pages, copied)) => pages == copied,
        Err(error) if trouble::judge(&error) == trouble::Trouble::Busy => false,
        Err(error) => return Err(error),
    };
    crash::point(crash::RECEIVER_AFTER_CHECKPOINT);
    Ok(done)
}

impl Store {
    /// To be called after each commit. Copies or cuts the log where it is due.
    ///
    /// # Errors
    /// Whatever SQLite says: but for a full disk, the store is broken.
    pub fn after_commit(&mut self) -> rusqlite::Result<()> {
        let pages = self.wal.pages.load(Ordering::Relaxed);
        if pages < self.wal.before {
            self.wal.next = CHECKPOINT_PAGES;
        }
        self.wal.before = pages;
        if self.wal.gate.is_closed() {
            if self.wal.gate.is_empty() {
                self.cut()?;
            }
            return Ok(());
        }
        if self.wal.looked.elapsed() >= LOOK {
            self.wal.looked = Instant::now();
            if self.wal.bytes() > TRUNCATE_BYTES {
                if !self.cut()? {
                    self.wal.gate.close();
                }
                return Ok(());
            }
        }
        if pages >= self.wal.next {
            checkpoint(&self.connection, CheckpointMode::PASSIVE)?;
            // A reader may keep it from starting over; then not at every commit again.
            self.wal.next = pages + CHECKPOINT_PAGES;
            if pages >= CROWDED_PAGES {
                self.wal.gate.close();
            }
        }
        Ok(())
    }

    /// The gate that readers beside this connection come through.
    pub fn gate(&self) -> &Gate {
        &self.wal.gate
    }

    /// Takes over the gate of the store before this one, and opens it.
    pub fn take_over(&mut self, gate: Gate) {
        gate.open();
        self.wal.gate = gate;
    }

    /// To be called when nothing has happened for a while. `true`: nothing is left to do.
    ///
    /// # Errors
    /// As [`Store::after_commit`].
    pub fn when_idle(&mut self) -> rusqlite::Result<bool> {
        if self.wal.bytes() == 0 {
            self.wal.gate.open();
            return Ok(true);
        }
        self.cut()
    }

    fn cut(&mut self) -> rusqlite::Result<bool> {
        // A reader in the way is not waited for: there will be another time.
        self.connection.busy_timeout(Duration::ZERO)?;
        let done = checkpoint(&self.connection, CheckpointMode::TRUNCATE);
        // Where it could not be cut, nobody need wait outside for that.
        self.wal.gate.open();
        let done = done?;
        self.connection.busy_timeout(super::open::BUSY_TIMEOUT)?;
        if done {
            self.wal.pages.store(0, Ordering::Relaxed);
            (self.wal.next, self.wal.before) = (CHECKPOINT_PAGES, 0);
        }
        Ok(done)
    }

    /// Copies what is left into the database and closes it.
    ///
    /// # Errors
    /// As [`Store::after_commit`].
    pub fn close(mut self) -> rusqlite::Result<()> {
        self.cut()?;
        self.connection.close().map_err(|(_, error)| error)
    }
}
