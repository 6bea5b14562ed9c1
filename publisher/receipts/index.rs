//! Hash tables that stay small at millions of names: rows of fixed size in
//! chunks that never move, and a table of 4-byte slots over them. Growing copies
//! slots, never rows. Pure.

use hashbrown::HashTable;

use super::fold::Hash;
use crate::proto::event::Sequence;

/// Rows of one chunk.
const CHUNK: usize = 4_096;

/// A list that grows without moving what it holds.
#[derive(Debug)]
struct Rows<T> {
    chunks: Vec<Vec<T>>,
    length: usize,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Rows { chunks: Vec::new(), length: 0 }
    }
}

impl<T> Rows<T> {
    fn get(&self, slot: u32) -> &T {
        let slot = slot as usize;
        &self.chunks[slot / CHUNK][slot % CHUNK]
    }

    fn get_mut(&mut self, slot: u32) -> &mut T {
        let slot = slot as usize;
        &mut self.chunks[slot / CHUNK][slot % CHUNK]
    }

    fn push(&mut self, row: T) -> u32 {
        let slot = u32::try_from(self.length).expect("4 billion rows do not fit in memory");
        if self.length.is_multiple_of(CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.length / CHUNK].push(row);
        self.length += 1;
        slot
    }
}

/// What the tables hash with: a SHA-256 needs no second hashing.
fn spread(hash: &Hash) -> u64 {
    u64::from_le_bytes(*hash.first_chunk().expect("16 bytes have 8"))
}

/// The place of every key: row n is the key of sequence n.
#[derive(Debug, Default)]
pub struct Keys {
    rows: Rows<Hash>,
    table: HashTable<u32>,
}

impl Keys {
    /// Adds the key of the next sequence. A key that is known keeps its first place.
    pub fn push(&mut self, key: Hash) {
        let slot = self.rows.push(key);
        let rows = &self.rows;
        self.table
            .entry(spread(&key), |&other| *rows.get(other) == key, |&other| spread(rows.get(other)))
            .or_insert(slot);
    }

    /// The sequence of a key.
    pub fn find(&self, key: &Hash) -> Option<Sequence> {
        let slot = self.table.find(spread(key), |&slot| self.rows.get(slot) == key)?;
        Some(Sequence::from(*slot))
    }

    /// The sequence whose key comes next.
    pub fn next(&self) -> Sequence {
        self.rows.length as Sequence
    }

    /// Keys that can be found.
    pub fn len(&self) -> u64 {
        self.table.len() as u64
    }
}

/// The version of every subject.
#[derive(Debug, Default)]
pub struct Subjects {
    rows: Rows<(Hash, i64)>,
    table: HashTable<u32>,
}

impl Subjects {
    /// Sets the version of a subject; versions only rise.
    pub fn raise(&mut self, subject: Hash, version: i64) {
        let rows = &self.rows;
        match self.table.find(spread(&subject), |&slot| rows.get(slot).0 == subject) {
            Some(&slot) => {
                let known = &mut self.rows.get_mut(slot).1;
                *known = version.max(*known);
            }
            None => {
                let slot = self.rows.push((subject, version));
                let rows = &self.rows;
                self.table
                    .insert_unique(spread(&subject), slot, |&other| spread(&rows.get(other).0));
            }
        }
    }

    /// The version of a subject; 0 where it has no events.
    pub fn version(&self, subject: &Hash) -> i64 {
        self.table
            .find(spread(subject), |&slot| self.rows.get(slot).0 == *subject)
            .map_or(0, |&slot| self.rows.get(slot).1)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fold::hash, *};

    #[test]
    fn keys_are_found_where_they_first_stood() {
        let mut keys = Keys::default();
        for n in 0..10_000 {
            keys.push(hash(&format!("key-{n}")));
        }
        keys.push(hash("key-7"));
        assert_eq!((keys.next(), keys.len()), (10_001, 10_000));
        for n in 0..10_000 {
            assert_eq!(keys.find(&hash(&format!("key-{n}"))), Some(n));
        }
        assert_eq!(keys.find(&hash("key-10000")), None);
    }

    #[test]
    fn versions_only_rise() {
        let mut subjects = Subjects::default();
        assert_eq!(subjects.version(&hash("lens")), 0);
        for version in [1, 3, 2] {
            subjects.raise(hash("lens"), version);
        }
        subjects.raise(hash(""), 1);
        assert_eq!(subjects.version(&hash("lens")), 3);
        assert_eq!(subjects.version(&hash("")), 1);
    }
}
