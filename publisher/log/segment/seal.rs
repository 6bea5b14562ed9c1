//! What opening needs to know of a full segment, in a small file beside it, so that
//! a start does not read the events of a long log. It follows from the segment: where
//! it is missing, torn, damaged or another's, the segment is read whole instead. So it
//! is written without a sync, and no promise depends on it.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN.sealed  (N: first sequence of the segment)
//! file = "CFSEALD" version(1) header(80, the segment's) length(u64) next(i64) floor(i64)
//!        chain(32) body_bytes(u64) marks(u32) ( sequence(i64) offset(u64) )* crc32c(u32)
//! ```
//! Little-endian. `chain` and `floor` are those at the segment's end. The salt in the
//! header is the segment's alone: no other segment's seal fits.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::{Buf as _, BufMut as _};

use super::{
    format::{FILE_HEADER_BYTES, FileHeader},
    reader::{MARK_BYTES, Mark},
};
use crate::proto::{chain::Chain, event::Sequence};

/// Ends the name of a seal.
pub const EXTENSION: &str = "sealed";
const MAGIC: &[u8; 8] = b"CFSEALD\x01";
/// Bytes of a seal without marks.
const LEAST_BYTES: usize = MAGIC.len() + FILE_HEADER_BYTES + 8 + 8 + 8 + 32 + 8 + 4 + 4;
const MARK_ENTRY_BYTES: usize = 16;

/// What is known of a segment that gets no more commits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seal {
    /// What the segment starts with.
    pub header: FileHeader,
    /// Bytes of its file.
    pub length: u64,
    /// Behind its last entry.
    pub next: Sequence,
    /// The log's floor at its end.
    pub floor: Sequence,
    /// The chain at its end.
    pub head: Chain,
    /// Bytes of the bodies of all its entries.
    pub body_bytes: u64,
    /// Where to start reading. Invariant: the first is at the first entry, they rise,
    /// and all lie within the file.
    pub marks: Vec<Mark>,
}

impl Seal {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEAST_BYTES + self.marks.len() * MARK_ENTRY_BYTES);
        out.put_slice(MAGIC);
        out.put_slice(&self.header.encode());
        out.put_u64_le(self.length);
        out.put_i64_le(self.next);
        out.put_i64_le(self.floor);
        out.put_slice(&self.head);
        out.put_u64_le(self.body_bytes);
        out.put_u32_le(self.marks.len() as u32); // one each 16 KiB of a file
        for mark in &self.marks {
            out.put_i64_le(mark.sequence);
            out.put_u64_le(mark.offset);
        }
        let sum = crc32c::crc32c(&out);
        out.put_u32_le(sum);
        out
    }

    /// Out of bytes, if they are a whole seal.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (covered, sum) = bytes.split_last_chunk::<4>()?;
        if bytes.len() < LEAST_BYTES || crc32c::crc32c(covered).to_le_bytes() != *sum {
            return None;
        }
        let (header, mut rest) = covered.strip_prefix(MAGIC)?.split_at(FILE_HEADER_BYTES);
        let header = FileHeader::decode(header).ok()?;
        let (length, next, floor) = (rest.get_u64_le(), rest.get_i64_le(), rest.get_i64_le());
        let mut head = [0; 32];
        rest.copy_to_slice(&mut head);
        let (body_bytes, count) = (rest.get_u64_le(), rest.get_u32_le() as usize);
        let (entries, []) = rest.as_chunks::<MARK_ENTRY_BYTES>() else { return None };
        let marks = entries.iter().map(|entry| {
            let mut entry = &entry[..];
            Mark { sequence: entry.get_i64_le(), offset: entry.get_u64_le() }
        });
        let marks: Vec<Mark> = marks.collect();
        let seal = Seal { header, length, next, floor, head, body_bytes, marks };
        (seal.marks.len() == count && seal.makes_sense()).then_some(seal)
    }

    fn makes_sense(&self) -> bool {
        let Seal { header, length, next, floor, marks, .. } = self;
        let rises = |a: &Mark, b: &Mark| a.sequence < b.sequence && a.offset < b.offset;
        let places = FILE_HEADER_BYTES as u64..*length;
        header.first < *next
            && (header.floor..=*next).contains(floor)
            && marks.first().is_some_and(|mark| mark.sequence == header.first)
            && marks.last().is_some_and(|mark| mark.sequence < *next)
            && marks.is_sorted_by(rises)
            && marks.iter().all(|mark| places.contains(&mark.offset))
    }

    /// Puts it beside its segment. Where that fails there is none.
    pub fn write(&self, segment: &Path) {
        let path = path(segment);
        if let Err(error) = fs::write(&path, self.encode()) {
            tracing::warn!(%error, "{} was not written", path.display());
            remove(segment);
        }
    }

    /// The seal beside a segment that starts so and has so many bytes. None: the
    /// segment has to be read.
    pub fn read(segment: &Path, header: &FileHeader, length: u64) -> Option<Self> {
        let path = path(segment);
        let most = LEAST_BYTES as u64 + (length / MARK_BYTES + 1) * MARK_ENTRY_BYTES as u64;
        let read = || -> io::Result<Option<Vec<u8>>> {
            let small = fs::metadata(&path)?.len() <= most;
            small.then(|| fs::read(&path)).transpose()
        };
        let bytes = match read() {
            Ok(bytes) => bytes?,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%error, "{} cannot be read", path.display());
                }
                return None;
            }
        };
        Seal::decode(&bytes).filter(|seal| seal.header == *header && seal.length == length)
    }
}

/// Where the seal of a segment is.
fn path(segment: &Path) -> PathBuf {
    segment.with_extension(EXTENSION)
}

/// Takes away the seal of a segment that goes. One that stays is removed at the next
/// start, and fits no other segment.
pub fn remove(segment: &Path) {
    let path = path(segment);
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "{} was not removed", path.display());
    }
}

/// Takes away seals whose segments are gone.
///
/// # Errors
/// The operating system's.
pub fn remove_orphans(dir: &Path) -> io::Result<()> {
    for file in fs::read_dir(dir)? {
        let path = file?.path();
        let segment = path.with_extension(super::format::EXTENSION);
        if path.extension().is_some_and(|extension| extension == EXTENSION) && !segment.exists() {
            remove(&segment);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::publisher::durable;

    fn header(salt: u32) -> FileHeader {
        let log_id = Uuid::from_u128(1);
        FileHeader { log_id, first: 9, floor: 4, chain_before: [5; 32], salt }
    }

    fn seal() -> Seal {
        let marks = [(9, 80), (12, 16_500), (90, 40_000)]
            .map(|(sequence, offset)| Mark { sequence, offset })
            .to_vec();
        let (length, next, floor, body_bytes) = (50_000, 100, 7, 33_000);
        Seal { header: header(6), length, next, floor, head: [8; 32], body_bytes, marks }
    }

    #[test]
    fn a_seal_comes_back_and_any_flipped_bit_or_missing_byte_is_noticed() {
        let bytes = seal().encode();
        assert_eq!(Seal::decode(&bytes), Some(seal()));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Seal::decode(&flipped), None, "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert_eq!(Seal::decode(&bytes[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_seal_that_would_lead_astray_is_none() {
        let wrong: [fn(&mut Seal); 9] = [
            |seal| seal.marks.clear(),
            |seal| seal.marks[0].sequence = 10,
            |seal| seal.marks[1].sequence = 9,
            |seal| seal.marks[1].offset = 80,
            |seal| seal.marks[2].sequence = 100,
            |seal| seal.marks[2].offset = 50_000,
            |seal| seal.marks[0].offset = 79,
            |seal| seal.floor = 101,
            |seal| seal.next = 9,
        ];
        for (n, spoil) in wrong.iter().enumerate() {
            let mut seal = seal();
            spoil(&mut seal);
            assert_eq!(Seal::decode(&seal.encode()), None, "case {n}");
        }
    }

    #[test]
    fn it_is_read_for_its_own_segment_at_its_length_alone() {
        let dir = durable::scratch();
        let segment = dir.path().join("00000000000000000009.seg");
        assert_eq!(Seal::read(&segment, &header(6), 50_000), None, "missing");
        seal().write(&segment);
        assert_eq!(Seal::read(&segment, &header(6), 50_000), Some(seal()));
        assert_eq!(Seal::read(&segment, &header(7), 50_000), None, "another's");
        assert_eq!(Seal::read(&segment, &header(6), 50_001), None, "another length");
        let far_too_long = fs::OpenOptions::new().write(true).open(path(&segment)).expect("there");
        far_too_long.set_len(1 << 40).expect("sparse");
        assert_eq!(Seal::read(&segment, &header(6), 50_000), None, "no seal");
        remove_orphans(dir.path()).expect("removed");
        assert_eq!(fs::read_dir(dir.path()).expect("listed").count(), 0);
    }
}
