//! How far each receiver has come, durably: a journal of what changed, rewritten
//! when most of it is out of date. Knows nothing of events; whether a position
//! may move is decided elsewhere.
//!
//! ```text
//! positions = "CFPOSIT" version(1 byte)  frame*
//! frame     = "CFpf" length(u32) crc32c(u32, over length and body) body
//! body      = ( length(u16) name  session(i64)  sequence(i64)  log_id(16)  chain(32) )*
//! ```
//! Little-endian. One call of [`Positions::record`] is one frame, whole or absent.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use bytes::{Buf, BufMut};
use uuid::Uuid;

use super::{
    durable::{self, AppendFile, Latch},
    log::{CommitError, OpenError},
};
use crate::proto::{chain::Cursor, crash};

const FILE: &str = "positions";
const MAGIC: &[u8; 7] = b"CFPOSIT";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;
const FRAME_MAGIC: &[u8; 4] = b"CFpf";
const FRAME_HEADER_BYTES: usize = 12;
/// A journal below this size is not worth rewriting.
const COMPACT_BYTES: u64 = 256 * 1024;

/// How far one receiver has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Position {
    /// The receiver.
    pub name: String,
    /// Its newest session.
    pub session: i64,
    /// Everything it has applied.
    pub acked: Cursor,
}

/// All receivers' positions. One owner; blocking.
#[derive(Debug)]
pub struct Positions {
    positions: BTreeMap<String, Position>,
    /// None: in memory only.
    journal: Option<Journal>,
}

#[derive(Debug)]
struct Journal {
    path: PathBuf,
    file: AppendFile,
    latch: Latch,
}

impl Positions {
    /// Opens the positions kept in a directory; there are none at first. What it
    /// answers from is on stable storage.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let mut latch = Latch::open(dir)?;
        let path = dir.join(FILE);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let header = header();
                durable::replace(&path, &header)
                    .map_err(|error| OpenError::io("create", &path, error))?;
                header
            }
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let (positions, valid) = parse(&content).map_err(|wrong| wrong.at(&path))?;
        let mut opened = || -> io::Result<AppendFile> {
            let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
            if valid < content.len() {
                let kept = durable::keep_tail(&path, valid as u64, &content[valid..])?;
                tracing::warn!(kept = %kept.display(), "the end of {} was torn", path.display());
                file.set_len(valid as u64)?;
            }
            latch.barrier(&file)?;
            latch.barrier(&fs::File::open(dir)?)?;
            Ok(AppendFile::new(file, valid as u64))
        };
        let file = opened().map_err(|error| OpenError::io("open", &path, error))?;
        Ok(Positions { positions, journal: Some(Journal { path, file, latch }) })
    }

    /// Positions that end with the process.
    pub fn in_memory() -> Self {
        Positions { positions: BTreeMap::new(), journal: None }
    }

    /// One receiver's position.
    pub fn get(&self, name: &str) -> Option<&Position> {
        self.positions.get(name)
    }

    /// All positions, by name.
    pub fn all(&self) -> impl Iterator<Item = &Position> {
        self.positions.values()
    }

    /// Records positions, the last of a name counting. On return all are on
    /// stable storage: one write, one sync.
    ///
    /// # Errors
    /// [`CommitError`]; then none of them is recorded.
    pub fn record(&mut self, changed: &[Position]) -> Result<(), CommitError> {
        if changed.is_empty() {
            return Ok(());
        }
        if let Some(journal) = &mut self.journal {
            journal.compact(&self.positions)?;
            let frame = frame(changed.iter());
            journal.file.write(&frame, &mut journal.latch)?;
            journal.file.sync(frame.len() as u64, &mut journal.latch)?;
            crash::point(crash::PUBLISHER_AFTER_ACK_SYNC);
        }
        self.positions
            .extend(changed.iter().map(|position| (position.name.clone(), position.clone())));
        Ok(())
    }
}

/// Copies the positions of one directory into a new file in another, durably,
/// and says how many there are.
///
/// # Errors
/// [`OpenError`], as for opening them.
pub fn copy(from: &Path, to: &Path) -> Result<usize, OpenError> {
    let (path, target) = (from.join(FILE), to.join(FILE));
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(OpenError::io("read", &path, error)),
    };
    let (positions, _) = parse(&content).map_err(|wrong| wrong.at(&path))?;
    let mut content = header();
    if !positions.is_empty() {
        content.extend_from_slice(&frame(positions.values()));
    }
    durable::replace(&target, &content).map_err(|error| OpenError::io("write", &target, error))?;
    Ok(positions.len())
}

impl Journal {
    /// Rewrites the journal where less than a quarter of it still counts.
    fn compact(&mut self, positions: &BTreeMap<String, Position>) -> Result<(), CommitError> {
        self.latch.check()?;
        if self.file.length() < COMPACT_BYTES {
            return Ok(());
        }
        let mut content = header();
        content.extend_from_slice(&frame(positions.values()));
        let length = content.len() as u64;
        if self.file.length() < 4 * length {
            return Ok(());
        }
        match durable::replace(&self.path, &content) {
            Ok(file) => self.file = AppendFile::new(file, length),
            // The long journal still serves.
            Err(error) if durable::has_run_out(&error) => {}
            Err(error) => return Err(self.latch.close("rewriting the positions", &error)),
        }
        Ok(())
    }
}

fn header() -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.push(VERSION);
    header
}

fn frame<'a>(positions: impl Iterator<Item = &'a Position>) -> Vec<u8> {
    let mut frame = FRAME_MAGIC.to_vec();
    frame.put_u64_le(0); // length and checksum, once they are known
    for Position { name, session, acked } in positions {
        frame.put_u16_le(name.len() as u16); // names are bounded by `limits`
        frame.put_slice(name.as_bytes());
        frame.put_i64_le(*session);
        frame.put_i64_le(acked.sequence);
        frame.put_slice(acked.log_id.as_bytes());
        frame.put_slice(&acked.chain);
    }
    let length = (frame.len() - FRAME_HEADER_BYTES) as u32;
    frame[4..8].copy_from_slice(&length.to_le_bytes());
    let sum = checksum(&frame[4..8], &frame[FRAME_HEADER_BYTES..]);
    frame[8..12].copy_from_slice(&sum.to_le_bytes());
    frame
}

fn checksum(length: &[u8], body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(length), body)
}

/// Why a journal cannot be used.
#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Newer(u8),
    Damaged(String),
}

impl Wrong {
    fn at(self, path: &Path) -> OpenError {
        let path = path.display().to_string();
        match self {
            Wrong::Newer(version) => OpenError::Format(format!(
                "{path} has format {version}; this version reads up to {VERSION}"
            )),
            Wrong::Damaged(what) => OpenError::Damaged { path, what },
        }
    }
}

/// The positions in a journal, and how many of its bytes count. Bytes behind
/// them are a torn end: no whole frame follows.
fn parse(content: &[u8]) -> Result<(BTreeMap<String, Position>, usize), Wrong> {
    let damaged = |what: &str| Wrong::Damaged(what.to_owned());
    match content.get(..HEADER_BYTES) {
        Some(header) if header.starts_with(MAGIC) => match header[MAGIC.len()] {
            VERSION => {}
            newer if newer > VERSION => return Err(Wrong::Newer(newer)),
            other => return Err(Wrong::Damaged(format!("it has format {other}"))),
        },
        _ => return Err(damaged("it does not start like a file of positions")),
    }
    let mut positions = BTreeMap::new();
    let mut at = HEADER_BYTES;
    while let Some(body) = body_at(content, at) {
        at += FRAME_HEADER_BYTES + body.len();
        let mut rest = body;
        while !rest.is_empty() {
            let position = position(&mut rest)
                .ok_or_else(|| damaged("a frame with a right checksum makes no sense"))?;
            positions.insert(position.name.clone(), position);
        }
    }
    if (at + 1..content.len()).any(|later| body_at(content, later).is_some()) {
        return Err(Wrong::Damaged(format!(
            "the bytes at {at} cannot be read, though later ones can"
        )));
    }
    Ok((positions, at))
}

/// The body of a whole frame at this place, if there is one.
fn body_at(content: &[u8], at: usize) -> Option<&[u8]> {
    let header = content.get(at..)?.get(..FRAME_HEADER_BYTES)?;
    if !header.starts_with(FRAME_MAGIC) {
        return None;
    }
    let (mut length, mut sum) = (&header[4..8], &header[8..12]);
    let (covered, length, sum) = (length, length.get_u32_le() as usize, sum.get_u32_le());
    let body = content.get(at + FRAME_HEADER_BYTES..)?.get(..length)?;
    (checksum(covered, body) == sum).then_some(body)
}

fn position(rest: &mut &[u8]) -> Option<Position> {
    let length = rest.try_get_u16_le().ok()? as usize;
    let name = rest.split_off(..length)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    let session = rest.try_get_i64_le().ok()?;
    let sequence = rest.try_get_i64_le().ok()?;
    let mut log_id = [0; 16];
    rest.try_copy_to_slice(&mut log_id).ok()?;
    let mut chain = [0; 32];
    rest.try_copy_to_slice(&mut chain).ok()?;
    Some(Position {
        name,
        session,
        acked: Cursor { log_id: Uuid::from_bytes(log_id), sequence, chain },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(name: &str, sequence: i64) -> Position {
        let acked = Cursor { log_id: Uuid::from_u128(7), sequence, chain: [sequence as u8; 32] };
        Position { name: name.to_owned(), session: sequence + 1, acked }
    }

    fn reopened(dir: &Path) -> Vec<Position> {
        Positions::open(dir).expect("opens").all().cloned().collect()
    }

    #[test]
    fn what_was_recorded_is_there_after_opening_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut positions = Positions::open(dir.path()).expect("opens");
        positions.record(&[position("b", 3), position("a", 1)]).expect("recorded");
        positions.record(&[position("a", 2)]).expect("recorded");
        assert_eq!(positions.get("a"), Some(&position("a", 2)));
        assert_eq!(reopened(dir.path()), [position("a", 2), position("b", 3)]);
    }

    #[test]
    fn an_end_torn_anywhere_takes_back_only_the_last_record_and_is_kept() {
        let first = [header(), frame([position("a", 1)].iter())].concat();
        let last = frame([position("a", 2), position("b", 2)].iter());
        for cut in 0..last.len() {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join(FILE);
            fs::write(&path, [&first, &last[..cut]].concat()).expect("written");
            assert_eq!(reopened(dir.path()), [position("a", 1)], "cut at {cut}");
            assert_eq!(fs::read(&path).expect("read"), first);
            let kept = dir.path().join(format!("torn-{FILE}-at-{}-0", first.len()));
            assert_eq!(fs::read(kept).unwrap_or_default(), &last[..cut]);
        }
    }

    #[test]
    fn a_flipped_bit_before_the_last_record_is_damage_and_changes_nothing() {
        let content =
            [header(), frame([position("a", 1)].iter()), frame([position("a", 2)].iter())].concat();
        let first = frame([position("a", 1)].iter()).len();
        for at in 0..HEADER_BYTES + first {
            let dir = tempfile::tempdir().expect("a directory");
            let path = dir.path().join(FILE);
            let mut flipped = content.clone();
            flipped[at] ^= 0x40;
            fs::write(&path, &flipped).expect("written");
            let refused = Positions::open(dir.path()).expect_err("damaged");
            assert!(
                matches!(refused, OpenError::Damaged { .. } | OpenError::Format(_)),
                "bit in byte {at}: {refused}"
            );
            assert_eq!(fs::read(&path).expect("read"), flipped);
        }
    }

    #[test]
    fn the_journal_stays_short() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut positions = Positions::open(dir.path()).expect("opens");
        let many: Vec<_> = (0..1000).map(|sequence| position("a", sequence)).collect();
        for _ in 0..10 {
            positions.record(&many).expect("recorded");
        }
        let length = fs::metadata(dir.path().join(FILE)).expect("there").len();
        assert!(length < 2 * COMPACT_BYTES, "{length}");
        assert_eq!(reopened(dir.path()), [position("a", 999)]);
    }

    #[test]
    fn a_newer_format_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        fs::write(dir.path().join(FILE), b"CFPOSIT\x02").expect("written");
        let refused = Positions::open(dir.path()).expect_err("newer");
        assert!(matches!(&refused, OpenError::Format(text) if text.contains("format 2")));
    }
}
