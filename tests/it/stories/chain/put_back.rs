//! The publisher that follow-up events go to is put back to an older copy, under a receiver
//! that has noted them as forwarded: what is lost there is found, and is there again.

use std::path::PathBuf;

use counterfoil::proto::pb::Event;
use tempfile::TempDir;

use crate::harness::{
    chain::{follow_ups, projection},
    events::{adjusted, event},
    files::put_copy,
    ledger::open,
    pair::directory,
    publisher::{Publisher, Setup},
    receiver::Receiver,
    wait::wait_until,
};

/// Two publishers and the receiver between them. The directory goes last.
struct Between {
    warehouse: Receiver,
    first: Publisher,
    /// How the second one is started, with the first five of ten follow-ups.
    second: Setup,
    dir: TempDir,
}

impl Between {
    /// Ten follow-ups have been forwarded, of which the second publisher has five.
    async fn five_of_ten() -> Between {
        let dir = directory();
        let first = Publisher::start(&dir.path().join("first"));
        let second = Publisher::start(&dir.path().join("second"));
        let warehouse = Receiver::at(dir.path(), &first.url())
            .named("warehouse")
            .projection(projection("warehouse"))
            .arg("--forward-to")
            .arg(second.url())
            .start();
        let (again, data) = (second.successor(), second.dir().to_owned());
        adjusts(&first, "a", 5).await;
        forwarded(&warehouse, 5).await;
        let copy = dir.path().join("copy");
        assert_eq!(second.terminate().code(), Some(0));
        put_copy(&data, &copy);
        let second = again.clone().start();
        adjusts(&first, "b", 5).await;
        forwarded(&warehouse, 10).await;
        assert_eq!(second.terminate().code(), Some(0));
        put_copy(&copy, &data);
        Between { warehouse, first, second: again, dir }
    }

    fn second_dir(&self) -> PathBuf {
        self.dir.path().join("second")
    }
}

async fn adjusts(first: &Publisher, prefix: &str, many: usize) {
    let events = (0..many).map(|n| adjusted(&format!("{prefix}{n}"), "camera", 1)).collect();
    first.publish(events).await.expect("accepted");
}

/// Waits until so many are noted as forwarded, and none waits.
async fn forwarded(warehouse: &Receiver, many: i64) {
    wait_until("all is forwarded", async || {
        let count = "SELECT count(*) FROM counterfoil_outbox WHERE forwarded_sequence IS NOT NULL";
        let found: i64 = open(warehouse.db()).query_row(count, [], |row| row.get(0)).ok()?;
        let pending = warehouse.try_status().await.ok()?.outbox_pending;
        (found == many && pending == Some(0)).then_some(())
    })
    .await;
}

/// Where each stands, as the receiver has noted it and as it is.
fn noted(warehouse: &Receiver) -> Vec<(i64, String)> {
    let tables = open(warehouse.db());
    let sql = "SELECT forwarded_sequence, key FROM counterfoil_outbox ORDER BY sequence, number";
    let mut rows = tables.prepare(sql).expect("valid");
    let rows = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).expect("readable");
    rows.collect::<Result<_, _>>().expect("readable")
}

fn stand(events: &[Event]) -> Vec<(i64, String)> {
    let from_warehouse = events.iter().filter(|event| event.key.contains("/warehouse/"));
    from_warehouse.map(|event| (event.sequence(), event.key.clone())).collect()
}

/// Each is there once, in its order, where it is noted.
async fn all_is_there(between: &Between, second: &Publisher) {
    let expected = follow_ups(&between.first.everything().await);
    let there = stand(&second.everything().await);
    let keys: Vec<_> = there.iter().map(|(_, key)| key.clone()).collect();
    assert_eq!(keys, expected, "the second log");
    assert_eq!(noted(&between.warehouse), there, "the marks");
    let detail = between.warehouse.status().await.state_detail;
    for said in ["has lost those that it had from sequence 5 ", "5 are sent again."] {
        assert!(detail.contains(said), "{detail}");
    }
}

/// The receiver runs all the while, and notices with the next one.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_sent_again_before_what_comes_next() {
    let between = Between::five_of_ten().await;
    let second = between.second.clone().start();
    adjusts(&between.first, "c", 3).await;
    forwarded(&between.warehouse, 13).await;
    all_is_there(&between, &second).await;
}

/// Nothing else follows: a start looks, too. Others have taken the numbers meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_is_sent_again_at_the_start() {
    let Between { warehouse, first, second, dir } = Between::five_of_ten().await;
    let successor = warehouse.successor();
    warehouse.terminate();
    let publisher = second.clone().start();
    for n in 0..7 {
        publisher.accepts(event(&format!("other{n}"), "other.type", "x", "{}")).await;
    }
    let between = Between { warehouse: successor.start(), first, second, dir };
    wait_until("they are there", async || {
        (publisher.try_log().await.ok()?.next_sequence == Some(17)).then_some(())
    })
    .await;
    forwarded(&between.warehouse, 10).await;
    all_is_there(&between, &publisher).await;
}

/// The second log goes on under another name, above what is lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_fork_has_not_kept_is_sent_again() {
    let between = Between::five_of_ten().await;
    let forked = Publisher::fork(&between.second_dir(), &["--from", "10"]);
    assert_eq!(forked.code(), Some(0), "{forked:?}");
    let second = between.second.clone().start();
    adjusts(&between.first, "c", 3).await;
    forwarded(&between.warehouse, 13).await;
    all_is_there(&between, &second).await;
    assert_eq!(noted(&between.warehouse)[5].0, 10, "above what is lost");
}

/// Another publisher, which has none of them: all that is still here goes there.
#[tokio::test(flavor = "multi_thread")]
async fn another_publisher_gets_all_of_them() {
    let between = Between::five_of_ten().await;
    std::fs::remove_dir_all(between.second_dir()).expect("removed");
    let second = between.second.clone().start();
    adjusts(&between.first, "c", 1).await;
    forwarded(&between.warehouse, 11).await;
    let expected = follow_ups(&between.first.everything().await);
    let there = stand(&second.everything().await);
    assert_eq!(there, (0..).zip(expected).collect::<Vec<_>>());
    assert_eq!(noted(&between.warehouse), there);
}
