//! What the receiver does with what a publisher sends, however wrong it is: each
//! row of the decision table, and what blocks, seen from outside.

use counterfoil::proto::{
    pb::{
        NewEvent, Outcome, ReceiverState, event::Data, get_ledger_entry_request::By, new_event,
        replay_response::Frame,
    },
    refusal::{Reason, Refusal},
};
use rusqlite::Connection;

use crate::harness::{
    events::{adjusted, adjustments, event as new, reserved},
    fake_publisher::{FakePublisher, History, Step, after},
    ledger::Ledger,
    pair::directory,
    receiver::Receiver,
    refusal::refused,
    wait::wait_until,
};

/// An honest publisher of a history.
async fn honest(history: &History) -> FakePublisher {
    let told = history.clone();
    FakePublisher::start(move |n, request| told.honestly(n as i64 + 1, after(request))).await
}

/// Waits until the receiver has stopped, and checks why.
async fn halts(receiver: &Receiver, reason: &str) -> counterfoil::proto::pb::Failure {
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert!(!status.state_detail.is_empty(), "a sentence for a person");
    let failure = status.failure.expect("says what stopped it");
    assert_eq!(failure.reason, reason, "{failure:?}");
    failure
}

/// APP-05 (and APP-02: copies of one event at once): repetitions within a stream
/// and after a reconnect.
#[tokio::test(flavor = "multi_thread")]
async fn app_05_events_that_come_again_have_one_effect() {
    let dir = directory();
    let history = History::of(adjustments("k", 4));
    let told = history.clone();
    let fake = FakePublisher::start(move |n, _| match n {
        0 => vec![told.started(1), told.batch(&[0, 1, 1, 0, 2]), told.batch(&[2]), Step::End],
        1 => vec![
            told.started(2),
            told.batch(&[1]),
            told.batch(&[2]),
            told.batch(&[3]),
            told.caught_up(),
        ],
        _ => vec![told.started(3), told.caught_up()],
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(3).await;
    fake.waits_for_ack(3).await;
    let ledger = receiver.ledger();
    assert_eq!(ledger.outcomes(), ["APPLIED"; 4]);
    assert_eq!((ledger.cursor, ledger.total), (3, 4));
    let status = receiver.status().await;
    assert!(status.failure.is_none(), "a duplicate is no error: {status:?}");
}

/// A key at two places of the log: the publisher should not, the ledger arbitrates.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_at_another_sequence_is_a_duplicate_or_a_conflict_and_no_effect() {
    let dir = directory();
    let history = History::of(vec![
        adjusted("k", "a", 5),
        adjusted("k", "a", 5),
        adjusted("k", "a", 6),
        adjusted("other", "a", 1),
    ]);
    let fake = honest(&history).await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(3).await;
    let ledger = receiver.ledger();
    assert_eq!(ledger.outcomes(), ["APPLIED", "DUPLICATE", "REJECTED", "APPLIED"]);
    assert_eq!(ledger.rows[2].reason.as_deref(), Some("key_conflict"));
    assert_eq!((ledger.cursor, ledger.total), (3, 6));
    let entry = receiver.entry(By::Key("k".into())).await.expect("the row that had the effect");
    assert_eq!((entry.sequence, entry.outcome()), (Some(0), Outcome::Applied));
}

/// Another event at a sequence that is done: nothing is written, and it stops.
#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_sequence_with_other_content_stops_everything() {
    let dir = directory();
    let history = History::of(adjustments("k", 3));
    let mut other = History::of(vec![adjusted("x", "a", 100)]);
    other.log_id = history.log_id;
    let told = history.clone();
    let fake = FakePublisher::start(move |n, _| {
        vec![
            told.started(n as i64 + 1),
            told.batch(&[0, 1, 2]),
            told.batch_of(vec![other.event(0)], 2),
        ]
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    let failure = halts(&receiver, "CONFLICT").await;
    assert_eq!(failure.sequence, Some(0));
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total), (2, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_is_asked_about_once_and_then_stops() {
    let dir = directory();
    let history = History::of(adjustments("k", 5));
    let told = history.clone();
    let fake = FakePublisher::start(move |n, _| {
        vec![told.started(n as i64 + 1), told.batch(&[0, 1]), told.batch(&[3, 4])]
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    let failure = halts(&receiver, "GAP").await;
    assert!(failure.message.contains('2') && failure.message.contains('3'), "{failure:?}");
    assert_eq!(fake.replays().len(), 2, "asked once more");
    assert_eq!(after(&fake.replays()[1]), 1, "from the cursor");
    assert_eq!(receiver.ledger().cursor, 1, "nothing after the gap is written");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gap_that_heals_is_forgotten() {
    let dir = directory();
    let history = History::of(adjustments("k", 9));
    let told = history.clone();
    let fake = FakePublisher::start(move |n, request| match n {
        0 => vec![told.started(1), told.batch(&[0, 1]), told.batch(&[3, 4])],
        1 => vec![told.started(2), told.batch(&[2, 3]), told.batch(&[6, 7])],
        _ => told.honestly(3, after(request)),
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(8).await;
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total, ledger.rows.len()), (8, 9, 9));
}

/// APP-08: an event that cannot be applied blocks, visibly; nothing else does.
#[tokio::test(flavor = "multi_thread")]
async fn app_08_a_poisoned_event_stops_the_receiver_before_it_and_says_so() {
    let dir = directory();
    let poisoned = new("bad", "stock.adjusted", "a", r#"{"delta":1001}"#);
    let mut events = adjustments("k", 3);
    events.push(poisoned);
    events.extend(adjustments("later", 2));
    let history = History::of(events);
    let fake = honest(&history).await;
    let receiver = Receiver::at(dir.path(), &fake.url()).arg("--apply-attempts").arg("3").start();
    let failure = halts(&receiver, "EVENT_FAILED").await;
    assert_eq!((failure.sequence, failure.key.as_str()), (Some(3), "bad"));
    assert_eq!((failure.r#type.as_str(), failure.subject.as_str()), ("stock.adjusted", "a"));
    assert_eq!(failure.attempts, Some(3));
    for part in ["delta", "1001", "-1000", "1000"] {
        assert!(failure.message.contains(part), "{part} is missing in {failure:?}");
    }
    let ledger = receiver.ledger();
    assert_eq!(
        (ledger.cursor, ledger.total),
        (2, 3),
        "all before it, nothing of it, nothing after it"
    );
    assert_eq!(receiver.query("total").await.expect("queries still answer").sequence, Some(2));
    let waiting = receiver
        .client
        .clone()
        .wait_applied(counterfoil::proto::pb::WaitAppliedRequest { sequence: 5 })
        .await;
    refused(waiting, Reason::ReceiverHalted);
    fake.waits_for_ack(2).await;

    // A restart tries again, and says the same.
    let receiver = receiver.restart();
    halts(&receiver, "EVENT_FAILED").await;
    assert_eq!(receiver.ledger().cursor, 2);
}

/// The bad payloads that the inventory knows of, each with its field.
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_wrong_is_named_with_its_field() {
    let cases = [
        ("stock.adjusted", r#"{"delta":"3"}"#, "delta"),
        ("stock.adjusted", r#"{"delta":1.5}"#, "delta"),
        ("stock.adjusted", r#"{"delta":-1001}"#, "delta"),
        ("stock.adjusted", "{}", "delta"),
        ("stock.adjusted", "[1]", "object"),
        ("stock.reserved", r#"{"task":"t","quantity":0,"expected_version":1}"#, "quantity"),
        ("stock.reserved", r#"{"quantity":1,"expected_version":1}"#, "task"),
        ("stock.reserved", r#"{"task":"t","quantity":1}"#, "expected_version"),
    ];
    for (kind, payload, field) in cases {
        let dir = directory();
        let fake = honest(&History::of(vec![new("k", kind, "a", payload)])).await;
        let receiver =
            Receiver::at(dir.path(), &fake.url()).arg("--apply-attempts").arg("1").start();
        let failure = halts(&receiver, "EVENT_FAILED").await;
        assert!(failure.message.contains(field), "{field} is missing in {failure:?}");
        assert_eq!(receiver.ledger().cursor, -1);
    }
}

/// A business rule that says no is an outcome, in its order.
#[tokio::test(flavor = "multi_thread")]
async fn a_business_rejection_moves_the_cursor_and_not_the_effect() {
    let dir = directory();
    let fake = honest(&History::of(vec![
        reserved("r0", "a", "t", 5, 0),
        adjusted("k1", "a", 3),
        reserved("r2", "a", "t", 5, 0),
        reserved("r3", "a", "t", 5, 1),
        reserved("r4", "a", "t", 2, 1),
        reserved("r5", "a", "t", 1, 1),
    ]))
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(5).await;
    let ledger = receiver.ledger();
    let told: Vec<_> = ledger
        .rows
        .iter()
        .map(|row| row.reason.as_deref().unwrap_or(row.outcome.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            "unknown_item",
            "APPLIED",
            "stale_version",
            "insufficient_stock",
            "APPLIED",
            "stale_version"
        ]
    );
    assert_eq!((ledger.total, ledger.stock["a"]), (3, (1, 2)));
    let entry = receiver.entry(By::Key("r4".into())).await.expect("a row");
    let result: serde_json::Value = serde_json::from_str(&entry.result).expect("JSON");
    assert_eq!(result, serde_json::json!({"available": 1, "version": 2}));
    let entry = receiver.entry(By::Sequence(3)).await.expect("a row");
    assert_eq!((entry.outcome(), entry.reason.as_str()), (Outcome::Rejected, "insufficient_stock"));
    refused(receiver.entry(By::Sequence(6)).await, Reason::NotFound);
    refused(receiver.entry(By::Key("nobody".into())).await, Reason::NotFound);
}

/// APP-09: types that nobody handles are noted, and hide nothing.
#[tokio::test(flavor = "multi_thread")]
async fn app_09_an_unknown_type_is_noted_and_the_cursor_goes_on() {
    let dir = directory();
    let binary = NewEvent {
        data: Some(new_event::Data::Binary(vec![255].into())),
        ..new("b", "image.taken", "a", "")
    };
    let fake = honest(&History::of(vec![
        adjusted("k0", "a", 1),
        new("u1", "stock.audited", "a", "[]"),
        binary,
        adjusted("k3", "a", 1),
    ]))
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    fake.waits_for_ack(3).await;
    let ledger = receiver.ledger();
    assert_eq!(ledger.outcomes(), ["APPLIED", "IGNORED", "IGNORED", "APPLIED"]);
    assert_eq!(ledger.total, 2);
    let entry = receiver.entry(By::Sequence(1)).await.expect("kept, with its sequence");
    assert_eq!((entry.key.as_str(), entry.outcome()), ("u1", Outcome::Ignored));
    assert_eq!(receiver.status().await.outcomes["IGNORED"], 2);
}

/// Opens a database with the receiver stopped, to put something in its way.
fn meddle(db: &std::path::Path, sql: &str) {
    let connection = Connection::open(db).expect("the receiver is stopped");
    connection.execute_batch(sql).expect("valid SQL");
}

/// APP-11: a row that the database refuses is no duplicate. SQL-14: whatever fails
/// between effect and commit takes all of it back.
#[tokio::test(flavor = "multi_thread")]
async fn app_11_sql_14_a_failed_statement_fails_the_whole_event() {
    let obstacles = [
        "CREATE TRIGGER no BEFORE UPDATE ON total BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER no BEFORE INSERT ON counterfoil_ledger WHEN NEW.sequence = 1 BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER no BEFORE UPDATE ON counterfoil_cursor BEGIN SELECT RAISE(ABORT, 'no'); END",
        "CREATE TRIGGER no BEFORE UPDATE ON stock BEGIN SELECT RAISE(ROLLBACK, 'no'); END",
        "CREATE TRIGGER no BEFORE INSERT ON counterfoil_ledger WHEN NEW.sequence = 1 BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TRIGGER no BEFORE UPDATE ON counterfoil_cursor BEGIN SELECT RAISE(IGNORE); END",
    ];
    for obstacle in obstacles {
        println!("{obstacle}");
        let dir = directory();
        let mut history = History::of(vec![adjusted("k0", "a", 1)]);
        let fake = honest(&history).await;
        let receiver = Receiver::start(dir.path(), &fake.url());
        receiver.applies(0).await;
        let successor = receiver.successor();
        let db = receiver.db().to_owned();
        assert_eq!(receiver.terminate().code(), Some(0));
        meddle(&db, obstacle);

        history.push(adjusted("k1", "a", 10));
        let longer = honest(&history).await;
        let stopped =
            successor.clone().arg("--apply-attempts").arg("2").publisher(&longer.url()).start();
        stopped.waits_for_state(ReceiverState::Halted).await;
        let ledger = stopped.ledger();
        assert_eq!((ledger.cursor, ledger.total, ledger.rows.len()), (0, 1, 1), "all or nothing");
        assert_eq!(ledger.stock["a"], (1, 1));
        let stderr = stopped.terminate();
        assert_eq!(stderr.code(), Some(0), "{stderr:?}");

        meddle(&db, "DROP TRIGGER no");
        let mended = successor.publisher(&longer.url()).start();
        mended.applies(1).await;
        assert_eq!(mended.ledger().total, 11);
    }
}

/// APP-15: a panic while an event is applied costs one attempt, nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn app_15_a_panic_in_the_transaction_leaves_nothing_half_done() {
    for point in ["receiver-before-commit", "receiver-after-commit"] {
        println!("{point}");
        let dir = directory();
        let fake = honest(&History::of(adjustments("k", 150))).await;
        let panicking =
            Receiver::at(dir.path(), &fake.url()).env("FAILPOINTS", format!("{point}=1*panic"));
        let mut receiver = panicking.start();
        wait_until("it goes on, or ends so that a supervisor starts it again", async || {
            if !receiver.process.runs() {
                return Some(());
            }
            (receiver.try_status().await.ok()?.cursor?.sequence == Some(149)).then_some(())
        })
        .await;
        if !receiver.process.runs() {
            receiver = receiver.restart();
        }
        receiver.applies(149).await;
        fake.waits_for_ack(149).await;
        let ledger = receiver.ledger();
        assert_eq!((ledger.cursor, ledger.total, ledger.rows.len()), (149, 150, 150));
    }
}

/// The part that acknowledges has died: the process says so and ends, so that a
/// supervisor starts it again. What was committed is acknowledged then.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_whose_acks_have_died_ends() {
    let dir = directory();
    let fake = honest(&History::of(adjustments("k", 20))).await;
    let dying = Receiver::at(dir.path(), &fake.url()).env("FAILPOINTS", "receiver-after-ack=panic");
    let mut receiver = dying.start();
    let ended = receiver.process.ended();
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("the task that acknowledges has died"), "{ended:?}");
    let receiver = receiver.successor().sound().start();
    receiver.applies(19).await;
    fake.waits_for_ack(19).await;
}

/// APP-04: of two processes with one name, one goes on, and the cursor never goes back.
#[tokio::test(flavor = "multi_thread")]
async fn app_04_an_older_process_of_the_same_name_gives_up() {
    let dir = directory();
    let other_dir = directory();
    let publisher = crate::harness::publisher::Publisher::start(dir.path());
    let first = Receiver::start(dir.path(), &publisher.url());
    publisher.publish(adjustments("k", 20)).await.expect("accepted");
    publisher.waits_for_ack("receiver", 19).await;
    let second = Receiver::start(other_dir.path(), &publisher.url());
    halts(&first, "RECEIVER_FENCED").await;
    publisher.publish(adjustments("l", 20)).await.expect("accepted");
    second.applies(39).await;
    publisher.waits_for_ack("receiver", 39).await;
    assert_eq!(first.ledger().cursor, 19, "the older one has stopped where it was");
    assert_eq!(second.ledger().cursor, 39);
}

/// Each answer that stops a receiver, with its reason in the status.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_resumed_is_said_and_never_papered_over() {
    let reasons = [
        Reason::LogMismatch,
        Reason::CursorAhead,
        Reason::Diverged,
        Reason::LogNotFound,
        Reason::Corrupt,
    ];
    for reason in reasons {
        let dir = directory();
        let history = History::of(adjustments("k", 2));
        let fake = FakePublisher::start(move |n, request| match n {
            0 => [history.honestly(1, after(request)), vec![Step::End]].concat(),
            _ => vec![Step::Fail(Refusal::new(reason, "no way").with("floor", 7).into())],
        })
        .await;
        let receiver = Receiver::start(dir.path(), &fake.url());
        let failure = halts(&receiver, reason.as_str()).await;
        assert!(failure.message.contains("no way"), "{failure:?}");
        assert_eq!(receiver.ledger().cursor, 1, "what was done stays, nothing is reset");
        assert_eq!(fake.replays().len(), 2, "no hot loop");
    }
}

/// What no publisher may send: nothing of it is applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_lie_is_noticed() {
    let history = History::of(adjustments("k", 3));
    let mut forged = history.event(1);
    forged.data = Some(Data::JsonText(r#"{"delta":999}"#.into()));
    let mut other = History::of(adjustments("z", 3));
    other.log_id = history.log_id;
    let mut other_log = History::of(adjustments("k", 3));
    other_log.push(adjusted("k3", "a", 1));
    let second_batch = |step: Step| vec![history.batch(&[0]), step];
    let with_cursor = |mut step: Step, cursor| {
        if let Step::Send(response) = &mut step
            && let Some(Frame::Batch(batch)) = &mut response.frame
        {
            batch.cursor = Some(cursor);
        }
        step
    };
    let cases = [
        ("CORRUPT", second_batch(history.batch_of(vec![forged], 1))),
        ("DIVERGED", second_batch(with_cursor(history.batch(&[1]), other.cursor(1)))),
        ("DIVERGED", second_batch(with_cursor(history.batch(&[1]), other_log.cursor(1)))),
    ];
    for (reason, steps) in cases {
        let dir = directory();
        let started = history.started(1);
        let fake =
            FakePublisher::start(move |_, _| [vec![started.clone()], steps.clone()].concat()).await;
        let receiver = Receiver::start(dir.path(), &fake.url());
        halts(&receiver, reason).await;
        let ledger: Ledger = receiver.ledger();
        assert!(ledger.cursor <= 0 && ledger.total <= 1, "{reason}: {ledger:?}");
    }
    // Another log under the same address.
    let dir = directory();
    let another = History::of(adjustments("y", 3));
    let fake = FakePublisher::start(move |n, _| match n {
        0 => [history.honestly(1, -1), vec![Step::End]].concat(),
        _ => another.honestly(2, 2),
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    halts(&receiver, "LOG_MISMATCH").await;
    assert_eq!(receiver.ledger().cursor, 2);
}
