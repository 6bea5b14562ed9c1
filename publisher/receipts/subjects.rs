//! The version of every subject: rows of fixed size in chunks that never move,
//! and a table of 4-byte slots over them. Growing copies slots, never rows. Pure.

use hashbrown::HashTable;

use super::fold::Hash;

/// Rows of one chunk.
const CHUNK: usize = 4_096;

/// The version of every subject.
#[derive(Debug, Default)]
pub struct Subjects {
    chunks: Vec<Vec<(Hash, i64)>>,
    table: HashTable<u32>,
}

impl Subjects {
    /// Sets the version of a subject; versions only rise.
    pub fn raise(&mut self, subject: Hash, version: i64) {
        if let Some(&slot) = self.table.find(spread(&subject), |&slot| self.row(slot).0 == subject)
        {
            let known = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK].1;
            *known = version.max(*known);
            return;
        }
        let slot = u32::try_from(self.table.len()).expect("4 billion rows do not fit in memory");
        match self.chunks.last_mut().filter(|chunk| chunk.len() < CHUNK) {
            Some(chunk) => chunk.push((subject, version)),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push((subject, version));
                self.chunks.push(chunk);
            }
        }
        let chunks = &self.chunks;
        self.table.insert_unique(spread(&subject), slot, |&other| spread(&row(chunks, other).0));
    }

    /// The version of a subject; 0 where it has no events.
    pub fn version(&self, subject: &Hash) -> i64 {
        self.table
            .find(spread(subject), |&slot| self.row(slot).0 == *subject)
            .map_or(0, |&slot| self.row(slot).1)
    }

    fn row(&self, slot: u32) -> &(Hash, i64) {
        row(&self.chunks, slot)
    }
}

fn row(chunks: &[Vec<(Hash, i64)>], slot: u32) -> &(Hash, i64) {
    &chunks[slot as usize / CHUNK][slot as usize % CHUNK]
}

/// What the table hashes with: a SHA-256 needs no second hashing.
fn spread(hash: &Hash) -> u64 {
    u64::from_le_bytes(*hash.first_chunk().expect("16 bytes have 8"))
}

#[cfg(test)]
mod tests {
    use super::{super::fold::hash, *};

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

    #[test]
    fn ten_thousand_subjects_keep_their_versions_apart() {
        let mut subjects = Subjects::default();
        for n in 0..10_000 {
            subjects.raise(hash(&format!("subject-{n}")), n + 1);
        }
        for n in 0..10_000 {
            assert_eq!(subjects.version(&hash(&format!("subject-{n}"))), n + 1);
        }
    }
}
