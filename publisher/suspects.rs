//! Receivers that have seen more or other history than the log holds: it was restored from
//! an older copy, or its directory is another one's. Kept durably, since whoever restarts the
//! publisher has to see it, too. Whether a cursor fits is decided elsewhere.
//!
//! ```text
//! frame   = suspect*
//! suspect = length(u16) name  reason(u8)  sequence(i64)  log_id(16)  chain(32)  at_ms(i64)  settled(u8)
//! ```
//! Little-endian; one frame of a [`journal`](super::journal), in a file that is replaced
//! whole. There is none where nobody is suspicious. Damage costs no more than what was
//! in it, since each receiver says it again: the file is set aside.

use std::{collections::BTreeMap, fs, fs::File, io, path::Path, path::PathBuf};

use bytes::{Buf as _, BufMut as _};
use uuid::Uuid;

use super::{
    durable::{self, Latch},
    journal::Format,
    log::{CommitError, OpenError},
};
use crate::proto::{chain::Cursor, limits::MAX_SUSPECTS, refusal::Reason};

const FILE: &str = "suspects";
const FORMAT: Format = Format { magic: *b"CFSUSPT", version: 1, mark: *b"CFsu", what: "suspects" };
/// By the number that stands for it.
const REASONS: [Reason; 3] = [Reason::LogMismatch, Reason::CursorAhead, Reason::Diverged];

/// A receiver that has seen more or other history than the log holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// The receiver.
    pub name: String,
    /// LOG_MISMATCH, CURSOR_AHEAD or DIVERGED.
    pub reason: Reason,
    /// What it has seen.
    pub seen: Cursor,
    /// When it said so, by the publisher's clock, milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// Whether a fork has taken it into account: it still has to resync, and stands in
    /// nobody's way.
    pub settled: bool,
}

/// Whether a refusal says that its receiver has seen other history than the log's.
pub fn is_suspicious(reason: Reason) -> bool {
    REASONS.contains(&reason)
}

type Rows = BTreeMap<String, Suspect>;

/// All of one log. One owner; blocking.
#[derive(Debug)]
pub struct Suspects {
    rows: Rows,
    /// None: in memory only.
    file: Option<(PathBuf, Latch)>,
}

impl Suspects {
    /// Those kept in a directory. What it answers from is on stable storage.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, mut latch: Latch) -> Result<Self, OpenError> {
        let path = dir.join(FILE);
        let rows = whole_rows(&path)?;
        if let Some(rows) = &rows
            && !rows.is_empty()
        {
            File::open(&path)
                .and_then(|file| latch.barrier(&file))
                .map_err(|error| OpenError::io("sync", &path, error))?;
        }
        Ok(Suspects { rows: rows.unwrap_or_default(), file: Some((path, latch)) })
    }

    /// Such that end with the process.
    pub fn in_memory() -> Self {
        Suspects { rows: Rows::new(), file: None }
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Suspect> {
        self.rows.values()
    }

    /// One of them.
    pub fn get(&self, name: &str) -> Option<&Suspect> {
        self.rows.get(name)
    }

    /// Takes note of one, durably where it says something new. Says whether it does. What
    /// a fork has settled stays so until the receiver has seen something else.
    ///
    /// # Errors
    /// [`CommitError`]; then nothing has changed.
    pub fn note(&mut self, suspect: Suspect) -> Result<bool, CommitError> {
        if let Some(known) = self.rows.get_mut(&suspect.name)
            && (known.reason, known.seen) == (suspect.reason, suspect.seen)
        {
            known.at_ms = suspect.at_ms;
            return Ok(false);
        }
        let rows = with(&self.rows, suspect);
        let is_new = rows != self.rows;
        if is_new {
            self.write(&rows)?;
        }
        self.rows = rows;
        Ok(is_new)
    }

    /// Clears one of suspicion, durably. Says whether it was under any.
    ///
    /// # Errors
    /// [`CommitError`]; then nothing has changed.
    pub fn clear(&mut self, name: &str) -> Result<bool, CommitError> {
        if !self.rows.contains_key(name) {
            return Ok(false);
        }
        let mut rows = self.rows.clone();
        rows.remove(name);
        self.write(&rows)?;
        self.rows = rows;
        Ok(true)
    }

    fn write(&mut self, rows: &Rows) -> Result<(), CommitError> {
        let Some((path, latch)) = &mut self.file else { return Ok(()) };
        latch.check()?;
        durable::replace(path, &encode(rows))
            .map(drop)
            .map_err(|error| latch.judge("writing who has seen other history", &error))
    }
}

/// Those kept in a directory, read and nothing else.
///
/// # Errors
/// [`OpenError`].
pub fn read(dir: &Path) -> Result<Vec<Suspect>, OpenError> {
    Ok(read_rows(&dir.join(FILE))?.unwrap_or_default().into_values().collect())
}

/// Those kept in a directory; a damaged file is set aside.
///
/// # Errors
/// [`OpenError`].
pub fn read_whole(dir: &Path) -> Result<Vec<Suspect>, OpenError> {
    Ok(whole_rows(&dir.join(FILE))?.unwrap_or_default().into_values().collect())
}

/// A fork has taken all of them into account: they stand in nobody's way from now on.
/// Durable, and may be repeated.
///
/// # Errors
/// [`OpenError`].
pub fn settle(dir: &Path) -> Result<(), OpenError> {
    let path = dir.join(FILE);
    let Some(mut rows) = whole_rows(&path)? else { return Ok(()) };
    rows.values_mut().for_each(|suspect| suspect.settled = true);
    put(&path, &rows)
}

/// Copies those of one directory into another, durably; damaged ones are left behind.
///
/// # Errors
/// [`OpenError`].
pub fn copy(from: &Path, to: &Path) -> Result<(), OpenError> {
    match read_rows(&from.join(FILE)) {
        Ok(Some(rows)) => put(&to.join(FILE), &rows),
        Ok(None) => Ok(()),
        Err(error @ OpenError::Damaged { .. }) => {
            tracing::error!(%error, "left out: receivers that have seen more will say so again");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn put(path: &Path, rows: &Rows) -> Result<(), OpenError> {
    durable::replace(path, &encode(rows))
        .map(drop)
        .map_err(|error| OpenError::io("write", path, error))
}

/// These and one more; of too many, those that have seen most.
fn with(rows: &Rows, suspect: Suspect) -> Rows {
    let mut rows = rows.clone();
    rows.insert(suspect.name.clone(), suspect);
    if rows.len() > MAX_SUSPECTS {
        let least = rows.values().min_by_key(|suspect| suspect.seen.sequence);
        if let Some(name) = least.map(|suspect| suspect.name.clone()) {
            rows.remove(&name);
        }
    }
    rows
}

fn encode(rows: &Rows) -> Vec<u8> {
    let mut content = FORMAT.header();
    FORMAT.frame(&mut content, |out| {
        for Suspect { name, reason, seen, at_ms, settled } in rows.values() {
            out.put_u16_le(name.len() as u16); // names are bounded by `limits`
            out.put_slice(name.as_bytes());
            let number = REASONS.iter().position(|known| known == reason).unwrap_or_default();
            out.put_u8(number as u8);
            out.put_i64_le(seen.sequence);
            out.put_slice(seen.log_id.as_bytes());
            out.put_slice(&seen.chain);
            out.put_i64_le(*at_ms);
            out.put_u8((*settled).into());
        }
    });
    content
}

/// Those of a file; one that is damaged gets another name.
fn whole_rows(path: &Path) -> Result<Option<Rows>, OpenError> {
    match read_rows(path) {
        Err(error @ OpenError::Damaged { .. }) => {
            let aside = durable::set_aside(path)
                .map_err(|error| OpenError::io("set aside", path, error))?;
            tracing::error!(
                %error,
                kept = %aside.display(),
                "set aside: who is suspicious is not known until such receivers come again"
            );
            Ok(None)
        }
        rows => rows,
    }
}

fn read_rows(path: &Path) -> Result<Option<Rows>, OpenError> {
    let content = match fs::read(path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io("read", path, error)),
    };
    let mut rows = None;
    let found = FORMAT.read(path, &content[..], |_, body| {
        rows = Some(decode(body)?);
        Some(())
    })?;
    // It is replaced whole, so an end that cannot be read is no unfinished write.
    if rows.is_none() || found.length != content.len() as u64 {
        let what = "its end cannot be read".to_owned();
        return Err(OpenError::Damaged { path: path.display().to_string(), what });
    }
    Ok(rows)
}

fn decode(mut body: &[u8]) -> Option<Rows> {
    let mut rows = Rows::new();
    while !body.is_empty() {
        let length = body.try_get_u16_le().ok()? as usize;
        let name = std::str::from_utf8(body.split_off(..length)?).ok()?.to_owned();
        let reason = *REASONS.get(usize::from(body.try_get_u8().ok()?))?;
        let sequence = body.try_get_i64_le().ok()?;
        let mut log_id = [0; 16];
        body.try_copy_to_slice(&mut log_id).ok()?;
        let mut chain = [0; 32];
        body.try_copy_to_slice(&mut chain).ok()?;
        let at_ms = body.try_get_i64_le().ok()?;
        let settled = match body.try_get_u8().ok()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        let seen = Cursor { log_id: Uuid::from_bytes(log_id), sequence, chain };
        rows.insert(name.clone(), Suspect { name, reason, seen, at_ms, settled });
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(name: &str, reason: Reason, sequence: i64) -> Suspect {
        let seen = Cursor { log_id: Uuid::from_u128(7), sequence, chain: [sequence as u8; 32] };
        Suspect { name: name.to_owned(), reason, seen, at_ms: 5, settled: false }
    }

    fn opened(dir: &Path) -> Suspects {
        Suspects::open(dir, Latch::open(dir).expect("open")).expect("opens")
    }

    #[test]
    fn what_is_noted_or_cleared_is_so_after_opening_again_and_said_once() {
        let dir = durable::scratch();
        let mut suspects = opened(dir.path());
        let (a, b) = (suspect("a", Reason::CursorAhead, 9), suspect("b", Reason::LogMismatch, 3));
        assert!(suspects.note(a.clone()).expect("noted"));
        assert!(suspects.note(b.clone()).expect("noted"));
        let later = Suspect { at_ms: 6, ..a.clone() };
        assert!(!suspects.note(later.clone()).expect("nothing new"));
        assert_eq!(suspects.get("a"), Some(&later));
        assert_eq!(opened(dir.path()).all().collect::<Vec<_>>(), [&a, &b]);
        let diverged = suspect("a", Reason::Diverged, 9);
        assert!(suspects.note(diverged.clone()).expect("noted"), "for another reason");
        let copied = durable::scratch();
        copy(dir.path(), copied.path()).expect("copied");
        assert_eq!(read(copied.path()).expect("readable"), [diverged, b]);
        assert!(suspects.clear("a").expect("cleared") && !suspects.clear("a").expect("gone"));
        assert!(suspects.clear("b").expect("cleared"));
        assert_eq!(opened(dir.path()).all().count(), 0);
    }

    #[test]
    fn what_a_fork_has_settled_stays_so_until_something_else_was_seen() {
        let dir = durable::scratch();
        settle(dir.path()).expect("nothing to do");
        let seen = suspect("a", Reason::LogMismatch, 9);
        assert!(opened(dir.path()).note(seen.clone()).expect("noted"));
        for _ in 0..2 {
            settle(dir.path()).expect("settled");
        }
        let mut suspects = opened(dir.path());
        assert!(!suspects.note(seen.clone()).expect("nothing new"));
        assert!(suspects.get("a").is_some_and(|suspect| suspect.settled));
        assert!(opened(dir.path()).get("a").is_some_and(|suspect| suspect.settled));
        let more = suspect("a", Reason::LogMismatch, 10);
        assert!(suspects.note(more.clone()).expect("noted"));
        assert_eq!(suspects.get("a"), Some(&more));
    }

    #[test]
    fn a_damaged_file_is_set_aside_and_keeps_nothing_from_working() {
        let damaged = || {
            let dir = durable::scratch();
            fs::write(dir.path().join(FILE), "damaged").expect("written");
            dir
        };
        let kept = |dir: &Path| fs::read(dir.join("damaged-suspects-0")).expect("kept");
        let dir = damaged();
        assert_eq!(opened(dir.path()).all().count(), 0);
        assert_eq!(kept(dir.path()), b"damaged");
        assert!(opened(dir.path()).note(suspect("a", Reason::Diverged, 9)).expect("noted"));
        let dir = damaged();
        settle(dir.path()).expect("nothing to settle");
        assert_eq!(kept(dir.path()), b"damaged");
        let (dir, copied) = (damaged(), durable::scratch());
        copy(dir.path(), copied.path()).expect("left out");
        assert_eq!(read(copied.path()).expect("none"), []);
        assert_eq!(fs::read(dir.path().join(FILE)).expect("as it was"), b"damaged");
    }

    #[test]
    fn of_too_many_those_stay_that_have_seen_most() {
        let mut suspects = Suspects::in_memory();
        let most = MAX_SUSPECTS as i64;
        for sequence in 0..most + 3 {
            let suspect = suspect(&format!("r{sequence}"), Reason::CursorAhead, sequence);
            assert!(suspects.note(suspect).expect("noted"));
        }
        assert_eq!(suspects.all().count(), MAX_SUSPECTS);
        assert_eq!(suspects.all().map(|suspect| suspect.seen.sequence).min(), Some(3));
        assert!(!suspects.note(suspect("low", Reason::Diverged, 1)).expect("no room"));
    }

    #[test]
    fn any_flipped_bit_or_missing_byte_is_noticed() {
        let dir = durable::scratch();
        opened(dir.path()).note(suspect("a", Reason::Diverged, 9)).expect("noted");
        let path = dir.path().join(FILE);
        let content = fs::read(&path).expect("read");
        for bit in 0..content.len() * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, flipped).expect("written");
            assert!(read(dir.path()).is_err(), "bit {bit}");
        }
        for length in 0..content.len() {
            fs::write(&path, &content[..length]).expect("written");
            assert!(read(dir.path()).is_err(), "{length} bytes");
        }
    }
}
