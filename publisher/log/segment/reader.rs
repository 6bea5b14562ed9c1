//! Reading committed entries, from any thread, while the writer appends. What
//! there is to read is told by [`State`]; the lock is held to look that up, never
//! while the disk is read.

use std::{
    collections::VecDeque,
    fs::File,
    io,
    ops::Range,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use bytes::Bytes;

use super::{
    super::{Entry, Extent, LogReader, ReadError, recent::Recent},
    format::{self, FRAME_HEADER_BYTES, FileHeader, FrameHeader},
    seal::Seal,
};
use crate::proto::{
    chain::{Ancestor, Chain},
    event::Sequence,
};

/// From one mark to the next, at least. A read skips less than this and a frame.
pub const MARK_BYTES: u64 = 16 * 1024;
/// Least and most that is read from a file in one go, unless a frame is larger.
const CHUNK_BYTES: Range<usize> = 16 * 1024..256 * 1024;

/// What is committed, shared by the writer and all readers.
#[derive(Debug)]
pub struct State {
    /// What the log holds.
    pub extent: Extent,
    /// Oldest first, never empty; the last is the one that grows.
    pub segments: VecDeque<Segment>,
    /// The newest entries.
    pub recent: Recent,
}

/// One file of the log, as far as it is committed.
#[derive(Debug)]
pub struct Segment {
    /// Where it is.
    pub path: PathBuf,
    /// Kept open while it grows; older ones are opened when they are read, so that
    /// a long log does not use up the process's file descriptors.
    pub file: Option<Arc<File>>,
    /// What the file starts with.
    pub header: FileHeader,
    /// Behind its last entry.
    pub next: Sequence,
    /// Bytes of the file that are committed.
    pub length: u64,
    /// Bytes of the bodies of all its entries.
    pub body_bytes: u64,
    marks: Vec<Mark>,
}

/// A place where a frame starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// Of its first entry.
    pub sequence: Sequence,
    /// Bytes before it.
    pub offset: u64,
}

impl Segment {
    /// A segment without entries.
    pub fn new(path: PathBuf, header: FileHeader) -> Self {
        let (next, length) = (header.first, format::FILE_HEADER_BYTES as u64);
        Segment { path, file: None, header, next, length, body_bytes: 0, marks: Vec::new() }
    }

    /// A full segment, as its seal has it.
    pub fn sealed(path: PathBuf, seal: Seal) -> Self {
        let Seal { header, length, next, body_bytes, marks, .. } = seal;
        Segment { path, file: None, header, next, length, body_bytes, marks }
    }

    /// Lets go of what only a growing segment needs.
    pub fn close(&mut self) {
        self.file = None;
        self.marks.shrink_to_fit();
    }

    /// The seal of a segment that gets no more commits, with the chain and the floor
    /// at its end.
    pub fn seal(&self, head: Chain, floor: Sequence) -> Seal {
        Seal {
            header: self.header.clone(),
            length: self.length,
            next: self.next,
            floor,
            head,
            body_bytes: self.body_bytes,
            marks: self.marks.clone(),
        }
    }

    /// Takes note of a committed frame at the end.
    pub fn push(&mut self, frame: &FrameHeader) {
        let far = |mark: &Mark| self.length - mark.offset >= MARK_BYTES;
        if frame.count > 0 && self.marks.last().is_none_or(far) {
            self.marks.push(Mark { sequence: frame.first, offset: self.length });
        }
        self.length += frame.frame_bytes() as u64;
        self.next = frame.next();
        self.body_bytes += frame.body_bytes() as u64;
    }

    /// A place at or before the frame of a sequence.
    fn mark(&self, sequence: Sequence) -> Mark {
        let after = self.marks.partition_point(|mark| mark.sequence <= sequence);
        self.marks[after - 1]
    }
}

impl State {
    /// The oldest sequence that is still stored.
    pub fn first(&self) -> Sequence {
        self.segments[0].header.first
    }

    /// The segment that grows.
    pub fn last(&mut self) -> &mut Segment {
        self.segments.back_mut().expect("a log has at least one segment")
    }

    /// The segment that holds a stored sequence.
    fn segment(&self, sequence: Sequence) -> &Segment {
        let after = self.segments.partition_point(|segment| segment.header.first <= sequence);
        &self.segments[after - 1]
    }
}

/// The reading side, and what the writing side tells it.
#[derive(Debug)]
pub struct Reader {
    state: RwLock<State>,
    ancestors: Vec<Ancestor>,
}

impl Reader {
    /// Readers of this state.
    pub fn new(state: State, ancestors: Vec<Ancestor>) -> Self {
        Reader { state: RwLock::new(state), ancestors }
    }

    /// Looks.
    pub fn state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes. Only the writer does.
    pub fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the bodies of stored entries.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn body_bytes(&self, range: Range<Sequence>) -> Result<u64, ReadError> {
        let mut bytes = 0;
        let mut from = range.start;
        while from < range.end {
            let place = {
                let state = self.state();
                let segment = state.segment(from);
                if from == segment.header.first && segment.next <= range.end && segment.next > from
                {
                    bytes += segment.body_bytes;
                    from = segment.next;
                    continue;
                }
                Place::of(segment, from)
            };
            place.each(CHUNK_BYTES.end, |seen| {
                let Seen::Entry(entry) = seen else { return true };
                bytes += entry.body.len() as u64;
                from += 1;
                from < range.end
            })?;
        }
        Ok(bytes)
    }

    fn read_from(
        &self,
        lowest: impl Fn(&State) -> Sequence,
        from: Sequence,
        bounds: Bounds,
    ) -> Result<Vec<Entry>, ReadError> {
        let Bounds { entries: max_entries, bytes: max_bytes, commits } = bounds;
        let mut entries: Vec<Entry> = Vec::new();
        let mut bytes = 0;
        let mut more = max_entries > 0;
        while more {
            let next = from + entries.len() as Sequence;
            let place = {
                let state = self.state();
                let floor = lowest(&state);
                if next < floor && entries.is_empty() {
                    return Err(ReadError::Truncated { asked: from, floor });
                }
                // Overtaken between two segments: the next call says so.
                if next < state.first() || next >= state.extent.next {
                    break;
                }
                Place::of(state.segment(next), next)
            };
            let left = max_bytes.saturating_sub(bytes).saturating_add(CHUNK_BYTES.start);
            let read = place.each(left.clamp(CHUNK_BYTES.start, CHUNK_BYTES.end), |seen| {
                match seen {
                    Seen::Commit(frame) => {
                        let fits = bytes + frame.body_bytes() <= max_bytes
                            && entries.len() + frame.count as usize <= max_entries;
                        more = fits || entries.is_empty() || !commits;
                    }
                    Seen::Entry(entry) => {
                        bytes += entry.body.len();
                        more = commits || bytes <= max_bytes || entries.is_empty();
                        if more {
                            entries.push(entry);
                            more = commits || entries.len() < max_entries;
                        }
                    }
                }
                more
            });
            match read {
                // The file was released after the look-up; the next look tells.
                Err(ReadError::Io(error))
                    if error.kind() == io::ErrorKind::NotFound && next < self.state().first() => {}
                // What stands before the damage can be read; the next call says so.
                Err(ReadError::Corrupt { .. }) if !entries.is_empty() => break,
                other => other?,
            }
        }
        Ok(entries)
    }
}

impl LogReader for Reader {
    fn extent(&self) -> Extent {
        self.state().extent
    }

    fn ancestors(&self) -> &[Ancestor] {
        &self.ancestors
    }

    fn read(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        // Told of a sequence below the floor even where nothing was asked for.
        let extent = self.extent();
        if from < extent.floor {
            return Err(ReadError::Truncated { asked: from, floor: extent.floor });
        }
        let bounds = Bounds { entries: max_entries, bytes: max_bytes, commits: false };
        self.read_from(|state| state.extent.floor, from, bounds)
    }

    fn read_commits(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let bounds = Bounds { entries: max_entries, bytes: max_bytes, commits: true };
        self.read_from(|state| state.extent.floor, from, bounds)
    }

    fn read_stored(
        &self,
        from: Sequence,
        max_entries: usize,
        max_bytes: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let bounds = Bounds { entries: max_entries, bytes: max_bytes, commits: false };
        self.read_from(State::first, from, bounds)
    }

    fn recent(&self, from: Sequence, max_entries: usize, max_bytes: usize) -> Option<Vec<Entry>> {
        let state = self.state();
        let retained = from >= state.extent.floor;
        retained.then(|| state.recent.read(from, max_entries, max_bytes))?
    }

    fn chain_at(&self, sequence: Sequence) -> Result<Chain, ReadError> {
        let place = {
            let state = self.state();
            let Extent { floor, next, head_chain, .. } = state.extent;
            if sequence < floor - 1 {
                return Err(ReadError::Truncated { asked: sequence, floor });
            }
            if sequence >= next {
                return Err(ReadError::Beyond { asked: sequence, next });
            }
            if sequence == next - 1 {
                return Ok(head_chain);
            }
            // Also the only way to a chain whose entry has been released.
            let after = &state.segment(sequence + 1).header;
            if after.first == sequence + 1 {
                return Ok(after.chain_before);
            }
            Place::of(state.segment(sequence), sequence)
        };
        let mut chain = None;
        let read = place.each(CHUNK_BYTES.start, |seen| {
            let Seen::Entry(entry) = seen else { return true };
            chain = Some(entry.chain);
            false
        });
        match (read, chain) {
            (Ok(()), Some(chain)) => Ok(chain),
            (Err(ReadError::Io(error)), _) if error.kind() == io::ErrorKind::NotFound => {
                // Released since: the chain may be kept in the next file's header.
                let state = self.state();
                let floor = state.extent.floor;
                match sequence + 1 == state.first() {
                    true => Ok(state.segments[0].header.chain_before),
                    false if sequence < floor => {
                        Err(ReadError::Truncated { asked: sequence, floor })
                    }
                    false => Err(error.into()),
                }
            }
            (Err(error), _) => Err(error),
            (Ok(()), None) => {
                Err(ReadError::Corrupt { sequence, what: "a frame is missing".to_owned() })
            }
        }
    }
}

/// How much is read at most.
struct Bounds {
    entries: usize,
    bytes: usize,
    /// Whether commits are given whole: see [`LogReader::read_commits`].
    commits: bool,
}

/// What is met on the way through a segment.
enum Seen {
    /// The next of its commits, not read yet.
    Commit(FrameHeader),
    /// The next entry of that.
    Entry(Entry),
}

/// Where to read one segment from, taken out of the state.
struct Place {
    file: Option<Arc<File>>,
    path: PathBuf,
    salt: u32,
    mark: Mark,
    length: u64,
    from: Sequence,
}

impl Place {
    fn of(segment: &Segment, from: Sequence) -> Self {
        Place {
            file: segment.file.clone(),
            path: segment.path.clone(),
            salt: segment.header.salt,
            mark: segment.mark(from),
            length: segment.length,
            from,
        }
    }

    /// Shows the entries from `from` to the segment's end, each commit before its entries and
    /// at least one of both, until `see` has enough.
    fn each(self, chunk: usize, mut see: impl FnMut(Seen) -> bool) -> Result<(), ReadError> {
        let file = match self.file {
            Some(file) => file,
            None => Arc::new(File::open(&self.path)?),
        };
        let mut window = Window::new(&file, self.length, chunk);
        let Mark { mut sequence, mut offset } = self.mark;
        let mut shown = false;
        while offset < self.length {
            let corrupt = |what: &str| ReadError::Corrupt { sequence, what: what.to_owned() };
            let header = window
                .get(offset, FRAME_HEADER_BYTES)?
                .and_then(|bytes| FrameHeader::decode(&bytes))
                .filter(|header| header.first == sequence)
                .ok_or_else(|| corrupt("a frame does not start where it should"))?;
            if header.next() > self.from && !see(Seen::Commit(header)) {
                return Ok(());
            }
            // Also of a frame that is passed over: its header says where the next one is.
            let mut frame = window
                .get(offset, header.frame_bytes())?
                .filter(|frame| format::is_whole(self.salt, frame))
                .ok_or_else(|| corrupt("a frame's checksum is wrong"))?;
            if header.next() > self.from {
                let mut body = frame.split_off(FRAME_HEADER_BYTES);
                for at in header.first..header.next() {
                    let entry = format::take_record(&mut body)
                        .ok_or_else(|| corrupt("a frame's records do not fill it"))?;
                    if at < self.from {
                        continue;
                    }
                    shown = true;
                    if !see(Seen::Entry(entry)) {
                        return Ok(());
                    }
                }
            }
            sequence = header.next();
            offset += header.frame_bytes() as u64;
        }
        // Whoever asks has been told that it is here, and would ask again for ever.
        match shown {
            true => Ok(()),
            false => Err(ReadError::Corrupt {
                sequence: self.from,
                what: "a frame is missing".to_owned(),
            }),
        }
    }
}

/// The first `end` bytes of a file, read in chunks.
pub struct Window<'a> {
    file: &'a File,
    end: u64,
    chunk: usize,
    start: u64,
    bytes: Bytes,
}

impl<'a> Window<'a> {
    /// Nothing is read yet.
    pub fn new(file: &'a File, end: u64, chunk: usize) -> Self {
        Window { file, end, chunk, start: 0, bytes: Bytes::new() }
    }

    /// Bytes at a place; None where they reach beyond the end.
    ///
    /// # Errors
    /// The operating system's.
    pub fn get(&mut self, at: u64, length: usize) -> io::Result<Option<Bytes>> {
        let Some(left) = self.end.checked_sub(at).filter(|&left| left >= length as u64) else {
            return Ok(None);
        };
        let held = self.start..self.start + self.bytes.len() as u64;
        if at < held.start || at + length as u64 > held.end {
            let size = left.min(self.chunk.max(length) as u64) as usize;
            let mut bytes = Vec::with_capacity(size);
            // Of a frame that is larger than a chunk, what came with its header.
            if held.contains(&at) {
                bytes.extend_from_slice(&self.bytes[(at - self.start) as usize..]);
            }
            read(self.file, at, &mut bytes, size)?;
            (self.bytes, self.start) = (bytes.into(), at);
        }
        let from = (at - self.start) as usize;
        Ok(Some(self.bytes.slice(from..from + length)))
    }
}

/// What `bytes`, which stand in a file from `at` on, lack of so many. Into memory that is not
/// filled with zeros first: that would be a tenth of what a Replay costs.
fn read(file: &File, at: u64, bytes: &mut Vec<u8>, size: usize) -> io::Result<()> {
    while bytes.len() < size {
        let from = at + bytes.len() as u64;
        match rustix::io::pread(file, rustix::buffer::spare_capacity(bytes), from) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // There may be more room than was asked for, and more in the file.
    bytes.truncate(size);
    Ok(())
}
