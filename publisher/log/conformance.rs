//! One suite for every engine: the contract of [`EventLog`] and [`LogReader`] as
//! stories, and a model test that does at random what the stories do in order.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use proptest::prelude::*;
use uuid::Uuid;

use super::{
    CommitError, Entry, EventLog, Extent, LogReader, ReadError,
    memory::MemoryLog,
    segment::{Options, SegmentLog},
};
use crate::{
    proto::{chain::EMPTY_CHAIN, event::Sequence},
    publisher::durable::{self, Latch},
};

/// An engine under test, which can be opened again.
trait Subject {
    fn log(&mut self) -> &mut dyn EventLog;
    /// As after the death of the process.
    fn reopen(&mut self);
}

struct Memory(MemoryLog);

impl Subject for Memory {
    fn log(&mut self) -> &mut dyn EventLog {
        &mut self.0
    }

    fn reopen(&mut self) {
        self.0 = self.0.clone();
    }
}

struct Segments {
    dir: tempfile::TempDir,
    log: Option<SegmentLog>,
    options: Options,
}

impl Segments {
    fn new(segment_bytes: u64) -> Self {
        let dir = durable::scratch();
        let mut subject = Segments { dir, log: None, options: Options { segment_bytes } };
        subject.reopen();
        subject
    }
}

impl Subject for Segments {
    fn log(&mut self) -> &mut dyn EventLog {
        self.log.as_mut().expect("open")
    }

    fn reopen(&mut self) {
        self.log = None;
        let latch = Latch::open(self.dir.path()).expect("open");
        self.log = Some(SegmentLog::open(self.dir.path(), self.options, latch).expect("opens"));
    }
}

/// Entry `n`: its chain and time can be told from its number.
fn entry(n: Sequence, length: usize) -> Entry {
    let mut chain = [0xc4; 32];
    chain[..8].copy_from_slice(&n.to_be_bytes());
    Entry { chain, accepted_at_ms: 1_000 + n, body: Bytes::from(vec![n as u8; length]) }
}

fn entries(range: std::ops::Range<Sequence>) -> Vec<Entry> {
    range.map(|n| entry(n, 10)).collect()
}

fn extent(subject: &mut dyn Subject) -> Extent {
    subject.log().reader().extent()
}

fn all(reader: &Arc<dyn LogReader>) -> Vec<Entry> {
    let floor = reader.extent().floor;
    reader.read(floor, usize::MAX, usize::MAX).expect("readable")
}

fn is_truncated<T: std::fmt::Debug>(read: Result<T, ReadError>, at_floor: Sequence) {
    match read {
        Err(ReadError::Truncated { floor, .. }) => assert_eq!(floor, at_floor),
        other => panic!("expected to be told of the floor {at_floor}, got {other:?}"),
    }
}

/// Gives back all that can be given back; what it was must have been readable.
fn release_all(subject: &mut dyn Subject) {
    while let Some(range) = subject.log().releasable() {
        let count = (range.end - range.start) as usize;
        let reader = subject.log().reader();
        let read = reader.read_stored(range.start, count, usize::MAX).expect("readable");
        assert_eq!(read.len(), count);
        subject.log().release(range).expect("released");
    }
}

mod story {
    use super::*;

    pub fn a_new_log_is_empty(subject: &mut dyn Subject) {
        let reader = subject.log().reader();
        let Extent { floor, next, head_chain, bytes, .. } = reader.extent();
        assert_eq!((floor, next, head_chain, bytes), (0, 0, EMPTY_CHAIN, 0));
        assert_eq!(reader.read(0, 10, 10).expect("nothing"), []);
        assert_eq!(reader.chain_at(-1).expect("the empty chain"), EMPTY_CHAIN);
        assert!(matches!(reader.chain_at(0), Err(ReadError::Beyond { asked: 0, next: 0 })));
        assert_eq!(subject.log().releasable(), None);
        is_truncated(reader.read(-1, 10, 10), 0);
    }

    pub fn order_is_kept_and_survives(subject: &mut dyn Subject) {
        let before = extent(subject).log_id;
        subject.log().commit(&entries(0..3), 0).expect("stored");
        subject.log().commit(&entries(3..4), 0).expect("stored");
        subject.log().commit(&[], 0).expect("nothing to do");
        for _ in 0..2 {
            let reader = subject.log().reader();
            assert_eq!(all(&reader), entries(0..4));
            let Extent { log_id, floor, next, head_chain, bytes } = reader.extent();
            assert_eq!((log_id, floor, next, bytes), (before, 0, 4, 40));
            assert_eq!(head_chain, entry(3, 0).chain);
            subject.reopen();
        }
    }

    pub fn reads_stop_where_they_are_told(subject: &mut dyn Subject) {
        subject.log().commit(&entries(0..5), 0).expect("stored");
        subject.log().commit(&entries(5..8), 0).expect("stored");
        let reader = subject.log().reader();
        let read = |from, most, bytes| reader.read(from, most, bytes).expect("readable");
        assert_eq!(read(0, 2, usize::MAX), entries(0..2));
        assert_eq!(read(4, 2, usize::MAX), entries(4..6));
        assert_eq!(read(7, 9, usize::MAX), entries(7..8));
        assert_eq!(read(3, 9, 29), entries(3..5));
        assert_eq!(read(3, 9, 30), entries(3..6));
        assert_eq!(read(3, 9, 0), entries(3..4), "the first is always given");
        assert_eq!(read(3, 0, 99), []);
        assert_eq!(read(8, 9, 99), []);
        assert_eq!(read(99, 9, 99), []);
    }

    pub fn the_newest_are_read_from_memory(subject: &mut dyn Subject) {
        let reader = subject.log().reader();
        assert_eq!(reader.recent(0, 9, 99), None);
        subject.log().commit(&entries(0..5), 0).expect("stored");
        subject.log().commit(&entries(5..8), 3).expect("stored");
        let read = |from, most, bytes| reader.recent(from, most, bytes);
        assert_eq!(read(4, 2, usize::MAX), Some(entries(4..6)));
        assert_eq!(read(4, 9, 30), Some(entries(4..7)));
        assert_eq!(read(7, 9, 0), Some(entries(7..8)), "the first is always given");
        assert_eq!(read(8, 9, 99), None);
        assert_eq!(read(2, 9, 99), None, "below the floor");
    }

    pub fn the_floor_moves_with_or_without_entries(subject: &mut dyn Subject) {
        subject.log().commit(&entries(0..6), 0).expect("stored");
        subject.log().commit(&[], 2).expect("moved");
        subject.log().commit(&[], 1).expect("not above the present floor: nothing to do");
        subject.log().commit(&entries(6..8), 4).expect("stored and moved");
        for _ in 0..2 {
            let reader = subject.log().reader();
            let Extent { floor, next, bytes, .. } = reader.extent();
            assert_eq!((floor, next, bytes), (4, 8, 40));
            assert_eq!(all(&reader), entries(4..8));
            is_truncated(reader.read(3, 1, 1), 4);
            is_truncated(reader.chain_at(2), 4);
            assert_eq!(reader.chain_at(3).expect("kept"), entry(3, 0).chain);
            assert_eq!(reader.chain_at(5).expect("kept"), entry(5, 0).chain);
            assert_eq!(reader.chain_at(7).expect("kept"), entry(7, 0).chain);
            assert!(matches!(reader.chain_at(8), Err(ReadError::Beyond { next: 8, .. })));
            subject.reopen();
        }
    }

    /// LOG-02: no number is used twice, also when nothing is retained.
    pub fn an_emptied_log_goes_on_counting(subject: &mut dyn Subject) {
        subject.log().commit(&entries(0..3), 0).expect("stored");
        subject.log().commit(&[], 3).expect("emptied");
        release_all(subject);
        subject.reopen();
        release_all(subject);
        let reader = subject.log().reader();
        let Extent { floor, next, bytes, head_chain, .. } = reader.extent();
        assert_eq!((floor, next, bytes), (3, 3, 0));
        assert_eq!(head_chain, entry(2, 0).chain);
        assert_eq!(reader.chain_at(2).expect("kept"), entry(2, 0).chain);
        assert_eq!(reader.read(3, 9, 99).expect("nothing"), []);
        subject.log().commit(&entries(3..4), 3).expect("stored");
        // Truncated in the commit that brings it: accepted, counted, not retained.
        subject.log().commit(&entries(4..6), 6).expect("stored");
        subject.reopen();
        let Extent { floor, next, bytes, .. } = extent(subject);
        assert_eq!((floor, next, bytes), (6, 6, 0));
        assert_eq!(subject.log().reader().chain_at(5).expect("kept"), entry(5, 0).chain);
    }

    pub fn what_is_released_was_readable_and_is_gone(subject: &mut dyn Subject) {
        for n in 0..20 {
            subject.log().commit(&entries(2 * n..2 * n + 2), 0).expect("stored");
        }
        let reader = subject.log().reader();
        assert_eq!(subject.log().releasable(), None);
        subject.log().commit(&[], 33).expect("moved");
        is_truncated(reader.read(32, 1, 1), 33);
        assert_eq!(reader.read_stored(0, 40, 999).expect("not yet released"), entries(0..40));
        subject.reopen();
        let reader = subject.log().reader();
        let mut released = 0;
        while let Some(range) = subject.log().releasable() {
            assert_eq!(range.start, released);
            assert!(range.end <= 33);
            let count = (range.end - range.start) as usize;
            let read = reader.read_stored(range.start, count, usize::MAX).expect("readable");
            assert_eq!(read, entries(range.clone()));
            subject.log().release(range.clone()).expect("released");
            is_truncated(reader.read_stored(range.end - 1, 1, 1), range.end);
            released = range.end;
        }
        assert!(released > 0);
        for _ in 0..2 {
            let reader = subject.log().reader();
            assert_eq!(reader.chain_at(32).expect("kept"), entry(32, 0).chain);
            assert_eq!(all(&reader), entries(33..40));
            assert_eq!(reader.extent().bytes, 70);
            subject.reopen();
        }
    }

    pub fn a_reader_that_is_overtaken_is_told(subject: &mut dyn Subject) {
        for n in 0..30 {
            subject.log().commit(&entries(n..n + 1), 0).expect("stored");
        }
        let reader = subject.log().reader();
        assert_eq!(reader.read(0, 3, 99).expect("readable"), entries(0..3));
        subject.log().commit(&[], 29).expect("moved");
        release_all(subject);
        is_truncated(reader.read(3, 3, 99), 29);
        assert_eq!(reader.read(29, 3, 99).expect("readable"), entries(29..30));
    }

    pub fn readers_run_beside_the_writer(subject: &mut dyn Subject) {
        const END: Sequence = 2_000;
        let read_all = |reader: Arc<dyn LogReader>| {
            let mut at = 0;
            while at < END {
                match reader.read(at, 7, 64) {
                    Ok(read) => {
                        for found in read {
                            assert_eq!(found, entry(at, 10));
                            assert_eq!(
                                reader.chain_at(at).map_err(|_| ()).unwrap_or(found.chain),
                                found.chain
                            );
                            at += 1;
                        }
                    }
                    Err(ReadError::Truncated { floor, .. }) => at = floor,
                    Err(other) => panic!("{other}"),
                }
                std::thread::yield_now();
            }
        };
        let readers = [subject.log().reader(), subject.log().reader()];
        std::thread::scope(|scope| {
            for reader in readers {
                scope.spawn(|| read_all(reader));
            }
            for n in 0..END / 4 {
                let floor = (4 * n - 100).max(0);
                subject.log().commit(&entries(4 * n..4 * n + 4), floor).expect("stored");
                release_all(subject);
            }
        });
    }
}

macro_rules! conformance {
    ($($story:ident)*) => {
        mod memory {
            $(#[test] fn $story() {
                super::story::$story(&mut super::Memory(super::MemoryLog::new(uuid::Uuid::nil())));
            })*
        }
        mod segments {
            $(#[test] fn $story() {
                // Small segments, so that every story goes across several; one large.
                for segment_bytes in [1, 300, 1 << 20] {
                    if segment_bytes > 300 && stringify!($story).contains("released") {
                        continue; // nothing but whole segments is given back
                    }
                    super::story::$story(&mut super::Segments::new(segment_bytes));
                }
            })*
        }
    };
}

conformance! {
    a_new_log_is_empty
    order_is_kept_and_survives
    reads_stop_where_they_are_told
    the_newest_are_read_from_memory
    the_floor_moves_with_or_without_entries
    an_emptied_log_goes_on_counting
    what_is_released_was_readable_and_is_gone
    a_reader_that_is_overtaken_is_told
    readers_run_beside_the_writer
}

#[test]
fn the_memory_engine_fails_when_told() {
    let mut log = MemoryLog::new(Uuid::nil());
    log.fail_next(CommitError::DiskFull);
    assert!(matches!(log.commit(&entries(0..1), 0), Err(CommitError::DiskFull)));
    log.commit(&entries(0..1), 0).expect("there is room again");
    log.fail_next(CommitError::Halted("a sync failed".into()));
    for _ in 0..2 {
        assert!(matches!(log.commit(&[], 1), Err(CommitError::Halted(_))));
    }
    assert_eq!(all(&log.reader()), entries(0..1));
}

#[derive(Debug, Clone)]
enum Step {
    /// Lengths of bodies; how far of what there is then the floor moves, in 256ths.
    Commit(Vec<usize>, u8),
    Release,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (prop::collection::vec(0..200usize, 0..6), prop_oneof![3 => Just(0), 1 => any::<u8>()])
            .prop_map(|(lengths, floor)| Step::Commit(lengths, floor)),
        1 => Just(Step::Release),
        1 => Just(Step::Reopen),
    ]
}

/// Both engines answer every question alike.
fn compare(model: &dyn LogReader, reader: &dyn LogReader) -> Result<(), TestCaseError> {
    let expected = model.extent();
    let found = Extent { log_id: expected.log_id, ..reader.extent() };
    prop_assert_eq!(found, expected);
    for from in [0, expected.floor - 1, expected.floor, (expected.floor + expected.next) / 2] {
        for (most, bytes) in [(1, 0), (3, 300), (usize::MAX, usize::MAX)] {
            match (model.read(from, most, bytes), reader.read(from, most, bytes)) {
                (Ok(expected), Ok(found)) => {
                    prop_assert_eq!(&found, &expected);
                    if let Some(recent) = reader.recent(from, most, bytes) {
                        prop_assert_eq!(recent, found);
                    }
                }
                (Err(expected), Err(found)) => {
                    prop_assert_eq!(found.to_string(), expected.to_string());
                    prop_assert_eq!(reader.recent(from, most, bytes), None);
                }
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
    for sequence in expected.floor - 2..=expected.next {
        let texts =
            [model, reader].map(|log| log.chain_at(sequence).map_err(|error| error.to_string()));
        prop_assert_eq!(&texts[0], &texts[1]);
    }
    Ok(())
}

/// From each sequence its commit is given to its end, and whole ones after it that fit.
fn check_commits(
    reader: &dyn LogReader,
    ends: &BTreeSet<Sequence>,
    (most, bytes): (usize, usize),
) -> Result<(), TestCaseError> {
    let size = |entries: &[Entry]| entries.iter().map(|entry| entry.body.len()).sum::<usize>();
    let Extent { floor, next, .. } = reader.extent();
    for from in floor..next {
        let upto = |end: Sequence| {
            let count = (end - from) as usize;
            let read = reader.read(from, count, usize::MAX).expect("readable");
            let fits = count <= most && size(&read) <= bytes;
            (read, fits)
        };
        let mut expected = Vec::new();
        for &end in ends.range(from + 1..) {
            let (read, fits) = upto(end);
            if !fits && !expected.is_empty() {
                break;
            }
            expected = read;
        }
        prop_assert_eq!(reader.read_commits(from, most, bytes).expect("readable"), expected);
    }
    prop_assert_eq!(reader.read_commits(next, most, bytes).expect("nothing"), []);
    is_truncated(reader.read_commits(floor - 1, most, bytes), floor);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn segments_do_what_memory_does(
        steps in prop::collection::vec(step(), 1..40),
        segment_bytes in prop_oneof![Just(1u64), 100..3_000u64, Just(1 << 20)],
    ) {
        let mut model = MemoryLog::new(Uuid::nil());
        let mut subject = Segments::new(segment_bytes);
        let mut ends = BTreeSet::new();
        for step in steps {
            match step {
                Step::Commit(lengths, part) => {
                    let Extent { floor, next, .. } = model.reader().extent();
                    let entries: Vec<_> = (next..).zip(lengths).map(|(n, length)| entry(n, length)).collect();
                    let end = next + entries.len() as Sequence;
                    let floor = floor + (end - floor) * i64::from(part) / 255;
                    model.commit(&entries, floor).expect("stored");
                    subject.log().commit(&entries, floor).expect("stored");
                    ends.insert(end);
                }
                Step::Release => release_all(&mut subject),
                Step::Reopen => subject.reopen(),
            }
            compare(&*model.reader(), &*subject.log().reader())?;
        }
        for bounds in [(1, 0), (5, 500), (usize::MAX, usize::MAX)] {
            check_commits(&*subject.log().reader(), &ends, bounds)?;
        }
    }
}
