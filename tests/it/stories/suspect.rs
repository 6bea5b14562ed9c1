//! Receivers that have seen more or other history than the publisher holds: never served
//! as if nothing were, never waited for, and said at both ends.

use std::time::{Duration, Instant};

use counterfoil::proto::{
    pb::{
        Cursor, Log, LogState, PublishOutcome, ReceiverState, ReplayRequest, replay_request::Start,
    },
    refusal::Reason,
};
use uuid::Uuid;

use crate::harness::{
    events::{adjusted, adjustments, cursors},
    files::put_copy,
    pair::directory,
    publish_stream::PublishStream,
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    tools::counterfoil,
};

/// Both ends say what happened within this time.
const SOON: Duration = Duration::from_secs(2);

/// The cursors that fit no place of a log with these, one for each reason.
fn misfits(cursors: &[Cursor]) -> [(Reason, Cursor); 3] {
    let last = cursors.last().expect("some").clone();
    let foreign = Cursor { log_id: Uuid::new_v4().to_string(), ..last.clone() };
    let ahead = Cursor { sequence: Some(50), ..last.clone() };
    let diverged = Cursor { chain: vec![7; 32].into(), ..last };
    [(Reason::LogMismatch, foreign), (Reason::CursorAhead, ahead), (Reason::Diverged, diverged)]
}

/// The receivers that a log shows as suspects, with reason and what they have seen.
fn suspects(log: &Log) -> Vec<(&str, &str, &Cursor)> {
    let told = log.suspects.iter().map(|suspect| {
        assert!(suspect.time.is_some(), "{suspect:?}");
        (&*suspect.receiver, &*suspect.reason, suspect.seen.as_ref().expect("a cursor"))
    });
    let told: Vec<_> = told.collect();
    let state = if told.is_empty() { LogState::Active } else { LogState::Suspect };
    assert_eq!(log.state(), state, "{log:?}");
    assert_eq!(log.state_detail.is_empty(), told.is_empty(), "a sentence for a person: {log:?}");
    told
}

/// LOG-06, and its neighbours.
#[tokio::test(flavor = "multi_thread")]
async fn each_misfit_at_a_replay_ends_in_its_reason_and_is_shown_until_it_is_over() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let cursors = cursors(&receipts);
    for (reason, misfit) in misfits(&cursors) {
        let look =
            ReplayRequest { start: Some(Start::After(misfit.clone())), ..Default::default() };
        refused(publisher.replay(look).await.map(drop), reason);
        assert_eq!(suspects(&publisher.log().await), [], "a look makes nobody suspicious");

        let began = Instant::now();
        for _ in 0..3 {
            refused(publisher.follows("shop", Some(&misfit)).await.map(drop), reason);
        }
        let log = publisher.log().await;
        assert_eq!(suspects(&log), [("shop", reason.as_str(), &misfit)]);
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        assert!(log.state_detail.contains("shop"), "{log:?}");
        assert_eq!(log.receivers, [], "it is not known for that");
        publisher.accepts(adjusted(&format!("still-{reason:?}"), "a", 1)).await;
        assert_eq!(publisher.process.said().matches("SUSPECT").count(), 1, "said once");

        publisher = publisher.restart();
        let log = publisher.log().await;
        assert_eq!(suspects(&log), [("shop", reason.as_str(), &misfit)], "a restart forgets none");
        assert_eq!(publisher.process.said().matches("SUSPECT").count(), 1, "and says so");
        publisher.follows("shop", Some(&cursors[2])).await.expect("a cursor that fits");
        assert_eq!(suspects(&publisher.log().await), []);
        publisher = publisher.restart();
        assert_eq!(suspects(&publisher.log().await), []);
        let url = publisher.url();
        let remove = ["remove-receiver", "--publisher", &url, "shop", "--confirm", "shop"];
        assert_eq!(counterfoil(remove).run().code(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_misfit_at_an_ack_ends_in_its_reason_and_is_shown_until_it_is_over() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let cursors = cursors(&receipts);
    for (reason, misfit) in misfits(&cursors) {
        let frames = publisher.follows("shop", Some(&cursors[1])).await.expect("admitted");
        let session = frames.started.session.expect("always set");
        assert_eq!(suspects(&publisher.log().await), []);
        refused(publisher.ack("shop", session, &misfit).await, reason);
        let log = publisher.log().await;
        assert_eq!(suspects(&log), [("shop", reason.as_str(), &misfit)]);
        assert_eq!(log.receivers[0].acked.as_ref(), Some(&cursors[1]), "nothing is believed");
        // Somebody who holds an old session makes nobody suspicious.
        let again = publisher.follows("shop", Some(&cursors[1])).await.expect("admitted");
        refused(publisher.ack("shop", session, &misfit).await, Reason::ReceiverFenced);
        refused(publisher.ack("typo", session, &misfit).await, Reason::NotFound);
        assert_eq!(suspects(&publisher.log().await), []);
        drop((frames, again));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_refuses_takes_no_new_events_while_one_has_seen_more() {
    let dir = directory();
    let config = "[logs.main]\non_ahead = \"refuse_publish\"\n";
    let publisher = Publisher::at(dir.path()).config(config).start();
    let receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let [_, (_, ahead), _] = misfits(&cursors);
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);

    let refusal =
        refused(publisher.publish(vec![adjusted("new", "a", 1)]).await, Reason::LogSuspect);
    assert_eq!(refusal.numbers["receivers"], "shop");
    assert_eq!((refusal.number("sequence"), refusal.number("next")), (50, 5));
    assert!(refusal.message.contains("publisher fork"), "what to do: {refusal:?}");
    let repeat = publisher.publish(adjustments("k", 5)).await.expect("known");
    assert!(repeat.iter().all(|receipt| receipt.outcome() == PublishOutcome::Duplicate));
    refused(publisher.publish(vec![adjusted("k-0", "a", 9)]).await, Reason::KeyConflict);
    let mut stream = PublishStream::open(&publisher.client).await.expect("open");
    refused(stream.publish(vec![adjusted("new", "a", 1)]).await, Reason::LogSuspect);
    assert_eq!(publisher.everything().await.len(), 5, "they can be read");
    assert_eq!(publisher.log().await.next_sequence, Some(5));

    let publisher = publisher.restart();
    refused(publisher.publish(vec![adjusted("new", "a", 1)]).await, Reason::LogSuspect);
    publisher.follows("shop", Some(&cursors[4])).await.expect("its database was put back");
    assert_eq!(publisher.accepts(adjusted("new", "a", 1)).await.sequence, Some(5));
}

/// What cannot be kept halts the log, as any failed write does; the receiver is told all the
/// same, and is suspicious again once the log is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_while_a_suspect_is_kept_halts_the_log() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let [_, (_, ahead), _] = misfits(&cursors(&receipts));
    // What stands in the way of the file.
    let in_the_way = publisher.dir().join("logs/main/suspects.tmp");
    std::fs::create_dir(&in_the_way).expect("created");
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);
    let log = publisher.log().await;
    assert_eq!((log.state(), log.suspects.len()), (LogState::Halted, 0), "{log:?}");
    refused(publisher.publish(vec![adjusted("new", "a", 1)]).await, Reason::LogHalted);
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);

    let again = publisher.successor();
    assert_eq!(publisher.terminate().code(), Some(0));
    assert_eq!(again.clone().refuses().code(), Some(1));
    assert_eq!(Publisher::recover(dir.path()).code(), Some(0));
    let publisher = again.start();
    refused(publisher.follows("shop", Some(&ahead)).await.map(drop), Reason::CursorAhead);
    assert_eq!(suspects(&publisher.log().await), [("shop", "CURSOR_AHEAD", &ahead)]);
    // A recovery keeps who is suspicious.
    let again = publisher.successor();
    let marker = publisher.dir().join("logs/main/HALTED");
    assert_eq!(publisher.terminate().code(), Some(0));
    std::fs::write(marker, "a test\n").expect("written");
    assert_eq!(Publisher::recover(dir.path()).code(), Some(0));
    assert_eq!(suspects(&again.start().log().await), [("shop", "CURSOR_AHEAD", &ahead)]);
}

/// The directory is put back under a live receiver, and other events get the numbers that
/// it has seen: it applies none of them, and both ends say why.
#[tokio::test(flavor = "multi_thread")]
async fn an_older_copy_of_the_publisher_is_noticed_at_both_ends() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let (again, data) = (publisher.successor(), publisher.dir().to_owned());
    let backup = dir.path().join("backup");
    assert_eq!(publisher.terminate().code(), Some(0));
    put_copy(&data, &backup);

    let mut publisher = again.clone().start();
    let receiver = Receiver::start(dir.path(), &publisher.url());
    publisher.publish(adjustments("l", 5)).await.expect("accepted");
    publisher.waits_for_ack("receiver", 9).await;
    let seen = publisher.acked("receiver").await.expect("acknowledged");
    publisher.process.kill();
    put_copy(&backup, &data);

    let publisher = again.start();
    // Whoever comes first: the numbers are used again before anybody knows better.
    publisher.publish(adjustments("other", 3)).await.expect("accepted");
    let log = crate::harness::wait::wait_until("the log is SUSPECT", async || {
        let log = publisher.log().await;
        (log.state() == LogState::Suspect).then_some(log)
    })
    .await;
    let began = Instant::now();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert!(began.elapsed() < SOON, "the other end says so, too: {:?}", began.elapsed());
    assert_eq!(status.failure.expect("why").reason, "CURSOR_AHEAD");
    assert_eq!(suspects(&log), [("receiver", "CURSOR_AHEAD", &seen)]);
    assert!(log.state_detail.contains("up to 9, and this log ends before 8"), "{log:?}");
    assert_eq!(receiver.ledger().total, 10, "nothing is taken back, nothing is reset");

    // Past what it has seen, it is another history under the same numbers.
    publisher.publish(adjustments("more", 20)).await.expect("accepted");
    let receiver = receiver.restart();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "DIVERGED");
    assert_eq!(suspects(&publisher.log().await), [("receiver", "DIVERGED", &seen)]);
    assert_eq!(receiver.ledger().total, 10);

    let (publisher_url, receiver_url) = (publisher.url(), receiver.url());
    let both = ["--publisher", &publisher_url, "--receiver", &receiver_url];
    let screen = counterfoil(["status"]).args(both).run();
    assert_eq!(screen.code(), Some(1), "{screen:?}");
    for part in ["SUSPECT", "HALTED", "receiver receiver has seen other events", "publisher fork"] {
        assert!(screen.stdout.contains(part), "{part:?} is missing: {screen:?}");
    }
    let told = counterfoil(["status", "--json"]).args(both).run();
    let told: serde_json::Value = serde_json::from_str(&told.stdout).expect("JSON");
    let suspect = &told["publisher"]["log"]["suspects"][0];
    assert_eq!((&suspect["reason"], &suspect["seen"]["sequence"]), (&"DIVERGED".into(), &9.into()));
}
