//! What became of an intent: its publisher learns it by its key, from what
//! receivers report with their acks.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use counterfoil::proto::{
    crash::{PUBLISHER_AFTER_OUTCOMES, RECEIVER_AFTER_COMMIT},
    limits::{MAX_ACK_OUTCOMES, MAX_UNREPORTED_OUTCOMES},
    pb::{
        AckOutcome, AckRequest, NewEvent, Outcome, ReceiptState, ReceiverOutcome, ReplayRequest,
        replay_request::Start,
    },
    refusal::Reason,
};
use serde_json::{Value as Json, json};
use tonic::Status;

use crate::harness::{
    clock::{HOUR_MS, SteppedClock},
    events::{adjusted, adjustments, cursors, event, first_attempted, rejected, reserved},
    fake_publisher::{FakePublisher, History, after},
    files,
    pair::{Pair, directory},
    process::Launch,
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    wait::wait_until,
};

/// Five cameras, a reservation of two, one of more than are left, and a note.
fn cameras() -> Vec<NewEvent> {
    vec![
        adjusted("stock", "camera", 5),
        reserved("order-1", "camera", "order-1", 2, 1),
        reserved("order-2", "camera", "order-2", 4, 2),
        event("note", "stock.counted", "camera", "{}"),
    ]
}

/// What the receiver of [`cameras`] has to say of each key.
const FATES: [(&str, Outcome, &str, &str); 4] = [
    ("stock", Outcome::Applied, "", ""),
    ("order-1", Outcome::Applied, "", r#"{"available":3,"version":2}"#),
    ("order-2", Outcome::Rejected, "insufficient_stock", r#"{"available":3,"version":2}"#),
    ("note", Outcome::Ignored, "", ""),
];

/// Waits until the last of the fates is known, and checks all: by this receiver alone.
async fn fates_are_known(publisher: &Publisher, receiver: &str) {
    let (last, ..) = FATES[FATES.len() - 1];
    wait_until("the fates are known", async || {
        (!publisher.outcomes(last).await.is_empty()).then_some(())
    })
    .await;
    for (key, outcome, reason, result) in FATES {
        let receipt = publisher.receipt(key).await;
        let told = ReceiverOutcome {
            receiver: receiver.into(),
            outcome: outcome.into(),
            reason: reason.into(),
            result: result.into(),
        };
        assert_eq!(receipt.outcomes, [told], "{key}");
    }
}

/// The same as [`Publisher::outcomes`], for comparison.
fn by(receiver: &str, outcome: Outcome) -> (String, Outcome) {
    (receiver.to_owned(), outcome)
}

async fn session(publisher: &Publisher, receiver: &str) -> i64 {
    let request = ReplayRequest { receiver: receiver.into(), ..Default::default() };
    let replay = publisher.replay(request).await.expect("admitted");
    replay.started.session.expect("always set")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_learns_by_its_key_whether_the_reservation_was_made() {
    let pair = Pair::start();
    pair.carries(cameras()).await;
    fates_are_known(&pair.publisher, "receiver").await;

    let asked = |key: &str| {
        let tool = Launch::new(env!("CARGO_BIN_EXE_counterfoil"));
        tool.args(["receipt", "--json", "--publisher", &pair.publisher.url(), key]).run()
    };
    let told: Json = serde_json::from_str(&asked("order-2").stdout).expect("JSON");
    let fate = json!([{
        "receiver": "receiver",
        "outcome": "REJECTED",
        "reason": "insufficient_stock",
        "result": {"available": 3, "version": 2},
    }]);
    assert_eq!(told["outcomes"], fate);
    let unknown: Json = serde_json::from_str(&asked("order-3").stdout).expect("JSON");
    assert_eq!((&unknown["state"], &unknown["outcomes"]), (&"NEVER_ACCEPTED".into(), &json!([])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_killed_between_commit_and_ack_reports_after_its_restart() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let dying = Receiver::at(dir.path(), &publisher.url()).dies_at(RECEIVER_AFTER_COMMIT, 0);
    let mut receiver = dying.start();
    publisher.publish(cameras()).await.expect("accepted");
    receiver.process.wait_for_end();
    assert_eq!(publisher.outcomes("order-2").await, [], "the ack never left");
    let _receiver = receiver.restart();
    fates_are_known(&publisher, "receiver").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_killed_between_outcomes_and_position_is_told_again() {
    let dir = directory();
    let dying = Publisher::at(dir.path()).dies_at(PUBLISHER_AFTER_OUTCOMES, 0);
    let mut publisher = dying.start();
    publisher.publish(cameras()).await.expect("accepted");
    let _receiver = Receiver::start(dir.path(), &publisher.url());
    publisher.process.wait_for_end();
    assert!(publisher.process.said().contains(PUBLISHER_AFTER_OUTCOMES));
    let publisher = publisher.restart();
    fates_are_known(&publisher, "receiver").await;
}

/// The receipt outlives its event, and what became of it stays beside it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fate_is_known_for_as_long_as_its_receipt() {
    let pair = Pair::with(|setup| setup.config("[logs.main]\nmax_events = 4\nsegment_bytes = 1\n"));
    pair.carries(cameras()).await;
    for batch in ["l", "m"] {
        pair.carries(adjustments(batch, 4)).await;
    }
    let floor = pair.publisher.log().await.floor_sequence;
    assert!(floor >= Some(8), "all four are truncated: {floor:?}");
    fates_are_known(&pair.publisher, "receiver").await;
    let publisher = pair.publisher.restart();
    fates_are_known(&publisher, "receiver").await;
}

/// A key whose receipt has expired is taken for another intent; receivers remember
/// the first, and the caller learns it.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_keys_second_intent_is_rejected_and_its_caller_learns_it() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.main]\nkey_window = \"24h\"\n";
    let publisher = Publisher::at(dir.path()).clock(&clock).config(config).start();
    let receiver = Receiver::start(dir.path(), &publisher.url());
    let pair = Pair { receiver, publisher, dir };
    let intent = || first_attempted(adjusted("order", "camera", 5), clock.now_ms());
    pair.carries(vec![intent()]).await;
    assert_eq!(pair.publisher.outcomes("order").await, [by("receiver", Outcome::Applied)]);

    clock.stands_ahead(25 * HOUR_MS);
    let receipt = wait_until("the receipt has expired", async || {
        let receipt = pair.publisher.receipt("order").await;
        (receipt.state() == ReceiptState::Expired).then_some(receipt)
    })
    .await;
    assert_eq!(receipt.outcomes, []);
    let receipts = pair.carries(vec![intent()]).await;
    let receipt = pair.publisher.receipt("order").await;
    assert_eq!(receipt.receipt.and_then(|found| found.sequence), receipts[0].sequence);
    let told = &receipt.outcomes[0];
    assert_eq!((told.outcome(), &*told.reason), (Outcome::Rejected, "key_conflict"));
}

/// What nobody can ask for any more takes no room.
#[tokio::test(flavor = "multi_thread")]
async fn outcomes_go_with_the_last_receipt_of_their_block() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    // Events are truncated, and segments given back, so that receipts have files.
    let config = "[logs.main]\nkey_window = \"24h\"\nmax_age = \"1h\"\nsegment_bytes = 1\n";
    let publisher = Publisher::at(dir.path()).clock(&clock).config(config).start();
    let now_ms = clock.now_ms();
    let mut receipts = Vec::new();
    for batch in 0..17 {
        let events = adjustments(&format!("k{batch}"), 1_000);
        let timed = events.into_iter().map(|event| first_attempted(event, now_ms));
        receipts.extend(publisher.publish(timed.collect()).await.expect("accepted"));
    }
    let session = session(&publisher, "r").await;
    let (last, cursor) = (receipts.len() as i64 - 1, cursors(&receipts).pop());
    let outcomes = vec![rejected(3), rejected(last)];
    publisher.reports("r", session, &cursor.expect("the last"), outcomes).await.expect("kept");
    let data = publisher.dir().to_owned();
    let blocks = || files::with_extension(&data, "outcomes").len();
    assert_eq!(blocks(), 2, "of the first block, and of the one that is being filled");

    clock.stands_ahead(25 * HOUR_MS);
    wait_until("no receipt is held", async || {
        (publisher.log().await.keys == Some(0)).then_some(())
    })
    .await;
    let again = publisher.successor().clock(&clock);
    assert_eq!(publisher.terminate().code(), Some(0));
    let _publisher = again.start();
    wait_until("the first block's are gone", async || (blocks() == 1).then_some(())).await;
}

/// An older copy of the database does its work again, and comes to the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_restored_receiver_reports_again_what_it_does_again() {
    let mut pair = Pair::start();
    pair.carries(cameras()[..2].to_vec()).await;
    let (again, db) = (pair.receiver.successor(), pair.receiver.db().to_owned());
    let backup = pair.dir.path().join("backup.db");
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    fs::copy(&db, &backup).expect("copied");
    pair.receiver = again.clone().start();
    pair.carries(cameras()[2..].to_vec()).await;
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    fates_are_known(&pair.publisher, "receiver").await;

    fs::copy(&backup, &db).expect("brought back");
    for beside in ["receiver.db-wal", "receiver.db-shm"] {
        let _ = fs::remove_file(pair.dir.path().join(beside));
    }
    pair.receiver = again.start();
    pair.carries(vec![adjusted("later", "camera", 1)]).await;
    fates_are_known(&pair.publisher, "receiver").await;
}

/// A database that was put back is believed also where it now says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_restored_receiver_does_otherwise_replaces_what_it_had_said() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 6)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let first = session(&publisher, "r").await;
    let outcomes = vec![rejected(1), rejected(3), rejected(4)];
    publisher.reports("r", first, &cursors[5], outcomes).await.expect("kept");
    let again = ReplayRequest {
        receiver: "r".into(),
        start: Some(Start::After(cursors[2].clone())),
        ..Default::default()
    };
    let started = publisher.replay(again).await.expect("admitted").started;
    assert_eq!(started.reported_sequence, Some(2));
    assert_eq!(publisher.outcomes("k-1").await, [by("r", Outcome::Rejected)]);
    assert_eq!(publisher.outcomes("k-3").await, [], "not done again yet");
    let second = started.session.expect("always set");
    publisher.reports("r", second, &cursors[5], vec![rejected(4)]).await.expect("kept");
    let publisher = publisher.restart();
    assert_eq!(publisher.outcomes("k-1").await, [by("r", Outcome::Rejected)]);
    assert_eq!(publisher.outcomes("k-3").await, [by("r", Outcome::Applied)]);
    assert_eq!(publisher.outcomes("k-4").await, [by("r", Outcome::Rejected)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_receiver_is_named_once_it_has_got_that_far() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let audit = Receiver::at(dir.path(), &publisher.url()).named("audit").start();
    let shop = Receiver::at(dir.path(), &publisher.url()).named("shop").start();
    publisher.publish(cameras()).await.expect("accepted");
    publisher.waits_for_ack("audit", 3).await;
    publisher.waits_for_ack("shop", 3).await;
    let again = audit.successor();
    assert_eq!(audit.terminate().code(), Some(0));
    publisher.accepts(reserved("order-3", "camera", "order-3", 1, 2)).await;
    publisher.waits_for_ack("shop", 4).await;
    let both = |outcome| [by("audit", outcome), by("shop", outcome)];
    assert_eq!(publisher.outcomes("order-2").await, both(Outcome::Rejected));
    assert_eq!(publisher.outcomes("order-3").await, [by("shop", Outcome::Applied)]);
    let _audit = again.start();
    publisher.waits_for_ack("audit", 4).await;
    assert_eq!(publisher.outcomes("order-3").await, both(Outcome::Applied));
    drop(shop);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_report_and_one_of_an_old_session_change_nothing() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 4)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let old = session(&publisher, "r").await;
    let answer = publisher.reports("r", old, &cursors[1], vec![rejected(1)]).await.expect("kept");
    assert_eq!(answer.reported_sequence, Some(1));
    let new = session(&publisher, "r").await;
    publisher.reports("r", new, &cursors[3], Vec::new()).await.expect("from the beginning");

    refused(
        publisher.reports("r", old, &cursors[3], vec![rejected(2)]).await,
        Reason::ReceiverFenced,
    );
    let late = publisher.reports("r", new, &cursors[2], vec![rejected(2)]).await.expect("answered");
    assert_eq!(late.reported_sequence, Some(3));
    for key in ["k-1", "k-2", "k-3"] {
        assert_eq!(publisher.outcomes(key).await, [by("r", Outcome::Applied)], "{key}");
    }
    // An acknowledgement alone says nothing about outcomes.
    let plain = session(&publisher, "plain").await;
    let answer = publisher.ack("plain", plain, &cursors[3]).await.expect("acknowledged");
    assert_eq!(answer.reported_sequence, Some(-1));
    assert_eq!(publisher.outcomes("k-1").await, [by("r", Outcome::Applied)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_that_makes_no_sense_is_refused_with_its_place() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 4)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let session = session(&publisher, "r").await;
    let skipped = AckOutcome { outcome: Outcome::Skipped.into(), ..rejected(2) };
    let unnamed = AckOutcome { outcome: 0, ..rejected(2) };
    let cases = [
        ("reported_sequence", None, vec![rejected(0)]),
        ("reported_sequence", Some(3), vec![]),
        ("outcomes[1].sequence", Some(2), vec![skipped.clone(), rejected(1)]),
        ("outcomes[0].sequence", Some(1), vec![rejected(2)]),
        ("outcomes[1].outcome", Some(2), vec![rejected(0), unnamed]),
    ];
    for (field, reported_sequence, outcomes) in cases {
        let cursor = Some(cursors[2].clone());
        let receiver = "r".to_owned();
        let request = AckRequest {
            receiver,
            session,
            cursor,
            outcomes,
            reported_sequence,
            ..Default::default()
        };
        let refusal = refused(publisher.asks_ack(request).await, Reason::InvalidField);
        assert_eq!(refusal.fields, [field]);
    }
    assert_eq!(publisher.outcomes("k-2").await, [], "none of it counted");
    publisher
        .reports("r", session, &cursors[2], vec![skipped])
        .await
        .expect("this one makes sense");
    assert_eq!(publisher.outcomes("k-2").await, [by("r", Outcome::Skipped)]);
}

/// Acks fail for long: what has piled up, more than the receiver keeps in memory, is
/// reported at once, in parts that fit.
#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_is_reported_in_parts_and_without_a_hole() {
    let dir = directory();
    let count = MAX_UNREPORTED_OUTCOMES as i64 + 500;
    let notes = (0..count).map(|n| event(&format!("k{n}"), "stock.counted", "camera", "{}"));
    let history = History::of(notes.collect());
    let told = history.clone();
    let fake = FakePublisher::start(move |n, request| {
        let mut steps = told.honestly(n as i64 + 1, after(request));
        steps[0] = told.started_keeping(n as i64 + 1, -1);
        steps
    })
    .await;
    let outage = Arc::new(AtomicI64::new(1));
    let passed = outage.clone();
    fake.answers_acks(move |_, _| match passed.load(Ordering::Relaxed) {
        0 => Ok(()),
        _ => Err(Status::unavailable("an outage")),
    });
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(count - 1).await;
    let failed = fake.acks().len();
    outage.store(0, Ordering::Relaxed);
    let acks = wait_until("all is reported", async || {
        let acks = fake.acks();
        (acks.last()?.reported_sequence == Some(count - 1)).then_some(acks)
    })
    .await;
    // Some may have failed until the outage was over. What was answered fits together.
    let mut reported = Vec::new();
    for ack in acks.into_iter().skip(failed) {
        assert!(ack.outcomes.len() <= MAX_ACK_OUTCOMES, "{}", ack.outcomes.len());
        if ack.outcomes.first().map(|told| told.sequence) == Some(0) {
            reported.clear();
        }
        assert!(ack.outcomes.iter().all(|told| told.outcome() == Outcome::Ignored));
        reported.extend(ack.outcomes.iter().map(|told| told.sequence));
        assert_eq!(ack.reported_sequence, reported.last().copied());
    }
    assert_eq!(reported, (0..count).collect::<Vec<_>>());
}

/// A key that comes again with the same content, and again with other content.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_came_again_is_reported_as_what_it_was() {
    let dir = directory();
    let again = vec![
        adjusted("k", "a", 1),
        adjusted("k", "a", 1),
        adjusted("k", "a", 2),
        adjusted("l", "a", 1),
    ];
    let history = History::of(again);
    let told = history.clone();
    let fake = FakePublisher::start(move |n, request| {
        let mut steps = told.honestly(n as i64 + 1, after(request));
        steps[0] = told.started_keeping(n as i64 + 1, -1);
        steps
    })
    .await;
    let _receiver = Receiver::start(dir.path(), &fake.url());
    fake.waits_for_ack(3).await;
    let reported: Vec<_> = fake.acks().into_iter().flat_map(|ack| ack.outcomes).collect();
    let words: Vec<_> =
        reported.iter().map(|told| (told.sequence, told.outcome(), told.reason.as_str())).collect();
    assert_eq!(words, [(1, Outcome::Duplicate, ""), (2, Outcome::Rejected, "key_conflict")]);
}

/// A publisher of an earlier version says nothing of outcomes, and is told nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_keeps_no_outcomes_gets_plain_acks() {
    let dir = directory();
    let history = History::of(cameras());
    let told = history.clone();
    let fake =
        FakePublisher::start(move |n, request| told.honestly(n as i64 + 1, after(request))).await;
    let _receiver = Receiver::start(dir.path(), &fake.url());
    let ack = fake.waits_for_ack(3).await;
    assert_eq!((ack.outcomes, ack.reported_sequence), (Vec::new(), None));
}
