//! Keeping receipts on stable storage: saving new ones before their events go,
//! moving the key floor, forgetting what lies below it. Runs on the appender's
//! thread, between two groups; it alone changes receipts, so what it has read
//! stays true until it changes it.
//!
//! Each step writes new files, then the manifest that names them, then changes what
//! is looked up, then removes the files that are no longer named. A crash leaves the
//! old state or the new one, and files that are named nowhere.

use std::{
    collections::{HashMap, HashSet},
    fs,
    ops::Range,
    path::{Path, PathBuf},
    sync::RwLock,
    time::Duration,
};

use super::{
    Accepted, Receipts, change, file,
    fold::Hash,
    format::{Content, Header},
    is_live, look,
    manifest::{self, Manifest, Part},
};
use crate::{
    proto::{crash, event::Sequence},
    publisher::{
        durable::{self, Latch},
        log::{CommitError, OpenError},
    },
};

/// So many receipts go into a file: what a start reads again from the log, and what
/// memory holds twice, stays below it.
pub const FLUSH_ROWS: usize = 32_768;
/// Files that are written anew in one go, at most: after a step of the clock all of
/// them may have something to forget, and publishers wait meanwhile.
const FORGET_PARTS: usize = 8;
/// So many neighbours are made one when they fit one file together: a log that has
/// forgotten nearly everything has few files all the same.
const MERGE_PARTS: usize = 16;

/// Writes the receipts of one log.
#[derive(Debug)]
pub struct Store {
    /// None: nothing is kept.
    disk: Option<Disk>,
    /// New receipts are saved when there are so many.
    flush_at: usize,
}

#[derive(Debug)]
struct Disk {
    dir: PathBuf,
    /// Closed by a failed write.
    latch: Latch,
    /// First sequences of parts that could not be read: left as they are.
    unreadable: Vec<Sequence>,
}

impl Store {
    /// Keeps receipts in a log's directory.
    pub(super) fn new(dir: PathBuf, latch: Latch) -> Self {
        let disk = Disk { dir, latch, unreadable: Vec::new() };
        Store { disk: Some(disk), flush_at: FLUSH_ROWS }
    }

    /// Keeps nothing.
    pub(super) fn in_memory() -> Self {
        Store { disk: None, flush_at: usize::MAX }
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
        let window_ms = i64::try_from(key_window.as_millis()).unwrap_or(i64::MAX);
        let key_floor_ms = clock_ms.saturating_sub(window_ms);
        let mut manifest = {
            let receipts = look(receipts);
            if key_floor_ms < receipts.key_floor_ms().saturating_add(step_ms(window_ms)) {
                return Ok(());
            }
            receipts.manifest.clone()
        };
        manifest.key_floor_ms = key_floor_ms;
        manifest.clock_ms = manifest.clock_ms.max(clock_ms);
        self.write(&manifest)?;
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
        let saved = self.save(receipts);
        // A full disk is not asked again for every group.
        self.flush_at = if saved.is_ok() { FLUSH_ROWS } else { fresh + FLUSH_ROWS };
        saved
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
        Ok(())
    }

    /// Forgets receipts below the key floor, as many files at a time as publishers can
    /// wait for, and keeps the number of files small.
    ///
    /// # Errors
    /// [`CommitError`]; nothing has been forgotten but what its files say.
    pub fn forget(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        for _ in 0..FORGET_PARTS {
            if !disk.forget_one(receipts)? {
                return disk.merge_some(receipts);
            }
        }
        Ok(())
    }

    pub(super) fn write(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        self.disk.as_mut().map_or(Ok(()), |disk| disk.write(manifest))
    }
}

impl Disk {
    /// Writes the manifest, durably.
    fn write(&mut self, manifest: &Manifest) -> Result<(), CommitError> {
        self.latch.check()?;
        durable::replace(&self.dir.join(manifest::FILE), &manifest.encode())
            .map_err(|error| self.latch.judge("saving the list of receipts", &error))?;
        Ok(())
    }

    /// Writes a file, durably. It does not count before the manifest names it.
    fn add(&mut self, content: &Content, generation: u64) -> Result<Part, CommitError> {
        self.latch.check()?;
        let path = file::path(&self.dir, content.header.first, generation);
        durable::replace(&path, &content.encode())
            .map_err(|error| self.latch.judge("saving receipts", &error))?;
        Ok(Part::of(content, generation))
    }

    /// Forgets what has expired in the first file that has only such receipts beside
    /// those that are kept for ever. Says whether there was one.
    fn forget_one(&mut self, receipts: &RwLock<Receipts>) -> Result<bool, CommitError> {
        let (at, part) = {
            let receipts = look(receipts);
            let floor_ms = receipts.key_floor_ms();
            let expired = |part: &Part| {
                part.newest_ms.is_some_and(|newest_ms| newest_ms < floor_ms)
                    && !self.unreadable.contains(&part.first)
            };
            match receipts.manifest.parts.iter().position(expired) {
                Some(at) => (at, receipts.manifest.parts[at].clone()),
                None => return Ok(false),
            }
        };
        let Some(mut content) = self.read(&part) else { return Ok(true) };
        let kept = |(_, accepted): &mut (Hash, Accepted)| accepted.time_ms.is_some();
        let forgotten = content.receipts.extract_if(.., kept).collect::<Vec<_>>();
        content.header.rows = content.receipts.len() as u64;
        self.supersede(at..at + 1, content, &forgotten, receipts)?;
        Ok(true)
    }

    /// Makes one file of many small neighbours, where there are some.
    fn merge_some(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let (at, parts) = {
            let parts = &look(receipts).manifest.parts;
            match small_neighbours(parts, &self.unreadable) {
                Some(at) => (at.clone(), parts[at].to_vec()),
                None => return Ok(()),
            }
        };
        let Some(contents) = parts.iter().map(|part| self.read(part)).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        match merged(contents) {
            Some(content) => self.supersede(at, content, &[], receipts),
            None => Ok(()),
        }
    }

    /// Reads what is to be written anew. A file that cannot be read is left alone:
    /// whoever asks for a receipt in it is told.
    fn read(&mut self, part: &Part) -> Option<Content> {
        match file::read(&file::path(&self.dir, part.first, part.generation)) {
            Ok(content) if part.is(&content.header) => Some(content),
            other => {
                let why = other.map(|_| "it is another file".to_owned());
                let why = why.unwrap_or_else(|error: OpenError| error.to_string());
                tracing::error!(first = part.first, why, "receipts cannot be read");
                self.unreadable.push(part.first);
                None
            }
        }
    }

    /// Puts a file in the place of some parts.
    fn supersede(
        &mut self,
        at: Range<usize>,
        mut content: Content,
        forgotten: &[(Hash, Accepted)],
        receipts: &RwLock<Receipts>,
    ) -> Result<(), CommitError> {
        let mut manifest = look(receipts).manifest.clone();
        content.header.key_floor_ms = manifest.key_floor_ms;
        content.header.clock_ms = manifest.clock_ms;
        let generation =
            manifest.parts[at.clone()].iter().map(|part| part.generation).max().unwrap_or(0) + 1;
        let part = self.add(&content, generation)?;
        let superseded: Vec<Part> = manifest.parts.splice(at, [part]).collect();
        self.write(&manifest)?;
        crash::point(crash::PUBLISHER_AFTER_FORGET);
        change(receipts).superseded(manifest, forgotten);
        // Nobody looks them up any more; the change above has waited for who did.
        for part in superseded {
            let path = file::path(&self.dir, part.first, part.generation);
            fs::remove_file(&path)
                .map_err(|error| self.latch.close("removing old receipts", &error))?;
        }
        Ok(())
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

    /// Some parts have others in their place, without some receipts.
    fn superseded(&mut self, manifest: Manifest, forgotten: &[(Hash, Accepted)]) {
        for (key, accepted) in forgotten {
            self.index.remove(key, accepted.sequence);
        }
        self.manifest = manifest;
    }
}

/// How far the key floor moves in one step: a thousandth of the window, so that
/// storing it costs next to nothing, and receipts live hardly longer for it.
fn step_ms(window_ms: i64) -> i64 {
    (window_ms / 1_000).clamp(1, 60_000)
}

/// The first neighbours that are so small that one file can hold them, if there are
/// enough of them.
fn small_neighbours(parts: &[Part], except: &[Sequence]) -> Option<Range<usize>> {
    let mut run = 0..0;
    let mut rows = 0;
    for (at, part) in parts.iter().enumerate() {
        rows += part.rows;
        run.end = at + 1;
        if except.contains(&part.first) {
            (run, rows) = (at + 1..at + 1, 0);
        }
        while rows > FLUSH_ROWS as u64 {
            // Before one more was too many, there may have been enough.
            if run.len() > MERGE_PARTS {
                return Some(run.start..at);
            }
            rows -= parts[run.start].rows;
            run.start += 1;
        }
    }
    (run.len() >= MERGE_PARTS).then_some(run)
}

/// One file out of neighbours; None where there are none.
fn merged(contents: Vec<Content>) -> Option<Content> {
    let mut header = contents.first()?.header;
    let mut receipts = Vec::new();
    let mut subjects = HashMap::new();
    for content in contents {
        header.end = content.header.end;
        header.oldest_stated_ms = header.oldest_stated_ms.min(content.header.oldest_stated_ms);
        receipts.extend(content.receipts);
        // Versions rise, so the last is the largest.
        subjects.extend(content.subjects);
    }
    header.rows = receipts.len() as u64;
    header.subjects = subjects.len() as u64;
    Some(Content { header, receipts, subjects: subjects.into_iter().collect() })
}

/// Removes receipts files that a manifest does not name.
///
/// # Errors
/// [`OpenError::Io`].
pub(super) fn remove_unnamed(dir: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    let named: HashSet<_> =
        manifest.parts.iter().map(|part| (part.first, part.generation)).collect();
    for found in file::list(dir)? {
        if !named.contains(&(found.first, found.generation)) {
            fs::remove_file(&found.path)
                .map_err(|error| OpenError::io("remove", &found.path, error))?;
        }
    }
    Ok(())
}
