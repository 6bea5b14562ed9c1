//! What a rebuilt database takes over from the one before: it is not in the log.

use std::fs;

use counterfoil::proto::{
    crash,
    pb::{Event, Outcome, ReceiverState, event::Data},
};

use super::{COMMON, SUMS, file, flag, rows, takes_over};
use crate::harness::{
    events::{adjusted, adjustments, event},
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
    tools::counterfoil,
    wait::wait_until,
};

/// A file's handler lets these follow.
fn emits(rest: &str, emits: &str) -> String {
    rest.replacen("\n[[query]]", &format!("emit = [{emits}]\n\n[[query]]"), 1)
}

/// One of them, of this name and with this in it.
fn seen(n: i64, name: &str) -> String {
    let query = format!("SELECT :subject AS subject, json_object('n', {n}) AS data");
    format!(r#"{{ name = "{name}", type = "goods.{name}", query = "{query}" }}"#)
}

/// What a publisher has got: keys and contents.
async fn got(publisher: &Publisher) -> Vec<String> {
    let text = |event: Event| match event.data {
        Some(Data::JsonText(text)) => format!("{} {text}", event.key),
        other => panic!("{}: {other:?}", event.key),
    };
    publisher.everything().await.into_iter().map(text).collect()
}

/// Waits until all that waited has been forwarded.
async fn forwards_all(receiver: &Receiver) {
    wait_until("nothing waits to be forwarded", async || {
        let status = receiver.try_status().await.ok()?;
        assert_eq!(status.forward_failure.as_ref().map(|failure| &*failure.reason), None);
        (status.outbox_pending == Some(0)).then_some(())
    })
    .await;
}

/// What was forwarded is not forwarded again, although the later version would say it in
/// other words; and of the past nothing is said beside it.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_forwarded_is_not_forwarded_again() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    publisher.publish(adjustments("k", 20)).await.expect("accepted");
    let first = file(dir.path(), 1, "migrate", &emits(COMMON, &seen(1, "seen")));
    let both = format!("{}, {}", seen(2, "seen"), seen(2, "more"));
    let second = file(dir.path(), 2, "rebuild", &emits(SUMS, &both));
    let forward = format!("--forward-to={}", target.url());
    let setup = Receiver::at(dir.path(), &publisher.url()).arg(forward);
    let receiver = setup.clone().arg(flag(&first)).start();
    let arrives = async |next: i64| {
        wait_until(&format!("{next} follow-up events are there"), async || {
            (target.log().await.next_sequence == Some(next)).then_some(())
        })
        .await;
    };
    arrives(20).await;
    wait_until("all are marked", async || {
        (receiver.status().await.outbox_pending == Some(0)).then_some(())
    })
    .await;
    assert_eq!(receiver.terminate().code(), Some(0));

    let receiver = setup.arg(flag(&second)).start();
    takes_over(&receiver, 2).await;
    publisher.accepts(adjusted("last", "item-0", 1)).await;
    receiver.applies(20).await;
    arrives(22).await;
    let status = receiver.status().await;
    assert_eq!(status.forward_failure, None);
    let marked = "SELECT count(*) || ' ' || count(forwarded_sequence) FROM counterfoil_outbox
                  WHERE sequence < 20";
    assert_eq!(rows(receiver.db(), marked), ["20 20"]);
}

/// What a person has set aside stays so, until a person has it applied.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_aside_stays_so() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let narrow = COMMON.replace(
        "sql = \"INSERT",
        "require = [{ field = \"/delta\", type = \"integer\", max = 5 }]\nsql = \"INSERT",
    );
    let first = file(dir.path(), 1, "migrate", &narrow);
    let setup = Receiver::at(dir.path(), &publisher.url()).arg("--on-error=skip");
    let receiver = setup.clone().arg(flag(&first)).arg("--apply-attempts=1").start();
    publisher.accepts(adjusted("large", "lamp", 900)).await;
    publisher.accepts(adjusted("small", "lamp", 2)).await;
    receiver.applies(1).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = setup.arg(flag(&file(dir.path(), 2, "rebuild", SUMS))).start();
    takes_over(&receiver, 2).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(receiver.status().await.skipped_events, Some(1));
    let outcomes = "SELECT outcome FROM counterfoil_ledger ORDER BY sequence";
    assert_eq!(rows(receiver.db(), outcomes), ["SKIPPED", "APPLIED"]);
    let sum = "SELECT CAST(total AS TEXT) FROM sum";
    assert_eq!(rows(receiver.db(), sum), ["2"]);
    let ended = counterfoil(["apply-skipped", "--receiver", &receiver.url(), "0"]).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert_eq!(rows(receiver.db(), sum), ["902"]);
}

/// What waits goes out as the earlier version has emitted it, also where the later one would
/// say it in other words: it may have been on its way.
#[tokio::test(flavor = "multi_thread")]
async fn what_waits_goes_out_in_the_words_of_the_earlier_version() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let first = file(dir.path(), 1, "migrate", &emits(COMMON, &seen(1, "seen")));
    let other = format!("{}, {}", seen(2, "more"), seen(2, "seen"));
    let second = file(dir.path(), 2, "rebuild", &emits(SUMS, &other));
    let setup = Receiver::at(dir.path(), &publisher.url());
    let away = setup.clone().arg("--forward-to=http://127.0.0.1:1");
    let receiver = away.clone().arg(flag(&first)).start();
    receiver.applies(2).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = away.arg(flag(&second)).start();
    takes_over(&receiver, 2).await;
    assert_eq!(receiver.status().await.outbox_pending, Some(3));
    assert_eq!(receiver.terminate().code(), Some(0));
    let here = format!("--forward-to={}", target.url());
    let receiver = setup.arg(here).arg(flag(&second)).start();
    forwards_all(&receiver).await;
    let expected: Vec<_> = (0..3).map(|n| format!("k-{n}/goods/seen/0 {}", r#"{"n":1}"#)).collect();
    assert_eq!(got(&target).await, expected);
}

/// Counts an item that has been made; before that it cannot.
const MADE: &str = r#"
[[migration]]
sql = "CREATE TABLE count (item TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL) STRICT, WITHOUT ROWID"

[[on]]
type = "stock.made"
sql = "INSERT INTO count (item, n) VALUES (:subject, 0)"

[[on]]
type = "stock.adjusted"
sql = "UPDATE count SET n = n + (:data ->> 'delta') WHERE item = :subject"
expect_rows = 1
emit = [{ name = "counted", type = "goods.counted", query = "SELECT item AS subject, json_object('n', n) AS data FROM count WHERE item = :subject" }]
"#;

/// The same, in a table of another name.
fn made_again() -> String {
    MADE.replace("count ", "counts ")
}

/// Sets aside event 0 and goes on with 1 and 2; then makes the effect of 0.
async fn applies_late(receiver: &Receiver) {
    let late = receiver.apply_skipped(0).await.expect("applied");
    assert_eq!(late.entry.expect("a row").outcome(), Outcome::Applied);
}

async fn sets_aside(publisher: &Publisher, receiver: &Receiver) {
    publisher.accepts(adjusted("early", "lamp", 5)).await;
    publisher.accepts(event("made", "stock.made", "lamp", "{}")).await;
    publisher.accepts(adjusted("more", "lamp", 2)).await;
    receiver.waits_for_state(ReceiverState::Halted).await;
    receiver.skip(0, "it is not made yet").await.expect("set aside");
    receiver.applies(2).await;
}

/// All of it is there once, and the other publisher has got it once, in the first words.
async fn nothing_is_taken_back(
    publisher: &Publisher,
    receiver: &Receiver,
    target: &Publisher,
    follow_ups: &[&str],
) {
    takes_over(receiver, 2).await;
    receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(rows(receiver.db(), "SELECT item || ' ' || n FROM counts"), ["lamp 7"]);
    let outcomes = "SELECT outcome FROM counterfoil_ledger ORDER BY sequence";
    assert_eq!(rows(receiver.db(), outcomes), ["APPLIED"; 3]);
    assert_eq!(receiver.status().await.skipped_events, Some(0));
    forwards_all(receiver).await;
    assert_eq!(got(target).await, follow_ups);
    let (url, db) = (publisher.url(), receiver.db());
    let ended = counterfoil(["verify", "--publisher", &url, "--db"]).arg(db).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}

/// What was applied later, by order, is applied later in the rebuilt database too.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_applied_later_stays_applied() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    let forward = format!("--forward-to={}", target.url());
    let setup = Receiver::at(dir.path(), &publisher.url()).arg(forward).arg("--apply-attempts=1");
    let receiver = setup.clone().arg(flag(&file(dir.path(), 1, "migrate", MADE))).start();
    sets_aside(&publisher, &receiver).await;
    applies_late(&receiver).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = setup.arg(flag(&file(dir.path(), 2, "rebuild", &made_again()))).start();
    let all = ["more/goods/counted/0 {\"n\":2}", "early/goods/counted/0 {\"n\":7}"];
    nothing_is_taken_back(&publisher, &receiver, &target, &all).await;
}

/// It may be applied after the rebuilt database has come past the place: then it is applied
/// there before that takes over.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_applied_later_while_it_is_rebuilt_stays_applied() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    let forward = format!("--forward-to={}", target.url());
    let setup = Receiver::at(dir.path(), &publisher.url()).arg(forward).arg("--apply-attempts=1");
    let first = setup.clone().arg(flag(&file(dir.path(), 1, "migrate", MADE)));
    let second = setup.arg(flag(&file(dir.path(), 2, "rebuild", &made_again())));
    let receiver = first.clone().start();
    sets_aside(&publisher, &receiver).await;
    forwards_all(&receiver).await;
    assert_eq!(receiver.terminate().code(), Some(0));

    // It is filled, and dies. An earlier version would take away what there is of it.
    second.clone().dies_at(crash::RECEIVER_REBUILD_FILLED, 0).dies();
    let rebuilt = dir.path().join("receiver.db.rebuild");
    let kept = dir.path().join("kept");
    fs::rename(&rebuilt, &kept).expect("kept");
    let receiver = first.start();
    applies_late(&receiver).await;
    forwards_all(&receiver).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    fs::rename(&kept, &rebuilt).expect("put back");
    let receiver = second.start();
    let all = ["more/goods/counted/0 {\"n\":2}", "early/goods/counted/0 {\"n\":7}"];
    nothing_is_taken_back(&publisher, &receiver, &target, &all).await;
}

/// The earlier version has applied an event, and let something follow from it; the later one
/// cannot, and sets it aside. Once it can, what has followed stays as it is.
#[tokio::test(flavor = "multi_thread")]
async fn what_followed_in_the_earlier_version_is_not_said_again_late() {
    let (dir, there) = (directory(), directory());
    let publisher = Publisher::start(dir.path());
    let target = Publisher::start(there.path());
    let forward = format!("--forward-to={}", target.url());
    let setup = Receiver::at(dir.path(), &publisher.url()).arg(forward).arg("--on-error=skip");
    let first = file(dir.path(), 1, "migrate", &emits(COMMON, &seen(1, "seen")));
    let receiver = setup.clone().arg(flag(&first)).start();
    publisher.accepts(adjusted("large", "lamp", 900)).await;
    forwards_all(&receiver).await;
    receiver.applies(0).await;
    forwards_all(&receiver).await;
    assert_eq!(receiver.terminate().code(), Some(0));

    let both = emits(SUMS, &format!("{}, {}", seen(2, "seen"), seen(2, "more")));
    let narrow = both.replace(
        "sql = '''\nINSERT",
        "require = [{ field = \"/delta\", type = \"integer\", max = 5 }]\nsql = '''\nINSERT",
    );
    let receiver = setup.clone().arg(flag(&file(dir.path(), 2, "rebuild", &narrow))).start();
    takes_over(&receiver, 2).await;
    assert_eq!(receiver.status().await.skipped_events, Some(1));
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = setup.arg(flag(&file(dir.path(), 3, "migrate", &both))).start();
    applies_late(&receiver).await;
    assert_eq!(rows(receiver.db(), "SELECT CAST(total AS TEXT) FROM sum"), ["900"]);
    forwards_all(&receiver).await;
    let all = ["large/goods/seen/0 {\"n\":1}", "large/goods/more/0 {\"n\":2}"];
    assert_eq!(got(&target).await, all);
}

/// The earlier version goes on emitting while the later one, which does not, is rebuilt.
#[tokio::test(flavor = "multi_thread")]
async fn the_earlier_version_needs_its_target_until_the_later_one_takes_over() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let first = file(dir.path(), 1, "migrate", &emits(COMMON, &seen(1, "seen")));
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let setup = Receiver::at(dir.path(), &publisher.url());
    let away = setup.clone().arg("--forward-to=http://127.0.0.1:1");
    assert_eq!(away.clone().arg(flag(&first)).start().terminate().code(), Some(0));
    let ended = setup.arg(flag(&second)).refuses();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("version 1 of the projection goods emits"), "{ended:?}");
    let receiver = away.arg(flag(&second)).start();
    takes_over(&receiver, 2).await;
}
