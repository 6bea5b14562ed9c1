//! Power cuts, played through: at every commit and release of a random run the
//! disk is stopped with any part of what had not been synced on it. Seals never are
//! synced: of any of them any part may be there. What was
//! committed is there, what was under way is there whole or not at all, and
//! nothing is taken for damage.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use proptest::prelude::*;

use super::{Options, SegmentLog, format::FILE_HEADER_BYTES, seal};
use crate::publisher::{
    durable::{self, Latch},
    log::{Entry, EventLog as _, Extent, OpenError},
};

/// The unit in which a disk writes: whole or not at all.
const SECTOR: usize = 512;

type Files = BTreeMap<PathBuf, Vec<u8>>;

fn snapshot(dir: &Path) -> Files {
    let files = fs::read_dir(dir).expect("listed").map(|file| file.expect("listed").path());
    files
        .map(|path| {
            (PathBuf::from(path.file_name().expect("a name")), fs::read(&path).expect("read"))
        })
        .collect()
}

/// The disk after a cut between two states: of every file, any of the sectors that were written
/// over; where it grew, any of the new ones, the others empty, and any length; where it was cut
/// off, either length. A new or a removed name there or not.
fn cut(before: &Files, after: &Files, mut chance: impl FnMut() -> bool) -> Files {
    let mut disk = Files::new();
    for (name, old) in before {
        match after.get(name) {
            None if chance() => drop(disk.insert(name.clone(), old.clone())),
            None => {}
            Some(new) => {
                let mut content = old.clone();
                let sectors = content.chunks_mut(SECTOR).zip(new.chunks(SECTOR));
                for (sector, new) in sectors {
                    let length = sector.len().min(new.len());
                    if sector[..length] != new[..length] && chance() {
                        sector[..length].copy_from_slice(&new[..length]);
                    }
                }
                if new.len() < old.len() && chance() {
                    content.truncate(new.len());
                }
                grow(&mut content, new, &mut chance);
                disk.insert(name.clone(), content);
            }
        }
    }
    for (name, new) in after.iter().filter(|(name, _)| !before.contains_key(*name)) {
        if chance() {
            // It had its name only once its header was there.
            let mut content = new[..FILE_HEADER_BYTES.min(new.len())].to_vec();
            grow(&mut content, new, &mut chance);
            disk.insert(name.clone(), content);
        }
    }
    let names = before.keys().chain(after.keys());
    let is_seal = |name: &&PathBuf| name.extension().is_some_and(|end| end == seal::EXTENSION);
    for name in names.filter(is_seal).collect::<BTreeSet<_>>() {
        disk.remove(name);
        let Some(whole) = after.get(name).or(before.get(name)).filter(|_| chance()) else {
            continue;
        };
        let mut content = whole.clone();
        while chance() {
            content.truncate(content.len() / 2);
        }
        if chance() {
            content.resize(whole.len(), 0);
        }
        disk.insert(name.clone(), content);
    }
    disk
}

/// Any of the sectors that a file has got more, and any length.
fn grow(content: &mut Vec<u8>, new: &[u8], mut chance: impl FnMut() -> bool) {
    while content.len() < new.len() && chance() {
        let at = content.len();
        let end = ((at / SECTOR + 1) * SECTOR).min(new.len());
        match chance() {
            true => content.extend_from_slice(&new[at..end]),
            false => content.resize(end, 0),
        }
    }
}

fn opened(disk: &Files) -> (tempfile::TempDir, SegmentLog) {
    let dir = durable::scratch();
    for (name, content) in disk {
        fs::write(dir.path().join(name), content).expect("written");
    }
    let log = open(dir.path()).expect("a power cut is no damage");
    (dir, log)
}

fn open(dir: &Path) -> Result<SegmentLog, OpenError> {
    SegmentLog::open(dir, Options { segment_bytes: 1_500 }, Latch::open(dir)?)
}

fn entry(n: i64, length: usize) -> Entry {
    Entry { chain: [n as u8; 32], accepted_at_ms: n, body: Bytes::from(vec![n as u8 | 1; length]) }
}

fn contents(log: &SegmentLog) -> (Extent, Vec<Entry>) {
    let reader = log.reader();
    let extent = reader.extent();
    (extent, reader.read(extent.floor, usize::MAX, usize::MAX).expect("readable"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_power_cut_takes_back_the_commit_under_way_or_nothing(
        groups in prop::collection::vec((prop::collection::vec(0..900usize, 0..4), any::<bool>()), 1..12),
        chances in prop::collection::vec(any::<bool>(), 64),
    ) {
        let dir = durable::scratch();
        let mut log = open(dir.path()).expect("opens");
        let mut chances = chances.into_iter().cycle();
        for (lengths, raise) in groups {
            let (disk_before, before) = (snapshot(dir.path()), contents(&log));
            let next = before.0.next;
            let entries: Vec<_> = (next..).zip(lengths).map(|(n, length)| entry(n, length)).collect();
            let end = next + entries.len() as i64;
            let floor = if raise { (before.0.floor + end + 1) / 2 } else { 0 };
            log.commit(&entries, floor).expect("stored");
            let (disk_after, after) = (snapshot(dir.path()), contents(&log));
            for _ in 0..4 {
                let disk = cut(&disk_before, &disk_after, || chances.next().expect("endless"));
                let (_dir, mut found) = opened(&disk);
                let state = contents(&found);
                prop_assert!(state == before || state == after, "{:?}", state.0);
                // What was not acknowledged may be stored now, under the same numbers.
                let n = state.0.next;
                found.commit(&[entry(n, 5)], 0).expect("stored");
                prop_assert_eq!(found.reader().extent().next, n + 1);
            }
            while let Some(range) = log.releasable() {
                let disk_before = snapshot(dir.path());
                log.release(range.clone()).expect("released");
                let disk = cut(&disk_before, &snapshot(dir.path()), || chances.next().expect("endless"));
                let (_dir, found) = opened(&disk);
                prop_assert_eq!(contents(&found), after.clone());
                let found = found.releasable();
                prop_assert!(found == Some(range) || found == log.releasable(), "{:?}", found);
            }
        }
    }
}
