//! The file of one block of sequences: what each report said of them, in the
//! order in which the reports came.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN.outcomes  (N: first sequence of the block)
//! frame = said*
//! said  = length(u16) receiver  after(i64)  through(i64)  length(u32) row*
//! row   = sequence(i64)  outcome(u8)  length(u16) reason  length(u32) result
//! ```
//! Little-endian, in the frames of a [`journal`](crate::publisher::journal), one
//! for each commit: a write that is torn tears the last frame alone. What is said
//! is of all sequences in `after + 1 ..= through`: those without a row were
//! applied and gave no result. Of several that speak of a sequence the last one
//! counts.

use std::{
    io,
    path::{Path, PathBuf},
};

use bytes::{Buf as _, BufMut as _};

use crate::{
    proto::{
        event::Sequence,
        outcome::{Outcome, Reported},
    },
    publisher::journal::Format,
};

/// Sequences of one block. A look-up reads the file of a block, so it is small;
/// a log has a file for each, so it is not smaller.
pub const BLOCK: Sequence = 16_384;

pub const FORMAT: Format =
    Format { magic: *b"CFOUTCO", version: 1, mark: *b"CFof", what: "outcomes" };
const EXTENSION: &str = "outcomes";

/// The first sequence of a sequence's block.
pub fn first_of(sequence: Sequence) -> Sequence {
    sequence - sequence.rem_euclid(BLOCK)
}

/// The file of a block.
pub fn path(dir: &Path, first: Sequence) -> PathBuf {
    dir.join(format!("{first:020}.{EXTENSION}"))
}

/// Under this name what is damaged is kept. Nothing looks there.
pub fn aside(dir: &Path, first: Sequence) -> PathBuf {
    let name = |n| dir.join(format!("damaged-{first:020}-{n}.{EXTENSION}"));
    (0..).map(name).find(|path| !path.exists()).expect("one of endless names is free")
}

/// The blocks that a directory has files of, by their first sequences.
///
/// # Errors
/// The operating system's.
pub fn list(dir: &Path) -> io::Result<Vec<Sequence>> {
    let mut firsts = Vec::new();
    for file in std::fs::read_dir(dir)? {
        let path = PathBuf::from(file?.file_name());
        if path.extension().is_some_and(|extension| extension == EXTENSION) {
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let first = stem.and_then(|stem| stem.parse::<Sequence>().ok());
            firsts.extend(first.filter(|&first| first >= 0 && first == first_of(first)));
        }
    }
    Ok(firsts)
}

/// What a receiver has said of the sequences of one block, in one report.
#[derive(Debug, Clone, Copy)]
pub struct Said<'a> {
    pub receiver: &'a str,
    /// It speaks of the sequences above this one …
    pub after: Sequence,
    /// … up to this one.
    pub through: Sequence,
    rows: &'a [u8],
}

impl<'a> Said<'a> {
    /// Puts it behind what else is said in a frame.
    pub fn put(
        out: &mut Vec<u8>,
        receiver: &str,
        after: Sequence,
        through: Sequence,
        rows: &[Reported],
    ) {
        out.put_u16_le(receiver.len() as u16); // all lengths are bounded by `limits`
        out.put_slice(receiver.as_bytes());
        out.put_i64_le(after);
        out.put_i64_le(through);
        let start = out.len();
        out.put_u32_le(0); // length of the rows, once it is known
        for Reported { sequence, outcome, reason, result } in rows {
            out.put_i64_le(*sequence);
            out.put_u8(code(*outcome));
            out.put_u16_le(reason.len() as u16);
            out.put_slice(reason.as_bytes());
            out.put_u32_le(result.len() as u32);
            out.put_slice(result.as_bytes());
        }
        let length = (out.len() - start - 4) as u32;
        out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    }

    /// Shows all that is said in a frame, in order. None: it makes no sense, or
    /// `see` has found that.
    pub fn each(mut body: &'a [u8], mut see: impl FnMut(Said<'a>) -> Option<()>) -> Option<()> {
        while !body.is_empty() {
            see(Said::get(&mut body)?)?;
        }
        Some(())
    }

    fn get(rest: &mut &'a [u8]) -> Option<Self> {
        let length = rest.try_get_u16_le().ok()?;
        let receiver = text(rest, length as usize)?;
        let after = rest.try_get_i64_le().ok()?;
        let through = rest.try_get_i64_le().ok()?;
        let length = rest.try_get_u32_le().ok()?;
        let rows = rest.split_off(..length as usize)?;
        Some(Said { receiver, after, through, rows })
    }

    /// Whether it speaks of a sequence.
    pub fn is_of(&self, sequence: Sequence) -> bool {
        self.after < sequence && sequence <= self.through
    }

    /// Its row of a sequence; none: applied without a result.
    ///
    /// # Errors
    /// [`Senseless`].
    pub fn row(&self, sequence: Sequence) -> Result<Option<Reported>, Senseless> {
        let mut rows = self.rows;
        while !rows.is_empty() {
            let row = row(&mut rows).ok_or(Senseless)?;
            if row.sequence == sequence {
                return Ok(Some(row));
            }
        }
        Ok(None)
    }
}

/// The rows are not as they were written.
#[derive(Debug)]
pub struct Senseless;

fn row(rest: &mut &[u8]) -> Option<Reported> {
    let sequence = rest.try_get_i64_le().ok()?;
    let number = rest.try_get_u8().ok()?;
    let outcome = Outcome::ALL.into_iter().find(|&outcome| code(outcome) == number)?;
    let length = rest.try_get_u16_le().ok()?;
    let reason = text(rest, length as usize)?.to_owned();
    let length = rest.try_get_u32_le().ok()?;
    let result = text(rest, length as usize)?.to_owned();
    Some(Reported { sequence, outcome, reason, result })
}

fn text<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a str> {
    std::str::from_utf8(rest.split_off(..length)?).ok()
}

/// The number of an outcome in files; never given to another.
fn code(outcome: Outcome) -> u8 {
    match outcome {
        Outcome::Applied => 1,
        Outcome::Ignored => 2,
        Outcome::Rejected => 3,
        Outcome::Duplicate => 4,
        Outcome::Skipped => 5,
    }
}
