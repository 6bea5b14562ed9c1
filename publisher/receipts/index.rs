//! Where the receipt of a key stands, in an entry of 10 bytes: part of the key's hash
//! and the sequence. With the room that a table leaves free a key takes 11.5 to 13 bytes
//! of memory. The rest of the hash stands with the receipt, so an entry is
//! a candidate until the receipt has been looked at. Pure.
//!
//! ```text
//! hash(16)  = shard(1) tag(4) …          which table, and what its entries are sorted by
//! entry(10) = tag(4) sequence(6)
//! ```
//! Two of ten million keys share shard and tag about once in a hundred thousand
//! look-ups; the look-up then reads one receipt too many.

use std::thread;

use super::fold::Hash;
use crate::proto::event::Sequence;

/// Tables. A table that grows moves its entries: many small ones keep the pause short.
const SHARDS: usize = 256;

type Entry = [u8; 10];

/// Entries hold this many bytes of a sequence.
const SEQUENCE_BYTES: usize = 6;
/// A place without an entry: its sequence is above [`MAX_SEQUENCE`].
const EMPTY: Entry = [0xff; 10];
/// A million events a second reach it after nine years.
const MAX_SEQUENCE: Sequence = (1 << (8 * SEQUENCE_BYTES)) - 2;

/// The places of all keys.
#[derive(Debug)]
pub struct Index {
    shards: Vec<Table>,
}

impl Default for Index {
    fn default() -> Self {
        Index { shards: vec![Table::default(); SHARDS] }
    }
}

impl Index {
    /// Adds a place of a key. A key may have several: of receipts that have
    /// expired, and of a later one.
    ///
    /// # Panics
    /// Beyond [`MAX_SEQUENCE`].
    pub fn insert(&mut self, key: &Hash, sequence: Sequence) {
        self.shards[shard(key)].insert(entry(key, sequence));
    }

    /// Takes a place of a key away, if it is there.
    pub fn remove(&mut self, key: &Hash, sequence: Sequence) {
        self.shards[shard(key)].remove(entry(key, sequence));
    }

    /// The places that may be a key's, in no order.
    pub fn candidates(&self, key: &Hash) -> impl Iterator<Item = Sequence> {
        self.shards[shard(key)].with_tag(tag(&entry(key, 0))).iter().map(|entry| {
            let mut sequence = [0; 8];
            sequence[..SEQUENCE_BYTES].copy_from_slice(&entry[4..]);
            Sequence::from_le_bytes(sequence)
        })
    }

    /// Fetches the places where keys would stand from memory, all at once: look-ups one after
    /// the other would each wait for theirs.
    pub fn prefetch<'k>(&self, keys: impl Iterator<Item = &'k Hash>) {
        let fetched = keys.fold(0, |all, key| all ^ self.shards[shard(key)].fetched(key));
        std::hint::black_box(fetched);
    }

    /// Entries held.
    pub fn len(&self) -> u64 {
        self.shards.iter().map(|shard| shard.len as u64).sum()
    }
}

/// Places of keys by table, as one thread has found them.
#[derive(Debug)]
pub struct ByTable(Vec<Vec<Entry>>);

impl Default for ByTable {
    fn default() -> Self {
        ByTable(vec![Vec::new(); SHARDS])
    }
}

impl ByTable {
    /// Takes a place in.
    ///
    /// # Panics
    /// Beyond [`MAX_SEQUENCE`].
    pub fn push(&mut self, key: &Hash, sequence: Sequence) {
        self.0[shard(key)].push(entry(key, sequence));
    }
}

/// An index that is filled at once: its tables are put in order when all is there.
#[derive(Debug)]
pub struct Filling {
    shards: Vec<Table>,
}

impl Filling {
    /// With room for so many keys, and some more that come later.
    pub fn with_room(keys: u64) -> Self {
        let each = keys as usize / SHARDS;
        // Tables are not equally full: the fullest of 256 has this much more.
        let homes = homes_for(each + 4 * each.isqrt());
        let table = || Table { slots: Vec::with_capacity(homes + TAIL), homes, len: 0 };
        Filling { shards: (0..SHARDS).map(|_| table()).collect() }
    }

    /// Adds places, and leaves nothing in what they came in but the room.
    pub fn add(&mut self, places: &mut ByTable) {
        for (table, places) in self.shards.iter_mut().zip(&mut places.0) {
            table.slots.append(places);
        }
    }

    /// The index, put in order by so many threads.
    pub fn finish(mut self, threads: usize) -> Index {
        thread::scope(|scope| {
            for tables in self.shards.chunks_mut(SHARDS.div_ceil(threads.max(1))) {
                scope.spawn(move || {
                    let mut entries = Vec::new();
                    tables.iter_mut().for_each(|table| table.put_in_order(&mut entries));
                });
            }
        });
        Index { shards: self.shards }
    }
}

/// Entries sorted by their tag, with gaps. A tag says where its entry would best stand;
/// where others stand there already it comes behind the smaller ones, without a gap
/// between its best place and its own. So a look-up walks a few neighbours, a table needs
/// little free room, and growing copies from the front to the end.
#[derive(Debug, Clone, Default)]
struct Table {
    /// The best places, and some more behind the last of them.
    slots: Vec<Entry>,
    /// Best places. Invariant: `len <= full(homes) <= homes <= slots.len()`.
    homes: usize,
    len: usize,
}

/// Added behind the last best place when entries crowd there.
const TAIL: usize = 32;

/// Entries that a table with so many best places takes: with more, walks get long.
fn full(homes: usize) -> usize {
    homes - homes / 8
}

/// Best places for so many entries, and for some that come later.
fn homes_for(entries: usize) -> usize {
    entries + entries / 5
}

impl Table {
    /// Takes what stands in the slots for entries in no order. `entries` is scratch memory.
    fn put_in_order(&mut self, entries: &mut Vec<Entry>) {
        entries.clear();
        entries.append(&mut self.slots);
        entries.sort_unstable_by_key(tag);
        self.len = entries.len();
        if self.len > full(self.homes) {
            self.homes = homes_for(self.len);
        }
        self.place(entries.iter());
    }

    fn insert(&mut self, entry: Entry) {
        if self.len >= full(self.homes) {
            self.grow(self.homes + self.homes / 8 + 8);
        }
        let at = self.first_from(tag(&entry));
        let end = self.slots[at..].iter().position(|slot| *slot == EMPTY);
        let end = end.map_or(self.slots.len(), |gap| at + gap);
        if end == self.slots.len() {
            self.slots.reserve_exact(TAIL);
            self.slots.resize(end + TAIL, EMPTY);
        }
        self.slots.copy_within(at..end, at + 1);
        self.slots[at] = entry;
        self.len += 1;
    }

    fn remove(&mut self, entry: Entry) {
        let tag = tag(&entry);
        let Some(nth) = self.with_tag(tag).iter().position(|other| *other == entry) else {
            return;
        };
        let at = self.first_from(tag) + nth;
        // Those behind it come one nearer, up to one that stands at its best.
        let moves = |(n, other): (usize, &Entry)| *other != EMPTY && self.home(other) <= at + n;
        let behind = self.slots[at + 1..].iter().enumerate();
        let end = at + 1 + behind.take_while(|&other| moves(other)).count();
        self.slots.copy_within(at + 1..end, at);
        self.slots[end - 1] = EMPTY;
        self.len -= 1;
    }

    /// A byte from where a key would stand.
    fn fetched(&self, key: &Hash) -> u8 {
        self.slots.get(self.home(&entry(key, 0))).map_or(0, |slot| slot[0])
    }

    /// The entries with a tag.
    fn with_tag(&self, tag_of: u32) -> &[Entry] {
        let from = self.first_from(tag_of);
        let rest = self.slots.get(from..).unwrap_or_default();
        let same = rest.iter().take_while(|slot| **slot != EMPTY && tag(slot) == tag_of);
        &rest[..same.count()]
    }

    /// Where the first entry with a tag stands, or would be put.
    fn first_from(&self, tag_of: u32) -> usize {
        let home = self.home_of(tag_of);
        let rest = self.slots.get(home..).unwrap_or_default();
        home + rest.iter().take_while(|slot| **slot != EMPTY && tag(slot) < tag_of).count()
    }

    fn home(&self, entry: &Entry) -> usize {
        self.home_of(tag(entry))
    }

    /// Tags are as random as SHA-256, so they spread evenly; and a larger tag never has
    /// a smaller place.
    fn home_of(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.homes as u64) >> 32) as usize
    }

    fn grow(&mut self, homes: usize) {
        let old = std::mem::take(&mut self.slots);
        self.homes = homes;
        self.place(old.iter().filter(|entry| **entry != EMPTY));
    }

    /// Puts sorted entries at their places in slots that hold nothing.
    fn place<'a>(&mut self, sorted: impl Iterator<Item = &'a Entry>) {
        self.slots.reserve_exact(self.homes + TAIL);
        self.slots.resize(self.homes + TAIL, EMPTY);
        let mut free = 0;
        for entry in sorted {
            let at = self.home(entry).max(free);
            match self.slots.get_mut(at) {
                Some(slot) => *slot = *entry,
                None => self.slots.push(*entry),
            }
            free = at + 1;
        }
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

fn tag(entry: &Entry) -> u32 {
    u32::from_le_bytes(*entry.first_chunk().expect("10 bytes have 4"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::fold::hash, *};

    #[test]
    fn keys_are_found_where_they_stand_until_they_are_taken_away() {
        let mut index = Index::default();
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

    #[test]
    fn an_index_filled_at_once_is_one_like_any_other() {
        let key = |n: i64| hash(&format!("key-{n}"));
        // With too little room, and with too much.
        for room in [0, 20_000, 90_000] {
            let mut filling = Filling::with_room(room);
            let mut places = ByTable::default();
            for n in 0..20_000 {
                places.push(&key(n), n);
                if n % 7_000 == 0 {
                    filling.add(&mut places);
                }
            }
            filling.add(&mut places);
            let mut index = filling.finish(3);
            for n in 20_000..30_000 {
                index.insert(&key(n), n);
                index.remove(&key(n - 10_000), n - 10_000);
            }
            assert_eq!(index.len(), 20_000);
            for n in 0..30_000 {
                let found = index.candidates(&key(n)).any(|sequence| sequence == n);
                assert_eq!(found, !(10_000..20_000).contains(&n), "{n}");
            }
        }
    }

    #[test]
    fn a_key_takes_little_memory_also_while_tables_grow() {
        let mut index = Index::default();
        let mut random = 1_u64;
        for n in 0..1_000_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let mut key = [0; 16];
            key[..8].copy_from_slice(&random.swap_bytes().to_le_bytes());
            index.insert(&key, n);
            if n >= 250_000 && n % 50_000 == 0 {
                let slots: usize = index.shards.iter().map(|table| table.slots.capacity()).sum();
                let bytes = (slots * size_of::<Entry>()) as f64 / (n + 1) as f64;
                assert!((11.0..13.5).contains(&bytes), "{bytes} bytes a key at {n}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Tags that crowd at both ends and in the middle, some of them equal.
        #[test]
        fn whatever_comes_and_goes_what_is_left_is_found(
            steps in prop::collection::vec((any::<bool>(), 0..6_usize, 0..3_u8, 0..40_i64), 0..600),
        ) {
            const ENDS: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];
            let key = |end: usize, low: u8| {
                let mut key = [ENDS[end]; 16];
                (key[0], key[1]) = (7, low);
                key
            };
            let mut index = Index::default();
            let mut held = Vec::new();
            for (add, end, low, sequence) in steps {
                let place = (key(end, low), sequence);
                if add {
                    index.insert(&place.0, place.1);
                    held.push(place);
                } else {
                    index.remove(&place.0, place.1);
                    if let Some(at) = held.iter().position(|other| *other == place) {
                        held.swap_remove(at);
                    }
                }
                prop_assert_eq!(index.len(), held.len() as u64);
            }
            for end in 0..ENDS.len() {
                for low in 0..3 {
                    let key = key(end, low);
                    let mut found: Vec<_> = index.candidates(&key).collect();
                    let mut expected: Vec<_> =
                        held.iter().filter(|place| place.0 == key).map(|place| place.1).collect();
                    found.sort_unstable();
                    expected.sort_unstable();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }
}
