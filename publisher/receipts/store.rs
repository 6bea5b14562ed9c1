//! Keeping receipts on stable storage: moving the key floor, saving new receipts
//! before their events go; [`super::forget`] drops what lies below the floor. Runs on
//! the appender's thread, between two groups; it alone changes receipts, so what it
//! has read stays true until it changes it.
//!
//! Each step writes new files, then the manifest that names them, then changes what
//! is looked up, then removes the files that are no longer named. A crash leaves the
//! old state or the new one, and files that are named nowhere.

use std::{collections::HashMap, path::PathBuf, sync::RwLock, time::Duration};

use super::{
    Receipts, change, file,
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

/// So many receipts go into a file: what a start reads again from the log, and what
/// memory holds twice, stays below it.
pub const FLUSH_ROWS: usize = 32_768;

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
}

#[derive(Debug)]
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
        let disk = Disk { dir, latch, unreadable: Vec::new() };
        Store { disk: Some(disk), flush_at: FLUSH_ROWS, advance_from_ms: i64::MIN }
    }

    /// Keeps nothing.
    pub(super) fn in_memory() -> Self {
        Store { disk: None, flush_at: usize::MAX, advance_from_ms: i64::MIN }
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
        let mut manifest = {
            let receipts = look(receipts);
            if key_floor_ms < receipts.key_floor_ms().saturating_add(step_ms(window_ms))
                || clock_ms < self.advance_from_ms
            {
                return Ok(());
            }
            receipts.manifest.clone()
        };
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
        self.save(receipts).inspect_err(|_| self.flush_at = fresh + FLUSH_ROWS)
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
        let saved = look(receipts).position() >= end;
        if saved { Ok(()) } else { self.save(receipts) }
    }

    /// Saves all new receipts in a file of their own.
    pub(super) fn save(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let (content, mut manifest) = {
            let receipts = look(receipts);
            if receipts.fresh.is_empty() {
                return Ok(());
            }
            (receipts.unsaved(), receipts.manifest.clone())
        };
        let part = disk.add(&content, 0)?;
        crash::point(crash::PUBLISHER_AFTER_RECEIPTS_FILE);
        manifest.parts.push(part);
        disk.write(&manifest)?;
        crash::point(crash::PUBLISHER_AFTER_RECEIPTS_MANIFEST);
        change(receipts).saved(manifest);
        self.flush_at = FLUSH_ROWS;
        Ok(())
    }

    /// Forgets receipts below the key floor, as many files at a time as publishers can
    /// wait for, and keeps the number of files small.
    ///
    /// # Errors
    /// [`CommitError`]; what could not be forgotten is held as before.
    pub fn forget(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.forget(receipts))
    }

    pub(super) fn write(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.write(manifest))
    }
}

impl Disk {
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

impl Receipts {
    /// The new receipts that have not expired, as a file will hold them.
    fn unsaved(&self) -> Content {
        let mut subjects = HashMap::new();
        let mut receipts = Vec::with_capacity(self.fresh.len());
        let mut oldest_stated_ms = i64::MAX;
        for (names, accepted) in &self.fresh {
            // Versions rise, so the last is the largest.
            subjects.insert(names.subject, accepted.subject_version);
            if let Some(time_ms) = accepted.time_ms.filter(|_| names.stated) {
                oldest_stated_ms = oldest_stated_ms.min(time_ms);
            }
            if is_live(accepted.time_ms, self.key_floor_ms()) {
                receipts.push((names.key, accepted.clone()));
            }
        }
        let header = Header {
            log_id: self.manifest.log_id,
            first: self.position(),
            end: self.next(),
            rows: receipts.len() as u64,
            subjects: subjects.len() as u64,
            key_floor_ms: self.manifest.key_floor_ms,
            clock_ms: self.manifest.clock_ms,
            oldest_stated_ms,
        };
        Content { header, receipts, subjects: subjects.into_iter().collect() }
    }

    /// The new receipts are in the last part of the manifest.
    fn saved(&mut self, manifest: Manifest) {
        for (names, accepted) in self.fresh.drain(..) {
            if !is_live(accepted.time_ms, manifest.key_floor_ms) {
                self.index.remove(&names.key, accepted.sequence);
            }
        }
        self.manifest = manifest;
    }
}

/// How far the key floor moves in one step: a thousandth of the window, so that
/// storing it costs next to nothing, and receipts live hardly longer for it.
fn step_ms(window_ms: i64) -> i64 {
    (window_ms / 1_000).clamp(1, 60_000)
}
