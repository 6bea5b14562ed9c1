//! What stands in the files when a log is opened: which frames count, whether
//! the end is torn, whether anything is damaged. A full segment may be taken as its
//! seal has it, unread. Never changes a file that it looks at.

use std::{fs, fs::File, io, path::Path, path::PathBuf};

use bytes::Bytes;

use super::{
    super::{Extent, OpenError, recent::Recent},
    format::{self, BadHeader, FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FrameHeader},
    meta::{self, Identity},
    reader::{Segment, State, Window},
    seal::Seal,
};
use crate::{
    proto::{chain::Chain, event::Sequence},
    publisher::durable,
};

const CHUNK_BYTES: usize = 1024 * 1024;

/// What was found.
pub struct Found {
    /// What is committed.
    pub state: State,
    /// Bytes behind the last whole frame of the last file, but for zeros at the end.
    pub torn: Bytes,
    /// Full segments that were read, and the seals that would have spared that.
    pub unsealed: Vec<(PathBuf, Seal)>,
}

/// What is believed without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// That a full segment is as its seal has it. What has been damaged in it since is
    /// found by who reads it.
    Seals,
    /// Nothing.
    Nothing,
}

/// The segment files of a directory, by first sequence.
///
/// # Errors
/// The operating system's.
pub fn list(dir: &Path) -> io::Result<Vec<(Sequence, PathBuf)>> {
    let mut files = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == format::EXTENSION)
            && let Some(first) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
        {
            files.push((first, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Looks at all segments of a log, and reads those that need it.
///
/// # Errors
/// [`OpenError`]: bytes are damaged that had been committed, a file is missing,
/// or a newer version wrote one.
pub fn look(dir: &Path, identity: &Identity, trust: Trust) -> Result<Found, OpenError> {
    let files = list(dir).map_err(|error| OpenError::io("list", dir, error))?;
    let corrupt = |path: &Path, sequence, what: String| OpenError::Corrupt {
        path: path.display().to_string(),
        sequence,
        what,
    };
    let mut segments: Vec<Segment> = Vec::with_capacity(files.len());
    let mut floor = 0;
    let mut head: Option<Chain> = None;
    let mut torn = Bytes::new();
    let mut unsealed = Vec::new();
    for (n, (first, path)) in files.iter().enumerate() {
        let file = File::open(path).map_err(|error| OpenError::io("open", path, error))?;
        let (header, length) = header(&file, path, *first)?;
        if !identity.covers(header.log_id) || header.first != *first {
            return Err(corrupt(path, *first, "the file belongs to another log or place".into()));
        }
        if let Some(before) = segments.last()
            && (before.next != *first || head != Some(header.chain_before))
        {
            let what = if before.next < *first {
                format!("the file of {} to {} is missing or cut short", before.next, first - 1)
            } else {
                "the file does not follow the one before".into()
            };
            return Err(corrupt(path, before.next.min(*first), what));
        }
        let last = n + 1 == files.len();
        if trust == Trust::Seals
            && !last
            && let Some(seal) = Seal::read(path, &header, length)
        {
            floor = floor.max(seal.floor);
            head = Some(seal.head);
            segments.push(Segment::sealed(path.clone(), seal));
            continue;
        }
        let scan = scan(&file, path.clone(), header)
            .map_err(|error| OpenError::io("read", path, error))?;
        if !scan.rest.is_empty() && (!last || scan.more) {
            return Err(corrupt(
                path,
                scan.segment.next,
                "bytes that had been committed cannot be read".into(),
            ));
        }
        floor = floor.max(scan.floor);
        head = Some(scan.head);
        torn = scan.rest;
        if !last && scan.segment.next > *first {
            unsealed.push((path.clone(), scan.segment.seal(scan.head, floor)));
        }
        segments.push(scan.segment);
    }
    let (Some(oldest), Some(newest), Some(head_chain)) = (segments.first(), segments.last(), head)
    else {
        return Err(corrupt(dir, 0, "no segment file is left".into()));
    };
    if oldest.header.first > floor {
        let what = format!("the file of {floor} to {} is missing", oldest.header.first - 1);
        return Err(corrupt(dir, floor, what));
    }
    if floor > newest.next {
        return Err(corrupt(dir, newest.next, format!("the floor {floor} lies beyond the end")));
    }
    let extent = Extent { log_id: identity.log_id, floor, next: newest.next, head_chain, bytes: 0 };
    Ok(Found {
        state: State { extent, segments: segments.into(), recent: Recent::new(extent.next) },
        torn,
        unsealed,
    })
}

/// Copies a log into new files in another directory, durably: all that counts
/// of each file, and nothing of a torn end. None: there is no log yet.
///
/// # Errors
/// [`OpenError`], as for opening it. The files that are there are not touched.
pub fn copy(from: &Path, to: &Path) -> Result<Option<Copied>, OpenError> {
    let Some(identity) = meta::read(from)? else { return Ok(None) };
    let Found { state, torn, .. } = look(from, &identity, Trust::Nothing)?;
    for Segment { path, length, .. } in &state.segments {
        let mut content = fs::read(path).map_err(|error| OpenError::io("read", path, error))?;
        content.truncate(*length as usize);
        let target = to.join(path.file_name().unwrap_or_default());
        durable::replace(&target, &content)
            .map_err(|error| OpenError::io("write", &target, error))?;
    }
    meta::write(to, &identity)?;
    Ok(Some(Copied { extent: state.extent, torn_bytes: torn.len() as u64 }))
}

/// Reads every segment of a log, whatever their seals say. None: there is no log yet.
/// The extent's `bytes` are not counted.
///
/// # Errors
/// [`OpenError`]: as [`look`].
pub fn check(dir: &Path) -> Result<Option<Extent>, OpenError> {
    let Some(identity) = meta::read(dir)? else { return Ok(None) };
    Ok(Some(look(dir, &identity, Trust::Nothing)?.state.extent))
}

/// What has been copied.
#[derive(Debug, Clone, Copy)]
pub struct Copied {
    /// What the log holds; its `bytes` are not counted.
    pub extent: Extent,
    /// Bytes of a torn end, left behind.
    pub torn_bytes: u64,
}

/// What a file starts with, and how many bytes it has.
fn header(file: &File, path: &Path, first: Sequence) -> Result<(FileHeader, u64), OpenError> {
    let end = file.metadata().map_err(|error| OpenError::io("read", path, error))?.len();
    let bytes = Window::new(file, end, FILE_HEADER_BYTES)
        .get(0, FILE_HEADER_BYTES)
        .map_err(|error| OpenError::io("read", path, error))?
        .unwrap_or_default();
    let header = FileHeader::decode(&bytes).map_err(|bad| match bad {
        BadHeader::Newer(version) => OpenError::Format(format!(
            "{} has format {version}; this version reads up to {}",
            path.display(),
            format::VERSION
        )),
        BadHeader::Damaged => OpenError::Corrupt {
            path: path.display().to_string(),
            sequence: first,
            what: "it does not start like a segment file".into(),
        },
    })?;
    Ok((header, end))
}

struct Scan {
    segment: Segment,
    /// The highest floor of the file.
    floor: Sequence,
    /// The chain at the end.
    head: Chain,
    /// Bytes behind the last frame that counts, but for zeros at the end.
    rest: Bytes,
    /// A whole frame stands somewhere in `rest`.
    more: bool,
}

fn scan(file: &File, path: PathBuf, header: FileHeader) -> io::Result<Scan> {
    let end = file.metadata()?.len();
    let salt = header.salt;
    let mut window = Window::new(file, end, CHUNK_BYTES);
    let (mut floor, mut head) = (header.floor, header.chain_before);
    let mut segment = Segment::new(path, header);
    while let Some((frame, last)) = frame_at(&mut window, segment.length, salt, segment.next)? {
        segment.push(&frame);
        floor = floor.max(frame.floor);
        head = last.unwrap_or(head);
    }
    let left = (end - segment.length) as usize;
    let mut rest = window.get(segment.length, left)?.unwrap_or_default();
    let more = (1..rest.len()).any(|at| starts_whole_frame(&rest[at..], salt));
    rest.truncate(rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1));
    Ok(Scan { segment, floor, head, rest, more })
}

/// The whole frame at a place that continues the log there, and its last chain.
fn frame_at(
    window: &mut Window<'_>,
    at: u64,
    salt: u32,
    next: Sequence,
) -> io::Result<Option<(FrameHeader, Option<Chain>)>> {
    let Some(header) = window.get(at, FRAME_HEADER_BYTES)?.and_then(|b| FrameHeader::decode(&b))
    else {
        return Ok(None);
    };
    let Some(frame) = window.get(at, header.frame_bytes())? else { return Ok(None) };
    if !format::is_whole(salt, &frame) || header.first != next || header.floor > header.next() {
        return Ok(None);
    }
    let records = format::check_records(&frame[FRAME_HEADER_BYTES..], header.count);
    Ok(records.map(|last| (header, last)))
}

fn starts_whole_frame(bytes: &[u8], salt: u32) -> bool {
    FrameHeader::decode(bytes)
        .and_then(|header| bytes.get(..header.frame_bytes()))
        .is_some_and(|frame| format::is_whole(salt, frame))
}
