//! A death at every place of making, uploading, downloading and installing: the database is
//! the old or the new one, and the successor goes on by itself.

use std::fs;

use counterfoil::proto::{crash, pb::ReceiverState};
use rusqlite::Connection;

use super::{EARLY, Scene, is_whole, same};
use crate::harness::{
    events::{adjusted, adjustments},
    files::below,
    ledger::Ledger,
    pair::Pair,
    receiver::{Receiver, Setup},
};

/// Where the new content is committed; before them it is the old one.
const COMMITTED: [&str; 2] = [crash::RECEIVER_RESYNC_AFTER_COMMIT, crash::RECEIVER_RESYNC_REOPENED];

/// The database after a death at a place.
fn dies(setup: &Setup, point: &str) -> Ledger {
    println!("{point}");
    let ended = setup.clone().dies_at(point, 0).dies();
    assert!(ended.stderr.contains(point), "elsewhere than at {point}: {ended:?}");
    let ledger = Ledger::read(setup.db());
    is_whole(&ledger);
    ledger
}

/// Its successor needs nobody.
async fn goes_on(scene: &Scene, setup: Setup) -> Receiver {
    let receiver = setup.start();
    receiver.waits_for_state(ReceiverState::Live).await;
    same(&receiver.ledger(), &scene.maker.ledger());
    receiver
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_every_place_of_a_resync_leaves_old_or_new() {
    let scene = Scene::after(3_000).await;
    let (old, new) = (EARLY as i64 - 1, 2_999);
    for (n, point) in crash::RECEIVER_RESYNC.into_iter().enumerate() {
        let expected = if COMMITTED.contains(&point) { new } else { old };
        let (setup, _) = scene.early(&format!("early-{n}"));
        assert_eq!(dies(&setup, point).cursor, expected, "{point}");
        goes_on(&scene, setup).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_every_place_of_a_first_resync_leaves_nothing_or_all() {
    let scene = Scene::after(500).await;
    for (n, point) in crash::RECEIVER_RESYNC.into_iter().enumerate() {
        let setup = scene.empty(&format!("empty-{n}"));
        let expected = if COMMITTED.contains(&point) { 499 } else { -1 };
        assert_eq!(dies(&setup, point).cursor, expected, "{point}");
        goes_on(&scene, setup).await;
    }
}

/// A death while what a database has is given up on order: it is the old one, and has
/// halted as before, or the new one, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_every_place_of_an_ordered_resync_leaves_old_or_new() {
    let Pair { receiver, publisher, dir } = Pair::start();
    publisher.publish(adjustments("k", 30)).await.expect("accepted");
    receiver.applies(29).await;
    let (old, data) = (receiver.db().to_owned(), publisher.dir().to_owned());
    let again = publisher.successor().config("[logs.main]\nmax_events = 5\n");
    assert_eq!(receiver.terminate().code(), Some(0));
    assert_eq!(publisher.terminate().code(), Some(0));
    fs::remove_dir_all(&data).expect("removed");
    let publisher = again.start();
    let maker = Receiver::at(dir.path(), &publisher.url()).named("maker").start();
    for n in 0..12 {
        publisher.accepts(adjusted(&format!("other-{n}"), "a", 2)).await;
        maker.applies(n).await;
    }
    maker.snapshot().await.expect("stored");
    for (n, point) in crash::RECEIVER_RESYNC.into_iter().enumerate() {
        println!("{point}");
        let name = format!("r{n}");
        let setup = Receiver::at(dir.path(), &publisher.url()).named(&name);
        fs::copy(&old, setup.db()).expect("copied");
        let mut receiver = setup.clone().dies_at(point, 0).start();
        receiver.waits_for_state(ReceiverState::Halted).await;
        let _ = receiver.resync(&name).await; // it may die before it answers
        let ended = receiver.process.ended();
        assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
        let is_new = COMMITTED.contains(&point);
        assert_eq!(Ledger::read(setup.db()).total, if is_new { 24 } else { 30 }, "{point}");
        let receiver = setup.start();
        if !is_new {
            let status = receiver.waits_for_state(ReceiverState::Halted).await;
            assert_eq!(status.failure.expect("why").reason, "LOG_MISMATCH");
            receiver.resync(&name).await.expect("ordered again");
        }
        receiver.waits_for_state(ReceiverState::Live).await;
        same(&receiver.ledger(), &maker.ledger());
    }
}

/// SQL-07: stale write-ahead logs, beside the database and beside the staged file, change
/// nothing about what is installed.
#[tokio::test(flavor = "multi_thread")]
async fn stale_write_ahead_logs_roll_nothing_forward() {
    let scene = Scene::after(500).await;
    let (setup, db) = scene.early("receiver");
    let (_, twin) = scene.early("twin");
    let twin_tables = Connection::open(&twin).expect("opened");
    twin_tables.execute_batch("INSERT INTO stock VALUES ('ghost', 7, 1)").expect("written");
    let wal = format!("{}-wal", twin.display());
    fs::copy(&wal, format!("{}-wal", db.display())).expect("a stale one");
    let ended = setup.clone().dies_at(crash::RECEIVER_RESYNC_STAGED, 0).dies();
    assert!(ended.stderr.contains(crash::RECEIVER_RESYNC_STAGED), "{ended:?}");
    assert!(Ledger::read(&db).stock.contains_key("ghost"), "such a one is rolled forward");

    let staged = below(scene.dir.path())
        .into_iter()
        .find(|path| path.to_string_lossy().contains("receiver.db.resync-"))
        .expect("a staged file");
    fs::copy(&wal, format!("{}-wal", staged.display())).expect("another");
    goes_on(&scene, setup).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_every_place_of_a_snapshot_leaves_nothing_behind() {
    let mut pair = Pair::start();
    for (n, point) in (0..).zip(crash::RECEIVER_SNAPSHOT) {
        println!("{point}");
        pair.carries(vec![adjusted(&format!("k{n}"), "a", 1)]).await;
        let again = pair.receiver.successor();
        assert_eq!(pair.receiver.terminate().code(), Some(0));
        pair.receiver = again.clone().dies_at(point, 0).start();
        pair.receiver.waits_for_state(ReceiverState::Live).await;
        pair.receiver.snapshot().await.expect_err("it dies on the way");
        let ended = pair.receiver.process.ended();
        assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
        pair.receiver = again.start();
        let files = below(pair.dir.path());
        let left: Vec<_> =
            files.iter().filter(|path| path.to_string_lossy().contains(".db.snapshot")).collect();
        assert!(left.is_empty(), "{left:?}");
        pair.receiver.waits_for_state(ReceiverState::Live).await;
        let made = pair.receiver.snapshot().await.expect("stored by its successor");
        assert_eq!(made.cursor.expect("a cursor").sequence, Some(n));
        let newest = pair.publisher.log().await.snapshot.expect("the newest one");
        assert_eq!(newest.sequence, Some(n));
    }
}
