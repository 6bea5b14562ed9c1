//! Appending: one owner, one write and one sync for each commit. Readers learn
//! of a commit after its sync and of a release before its file goes.

use std::{
    fs,
    fs::File,
    io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    super::{CommitError, Entry, EventLog, Extent, LogReader, OpenError, ReadError},
    format::{self, FileHeader, FrameHeader},
    meta::{self, Identity},
    reader::{Reader, Segment},
    recover::{self, Trust},
    seal,
};
use crate::{
    proto::{
        chain::{Chain, EMPTY_CHAIN},
        crash,
        event::Sequence,
    },
    publisher::durable::{self, AppendFile, Latch},
};

/// How a log is stored.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// A segment that has reached this size gets no more commits. What is given
    /// back is a whole segment.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: 16 * 1024 * 1024 }
    }
}

/// The durable engine.
#[derive(Debug)]
pub struct SegmentLog {
    dir: PathBuf,
    /// The directory itself, for making its names durable.
    names: File,
    options: Options,
    latch: Latch,
    shared: Arc<Reader>,
    file: AppendFile,
    /// Of the segment that grows.
    salt: u32,
}

impl SegmentLog {
    /// Opens the log in a directory, or makes a new one there. A torn end is put
    /// aside; everything that readers will see is on stable storage on return. The
    /// latch is the directory's, shared with whatever else writes there.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, options: Options, mut latch: Latch) -> Result<Self, OpenError> {
        durable::remove_unfinished(dir)
            .map_err(|error| OpenError::io("remove unfinished files in", dir, error))?;
        let identity = match meta::read(dir)? {
            Some(identity) => identity,
            None => create(dir)?,
        };
        let names = File::open(dir).map_err(|error| OpenError::io("open", dir, error))?;
        let recover::Found { mut state, torn, unsealed } =
            recover::look(dir, &identity, Trust::Seals)?;
        let last = state.last();
        let (path, length, salt) = (last.path.clone(), last.length, last.header.salt);
        let mut settle = || -> io::Result<AppendFile> {
            let file = File::options().read(true).write(true).open(&path)?;
            let mut file = AppendFile::with_zeros_ahead(file, length);
            if !torn.is_empty() {
                let kept = durable::keep_tail(&path, length, &torn)?;
                tracing::warn!(kept = %kept.display(), "the end of {} was torn", path.display());
            }
            file.cut()?;
            for segment in &state.segments {
                latch.barrier(&File::open(&segment.path)?)?;
            }
            latch.barrier(&names)?;
            for (segment, seal) in &unsealed {
                // It is not believed of a file with zeros at its end.
                AppendFile::new(File::options().write(true).open(segment)?, seal.length).cut()?;
                seal.write(segment);
            }
            // It would be believed again once this one is as long as it was.
            seal::remove(&path);
            seal::remove_orphans(dir)?;
            Ok(file)
        };
        let file = settle().map_err(|error| OpenError::io("sync", &path, error))?;
        state.last().file = Some(file.reading());
        let Extent { floor, next, .. } = state.extent;
        let shared = Arc::new(Reader::new(state, identity.ancestors));
        let path = dir.display().to_string();
        let bytes = shared.body_bytes(floor..next).map_err(|error| match error {
            ReadError::Corrupt { sequence, what } => OpenError::Corrupt { path, sequence, what },
            other => OpenError::Damaged { path, what: other.to_string() },
        })?;
        shared.change().extent.bytes = bytes;
        let dir = dir.to_owned();
        Ok(SegmentLog { dir, names, options, latch, shared, file, salt })
    }

    /// Starts the next segment where the present one is large enough.
    fn roll(&mut self) -> Result<(), CommitError> {
        let (extent, first) = {
            let state = self.shared.state();
            (state.extent, state.segments.back().map_or(0, |segment| segment.header.first))
        };
        // Two segments cannot start with the same sequence.
        if self.file.length() < self.options.segment_bytes || extent.next == first {
            return Ok(());
        }
        let header = header(extent.log_id, extent.next, extent.floor, extent.head_chain);
        let path = path(&self.dir, header.first);
        let file = match durable::replace(&path, &header.encode()) {
            Ok(file) => file,
            // The present segment can still grow; the next commit tries again.
            Err(error) if durable::has_run_out(&error) => return Ok(()),
            Err(error) => return Err(self.latch.close("starting a segment", &error)),
        };
        crash::point(crash::PUBLISHER_AFTER_ROLL);
        let file = AppendFile::with_zeros_ahead(file, format::FILE_HEADER_BYTES as u64);
        let mut full = std::mem::replace(&mut self.file, file);
        if let Err(error) = full.cut() {
            // A start takes them for what they are.
            tracing::warn!(%error, "zeros stay at the end of a full segment");
        }
        let mut state = self.shared.change();
        let full = state.last();
        full.close();
        // Only now: a seal says that its segment gets no more commits.
        let (sealed, seal) = (full.path.clone(), full.seal(extent.head_chain, extent.floor));
        self.salt = header.salt;
        let mut segment = Segment::new(path, header);
        segment.file = Some(self.file.reading());
        state.segments.push_back(segment);
        drop(state);
        seal.write(&sealed);
        Ok(())
    }

    /// Bytes of bodies that a floor takes away.
    fn dropped(
        &mut self,
        extent: &Extent,
        entries: &[Entry],
        floor: Sequence,
    ) -> Result<u64, CommitError> {
        let stored = self
            .shared
            .body_bytes(extent.floor..floor.min(extent.next))
            .map_err(|error| self.latch.judge("reading what is truncated", &io_error(error)))?;
        let new = (floor - extent.next).max(0) as usize;
        Ok(stored + body_bytes(&entries[..new]))
    }
}

impl Drop for SegmentLog {
    /// At rest a file ends with its last commit.
    fn drop(&mut self) {
        if self.latch.check().is_ok()
            && let Err(error) = self.file.cut()
        {
            tracing::debug!(%error, "zeros stay at the end of the log");
        }
    }
}

impl EventLog for SegmentLog {
    fn reader(&self) -> Arc<dyn LogReader> {
        Arc::clone(&self.shared) as Arc<dyn LogReader>
    }

    fn commit(&mut self, entries: &[Entry], floor: Sequence) -> Result<(), CommitError> {
        self.latch.check()?;
        let extent = self.shared.extent();
        let next = extent.next + entries.len() as Sequence;
        assert!(floor <= next, "the floor is within the log");
        let raised = floor > extent.floor;
        let floor = floor.max(extent.floor);
        if entries.is_empty() && !raised {
            return Ok(());
        }
        let dropped = self.dropped(&extent, entries, floor)?;
        self.roll()?;
        let mut frame = Vec::new();
        format::encode_frame(&mut frame, self.salt, extent.next, entries, floor).map_err(
            |bytes| CommitError::Halted(format!("a group of {bytes} bytes fits no frame")),
        )?;
        let header = FrameHeader::decode(&frame).expect("a frame was just written");

        crash::point(crash::PUBLISHER_BEFORE_WRITE);
        self.file.write(&frame, &mut self.latch)?;
        crash::point(crash::PUBLISHER_AFTER_WRITE);
        self.file.sync(frame.len() as u64, &mut self.latch)?;
        crash::point(crash::PUBLISHER_AFTER_SYNC);
        if raised {
            crash::point(crash::PUBLISHER_AFTER_FLOOR);
        }

        // As they stand in the frame, which is no larger than they are.
        let mut body = Bytes::from(frame).slice(format::FRAME_HEADER_BYTES..);
        let stored: Vec<_> = std::iter::from_fn(|| format::take_record(&mut body)).collect();
        let mut state = self.shared.change();
        state.last().push(&header);
        state.recent.push(stored);
        state.extent = Extent {
            floor,
            next,
            head_chain: entries.last().map_or(extent.head_chain, |entry| entry.chain),
            bytes: extent.bytes + body_bytes(entries) - dropped,
            ..extent
        };
        Ok(())
    }

    fn releasable(&self) -> Option<Range<Sequence>> {
        let state = self.shared.state();
        let second = state.segments.get(1)?.header.first;
        (second <= state.extent.floor).then(|| state.first()..second)
    }

    fn release(&mut self, range: Range<Sequence>) -> Result<(), CommitError> {
        self.latch.check()?;
        assert_eq!(Some(range), self.releasable(), "exactly what is releasable is released");
        let released = self.shared.change().segments.pop_front();
        if let Some(segment) = released {
            seal::remove(&segment.path);
            fs::remove_file(&segment.path)
                .and_then(|()| self.names.sync_all())
                .map_err(|error| self.latch.close("removing a segment", &error))?;
            crash::point(crash::PUBLISHER_AFTER_RELEASE);
        }
        Ok(())
    }
}

/// Makes a new log. Its identity is written last: a directory that has one had a
/// whole log, so nothing that is missing later is taken for new.
fn create(dir: &Path) -> Result<Identity, OpenError> {
    let files = recover::list(dir).map_err(|error| OpenError::io("list", dir, error))?;
    for (first, file) in &files {
        let length = fs::metadata(file).map_err(|error| OpenError::io("read", file, error))?.len();
        if *first != 0 || length > format::FILE_HEADER_BYTES as u64 {
            return Err(OpenError::Damaged {
                path: dir.display().to_string(),
                what: format!("it has segments, but no file {:?}", meta::FILE),
            });
        }
    }
    let log_id = Uuid::new_v4();
    let path = path(dir, 0);
    durable::replace(&path, &header(log_id, 0, 0, EMPTY_CHAIN).encode())
        .map_err(|error| OpenError::io("create", &path, error))?;
    let identity = Identity::new(log_id);
    meta::write(dir, &identity)?;
    Ok(identity)
}

fn header(log_id: Uuid, first: Sequence, floor: Sequence, chain_before: Chain) -> FileHeader {
    let salt = Uuid::new_v4().as_fields().0;
    FileHeader { log_id, first, floor, chain_before, salt }
}

fn path(dir: &Path, first: Sequence) -> PathBuf {
    dir.join(format!("{first:020}.{}", format::EXTENSION))
}

fn body_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.body.len() as u64).sum()
}

fn io_error(error: ReadError) -> io::Error {
    match error {
        ReadError::Io(error) => error,
        other => io::Error::other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(n: u8) -> Entry {
        Entry { chain: [n; 32], accepted_at_ms: 0, body: vec![n; 20].into() }
    }

    /// A body may be part of a piece of memory that is far larger than what was accepted.
    #[test]
    fn what_a_body_was_part_of_is_not_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let latch = Latch::open(dir.path()).expect("open");
        let mut log = SegmentLog::open(dir.path(), Options::default(), latch).expect("opens");
        let whole = Bytes::from(vec![7; 1 << 20]);
        let parts = [whole.slice(..20), whole.slice(20..50)];
        let entries = parts.map(|body| Entry { chain: [9; 32], accepted_at_ms: 5, body });
        log.commit(&entries, 0).expect("stored");
        let recent = log.reader().recent(0, 9, 999).expect("in memory");
        assert_eq!(recent, entries);
        drop(entries);
        assert!(whole.is_unique());
    }

    #[test]
    fn a_failed_sync_latches_and_readers_never_see_the_group() {
        let dir = tempfile::tempdir().expect("a directory");
        let latch = Latch::open(dir.path()).expect("open");
        let mut log = SegmentLog::open(dir.path(), Options::default(), latch).expect("opens");
        log.commit(&[entry(0)], 0).expect("stored");
        // A device that takes every write and refuses every sync.
        let device = File::options().read(true).write(true).open("/dev/null").expect("opened");
        log.file = AppendFile::new(device, log.file.length());
        for _ in 0..2 {
            let refused = log.commit(&[entry(1)], 0);
            assert!(matches!(refused, Err(CommitError::Halted(_))), "{refused:?}");
            assert!(matches!(log.commit(&[], 1), Err(CommitError::Halted(_))));
        }
        let reader = log.reader();
        assert_eq!(reader.extent().next, 1);
        assert_eq!(reader.read(0, 9, 999).expect("readable"), [entry(0)]);
        drop(log);
        for _ in 0..2 {
            assert!(matches!(Latch::open(dir.path()), Err(OpenError::Halted(_))));
        }
    }
}
