//! The apply thread against a database in a file.

use std::{borrow::Cow, path::PathBuf, sync::atomic::AtomicU32};

mod deferred;
mod outbox;

use rusqlite::Connection;

use super::*;
use crate::{
    proto::{event::Event, outcome::Outcome, refusal::Reason},
    receiver::{
        decide::place,
        inventory::Inventory,
        projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables},
        status::State as Shown,
        store::{self, baseline::Baseline, cursor, ledger::BLOCK, lock},
        testing::{adjustments, cursor_after, event},
    },
};

/// An apply thread whose other ends the test holds.
struct Bench {
    _directory: tempfile::TempDir,
    db: PathBuf,
    board: Arc<Board>,
    streams: Arc<Streams>,
    /// What the stream has placed so far.
    tail: std::cell::Cell<Option<Cursor>>,
    work: Option<mpsc::Sender<Work>>,
    order: mpsc::Sender<Order>,
    ending: CancellationToken,
    thread: Option<std::thread::JoinHandle<Result<(), String>>>,
    runtime: tokio::runtime::Runtime,
}

impl Bench {
    fn new(projection: impl Projection) -> Self {
        Bench::prepared(projection, |_| {})
    }

    fn prepared(projection: impl Projection, prepare: impl FnOnce(&Connection)) -> Self {
        Bench::keeping(Keep::All, projection, prepare)
    }

    fn keeping(keep: Keep, projection: impl Projection, prepare: impl FnOnce(&Connection)) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("runtime");
        let store = store::open(&db, "main", &projection).expect("opened");
        prepare(&store.connection);
        let board = Arc::new(Board::new(None));
        let streams = Arc::new(Streams::default());
        let ending = CancellationToken::new();
        let _inside = runtime.enter();
        let writer = Writer::new(store, None, Arc::new(projection));
        let (order, orders) = mpsc::channel(1);
        let rules = Rules { attempts: 3, on_error: OnError::Halt, keep };
        let apply =
            Apply::new(writer, board.clone(), streams.clone(), rules, orders, ending.clone());
        let (work, queue) = mpsc::channel(8);
        let thread = Some(std::thread::spawn(move || apply.run(queue)));
        drop(_inside);
        Bench {
            _directory: directory,
            db,
            board,
            streams,
            tail: std::cell::Cell::default(),
            work: Some(work),
            order,
            ending,
            thread,
            runtime,
        }
    }

    fn send(&self, stream: u64, events: &[Event], cursor: Cursor) {
        let tail = self.tail.get().unwrap_or_else(|| Cursor::beginning(cursor.log_id));
        let placed = place(tail, events.to_vec(), &cursor).map(|(steps, after)| {
            self.tail.set((after.sequence >= 0).then_some(after));
            steps
        });
        let frame = Work::Frame { stream, placed };
        self.work.as_ref().expect("open").blocking_send(frame).expect("the thread runs");
    }

    /// What is committed once everything sent has been dealt with.
    fn resume(&self) -> i64 {
        let (asked, answer) = oneshot::channel();
        let work = self.work.as_ref().expect("open");
        work.blocking_send(Work::Resume(asked)).expect("the thread runs");
        self.tail.set(answer.blocking_recv().expect("answered"));
        self.tail.get().map_or(-1, |cursor| cursor.sequence)
    }

    fn halted(&self) -> Failure {
        self.runtime.block_on(self.board.halted());
        self.board.status().borrow().halted.clone().expect("halted")
    }

    fn tables(&self) -> Connection {
        store::open_for_reading(&self.db).expect("readable")
    }

    fn number(&self, sql: &str) -> i64 {
        self.tables().query_row(sql, [], |row| row.get(0)).expect("one number")
    }

    fn outcomes(&self) -> Vec<String> {
        let tables = self.tables();
        let mut rows = tables
            .prepare(
                "SELECT outcome || coalesce(' ' || reason, '') FROM counterfoil_ledger
                 ORDER BY sequence",
            )
            .expect("valid");
        let rows = rows.query_map([], |row| row.get(0)).expect("readable");
        rows.collect::<Result<_, _>>().expect("readable")
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.ending.cancel();
        self.work = None;
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().expect("the thread did not panic");
            assert_eq!(ended, Ok(()));
        }
    }
}

#[test]
fn events_ledger_and_cursor_go_together() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 1_500);
    for frame in [0..500, 500..1_000, 1_000..1_500] {
        let after = cursor_after(&events[..frame.end]);
        bench.send(0, &events[frame], after);
    }
    assert_eq!(bench.resume(), 1_499);
    assert_eq!(bench.number("SELECT total FROM total"), 1_500);
    assert_eq!(bench.number("SELECT count(*) FROM counterfoil_ledger"), 1_500);
    let stored = cursor::read(&bench.tables(), "main").expect("readable");
    assert_eq!(stored, Some(cursor_after(&events)));
    let status = bench.board.status().borrow().clone();
    assert_eq!((status.committed(), status.outcomes), (1_499, [1_500, 0, 0, 0, 0]));
    assert!(status.commits <= 3, "{} commits", status.commits);
}

/// APP-05: repeats within a stream and after a reconnect are no errors, and
/// have no effect.
#[test]
fn repeats_change_nothing() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 5);
    let [e0, e1, e2, e3, e4] = [0, 1, 2, 3, 4].map(|n| events[n].clone());
    bench.send(0, &[e0], cursor_after(&events[..1]));
    let mixed = [e1.clone(), e2.clone(), e2.clone(), e1, e3.clone()];
    bench.send(0, &mixed, cursor_after(&events[..4]));
    bench.send(0, &[e2, e3, e4], cursor_after(&events));
    assert_eq!(bench.resume(), 4);
    assert_eq!(bench.number("SELECT total FROM total"), 5);
    assert_eq!(bench.outcomes(), ["APPLIED"; 5]);
}

/// APP-02: one key, one effect, wherever it comes again.
#[test]
fn a_key_has_one_effect() {
    let bench = Bench::new(Inventory);
    let adjusted = |sequence, json| event(sequence, "same", "stock.adjusted", "camera", json);
    let events = [
        adjusted(0, r#"{"delta":3}"#),
        adjusted(1, r#"{"delta":3}"#),
        adjusted(2, r#"{"delta":4}"#),
        adjusted(3, r#"{"delta":3}"#),
    ];
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.resume(), 3);
    assert_eq!(bench.number("SELECT total FROM total"), 3);
    let expected = ["APPLIED", "DUPLICATE", "REJECTED key_conflict", "DUPLICATE"];
    assert_eq!(bench.outcomes(), expected);
    let entry = store::ledger::by_key(&bench.tables(), "main", "same").expect("readable");
    assert_eq!(entry.map(|entry| entry.sequence), Some(0));
}

#[test]
fn rejections_and_unknown_types_move_the_cursor() {
    let bench = Bench::new(Inventory);
    let reserve = r#"{"task":"t","quantity":1,"expected_version":0}"#;
    let events = [
        event(0, "a", "stock.reserved", "lens", reserve),
        event(1, "b", "stock.counted", "lens", "{}"),
        event(2, "c", "stock.adjusted", "lens", r#"{"delta":1}"#),
    ];
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.resume(), 2);
    assert_eq!(bench.outcomes(), ["REJECTED unknown_item", "IGNORED", "APPLIED"]);
    assert_eq!(bench.board.status().borrow().outcomes, [1, 1, 1, 0, 0]);
}

/// APP-08: the event that cannot be applied blocks, those before it stand,
/// and it says which and why.
#[test]
fn a_faulty_event_blocks_at_its_place() {
    for (bad, events) in [(2, 4), (2 * BLOCK as i64 + 3, 4 * BLOCK as i64)] {
        let bench = Bench::new(Inventory);
        let mut events = adjustments(0, events);
        let too_much = event(bad, "bad", "stock.adjusted", "camera", r#"{"delta":1001}"#);
        events[bad as usize] = too_much;
        bench.send(0, &events, cursor_after(&events));
        let failure = bench.halted();
        assert_eq!((failure.reason, failure.attempts), ("EVENT_FAILED", Some(3)));
        assert!(failure.message.contains("delta: is 1001"), "{}", failure.message);
        assert_eq!(failure.event.expect("named").key, "bad");
        assert_eq!(bench.board.status().borrow().state(), Shown::Halted);
        assert_eq!(bench.resume(), bad - 1);
        assert_eq!(bench.number("SELECT total FROM total"), bad);
        assert_eq!(bench.number("SELECT max(sequence) FROM counterfoil_ledger"), bad - 1);
    }
}

#[test]
fn one_gap_asks_again_and_the_second_halts() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 10);
    bench.send(0, &events[..2], cursor_after(&events[..2]));
    bench.send(0, &events[5..], cursor_after(&events));
    bench.runtime.block_on(bench.streams.reopen.notified());
    // The rest of that stream is not looked at any more.
    bench.send(0, &events[2..], cursor_after(&events));
    assert_eq!(bench.resume(), 1);
    bench.streams.newest.store(1, Ordering::Release);
    bench.send(1, &events[6..], cursor_after(&events));
    assert_eq!(bench.halted().reason, "GAP");
    assert_eq!(bench.number("SELECT count(*) FROM counterfoil_ledger"), 2);
}

#[test]
fn a_gap_that_is_filled_is_forgotten() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 10);
    for (stream, from, upto) in [(0, 1, 3), (1, 0, 5), (1, 6, 9), (2, 5, 10)] {
        if bench.streams.newest.swap(stream, Ordering::AcqRel) != stream {
            bench.resume();
        }
        bench.send(stream, &events[from..upto], cursor_after(&events[..upto]));
        bench.resume();
    }
    assert_eq!(bench.resume(), 9);
    assert!(bench.board.halted_for().is_none());
}

/// APP-04: frames of a stream that has been replaced are dropped.
#[test]
fn an_old_stream_is_not_listened_to() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 4);
    bench.streams.newest.store(7, Ordering::Release);
    bench.send(6, &events, cursor_after(&events));
    assert_eq!(bench.resume(), -1);
    bench.send(7, &events[..2], cursor_after(&events[..2]));
    assert_eq!(bench.resume(), 1);
}

#[test]
fn another_history_halts_and_writes_nothing() {
    let events = adjustments(0, 4);
    let forged = Cursor { chain: [9; 32], ..cursor_after(&events) };
    let bench = Bench::new(Inventory);
    bench.send(0, &events, forged);
    assert_eq!(bench.halted().reason, "DIVERGED");
    assert_eq!(bench.number("SELECT count(*) FROM counterfoil_ledger"), 0);

    let bench = Bench::new(Inventory);
    bench.send(0, &events, cursor_after(&events));
    let other = event(1, "k1", "stock.adjusted", "camera", r#"{"delta":2}"#);
    bench.send(0, &[other], cursor_after(&events[..2]));
    let failure = bench.halted();
    assert_eq!((failure.reason, failure.event.map(|event| event.sequence)), ("CONFLICT", Some(1)));
    assert_eq!(bench.number("SELECT total FROM total"), 4);
}

/// A row that is missing was pruned, or lost: only the baseline tells which.
#[test]
fn an_event_whose_row_is_lost_halts() {
    let events = adjustments(0, 5);
    let lose = "DELETE FROM counterfoil_ledger WHERE sequence < 3";
    let sent_again = |pruned_to| {
        let bench = Bench::new(Inventory);
        bench.send(0, &events, cursor_after(&events));
        assert_eq!(bench.resume(), 4);
        let beside = Connection::open(&bench.db).expect("opened");
        beside.execute_batch(lose).expect("deleted");
        Baseline { from: pruned_to, ..Baseline::BEGINNING }.write(&beside).expect("written");
        bench.send(0, &events[2..3], cursor_after(&events[..3]));
        bench
    };
    let bench = sent_again(3);
    assert_eq!(bench.resume(), 4);
    assert!(bench.board.halted_for().is_none(), "it was pruned");
    let failure = sent_again(2).halted();
    assert_eq!(
        (failure.reason, failure.event.map(|event| event.sequence)),
        ("STORE_CHANGED", Some(2))
    );
}

impl Bench {
    fn skip(&self, sequence: i64) -> Result<crate::receiver::store::ledger::Entry, Reason> {
        let (done, answer) = oneshot::channel();
        let order = Order::Skip { sequence, reason: "bad".to_owned(), done };
        self.order.blocking_send(order).expect("the thread runs");
        answer.blocking_recv().expect("answered").map_err(|refusal| refusal.reason)
    }

    fn apply_late(&self, sequence: i64) -> Result<(Outcome, i64), Reason> {
        let (done, answer) = oneshot::channel();
        let order = Order::ApplyLate { sequence, done };
        self.order.blocking_send(order).expect("the thread runs");
        let late = answer.blocking_recv().expect("answered");
        late.map(|late| (late.entry.outcome, late.after)).map_err(|refusal| refusal.reason)
    }
}

/// After the halt, frames of the stream that had some thrown away are not taken, and another
/// one is asked for; those of a stream that began meanwhile are.
#[test]
fn an_event_that_is_set_aside_is_gone_past() {
    for begun_meanwhile in [false, true] {
        let bench = Bench::new(Inventory);
        let mut events = adjustments(0, 6);
        events[2] = event(2, "bad", "stock.adjusted", "camera", r#"{"delta":1001}"#);
        let at = |n: usize| cursor_after(&events[..n]);
        bench.send(0, &events[..4], at(4));
        let failure = bench.halted();
        assert_eq!((failure.attempts, failure.class), (Some(3), Some("PAYLOAD")));
        assert_eq!(bench.skip(1).map_err(drop), Err(()));
        if begun_meanwhile {
            bench.streams.newest.store(1, Ordering::Release);
            assert_eq!(bench.resume(), 1, "what is applied is still told");
        }
        let row = bench.skip(2).expect("set aside");
        assert_eq!((row.outcome, row.reason.as_deref()), (Outcome::Skipped, Some("bad")));
        assert_eq!(bench.skip(2).as_ref(), Ok(&row), "the same again");
        assert_eq!((bench.board.halted_for(), *bench.board.healthy().borrow()), (None, true));
        let asked = bench.runtime.block_on(async {
            tokio::time::timeout(Duration::ZERO, bench.streams.reopen.notified()).await.is_ok()
        });
        assert_eq!(asked, !begun_meanwhile);
        if begun_meanwhile {
            bench.send(1, &events[2..], at(6));
        } else {
            bench.send(0, &events[4..], at(6));
            bench.streams.newest.store(1, Ordering::Release);
            assert_eq!(bench.resume(), 2, "behind it, and nothing of the old stream");
            bench.send(1, &events[3..], at(6));
        }
        assert_eq!(bench.resume(), 5);
        assert_eq!(bench.outcomes()[2], "SKIPPED bad");
        assert_eq!(bench.number("SELECT total FROM total"), 5);
        assert_eq!(bench.board.status().borrow().skipped, 1);
        let reported = bench.board.recent().report(-1, 5).expect("since the start").outcomes;
        let told = reported.iter().map(|told| (told.sequence, told.outcome));
        assert_eq!(told.collect::<Vec<_>>(), [(2, Outcome::Skipped)]);
        assert_eq!(bench.apply_late(2), Err(Reason::EventFailed));
        assert_eq!(bench.apply_late(1), Err(Reason::NotFound));
        assert_eq!(bench.outcomes()[2], "SKIPPED bad");
    }
}

/// Where the row is pruned, the numbers that are kept of it are changed.
#[test]
fn what_was_set_aside_outlives_its_row() {
    let bench = Bench::new(Inventory);
    let mut events = adjustments(0, 4);
    events[1] = event(1, "r", "stock.adjusted", "camera", r#"{"delta":1001}"#);
    bench.send(0, &events, cursor_after(&events));
    bench.halted();
    bench.skip(1).expect("set aside");
    bench.streams.newest.store(1, Ordering::Release);
    assert_eq!(bench.resume(), 1);
    bench.send(1, &events[2..], cursor_after(&events));
    assert_eq!(bench.resume(), 3);
    // As if it had been for something that is mended: the same key, with what can be applied.
    let beside = Connection::open(&bench.db).expect("opened");
    let mended = event(1, "r", "stock.adjusted", "camera", r#"{"delta":7}"#);
    let stored = crate::proto::wire::stored(&mended);
    beside.execute("UPDATE counterfoil_skipped SET event = ?1", [&stored[..]]).expect("written");
    beside.execute_batch("DELETE FROM counterfoil_ledger WHERE sequence < 2").expect("pruned");
    let counts = [1, 0, 0, 0, 1];
    Baseline { from: 2, counts, ..Baseline::BEGINNING }.write(&beside).expect("written");
    for _ in 0..2 {
        assert_eq!(bench.apply_late(1), Ok((Outcome::Applied, 3)));
    }
    assert_eq!(bench.number("SELECT total FROM total"), 10);
    let baseline = Baseline::read(&bench.tables()).expect("readable");
    assert_eq!(baseline.counts, [2, 0, 0, 0, 0]);
    assert_eq!(bench.board.status().borrow().skipped, 0);
    beside.execute_batch("UPDATE counterfoil_skipped SET event = x'00'").expect("damaged");
    assert_eq!(bench.apply_late(1), Err(Reason::Corrupt));
}

/// What the publisher neither retains nor asks for goes, and no more; the rest is proven.
#[test]
fn the_ledger_is_pruned_while_nothing_waits() {
    let bench = Bench::keeping(Keep::Retained, Inventory, |_| {});
    let events = adjustments(0, 3_000);
    let at = |n: usize| cursor_after(&events[..n]);
    for frame in [0..1_500, 1_500..3_000] {
        bench.send(0, &events[frame.clone()], at(frame.end));
    }
    assert_eq!(bench.resume(), 2_999);
    let begins_at = |from: i64| {
        let mut status = bench.board.status();
        let there = async { status.wait_for(|status| status.ledger_from == from).await.map(drop) };
        let patient = async { tokio::time::timeout(IDLE * 8, there).await };
        bench.runtime.block_on(patient).expect("in time").expect("alive");
        let (baseline, tables) =
            (Baseline::read(&bench.tables()).expect("readable"), bench.tables());
        assert_eq!(baseline.chain, at(from as usize).chain);
        assert_eq!(baseline.counts, [from, 0, 0, 0, 0]);
        let first = "SELECT min(sequence) FROM counterfoil_ledger";
        tables.query_row(first, [], |row| row.get::<_, Option<i64>>(0)).expect("one number")
    };
    bench.board.heard().started(0, 2_500);
    bench.board.heard().answered(0, 2_999, Some(2_399));
    assert_eq!(begins_at(2_400), Some(2_400), "what is not reported stays");
    bench.board.heard().answered(0, 2_999, Some(2_999));
    assert_eq!(begins_at(2_500), Some(2_500), "what is retained stays");
    bench.board.heard().floor(0, 3_000);
    assert_eq!(begins_at(3_000), None);
    // It goes on from there.
    let more = adjustments(0, 3_001);
    bench.send(0, &more[3_000..], cursor_after(&more));
    assert_eq!(bench.resume(), 3_000);
    assert_eq!(bench.number("SELECT min(sequence) FROM counterfoil_ledger"), 3_000);
}

/// A copy of a database that has applied these events, as snapshots are.
fn copied(events: &[Event]) -> (tempfile::TempDir, PathBuf) {
    let bench = Bench::new(Inventory);
    bench.send(0, events, cursor_after(events));
    assert_eq!(bench.resume(), events.len() as i64 - 1);
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = directory.path().join("copy.db");
    crate::receiver::copy::copy(&bench.db, &file).expect("copied");
    (directory, file)
}

impl Bench {
    fn install(
        &self,
        staged: Option<&PathBuf>,
        brings: Option<Cursor>,
        ordered: bool,
    ) -> Result<(), String> {
        self.resume();
        let (asked, answer) = oneshot::channel();
        let install = Install { staged: staged.cloned(), brings, over: self.tail.get(), ordered };
        let work = self.work.as_ref().expect("open");
        work.blocking_send(Work::Install(install, asked)).expect("the thread runs");
        answer.blocking_recv().expect("answered")
    }

    fn adopt(&self, to: Cursor) -> Result<(), String> {
        let (asked, answer) = oneshot::channel();
        let work = self.work.as_ref().expect("open");
        work.blocking_send(Work::Adopt(to, asked)).expect("the thread runs");
        answer.blocking_recv().expect("answered")
    }
}

/// SNP-03: what is further on is installed, what is the same does nothing, what is older is
/// refused; and events go on from there.
#[test]
fn only_what_is_further_on_is_installed() {
    let events = adjustments(0, 8);
    let [three, five] = [3, 5].map(|n| copied(&events[..n]));
    let at = |n: usize| Some(cursor_after(&events[..n]));
    let bench = Bench::new(Inventory);
    bench.send(0, &events[..2], cursor_after(&events[..2]));
    bench.install(Some(&five.1), at(5), false).expect("further on");
    assert_eq!(bench.resume(), 4);
    assert_eq!(bench.number("SELECT total FROM total"), 5);
    assert_eq!(bench.outcomes(), ["APPLIED"; 5]);
    let changes = || bench.number("SELECT count(*) FROM stock WHERE item = 'mark'");
    let mark = "INSERT INTO stock VALUES ('mark', 0, 1)";
    Connection::open(&bench.db).and_then(|db| db.execute_batch(mark)).expect("marked");
    bench.install(Some(&five.1), at(5), false).expect("nothing to do");
    let refused = bench.install(Some(&three.1), at(3), false).expect_err("older");
    assert!(refused.contains("older than what is applied, 4"), "{refused}");
    assert_eq!((changes(), bench.resume()), (1, 4), "nothing has been touched");
    bench.send(0, &events[5..], cursor_after(&events));
    assert_eq!(bench.resume(), 7);
    assert_eq!(bench.number("SELECT total FROM total"), 8);
    let reported = bench.board.recent().report(4, 7);
    assert_eq!(reported.expect("since the installation").through, 7);
    assert_eq!(bench.board.recent().report(3, 7), None, "the ledger knows");
}

/// On order also what is older or empty is installed, and a halt is over.
#[test]
fn on_order_anything_is_installed_and_a_halt_is_over() {
    let events = adjustments(0, 4);
    let forged = Cursor { chain: [9; 32], ..cursor_after(&events) };
    let one = copied(&events[..1]);
    for (staged, brings, left) in
        [(Some(&one.1), Some(cursor_after(&events[..1])), 0), (None, None, -1)]
    {
        let bench = Bench::new(Inventory);
        bench.send(0, &events[..2], cursor_after(&events[..2]));
        bench.resume();
        bench.send(0, &events[2..], forged);
        assert_eq!(bench.halted().reason, "DIVERGED");
        bench.install(staged, brings, false).expect_err("it has halted");
        bench.install(staged, brings, true).expect("ordered");
        assert_eq!(bench.resume(), left);
        assert_eq!(bench.board.halted_for(), None);
        assert_eq!(bench.number("SELECT total FROM total"), left + 1);
        let rest = &events[(left + 1) as usize..];
        bench.send(0, rest, cursor_after(&events));
        assert_eq!(bench.resume(), 3);
        assert_eq!(bench.number("SELECT total FROM total"), 4);
    }
}

/// A file that is none, and one whose pages cannot be copied: the database is as it was.
#[test]
fn what_cannot_be_copied_changes_nothing() {
    let events = adjustments(0, 3);
    let bench = Bench::new(Inventory);
    bench.send(0, &events[..2], cursor_after(&events[..2]));
    let directory = tempfile::tempdir().expect("temporary directory");
    let file = directory.path().join("pages.db");
    let other = Connection::open(&file).expect("opened");
    other.execute_batch("PRAGMA page_size = 8192; CREATE TABLE t (a)").expect("written");
    drop(other);
    let after = Some(cursor_after(&events));
    bench.install(Some(&file), after, false).expect_err("other pages");
    bench.install(Some(&directory.path().join("none")), after, false).expect_err("no file");
    assert_eq!(bench.resume(), 1);
    bench.send(0, &events[2..], cursor_after(&events));
    assert_eq!(bench.resume(), 2);
    assert_eq!(bench.number("SELECT total FROM total"), 3);
}

#[test]
fn a_forked_log_is_adopted_where_its_history_is_ours() {
    let events = adjustments(0, 3);
    let bench = Bench::new(Inventory);
    bench.send(0, &events, cursor_after(&events));
    let adopted = Cursor { log_id: uuid::Uuid::from_u128(9), ..cursor_after(&events) };
    bench.adopt(Cursor { chain: [9; 32], ..adopted }).expect_err("another history");
    bench.adopt(Cursor { sequence: 1, ..adopted }).expect_err("another place");
    for _ in 0..2 {
        bench.adopt(adopted).expect("the same history");
        let stored = cursor::read(&bench.tables(), "main").expect("readable");
        assert_eq!(stored, Some(adopted));
    }
    assert_eq!(*bench.board.committed().borrow(), Some(adopted));
}

/// Does what the event's type says, mistakes included.
struct Mischief {
    panics: AtomicU32,
}

impl Projection for Mischief {
    fn name(&self) -> &str {
        "mischief"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        const TABLE: &str = "CREATE TABLE mine (n INTEGER NOT NULL CHECK (n < 10)) STRICT";
        &[Migration { sql: Cow::Borrowed(TABLE) }]
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let write = |n: i64| tables.execute("INSERT INTO mine VALUES (?1)", [n]);
        match &*event.intent.event_type {
            "write" => drop(write(event.sequence)?),
            "break-a-check" => drop(write(11)?),
            "commit" => tables.execute_batch("COMMIT")?,
            "touch-the-ledger" => tables.execute_batch("DELETE FROM counterfoil_ledger")?,
            "write-and-reject" => {
                write(event.sequence)?;
                return Ok(Applied::Rejected { reason: "no".into(), result: None });
            }
            "panic-once" => {
                write(event.sequence)?;
                if self.panics.fetch_add(1, Ordering::Relaxed) == 0 {
                    panic!("as the test wants it");
                }
            }
            _ => return Ok(Applied::Ignored),
        }
        Ok(Applied::Done(None))
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }
}

/// APP-11 and the guard: what a projection must not do is a fault, and leaves
/// nothing behind.
#[test]
fn mischief_is_a_fault() {
    for what in ["break-a-check", "commit", "touch-the-ledger", "write-and-reject"] {
        let bench = Bench::new(Mischief { panics: AtomicU32::new(0) });
        let events = [event(0, "a", "write", "", "{}"), event(1, "b", what, "", "{}")];
        bench.send(0, &events, cursor_after(&events));
        let failure = bench.halted();
        assert_eq!(failure.reason, "EVENT_FAILED", "{what}");
        assert_eq!(failure.event.map(|event| event.sequence), Some(1), "{what}");
        assert_eq!(bench.outcomes(), ["APPLIED"], "{what}");
        assert_eq!(bench.number("SELECT count(*) FROM mine"), 1, "{what}");
    }
}

/// APP-15: a panic costs the connection, not the receiver.
#[test]
fn a_panic_is_a_fault_that_may_pass() {
    let bench = Bench::new(Mischief { panics: AtomicU32::new(0) });
    let events = [
        event(0, "a", "write", "", "{}"),
        event(1, "b", "panic-once", "", "{}"),
        event(2, "c", "write", "", "{}"),
    ];
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.resume(), 2);
    assert_eq!(bench.outcomes(), ["APPLIED"; 3]);
    assert_eq!(bench.number("SELECT count(*) FROM mine"), 3);
}

/// SQL-01, SQL-15: another writer delays, and is waited for.
#[test]
fn another_writer_is_waited_for() {
    let bench = Bench::new(Inventory);
    let other = Connection::open(&bench.db).expect("opened");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let events = adjustments(0, 2);
    bench.send(0, &events, cursor_after(&events));
    let mut status = bench.board.status();
    let wait = status.wait_for(|status| status.state() == Shown::Retrying);
    let reason = bench.runtime.block_on(wait).expect("alive").retrying.clone().map(|f| f.reason);
    assert_eq!(reason, Some("STORE_BUSY"));
    other.execute_batch("ROLLBACK").expect("released");
    assert_eq!(bench.resume(), 1);
    assert!(bench.board.status().borrow().retrying.is_none());
}

/// A store that cannot be written to is no event's fault: none is named, and
/// the group is not taken apart.
#[test]
fn a_store_that_takes_nothing_blames_no_event() {
    let bench = Bench::prepared(Inventory, |connection| {
        connection.pragma_update(None, "query_only", true).expect("set");
    });
    let events = adjustments(0, 3);
    bench.send(0, &events, cursor_after(&events));
    let failure = bench.halted();
    assert_eq!((failure.reason, failure.event), ("STORE_CHANGED", None));
    assert!(failure.message.contains("SQLite code 8"), "{}", failure.message);
    assert_eq!(bench.resume(), -1);
}

/// SQL-04: a reader that holds up the write-ahead log for a while does not
/// leave it large for good.
#[test]
fn the_write_ahead_log_shrinks_again() {
    let bench = Bench::new(Inventory);
    let wal = lock::beside(&bench.db, "-wal");
    let size = || std::fs::metadata(&wal).map_or(0, |file| file.len());
    let reader = bench.tables();
    reader.execute_batch("BEGIN; SELECT * FROM counterfoil_meta").expect("a snapshot");
    let padded = |n: i64| {
        let json = format!(r#"{{"delta":1,"note":"{}"}}"#, "x".repeat(100));
        event(n, &format!("{n}{}", "k".repeat(200)), "stock.adjusted", "camera", &json)
    };
    let events: Vec<_> = (0..12_000).map(padded).collect();
    let mut after = cursor_after(&[]);
    for frame in events.chunks(500) {
        after = frame.iter().fold(after, |c, e| c.advance(&e.intent.fingerprint, &e.intent.key));
        bench.send(0, frame, after);
    }
    assert_eq!(bench.resume(), 11_999);
    assert!(size() > 4 * 1024 * 1024, "{}", size());
    drop(reader);
    let shrunk = async {
        while size() > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    bench.runtime.block_on(async { tokio::time::timeout(IDLE * 4, shrunk).await }).expect("cut");
}

#[test]
fn the_end_leaves_all_in_one_file() {
    let bench = Bench::new(Inventory);
    let events = adjustments(0, 3);
    bench.send(0, &events, cursor_after(&events));
    assert_eq!(bench.resume(), 2);
    let (db, wal) = (bench.db.clone(), lock::beside(&bench.db, "-wal"));
    let copy = tempfile::NamedTempFile::new().expect("temporary file");
    let mut bench = bench;
    bench.ending.cancel();
    bench.work = None;
    bench.thread.take().expect("running").join().expect("no panic").expect("closed");
    assert_eq!(std::fs::metadata(&wal).map_or(0, |file| file.len()), 0);
    std::fs::copy(&db, copy.path()).expect("copied");
    let tables = Connection::open(copy.path()).expect("opened");
    let total: i64 =
        tables.query_row("SELECT total FROM total", [], |row| row.get(0)).expect("one number");
    assert_eq!(total, 3);
}
