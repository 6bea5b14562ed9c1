//! Receipts of events whose segment has been given back: one file for each,
//! rows of fixed size, so that a sequence is a place. Knows nothing of how a
//! key's hash comes about.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN.retired  (N: first sequence)
//! header = "CFRETRD" version(1)  first(i64)  count(u64)  crc32c(u32, over the header before it)
//! row    = key(16)  fingerprint(32)  subject(16)  subject_version(i64)  accepted_at_ms(i64)  crc32c(u32)
//! ```
//! Little-endian. The checksum of a row covers its sequence too.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use bytes::{Buf, BufMut};

use super::{Accepted, fold::Hash};
use crate::{
    proto::event::{Fingerprint, Sequence},
    publisher::{
        durable::{self, Latch},
        log::{CommitError, OpenError, ReadError},
    },
};

const EXTENSION: &str = "retired";
const MAGIC: &[u8; 7] = b"CFRETRD";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 28;
const ROW_BYTES: usize = 84;

/// What is kept of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub key: Hash,
    pub fingerprint: Fingerprint,
    pub subject: Hash,
    pub subject_version: i64,
    pub accepted_at_ms: i64,
}

impl Row {
    /// As the receipt that it is.
    pub fn accepted(&self, sequence: Sequence) -> Accepted {
        Accepted {
            sequence,
            subject_version: self.subject_version,
            fingerprint: self.fingerprint,
            accepted_at_ms: self.accepted_at_ms,
            time_ms: None,
        }
    }

    fn put(&self, sequence: Sequence, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_slice(&self.key);
        out.put_slice(&self.fingerprint);
        out.put_slice(&self.subject);
        out.put_i64_le(self.subject_version);
        out.put_i64_le(self.accepted_at_ms);
        let sum = checksum(sequence, &out[start..]);
        out.put_u32_le(sum);
    }

    fn get(sequence: Sequence, bytes: &[u8]) -> Option<Row> {
        let (mut row, mut sum) = bytes.split_at_checked(ROW_BYTES - 4)?;
        if sum.try_get_u32_le().ok()? != checksum(sequence, row) {
            return None;
        }
        let mut read = Row {
            key: [0; 16],
            fingerprint: [0; 32],
            subject: [0; 16],
            subject_version: 0,
            accepted_at_ms: 0,
        };
        row.try_copy_to_slice(&mut read.key).ok()?;
        row.try_copy_to_slice(&mut read.fingerprint).ok()?;
        row.try_copy_to_slice(&mut read.subject).ok()?;
        read.subject_version = row.try_get_i64_le().ok()?;
        read.accepted_at_ms = row.try_get_i64_le().ok()?;
        Some(read)
    }
}

fn checksum(sequence: Sequence, row: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&sequence.to_le_bytes()), row)
}

/// All retired receipts of one log: those of sequences `0..end`.
#[derive(Debug)]
pub enum Retired {
    /// In files of a directory.
    Files {
        /// The directory.
        dir: PathBuf,
        /// Closed by a failed write.
        latch: Latch,
        /// First sequence of each file, ascending, without a hole.
        firsts: Vec<Sequence>,
        /// Behind the last row.
        end: Sequence,
    },
    /// In memory, from sequence 0.
    Memory(Vec<Row>),
}

impl Retired {
    /// Nothing retired, nothing durable.
    pub fn in_memory() -> Self {
        Retired::Memory(Vec::new())
    }

    /// What a directory holds.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let mut latch = Latch::open(dir)?;
        let firsts = list(dir)
            .and_then(|firsts| latch.barrier(&File::open(dir)?).map(|()| firsts))
            .map_err(|error| OpenError::io("list", dir, error))?;
        Ok(Retired::Files { dir: dir.to_owned(), latch, firsts, end: 0 })
    }

    /// Walks through all rows in order. Called once, after opening: it finds
    /// where the rows end.
    ///
    /// # Errors
    /// [`OpenError`] for a file that is damaged, missing or newer.
    pub fn each(&mut self, mut see: impl FnMut(&Row)) -> Result<(), OpenError> {
        let Retired::Files { dir, firsts, end, .. } = self else { return Ok(()) };
        for &first in firsts.iter() {
            let path = path(dir, first);
            if first != *end {
                return Err(OpenError::Corrupt {
                    path: dir.display().to_string(),
                    sequence: *end,
                    what: format!("the receipts of {end} to {} are missing", first - 1),
                });
            }
            let content = fs::read(&path).map_err(|error| OpenError::io("read", &path, error))?;
            for row in rows(&content, first, &path)? {
                let row = row.ok_or_else(|| damaged(&path, *end))?;
                see(&row);
                *end += 1;
            }
        }
        Ok(())
    }

    /// Receipts of sequences below this are here.
    pub fn end(&self) -> Sequence {
        match self {
            Retired::Files { end, .. } => *end,
            Retired::Memory(rows) => rows.len() as Sequence,
        }
    }

    /// One receipt.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn row(&self, sequence: Sequence) -> Result<Row, ReadError> {
        match self {
            Retired::Memory(rows) => Ok(rows[sequence as usize].clone()),
            Retired::Files { dir, firsts, .. } => {
                let first = firsts[firsts.partition_point(|&first| first <= sequence) - 1];
                let place = HEADER_BYTES as u64 + (sequence - first) as u64 * ROW_BYTES as u64;
                let mut bytes = [0; ROW_BYTES];
                File::open(path(dir, first))?.read_exact_at(&mut bytes, place)?;
                Row::get(sequence, &bytes).ok_or_else(|| ReadError::Corrupt {
                    sequence,
                    what: "a receipt's checksum is wrong".to_owned(),
                })
            }
        }
    }

    /// Adds the rows from `first` on, durably. Rows that are here already are
    /// left as they are.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn add(&mut self, first: Sequence, rows: Vec<Row>) -> Result<(), CommitError> {
        let after = first + rows.len() as Sequence;
        if after <= self.end() {
            return Ok(());
        }
        assert_eq!(first, self.end(), "receipts are retired in the order of the log");
        match self {
            Retired::Memory(kept) => kept.extend(rows),
            Retired::Files { dir, latch, firsts, end } => {
                latch.check()?;
                durable::replace(&path(dir, first), &content(first, &rows))
                    .map_err(|error| latch.judge("saving receipts", &error))?;
                firsts.push(first);
                *end = after;
            }
        }
        Ok(())
    }
}

/// Copies the files of one directory into new ones in another, durably, and says
/// how many receipts there are.
///
/// # Errors
/// [`OpenError`], as for opening them.
pub fn copy(from: &Path, to: &Path) -> Result<u64, OpenError> {
    let mut count = 0;
    for first in list(from).map_err(|error| OpenError::io("list", from, error))? {
        let (path, target) = (path(from, first), path(to, first));
        let content = fs::read(&path).map_err(|error| OpenError::io("read", &path, error))?;
        for (sequence, row) in (first..).zip(rows(&content, first, &path)?) {
            row.ok_or_else(|| damaged(&path, sequence))?;
            count += 1;
        }
        durable::replace(&target, &content)
            .map_err(|error| OpenError::io("write", &target, error))?;
    }
    Ok(count)
}

/// First sequences of the files of a directory, ascending.
fn list(dir: &Path) -> io::Result<Vec<Sequence>> {
    let mut firsts = Vec::new();
    for file in fs::read_dir(dir)? {
        let path = PathBuf::from(file?.file_name());
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            firsts.extend(stem.and_then(|stem| stem.parse::<Sequence>().ok()));
        }
    }
    firsts.sort_unstable();
    Ok(firsts)
}

fn damaged(path: &Path, sequence: Sequence) -> OpenError {
    OpenError::Corrupt {
        path: path.display().to_string(),
        sequence,
        what: "a receipt's checksum is wrong".to_owned(),
    }
}

fn path(dir: &Path, first: Sequence) -> PathBuf {
    dir.join(format!("{first:020}.{EXTENSION}"))
}

fn content(first: Sequence, rows: &[Row]) -> Vec<u8> {
    let mut content = Vec::with_capacity(HEADER_BYTES + rows.len() * ROW_BYTES);
    content.put_slice(MAGIC);
    content.put_u8(VERSION);
    content.put_i64_le(first);
    content.put_u64_le(rows.len() as u64);
    let sum = crc32c::crc32c(&content);
    content.put_u32_le(sum);
    for (sequence, row) in (first..).zip(rows) {
        row.put(sequence, &mut content);
    }
    content
}

/// The rows of a file; None for one whose checksum is wrong.
fn rows<'a>(
    content: &'a [u8],
    first: Sequence,
    path: &Path,
) -> Result<impl Iterator<Item = Option<Row>> + use<'a>, OpenError> {
    let damaged =
        |what: &str| OpenError::Damaged { path: path.display().to_string(), what: what.to_owned() };
    let (mut header, rows) = content
        .split_at_checked(HEADER_BYTES)
        .filter(|(header, _)| header.starts_with(MAGIC))
        .ok_or_else(|| damaged("it does not start like a file of receipts"))?;
    let sum = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    header.advance(MAGIC.len());
    let version = header.get_u8();
    if version > VERSION {
        return Err(OpenError::Format(format!(
            "{} has format {version}; this version reads up to {VERSION}",
            path.display()
        )));
    }
    let stated = (header.get_i64_le(), header.get_u64_le());
    if header.get_u32_le() != sum || stated != (first, (rows.len() / ROW_BYTES) as u64) {
        return Err(damaged("its header does not fit its content"));
    }
    Ok((first..).zip(rows.chunks(ROW_BYTES)).map(|(sequence, row)| Row::get(sequence, row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u8) -> Row {
        Row {
            key: [n; 16],
            fingerprint: [n; 32],
            subject: [n; 16],
            subject_version: n.into(),
            accepted_at_ms: -1,
        }
    }

    fn opened(dir: &Path) -> Result<(Retired, Vec<Row>), OpenError> {
        let mut retired = Retired::open(dir)?;
        let mut rows = Vec::new();
        retired.each(|row| rows.push(row.clone()))?;
        Ok((retired, rows))
    }

    #[test]
    fn rows_come_back_by_sequence_and_in_order() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut retired, _) = opened(dir.path()).expect("opens");
        retired.add(0, vec![row(0), row(1)]).expect("saved");
        retired.add(0, vec![row(0), row(1)]).expect("saved before");
        retired.add(2, vec![row(2)]).expect("saved");
        let (retired, rows) = opened(dir.path()).expect("opens");
        assert_eq!(rows, [row(0), row(1), row(2)]);
        assert_eq!(retired.end(), 3);
        for n in 0..3 {
            assert_eq!(retired.row(n).expect("there"), row(n as u8));
        }
    }

    #[test]
    fn a_copy_holds_the_same_and_damage_is_not_copied() {
        let (dir, other) = (tempfile::tempdir().expect("a directory"), durable::scratch());
        let (mut retired, _) = opened(dir.path()).expect("opens");
        retired.add(0, vec![row(0), row(1)]).expect("saved");
        retired.add(2, vec![row(2)]).expect("saved");
        assert_eq!(copy(dir.path(), other.path()).expect("copied"), 3);
        assert_eq!(opened(other.path()).expect("opens").1, [row(0), row(1), row(2)]);
        let path = path(dir.path(), 2);
        let mut content = fs::read(&path).expect("read");
        content[HEADER_BYTES] ^= 1;
        fs::write(&path, content).expect("written");
        let refused = copy(dir.path(), other.path()).expect_err("damaged");
        assert!(matches!(refused, OpenError::Corrupt { sequence: 2, .. }), "{refused}");
    }

    #[test]
    fn every_flipped_byte_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut retired, _) = opened(dir.path()).expect("opens");
        retired.add(0, vec![row(0), row(1)]).expect("saved");
        let path = path(dir.path(), 0);
        let whole = fs::read(&path).expect("read");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(&path, flipped).expect("written");
            assert!(opened(dir.path()).is_err(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        assert!(opened(dir.path()).is_err(), "one byte short");
    }

    #[test]
    fn a_missing_file_names_the_first_sequence_without_a_receipt() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut retired, _) = opened(dir.path()).expect("opens");
        for n in 0..3 {
            retired.add(n, vec![row(n as u8)]).expect("saved");
        }
        fs::remove_file(path(dir.path(), 1)).expect("removed");
        let refused = opened(dir.path()).expect_err("a hole");
        assert!(matches!(refused, OpenError::Corrupt { sequence: 1, .. }), "{refused}");
    }
}
