//! The bytes of a receipts file: the receipts of a range of sequences, as far as
//! they are held, and the versions of the subjects in it. Pure: bytes in, values out.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN-G.receipts   (N: first sequence, G: generation)
//! file    = header key* subject* row*
//! header  = "CFRCPTS" version(1) log_id(16) first(i64) end(i64) rows(u64) subjects(u64)
//!           key_floor_ms(i64) clock_ms(i64) oldest_stated_ms(i64)
//!           crc32c(u32, over all keys and subjects) crc32c(u32, over the header before it)
//! key     = hash(16) sequence(i64) time_ms(i64)                        `rows` times, by sequence
//! subject = hash(16) version(i64)                                      `subjects` times
//! row     = fingerprint(32) subject_version(i64) accepted_at_ms(i64)
//!           crc32c(u32, over its key and the row before it)            `rows` times
//! ```
//! Little-endian. `first..end` is what the file stands for; a sequence in it without
//! a row is of a receipt that has been forgotten. `time_ms` is `i64::MAX` where there
//! is none. Opening a log reads what stands before the rows; a row is read when its
//! receipt is asked for.

use bytes::{Buf, BufMut};
use uuid::Uuid;

use super::{Accepted, fold::Hash};
use crate::proto::event::Sequence;

/// The newest format that this version reads, and the one it writes.
pub const VERSION: u8 = 1;
const MAGIC: &[u8; 7] = b"CFRCPTS";
/// Bytes before the keys.
pub const HEADER_BYTES: usize = 88;
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
const SUBJECT_BYTES: usize = 24;
/// Bytes of a row.
pub const ROW_BYTES: usize = 52;
/// Stands for "kept for ever".
const NO_TIME: i64 = i64::MAX;

/// What a file starts with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The log it belongs to.
    pub log_id: Uuid,
    /// The first sequence that it stands for.
    pub first: Sequence,
    /// Behind the last. Invariant: `first <= end`.
    pub end: Sequence,
    /// Receipts. Invariant: `rows <= end - first`.
    pub rows: u64,
    /// Subjects.
    pub subjects: u64,
    /// The key floor when the file was made.
    pub key_floor_ms: i64,
    /// The publisher's clock when the file was made.
    pub clock_ms: i64,
    /// Of all times ever stated beside a key in the range, the oldest; `i64::MAX`: none.
    pub oldest_stated_ms: i64,
}

/// Where the rows of a file start that has so many rows and subjects.
pub fn rows_at(rows: u64, subjects: u64) -> u64 {
    HEADER_BYTES as u64 + rows * KEY_BYTES as u64 + subjects * SUBJECT_BYTES as u64
}

/// A header, and what it says of the bytes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stated {
    /// The header.
    pub header: Header,
    /// Of keys and subjects.
    sections_sum: u32,
}

/// Why bytes cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Written by a newer version.
    Newer(u8),
    /// Not what was written.
    Damaged(&'static str),
}

impl Header {
    /// Where the rows start.
    pub fn rows_at(&self) -> u64 {
        rows_at(self.rows, self.subjects)
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.rows_at() + self.rows * ROW_BYTES as u64
    }

    fn put(&self, sections_sum: u32, out: &mut [u8]) {
        let mut rest = &mut out[..];
        rest.put_slice(MAGIC);
        rest.put_u8(VERSION);
        rest.put_slice(self.log_id.as_bytes());
        for number in [self.first, self.end, self.rows as i64, self.subjects as i64] {
            rest.put_i64_le(number);
        }
        for time in [self.key_floor_ms, self.clock_ms, self.oldest_stated_ms] {
            rest.put_i64_le(time);
        }
        rest.put_u32_le(sections_sum);
        let sum = crc32c::crc32c(&out[..HEADER_BYTES - 4]);
        out[HEADER_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
    }

    /// Out of the first [`HEADER_BYTES`] of a file.
    ///
    /// # Errors
    /// [`Bad`].
    pub fn get(bytes: &[u8]) -> Result<Stated, Bad> {
        const DAMAGED: Bad = Bad::Damaged("it does not start like a file of receipts");
        let header = bytes.get(..HEADER_BYTES).ok_or(DAMAGED)?;
        let mut rest = header.strip_prefix(MAGIC).ok_or(DAMAGED)?;
        let version = rest.get_u8();
        if version > VERSION {
            return Err(Bad::Newer(version));
        }
        let mut log_id = [0; 16];
        rest.copy_to_slice(&mut log_id);
        let stated = Stated {
            header: Header {
                log_id: Uuid::from_bytes(log_id),
                first: rest.get_i64_le(),
                end: rest.get_i64_le(),
                rows: rest.get_u64_le(),
                subjects: rest.get_u64_le(),
                key_floor_ms: rest.get_i64_le(),
                clock_ms: rest.get_i64_le(),
                oldest_stated_ms: rest.get_i64_le(),
            },
            sections_sum: rest.get_u32_le(),
        };
        let Header { first, end, rows, subjects, .. } = stated.header;
        let holds = (0..=end).contains(&first)
            && rows <= (end - first) as u64
            && subjects <= (end - first) as u64;
        if rest.get_u32_le() != crc32c::crc32c(&header[..HEADER_BYTES - 4])
            || version == 0
            || !holds
        {
            return Err(DAMAGED);
        }
        Ok(stated)
    }
}

/// What a file says without its rows: enough to look up whether a key is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sections {
    /// Hash, sequence and time of each receipt, by sequence.
    pub keys: Vec<Key>,
    /// The last version of each subject in the range.
    pub subjects: Vec<(Hash, i64)>,
}

/// What a file says of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// Of the key.
    pub hash: Hash,
    /// Where its event stands, or stood.
    pub sequence: Sequence,
    /// The intent's time; none: its receipt is kept for ever.
    pub time_ms: Option<i64>,
}

impl Key {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_slice(&self.hash);
        out.put_i64_le(self.sequence);
        out.put_i64_le(self.time_ms.unwrap_or(NO_TIME));
    }

    /// Out of [`KEY_BYTES`].
    pub fn get(bytes: &[u8; KEY_BYTES]) -> Self {
        let mut rest = &bytes[..];
        let mut hash = [0; 16];
        rest.copy_to_slice(&mut hash);
        let (sequence, time_ms) = (rest.get_i64_le(), rest.get_i64_le());
        Key { hash, sequence, time_ms: Some(time_ms).filter(|&time_ms| time_ms != NO_TIME) }
    }
}

/// Reads what stands between the header and the rows.
///
/// # Errors
/// [`Bad::Damaged`].
pub fn sections(stated: &Stated, bytes: &[u8]) -> Result<Sections, Bad> {
    let Header { first, end, rows, .. } = stated.header;
    let expected = stated.header.rows_at() - HEADER_BYTES as u64;
    if bytes.len() as u64 != expected || crc32c::crc32c(bytes) != stated.sections_sum {
        return Err(Bad::Damaged("the checksum of its keys is wrong"));
    }
    let (keys, subjects) = bytes.split_at(rows as usize * KEY_BYTES);
    let keys: Vec<Key> = keys.as_chunks().0.iter().map(Key::get).collect();
    let within = keys.iter().all(|key| (first..end).contains(&key.sequence));
    if !within || !keys.is_sorted_by(|a, b| a.sequence < b.sequence) {
        return Err(Bad::Damaged("its keys do not fit its range"));
    }
    let subjects = subjects.as_chunks::<SUBJECT_BYTES>().0.iter().map(|subject| {
        let (hash, version) = subject.split_at(16);
        let mut subject = [0; 16];
        subject.copy_from_slice(hash);
        (subject, (&version[..]).get_i64_le())
    });
    Ok(Sections { keys, subjects: subjects.collect() })
}

/// Reads the receipt of a key. None: its checksum is wrong.
pub fn row(key: &[u8; KEY_BYTES], row: &[u8; ROW_BYTES]) -> Option<(Hash, Accepted)> {
    let (covered, sum) = row.split_at(ROW_BYTES - 4);
    if sum != row_sum(key, covered).to_le_bytes() {
        return None;
    }
    let Key { hash, sequence, time_ms } = Key::get(key);
    let mut rest = covered;
    let mut fingerprint = [0; 32];
    rest.copy_to_slice(&mut fingerprint);
    let (subject_version, accepted_at_ms) = (rest.get_i64_le(), rest.get_i64_le());
    Some((hash, Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms }))
}

fn row_sum(key: &[u8], row: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(key), row)
}

/// All that a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Content {
    /// What it starts with; `rows` and `subjects` count what follows.
    pub header: Header,
    /// The hash of each key and its receipt, by sequence.
    pub receipts: Vec<(Hash, Accepted)>,
    /// The last version of each subject in the range.
    pub subjects: Vec<(Hash, i64)>,
}

impl Content {
    /// As the bytes of a file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.header.file_bytes() as usize);
        out.resize(HEADER_BYTES, 0);
        for (hash, accepted) in &self.receipts {
            let Accepted { sequence, time_ms, .. } = *accepted;
            Key { hash: *hash, sequence, time_ms }.put(&mut out);
        }
        for (hash, version) in &self.subjects {
            out.put_slice(hash);
            out.put_i64_le(*version);
        }
        let sections_sum = crc32c::crc32c(&out[HEADER_BYTES..]);
        self.header.put(sections_sum, &mut out[..HEADER_BYTES]);
        for (n, (_, accepted)) in self.receipts.iter().enumerate() {
            let start = out.len();
            out.put_slice(&accepted.fingerprint);
            out.put_i64_le(accepted.subject_version);
            out.put_i64_le(accepted.accepted_at_ms);
            let key = HEADER_BYTES + n * KEY_BYTES;
            let sum = row_sum(&out[key..key + KEY_BYTES], &out[start..]);
            out.put_u32_le(sum);
        }
        out
    }

    /// Out of a whole file.
    ///
    /// # Errors
    /// [`Bad`], whichever byte is not what was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, Bad> {
        match Content::salvage(bytes)? {
            (content, damaged) if damaged.is_empty() => Ok(content),
            _ => Err(Bad::Damaged("a receipt's checksum is wrong")),
        }
    }

    /// Out of a file whose rows may be damaged: without those, and their keys.
    ///
    /// # Errors
    /// [`Bad`], whichever byte before the rows is not what was written.
    pub fn salvage(bytes: &[u8]) -> Result<(Self, Vec<Key>), Bad> {
        let stated = Header::get(bytes)?;
        let mut header = stated.header;
        if bytes.len() as u64 != header.file_bytes() {
            return Err(Bad::Damaged("its length does not fit its header"));
        }
        let (before, rows) = bytes.split_at(header.rows_at() as usize);
        let Sections { subjects, .. } = sections(&stated, &before[HEADER_BYTES..])?;
        let keys = before[HEADER_BYTES..].as_chunks().0;
        let (mut receipts, mut damaged) = (Vec::with_capacity(keys.len()), Vec::new());
        for (key, bytes) in keys.iter().zip(rows.as_chunks().0) {
            match row(key, bytes) {
                Some(receipt) => receipts.push(receipt),
                None => damaged.push(Key::get(key)),
            }
        }
        header.rows = receipts.len() as u64;
        Ok((Content { header, receipts, subjects }, damaged))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A file of these receipts and one subject.
    pub fn content(first: Sequence, end: Sequence, receipts: Vec<(Hash, Accepted)>) -> Content {
        let header = Header {
            log_id: Uuid::from_u128(1),
            first,
            end,
            rows: receipts.len() as u64,
            subjects: 1,
            key_floor_ms: 5,
            clock_ms: 6,
            oldest_stated_ms: 7,
        };
        Content { header, receipts, subjects: vec![([8; 16], 9)] }
    }

    /// A receipt.
    pub fn receipt(sequence: Sequence, time_ms: Option<i64>) -> (Hash, Accepted) {
        let fingerprint = [sequence as u8; 32];
        let accepted = Accepted {
            sequence,
            subject_version: sequence + 1,
            fingerprint,
            accepted_at_ms: 1_000 + sequence,
            time_ms,
        };
        ([sequence as u8; 16], accepted)
    }

    #[test]
    fn a_file_comes_back_and_so_does_each_of_its_rows() {
        let receipts = vec![receipt(4, None), receipt(6, Some(-3)), receipt(9, Some(0))];
        let content = content(4, 12, receipts.clone());
        let bytes = content.encode();
        assert_eq!(bytes.len() as u64, content.header.file_bytes());
        assert_eq!(Content::decode(&bytes), Ok(content.clone()));
        let stated = Header::get(&bytes).expect("a header");
        assert_eq!(stated.header, content.header);
        let rows_at = stated.header.rows_at() as usize;
        let sections = sections(&stated, &bytes[HEADER_BYTES..rows_at]).expect("whole");
        assert_eq!(sections.subjects, content.subjects);
        for (n, expected) in receipts.iter().enumerate() {
            assert_eq!(sections.keys[n].sequence, expected.1.sequence);
            let key = bytes[HEADER_BYTES + n * KEY_BYTES..].first_chunk().expect("a key");
            let at = bytes[rows_at + n * ROW_BYTES..].first_chunk().expect("a row");
            assert_eq!(row(key, at).as_ref(), Some(expected));
        }
    }

    #[test]
    fn any_flipped_bit_and_any_missing_byte_is_noticed() {
        let bytes = content(4, 9, vec![receipt(4, None), receipt(6, Some(5))]).encode();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Content::decode(&flipped).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Content::decode(&bytes[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_damaged_row_costs_its_own_receipt_alone() {
        let receipts = vec![receipt(4, None), receipt(6, Some(5)), receipt(7, None)];
        let whole = content(4, 9, receipts.clone());
        let bytes = whole.encode();
        for at in whole.header.rows_at() as usize..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            let (content, damaged) = Content::salvage(&flipped).expect("its keys are whole");
            let n = (at - whole.header.rows_at() as usize) / ROW_BYTES;
            let mut expected = receipts.clone();
            let (hash, Accepted { sequence, time_ms, .. }) = expected.remove(n);
            assert_eq!(damaged, [Key { hash, sequence, time_ms }], "byte {at}");
            assert_eq!((content.receipts, content.header.rows), (expected, 2), "byte {at}");
        }
    }

    #[test]
    fn a_file_may_have_no_rows() {
        let empty = content(4, 9, Vec::new());
        assert_eq!(Content::decode(&empty.encode()), Ok(empty));
    }

    #[test]
    fn a_newer_format_is_told_from_damage() {
        let mut bytes = content(0, 1, Vec::new()).encode();
        bytes[7] = VERSION + 1;
        assert_eq!(Content::decode(&bytes), Err(Bad::Newer(VERSION + 1)));
    }
}
