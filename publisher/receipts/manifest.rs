//! What of the receipts is on stable storage, and the key floor: one small file
//! that is replaced whole. A receipts file counts from when it is named here until
//! it is no longer.
//!
//! ```text
//! receipts = "CFRCPTM" version(1) log_id(16) key_floor_ms(i64) clock_ms(i64)
//!            oldest_stated_ms(i64) parts(u64) part* crc32c(u32, over everything before it)
//! part     = first(i64) end(i64) rows(u64) subjects(u64) newest_ms(i64) generation(u64)
//! ```
//! Little-endian. The parts tile `0..position`:
//!
//! ```text
//!   0                                       position            next
//!   [ part 0 ][ part 1 ][ part 2 (no rows) ]|  fresh: in memory   |
//! ```

use std::{fs, io, path::Path};

use bytes::{Buf, BufMut};
use uuid::Uuid;

use super::format::{self, Bad, Content, Header};
use crate::{proto::event::Sequence, publisher::log::OpenError};

/// Its name.
pub const FILE: &str = "receipts";
const MAGIC: &[u8; 7] = b"CFRCPTM";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 56;
const PART_BYTES: usize = 48;
/// Stands for "no receipt with a time".
const NO_TIME: i64 = i64::MIN;

/// A receipts file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The first sequence that it stands for.
    pub first: Sequence,
    /// Behind the last.
    pub end: Sequence,
    /// Receipts in it.
    pub rows: u64,
    /// Subjects in it.
    pub subjects: u64,
    /// Of the times of its receipts the newest; none: all of them are kept for ever.
    pub newest_ms: Option<i64>,
    /// How often it has been written anew.
    pub generation: u64,
}

/// What is on stable storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The log it belongs to: its identity when this was first written, which a fork makes
    /// an ancestor's. All receipts files that are named here carry it, too.
    pub log_id: Uuid,
    /// No receipt is found of intents from before this time. Never moves back.
    pub key_floor_ms: i64,
    /// The largest value of the publisher's clock that is known.
    pub clock_ms: i64,
    /// Of all times ever stated beside a key, the oldest; `i64::MAX`: none. Once it
    /// lies below the key floor, a key alone no longer tells whether it was known.
    pub oldest_stated_ms: i64,
    /// By sequence, without a hole, from 0 on.
    pub parts: Vec<Part>,
}

impl Manifest {
    /// Of a log without receipts.
    pub fn new(log_id: Uuid) -> Self {
        Manifest {
            log_id,
            key_floor_ms: 0,
            clock_ms: 0,
            oldest_stated_ms: i64::MAX,
            parts: Vec::new(),
        }
    }

    /// The receipts of all events below are in files.
    pub fn position(&self) -> Sequence {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// The part that stands for a sequence below the position.
    pub fn part(&self, sequence: Sequence) -> Option<&Part> {
        self.parts.get(self.parts.partition_point(|part| part.end <= sequence))
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + self.parts.len() * PART_BYTES + 4);
        out.put_slice(MAGIC);
        out.put_u8(VERSION);
        out.put_slice(self.log_id.as_bytes());
        out.put_i64_le(self.key_floor_ms);
        out.put_i64_le(self.clock_ms);
        out.put_i64_le(self.oldest_stated_ms);
        out.put_u64_le(self.parts.len() as u64);
        for part in &self.parts {
            out.put_i64_le(part.first);
            out.put_i64_le(part.end);
            out.put_u64_le(part.rows);
            out.put_u64_le(part.subjects);
            out.put_i64_le(part.newest_ms.unwrap_or(NO_TIME));
            out.put_u64_le(part.generation);
        }
        let sum = crc32c::crc32c(&out);
        out.put_u32_le(sum);
        out
    }
}

impl Part {
    /// Of a file with this content.
    pub fn of(content: &Content, generation: u64) -> Self {
        let Header { first, end, rows, subjects, .. } = content.header;
        let newest_ms = content.receipts.iter().filter_map(|(_, accepted)| accepted.time_ms).max();
        Part { first, end, rows, subjects, newest_ms, generation }
    }

    /// Nothing of it has been forgotten.
    pub fn is_dense(&self) -> bool {
        self.rows == (self.end - self.first) as u64
    }

    /// Where in the file the rows start.
    pub fn rows_at(&self) -> u64 {
        format::rows_at(self.rows, self.subjects)
    }

    /// Whether a file that starts so is this part's.
    pub fn matches(&self, header: &Header) -> bool {
        (self.first, self.end, self.rows, self.subjects)
            == (header.first, header.end, header.rows, header.subjects)
    }
}

/// Reads it; None where there is none.
///
/// # Errors
/// [`OpenError`].
pub fn read(dir: &Path) -> Result<Option<Manifest>, OpenError> {
    let path = dir.join(FILE);
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io("read", &path, error)),
    };
    decode(&content).map(Some).map_err(|bad| bad.at(&path))
}

fn decode(content: &[u8]) -> Result<Manifest, Bad> {
    const DAMAGED: Bad = Bad::Damaged("it is no list of receipts files, or not a whole one");
    let mut rest = content.strip_prefix(MAGIC).ok_or(DAMAGED)?;
    if let Some(&version) = rest.first()
        && version > VERSION
    {
        return Err(Bad::Newer(version));
    }
    let (covered, sum) = content.split_last_chunk::<4>().ok_or(DAMAGED)?;
    if covered.len() < HEADER_BYTES || crc32c::crc32c(covered).to_le_bytes() != *sum {
        return Err(DAMAGED);
    }
    rest.advance(1);
    let mut log_id = [0; 16];
    rest.copy_to_slice(&mut log_id);
    let mut manifest = Manifest {
        key_floor_ms: rest.get_i64_le(),
        clock_ms: rest.get_i64_le(),
        oldest_stated_ms: rest.get_i64_le(),
        ..Manifest::new(Uuid::from_bytes(log_id))
    };
    let stated = rest.get_u64_le();
    let (parts, left) = covered[HEADER_BYTES..].as_chunks::<PART_BYTES>();
    if parts.len() as u64 != stated || !left.is_empty() || content[MAGIC.len()] != VERSION {
        return Err(DAMAGED);
    }
    for mut part in parts.iter().map(|part| &part[..]) {
        let part = Part {
            first: part.get_i64_le(),
            end: part.get_i64_le(),
            rows: part.get_u64_le(),
            subjects: part.get_u64_le(),
            newest_ms: Some(part.get_i64_le()).filter(|&newest_ms| newest_ms != NO_TIME),
            generation: part.get_u64_le(),
        };
        if part.first != manifest.position() || part.end <= part.first {
            return Err(DAMAGED);
        }
        manifest.parts.push(part);
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let part = |first, end, rows, newest_ms| Part {
            first,
            end,
            rows,
            subjects: 2,
            newest_ms,
            generation: 3,
        };
        Manifest {
            key_floor_ms: 4,
            clock_ms: 5,
            oldest_stated_ms: -6,
            parts: vec![part(0, 3, 3, Some(9)), part(3, 10, 0, None), part(10, 11, 1, Some(-9))],
            ..Manifest::new(Uuid::from_u128(7))
        }
    }

    #[test]
    fn it_comes_back_and_any_flipped_bit_or_missing_byte_is_noticed() {
        let bytes = manifest().encode();
        assert_eq!(decode(&bytes), Ok(manifest()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn its_parts_tile_everything_below_the_position() {
        let manifest = manifest();
        assert_eq!(manifest.position(), 11);
        for (sequence, first) in [(0, 0), (2, 0), (3, 3), (9, 3), (10, 10)] {
            assert_eq!(manifest.part(sequence).map(|part| part.first), Some(first));
        }
        assert_eq!(manifest.part(11), None);
        let mut holey = manifest.clone();
        holey.parts.remove(1);
        assert!(decode(&holey.encode()).is_err());
    }
}
