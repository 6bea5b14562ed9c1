//! Bounds: what is dropped, what is refused, and what is never forgotten.

use counterfoil::proto::{
    pb::{Cursor, NewEvent, PublishOutcome, ReceiptState},
    refusal::Reason,
};
use prost_types::Timestamp;

use crate::harness::{
    events::{adjusted, adjustments, at_version, blob, cursors, sequences},
    pair::directory,
    publisher::Publisher,
    refusal::refused,
    wait::wait_until,
};

/// An event whose payload has this many bytes.
fn sized(key: &str, bytes: usize) -> NewEvent {
    blob(key, vec![7; bytes])
}

/// LOG-02: a number is issued once, also when nothing of the log remains.
#[tokio::test(flavor = "multi_thread")]
async fn log_02_no_number_comes_twice_after_emptying() {
    let dir = directory();
    let setup = Publisher::at(dir.path()).config("[logs.main]\nmax_age = \"300ms\"\n");
    let publisher = setup.start();
    let first = publisher
        .publish(vec![adjusted("a", "x", 1), adjusted("b", "x", 1), adjusted("c", "x", 1)])
        .await
        .expect("accepted");
    let emptied = async |publisher: &Publisher, next: i64| {
        wait_until("age has emptied the log", async || {
            let log = publisher.log().await;
            assert_eq!(log.next_sequence, Some(next), "truncation takes no number back");
            (log.floor_sequence == Some(next)).then_some(())
        })
        .await;
    };
    emptied(&publisher, 3).await;
    let publisher = publisher.restart();
    let log = publisher.log().await;
    assert_eq!((log.floor_sequence, log.next_sequence), (Some(3), Some(3)), "all truncated");
    assert_eq!(log.log_id, first[0].log_id);
    assert_eq!(log.bytes, Some(0));

    let receipt = publisher.accepts(at_version(adjusted("d", "x", 1), 3)).await;
    assert_eq!(receipt.sequence, Some(3), "the next number, not a used one");
    assert_eq!(receipt.subject_version, Some(4), "versions outlive the events");
    emptied(&publisher, 4).await;

    // Receipts live on a clock of their own: truncating events forgets no key.
    assert_eq!(publisher.receipt("a").await.state(), ReceiptState::Accepted);
    let publisher = publisher.restart();
    let repeat = publisher.accepts(adjusted("a", "x", 1)).await;
    assert_eq!((repeat.sequence, repeat.outcome()), (Some(0), PublishOutcome::Duplicate));
    let other = publisher.publish(vec![adjusted("a", "x", 2)]).await;
    assert_eq!(refused(other, Reason::KeyConflict).number("sequence"), 0);
    let head = publisher.log().await.head.expect("a head");
    assert_eq!(head.sequence, Some(3), "the head is a stored fact");
    assert_eq!(head.chain, cursors(&[first, vec![receipt]].concat())[3].chain);
}

/// LOG-09: OK means readable right away; what can never fit is refused.
#[tokio::test(flavor = "multi_thread")]
async fn log_09_bounds_by_count_and_bytes_are_exact_and_drop_the_oldest() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 3\nmax_bytes = 1024\nwhen_full = \"drop_oldest\"\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let sizes = [10, 10, 10, 10, 500, 400, 10, 700, 10, 10, 10];
    for (n, size) in (0..).zip(sizes) {
        let receipt = publisher.accepts(sized(&format!("k{n}"), size)).await;
        assert_eq!(receipt.sequence, Some(n));
        let log = publisher.log().await;
        let retained = publisher.everything().await;
        assert_eq!(retained.last().and_then(|event| event.sequence), Some(n), "OK means readable");
        assert!(retained.len() <= 3, "max_events: {:?}", sequences(&retained));
        assert!(log.bytes <= Some(1024), "max_bytes: {log:?}");
        assert_eq!(log.next_sequence, Some(n + 1));
        assert_eq!(log.floor_sequence, retained[0].sequence, "what is above the floor is there");
    }
    let fits = publisher.publish(vec![sized("m1", 5), sized("m2", 5), sized("m3", 5)]).await;
    assert_eq!(fits.expect("a batch as large as the log").len(), 3);
    assert_eq!(publisher.everything().await.len(), 3);

    let refusal =
        refused(publisher.publish(vec![sized("large", 1100)]).await, Reason::EventTooLarge);
    assert_eq!(
        (refusal.numbers["limit"].as_str(), refusal.number("max_bytes")),
        ("max_bytes", 1024)
    );
    let batch: Vec<_> = (0..4).map(|n| sized(&format!("b{n}"), 5)).collect();
    let refusal = refused(publisher.publish(batch).await, Reason::BatchTooLarge);
    assert_eq!(
        (refusal.numbers["limit"].as_str(), refusal.number("max_events")),
        ("max_events", 3)
    );
    // Dropped events keep their receipts.
    let repeat = publisher.accepts(sized("k0", 10)).await;
    assert_eq!((repeat.sequence, repeat.outcome()), (Some(0), PublishOutcome::Duplicate));
}

/// LOG-09: the other policy.
#[tokio::test(flavor = "multi_thread")]
async fn log_09_a_rejecting_log_says_who_holds_it_and_takes_events_once_they_acknowledge() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 3\nwhen_full = \"reject\"\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let replay = counterfoil::proto::pb::ReplayRequest {
        receiver: "slow".into(),
        follow: true,
        ..Default::default()
    };
    let frames = publisher.replay(replay).await.expect("a receiver makes itself known");
    let session = frames.started.session.expect("always set");
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("room for three");
    let full = publisher.publish(vec![adjusted("more", "x", 1)]).await;
    let refusal = refused(full, Reason::LogFull);
    assert_eq!(refusal.numbers["limit"], "max_events");
    assert!(refusal.numbers["receivers"].contains("slow"), "{refusal:?}");
    assert_eq!(publisher.everything().await.len(), 3, "nothing is dropped");
    // A repeat is answered although the log is full.
    let repeat = publisher.publish(adjustments("k", 3)).await.expect("known");
    assert_eq!(repeat[2].sequence, Some(2));

    let cursor: Cursor = cursors(&receipts)[1].clone();
    publisher.ack("slow", session, &cursor).await.expect("acknowledged");
    let receipt = publisher.accepts(adjusted("more", "x", 1)).await;
    assert_eq!(receipt.sequence, Some(3), "the refusal burnt no number");
    assert!(sequences(&publisher.everything().await).contains(&2), "not acknowledged, not dropped");
}

/// LOG-10: what a producer says about time decides nothing.
#[tokio::test(flavor = "multi_thread")]
async fn log_10_retention_and_order_ignore_the_producers_clock() {
    let dir = directory();
    let setup = Publisher::at(dir.path()).config("[logs.main]\nmax_age = \"1h\"\n");
    let publisher = setup.start();
    for (n, seconds) in (0..).zip([0, 4_070_908_800, 1_796_000_000, 0]) {
        let stamped = NewEvent {
            time: Some(Timestamp { seconds, nanos: 0 }),
            ..adjusted(&format!("k{n}"), "x", 1)
        };
        assert_eq!(publisher.accepts(stamped).await.sequence, Some(n));
    }
    let publisher = publisher.restart();
    publisher.accepts(adjusted("k4", "x", 1)).await;
    let log = publisher.log().await;
    assert_eq!((log.floor_sequence, log.next_sequence), (Some(0), Some(5)));
    assert_eq!(sequences(&publisher.everything().await), [0, 1, 2, 3, 4]);
}

/// Several logs share a process and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn logs_are_independent() {
    let dir = directory();
    let config = "[logs.main]\nmax_events = 5\n[logs.audit]\nmax_events = 7\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let client = &publisher.client;
    let audit = crate::harness::publisher::publish(client, "audit", vec![adjusted("k-0", "x", 9)]);
    let receipt = audit.await.expect("the same key names another intent in another log").remove(0);
    assert_eq!(receipt.sequence, Some(0));
    let logs = client.clone().list_logs(counterfoil::proto::pb::ListLogsRequest {}).await;
    let logs = logs.expect("ListLogs").into_inner().logs;
    let told: Vec<_> = logs
        .iter()
        .map(|log| {
            (
                log.name.as_str(),
                log.next_sequence,
                log.limits.as_ref().and_then(|limits| limits.max_events),
            )
        })
        .collect();
    assert_eq!(told, [("audit", Some(1), Some(7)), ("main", Some(3), Some(5))]);
    assert_ne!(logs[0].log_id, logs[1].log_id);
}
