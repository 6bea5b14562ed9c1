//! An event that cannot be applied, and what people do about it: set aside by order or by
//! itself, kept, and applied later; nothing else waits for it longer than that.

use std::path::Path;

use counterfoil::proto::{
    crash,
    pb::{Outcome, ReceiverState, get_ledger_entry_request::By},
    refusal::Reason,
};
use rusqlite::Connection;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::harness::{
    events::{adjusted, adjustments, event},
    ledger,
    pair::{Pair, directory},
    publisher::{Publisher, channel},
    receiver::{Receiver, Setup},
    refusal::refused,
    tools::counterfoil,
    wait::{DEADLINE, wait_until},
};

/// Nothing can be done with it, however often.
fn poisoned(key: &str) -> counterfoil::proto::pb::NewEvent {
    event(key, "stock.adjusted", "camera", r#"{"delta":1001}"#)
}

/// The publisher looks into no payload.
const ANY: &str = "[logs.main]\npayloads = \"any\"\n";

/// A receiver of a new publisher.
fn followed(arrange: impl FnOnce(Setup) -> Setup) -> Pair {
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config(ANY).start();
    let receiver = arrange(Receiver::at(dir.path(), &publisher.url())).start();
    Pair { receiver, publisher, dir }
}

async fn halts_at(receiver: &Receiver, sequence: i64) {
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    let failure = status.failure.expect("says what stopped it");
    assert_eq!((&*failure.reason, failure.sequence), ("EVENT_FAILED", Some(sequence)));
    assert_eq!(failure.class, "PAYLOAD");
    assert!(status.state_detail.contains("counterfoil skip"), "{}", status.state_detail);
}

/// Meddles beside a receiver.
fn change(db: &Path, sql: &str) {
    let beside = Connection::open(db).expect("opened beside the receiver");
    beside.busy_timeout(DEADLINE).expect("set");
    beside.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// No tripod can be had.
const NO_TRIPOD: &str = "CREATE TRIGGER no BEFORE INSERT ON stock WHEN NEW.item = 'tripod'
                         BEGIN SELECT RAISE(ABORT, 'no'); END";

fn is_equal(pair: &Pair) {
    let db = pair.receiver.db();
    let ended = counterfoil(["verify", "--publisher", &pair.publisher.url(), "--db"]).arg(db).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

/// APP-08: a person sets it aside, the receiver goes on by itself, and the publisher is told.
#[tokio::test(flavor = "multi_thread")]
async fn app_08_an_event_that_is_set_aside_blocks_no_longer() {
    let pair = followed(|setup| setup.arg("--apply-attempts").arg("2"));
    let mut events = adjustments("k", 3);
    events.push(poisoned("bad"));
    events.extend(adjustments("l", 3));
    pair.publisher.publish(events).await.expect("accepted");
    halts_at(&pair.receiver, 3).await;

    refused(pair.receiver.skip(2, "that one is done").await, Reason::WrongState);
    refused(pair.receiver.skip(4, "that one is not due").await, Reason::WrongState);
    refused(pair.receiver.skip(-1, "no such place").await, Reason::InvalidField);
    for reason in ["", &"x".repeat(257), "key_conflict", "a\u{7}bell"] {
        refused(pair.receiver.skip(3, reason).await, Reason::InvalidField);
    }
    let row = pair.receiver.skip(3, "a mistake of the till's").await.expect("set aside");
    assert_eq!((row.outcome(), &*row.reason), (Outcome::Skipped, "a mistake of the till's"));
    let again = pair.receiver.skip(3, "again").await.expect("the same answer");
    assert_eq!(again, row);

    let ledger = pair.settles().await;
    assert_eq!((ledger.rows[3].outcome.as_str(), ledger.total), ("SKIPPED", 6));
    let status = pair.receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!((status.skipped_events, status.failure), (Some(1), None));
    assert_eq!(status.outcomes["SKIPPED"], 1);
    let mut health = HealthClient::new(channel(pair.receiver.address));
    let request = HealthCheckRequest { service: "counterfoil.v1.ReceiverService".into() };
    let health = health.check(request).await.expect("answered").into_inner();
    assert_eq!(health.status(), ServingStatus::Serving);
    wait_until("the publisher has been told", async || {
        let told = pair.publisher.receipt("bad").await.outcomes;
        let told = told.first()?;
        assert_eq!((told.outcome(), &*told.reason), (Outcome::Skipped, "a mistake of the till's"));
        Some(())
    })
    .await;
    is_equal(&pair);

    // What is kept of it says what there is to know.
    let db = ledger::open(pair.receiver.db());
    let kept = "SELECT key || ' ' || type || ' ' || subject || ' ' || fault
                FROM counterfoil_skipped WHERE sequence = 3 AND applied_at IS NULL";
    let kept: String = db.query_row(kept, [], |row| row.get(0)).expect("kept");
    assert!(kept.starts_with("bad stock.adjusted camera PAYLOAD: "), "{kept}");
    assert!(kept.contains("1001"), "{kept}");
    let failed = pair.receiver.apply_skipped(3).await;
    let refusal = refused(failed, Reason::EventFailed);
    assert!(refusal.message.contains("1001"), "{refusal:?}");
    refused(pair.receiver.apply_skipped(2).await, Reason::NotFound);
    assert_eq!(pair.receiver.status().await.skipped_events, Some(1));

    // It comes again under its key: that has been judged.
    pair.publisher.accepts(adjusted("after", "camera", 1)).await;
    assert_eq!(pair.settles().await.total, 7);
}

/// While it is tried again, too: nobody has to wait for the halt.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_tried_again_can_be_set_aside() {
    let pair = followed(|setup| setup.arg("--apply-attempts").arg("1000000"));
    pair.publisher.accepts(poisoned("bad")).await;
    pair.publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let status = pair.receiver.waits_for_state(ReceiverState::Retrying).await;
    let failure = status.failure.expect("says what it tries");
    assert!(failure.next_attempt_time.is_some() && failure.attempts >= Some(1), "{failure:?}");
    let shown = counterfoil(["status", "--publisher", &pair.publisher.url(), "--receiver"])
        .arg(pair.receiver.url())
        .run();
    for part in ["event 0, key bad, stock.adjusted of \"camera\"", "PAYLOAD", "next at"] {
        assert!(shown.stdout.contains(part), "{part:?} is missing in {shown:?}");
    }
    pair.receiver.skip(0, "a mistake").await.expect("set aside");
    let ledger = pair.settles().await;
    assert_eq!((ledger.rows[0].outcome.as_str(), ledger.total), ("SKIPPED", 3));
}

/// What was set aside is applied later, once it can be; after what came meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_aside_is_applied_later() {
    let mut pair = Pair::start();
    pair.carries(vec![adjusted("k0", "camera", 5)]).await;
    let successor = pair.receiver.successor().arg("--apply-attempts").arg("1");
    let db = pair.receiver.db().to_owned();
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    change(&db, NO_TRIPOD);
    pair.receiver = successor.arg("--on-error").arg("skip").start();
    let later =
        vec![adjusted("t1", "tripod", 2), adjusted("t2", "tripod", 3), adjusted("k3", "camera", 1)];
    pair.carries(later).await;
    let ledger = pair.settles().await;
    assert_eq!(ledger.outcomes(), ["APPLIED", "SKIPPED", "SKIPPED", "APPLIED"]);
    let reason = ledger.rows[1].reason.as_deref().expect("a reason");
    assert!(reason.starts_with("CONSTRAINT: "), "{reason}");
    let refusal = refused(pair.receiver.apply_skipped(2).await, Reason::EventFailed);
    assert!(!refusal.message.contains("RAISE"), "{refusal:?}");

    change(&db, "DROP TRIGGER no");
    let url = pair.receiver.url();
    let command = ["apply-skipped", "--receiver", &url, "2"];
    let applied = counterfoil(command).run();
    assert_eq!(applied.code(), Some(0), "{applied:?}");
    assert!(applied.stdout.contains("APPLIED, after event 3"), "{applied:?}");
    pair.carries(vec![adjusted("k4", "camera", 1)]).await;
    for _ in 0..2 {
        let answer = pair.receiver.apply_skipped(1).await.expect("applied");
        let row = answer.entry.expect("a row");
        assert_eq!((row.outcome(), &*row.reason), (Outcome::Applied, ""));
        assert_eq!(answer.applied_after, Some(4));
    }
    let ledger = pair.settles().await;
    assert_eq!(ledger.outcomes(), ["APPLIED"; 5]);
    assert_eq!((ledger.total, ledger.stock["tripod"]), (12, (5, 2)));
    assert_eq!(pair.receiver.status().await.skipped_events, Some(0));
    let entry = pair.receiver.entry(By::Key("t1".into())).await.expect("a row");
    assert_eq!((entry.sequence, entry.outcome()), (Some(1), Outcome::Applied));
    refused(pair.receiver.skip(1, "too late").await, Reason::WrongState);
    is_equal(&pair);
}

/// A fault in one of 1,000 events costs the other 999 nothing but a few commits.
#[tokio::test(flavor = "multi_thread")]
async fn one_bad_event_of_a_thousand_costs_the_others_a_few_commits() {
    for on_error in ["halt", "skip"] {
        let dir = directory();
        let publisher = Publisher::at(dir.path()).config(ANY).start();
        let mut events = adjustments("k", 999);
        events.insert(500, poisoned("bad"));
        publisher.publish(events).await.expect("accepted");
        let receiver = Receiver::at(dir.path(), &publisher.url())
            .arg("--apply-attempts")
            .arg("1")
            .arg("--on-error")
            .arg(on_error)
            .start();
        if on_error == "halt" {
            halts_at(&receiver, 500).await;
            assert_eq!(receiver.ledger().total, 500, "all before it");
            receiver.skip(500, "bad").await.expect("set aside");
        }
        receiver.applies(999).await;
        let ledger = receiver.ledger();
        assert_eq!((ledger.total, ledger.rows[500].outcome.as_str()), (999, "SKIPPED"));
        let commits = receiver.status().await.commits.expect("always set");
        assert!(commits <= 20, "{commits} commits, {on_error}");
        publisher.waits_for_ack("receiver", 999).await;
    }
}

/// The process dies before and after each of the commits: it is done once or not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_death_while_an_event_is_set_aside_or_applied_later_leaves_nothing_half_done() {
    for point in crash::RECEIVER_SKIPPING {
        println!("{point}");
        let mut pair = Pair::start();
        pair.carries(vec![adjusted("k0", "camera", 5)]).await;
        let sound = pair.receiver.successor().arg("--apply-attempts").arg("1");
        let db = pair.receiver.db().to_owned();
        assert_eq!(pair.receiver.terminate().code(), Some(0));
        change(&db, NO_TRIPOD);
        pair.receiver = sound.clone().dies_at(point, 0).start();
        pair.publisher.accepts(adjusted("t1", "tripod", 2)).await;
        pair.publisher.accepts(adjusted("k2", "camera", 1)).await;
        pair.receiver.waits_for_state(ReceiverState::Halted).await;
        let _ = pair.receiver.skip(1, "no tripods").await;
        if [crash::RECEIVER_BEFORE_LATE_COMMIT, crash::RECEIVER_AFTER_LATE_COMMIT].contains(&point)
        {
            pair.receiver.applies(2).await;
            change(&db, "DROP TRIGGER no");
            pair.receiver.apply_skipped(1).await.expect_err("it dies");
        }
        let ended = pair.receiver.process.ended();
        assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
        let skipped_by_then = point != crash::RECEIVER_BEFORE_SKIP_COMMIT;
        pair.receiver = sound.start();
        if !skipped_by_then {
            pair.receiver.waits_for_state(ReceiverState::Halted).await;
        }
        let row = pair.receiver.skip(1, "no tripods").await;
        if point != crash::RECEIVER_AFTER_LATE_COMMIT {
            assert_eq!(row.expect("set aside").outcome(), Outcome::Skipped);
        }
        pair.receiver.applies(2).await;
        change(&db, "DROP TRIGGER IF EXISTS no");
        let late = pair.receiver.apply_skipped(1).await.expect("applied");
        assert_eq!(late.entry.expect("a row").outcome(), Outcome::Applied);
        let ledger = pair.settles().await;
        assert_eq!((ledger.total, ledger.stock["tripod"]), (8, (2, 1)));
        is_equal(&pair);
    }
}
