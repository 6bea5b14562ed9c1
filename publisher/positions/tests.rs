//! What is recorded, removed and read again.

use std::fs;

use bytes::BufMut as _;
use uuid::Uuid;

use super::*;

fn position(name: &str, sequence: i64) -> Position {
    let acked = Cursor { log_id: Uuid::from_u128(7), sequence, chain: [sequence as u8; 32] };
    Position {
        name: name.to_owned(),
        session: sequence + 1,
        acked,
        reported: sequence - 1,
        seen_ms: 1_000 + sequence,
    }
}

fn opened(dir: &Path) -> Positions {
    Positions::open(dir, Latch::open(dir).expect("open")).expect("opens")
}

fn reopened(dir: &Path) -> Vec<Position> {
    opened(dir).all().cloned().collect()
}

#[test]
fn what_was_recorded_is_there_after_opening_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut positions = opened(dir.path());
    positions.record(&[position("b", 3), position("a", 1)]).expect("recorded");
    positions.record(&[position("a", 2)]).expect("recorded");
    assert_eq!(positions.get("a"), Some(&position("a", 2)));
    assert_eq!(reopened(dir.path()), [position("a", 2), position("b", 3)]);
}

#[test]
fn older_formats_are_read_and_continued_as_the_newest() {
    let versions = [
        (1, 16, Position { reported: -1, seen_ms: 0, ..position("a", 2) }),
        (2, 8, Position { seen_ms: 0, ..position("a", 2) }),
    ];
    for (version, newer_bytes, old) in versions {
        let dir = tempfile::tempdir().expect("a directory");
        let mut content = [&b"CFPOSIT"[..], &[version]].concat();
        FORMAT.frame(&mut content, |out| {
            let mut record = Vec::new();
            old.put(&mut record);
            out.put_slice(&record[1..record.len() - newer_bytes]);
        });
        fs::write(dir.path().join(FILE), content).expect("written");
        let mut positions = opened(dir.path());
        assert_eq!(positions.all().collect::<Vec<_>>(), [&old]);
        positions.record(&[position("b", 3)]).expect("recorded");
        assert_eq!(reopened(dir.path()), [old, position("b", 3)]);
    }
}

#[test]
fn who_is_removed_stays_so_and_its_session_is_not_used_again() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut positions = opened(dir.path());
    positions.record(&[position("a", 7), position("b", 3)]).expect("recorded");
    positions.remove("nobody").expect("nothing to do");
    positions.remove("a").expect("removed");
    assert_eq!((positions.get("a"), positions.removed()), (None, 8));
    let again = opened(dir.path());
    assert_eq!((again.get("a"), again.removed()), (None, 8));
    assert_eq!(reopened(dir.path()), [position("b", 3)]);
    let other = tempfile::tempdir().expect("a directory");
    assert_eq!(copy(dir.path(), other.path(), None).expect("copied"), 1);
    assert_eq!(opened(other.path()).removed(), 8, "also through a rewrite");
    assert_eq!(read(other.path()).expect("readable"), [position("b", 3)]);
}

#[test]
fn starts_are_told_as_far_back_as_a_lease() {
    let dir = tempfile::tempdir().expect("a directory");
    let started = |now_ms| {
        let mut positions = opened(dir.path());
        positions.start(now_ms, 640).expect("noted");
        positions.starts().to_vec()
    };
    // (now, starts)
    for (now_ms, starts) in [
        (1_000, &[1_000][..]),
        (1_009, &[1_000]), // too soon to count for itself
        (1_010, &[1_000, 1_010]),
        (1_500, &[1_000, 1_010, 1_500]),
        (1_640, &[1_000, 1_010, 1_500, 1_640]),
        (1_660, &[1_010, 1_500, 1_640, 1_660]),
        (9_000, &[1_660, 9_000]),
    ] {
        assert_eq!(started(now_ms), starts, "{now_ms}");
    }
    let other = tempfile::tempdir().expect("a directory");
    copy(dir.path(), other.path(), None).expect("copied");
    assert_eq!(opened(other.path()).starts().last(), Some(&9_000), "also through a rewrite");
}

#[test]
fn the_journal_stays_short() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut positions = opened(dir.path());
    let many: Vec<_> = (0..1000).map(|sequence| position("a", sequence)).collect();
    for _ in 0..10 {
        positions.record(&many).expect("recorded");
    }
    let length = fs::metadata(dir.path().join(FILE)).expect("there").len();
    assert!(length < 2 * COMPACT_BYTES, "{length}");
    assert_eq!(reopened(dir.path()), [position("a", 999)]);
}
