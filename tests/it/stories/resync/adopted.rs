//! A log that was forked goes on under another `log_id`, with the same history up to what a
//! receiver has: the receiver takes the name over and goes on.

use counterfoil::proto::pb::ReceiverState;

use crate::harness::{
    events::{adjusted, adjustments},
    fake_publisher::{FakePublisher, History, Step, after},
    pair::directory,
    receiver::Receiver,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_goes_on_with_a_forked_log() {
    let dir = directory();
    let first = History::of(adjustments("k", 4));
    let mut forked = first.forked();
    forked.push(adjusted("new", "a", 10));
    let (old, new) = (first.clone(), forked.clone());
    let fake = FakePublisher::start(move |n, request| match n {
        0 => [old.honestly(1, after(request)), vec![Step::End]].concat(),
        n => new.honestly(n as i64 + 1, after(request)),
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(4).await;
    fake.waits_for_ack(4).await;
    let status = receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(status.cursor, Some(forked.cursor(4)));
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total), (4, 14));
    assert_eq!(ledger.outcomes(), ["APPLIED"; 5]);
    // It asked with the cursor it had, and from now on with the new name.
    let receiver = receiver.restart();
    receiver.waits_for_state(ReceiverState::Live).await;
    let asked = fake.replays().pop().expect("asked again").start;
    assert_eq!(asked, Some(counterfoil::proto::pb::replay_request::Start::After(forked.cursor(4))));
}

/// A name alone changes, with nothing new to apply.
#[tokio::test(flavor = "multi_thread")]
async fn the_name_is_taken_over_at_the_head_too() {
    let dir = directory();
    let first = History::of(adjustments("k", 4));
    let forked = first.forked();
    let (old, new) = (first.clone(), forked.clone());
    let fake = FakePublisher::start(move |n, request| match n {
        0 => [old.honestly(1, after(request)), vec![Step::End]].concat(),
        n => new.honestly(n as i64 + 1, after(request)),
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    crate::harness::wait::wait_until("the new name is committed", async || {
        (receiver.try_status().await.ok()?.cursor == Some(forked.cursor(3))).then_some(())
    })
    .await;
    assert_eq!(receiver.ledger().total, 4);
}

/// A log of another name and another history is not a fork.
#[tokio::test(flavor = "multi_thread")]
async fn another_history_is_not_taken_for_a_fork() {
    let dir = directory();
    let first = History::of(adjustments("k", 4));
    let other = History::of(adjustments("other", 6));
    let fake = FakePublisher::start(move |n, request| match n {
        0 => [first.honestly(1, after(request)), vec![Step::End]].concat(),
        n => other.honestly(n as i64 + 1, after(request)),
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "LOG_MISMATCH");
    assert_eq!(receiver.ledger().total, 4);
}
