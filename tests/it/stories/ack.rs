//! What an acknowledgement means, on both sides of it.

use counterfoil::proto::{
    pb::{Cursor, ReceiverState, ReplayRequest, replay_request::Start},
    refusal::{Reason, Refusal},
};
use tonic::Status;

use crate::harness::{
    events::{adjustments, cursors},
    fake_publisher::{FakePublisher, History, after},
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    wait::wait_until,
};

fn following(receiver: &str) -> ReplayRequest {
    ReplayRequest { receiver: receiver.into(), follow: true, ..Default::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ack_is_cumulative_idempotent_and_outlives_a_kill() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 10)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let replay = publisher.replay(following("r")).await.expect("admitted");
    let session = replay.started.session.expect("always set");
    assert_eq!(publisher.acked("r").await.and_then(|cursor| cursor.sequence), Some(-1));

    let answer = publisher.ack("r", session, &cursors[5]).await.expect("acknowledged");
    assert_eq!(answer.acked.as_ref(), Some(&cursors[5]));
    assert_eq!((answer.floor_sequence, answer.next_sequence), (Some(0), Some(10)));
    publisher.process.kill();
    let publisher = publisher.restart();
    assert_eq!(publisher.acked("r").await.as_ref(), Some(&cursors[5]), "durable before the reply");

    for lower in [5, 2, 0] {
        let answer = publisher.ack("r", session, &cursors[lower]).await.expect("changes nothing");
        assert_eq!(answer.acked.as_ref(), Some(&cursors[5]));
    }
    let log = publisher.log().await;
    assert_eq!(log.receivers[0].lag_events, Some(4));
    publisher.ack("r", session, &cursors[9]).await.expect("acknowledged");
    let log = publisher.log().await;
    assert_eq!(log.receivers[0].lag_events, Some(0));
    assert_eq!(log.receivers[0].lag_seconds, Some(0.0));
}

/// ACK-07: one reader's position is its own.
#[tokio::test(flavor = "multi_thread")]
async fn ack_07_two_receivers_do_not_disturb_each_other() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 30)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let a = publisher.replay(following("a")).await.expect("admitted");
    let mut b = publisher.replay(following("b")).await.expect("admitted");
    publisher.ack("a", a.started.session.expect("set"), &cursors[20]).await.expect("acknowledged");
    publisher.ack("b", b.started.session.expect("set"), &cursors[5]).await.expect("acknowledged");
    b.until_caught_up().await.expect("the other's Replay goes on");
    let publisher = publisher.restart();
    assert_eq!(publisher.acked("a").await.as_ref(), Some(&cursors[20]));
    assert_eq!(publisher.acked("b").await.as_ref(), Some(&cursors[5]));
}

/// ACK-08: who acknowledges what is checked, and a typo makes no receiver.
#[tokio::test(flavor = "multi_thread")]
async fn ack_08_an_ack_of_a_stranger_is_refused_and_leaves_no_trace() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 10)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let replay = publisher.replay(following("r")).await.expect("admitted");
    let session = replay.started.session.expect("always set");
    let good = &cursors[3];

    let refusal = refused(publisher.ack("", session, good).await, Reason::InvalidField);
    assert_eq!(refusal.fields, ["receiver"]);
    refused(publisher.ack("R", session, good).await, Reason::NotFound);
    refused(publisher.ack("r", session - 1, good).await, Reason::ReceiverFenced);
    refused(publisher.ack("r", session + 1, good).await, Reason::InvalidField);
    let other_log = Cursor { log_id: uuid::Uuid::new_v4().to_string(), ..good.clone() };
    refused(publisher.ack("r", session, &other_log).await, Reason::LogMismatch);
    let ahead = Cursor { sequence: Some(10), ..good.clone() };
    assert_eq!(
        refused(publisher.ack("r", session, &ahead).await, Reason::CursorAhead).number("next"),
        10
    );
    let diverged = Cursor { chain: vec![1; 32].into(), ..good.clone() };
    refused(publisher.ack("r", session, &diverged).await, Reason::Diverged);

    let log = publisher.log().await;
    let known: Vec<_> = log.receivers.iter().map(|receiver| receiver.name.as_str()).collect();
    assert_eq!(known, ["r"]);
    assert_eq!(
        publisher.acked("r").await.and_then(|cursor| cursor.sequence),
        Some(-1),
        "none of it counted"
    );
    publisher.ack("r", session, good).await.expect("the right one counts");
}

/// ACK-04: applying and acknowledging fail separately.
#[tokio::test(flavor = "multi_thread")]
async fn ack_04_acks_that_fail_do_not_stop_applying_and_are_repeated() {
    let dir = directory();
    let history = History::of(adjustments("k", 50));
    let told = history.clone();
    let fake =
        FakePublisher::start(move |n, request| told.honestly(n as i64 + 1, after(request))).await;
    fake.answers_acks(|n, _| match n {
        0..4 => Err(Status::unavailable("the publisher is busy")),
        4 => Err(Status::internal("a proxy on the way made this up")),
        5 => Err(Status::unknown("so did another")),
        _ => Ok(()),
    });
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(49).await;
    wait_until("the ack gets through", async || {
        let status = receiver.status().await;
        (status.acked.and_then(|cursor| cursor.sequence) == Some(49)).then_some(())
    })
    .await;
    assert_eq!(fake.replays().len(), 1, "the Replay went on all the time");
    let acks = fake.acks();
    assert!(acks.len() >= 7, "{} acks", acks.len());
    let sequences: Vec<_> =
        acks.iter().map(|ack| ack.cursor.as_ref().and_then(|cursor| cursor.sequence)).collect();
    assert!(sequences.is_sorted(), "the highest only, never back: {sequences:?}");
    assert!(acks.iter().all(|ack| ack.session == 1 && ack.receiver == "receiver"), "{acks:?}");
}

/// ACK-04: an ack that will never succeed is said, and the effect stands.
#[tokio::test(flavor = "multi_thread")]
async fn ack_04_an_ack_that_can_never_succeed_is_said() {
    let dir = directory();
    let history = History::of(adjustments("k", 5));
    let told = history.clone();
    let fake =
        FakePublisher::start(move |n, request| told.honestly(n as i64 + 1, after(request))).await;
    fake.answers_acks(|_, _| {
        Err(Refusal::new(Reason::ReceiverFenced, "another Replay of this name has taken over")
            .into())
    });
    let receiver = Receiver::start(dir.path(), &fake.url());
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("says what failed").reason, "RECEIVER_FENCED");
    assert!(!status.state_detail.is_empty());
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total), (4, 5), "what was committed stays committed");
}

/// The publisher forgets an ack (its answer was lost): the next connection says it again.
#[tokio::test(flavor = "multi_thread")]
async fn the_committed_cursor_is_acknowledged_at_every_connection() {
    let dir = directory();
    let history = History::of(adjustments("k", 5));
    let told = history.clone();
    let fake =
        FakePublisher::start(move |n, request| told.honestly(n as i64 + 1, after(request))).await;
    let mut receiver = Receiver::start(dir.path(), &fake.url());
    fake.waits_for_ack(4).await;
    receiver.process.kill();
    let _receiver = receiver.restart();
    let request = fake.waits_for_replay(2).await;
    assert!(
        matches!(request.start, Some(Start::After(ref cursor)) if *cursor == history.cursor(4)),
        "{request:?}"
    );
    wait_until("the ack comes again under the new session", async || {
        fake.acks().into_iter().find(|ack| ack.session == 2)
    })
    .await;
}
