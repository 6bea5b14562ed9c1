//! Snapshots that are torn, twisted, older or of another kind, and a log that moves on
//! faster than they come: what is refused, and that nothing visible changes.

use std::sync::{
    Arc,
    atomic::{AtomicI64, AtomicUsize, Ordering},
};

use counterfoil::proto::{
    event::hex,
    pb::{ReceiverState, Snapshot},
};
use rusqlite::Connection;
use tempfile::TempDir;

use super::is_whole;
use crate::harness::{
    events::adjustments,
    fake_publisher::{FakePublisher, History, after},
    pair::directory,
    receiver::Receiver,
    shelf::{Carries, Shelf},
    wait::wait_until,
};

/// A fake with a history of which it retains what comes from `floor` on, but for receivers
/// of other names, who get all of it up to where `shown` says.
struct Fake {
    fake: FakePublisher,
    shelf: Shelf,
    floor: Arc<AtomicI64>,
    shown: Arc<AtomicI64>,
    dir: TempDir,
}

impl Fake {
    async fn of(history: &History) -> Fake {
        let (shelf, floor) = (Shelf::default(), Arc::new(AtomicI64::new(0)));
        let shown = Arc::new(AtomicI64::new(0));
        let (told, lowest, most) = (history.clone(), floor.clone(), shown.clone());
        let fake = FakePublisher::start_beside(&shelf, move |n, request| {
            let session = n as i64 + 1;
            if request.receiver == "receiver" {
                return told.retained(session, after(request), lowest.load(Ordering::Relaxed));
            }
            let sequences: Vec<_> = (0..=most.load(Ordering::Relaxed) as usize).collect();
            let mut steps = vec![told.started(session)];
            steps.extend(sequences.chunks(100).map(|chunk| told.batch(chunk)));
            steps
        })
        .await;
        fake.shows_log(history.shown(0));
        Fake { fake, shelf, floor, shown, dir: directory() }
    }

    /// From now on only what comes from here on is retained.
    fn drops(&self, history: &History, floor: i64) {
        self.floor.store(floor, Ordering::Relaxed);
        self.fake.shows_log(history.shown(floor));
    }

    /// A snapshot at a sequence, made by a receiver that is gone afterwards.
    async fn has_snapshot_at(&self, sequence: i64) -> Snapshot {
        self.shown.store(sequence, Ordering::Relaxed);
        let maker = Receiver::at(self.dir.path(), &self.fake.url())
            .named(&format!("maker-{sequence}"))
            .start();
        maker.applies(sequence).await;
        maker.snapshot().await.expect("stored")
    }

    fn receiver(&self) -> Receiver {
        Receiver::start(self.dir.path(), &self.fake.url())
    }

    /// A receiver that has applied events up to a sequence, and is down.
    async fn had(&self, history: &History, sequence: i64) {
        let told = history.clone();
        let until = sequence as usize;
        let fake = FakePublisher::start(move |_, _| {
            vec![told.started(1), told.batch(&(0..=until).collect::<Vec<_>>())]
        })
        .await;
        let receiver = Receiver::start(self.dir.path(), &fake.url());
        receiver.applies(sequence).await;
        assert_eq!(receiver.terminate().code(), Some(0));
    }
}

/// Waits until its status says these words.
async fn says(receiver: &Receiver, words: &str) {
    wait_until(&format!("the status says {words:?}"), async || {
        let status = receiver.try_status().await.ok()?;
        let resyncing = status.state() == ReceiverState::Resyncing;
        (resyncing && status.state_detail.contains(words)).then_some(())
    })
    .await;
}

/// SNP-08: half of it with an OK, a changed byte, an end too soon: thrown away, and nothing
/// has changed. What broke off is gone on with.
#[tokio::test(flavor = "multi_thread")]
async fn torn_downloads_change_nothing() {
    let history = History::of(adjustments("k", 30));
    let fake = Fake::of(&history).await;
    fake.had(&history, 2).await;
    let size = fake.has_snapshot_at(20).await.size_bytes.expect("always set");
    fake.drops(&history, 15);
    use Carries::{Breaks, Half, Short, Twisted};
    fake.shelf.hands_out(&[Half, Twisted, Short, Breaks]);
    let receiver = fake.receiver();
    wait_until("torn ones have come", async || (fake.shelf.downloads().len() >= 4).then_some(()))
        .await;
    let ledger = receiver.ledger();
    is_whole(&ledger);
    receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(ledger.cursor, 2, "nothing of them was visible");
    assert_eq!(fake.shelf.downloads(), [0, 0, 0, 0, size / 2]);
    let ledger = receiver.ledger();
    is_whole(&ledger);
    assert_eq!(ledger.cursor, 29);
}

/// SNP-03: an older one is refused; one that is further on is taken.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_one_is_refused() {
    let history = History::of(adjustments("k", 40));
    let fake = Fake::of(&history).await;
    fake.had(&history, 12).await;
    fake.has_snapshot_at(10).await;
    fake.drops(&history, 20);
    let receiver = fake.receiver();
    says(&receiver, "older than what is applied").await;
    assert_eq!(receiver.ledger().cursor, 12);

    fake.has_snapshot_at(25).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    is_whole(&receiver.ledger());
}

/// The newest snapshot is what the database has already, and of no use.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_one_is_not_fetched_again() {
    let history = History::of(adjustments("k", 40));
    let fake = Fake::of(&history).await;
    fake.had(&history, 10).await;
    fake.has_snapshot_at(10).await;
    fake.drops(&history, 20);
    let receiver = fake.receiver();
    says(&receiver, "is what this database has").await;
    assert_eq!(receiver.ledger().cursor, 10);
    assert!(fake.shelf.downloads().is_empty());
}

/// Of another version, and one that is not where it says: the next best is taken.
#[tokio::test(flavor = "multi_thread")]
async fn those_of_another_kind_and_liars_are_passed_over() {
    let history = History::of(adjustments("k", 40));
    let fake = Fake::of(&history).await;
    let first = fake.has_snapshot_at(5).await;
    fake.drops(&history, 20);
    let lying = Snapshot { cursor: Some(history.cursor(39)), ..first };
    fake.shelf.adds(Snapshot { projection_version: Some(1), ..lying.clone() });
    fake.shelf.adds(Snapshot { schema_digest: vec![1; 32].into(), ..lying.clone() });
    fake.shelf.adds(Snapshot { projection: "orders".into(), ..lying.clone() });
    fake.shelf.adds(lying);
    let receiver = fake.receiver();
    says(&receiver, "none fits this version and log").await;
    let said = receiver.process.said();
    assert!(said.contains("is at sequence 5, announced was 39"), "{said}");
    assert_eq!((receiver.ledger().cursor, fake.shelf.downloads().len()), (-1, 1));
    fake.has_snapshot_at(30).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    is_whole(&receiver.ledger());
}

/// Nobody has one: it waits, says for what, and is there when one comes.
#[tokio::test(flavor = "multi_thread")]
async fn without_any_it_says_who_has_to_make_one() {
    let history = History::of(adjustments("k", 40));
    let fake = Fake::of(&history).await;
    fake.drops(&history, 20);
    let receiver = fake.receiver();
    says(&receiver, "another receiver of this projection has to make one").await;
    fake.has_snapshot_at(19).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    is_whole(&receiver.ledger());
}

/// SNP-06: what comes from below the snapshot afterwards is ignored by its place, although
/// the ledger that came with it has no row of it.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_from_below_a_snapshot_is_ignored() {
    let history = History::of(adjustments("k", 102));
    let (told, shelf) = (history.clone(), Shelf::default());
    let fake = FakePublisher::start_beside(&shelf, move |n, request| {
        let session = n as i64 + 1;
        match (&*request.receiver, after(request)) {
            ("maker", _) => vec![told.started(session), told.batch(&(0..=100).collect::<Vec<_>>())],
            (_, at) if at < 100 => told.retained(session, at, 101),
            _ => vec![
                told.started(session),
                told.batch(&[60]),
                told.batch(&[100]),
                told.batch(&[101]),
                told.caught_up(),
            ],
        }
    })
    .await;
    fake.shows_log(history.shown(101));
    let dir = directory();
    let maker = Receiver::at(dir.path(), &fake.url()).named("maker").start();
    maker.applies(100).await;
    let chain = hex(&history.cursor(80).chain);
    Connection::open(maker.db())
        .expect("opened")
        .execute_batch(&format!(
            "DELETE FROM counterfoil_ledger WHERE sequence <= 80;
             INSERT INTO counterfoil_meta VALUES ('ledger_from', '81'), ('ledger_chain', '{chain}'),
                 ('ledger_counts', '{{\"APPLIED\":81}}')"
        ))
        .expect("pruned");
    maker.snapshot().await.expect("stored");
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(101).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total), (101, 102), "60 and 100 had no effect again");
    assert_eq!(ledger.rows.len(), 21);
}

/// SNP-04: each snapshot is too old by the time it is installed. No hot loop; and live soon
/// after the log has become slower.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_runs_away_is_not_chased_in_a_loop() {
    const SNAPSHOTS: i64 = 12;
    let history = History::of(adjustments("k", 130));
    let (told, shelf) = (history.clone(), Shelf::default());
    let seen = Arc::new(AtomicUsize::new(0));
    let (counts, shows) = (seen.clone(), shelf.clone());
    let slow = Arc::new(AtomicI64::new(0));
    let slower = slow.clone();
    let fake = FakePublisher::start_beside(&shelf, move |n, request| {
        let session = n as i64 + 1;
        let at = after(request);
        if request.receiver != "receiver" {
            let until = request.receiver.rsplit('-').next().and_then(|n| n.parse::<usize>().ok());
            let until = until.expect("named after a place");
            return vec![told.started(session), told.batch(&(0..=until).collect::<Vec<_>>())];
        }
        if slower.load(Ordering::Relaxed) > 0 {
            return told.retained(session, at, at.max(9) + 1);
        }
        // By the time it asks, what follows its snapshot is gone; a newer one is there.
        let number = counts.fetch_add(1, Ordering::Relaxed) + 1;
        shows.shows(number.min(SNAPSHOTS as usize));
        told.retained(session, at, at + 2)
    })
    .await;
    fake.shows_log(history.shown(100));
    let dir = directory();
    for n in 1..=SNAPSHOTS {
        let maker =
            Receiver::at(dir.path(), &fake.url()).named(&format!("maker-{}", n * 10)).start();
        maker.applies(n * 10).await;
        maker.snapshot().await.expect("stored");
    }
    shelf.shows(0);
    let receiver = Receiver::start(dir.path(), &fake.url());
    wait_until("it has been resynced in vain", async || {
        (receiver.try_status().await.ok()?.resyncs >= Some(3)).then_some(())
    })
    .await;
    let begun = std::time::Instant::now();
    let asked = seen.load(Ordering::Relaxed);
    wait_until("it goes on trying", async || {
        (seen.load(Ordering::Relaxed) >= asked + 2).then_some(())
    })
    .await;
    let spacing = begun.elapsed() / 2;
    assert!(spacing.as_millis() >= 500, "the fourth resync in a row came after {spacing:?}");
    slow.store(1, Ordering::Relaxed);
    let begun = std::time::Instant::now();
    receiver.waits_for_state(ReceiverState::Live).await;
    assert!(begun.elapsed().as_secs() <= 10, "live only after {:?}", begun.elapsed());
    is_whole(&receiver.ledger());
}
