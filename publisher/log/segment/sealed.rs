//! Starts that find seals: they see what they would see without them, and what
//! they do not see any more is seen by others.

use std::{fs, path::Path};

use bytes::Bytes;
use proptest::prelude::*;

use super::{
    Options, SegmentLog, check,
    format::FILE_HEADER_BYTES,
    meta, reader,
    recover::{self, Trust},
    seal,
};
use crate::{
    proto::event::Sequence,
    publisher::{
        durable::{self, Latch},
        log::{Entry, EventLog as _, Extent, OpenError, ReadError},
    },
};

fn entry(n: Sequence, length: usize) -> Entry {
    Entry { chain: [n as u8; 32], accepted_at_ms: n, body: Bytes::from(vec![n as u8; length]) }
}

fn open(dir: &Path, segment_bytes: u64) -> Result<SegmentLog, OpenError> {
    SegmentLog::open(dir, Options { segment_bytes }, Latch::open(dir)?)
}

const SEGMENT_BYTES: u64 = 300;

/// Thirty events in several segments.
fn written() -> (tempfile::TempDir, SegmentLog) {
    let dir = durable::scratch();
    let mut log = open(dir.path(), SEGMENT_BYTES).expect("opens");
    for n in 0..30 {
        log.commit(&[entry(n, 20)], 0).expect("stored");
    }
    (dir, log)
}

fn firsts(dir: &Path) -> Vec<Sequence> {
    recover::list(dir).expect("listed").into_iter().map(|(first, _)| first).collect()
}

fn path(dir: &Path, first: Sequence, extension: &str) -> std::path::PathBuf {
    dir.join(format!("{first:020}.{extension}"))
}

/// The first sequences of the seals that there are.
fn seals(dir: &Path) -> Vec<Sequence> {
    let mut firsts = firsts_with(dir, seal::EXTENSION);
    firsts.sort_unstable();
    firsts
}

fn firsts_with(dir: &Path, extension: &str) -> Vec<Sequence> {
    let files = fs::read_dir(dir).expect("listed").map(|file| file.expect("listed").path());
    files
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .filter_map(|path| path.file_stem()?.to_str()?.parse().ok())
        .collect()
}

fn flip(path: &Path, at: usize) {
    let mut content = fs::read(path).expect("read");
    content[at] ^= 1;
    fs::write(path, content).expect("written");
}

/// All that a start learns: the extent, and each segment with its marks.
fn learned(dir: &Path, trust: Trust) -> (Extent, Vec<(seal::Seal, u64)>) {
    let identity = meta::read(dir).expect("readable").expect("a log");
    let reader::State { extent, segments, .. } =
        recover::look(dir, &identity, trust).expect("whole").state;
    let about = |segment: &reader::Segment| (segment.seal([0; 32], 0), segment.body_bytes);
    (extent, segments.iter().map(about).collect())
}

#[test]
fn each_full_segment_has_a_seal_and_a_start_leaves_it_unread() {
    let (dir, log) = written();
    let files = firsts(dir.path());
    let (last, full) = files.split_last().expect("segments");
    assert!(full.len() >= 3 && seals(dir.path()) == full, "{files:?}");
    let extent = log.reader().extent();
    drop(log);
    // Damage in all of them, which nobody sees who does not read them.
    for &first in full {
        flip(&path(dir.path(), first, "seg"), 150);
    }
    let log = open(dir.path(), SEGMENT_BYTES).expect("none is read");
    assert_eq!(log.reader().extent(), extent);
    let end = log.reader().read(*last, 99, usize::MAX).expect("what was read is whole");
    assert_eq!(end.len() as Sequence, 30 - last);
}

#[test]
fn damage_in_a_sealed_segment_is_told_to_its_reader_and_by_the_check() {
    let (dir, log) = written();
    drop(log);
    let damaged = firsts(dir.path())[1];
    flip(&path(dir.path(), damaged, "seg"), 150);
    let mut log = open(dir.path(), SEGMENT_BYTES).expect("not read");
    assert_eq!(log.reader().extent().next, 30);
    log.commit(&[entry(30, 20)], 0).expect("stored");
    let before = log.reader().read(damaged, 99, usize::MAX);
    assert!(matches!(before, Err(ReadError::Corrupt { sequence, .. }) if sequence == damaged));
    assert_eq!(
        log.reader().read(0, damaged as usize, usize::MAX).expect("whole").len(),
        damaged as usize
    );
    let after = firsts(dir.path())[2];
    assert_eq!(log.reader().read(after, 99, usize::MAX).expect("whole").len(), 31 - after as usize);
    drop(log);
    let said = check(dir.path()).expect_err("damaged");
    assert!(matches!(said, OpenError::Corrupt { sequence, .. } if sequence == damaged), "{said}");
    // Nor is it believed in any more without its seal.
    fs::remove_file(path(dir.path(), damaged, seal::EXTENSION)).expect("removed");
    assert!(matches!(open(dir.path(), SEGMENT_BYTES), Err(OpenError::Corrupt { .. })));
}

#[test]
fn a_seal_that_does_not_fit_is_passed_over_and_written_anew() {
    let (dir, log) = written();
    drop(log);
    let files = firsts(dir.path());
    let expected = learned(dir.path(), Trust::Nothing);
    let whole = |first| fs::read(path(dir.path(), first, seal::EXTENSION)).expect("read");
    let (first, second) = (whole(files[0]), whole(files[1]));
    let spoilt = [
        None,
        Some(Vec::new()),
        Some(second.clone()),
        Some(second[..60].into()),
        Some(vec![0; 200]),
    ];
    for content in spoilt {
        let seal = path(dir.path(), files[0], seal::EXTENSION);
        match &content {
            None => fs::remove_file(&seal).expect("removed"),
            Some(content) => fs::write(&seal, content).expect("written"),
        }
        assert_eq!(learned(dir.path(), Trust::Seals), expected, "{content:?}");
        let log = open(dir.path(), SEGMENT_BYTES).expect("opens");
        assert_eq!(log.reader().read(0, 99, usize::MAX).expect("whole").len(), 30);
        drop(log);
        assert_eq!(whole(files[0]), first, "{content:?}");
    }
    // A segment that is not as long as its seal says is read.
    let path = path(dir.path(), files[0], "seg");
    let content = fs::read(&path).expect("read");
    fs::write(&path, &content[..content.len() - 1]).expect("written");
    assert!(matches!(open(dir.path(), SEGMENT_BYTES), Err(OpenError::Corrupt { .. })));
}

#[test]
fn the_segment_that_grows_is_read_whatever_stands_beside_it() {
    let (dir, log) = written();
    drop(log);
    let files = firsts(dir.path());
    let (last, full) = files.split_last().expect("segments");
    // As if the files after it were gone: its seal is right, and it may grow again.
    fs::remove_file(path(dir.path(), *last, "seg")).expect("removed");
    let grows = *full.last().expect("several");
    let segment = path(dir.path(), grows, "seg");
    let length = fs::metadata(&segment).expect("there").len() as usize;
    flip(&segment, length - 1);
    let log = open(dir.path(), SEGMENT_BYTES).expect("opens");
    assert!(log.reader().extent().next < *last, "its torn end was noticed");
    assert!(!path(dir.path(), grows, seal::EXTENSION).exists(), "nor will it fit later");
}

/// A frame's header has no checksum of its own: nothing follows from it alone.
#[test]
fn no_flipped_bit_of_a_sealed_segment_leads_a_reader_astray_or_on_for_ever() {
    let (dir, log) = written();
    drop(log);
    let damaged = firsts(dir.path())[1];
    let until = firsts(dir.path())[2];
    let path = path(dir.path(), damaged, "seg");
    let whole = fs::read(&path).expect("read");
    for bit in 8 * FILE_HEADER_BYTES..8 * whole.len() {
        let mut content = whole.clone();
        content[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, content).expect("written");
        // Each sequence by itself, so that frames before it are passed over.
        let log = open(dir.path(), SEGMENT_BYTES).expect("not read");
        let read = |from| log.reader().read(from, 1, usize::MAX);
        let told = (damaged..until).filter(|&from| match read(from) {
            Ok(entries) => {
                assert_eq!(entries, [entry(from, 20)], "bit {bit}");
                false
            }
            Err(ReadError::Corrupt { .. }) => true,
            Err(other) => panic!("bit {bit}: {other}"),
        });
        assert_ne!(told.count(), 0, "bit {bit}");
    }
}

#[test]
fn a_seal_goes_with_its_segment_and_one_left_behind_at_the_start() {
    let (dir, mut log) = written();
    log.commit(&[], 15).expect("stored");
    while let Some(range) = log.releasable() {
        log.release(range).expect("released");
        let files = firsts(dir.path());
        assert_eq!(seals(dir.path()), files[..files.len() - 1]);
    }
    drop(log);
    let orphan = path(dir.path(), 0, seal::EXTENSION);
    fs::write(&orphan, "left").expect("written");
    open(dir.path(), SEGMENT_BYTES).expect("opens");
    assert!(!orphan.exists());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_start_with_seals_learns_what_one_without_learns(
        groups in prop::collection::vec((prop::collection::vec(0..9_000usize, 0..5), any::<bool>()), 1..40),
        segment_bytes in 1..60_000u64,
    ) {
        let dir = durable::scratch();
        let mut log = open(dir.path(), segment_bytes).expect("opens");
        for (lengths, raise) in groups {
            let Extent { floor, next, .. } = log.reader().extent();
            let entries: Vec<_> = (next..).zip(lengths).map(|(n, length)| entry(n, length)).collect();
            let end = next + entries.len() as Sequence;
            log.commit(&entries, if raise { (floor + end) / 2 } else { 0 }).expect("stored");
            if let Some(range) = log.releasable().filter(|_| raise) {
                log.release(range).expect("released");
            }
        }
        let running = log.reader().extent();
        prop_assert_eq!(seals(dir.path()).len(), firsts(dir.path()).len() - 1);
        prop_assert_eq!(learned(dir.path(), Trust::Seals), learned(dir.path(), Trust::Nothing));
        drop(log);
        let log = open(dir.path(), segment_bytes).expect("opens");
        prop_assert_eq!(log.reader().extent(), running);
        let Extent { floor, next, .. } = running;
        for n in floor..next {
            let read = log.reader().read(n, 1, 0).expect("whole");
            prop_assert_eq!(read[0].accepted_at_ms, n);
        }
    }
}
