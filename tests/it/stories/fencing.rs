//! Who works where two want to: one of them does, the other stops and says why.

use std::{fs, time::Duration};

use counterfoil::proto::{pb::ReceiverState, refusal::Reason};

use crate::harness::{
    events::{adjusted, adjustments},
    ledger::Ledger,
    pair::{Pair, directory},
    proxy::{Link, Proxy},
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    wait::wait_until,
};

/// The older one has stopped: what it says, and that it applies nothing more.
async fn is_fenced(receiver: &Receiver) {
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "RECEIVER_FENCED");
    let said = status.state_detail;
    assert!(said.contains("has taken over") && said.contains("--name"), "{said}");
}

async fn session(publisher: &Publisher) -> i64 {
    let receivers = publisher.log().await.receivers;
    receivers.first().and_then(|known| known.session).expect("one receiver is known")
}

async fn acked(publisher: &Publisher) -> i64 {
    publisher.acked("receiver").await.and_then(|cursor| cursor.sequence).unwrap_or(-1)
}

/// Two databases: the newer process works, the older one stops.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_receivers_of_one_name_the_newer_works() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 10)).await;
    let beside = pair.dir.path().join("beside");
    fs::create_dir(&beside).expect("made");
    let newer = Receiver::start(&beside, &pair.publisher.url());
    is_fenced(&pair.receiver).await;
    newer.applies(9).await;
    pair.publisher.accepts(adjusted("l", "a", 5)).await;
    newer.applies(10).await;
    pair.publisher.waits_for_ack("receiver", 10).await;

    let (old, new) = (pair.receiver.ledger(), newer.ledger());
    let accepted = pair.publisher.accepted().await;
    old.check(&accepted, None);
    new.check(&accepted, Some(10));
    assert_eq!((old.cursor, new.cursor, new.total), (9, 10, 15));
    // The one that was stopped stays so; another start of it is a decision of its owner's.
    let old = pair.receiver.restart();
    is_fenced(&newer).await;
    old.applies(10).await;
}

/// One database: the second process does not start, whatever name it is given, and the
/// first does not notice; also while it does nothing at all.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_processes_on_one_database_the_second_ends_with_code_3() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 10)).await;
    let second = pair.receiver.successor().listen_anywhere();
    let refuses = || {
        let ended = second.clone().refuses();
        assert_eq!(ended.code(), Some(3), "{ended:?}");
        assert!(ended.stderr.contains("in use by another receiver"), "{ended:?}");
    };
    refuses();
    pair.receiver.process.freeze();
    refuses();
    pair.receiver.process.thaw();
    pair.carries(vec![adjusted("l", "a", 1)]).await;
    assert_eq!(session(&pair.publisher).await, 1, "nobody has asked the publisher");
}

/// A process that was stopped in its tracks, with another one in its place since.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_that_wakes_up_stops() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 10)).await;
    let old = session(&pair.publisher).await;
    pair.receiver.process.freeze();
    // Events that it had no time for.
    pair.publisher.publish(adjustments("l", 10)).await.expect("accepted");

    let beside = pair.dir.path().join("beside");
    fs::create_dir(&beside).expect("made");
    let newer = Receiver::start(&beside, &pair.publisher.url());
    newer.applies(19).await;
    pair.publisher.waits_for_ack("receiver", 19).await;
    pair.receiver.process.thaw();
    is_fenced(&pair.receiver).await;

    let zombie = pair.receiver.ledger();
    zombie.check(&pair.publisher.accepted().await, None);
    let cursor = pair.publisher.acked("receiver").await.expect("acknowledged");
    refused(pair.publisher.ack("receiver", old, &cursor).await, Reason::ReceiverFenced);
    assert_eq!(acked(&pair.publisher).await, 19, "the position stays");
    pair.publisher.accepts(adjusted("m", "a", 5)).await;
    newer.applies(20).await;
    pair.publisher.waits_for_ack("receiver", 20).await;
    newer.ledger().check(&pair.publisher.accepted().await, Some(20));
    assert!(pair.receiver.ledger().cursor <= 19, "it applies nothing more");
}

/// The same, and its connection is gone when it wakes up: it was never told that it was
/// fenced, and asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_without_a_connection_does_not_take_over_again() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let link = Proxy::to(publisher.address).await;
    let zombie = Receiver::start(dir.path(), &link.url());
    publisher.publish(adjustments("k", 10)).await.expect("accepted");
    publisher.waits_for_ack("receiver", 9).await;
    zombie.process.freeze();
    link.set(Link::Reset);

    let beside = dir.path().join("beside");
    fs::create_dir(&beside).expect("made");
    let newer = Receiver::start(&beside, &publisher.url());
    publisher.publish(adjustments("l", 10)).await.expect("accepted");
    newer.applies(19).await;
    publisher.waits_for_ack("receiver", 19).await;
    let newest = session(&publisher).await;

    zombie.process.thaw();
    wait_until("it notices that it is cut off", async || {
        (zombie.try_status().await.ok()?.connect_attempts > Some(1)).then_some(())
    })
    .await;
    link.set(Link::Open);
    is_fenced(&zombie).await;
    assert_eq!((session(&publisher).await, acked(&publisher).await), (newest, 19));
    publisher.accepts(adjusted("m", "a", 5)).await;
    newer.applies(20).await;
    zombie.ledger().check(&publisher.accepted().await, None);
    assert_eq!(zombie.ledger().cursor, 9);
}

/// The same: the one in its place was started on an older copy of its database.
#[tokio::test(flavor = "multi_thread")]
async fn a_zombie_whose_database_was_put_back_elsewhere_stops() {
    let mut pair = Pair::start();
    pair.carries(adjustments("k", 10)).await;
    let (again, db) = (pair.receiver.successor(), pair.receiver.db().to_owned());
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let beside = pair.dir.path().join("beside");
    fs::create_dir(&beside).expect("made");
    fs::copy(&db, beside.join("receiver.db")).expect("copied");
    pair.receiver = again.start();
    pair.carries(adjustments("l", 10)).await;

    pair.receiver.process.freeze();
    let newer = Receiver::start(&beside, &pair.publisher.url());
    newer.applies(19).await;
    pair.publisher.waits_for_ack("receiver", 19).await;
    pair.receiver.process.thaw();
    is_fenced(&pair.receiver).await;
    pair.publisher.accepts(adjusted("m", "a", 5)).await;
    newer.applies(20).await;
    pair.publisher.waits_for_ack("receiver", 20).await;
    let accepted = pair.publisher.accepted().await;
    for (ledger, cursor) in [(pair.receiver.ledger(), 19), (newer.ledger(), 20)] {
        ledger.check(&accepted, None);
        assert_eq!(ledger.cursor, cursor);
    }
}

/// Acks of a session that has ended change nothing, while the newer one works under load.
#[tokio::test(flavor = "multi_thread")]
async fn takeovers_under_load_do_nothing_twice() {
    let pair = Pair::start();
    let producer = crate::harness::producer::Producer::start(pair.publisher.client.clone(), "p", 5);
    let mut receivers: Vec<Receiver> = Vec::new();
    for n in 0..5 {
        let answered = producer.answered();
        wait_until("load goes on", async || (producer.answered() > answered + 50).then_some(()))
            .await;
        let beside = pair.dir.path().join(n.to_string());
        fs::create_dir(&beside).expect("made");
        let newer = Receiver::start(&beside, &pair.publisher.url());
        is_fenced(receivers.last().unwrap_or(&pair.receiver)).await;
        receivers.push(newer);
    }
    let accepted = producer.stop().await;
    let last = accepted.last().expect("events").sequence;
    receivers[4].applies(last).await;
    pair.publisher.waits_for_ack("receiver", last).await;
    for receiver in receivers.iter().chain([&pair.receiver]) {
        Ledger::read(receiver.db()).check(&accepted, None);
    }
    assert_eq!(receivers[4].ledger().cursor, last);
    let quick = tokio::time::timeout(Duration::from_secs(1), pair.receiver.status()).await;
    assert_eq!(quick.expect("it still answers").state(), ReceiverState::Halted);
}
