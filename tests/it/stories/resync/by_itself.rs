//! A receiver whose next events are gone is live again without anybody's help.

use std::fs;

use counterfoil::proto::pb::ReceiverState;
use rusqlite::Connection;

use super::{EARLY, Scene, is_whole, same};
use crate::harness::{
    events::{adjusted, adjustments},
    files::below,
    ledger::{Ledger, open},
    pair::Pair,
    receiver::Receiver,
    wait::{DEADLINE, wait_until},
};

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_database_behind_a_truncated_log_goes_live() {
    let scene = Scene::after(50).await;
    let receiver = scene.empty("receiver").start();
    let status = receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!((status.resyncs, status.snapshot_sequence), (Some(1), Some(49)));
    same(&receiver.ledger(), &scene.maker.ledger());
    // What the snapshot brought is reported, and what came after it too.
    scene.publisher.waits_for_ack("receiver", 50).await;
    wait_until("the last outcome is told of it", async || {
        let told = scene.publisher.outcomes("last").await;
        told.iter().any(|(name, _)| name == "receiver").then_some(())
    })
    .await;
    for row in &receiver.ledger().rows {
        let told = scene.publisher.outcomes(&row.key).await;
        assert!(told.iter().any(|(name, _)| name == "receiver"), "{}: {told:?}", row.key);
    }
    // And it goes on like any other.
    scene.publisher.accepts(adjusted("after", "a", 1)).await;
    receiver.applies(51).await;
    is_whole(&receiver.ledger());
    let leftovers: Vec<_> = below(scene.dir.path())
        .into_iter()
        .filter(|path| path.to_string_lossy().contains(".db.resync"))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}

/// The whole volume is gone under a receiver that had been live.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_volume_comes_back() {
    let scene = Scene::after(40).await;
    let receiver = scene.empty("receiver").start();
    receiver.waits_for_state(ReceiverState::Live).await;
    let (again, db) = (receiver.successor(), receiver.db().to_owned());
    drop(receiver); // kill -9
    for ending in ["", "-wal", "-shm", ".lock"] {
        let path = format!("{}{ending}", db.display());
        let _ = fs::remove_file(path);
    }
    let receiver = again.start();
    receiver.waits_for_state(ReceiverState::Live).await;
    same(&receiver.ledger(), &scene.maker.ledger());
}

/// Rows that the snapshot does not have are gone, wherever they came from.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_deleted_meanwhile_does_not_survive() {
    let scene = Scene::after(40).await;
    let (setup, db) = scene.early("receiver");
    let tables = Connection::open(&db).expect("opened");
    tables
        .execute_batch("INSERT INTO stock VALUES ('ghost', 7, 1); CREATE TABLE mine (a)")
        .expect("written");
    drop(tables);
    let receiver = setup.start();
    receiver.waits_for_state(ReceiverState::Live).await;
    let ledger = receiver.ledger();
    assert!(!ledger.stock.contains_key("ghost"), "{:?}", ledger.stock);
    same(&ledger, &scene.maker.ledger());
}

/// Other processes that read the file see the old content or the new one.
#[tokio::test(flavor = "multi_thread")]
async fn readers_see_old_or_new_and_never_a_mix() {
    let scene = Scene::after(3_000).await;
    let (setup, db) = scene.early("receiver");
    let reader = std::thread::spawn(move || {
        let tables = open(&db);
        let (start, mut seen) = (std::time::Instant::now(), Vec::new());
        while seen.last() != Some(&3_001) {
            assert!(start.elapsed() < DEADLINE, "it never came about: {seen:?}");
            let moment = tables.unchecked_transaction().expect("begun");
            let number = |sql: &str| -> i64 {
                moment.query_row(sql, [], |row| row.get(0)).expect("one number")
            };
            let cursor = number("SELECT sequence FROM counterfoil_cursor");
            assert_eq!(number("SELECT count(*) FROM counterfoil_ledger"), cursor + 1);
            assert_eq!(number("SELECT total FROM total"), cursor + 1);
            assert_eq!(number("SELECT sum(available) FROM stock"), cursor + 1);
            if seen.last() != Some(&cursor) {
                seen.push(cursor);
            }
        }
        seen
    });
    // A reader that keeps the old content open keeps nobody from the new one.
    let old = open(&scene.dir.path().join("receiver.db"));
    let old = old.unchecked_transaction().expect("begun");
    let cursor = "SELECT sequence FROM counterfoil_cursor";
    let read = || -> i64 { old.query_row(cursor, [], |row| row.get(0)).expect("readable") };
    assert_eq!(read(), EARLY as i64 - 1);
    let receiver = setup.start();
    let ledger = wait_until("the new content is there", async || {
        let ledger = receiver.ledger();
        (ledger.cursor >= 2_999).then_some(ledger)
    })
    .await;
    is_whole(&ledger);
    assert_eq!(read(), EARLY as i64 - 1, "its own moment stays");
    // Nor from what comes after it.
    scene.publisher.accepts(adjusted("after", "a", 1)).await;
    receiver.applies(3_001).await;
    assert_eq!(read(), EARLY as i64 - 1, "its own moment stays");
    drop(old);
    receiver.waits_for_state(ReceiverState::Live).await;
    let seen = reader.join().expect("it saw no mix");
    assert_eq!((seen[0], seen[1] >= 2_999), (EARLY as i64 - 1, true), "{seen:?}");
}

/// Retention asks the receiver that is there for snapshots, nobody else does, and the one
/// that was away goes on from the newest.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_away_goes_on_from_another_ones_snapshot() {
    let mut pair = Pair::with(|publisher| publisher.config("[logs.main]\nmax_events = 20\n"));
    pair.carries(adjustments("k", 5)).await;
    let other = Receiver::at(pair.dir.path(), &pair.publisher.url()).named("other").start();
    other.applies(4).await;
    let again = pair.receiver.successor();
    drop(pair.receiver);
    for n in 0..60 {
        pair.publisher.accepts(adjusted(&format!("l{n}"), "a", 1)).await;
        other.applies(5 + n).await;
    }
    pair.receiver = again.start();
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    pair.receiver.applies(64).await;
    same(&pair.receiver.ledger(), &Ledger::read(other.db()));
}
