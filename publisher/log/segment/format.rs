//! The bytes of a segment file. Pure: bytes in, values out.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN.seg  (N: first sequence)
//! file   = header frame* 0*
//! header = "CFSEGMT" version(1) log_id(16) first(i64) floor(i64) chain(32) salt(u32) crc32c(u32)
//! frame  = "CFsf" length(u32) first(i64) count(u32) floor(i64) crc32c(u32) body
//! body   = ( length(u32) accepted_at_ms(i64) chain(32) event )*         `length` bytes, `count` records
//! ```
//! Little-endian. Zeros stand at the end of a file that grows, to be written over. A frame is one
//! commit, whole or absent. `chain` in the header
//! is the one at `first - 1`, `floor` the floor when the file was made. A frame's
//! checksum covers all of it, and starts from the salt of its file: no payload
//! can be made to look like a frame.

use bytes::{Buf, BufMut, Bytes};
use uuid::Uuid;

use super::super::Entry;
use crate::proto::{chain::Chain, event::Sequence};

/// Ends the name of a segment file.
pub const EXTENSION: &str = "seg";
/// The newest format that this version reads, and the one it writes.
pub const VERSION: u8 = 1;
const FILE_MAGIC: &[u8; 7] = b"CFSEGMT";
const FRAME_MAGIC: &[u8; 4] = b"CFsf";
/// Bytes before the first frame.
pub const FILE_HEADER_BYTES: usize = 80;
/// Bytes before a frame's body.
pub const FRAME_HEADER_BYTES: usize = 32;
/// The checksum is the last part of a frame's header.
const COVERED_HEADER_BYTES: usize = FRAME_HEADER_BYTES - 4;

/// What a segment file starts with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// The log it belongs to.
    pub log_id: Uuid,
    /// Sequence of its first entry.
    pub first: Sequence,
    /// The log's floor when the file was made.
    pub floor: Sequence,
    /// The chain at `first - 1`.
    pub chain_before: Chain,
    /// Where the checksums of its frames start from.
    pub salt: u32,
}

/// Why a file's header cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// Written by a newer version.
    Newer(u8),
    /// Not a header.
    Damaged,
}

impl FileHeader {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FILE_HEADER_BYTES);
        out.put_slice(FILE_MAGIC);
        out.put_u8(VERSION);
        out.put_slice(self.log_id.as_bytes());
        out.put_i64_le(self.first);
        out.put_i64_le(self.floor);
        out.put_slice(&self.chain_before);
        out.put_u32_le(self.salt);
        let sum = crc32c::crc32c(&out);
        out.put_u32_le(sum);
        out
    }

    /// Out of the first [`FILE_HEADER_BYTES`] of a file.
    ///
    /// # Errors
    /// [`BadHeader`].
    pub fn decode(bytes: &[u8]) -> Result<Self, BadHeader> {
        let mut rest = bytes
            .get(..FILE_HEADER_BYTES)
            .and_then(|bytes| bytes.strip_prefix(FILE_MAGIC))
            .ok_or(BadHeader::Damaged)?;
        let version = rest.get_u8();
        if version > VERSION {
            return Err(BadHeader::Newer(version));
        }
        let mut log_id = [0; 16];
        rest.copy_to_slice(&mut log_id);
        let (first, floor) = (rest.get_i64_le(), rest.get_i64_le());
        let mut chain_before = [0; 32];
        rest.copy_to_slice(&mut chain_before);
        let (salt, sum) = (rest.get_u32_le(), rest.get_u32_le());
        if version == 0
            || first < 0
            || floor > first
            || sum != crc32c::crc32c(&bytes[..FILE_HEADER_BYTES - 4])
        {
            return Err(BadHeader::Damaged);
        }
        let log_id = Uuid::from_bytes(log_id);
        Ok(FileHeader { log_id, first, floor, chain_before, salt })
    }
}

/// What a frame starts with. Not to be believed before [`is_whole`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the body.
    pub length: usize,
    /// Sequence of the first record, or of the next where there is none.
    pub first: Sequence,
    /// Records.
    pub count: u32,
    /// The log's floor from this commit on.
    pub floor: Sequence,
}

impl FrameHeader {
    /// Out of [`FRAME_HEADER_BYTES`], if they start like a frame.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes.get(..FRAME_HEADER_BYTES)?.strip_prefix(FRAME_MAGIC)?;
        Some(FrameHeader {
            length: rest.get_u32_le() as usize,
            first: rest.get_i64_le(),
            count: rest.get_u32_le(),
            floor: rest.get_i64_le(),
        })
    }

    /// Bytes of the whole frame.
    pub fn frame_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.length
    }

    /// Bytes of the records' events. Of a header that is not to be believed, anything.
    pub fn body_bytes(&self) -> usize {
        self.length.saturating_sub(self.count as usize * RECORD_HEADER_BYTES)
    }

    /// The sequence after the last record.
    pub fn next(&self) -> Sequence {
        self.first + Sequence::from(self.count)
    }
}

/// Appends a frame to `out`.
///
/// # Errors
/// Its size in bytes where that is more than a frame can state.
pub fn encode_frame(
    out: &mut Vec<u8>,
    salt: u32,
    first: Sequence,
    entries: &[Entry],
    floor: Sequence,
) -> Result<(), usize> {
    let start = out.len();
    let length: usize = entries.iter().map(|entry| RECORD_HEADER_BYTES + entry.body.len()).sum();
    let stated = u32::try_from(length).map_err(|_| length)?;
    out.reserve(FRAME_HEADER_BYTES + length);
    out.put_slice(FRAME_MAGIC);
    out.put_u32_le(stated);
    out.put_i64_le(first);
    out.put_u32_le(entries.len() as u32); // each takes 44 bytes of a u32 of bytes
    out.put_i64_le(floor);
    out.put_u32_le(0); // the checksum, once all is there
    for entry in entries {
        out.put_u32_le(entry.body.len() as u32);
        out.put_i64_le(entry.accepted_at_ms);
        out.put_slice(&entry.chain);
        out.put_slice(&entry.body);
    }
    let sum = checksum(salt, &out[start..]);
    out[start + COVERED_HEADER_BYTES..start + FRAME_HEADER_BYTES]
        .copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

/// Whether the checksum of a frame is right.
pub fn is_whole(salt: u32, frame: &[u8]) -> bool {
    frame.len() >= FRAME_HEADER_BYTES
        && frame[COVERED_HEADER_BYTES..FRAME_HEADER_BYTES] == checksum(salt, frame).to_le_bytes()
}

fn checksum(salt: u32, frame: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(salt, &frame[..COVERED_HEADER_BYTES]);
    crc32c::crc32c_append(sum, &frame[FRAME_HEADER_BYTES..])
}

/// Bytes of a record before its event.
pub const RECORD_HEADER_BYTES: usize = 44;

/// Takes the next entry off the body of a whole frame. None: nothing is left,
/// or what is left is no record.
pub fn take_record(body: &mut Bytes) -> Option<Entry> {
    if body.len() < RECORD_HEADER_BYTES {
        return None;
    }
    let length = body.get_u32_le() as usize;
    let accepted_at_ms = body.get_i64_le();
    let mut chain = [0; 32];
    body.copy_to_slice(&mut chain);
    if body.len() < length {
        return None;
    }
    Some(Entry { chain, accepted_at_ms, body: body.split_to(length) })
}

/// Whether the records of a body are as many as stated and fill it, and what the
/// last one's chain is.
pub fn check_records(mut body: &[u8], count: u32) -> Option<Option<Chain>> {
    let mut last = None;
    for _ in 0..count {
        let (header, rest) = body.split_at_checked(RECORD_HEADER_BYTES)?;
        let length = header.first_chunk::<4>().map(|length| u32::from_le_bytes(*length))?;
        last = header.last_chunk::<32>();
        body = rest.get(length as usize..)?;
    }
    body.is_empty().then(|| last.copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> Vec<Entry> {
        ["one", "", "three"]
            .iter()
            .zip(1..)
            .map(|(body, n)| Entry {
                chain: [n; 32],
                accepted_at_ms: -i64::from(n),
                body: Bytes::from_static(body.as_bytes()),
            })
            .collect()
    }

    #[test]
    fn a_frame_comes_back() {
        let mut frame = Vec::new();
        encode_frame(&mut frame, 7, 40, &entries(), 39).expect("small");
        let header = FrameHeader::decode(&frame).expect("a frame");
        assert_eq!((header.first, header.next(), header.floor), (40, 43, 39));
        assert_eq!(header.frame_bytes(), frame.len());
        assert!(is_whole(7, &frame) && !is_whole(8, &frame));
        assert_eq!(check_records(&frame[FRAME_HEADER_BYTES..], 3), Some(Some([3; 32])));
        let mut body = Bytes::from(frame).split_off(FRAME_HEADER_BYTES);
        let read: Vec<_> = std::iter::from_fn(|| take_record(&mut body)).collect();
        assert_eq!(read, entries());
    }

    #[test]
    fn any_flipped_bit_of_a_frame_is_noticed() {
        let mut frame = Vec::new();
        encode_frame(&mut frame, 7, 0, &entries(), 0).expect("small");
        for bit in 0..frame.len() * 8 {
            let mut flipped = frame.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&flipped).is_none() || !is_whole(7, &flipped));
        }
    }

    #[test]
    fn a_header_comes_back_and_any_flipped_bit_is_noticed() {
        let header = FileHeader {
            log_id: Uuid::from_u128(1),
            first: 9,
            floor: 4,
            chain_before: [5; 32],
            salt: 6,
        };
        let bytes = header.encode();
        assert_eq!(FileHeader::decode(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(FileHeader::decode(&flipped).is_err());
        }
        assert_eq!(FileHeader::decode(&bytes[1..]), Err(BadHeader::Damaged));
    }
}
