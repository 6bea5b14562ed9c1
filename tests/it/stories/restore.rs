//! Copies brought back: whichever side has gone back in time, it is noticed, and
//! what can go on by itself does.

use std::fs;

use counterfoil::proto::pb::ReceiverState;

use crate::harness::{
    events::{adjusted, adjustments},
    ledger::Ledger,
    pair::{Pair, directory},
    publisher::Publisher,
    put_back::PutBack,
    receiver::Receiver,
};

/// An older copy of the receiver's database: the missing events come again, and
/// nothing else does.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_receiver_asks_again_from_where_its_copy_was() {
    let mut pair = Pair::start();
    pair.carries(adjustments("k", 10)).await;
    let (again, db) = (pair.receiver.successor(), pair.receiver.db().to_owned());
    let backup = pair.dir.path().join("backup.db");
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    // A clean end leaves everything in the one file.
    fs::copy(&db, &backup).expect("copied");
    pair.receiver = again.clone().start();
    pair.carries(adjustments("l", 10)).await;
    assert_eq!(pair.receiver.terminate().code(), Some(0));

    fs::copy(&backup, &db).expect("brought back");
    for beside in ["receiver.db-wal", "receiver.db-shm"] {
        let _ = fs::remove_file(pair.dir.path().join(beside));
    }
    assert_eq!(Ledger::read(&db).cursor, 9, "an older copy");
    pair.receiver = again.start();
    pair.receiver.applies(19).await;
    let ledger = pair.settles().await;
    assert_eq!((ledger.cursor, ledger.total), (19, 20));
    assert_eq!(pair.carries(vec![adjusted("m", "a", 5)]).await[0].sequence, Some(20));
}

/// An older copy of the publisher's directory: the receiver has seen what that log
/// never had, and says so; with other events in their place it is another history.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_publisher_is_noticed_by_its_receiver() {
    let PutBack { receiver, publisher, dir: _dir } = PutBack::to_five_of_ten().await;
    let publisher = publisher.start();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "CURSOR_AHEAD");
    assert_eq!(receiver.ledger().total, 10, "nothing is taken back, nothing is reset");

    publisher.publish(adjustments("other", 20)).await.expect("accepted");
    let receiver = receiver.restart();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "DIVERGED");
    assert_eq!(receiver.ledger().total, 10);
}

/// A publisher's directory made anew under the same address.
#[tokio::test(flavor = "multi_thread")]
async fn a_replaced_log_is_noticed_by_its_receiver() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 5)).await;
    let again = pair.publisher.successor();
    let data = pair.publisher.dir().to_owned();
    assert_eq!(pair.publisher.terminate().code(), Some(0));
    fs::remove_dir_all(&data).expect("removed");
    let publisher = again.start();
    publisher.publish(adjustments("k", 5)).await.expect("a new log knows no keys");
    let status = pair.receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "LOG_MISMATCH");
    assert_eq!(pair.receiver.ledger().total, 5);
}

/// Truncation past a receiver that was away, and nobody who has a snapshot: said, and not
/// skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_was_away_too_long_is_told_what_is_missing() {
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config("[logs.main]\nmax_events = 5\n").start();
    publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let receiver = Receiver::start(dir.path(), &publisher.url());
    publisher.waits_for_ack("receiver", 2).await;
    let again = receiver.successor();
    assert_eq!(receiver.terminate().code(), Some(0));
    for n in 0..10 {
        publisher.accepts(adjusted(&format!("l{n}"), "a", 1)).await;
    }
    let receiver = again.start();
    let status = receiver.waits_for_state(ReceiverState::Resyncing).await;
    let failure = status.failure.expect("why");
    assert_eq!(failure.reason, "CURSOR_EXPIRED");
    assert!(failure.message.contains('8'), "the floor is named: {failure:?}");
    assert_eq!(receiver.ledger().cursor, 2, "no silent jump");
}
