//! Where the receipt of a key stands, in an entry of 10 bytes: part of the key's hash
//! and the sequence. With the room that a table leaves free a key takes 13 to 25 bytes of
//! memory, about 18 at 10 million keys. The rest of the hash stands with the receipt, so an entry is
//! a candidate until the receipt has been looked at. Pure.
//!
//! ```text
//! hash(16)  = shard(1) tag(4) …          which table, and what tells its entries apart
//! entry(10) = tag(4) sequence(6)
//! ```
//! Two of ten million keys share shard and tag about once in a hundred thousand
//! look-ups; the look-up then reads one receipt too many.

use hashbrown::HashTable;

use super::fold::Hash;
use crate::proto::event::Sequence;

/// Tables. A table that grows moves its entries: many small ones keep the pause short.
const SHARDS: usize = 256;

type Entry = [u8; 10];

/// Entries hold this many bytes of a sequence.
const SEQUENCE_BYTES: usize = 6;
/// A million events a second reach it after nine years.
const MAX_SEQUENCE: Sequence = (1 << (8 * SEQUENCE_BYTES)) - 1;

/// The places of all keys.
#[derive(Debug)]
pub struct Index {
    shards: Vec<HashTable<Entry>>,
}

impl Default for Index {
    fn default() -> Self {
        Index { shards: (0..SHARDS).map(|_| HashTable::new()).collect() }
    }
}

impl Index {
    /// Makes room for so many keys at once.
    pub fn reserve(&mut self, keys: u64) {
        let each = keys as usize / SHARDS;
        for shard in &mut self.shards {
            shard.reserve(each, spread);
        }
    }

    /// Adds a place of a key. A key may have several: of receipts that have
    /// expired, and of a later one.
    ///
    /// # Panics
    /// Beyond [`MAX_SEQUENCE`].
    pub fn insert(&mut self, key: &Hash, sequence: Sequence) {
        let entry = entry(key, sequence);
        self.shards[shard(key)].insert_unique(spread(&entry), entry, spread);
    }

    /// Takes a place of a key away, if it is there.
    pub fn remove(&mut self, key: &Hash, sequence: Sequence) {
        let entry = entry(key, sequence);
        let shard = &mut self.shards[shard(key)];
        if let Ok(found) = shard.find_entry(spread(&entry), |other| *other == entry) {
            found.remove();
        }
    }

    /// The places that may be a key's, in no order.
    pub fn candidates(&self, key: &Hash) -> impl Iterator<Item = Sequence> {
        let looked_for = entry(key, 0);
        self.shards[shard(key)]
            .iter_hash(spread(&looked_for))
            .filter(move |entry| entry[..4] == looked_for[..4])
            .map(|entry| {
                let mut sequence = [0; 8];
                sequence[..SEQUENCE_BYTES].copy_from_slice(&entry[4..]);
                Sequence::from_le_bytes(sequence)
            })
    }

    /// Entries held.
    pub fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len() as u64).sum()
    }
}

fn shard(key: &Hash) -> usize {
    key[0].into()
}

fn entry(key: &Hash, sequence: Sequence) -> Entry {
    assert!((0..=MAX_SEQUENCE).contains(&sequence), "{sequence} fits no entry");
    let mut entry = [0; 10];
    entry[..4].copy_from_slice(&key[1..5]);
    entry[4..].copy_from_slice(&sequence.to_le_bytes()[..SEQUENCE_BYTES]);
    entry
}

/// What the tables hash with. They take a place from the low bits and a mark from
/// the high ones, and both halves are as random as SHA-256.
fn spread(entry: &Entry) -> u64 {
    let tag = u64::from(u32::from_le_bytes(*entry.first_chunk().expect("10 bytes have 4")));
    tag << 32 | tag
}

#[cfg(test)]
mod tests {
    use super::{super::fold::hash, *};

    #[test]
    fn keys_are_found_where_they_stand_until_they_are_taken_away() {
        let mut index = Index::default();
        index.reserve(1_000);
        let key = |n: i64| hash(&format!("key-{n}"));
        for n in 0..10_000 {
            index.insert(&key(n), n << 20);
        }
        assert_eq!(index.len(), 10_000);
        for n in 0..10_000 {
            assert!(index.candidates(&key(n)).any(|sequence| sequence == n << 20), "{n}");
        }
        for n in 0..5_000 {
            index.remove(&key(n), n << 20);
            index.remove(&key(n), n << 20);
            index.remove(&key(n + 5_000), n << 20);
        }
        assert_eq!(index.len(), 5_000);
        assert_eq!(index.candidates(&key(7)).count(), 0);
    }

    #[test]
    fn a_key_may_stand_at_several_places() {
        let mut index = Index::default();
        let key = hash("again");
        index.insert(&key, 3);
        index.insert(&key, MAX_SEQUENCE);
        let mut places: Vec<_> = index.candidates(&key).collect();
        places.sort_unstable();
        assert_eq!(places, [3, MAX_SEQUENCE]);
        index.remove(&key, 3);
        assert_eq!(index.candidates(&key).collect::<Vec<_>>(), [MAX_SEQUENCE]);
    }
}
