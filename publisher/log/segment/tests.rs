//! What a crash, a torn write or a bad disk leaves behind, and what opening
//! makes of it.

use std::{fs, path::Path};

use bytes::Bytes;

use super::{format, *};
use crate::{
    proto::event::Sequence,
    publisher::{
        durable::{self, Latch},
        log::{Entry, EventLog as _, OpenError, ReadError},
    },
};

fn entry(n: Sequence) -> Entry {
    Entry { chain: [n as u8; 32], accepted_at_ms: n, body: Bytes::from(vec![n as u8; 20]) }
}

fn open(dir: &Path, segment_bytes: u64) -> Result<SegmentLog, OpenError> {
    SegmentLog::open(dir, Options { segment_bytes }, Latch::open(dir)?)
}

/// A log of `commits` groups of two.
fn written(segment_bytes: u64, commits: Sequence) -> tempfile::TempDir {
    let dir = durable::scratch();
    let mut log = open(dir.path(), segment_bytes).expect("opens");
    for n in 0..commits {
        log.commit(&[entry(2 * n), entry(2 * n + 1)], 0).expect("stored");
    }
    dir
}

fn read_all(log: &SegmentLog) -> Vec<Entry> {
    log.reader().read(0, usize::MAX, usize::MAX).expect("readable")
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(dir)
        .expect("listed")
        .map(|file| {
            let file = file.expect("listed");
            let name = file.file_name().into_string().expect("UTF-8");
            (name, fs::read(file.path()).expect("read"))
        })
        .collect();
    files.sort();
    files
}

fn segment(dir: &Path, first: Sequence) -> std::path::PathBuf {
    dir.join(format!("{first:020}.seg"))
}

const FRAME: usize = format::FRAME_HEADER_BYTES + 2 * (format::RECORD_HEADER_BYTES + 20);

#[test]
fn an_end_torn_at_any_byte_takes_back_the_last_group_only_and_is_kept() {
    let dir = written(1 << 20, 3);
    let path = segment(dir.path(), 0);
    let whole = fs::read(&path).expect("read");
    let start = whole.len() - FRAME;
    for cut in start..whole.len() {
        fs::write(&path, &whole[..cut]).expect("written");
        let mut log = open(dir.path(), 1 << 20).expect("opens");
        assert_eq!(read_all(&log), (0..4).map(entry).collect::<Vec<_>>(), "cut at {cut}");
        let kept = dir.path().join(format!("torn-{:020}.seg-at-{start}-0", 0));
        let torn = whole[start..cut].iter().rposition(|&byte| byte != 0);
        let torn = torn.map_or(&[][..], |last| &whole[start..=start + last]);
        assert_eq!(fs::read(&kept).unwrap_or_default(), torn, "but for zeros at its end");
        let _ = fs::remove_file(kept);
        // The number of the lost group was never acknowledged: it is free.
        log.commit(&[entry(4)], 0).expect("stored");
        drop(log);
        assert_eq!(read_all(&open(dir.path(), 1 << 20).expect("opens")).len(), 5);
    }
}

#[test]
fn pages_of_the_last_group_that_never_arrived_are_a_torn_end() {
    let dir = written(1 << 20, 3);
    let path = segment(dir.path(), 0);
    let whole = fs::read(&path).expect("read");
    for at in whole.len() - FRAME..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).expect("written");
        let log = open(dir.path(), 1 << 20).expect("opens");
        assert_eq!(log.reader().extent().next, 4, "bit in byte {at}");
    }
}

/// What moves the floor alone is a frame that ends with its checksum, and that may end with zero.
#[test]
fn damage_before_a_frame_that_ends_with_zero_is_corrupt() {
    const EVENTS: Sequence = 20_000;
    let dir = durable::scratch();
    let mut log = open(dir.path(), 1 << 24).expect("opens");
    log.commit(&(0..EVENTS).map(entry).collect::<Vec<_>>(), 0).expect("stored");
    drop(log);
    let path = segment(dir.path(), 0);
    let whole = fs::read(&path).expect("read");
    let salt = format::FileHeader::decode(&whole).expect("a header").salt;
    let frame = |floor| {
        let mut frame = Vec::new();
        format::encode_frame(&mut frame, salt, EVENTS, &[], floor).expect("small");
        frame
    };
    let mut floors = 1..=EVENTS;
    let floor = floors.find(|&floor| frame(floor).ends_with(&[0])).expect("one in 256 does");
    for zeros in [0, 5_000] {
        let mut content = [&whole[..], &frame(floor), &vec![0; zeros]].concat();
        fs::write(&path, &content).expect("written");
        let extent = open(dir.path(), 1 << 24).expect("opens").reader().extent();
        assert_eq!((extent.floor, extent.next), (floor, EVENTS), "{zeros} zeros");
        content[whole.len() - 1] ^= 1;
        fs::write(&path, &content).expect("written");
        let damaged = open(dir.path(), 1 << 24).expect_err("damaged");
        assert!(matches!(damaged, OpenError::Corrupt { sequence: 0, .. }), "{zeros}: {damaged}");
    }
}

#[test]
fn zeros_behind_the_last_group_are_neither_torn_nor_damage() {
    let dir = written(200, 9); // several groups a file
    let whole = files(dir.path());
    let add_zeros = |(name, content): &(String, Vec<u8>)| {
        let content = [content, &[0; 5_000][..]].concat();
        fs::write(dir.path().join(name), content).expect("written");
    };
    whole.iter().filter(|(name, _)| name.ends_with(".seg")).for_each(add_zeros);
    let mut log = open(dir.path(), 200).expect("opens");
    assert_eq!(read_all(&log), (0..18).map(entry).collect::<Vec<_>>());
    assert_eq!(files(dir.path()), whole, "none is kept for torn, and seals are believed again");
    log.commit(&[entry(18)], 0).expect("stored");
    // Killed: what was written ahead is there.
    let left = files(dir.path());
    assert!(left.iter().any(|(_, content)| content.ends_with(&[0; 5_000])));
    drop(log);
    assert!(files(dir.path()).iter().all(|(_, content)| !content.ends_with(&[0; 5_000])));
    for (name, content) in left {
        fs::write(dir.path().join(name), content).expect("written");
    }
    assert_eq!(read_all(&open(dir.path(), 200).expect("opens")).len(), 19);
    assert!(files(dir.path()).iter().all(|(name, _)| !name.starts_with("torn-")));
}

#[test]
fn a_flipped_bit_before_the_last_commit_is_corrupt_names_the_sequence_and_changes_nothing() {
    let dir = written(1 << 20, 4);
    let path = segment(dir.path(), 0);
    let whole = fs::read(&path).expect("read");
    for at in 0..whole.len() - FRAME {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        fs::write(&path, &damaged).expect("written");
        let before = files(dir.path());
        let first = at.saturating_sub(format::FILE_HEADER_BYTES) / FRAME * 2;
        match open(dir.path(), 1 << 20).expect_err("damaged") {
            OpenError::Corrupt { sequence, .. } => assert_eq!(sequence, first as i64, "byte {at}"),
            OpenError::Format(_) => assert_eq!(at, 7, "the version"),
            other => panic!("byte {at}: {other}"),
        }
        assert_eq!(files(dir.path()), before);
    }
}

#[test]
fn damage_in_an_older_file_and_missing_files_are_corrupt() {
    let fresh = || written(200, 9); // several groups a file
    let firsts = |dir: &Path| -> Vec<Sequence> {
        recover::list(dir).expect("listed").into_iter().map(|(first, _)| first).collect()
    };
    let files_of = firsts(fresh().path());
    assert!(files_of.len() >= 3, "{files_of:?}");
    let corrupt_at = |dir: &Path, expected: Sequence| match open(dir, 200).expect_err("damaged") {
        OpenError::Corrupt { sequence, .. } => assert_eq!(sequence, expected),
        other => panic!("{other}"),
    };
    // The last frame of a file that another one follows: not a torn end.
    let dir = fresh();
    let path = segment(dir.path(), files_of[1]);
    let content = fs::read(&path).expect("read");
    fs::write(&path, &content[..content.len() - 1]).expect("written");
    corrupt_at(dir.path(), files_of[2] - 2);
    // A file is missing: the first, one between.
    for &first in &files_of[..files_of.len() - 1] {
        let dir = fresh();
        fs::remove_file(segment(dir.path(), first)).expect("removed");
        corrupt_at(dir.path(), first);
    }
    // All of them: not taken for a new log.
    let dir = fresh();
    for &first in &files_of {
        fs::remove_file(segment(dir.path(), first)).expect("removed");
    }
    corrupt_at(dir.path(), 0);
    // A file of another log.
    let (dir, other) = (fresh(), fresh());
    fs::copy(segment(other.path(), files_of[1]), segment(dir.path(), files_of[1])).expect("copied");
    corrupt_at(dir.path(), files_of[1]);
    // The identity.
    let dir = fresh();
    fs::remove_file(dir.path().join(meta::FILE)).expect("removed");
    assert!(matches!(open(dir.path(), 200), Err(OpenError::Damaged { .. })));
}

#[test]
fn damage_while_running_is_told_to_the_reader() {
    let dir = written(1 << 20, 4);
    let log = open(dir.path(), 1 << 20).expect("opens");
    let path = segment(dir.path(), 0);
    let mut content = fs::read(&path).expect("read");
    let in_the_third = format::FILE_HEADER_BYTES + 2 * FRAME + FRAME / 2;
    content[in_the_third] ^= 1;
    fs::write(&path, content).expect("written");
    let reader = log.reader();
    assert_eq!(reader.read(0, 4, usize::MAX).expect("before it").len(), 4);
    assert_eq!(reader.read(0, 9, usize::MAX).expect("up to it").len(), 4);
    let read = reader.read(4, 9, usize::MAX);
    assert!(matches!(read, Err(ReadError::Corrupt { sequence: 4, .. })), "{read:?}");
}

#[test]
fn an_unfinished_creation_is_begun_again() {
    let dir = written(1 << 20, 0);
    fs::remove_file(dir.path().join(meta::FILE)).expect("removed");
    fs::write(dir.path().join("00000000000000000007.seg.tmp"), "half").expect("written");
    let mut log = open(dir.path(), 1 << 20).expect("opens");
    log.commit(&[entry(0)], 0).expect("stored");
    assert!(files(dir.path()).iter().all(|(name, _)| !name.ends_with(".tmp")));
}

#[test]
fn a_group_larger_than_a_segment_and_marks_far_apart_are_found() {
    let dir = durable::scratch();
    let mut log = open(dir.path(), 100_000).expect("opens");
    let large = |n: Sequence| Entry { body: Bytes::from(vec![n as u8; 50_000]), ..entry(n) };
    log.commit(&(0..10).map(large).collect::<Vec<_>>(), 0).expect("stored");
    for n in 10..1_000 {
        log.commit(&[entry(n)], 0).expect("stored");
    }
    log.commit(&[large(1_000)], 0).expect("stored");
    let reader = log.reader();
    for n in (0..1_001).rev() {
        let expected = if (10..1_000).contains(&n) { entry(n) } else { large(n) };
        assert_eq!(reader.read(n, 1, 0).expect("readable"), [expected]);
    }
    drop(log);
    assert_eq!(read_all(&open(dir.path(), 100_000).expect("opens")).len(), 1_001);
}

#[test]
fn a_newer_format_is_refused_in_one_sentence() {
    let dir = written(1 << 20, 1);
    let path = segment(dir.path(), 0);
    let mut content = fs::read(&path).expect("read");
    content[7] = 2;
    fs::write(&path, content).expect("written");
    let refused = open(dir.path(), 1 << 20).expect_err("newer").to_string();
    assert!(refused.contains("format 2; this version reads up to 1"), "{refused}");
}
