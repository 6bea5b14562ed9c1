//! How far each receiver has come, durably: a journal of what changed, rewritten
//! when most of it is out of date. Knows nothing of events; whether a position
//! may move is decided elsewhere.
//!
//! ```text
//! frame = ( length(u16) name  session(i64)  sequence(i64)  log_id(16)  chain(32)  reported(i64) )*
//! ```
//! Little-endian; format 1 had no `reported`. One call of [`Positions::record`] is
//! one frame of a [`journal`], whole or absent.

use std::{collections::BTreeMap, fs, io, path::Path};

use bytes::{Buf as _, BufMut as _};
use uuid::Uuid;

use super::{
    durable::{self, Latch},
    journal::{Format, Journal},
    log::{CommitError, OpenError},
};
use crate::proto::{chain::Cursor, crash, event::Sequence};

const FILE: &str = "positions";
const FORMAT: Format = Format { magic: *b"CFPOSIT", version: 2, mark: *b"CFpf", what: "positions" };
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
    /// Up to here it has reported what it did; -1: nothing. At most `acked.sequence`.
    pub reported: Sequence,
}

impl Position {
    /// The same, with nothing reported from `lost_from` on.
    pub fn reported_below(self, lost_from: Option<Sequence>) -> Self {
        let reported =
            lost_from.map_or(self.reported, |lost_from| self.reported.min(lost_from - 1));
        Position { reported, ..self }
    }
}

/// All receivers' positions. One owner; blocking.
#[derive(Debug)]
pub struct Positions {
    positions: BTreeMap<String, Position>,
    /// None: in memory only.
    journal: Option<(Journal, Latch)>,
}

impl Positions {
    /// Opens the positions kept in a directory; there are none at first. What it
    /// answers from is on stable storage.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, mut latch: Latch) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        if !fs::exists(&path).map_err(|error| OpenError::io("find", &path, error))? {
            let journal = Journal::create(&path, &FORMAT)
                .map_err(|error| OpenError::io("create", &path, error))?;
            return Ok(Positions { positions: BTreeMap::new(), journal: Some((journal, latch)) });
        }
        let mut positions = BTreeMap::new();
        let (mut journal, version) = Journal::open(&path, &FORMAT, &mut latch, |version, body| {
            note(&mut positions, version, body)
        })?;
        if version < FORMAT.version {
            // It takes no frames of this version.
            journal
                .rewrite(&frame(positions.values()))
                .map_err(|error| OpenError::io("rewrite", &path, error))?;
        }
        Ok(Positions { positions, journal: Some((journal, latch)) })
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
        if let Some((journal, latch)) = &mut self.journal {
            compact(journal, latch, &self.positions)?;
            journal.append(&frame(changed), latch)?;
            crash::point(crash::PUBLISHER_AFTER_ACK_SYNC);
        }
        self.positions
            .extend(changed.iter().map(|position| (position.name.clone(), position.clone())));
        Ok(())
    }
}

/// Copies the positions of one directory into a new file in another, durably,
/// and says how many there are. From `lost_from` on outcomes are to be reported
/// again.
///
/// # Errors
/// [`OpenError`], as for opening them.
pub fn copy(from: &Path, to: &Path, lost_from: Option<Sequence>) -> Result<usize, OpenError> {
    let (path, target) = (from.join(FILE), to.join(FILE));
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(OpenError::io("read", &path, error)),
    };
    let mut positions = BTreeMap::new();
    FORMAT.read(&path, &content[..], |version, body| note(&mut positions, version, body))?;
    let copied = positions.values().map(|position| position.clone().reported_below(lost_from));
    let content = [FORMAT.header(), frame(&copied.collect::<Vec<_>>())].concat();
    durable::replace(&target, &content).map_err(|error| OpenError::io("write", &target, error))?;
    Ok(positions.len())
}

/// Rewrites the journal where less than a quarter of it still counts.
fn compact(
    journal: &mut Journal,
    latch: &mut Latch,
    positions: &BTreeMap<String, Position>,
) -> Result<(), CommitError> {
    latch.check()?;
    if journal.length() < COMPACT_BYTES {
        return Ok(());
    }
    let whole = frame(positions.values());
    if journal.length() < 4 * whole.len() as u64 {
        return Ok(());
    }
    match journal.rewrite(&whole) {
        Ok(()) => Ok(()),
        // The long journal still serves.
        Err(error) if durable::has_run_out(&error) => Ok(()),
        Err(error) => Err(latch.close("rewriting the positions", &error)),
    }
}

fn frame<'a>(positions: impl IntoIterator<Item = &'a Position>) -> Vec<u8> {
    let mut frame = Vec::new();
    FORMAT.frame(&mut frame, |out| {
        for Position { name, session, acked, reported } in positions {
            out.put_u16_le(name.len() as u16); // names are bounded by `limits`
            out.put_slice(name.as_bytes());
            out.put_i64_le(*session);
            out.put_i64_le(acked.sequence);
            out.put_slice(acked.log_id.as_bytes());
            out.put_slice(&acked.chain);
            out.put_i64_le(*reported);
        }
    });
    frame
}

/// Takes note of the positions of a frame.
fn note(positions: &mut BTreeMap<String, Position>, version: u8, mut body: &[u8]) -> Option<()> {
    while !body.is_empty() {
        let position = position(version, &mut body)?;
        positions.insert(position.name.clone(), position);
    }
    Some(())
}

fn position(version: u8, rest: &mut &[u8]) -> Option<Position> {
    let length = rest.try_get_u16_le().ok()? as usize;
    let name = rest.split_off(..length)?;
    let name = std::str::from_utf8(name).ok()?.to_owned();
    let session = rest.try_get_i64_le().ok()?;
    let sequence = rest.try_get_i64_le().ok()?;
    let mut log_id = [0; 16];
    rest.try_copy_to_slice(&mut log_id).ok()?;
    let mut chain = [0; 32];
    rest.try_copy_to_slice(&mut chain).ok()?;
    let reported = if version < 2 { -1 } else { rest.try_get_i64_le().ok()? };
    let acked = Cursor { log_id: Uuid::from_bytes(log_id), sequence, chain };
    Some(Position { name, session, acked, reported })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(name: &str, sequence: i64) -> Position {
        let acked = Cursor { log_id: Uuid::from_u128(7), sequence, chain: [sequence as u8; 32] };
        Position { name: name.to_owned(), session: sequence + 1, acked, reported: sequence - 1 }
    }

    fn opened(dir: &Path) -> Positions {
        Positions::open(dir, Latch::open(dir).expect("open")).expect("opens")
    }

    fn reopened(dir: &Path) -> Vec<Position> {
        opened(dir).all().cloned().collect()
    }

    #[test]
    fn what_was_recorded_is_there_after_opening_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut positions = opened(dir.path());
        positions.record(&[position("b", 3), position("a", 1)]).expect("recorded");
        positions.record(&[position("a", 2)]).expect("recorded");
        assert_eq!(positions.get("a"), Some(&position("a", 2)));
        assert_eq!(reopened(dir.path()), [position("a", 2), position("b", 3)]);
    }

    #[test]
    fn format_1_is_read_and_continued_as_the_newest() {
        let dir = tempfile::tempdir().expect("a directory");
        let old = Position { reported: -1, ..position("a", 2) };
        let mut content = b"CFPOSIT\x01".to_vec();
        FORMAT.frame(&mut content, |out| {
            let mut whole = frame([&old]).split_off(12);
            whole.truncate(whole.len() - 8); // without `reported`
            out.put_slice(&whole);
        });
        fs::write(dir.path().join(FILE), content).expect("written");
        let mut positions = opened(dir.path());
        assert_eq!(positions.all().collect::<Vec<_>>(), [&old]);
        positions.record(&[position("b", 3)]).expect("recorded");
        assert_eq!(reopened(dir.path()), [old, position("b", 3)]);
    }

    #[test]
    fn the_journal_stays_short() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut positions = opened(dir.path());
        let many: Vec<_> = (0..1000).map(|sequence| position("a", sequence)).collect();
        for _ in 0..10 {
            positions.record(&many).expect("recorded");
        }
        let length = fs::metadata(dir.path().join(FILE)).expect("there").len();
        assert!(length < 2 * COMPACT_BYTES, "{length}");
        assert_eq!(reopened(dir.path()), [position("a", 999)]);
    }
}
