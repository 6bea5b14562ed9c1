//! Receipts against a log: through truncation, restarts, the key floor and damage.

use std::{fs, path::Path, time::Duration};

use bytes::Bytes;

use super::*;
use crate::{
    proto::{
        event::{DataKind, Event, Intent},
        wire,
    },
    publisher::{
        durable::{self, Latch},
        log::{CommitError, Entry, EventLog, LogReader, OpenError, memory::MemoryLog},
    },
};

/// A key window of a second: the key floor moves by the millisecond.
const WINDOW: Duration = Duration::from_secs(1);

/// A log with its receipts, and what is expected of them.
struct Story {
    dir: tempfile::TempDir,
    log: MemoryLog,
    receipts: Shared,
    store: Store,
    accepted: Vec<(String, Accepted)>,
}

impl Story {
    fn new() -> Self {
        let dir = durable::scratch();
        let log = MemoryLog::new(Uuid::from_u128(1));
        let (receipts, store) = open(dir.path(), latch(dir.path()), &*log.reader()).expect("opens");
        Story { dir, log, receipts, store, accepted: Vec::new() }
    }

    /// Accepts an event; `time_ms` stands beside the key.
    fn publish(&mut self, key: &str, time_ms: Option<i64>) {
        let sequence = self.accepted.len() as Sequence;
        let subject_version = sequence / 2 + 1;
        let accepted = Accepted {
            sequence,
            subject_version,
            fingerprint: [sequence as u8; 32],
            accepted_at_ms: 1_000 + sequence,
            time_ms,
        };
        self.log.commit(&[entry(key, &accepted)], 0).expect("stored");
        let names = Names::of(key, subject(sequence), time_ms);
        change(&self.receipts).insert(names, accepted.clone());
        self.accepted.push((key.to_owned(), accepted));
    }

    /// Accepts events under keys without a time.
    fn fill(&mut self, count: usize) {
        for _ in 0..count {
            self.publish(&format!("key-{}", self.accepted.len()), None);
        }
    }

    /// Truncates the log up to a floor and gives the storage back.
    fn truncate(&mut self, floor: Sequence) {
        self.log.commit(&[], floor).expect("stored");
        let range = self.log.releasable().expect("something to release");
        self.store.save_below(range.end, &self.receipts).expect("saved");
        self.log.release(range).expect("released");
    }

    fn advance(&mut self, clock_ms: i64) {
        self.store.advance(&self.receipts, clock_ms, WINDOW).expect("stored");
    }

    fn forget(&mut self) {
        self.store.forget(&self.receipts).expect("stored");
    }

    fn reopen(&mut self) {
        self.try_reopen().expect("opens");
    }

    fn try_reopen(&mut self) -> Result<(), OpenError> {
        self.store = Store::in_memory(); // the one before has ended
        (self.receipts, self.store) =
            open(self.dir.path(), latch(self.dir.path()), &*self.log.reader())?;
        Ok(())
    }

    fn find(&self, key: &str) -> Option<Accepted> {
        look(&self.receipts).find(&hash(key)).expect("readable")
    }

    /// Every receipt is found that has not expired, no other is, and so again after a restart.
    fn check(&mut self) {
        for _ in 0..2 {
            let floor_ms = look(&self.receipts).key_floor_ms();
            for (key, accepted) in &self.accepted {
                let expected = is_live(accepted.time_ms, floor_ms).then_some(accepted);
                assert_eq!(self.find(key).as_ref(), expected, "{key}, key floor {floor_ms}");
            }
            assert_eq!(self.find("other"), None);
            let receipts = look(&self.receipts);
            let untimed = self.accepted.iter().filter(|(_, a)| a.time_ms.is_none()).count();
            let events = self.accepted.len() as i64;
            assert_eq!((receipts.next(), receipts.untimed()), (events, untimed as u64));
            assert_eq!(receipts.subject_version(&hash("even")), (events + 1) / 2);
            assert_eq!(receipts.subject_version(&hash("odd")), events / 2);
            assert_eq!(receipts.subject_version(&hash("none")), 0);
            drop(receipts);
            self.reopen();
            assert_eq!(look(&self.receipts).key_floor_ms(), floor_ms);
        }
    }

    /// Receipts files, and how many receipts are in them.
    fn files(&self) -> (usize, usize) {
        let found = file::list(self.dir.path()).expect("listed");
        let rows = found.iter().map(|found| file::read(&found.path).expect("whole").receipts.len());
        (found.len(), rows.sum())
    }
}

fn latch(dir: &Path) -> Latch {
    Latch::open(dir).expect("open")
}

fn subject(sequence: Sequence) -> &'static str {
    if sequence % 2 == 0 { "even" } else { "odd" }
}

/// A stored event.
fn entry(key: &str, accepted: &Accepted) -> Entry {
    let Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms } = *accepted;
    let event = Event {
        sequence,
        subject_version,
        accept_time: Time::from_unix_millis(accepted_at_ms),
        intent: Intent {
            key: key.into(),
            event_type: "stock.adjusted".into(),
            subject: subject(sequence).into(),
            content_type: "application/octet-stream".into(),
            kind: DataKind::Binary,
            data: Bytes::from_static(&[b'x'; 100]),
            attributes: Vec::new(),
            expected_version: None,
            first_attempt_time: time_ms.map(Time::from_unix_millis),
            time: None,
            fingerprint,
        },
    };
    Entry { chain: [0; 32], accepted_at_ms, body: wire::stored(&event) }
}

/// A UUIDv7 of a time.
fn v7(time_ms: i64, n: u32) -> String {
    format!("{:08x}-{:04x}-7000-8000-{n:012x}", time_ms >> 16, time_ms & 0xffff)
}

#[test]
fn receipts_and_versions_survive_the_truncation_of_everything() {
    let mut story = Story::new();
    story.fill(10);
    story.check();
    assert_eq!(story.files(), (0, 0), "the log still has it all");
    story.log.commit(&[], 7).expect("stored");
    story.check();
    story.truncate(8);
    assert_eq!(story.files(), (1, 10), "with what goes, the rest is saved");
    story.check();
    story.fill(3);
    story.truncate(13);
    story.check();
    story.fill(1);
    story.check();
    assert_eq!(story.files(), (2, 13));
}

#[test]
fn what_is_between_two_steps_when_a_process_dies_is_found_as_before_or_after() {
    let mut story = Story::new();
    story.fill(4);
    let before = fs::read(story.dir.path().join(manifest::FILE)).expect("read");
    story.truncate(4);
    // A file that no manifest names: the log still has its events.
    fs::write(story.dir.path().join(manifest::FILE), &before).expect("written");
    let refused = story.try_reopen().expect_err("but here it has not");
    assert!(matches!(refused, OpenError::Corrupt { sequence: 0, .. }), "{refused}");
    assert_eq!(story.files(), (1, 4), "a refusal removes nothing");

    let mut story = Story::new();
    story.fill(4);
    story.store.save(&story.receipts).expect("saved");
    fs::write(story.dir.path().join(manifest::FILE), &before).expect("written");
    story.check();
    assert_eq!(story.files(), (0, 0));
}

#[test]
fn a_receipt_lives_until_the_key_floor_has_passed_its_time() {
    let mut story = Story::new();
    for n in 0..10 {
        story.publish(&v7(5_000 + n, n as u32), Some(5_000 + n));
    }
    story.publish("for ever", None);
    story.advance(6_005);
    assert_eq!(look(&story.receipts).key_floor_ms(), 5_005);
    story.check();
    assert!(story.find(&v7(5_005, 5)).is_some() && story.find(&v7(5_004, 4)).is_none());
    story.truncate(11);
    assert_eq!(story.files(), (1, 6), "what has expired is not saved");
    story.check();

    story.advance(6_009);
    story.forget();
    assert_eq!(story.files(), (1, 6), "one of them is not expired");
    story.check();
    story.advance(6_010);
    story.check();
    story.forget();
    assert_eq!(story.files(), (1, 1));
    assert_eq!(look(&story.receipts).keys(), 1);
    story.check();
}

#[test]
fn the_key_floor_never_moves_back() {
    let mut story = Story::new();
    story.advance(90_000);
    for (clock_ms, window) in [(80_000, WINDOW), (90_000, Duration::from_secs(60)), (0, WINDOW)] {
        story.store.advance(&story.receipts, clock_ms, window).expect("nothing to do");
        story.reopen();
        assert_eq!(look(&story.receipts).key_floor_ms(), 89_000);
        assert_eq!(look(&story.receipts).clock_ms(), 90_000);
    }
    // A small step is not worth a write; it counts neither here nor after a restart.
    let wide = Duration::from_secs(7 * 86_400);
    let far = 89_000 + wide.as_millis() as i64 + 59_999;
    story.store.advance(&story.receipts, far, wide).expect("nothing to do");
    assert_eq!(look(&story.receipts).key_floor_ms(), 89_000);
    story.store.advance(&story.receipts, far + 1, wide).expect("stored");
    assert_eq!(look(&story.receipts).key_floor_ms(), 149_000);
}

#[test]
fn the_clock_goes_on_from_the_newest_event() {
    let mut story = Story::new();
    story.fill(3);
    story.reopen();
    assert_eq!(look(&story.receipts).clock_ms(), 1_002);
    story.truncate(3);
    story.reopen();
    assert_eq!(look(&story.receipts).clock_ms(), 1_002);
}

#[test]
fn a_key_that_has_expired_may_be_stated_anew_and_then_has_one_receipt() {
    let mut story = Story::new();
    for time_ms in [5_000, 6_000, 7_000] {
        story.publish("again", Some(time_ms));
        story.advance(time_ms + 1_000);
        assert_eq!(story.find("again").map(|found| found.time_ms), Some(Some(time_ms)));
        story.store.save(&story.receipts).expect("saved");
        story.reopen();
        assert_eq!(story.find("again").map(|found| found.time_ms), Some(Some(time_ms)));
        story.advance(time_ms + 2_000);
        assert_eq!(story.find("again"), None);
        if time_ms == 6_000 {
            story.forget();
        }
    }
}

#[test]
fn an_unknown_key_is_told_from_one_that_may_have_been_forgotten() {
    let mut story = Story::new();
    let unknown = |story: &Story, key: &str, stated: Option<i64>| {
        look(&story.receipts).unknown(key, stated.map(Time::from_unix_millis))
    };
    story.advance(6_000);
    assert_eq!(unknown(&story, "k", None), Unknown::NeverAccepted);
    assert_eq!(unknown(&story, "k", Some(4_999)), Unknown::Expired);
    assert_eq!(unknown(&story, "k", Some(5_000)), Unknown::NeverAccepted);
    assert_eq!(unknown(&story, &v7(4_999, 0), None), Unknown::Expired);
    assert_eq!(unknown(&story, &v7(5_000, 0), None), Unknown::NeverAccepted);
    assert_eq!(unknown(&story, &v7(4_999, 0), Some(5_000)), Unknown::NeverAccepted);

    // From the moment on when a time that stood beside a key has expired, a key
    // alone does not tell any more; wherever that receipt was then.
    story.publish(&v7(5_500, 1), Some(5_500));
    story.publish("k", Some(6_500));
    story.advance(7_500);
    assert_eq!(unknown(&story, "other", None), Unknown::NeverAccepted);
    story.advance(7_501);
    for _ in 0..3 {
        assert_eq!(unknown(&story, "k", None), Unknown::Expired);
        assert_eq!(unknown(&story, "other", None), Unknown::Expired);
        assert_eq!(unknown(&story, &v7(7_000, 2), None), Unknown::NeverAccepted);
        story.store.save(&story.receipts).expect("saved");
        story.forget();
        story.reopen();
    }
    story.log.commit(&[], 2).expect("stored");
    story.truncate(2);
    story.reopen();
    assert_eq!(unknown(&story, "k", None), Unknown::Expired);
}

#[test]
fn a_log_that_has_forgotten_nearly_everything_has_few_files() {
    let mut story = Story::new();
    for n in 0..100 {
        let time_ms = 5_000 + n;
        let key = v7(time_ms, n as u32);
        story.publish(&key, Some(time_ms));
        if n % 25 == 0 {
            story.fill(1);
        }
        story.truncate(story.accepted.len() as Sequence);
        story.advance(time_ms + 1_001);
        story.forget();
        assert!(story.files().0 <= 16, "{:?}", story.files());
    }
    assert_eq!(story.files().1, 4);
    story.check();
}

#[test]
fn few_files_at_a_time_are_written_anew_after_a_step_of_the_clock() {
    let mut story = Story::new();
    for n in 0..12 {
        story.publish(&v7(5_000, n), Some(5_000));
        story.store.save(&story.receipts).expect("saved");
    }
    story.advance(90_000);
    for left in [4, 0] {
        story.forget();
        assert_eq!(look(&story.receipts).keys(), left);
        assert_eq!(story.files(), (12, left as usize));
    }
    story.check();
}

#[test]
fn whether_a_range_holds_anything_is_known() {
    let mut story = Story::new();
    story.publish(&v7(5_000, 0), Some(5_000));
    story.store.save(&story.receipts).expect("saved");
    story.fill(1);
    story.store.save(&story.receipts).expect("saved");
    story.publish(&v7(5_000, 2), Some(5_000));
    let holds = |story: &Story| {
        [0..1, 1..2, 2..3, 0..3, 3..3].map(|range| look(&story.receipts).holds_any(range))
    };
    assert_eq!(holds(&story), [true, true, true, true, false]);
    story.advance(90_000);
    story.store.save(&story.receipts).expect("saved");
    story.forget();
    for _ in 0..2 {
        assert_eq!(holds(&story), [false, true, false, true, false]);
        story.reopen();
    }
}

#[test]
fn many_new_receipts_are_saved_while_their_events_are_still_there() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS - 1);
    story.store.save_if_many(&story.receipts).expect("nothing to do");
    assert_eq!(story.files().0, 0);
    story.fill(1);
    story.store.save_if_many(&story.receipts).expect("saved");
    assert_eq!(story.files(), (1, FLUSH_ROWS));
    story.fill(10);
    story.reopen();
    assert_eq!(look(&story.receipts).fresh.len(), 10);
    fs::remove_file(story.dir.path().join(manifest::FILE)).expect("removed");
    let lost = story.try_reopen().expect_err("no manifest").to_string();
    assert!(lost.contains("rebuild-receipts"), "{lost}");
}

#[test]
fn receipts_are_saved_beside_those_that_come_meanwhile() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS);
    story.store.save_beside(&story.receipts).expect("begun");
    // They may be stated beside a key, and the clock goes on.
    for n in 0..10 {
        story.publish(&format!("late-{n}"), Some(500 + n));
    }
    let clock_ms = look(&story.receipts).clock_ms();
    // Whatever needs the file waits for the thread.
    story.truncate(FLUSH_ROWS as Sequence);
    assert_eq!(story.files(), (1, FLUSH_ROWS));
    {
        let receipts = look(&story.receipts);
        assert_eq!((receipts.fresh.len(), receipts.clock_ms()), (10, clock_ms));
        assert_eq!(receipts.manifest.oldest_stated_ms, 500);
    }
    story.check();
    story.fill(FLUSH_ROWS - 10);
    story.store.save_beside(&story.receipts).expect("begun");
    story.advance(2_505);
    assert_eq!(look(&story.receipts).fresh.len(), 0, "the key floor waits for it, too");
    story.forget();
    story.check();
}

#[test]
fn no_more_than_as_many_again_gather_beside_a_save() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS);
    story.store.save_beside(&story.receipts).expect("begun");
    story.fill(FLUSH_ROWS);
    story.store.save_beside(&story.receipts).expect("waited for");
    assert_eq!(look(&story.receipts).fresh.len(), FLUSH_ROWS);
    story.store.save_beside(&story.receipts).expect("begun");
    story.store.finish(&story.receipts).expect("saved");
    assert_eq!(story.files(), (2, 2 * FLUSH_ROWS));
}

#[test]
fn a_log_is_left_only_once_its_receipts_are_saved() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS);
    story.store.save_beside(&story.receipts).expect("begun");
    story.store = Store::in_memory();
    let left = manifest::read(story.dir.path()).expect("readable").expect("there");
    assert_eq!(left.position(), FLUSH_ROWS as Sequence);
    story.check();
}

#[test]
fn a_failure_beside_is_told_and_closes_the_latch() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS);
    // What stands in the way of the first file.
    fs::create_dir(file::path(story.dir.path(), 0, 0)).expect("created");
    story.store.save_beside(&story.receipts).expect("begun");
    let told = story.store.finish(&story.receipts);
    assert!(matches!(told, Err(CommitError::Halted(_))), "{told:?}");
    assert!(Latch::is_closed(story.dir.path()).expect("known"));
    assert_eq!(look(&story.receipts).fresh.len(), FLUSH_ROWS, "they are held as before");
    assert!(story.find("key-7").is_some());
    // It is asked again once there are as many more.
    story.fill(FLUSH_ROWS - 1);
    story.store.save_beside(&story.receipts).expect("nothing to do");
    story.fill(1);
    story.store.save_beside(&story.receipts).expect("begun");
    let told = story.store.finish(&story.receipts);
    assert!(matches!(told, Err(CommitError::Halted(_))), "{told:?}");
}

#[test]
fn a_log_without_receipts_files_is_read_from_its_beginning() {
    let mut story = Story::new();
    story.fill(FLUSH_ROWS + 10);
    story.reopen();
    assert_eq!(story.files(), (1, FLUSH_ROWS));
    fs::remove_file(story.dir.path().join(manifest::FILE)).expect("removed");
    for found in file::list(story.dir.path()).expect("listed") {
        fs::remove_file(found.path).expect("removed");
    }
    story.reopen();
    assert!(story.find("key-7").is_some());
    story.truncate(story.accepted.len() as Sequence);
    fs::remove_file(story.dir.path().join(manifest::FILE)).expect("removed");
    for found in file::list(story.dir.path()).expect("listed") {
        fs::remove_file(found.path).expect("removed");
    }
    let refused = story.try_reopen().expect_err("their events are gone").to_string();
    assert!(refused.contains("rebuild-receipts --data-dir"), "{refused}");
}

/// A directory with a file of receipts, beside one that is damaged by `damage`.
fn refused(damage: impl Fn(&Path)) -> String {
    let mut story = Story::new();
    story.fill(3);
    story.truncate(3);
    story.fill(2);
    story.truncate(5);
    damage(story.dir.path());
    let files = || -> Vec<_> { file::list(story.dir.path()).expect("listed") };
    let before = files();
    let reader: Arc<dyn LogReader> = story.log.reader();
    let opened = open(story.dir.path(), latch(story.dir.path()), &*reader);
    let refused = opened.map(drop).expect_err("damaged").to_string();
    assert_eq!(files(), before, "a refusal removes nothing");
    assert!(refused.contains("rebuild-receipts --data-dir"), "{refused}");
    refused
}

#[test]
fn damage_is_said_with_the_way_out_and_nothing_is_removed() {
    let first = |dir: &Path| file::path(dir, 0, 0);
    let missing = refused(|dir| fs::remove_file(first(dir)).expect("removed"));
    assert!(missing.contains("missing"), "{missing}");
    refused(|dir| fs::write(first(dir), "short").expect("written"));
    refused(|dir| {
        fs::copy(file::path(dir, 3, 0), first(dir)).expect("copied");
    });
    refused(|dir| fs::write(dir.join(manifest::FILE), "other").expect("written"));
    refused(|dir| fs::remove_file(dir.join(manifest::FILE)).expect("removed"));
}

#[test]
fn damage_after_opening_gives_the_right_receipt_or_an_error_and_never_none() {
    for times in [[None; 4], [Some(7), None, Some(7), None]] {
        let mut story = Story::new();
        for (n, time_ms) in times.into_iter().enumerate() {
            story.publish(&format!("key-{n}"), time_ms);
        }
        story.store.save(&story.receipts).expect("saved");
        story.advance(90_000);
        story.forget();
        let path = file::list(story.dir.path()).expect("listed").remove(0).path;
        let whole = fs::read(&path).expect("read");
        let held: Vec<_> = story.accepted.iter().filter(|(_, a)| a.time_ms.is_none()).collect();
        let check = |damage: &str| {
            let mut errors = 0;
            for (key, accepted) in &held {
                match look(&story.receipts).find(&hash(key)) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(accepted), "{key}, {damage}"),
                    Err(ReadError::Corrupt { .. }) => errors += 1,
                    Err(error) => panic!("{key}, {damage}: {error}"),
                }
            }
            errors
        };
        for bit in 0..whole.len() * 8 {
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, flipped).expect("written");
            check(&format!("bit {bit}"));
        }
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).expect("written");
            assert!(check(&format!("{length} bytes")) > 0);
        }
        fs::remove_file(&path).expect("removed");
        assert_eq!(check("no file"), held.len());
    }
}

#[test]
fn a_copy_holds_the_same_and_what_cannot_be_used_is_not_copied() {
    let mut story = Story::new();
    story.fill(3);
    story.truncate(3);
    story.publish("timed", Some(7));
    story.truncate(4);
    let other = durable::scratch();
    let copied = copy(story.dir.path(), other.path()).expect("copied");
    assert_eq!(copied, Copied { receipts: 4, damaged: Vec::new(), left_out: Vec::new() });
    let path = file::path(story.dir.path(), 3, 0);
    fs::write(&path, "damaged").expect("written");
    let copied = copy(story.dir.path(), durable::scratch().path()).expect("what is whole");
    assert_eq!(copied, Copied { receipts: 3, damaged: Vec::new(), left_out: vec![path] });
    story.dir = other;
    story.reopen();
    story.check();
}

/// Damages the row of the last receipt in a file.
fn damage_last_row(path: &Path) {
    let mut content = fs::read(path).expect("read");
    let last = content.len() - 1;
    content[last] ^= 1;
    fs::write(path, content).expect("written");
}

#[test]
fn a_file_with_a_damaged_receipt_is_copied_with_all_others() {
    let mut story = Story::new();
    story.fill(3);
    story.truncate(3);
    let path = file::path(story.dir.path(), 0, 0);
    damage_last_row(&path);
    let other = durable::scratch();
    let copied = copy(story.dir.path(), other.path()).expect("copied");
    assert_eq!(copied, Copied { receipts: 2, damaged: vec![path], left_out: Vec::new() });
    story.dir = other;
    story.reopen();
    assert!(story.find("key-0").is_some() && story.find("key-1").is_some());
    let damaged = look(&story.receipts).find(&hash("key-2"));
    assert!(matches!(damaged, Err(ReadError::Corrupt { sequence: 2, .. })), "{damaged:?}");
}

#[test]
fn a_damaged_receipt_is_lost_alone_and_only_if_its_event_is_gone() {
    for truncated in [false, true] {
        let mut story = Story::new();
        story.fill(2);
        story.publish("timed", Some(9_000));
        story.truncate(2);
        if truncated {
            story.truncate(3);
        }
        let path = file::path(story.dir.path(), 0, 0);
        damage_last_row(&path);
        if truncated {
            let refused = rebuilt(&story, false).expect_err("lost").to_string();
            assert!(refused.contains("1 truncated events are lost (2 to 2)"), "{refused}");
        }
        let rebuilt = rebuilt(&story, truncated).expect("rebuilt");
        let floor_ms = if truncated { 9_001 } else { 0 };
        assert_eq!((rebuilt.receipts, rebuilt.key_floor_ms), (3 - u64::from(truncated), floor_ms));
        assert!(rebuilt.set_aside[0].exists(), "what is damaged is kept");
        story.reopen();
        assert!(story.find("key-0").is_some() && story.find("key-1").is_some());
        assert_eq!(story.find("timed").is_none(), truncated);
        assert_eq!(look(&story.receipts).subject_version(&hash("even")), 2);
    }
}

/// Two files of receipts, three and two, and an event in the log; the first file and
/// its subjects are lost.
fn with_a_lost_file() -> Story {
    let mut story = Story::new();
    story.publish("timed", Some(5_000));
    story.fill(2);
    story.truncate(3);
    story.publish("later", Some(5_100));
    story.fill(1);
    story.advance(6_050);
    story.truncate(5);
    story.fill(1);
    fs::write(file::path(story.dir.path(), 0, 0), "damaged").expect("written");
    story
}

fn rebuilt(story: &Story, forget_truncated: bool) -> Result<Rebuilt, OpenError> {
    rebuild(story.dir.path(), latch(story.dir.path()), &*story.log.reader(), forget_truncated)
}

#[test]
fn a_rebuild_changes_nothing_that_is_whole() {
    let mut story = Story::new();
    story.publish("timed", Some(5_000));
    story.fill(5);
    story.truncate(4);
    story.fill(3);
    story.advance(6_001);
    for lost in ["nothing", manifest::FILE] {
        let _ = fs::remove_file(story.dir.path().join(lost));
        let rebuilt = rebuilt(&story, false).expect("rebuilt");
        assert_eq!((rebuilt.receipts, rebuilt.lost.len(), rebuilt.set_aside.len()), (8, 0, 0));
        assert_eq!(rebuilt.list_lost, lost == manifest::FILE);
        story.reopen();
        for n in [1, 5, 8] {
            assert!(story.find(&format!("key-{n}")).is_some());
        }
    }
}

#[test]
fn a_list_that_this_version_cannot_read_is_not_taken_for_damaged() {
    let mut story = Story::new();
    story.fill(3);
    story.truncate(3);
    let path = story.dir.path().join(manifest::FILE);
    let mut newer = fs::read(&path).expect("read");
    newer[7] += 1;
    fs::write(&path, &newer).expect("written");
    assert!(matches!(rebuilt(&story, true), Err(OpenError::Format(_))));
    assert_eq!(fs::read(&path).expect("still there"), newer);
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("created");
    assert!(matches!(rebuilt(&story, true), Err(OpenError::Io { .. })));
}

/// All events are truncated, and the clock was ahead of what it is now.
#[test]
fn what_is_given_up_of_an_empty_log_is_older_than_its_clock() {
    let mut story = Story::new();
    story.fill(3);
    let ahead_ms = 1 << 45;
    story.advance(ahead_ms);
    story.truncate(3);
    fs::write(file::path(story.dir.path(), 0, 0), "damaged").expect("written");
    let rebuilt = rebuilt(&story, true).expect("rebuilt");
    assert_eq!(rebuilt.key_floor_ms, ahead_ms + 300_001);
}

/// A process has died while it removed the files of format 1 that it had taken over.
#[test]
fn a_rebuild_keeps_what_has_been_taken_over_of_format_1() {
    let mut story = Story::new();
    story.fill(3);
    story.truncate(3);
    story.fill(1);
    let mut left = [&b"CFRETRD\x01"[..], &3_i64.to_le_bytes(), &0_u64.to_le_bytes()].concat();
    left.extend(crc32c::crc32c(&left).to_le_bytes());
    fs::write(story.dir.path().join(format!("{:020}.retired", 3)), left).expect("written");
    assert_eq!(rebuilt(&story, false).expect("rebuilt").receipts, 4);
    story.reopen();
    story.check();
}

#[test]
fn what_the_log_still_stores_needs_no_file() {
    let mut story = Story::new();
    story.fill(5);
    story.store.save(&story.receipts).expect("saved");
    for found in file::list(story.dir.path()).expect("listed") {
        fs::write(found.path, "damaged").expect("written");
    }
    assert!(story.try_reopen().is_err());
    let rebuilt = rebuilt(&story, false).expect("rebuilt");
    assert_eq!((rebuilt.receipts, rebuilt.set_aside.len()), (5, 1));
    story.check();
}

#[test]
fn lost_receipts_are_given_up_only_when_told_so() {
    let mut story = with_a_lost_file();
    let refused = rebuilt(&story, false).expect_err("lost").to_string();
    for part in ["3 truncated events", "0 to 2", "--forget-truncated"] {
        assert!(refused.contains(part), "{refused}");
    }
    assert!(file::path(story.dir.path(), 0, 0).exists(), "nothing has changed");

    let rebuilt = rebuilt(&story, true).expect("rebuilt");
    assert_eq!(rebuilt.lost.as_slice(), std::slice::from_ref(&(0..3)));
    assert!(rebuilt.set_aside[0].exists(), "what is damaged is kept");
    let accepted_at_ms = story.accepted[5].1.accepted_at_ms;
    assert_eq!(rebuilt.key_floor_ms, accepted_at_ms + 300_001);
    story.reopen();
    assert!(story.find("key-1").is_none() && story.find("later").is_none());
    assert!(story.find("key-4").is_some() && story.find("key-5").is_some());
    let receipts = look(&story.receipts);
    assert_eq!(receipts.unknown("key-1", None), Unknown::Expired);
    assert_eq!(receipts.unknown("k", Some(Time::from_unix_millis(301_005))), Unknown::Expired);
    // Later events of both subjects are known.
    assert_eq!(receipts.subject_version(&hash("even")), 3);
}

#[test]
fn in_memory_it_does_the_same() {
    let mut story = Story::new();
    (story.receipts, story.store) = Receipts::in_memory(Uuid::from_u128(1));
    story.fill(4);
    story.publish("timed", Some(5_000));
    story.truncate(5);
    story.advance(6_000);
    assert!(story.find("key-2").is_some() && story.find("timed").is_some());
    story.advance(6_001);
    story.forget();
    assert!(story.find("key-2").is_some() && story.find("timed").is_none());
}
