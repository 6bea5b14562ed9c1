//! The receiver's database beside other processes, and what it costs to be safe.

use std::path::{Path, PathBuf};

use counterfoil::proto::pb::{ReceiverState, get_ledger_entry_request::By};
use rusqlite::Connection;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::harness::{
    events::{adjusted, adjustments, reserved},
    files::length,
    ledger,
    pair::{Pair, directory},
    publisher::{Publisher, channel},
    receiver::Receiver,
    tools::{has, skip, strace},
    wait::{DEADLINE, wait_until, within},
};

/// SQL-01: another process holds the write lock; SQL-15: nothing but the commit waits.
#[tokio::test(flavor = "multi_thread")]
async fn sql_01_sql_15_a_held_write_lock_delays_the_commit_and_nothing_else() {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "a", 1)]).await;
    let holder = Connection::open(pair.receiver.db()).expect("beside the receiver");
    holder.busy_timeout(DEADLINE).expect("set");
    holder.execute_batch("BEGIN IMMEDIATE").expect("between two commits");
    pair.publisher.publish(adjustments("held", 20)).await.expect("accepted");

    // For as long as the lock is held: the state says so, and everything answers.
    let status = pair.receiver.waits_for_state(ReceiverState::Retrying).await;
    assert!(status.failure.is_some() && !status.state_detail.is_empty(), "{status:?}");
    let mut health = HealthClient::new(channel(pair.receiver.address));
    for _ in 0..50 {
        let request = HealthCheckRequest { service: "counterfoil.v1.ReceiverService".into() };
        within("health", health.check(request)).await.expect("health answers");
        within("a query", pair.receiver.query("total")).await.expect("queries answer");
        let entry = within("a ledger row", pair.receiver.entry(By::Sequence(0))).await;
        assert_eq!(entry.expect("rows are shown").sequence, Some(0));
    }
    assert_eq!(pair.receiver.status().await.cursor.and_then(|cursor| cursor.sequence), Some(0));

    holder.execute_batch("ROLLBACK").expect("let go");
    let ledger = pair.settles().await;
    assert_eq!(ledger.rows.len(), 21, "no restart was needed");
}

fn wal(db: &Path) -> PathBuf {
    let mut name = db.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// SQL-04: a reader that blocks checkpoints lets the log grow; without it, it
/// shrinks again, while light work goes on.
#[tokio::test(flavor = "multi_thread")]
async fn sql_04_the_write_ahead_log_shrinks_after_a_peak() {
    const PEAK: u64 = 17 << 20;
    const SMALL: u64 = 5 << 20;
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "a", 1)]).await;
    let reader = ledger::open(pair.receiver.db());
    reader.execute_batch("BEGIN; SELECT count(*) FROM counterfoil_ledger").expect("a snapshot");
    let file = wal(pair.receiver.db());
    let mut next = 1;
    while length(&file) < PEAK {
        // Long keys make rows that fill pages.
        let key = |n: i64| format!("{}-{n}", "k".repeat(200));
        let events =
            (next..next + 1000).map(|n| adjusted(&key(n), &format!("i{}", n % 997), 1)).collect();
        next += 1000;
        pair.carries(events).await;
    }
    reader.execute_batch("COMMIT").expect("let go");
    wait_until("the write-ahead log is small again", async || {
        pair.publisher.accepts(adjusted(&format!("light-{next}"), "a", 1)).await;
        pair.receiver.applies(next).await;
        next += 1;
        (length(&file) < SMALL).then_some(())
    })
    .await;
    assert_eq!(pair.settles().await.rows.len() as i64, next);
}

/// Syncs of a file, counted in what strace wrote.
fn syncs(log: &Path, file: &str) -> usize {
    let text = std::fs::read_to_string(log).expect("strace has written");
    let sync = |line: &&str| line.contains("fdatasync(") || line.contains("fsync(");
    text.lines().filter(sync).filter(|line| line.contains(file)).count()
}

/// SQL-05: at least one sync for each commit that is acknowledged, on both sides.
#[tokio::test(flavor = "multi_thread")]
async fn sql_05_every_acknowledged_commit_was_synced() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let dir = directory();
    let log = |name: &str| dir.path().join(name);
    let options = ["-e", "trace=fsync,fdatasync"];
    let publisher = Publisher::at(dir.path()).wrapped(strace(&log("p.strace"), &options)).start();
    let setup = Receiver::at(dir.path(), &publisher.url());
    let receiver = setup.wrapped(strace(&log("r.strace"), &options)).start();
    for n in 0..100 {
        publisher.accepts(adjusted(&format!("k{n}"), "a", 1)).await;
        receiver.applies(n).await;
    }
    publisher.waits_for_ack("receiver", 99).await;
    assert_eq!(receiver.terminate().code(), Some(0));
    assert_eq!(publisher.terminate().code(), Some(0));
    let of_log = syncs(&log("p.strace"), ".seg>");
    assert!(of_log >= 100, "{of_log} syncs for 100 publishes");
    let of_database = syncs(&log("r.strace"), "-wal>");
    assert!(of_database >= 100, "{of_database} syncs for 100 commits");
}

/// SQL-13: what the projection's foreign keys say holds, and they are enforced.
#[tokio::test(flavor = "multi_thread")]
async fn sql_13_foreign_keys_hold() {
    let pair = Pair::start();
    pair.carries(vec![
        adjusted("k0", "a", 5),
        reserved("r1", "a", "t", 2, 1),
        reserved("r2", "b", "t", 2, 1),
    ])
    .await;
    let db = ledger::open(pair.receiver.db());
    let count = |sql: &str| db.query_row(sql, [], |row| row.get::<_, i64>(0)).expect(sql);
    assert_eq!(count("SELECT count(*) FROM pragma_foreign_key_list('reservation')"), 1, "declared");
    assert_eq!(count("SELECT count(*) FROM pragma_foreign_key_check"), 0, "and kept");
    assert_eq!(count("SELECT count(*) FROM reservation"), 1);
    let strict = "SELECT count(*) FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND NOT strict AND name NOT LIKE 'sqlite_%'";
    assert_eq!(count(strict), 0, "every table is STRICT");
}

/// Anybody may read beside the receiver, for as long as they like.
#[tokio::test(flavor = "multi_thread")]
async fn readers_beside_the_receiver_see_whole_commits_only() {
    let pair = Pair::start();
    let db = pair.receiver.db().to_owned();
    let producer = crate::harness::producer::Producer::start(pair.publisher.client.clone(), "p", 5);
    for round in 1..=20 {
        wait_until("work goes on", async || (producer.answered() > round * 20).then_some(())).await;
        let ledger = ledger::Ledger::read(&db);
        ledger.check(&pair.publisher.accepted().await, None);
    }
    producer.stop().await;
    pair.settles().await;
}
