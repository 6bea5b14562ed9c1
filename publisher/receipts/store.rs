//! Keeping receipts on stable storage: moving the key floor, saving new receipts
//! before their events go; [`super::forget`] drops what lies below the floor. Runs on
//! the appender's thread, between two groups; it alone changes receipts, so what it
//! has read stays true until it changes it. Under load a thread beside it writes the new
//! receipts of many events; until it has, receipts are only added.
//!
//! Each step writes new files, then the manifest that names them, then changes what
//! is looked up, then removes the files that are no longer named. A crash leaves the
//! old state or the new one, and files that are named nowhere.

use std::{
    collections::HashMap,
    panic,
    path::PathBuf,
    sync::{Arc, RwLock},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{
    Receipts, Shared, change, file,
    format::{Content, Header},
    is_live, look,
    manifest::{self, Manifest, Part},
};
use crate::{
    proto::{
        crash,
        event::{Sequence, duration_millis},
    },
    publisher::{
        durable::{self, Latch},
        log::CommitError,
    },
};

/// So many receipts go into a file. While one is written as many again may gather: what a
/// start reads again from the log, and what memory holds, stays below twice as many.
pub const FLUSH_ROWS: usize = 32_768;

/// Rows that are copied out of memory in one go: so long the appender may wait for them.
const COPIED_ROWS: usize = 1_024;

/// So long after a full disk the key floor is not moved.
const RETRY_MS: i64 = 1_000;

/// Writes the receipts of one log.
#[derive(Debug)]
pub struct Store {
    /// None: nothing is kept.
    disk: Option<Disk>,
    /// New receipts are saved when there are so many.
    flush_at: usize,
    /// The key floor is not moved before the clock shows this.
    advance_from_ms: i64,
    /// The thread that saves new receipts.
    saving: Option<JoinHandle<Saved>>,
}

/// The manifest with the new file in it, on stable storage; none: there was nothing new.
type Saved = Result<Option<Manifest>, CommitError>;

#[derive(Debug, Clone)]
pub(super) struct Disk {
    pub(super) dir: PathBuf,
    /// Closed by a failed write.
    pub(super) latch: Latch,
    /// First sequences of parts that could not be read: left as they are.
    pub(super) unreadable: Vec<Sequence>,
}

impl Store {
    /// Keeps receipts in a log's directory.
    pub(super) fn new(dir: PathBuf, latch: Latch) -> Self {
        Store::of(Some(Disk { dir, latch, unreadable: Vec::new() }), FLUSH_ROWS)
    }

    /// Keeps nothing.
    pub(super) fn in_memory() -> Self {
        Store::of(None, usize::MAX)
    }

    fn of(disk: Option<Disk>, flush_at: usize) -> Self {
        Store { disk, flush_at, advance_from_ms: i64::MIN, saving: None }
    }

    /// Moves the key floor up to where the clock and the window have it, if that is far
    /// enough to be worth a write. It counts once it is on stable storage.
    ///
    /// # Errors
    /// [`CommitError`]; the floor is where it was.
    pub fn advance(
        &mut self,
        receipts: &RwLock<Receipts>,
        clock_ms: i64,
        key_window: Duration,
    ) -> Result<(), CommitError> {
        let window_ms = duration_millis(key_window);
        let key_floor_ms = clock_ms.saturating_sub(window_ms);
        let far_enough = look(receipts).key_floor_ms().saturating_add(step_ms(window_ms));
        if key_floor_ms < far_enough || clock_ms < self.advance_from_ms {
            return Ok(());
        }
        self.finish(receipts)?;
        let mut manifest = look(receipts).manifest.clone();
        manifest.key_floor_ms = key_floor_ms;
        manifest.clock_ms = manifest.clock_ms.max(clock_ms);
        // A full disk is not asked again for every group.
        let again_ms = clock_ms.saturating_add(RETRY_MS);
        self.write(&manifest).inspect_err(|_| self.advance_from_ms = again_ms)?;
        crash::point(crash::PUBLISHER_AFTER_KEY_FLOOR);
        change(receipts).manifest = manifest;
        Ok(())
    }

    /// Saves the new receipts, if enough have gathered.
    ///
    /// # Errors
    /// [`CommitError`]; they are held in memory as before.
    pub fn save_if_many(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let fresh = look(receipts).fresh.len();
        if fresh < self.flush_at {
            return Ok(());
        }
        // A full disk is not asked again for every group.
        self.flush_at = fresh + FLUSH_ROWS;
        self.save(receipts)
    }

    /// The same beside the caller, who is told by a later call how it went. Meanwhile new ones
    /// gather; where those are as many again, this waits.
    ///
    /// # Errors
    /// [`CommitError`]; they are held in memory as before.
    pub fn save_beside(&mut self, receipts: &Shared) -> Result<(), CommitError> {
        let (fresh, next) = {
            let receipts = look(receipts);
            (receipts.fresh.len(), receipts.next())
        };
        match (&self.saving, &self.disk) {
            (Some(saving), _) if !saving.is_finished() && fresh < self.flush_at => Ok(()),
            (Some(_), _) => self.finish(receipts),
            (None, Some(disk)) if fresh >= self.flush_at => {
                self.flush_at = fresh + FLUSH_ROWS;
                let (mut disk, shared) = (disk.clone(), Arc::clone(receipts));
                let thread = thread::Builder::new().name("receipts".to_owned());
                match thread.spawn(move || disk.save(next, &shared)) {
                    Ok(saving) => self.saving = Some(saving),
                    // There is no thread to be had.
                    Err(_) => self.save(receipts)?,
                }
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    /// Makes the receipts of all events below a sequence outlive those.
    ///
    /// # Errors
    /// [`CommitError`]; the events must stay.
    pub fn save_below(
        &mut self,
        end: Sequence,
        receipts: &RwLock<Receipts>,
    ) -> Result<(), CommitError> {
        let is_saved = || look(receipts).position() >= end;
        if !is_saved() {
            self.finish(receipts)?;
        }
        if is_saved() { Ok(()) } else { self.save(receipts) }
    }

    /// Saves all new receipts in a file of their own.
    pub(super) fn save(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        self.finish(receipts)?;
        let next = look(receipts).next();
        let saved = self.disk.as_mut().map_or(Ok(None), |disk| disk.save(next, receipts));
        self.take_note(saved, receipts)
    }

    /// Forgets receipts below the key floor, as many files at a time as publishers can
    /// wait for, and keeps the number of files small.
    ///
    /// # Errors
    /// [`CommitError`]; what could not be forgotten is held as before.
    pub fn forget(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        self.finish(receipts)?;
        self.disk.as_mut().map_or(Ok(()), |disk| disk.forget(receipts))
    }

    /// Waits for the thread beside, if there is one, and takes note of what it has done.
    pub(super) fn finish(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let Some(saving) = self.saving.take() else { return Ok(()) };
        let saved = saving.join().unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        self.take_note(saved, receipts)
    }

    fn take_note(&mut self, saved: Saved, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        if let Some(manifest) = saved? {
            change(receipts).saved(manifest);
            self.flush_at = FLUSH_ROWS;
        }
        Ok(())
    }

    pub(super) fn write(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.write(manifest))
    }
}

impl Drop for Store {
    /// The directory is left to whoever opens it next.
    fn drop(&mut self) {
        if let Some(saving) = self.saving.take() {
            let _ = saving.join();
        }
    }
}

impl Disk {
    /// Saves the new receipts below a sequence in a file of their own.
    fn save(&mut self, end: Sequence, receipts: &RwLock<Receipts>) -> Saved {
        let mut manifest = look(receipts).manifest.clone();
        if end == manifest.position() {
            return Ok(None);
        }
        let part = self.add(&unsaved(receipts, &manifest, end), 0)?;
        crash::point(crash::PUBLISHER_AFTER_RECEIPTS_FILE);
        manifest.parts.push(part);
        self.write(&manifest)?;
        crash::point(crash::PUBLISHER_AFTER_RECEIPTS_MANIFEST);
        Ok(Some(manifest))
    }

    /// Writes the manifest, durably.
    pub(super) fn write(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        self.latch.check()?;
        durable::replace(&self.dir.join(manifest::FILE), &manifest.encode())
            .map_err(|error| self.latch.judge("saving the list of receipts", &error))?;
        Ok(())
    }

    /// Writes a file, durably. It does not count before the manifest names it.
    pub(super) fn add(&mut self, content: &Content, generation: u64) -> Result<Part, CommitError> {
        self.latch.check()?;
        let path = file::path(&self.dir, content.header.first, generation);
        durable::replace(&path, &content.encode())
            .map_err(|error| self.latch.judge("saving receipts", &error))?;
        Ok(Part::of(content, generation))
    }
}

/// The new receipts below a sequence that have not expired, as a file will hold them.
fn unsaved(receipts: &RwLock<Receipts>, manifest: &Manifest, end: Sequence) -> Content {
    let first = manifest.position();
    let count = (end - first) as usize;
    let mut subjects = HashMap::new();
    let mut live = Vec::with_capacity(count);
    let mut oldest_stated_ms = i64::MAX;
    for from in (0..count).step_by(COPIED_ROWS) {
        let until = count.min(from + COPIED_ROWS);
        let copied = look(receipts).fresh[from..until].to_vec();
        for (names, accepted) in copied {
            // Versions rise, so the last is the largest.
            subjects.insert(names.subject, accepted.subject_version);
            if let Some(time_ms) = accepted.time_ms.filter(|_| names.stated) {
                oldest_stated_ms = oldest_stated_ms.min(time_ms);
            }
            if is_live(accepted.time_ms, manifest.key_floor_ms) {
                live.push((names.key, accepted));
            }
        }
    }
    let header = Header {
        log_id: manifest.log_id,
        first,
        end,
        rows: live.len() as u64,
        subjects: subjects.len() as u64,
        key_floor_ms: manifest.key_floor_ms,
        clock_ms: manifest.clock_ms,
        oldest_stated_ms,
    };
    Content { header, receipts: live, subjects: subjects.into_iter().collect() }
}

impl Receipts {
    /// The first of the new receipts are in the last part of the manifest.
    fn saved(&mut self, manifest: Manifest) {
        let count = (manifest.position() - self.position()) as usize;
        for (names, accepted) in self.fresh.drain(..count) {
            if !is_live(accepted.time_ms, manifest.key_floor_ms) {
                self.index.remove(&names.key, accepted.sequence);
            }
        }
        // Events that have come meanwhile have moved these.
        let Manifest { clock_ms, oldest_stated_ms, .. } = self.manifest;
        self.manifest = Manifest {
            clock_ms: clock_ms.max(manifest.clock_ms),
            oldest_stated_ms: oldest_stated_ms.min(manifest.oldest_stated_ms),
            ..manifest
        };
    }
}

/// How far the key floor moves in one step: a thousandth of the window, so that
/// storing it costs next to nothing, and receipts live hardly longer for it.
fn step_ms(window_ms: i64) -> i64 {
    (window_ms / 1_000).clamp(1, 60_000)
}
