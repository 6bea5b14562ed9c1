//! A later version that is filled from the log beside the live database, which goes on.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
};

use counterfoil::proto::{
    crash,
    pb::{QueryRequest, ReceiverState},
    refusal::{Reason, reason_of},
};

use super::{COMMON, SUMS, file, flag, rows, takes_over, version};
use crate::harness::{
    events::{adjusted, adjustments, event},
    files::below,
    pair::directory,
    publisher::Publisher,
    receiver::{Receiver, Setup},
    wait::wait_until,
};

const ALL_SUMS: &str = "SELECT item || ' ' || total FROM sum ORDER BY item";
const LEDGER: &str = "SELECT sequence || key || outcome || coalesce(reason, '')
                      FROM counterfoil_ledger ORDER BY sequence";

/// A publisher, and the setup of a receiver whose database version 1 has filled.
async fn filled(dir: &std::path::Path, count: usize) -> (Publisher, Setup) {
    let publisher = Publisher::start(dir);
    publisher.publish(adjustments("k", count)).await.expect("accepted");
    let first = file(dir, 1, "migrate", COMMON);
    let setup = Receiver::at(dir, &publisher.url());
    let receiver = setup.clone().arg(flag(&first)).start();
    receiver.applies(count as i64 - 1).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    (publisher, setup)
}

/// A receiver of this version that has started with nothing has the same.
async fn same_as_fresh(publisher: &Publisher, receiver: &Receiver, file: &std::path::Path) {
    let next = publisher.log().await.next_sequence.expect("always set");
    receiver.applies(next - 1).await;
    let dir = directory();
    let fresh = Receiver::at(dir.path(), &publisher.url()).named("fresh").arg(flag(file)).start();
    fresh.applies(next - 1).await;
    for what in [ALL_SUMS, LEDGER] {
        assert_eq!(rows(receiver.db(), what), rows(fresh.db(), what));
    }
}

fn left_over(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let all = below(dir).into_iter();
    all.filter(|path| path.to_string_lossy().contains(".db.rebuild")).collect()
}

/// While events are published, the earlier version answers until the later one does.
#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_version_goes_on_until_the_later_one_takes_over() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 900).await;
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let receiver = setup.arg(flag(&second)).start();
    let done = AtomicBool::new(false);
    let publishing = async {
        for n in 0.. {
            if done.load(Ordering::Relaxed) {
                break;
            }
            publisher.accepts(adjusted(&format!("more-{n}"), "item-3", 2)).await;
        }
    };
    let asking = async {
        let mut sequence = -1;
        loop {
            let earlier = receiver.query("counts").await;
            let later = receiver.query("sums").await;
            let answer = match (earlier, later) {
                (Ok(answer), _) => answer,
                (Err(gone), Ok(answer)) => {
                    assert_eq!(reason_of(&gone), Some(Reason::NotFound), "{gone}");
                    done.store(true, Ordering::Relaxed);
                    assert!(answer.sequence >= Some(sequence), "reads have gone back");
                    break;
                }
                // It has taken over between the two questions, or neither answers.
                (Err(gone), Err(_)) => {
                    assert_eq!(reason_of(&gone), Some(Reason::NotFound), "{gone}");
                    continue;
                }
            };
            assert!(answer.sequence >= Some(sequence), "reads have gone back");
            sequence = answer.sequence.expect("always set");
        }
    };
    tokio::join!(publishing, asking);
    takes_over(&receiver, 2).await;
    assert_eq!(version(receiver.db()), "2");
    same_as_fresh(&publisher, &receiver, &second).await;
    wait_until("nothing is left beside it", async || {
        left_over(dir.path()).is_empty().then_some(())
    })
    .await;
    let next = publisher.log().await.next_sequence.expect("always set");
    publisher.waits_for_ack("receiver", next - 1).await;
    let receiver = receiver.restart();
    receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(receiver.status().await.projection_version, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_at_every_place_leaves_the_earlier_or_the_later_one() {
    for point in crash::RECEIVER_REBUILD {
        println!("{point}");
        let dir = directory();
        let (publisher, setup) = filled(dir.path(), 300).await;
        let second = file(dir.path(), 2, "rebuild", SUMS);
        let setup = setup.arg(flag(&second));
        let ended = setup.clone().dies_at(point, 0).dies();
        assert!(ended.stderr.contains(point), "{ended:?}");
        let after = [crash::RECEIVER_RESYNC_AFTER_COMMIT, crash::RECEIVER_REBUILD_AFTER_SWAP];
        let expected = if after.contains(&point) { "2" } else { "1" };
        assert_eq!(version(setup.db()), expected, "{point}");
        if expected == "1" {
            let counts = rows(setup.db(), "SELECT item || n FROM count");
            assert_eq!(counts.len(), 7, "untouched");
        }
        let receiver = setup.start();
        takes_over(&receiver, 2).await;
        same_as_fresh(&publisher, &receiver, &second).await;
        drop(receiver);
        assert!(left_over(dir.path()).is_empty(), "{point}");
    }
}

/// What was begun for a version that is no longer wanted goes away.
/// Something lies where it would be filled: that is said, without a path, and passes.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_in_its_way_is_said_until_it_is_gone() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 5).await;
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let probe = setup.clone().arg(flag(&file(dir.path(), 1, "migrate", COMMON))).start();
    let db = probe.db().to_owned();
    assert_eq!(probe.terminate().code(), Some(0));
    let in_the_way = db.with_extension("db.rebuild");
    fs::create_dir_all(in_the_way.join("x")).expect("made");
    let receiver = setup.arg(flag(&second)).start();
    let step = wait_until("it says that it is stuck", async || {
        let rebuild = receiver.try_status().await.ok()?.rebuild?;
        rebuild.step.starts_with("Not rebuilt yet").then_some(rebuild.step)
    })
    .await;
    let path = dir.path().to_str().expect("UTF-8");
    assert!(!step.contains(path), "{step}");
    fs::remove_dir_all(&in_the_way).expect("removed");
    takes_over(&receiver, 2).await;
    same_as_fresh(&publisher, &receiver, &second).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_may_be_given_up() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 300).await;
    let first = file(dir.path(), 1, "migrate", COMMON);
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let point = crash::RECEIVER_REBUILD_FILLED;
    setup.clone().arg(flag(&second)).dies_at(point, 0).dies();
    assert!(!left_over(dir.path()).is_empty(), "it was filled");
    let receiver = setup.clone().arg(flag(&first)).start();
    receiver.waits_for_state(ReceiverState::Live).await;
    assert!(left_over(dir.path()).is_empty());
    assert_eq!(receiver.terminate().code(), Some(0));
    // Another text of the later version does not go on with what an earlier one has filled.
    setup.clone().arg(flag(&second)).dies_at(point, 0).dies();
    let other = file(dir.path(), 2, "rebuild", &SUMS.replace("'delta'", "'delta' * 1"));
    let receiver = setup.arg(flag(&other)).start();
    takes_over(&receiver, 2).await;
    same_as_fresh(&publisher, &receiver, &other).await;
}

/// The log no longer begins at 0: a snapshot of the later version does, and without one the
/// earlier one goes on and says what is missing.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_has_dropped_its_beginning_needs_a_snapshot() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 300).await;
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let maker =
        Receiver::at(dir.path(), &publisher.url()).named("maker").arg(flag(&second)).start();
    maker.applies(299).await;
    let again = publisher.successor().config("[logs.main]\nmax_events = 10\n");
    assert_eq!(publisher.terminate().code(), Some(0));
    let publisher = again.start();
    publisher.publish(adjustments("late", 5)).await.expect("accepted");
    maker.applies(304).await;

    let receiver = setup.arg(flag(&second)).start();
    receiver.applies(304).await;
    let status = wait_until("it says what is missing", async || {
        let status = receiver.try_status().await.ok()?;
        let rebuild = status.rebuild.clone()?;
        rebuild.step.contains("has no snapshot of projection goods version 2").then_some(status)
    })
    .await;
    assert_eq!(status.projection_version, Some(1));
    assert!(status.state_detail.contains("Version 2"), "{}", status.state_detail);
    receiver.query("counts").await.expect("the earlier one answers");

    maker.snapshot().await.expect("stored");
    takes_over(&receiver, 2).await;
    publisher.accepts(adjusted("last", "item-1", 5)).await;
    receiver.applies(305).await;
    maker.applies(305).await;
    assert_eq!(rows(receiver.db(), ALL_SUMS), rows(maker.db(), ALL_SUMS));
}

/// The later version mends what the earlier one has halted on.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_earlier_version_has_halted_on_is_mended_by_the_later_one() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 20).await;
    let strict = COMMON.replace(
        "sql = \"INSERT",
        "require = [{ field = \"/delta\", type = \"integer\", max = 5 }]\nsql = \"INSERT",
    );
    let first = file(dir.path(), 3, "migrate", &strict);
    let receiver = setup.clone().arg(flag(&first)).arg("--apply-attempts=1").start();
    publisher.accepts(adjusted("large", "item-0", 900)).await;
    publisher.accepts(adjusted("after", "item-0", 1)).await;
    receiver.waits_for_state(ReceiverState::Halted).await;
    drop(receiver);
    let fourth = file(dir.path(), 4, "rebuild", SUMS);
    let receiver = setup.arg(flag(&fourth)).arg("--apply-attempts=1").start();
    takes_over(&receiver, 4).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    same_as_fresh(&publisher, &receiver, &fourth).await;
}

/// An event that the later version cannot apply is named; the earlier one goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_the_later_version_cannot_apply_is_named() {
    let dir = directory();
    let (publisher, setup) = filled(dir.path(), 20).await;
    publisher.accepts(event("odd", "stock.adjusted", "item-0", r#"{"delta":1,"much":true}"#)).await;
    let picky = format!("{SUMS}\n[[query]]\nname = \"none\"\nsql = \"SELECT 1 AS one\"\n").replace(
        "sql = '''\nINSERT",
        "require = [{ field = \"/delta\", type = \"integer\", max = 0 }]\nsql = '''\nINSERT",
    );
    let second = file(dir.path(), 2, "rebuild", &picky);
    let receiver = setup.arg(flag(&second)).start();
    let rebuild = wait_until("it says which event fails", async || {
        let rebuild = receiver.try_status().await.ok()?.rebuild?;
        rebuild.step.contains("event 0 (stock.adjusted").then_some(rebuild)
    })
    .await;
    assert!(rebuild.step.contains("on[0].require[0]"), "{}", rebuild.step);
    assert_eq!((rebuild.from_version, rebuild.to_version), (Some(1), Some(2)));
    receiver.applies(20).await;
    let request = QueryRequest { name: "counts".into(), ..Default::default() };
    receiver.client.clone().query(request).await.expect("the earlier one answers");
}

/// A database whose filling version has left no text cannot go on meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn without_the_earlier_text_it_says_what_to_do() {
    let dir = directory();
    let (_publisher, setup) = filled(dir.path(), 3).await;
    let tables = rusqlite::Connection::open(setup.db()).expect("opened");
    tables
        .execute("DELETE FROM counterfoil_meta WHERE name = 'projection_source'", [])
        .expect("deleted");
    drop(tables);
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let ended = setup.arg(flag(&second)).refuses();
    assert!(ended.stderr.contains("start once with the file of version 1"), "{ended:?}");
    fs::metadata(dir.path().join("receiver.db.rebuild")).expect_err("nothing was begun");
}
