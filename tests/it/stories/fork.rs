//! `publisher fork`: after an older copy was put back, numbers go on above everything any
//! receiver has seen, without a hole, and who has seen nothing of what is lost goes on.

use std::fs;

use counterfoil::proto::{
    crash,
    pb::{Cursor, Event, LogState, Outcome, PublishOutcome, ReceiverState},
    refusal::Reason,
};
use prost::Message as _;

use crate::harness::{
    events::{adjusted, adjustments, cursors, event, sequences},
    files::{put_copy, with_extension},
    pair::directory,
    process::Ended,
    publisher::{Publisher, Setup},
    receiver::Receiver,
    refusal::refused,
    snapshot::{Content, Snapshots},
    tools::{has, skip, strace},
};

/// A stopped publisher whose directory was put back to 5 events while receiver `ahead` had
/// seen 10, and has said so; `near` had seen 5.
struct Restored {
    again: Setup,
    /// The cursors after each event, as they were.
    seen: Vec<Cursor>,
    dir: tempfile::TempDir,
}

impl Restored {
    async fn with(config: &str, lost: usize) -> Restored {
        let dir = directory();
        let publisher = Publisher::at(dir.path()).config(config).start();
        let mut receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
        publisher.follows("near", None).await.expect("known");
        let (again, data) = (publisher.successor(), publisher.dir().to_owned());
        let backup = dir.path().join("backup");
        assert_eq!(publisher.terminate().code(), Some(0));
        put_copy(&data, &backup);
        let publisher = again.clone().start();
        for n in (0..lost).step_by(1_000) {
            let some = adjustments(&format!("l{n}"), (lost - n).min(1_000));
            receipts.extend(publisher.publish(some).await.expect("accepted"));
        }
        assert_eq!(publisher.terminate().code(), Some(0));
        put_copy(&backup, &data);

        let seen = cursors(&receipts);
        let publisher = again.clone().start();
        let ahead = publisher.follows("ahead", seen.last()).await.map(drop);
        refused(ahead, Reason::CursorAhead);
        assert_eq!(publisher.terminate().code(), Some(0));
        Restored { again, seen, dir }
    }

    fn fork(&self, flags: &[&str]) -> Ended {
        Publisher::fork(self.dir.path(), flags)
    }
}

fn said(ended: &Ended, part: &str) {
    let Ended { stdout, stderr, .. } = ended;
    assert!(stdout.contains(part) || stderr.contains(part), "{part:?} is missing: {ended:?}");
}

/// The events that stand for lost ones: they are whole, and say of which log.
fn stand_for_lost(events: &[Event], log_id: &str) {
    for event in events {
        assert_eq!(event.r#type, "counterfoil.lost");
        let sequence = event.sequence.expect("always set");
        assert_eq!(event.key, format!("counterfoil.lost/{log_id}/{sequence}"));
        let whole = counterfoil::proto::wire::replayed(event.encode_to_vec().into());
        assert_eq!(whole.expect("a whole event").sequence, sequence);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_events_start_above_what_was_seen_and_who_has_seen_nothing_lost_goes_on() {
    let config = "[logs.main]\non_ahead = \"refuse_publish\"\n";
    let restored = Restored::with(config, 5).await;
    let old_id = restored.seen[0].log_id.clone();
    let forked = restored.fork(&[]);
    assert_eq!(forked.code(), Some(0), "{forked:?}");
    said(&forked, "the next event gets 10");
    said(&forked, "events 5 to 9 are lost");

    let publisher = restored.again.clone().start();
    let log = publisher.log().await;
    assert_ne!(log.log_id, old_id);
    assert_eq!(log.next_sequence, Some(10));
    let ancestors: Vec<_> =
        log.ancestors.iter().map(|one| (&*one.log_id, one.last_sequence)).collect();
    assert_eq!(ancestors, [(&*old_id, Some(4))]);
    let everything = publisher.everything().await;
    assert_eq!(sequences(&everything), (0..10).collect::<Vec<_>>(), "no hole");
    stand_for_lost(&everything[5..], &old_id);

    // Who has seen nothing of what is lost: at the same place, under the new identity.
    let mut frames = publisher.follows("near", Some(&restored.seen[4])).await.expect("admitted");
    let place = Cursor { log_id: log.log_id.clone(), ..restored.seen[4].clone() };
    assert_eq!(frames.started.log_id, log.log_id);
    assert_eq!(frames.started.cursor.as_ref(), Some(&place));
    assert_eq!(sequences(&frames.events(5).await.expect("events")), [5, 6, 7, 8, 9]);
    let session = frames.started.session.expect("always set");
    let acked = publisher.ack("near", session, &restored.seen[4]).await.expect("also with the old");
    assert_eq!(acked.acked, Some(place));

    // Who has: it waits for a person, and holds up nobody.
    let beyond = publisher.follows("ahead", Some(&restored.seen[7])).await.map(drop);
    let refusal = refused(beyond, Reason::LogMismatch);
    assert_eq!((refusal.number("last_sequence"), refusal.number("sequence")), (4, 7));
    refused(publisher.ack("near", session, &restored.seen[9]).await, Reason::LogMismatch);
    let log = publisher.log().await;
    assert_eq!(log.state(), LogState::Suspect);
    assert!(log.state_detail.contains("counterfoil resync"), "{log:?}");

    // Lost intents are repeated by their producers, and get new numbers; known ones do not.
    let known = publisher.publish(adjustments("k", 5)).await.expect("known");
    assert!(known.iter().all(|receipt| receipt.outcome() == PublishOutcome::Duplicate));
    let again = publisher.publish(adjustments("l0", 5)).await.expect("accepted");
    assert_eq!(again[0].sequence, Some(10));
    assert_eq!(sequences(&frames.events(5).await.expect("events")), [10, 11, 12, 13, 14]);
    // A fork of the fork remembers both.
    let config = publisher.successor();
    assert_eq!(publisher.terminate().code(), Some(0));
    assert_eq!(restored.fork(&["--from", "20"]).code(), Some(0));
    let publisher = config.start();
    let last: Vec<_> =
        publisher.log().await.ancestors.iter().map(|one| one.last_sequence).collect();
    assert_eq!(last, [Some(14), Some(4)]);
    publisher.follows("near", Some(&restored.seen[4])).await.expect("still the same history");
    assert_eq!(publisher.accepts(adjusted("new", "a", 1)).await.sequence, Some(20));
    let check = Publisher::check(restored.dir.path());
    assert_eq!(check.code(), Some(3), "in use: {check:?}");
}

/// A receiver takes what stands for lost events as any other type it does not handle.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_ignores_what_stands_for_lost_events() {
    let restored = Restored::with("", 5).await;
    assert_eq!(restored.fork(&[]).code(), Some(0));
    let publisher = restored.again.clone().start();
    let receiver = Receiver::start(restored.dir.path(), &publisher.url());
    publisher.waits_for_ack("receiver", 9).await;
    let ledger = receiver.ledger();
    ledger.check(&publisher.accepted().await, Some(9));
    let key = format!("counterfoil.lost/{}/7", restored.seen[0].log_id);
    crate::harness::wait::wait_until("its outcome is known", async || {
        let told = publisher.outcomes(&key).await;
        (told == [("receiver".to_owned(), Outcome::Ignored)]).then_some(())
    })
    .await;
}

/// Two receivers, one stopped before what is lost and one that has applied it: after the fork
/// the one goes on by itself, the other stops, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_goes_on_by_itself_or_stops_by_what_it_has_seen() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let near = Receiver::at(dir.path(), &publisher.url()).named("near");
    let ahead = Receiver::at(dir.path(), &publisher.url()).named("ahead");
    let running = near.clone().start();
    publisher.waits_for_ack("near", 4).await;
    assert_eq!(running.terminate().code(), Some(0));
    let (again, data) = (publisher.successor(), publisher.dir().to_owned());
    let backup = dir.path().join("backup");
    assert_eq!(publisher.terminate().code(), Some(0));
    put_copy(&data, &backup);

    let publisher = again.clone().start();
    publisher.publish(adjustments("l", 5)).await.expect("accepted");
    let ahead = ahead.start();
    publisher.waits_for_ack("ahead", 9).await;
    assert_eq!(publisher.terminate().code(), Some(0));
    put_copy(&backup, &data);
    let publisher = again.clone().start();
    let status = ahead.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "CURSOR_AHEAD");
    assert_eq!(publisher.terminate().code(), Some(0));

    let forked = Publisher::fork(dir.path(), &[]);
    said(&forked, "the next event gets 10");
    let publisher = again.start();
    publisher.publish(adjustments("m", 3)).await.expect("accepted");
    let near = near.start();
    publisher.waits_for_ack("near", 12).await;
    near.waits_for_state(ReceiverState::Live).await;
    let ledger = near.ledger();
    ledger.check(&publisher.accepted().await, Some(12));
    assert_eq!((ledger.cursor, ledger.total), (12, 8), "five before, three after, none lost");
    let acked = publisher.acked("near").await.expect("acknowledged");
    assert_eq!(acked.log_id, publisher.log().await.log_id, "it has adopted the new identity");

    let ahead = ahead.restart();
    let status = ahead.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "LOG_MISMATCH");
    assert_eq!(ahead.ledger().total, 10, "nothing new is taken for what it has seen");
    assert_eq!(publisher.log().await.state(), LogState::Suspect);
    assert_eq!(publisher.accepts(adjusted("n", "a", 1)).await.sequence, Some(13));
}

/// Snapshots of before stay as far as the histories are one; no snapshot of what is lost is
/// given to anybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_before_is_good_for_as_far_as_the_histories_are_one() {
    let restored = Restored::with("", 5).await;
    let publisher = restored.again.clone().start();
    let (common, lost) = (Content::new(1, 5_000), Content::new(2, 5_000));
    let common_at = common.at(&restored.seen[3]);
    Snapshots::of(&publisher).store(&common_at, &common).await.expect("stored");
    assert_eq!(publisher.terminate().code(), Some(0));
    assert_eq!(restored.fork(&[]).code(), Some(0));

    let publisher = restored.again.clone().start();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.list().await, std::slice::from_ref(&common_at));
    assert_eq!(publisher.log().await.snapshot.as_ref(), Some(&restored.seen[3]));
    snapshots.downloads(&common_at, &common, 0).await.expect("whole");
    let beyond = snapshots.offer(&lost.at(&restored.seen[8])).await.map(drop);
    refused(beyond, Reason::LogMismatch);
    let log = publisher.log().await;
    let new = Content::new(3, 5_000);
    let new_at = new.at(&log.head.expect("a head"));
    snapshots.store(&new_at, &new).await.expect("stored");
    assert_eq!(snapshots.places().await, [9, 3]);
}

/// It dies at every place, and the next run completes it; nothing is served before.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_died_is_completed_by_the_next() {
    let passes = crash::FORK.iter().map(|&point| (point, 0));
    for (point, after) in passes.chain([(crash::PUBLISHER_AFTER_FORK_EVENTS, 1)]) {
        println!("{point}, after {after} passes");
        let restored = Restored::with("", 2_500).await;
        let died = Publisher::fork_dies_at(restored.dir.path(), point, after);
        assert!(died.by_signal() && died.stderr.contains(point), "{died:?}");
        let refused = restored.again.clone().refuses();
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        said(&refused, "publisher fork");
        let appended = point != crash::PUBLISHER_AFTER_FORK_INTENT;
        if appended {
            let other = restored.fork(&["--from", "3000"]);
            assert_eq!(other.code(), Some(2), "{other:?}");
            said(&other, "a fork to 2505 has begun");
        }

        let completed = restored.fork(&[]);
        assert_eq!(completed.code(), Some(0), "{completed:?}");
        assert_eq!(Publisher::check(restored.dir.path()).code(), Some(0));
        let publisher = restored.again.clone().start();
        let old_id = &restored.seen[0].log_id;
        let everything = publisher.everything().await;
        assert_eq!(sequences(&everything), (0..2_505).collect::<Vec<_>>());
        stand_for_lost(&everything[5..], old_id);
        let log = publisher.log().await;
        let ancestors: Vec<_> =
            log.ancestors.iter().map(|one| (&*one.log_id, one.last_sequence)).collect();
        assert_eq!(ancestors, [(&**old_id, Some(4))], "once");
        publisher.follows("near", Some(&restored.seen[4])).await.expect("admitted");
        assert_eq!(publisher.accepts(adjusted("new", "a", 1)).await.sequence, Some(2_505));
    }
}

/// SIGKILL at the n-th call of one kind. Says whether it came to its end before, and else
/// whether it had begun.
async fn fork_is_killed_at(restored: &Restored, call: &str, n: usize) -> Option<bool> {
    println!("{call}, number {n}");
    let (dir, old_id) = (restored.dir.path(), &restored.seen[0].log_id);
    let (only, inject) =
        (format!("trace={call}"), format!("inject={call}:signal=SIGKILL:when={n}"));
    let killing = strace(&dir.join("strace"), &["-e", &only, "-e", &inject]);
    let killed = Publisher::fork_wrapped(dir, &killing);
    if killed.code() == Some(0) {
        return None;
    }
    assert!(killed.by_signal(), "{killed:?}");
    let begun = dir.join("publisher/logs/main/forking").exists();
    if begun {
        said(&restored.again.clone().refuses(), "publisher fork");
    }
    let completed = restored.fork(&[]);
    assert_eq!(completed.code(), Some(0), "{completed:?}");
    let publisher = restored.again.clone().start();
    let everything = publisher.everything().await;
    assert_eq!(sequences(&everything), (0..10).collect::<Vec<_>>());
    stand_for_lost(&everything[5..], old_id);
    // One that was killed when all was done has been forked once more.
    let log = publisher.log().await;
    let first = log.ancestors.last().expect("an ancestor");
    assert_eq!((&first.log_id, first.last_sequence), (old_id, Some(4)), "{log:?}");
    assert!(log.ancestors.len() == 1 || !begun, "{log:?}");
    publisher.follows("near", Some(&restored.seen[4])).await.expect("admitted");
    Some(begun)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_killed_at_every_call_that_changes_a_file() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let restored = Restored::with("", 5).await;
    let (data, before) =
        (restored.dir.path().join("publisher"), restored.dir.path().join("before"));
    put_copy(&data, &before);
    let (mut killed, mut begun) = (0, 0);
    for call in ["write", "pwrite64", "fsync", "fdatasync", "ftruncate", "rename", "unlink"] {
        for n in 1..50 {
            put_copy(&before, &data);
            let Some(had_begun) = fork_is_killed_at(&restored, call, n).await else { break };
            killed += 1;
            begun += usize::from(had_begun);
        }
    }
    assert!(killed > 20 && begun > 10, "{begun} of {killed} calls were made while it had begun");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_is_refused_and_changes_nothing() {
    let restored = Restored::with("", 5).await;
    let data = restored.dir.path().join("publisher");
    let before = crate::harness::files::contents(&data);
    for (flags, part) in [
        (&["--from", "9"][..], "it must be 10 or more, since receiver ahead has seen"),
        (&["--from", "20000000"], "at most 10000000 are allowed"),
        (&["--from", "-1"], "-1"),
        (&["--log", "other"], "there is no such log"),
    ] {
        let refused = restored.fork(flags);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        said(&refused, part);
        assert_eq!(crate::harness::files::contents(&data), before, "{flags:?}");
    }
    let publisher = restored.again.clone().start();
    let own = publisher.publish(vec![event("k", "counterfoil.lost", "a", "{}")]).await;
    assert_eq!(refused(own, Reason::InvalidField).fields, ["events[0].type"]);
    let in_use = restored.fork(&[]);
    assert_eq!(in_use.code(), Some(3), "{in_use:?}");
}

/// Receipts follow the log through a fork, also where their files have to be made anew.
#[tokio::test(flavor = "multi_thread")]
async fn receipts_are_made_anew_after_a_fork() {
    // Segments and receipts files come with every publish.
    let restored = Restored::with("[logs.main]\nmax_events = 10\nsegment_bytes = 1\n", 5).await;
    assert_eq!(restored.fork(&[]).code(), Some(0));
    let publisher = restored.again.clone().start();
    for n in 0..12 {
        publisher.accepts(adjusted(&format!("new-{n}"), "a", 1)).await;
    }
    let data = publisher.dir().to_owned();
    crate::harness::wait::wait_until("some receipts stand in files alone", async || {
        (!with_extension(&data, "receipts").is_empty()).then_some(())
    })
    .await;
    let again = publisher.successor();
    assert_eq!(publisher.terminate().code(), Some(0));
    let log_dir = restored.dir.path().join("publisher/logs/main");
    fs::remove_file(log_dir.join("receipts")).expect("the list of receipts files");
    let refused = again.clone().refuses();
    said(&refused, "rebuild-receipts");
    let rebuilt = Publisher::rebuild_receipts(restored.dir.path(), &[]);
    assert_eq!(rebuilt.code(), Some(0), "{rebuilt:?}");
    let publisher = again.start();
    for key in ["k-0", "k-4", "new-0", "new-11"] {
        let receipt = publisher.receipt(key).await;
        assert!(receipt.receipt.is_some(), "{key}: {receipt:?}");
    }
}

/// The copy from before a fork is put back, and forked again: who follows the first fork has
/// seen a log that is no ancestor of the second, and holds up nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_fork_of_the_same_copy_settles_who_has_followed_the_first() {
    let config = "[logs.main]\non_ahead = \"refuse_publish\"\n";
    let restored = Restored::with(config, 5).await;
    let data = restored.dir.path().join("publisher");
    let before = restored.dir.path().join("before");
    put_copy(&data, &before);
    assert_eq!(restored.fork(&[]).code(), Some(0));
    let publisher = restored.again.clone().start();
    publisher.publish(adjustments("m", 90)).await.expect("accepted");
    let first_fork = publisher.log().await.head.expect("a head");
    assert_eq!(publisher.terminate().code(), Some(0));

    put_copy(&before, &data);
    let publisher = restored.again.clone().start();
    let foreign = publisher.follows("near", Some(&first_fork)).await.map(drop);
    refused(foreign, Reason::LogMismatch);
    refused(publisher.publish(vec![adjusted("n", "a", 1)]).await, Reason::LogSuspect);
    assert_eq!(publisher.terminate().code(), Some(0));
    let forked = restored.fork(&[]);
    said(&forked, "the next event gets 10"); // by what was seen of this log alone
    let publisher = restored.again.clone().start();
    for n in 0..2 {
        assert_eq!(
            publisher.accepts(adjusted(&format!("n-{n}"), "a", 1)).await.sequence,
            Some(10 + n)
        );
        let foreign = publisher.follows("near", Some(&first_fork)).await.map(drop);
        refused(foreign, Reason::LogMismatch);
    }
    let log = publisher.log().await;
    assert_eq!(log.state(), LogState::Suspect, "it still has to be resynced");
    assert!(!log.state_detail.contains("fork"), "{log:?}");
    // It went on with the other log, and comes with what that has brought since.
    let further = Cursor { sequence: Some(200), ..first_fork };
    refused(publisher.follows("near", Some(&further)).await.map(drop), Reason::LogMismatch);
    refused(publisher.publish(vec![adjusted("late", "a", 1)]).await, Reason::LogSuspect);
}
