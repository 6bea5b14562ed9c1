//! The moment this product exists for: the receiver dies after its commit, before
//! its ack. The effect stands, once; the restart goes on from what is committed.

use counterfoil::proto::crash::RECEIVER_AFTER_COMMIT;

use crate::harness::{
    events::{adjusted, adjustments},
    fake_publisher::{FakePublisher, History, after},
    ledger::{Accepted, Ledger},
    pair::{Pair, directory},
    publisher::Publisher,
    receiver::Receiver,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_killed_between_commit_and_ack_does_nothing_twice() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receiver = Receiver::at(dir.path(), &publisher.url()).dies_at(RECEIVER_AFTER_COMMIT, 2);
    let mut pair = Pair { receiver: receiver.start(), publisher, dir };
    pair.carries(vec![adjusted("k0", "a", 5)]).await;
    pair.carries(vec![adjusted("k1", "a", 7)]).await;

    pair.publisher.accepts(adjusted("k2", "a", 11)).await;
    let status = pair.receiver.process.wait_for_end();
    assert!(!status.success(), "it died: {status}");
    let committed = pair.receiver.ledger();
    assert_eq!((committed.cursor, committed.total), (2, 23), "the commit stands");
    let acked = pair.publisher.acked("receiver").await.and_then(|cursor| cursor.sequence);
    assert_eq!(acked, Some(1), "the ack never left");
    committed.check(&pair.publisher.accepted().await, acked);

    pair.receiver = pair.receiver.restart();
    let settled = pair.settles().await;
    assert_eq!((settled.cursor, settled.total, settled.rows.len()), (2, 23, 3));
    pair.carries(vec![adjusted("k3", "a", 100)]).await;
    assert_eq!(pair.settles().await.total, 123);
}

/// The publisher that cannot take a hint: it sends the last event again, every time.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_comes_again_after_the_kill_has_its_effect_once() {
    let dir = directory();
    let history = History::of(adjustments("k", 3));
    let told = history.clone();
    let fake = FakePublisher::start(move |n, request| {
        told.honestly(n as i64 + 1, (after(request) - 1).max(-1))
    })
    .await;
    let setup = Receiver::at(dir.path(), &fake.url());
    setup.clone().dies_at(RECEIVER_AFTER_COMMIT, 0).dies();
    let committed = Ledger::read(&dir.path().join("receiver.db"));
    assert!(committed.cursor >= 0, "the commit stands: {committed:?}");

    for restart in 1..=3 {
        let mut receiver = setup.clone().start();
        let request = fake.waits_for_replay(restart + 1).await;
        let asked = if restart == 1 { committed.cursor } else { 2 };
        let asked = history.cursor(asked);
        assert_eq!(
            request.start,
            Some(counterfoil::proto::pb::replay_request::Start::After(asked))
        );
        fake.waits_for_ack(2).await;
        receiver.applies(2).await;
        let ledger = receiver.ledger();
        assert_eq!((ledger.cursor, ledger.total), (2, 3));
        assert_eq!(ledger.outcomes(), ["APPLIED"; 3], "a repetition is no row of its own");
        let accepted: Vec<_> = (0..3).map(|n| Accepted::from(&history.event(n))).collect();
        ledger.check(&accepted, Some(2));
        receiver.process.kill();
    }
}
