//! `counterfoil verify`: what is equal is called equal, through whatever happened to it;
//! and each kind of damage is found and named.

use std::path::Path;

use bytes::Bytes;
use counterfoil::proto::{
    crash::RECEIVER_AFTER_COMMIT,
    pb::{Cursor, Event, ReplayRequest, Snapshot},
};
use rusqlite::Connection;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::harness::{
    chance::Chance,
    events::{adjusted, adjustments, blob, event, reserved},
    fake_publisher::{FakePublisher, History, Step, after},
    ledger,
    pair::{Pair, directory},
    process::Ended,
    producer::{Producer, stop_all},
    publisher::Publisher,
    receiver::Receiver,
    snapshot::Snapshots,
    tools::counterfoil,
    wait::wait_until,
};

fn verify(url: &str, db: &Path, flags: &[&str]) -> Ended {
    counterfoil(["verify", "--publisher", url, "--db"]).arg(db).args(flags).run()
}

/// Exit code 0, and what was compared.
fn equal(url: &str, db: &Path) -> Value {
    let ended = verify(url, db, &["--json"]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("one JSON object");
    assert_eq!(report["verdict"], "equal", "{report}");
    report
}

/// Exit code 1, and the first difference in one line.
fn different(url: &str, db: &Path, parts: &[&str]) {
    let ended = verify(url, db, &[]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    let said = ended.stdout.lines().last().unwrap_or_default();
    assert!(said.starts_with("DIFFERENT "), "{ended:?}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in: {said}");
    }
    let told = verify(url, db, &["--json"]);
    assert_eq!(told.code(), Some(1), "{told:?}");
    let told: Value = serde_json::from_str(&told.stdout).expect("one JSON object");
    assert_eq!(told["verdict"], "different", "{told}");
    assert!(said.contains(told["difference"]["found"].as_str().expect("a text")), "{told}");
}

/// A pair with something of everything in it.
async fn mixed() -> Pair {
    let pair = Pair::start();
    pair.carries(vec![
        adjusted("k0", "camera", 5),
        adjusted("k1", "lens", 2),
        reserved("r0", "camera", "task-1", 2, 1),
        reserved("r1", "camera", "task-2", 9, 2),
        event("n0", "note", "camera", r#"{"text":"é"}"#),
        blob("b0", vec![0, 159, 146, 150]),
        adjusted("k2", "camera", -1),
    ])
    .await;
    pair
}

fn change(db: &Path, sql: &str) {
    let beside = Connection::open(db).expect("opened beside the receiver");
    beside.busy_timeout(crate::harness::wait::DEADLINE).expect("set");
    beside.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pair_that_agrees_is_equal() {
    let pair = mixed().await;
    let report = equal(&pair.publisher.url(), pair.receiver.db());
    assert_eq!(report["cursor"]["sequence"], 6);
    assert_eq!(report["events"], serde_json::json!({"from": 0, "last": 6}));
    assert_eq!(report["ledger"], serde_json::json!({"from": 0, "rows": 7}));
    let outcomes = serde_json::json!({"APPLIED": 4, "IGNORED": 2, "REJECTED": 1, "DUPLICATE": 0, "SKIPPED": 0});
    assert_eq!(report["outcomes"], outcomes);
    assert_eq!(report["tables"], serde_json::json!({"reservation": 1, "stock": 2, "total": 1}));
    assert_eq!(report["rebuiltFrom"], -1);
    let text = verify(&pair.publisher.url(), pair.receiver.db(), &[]).stdout;
    assert!(text.ends_with("EQUAL      everything was checked\n"), "{text}");
    assert!(text.contains("events 0 to 6"), "{text}");

    // Tables of one's own, and columns, are one's own.
    change(pair.receiver.db(), "CREATE TABLE mine (a); ALTER TABLE stock ADD COLUMN shelf TEXT");
    let report = equal(&pair.publisher.url(), pair.receiver.db());
    assert_eq!(report["otherTables"], serde_json::json!(["mine"]));
    // With the receiver stopped, too, and nothing is left behind.
    let db = pair.receiver.db().to_owned();
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let scratch = pair.dir.path().join("scratch");
    std::fs::create_dir(&scratch).expect("made");
    let within = scratch.to_str().expect("UTF-8");
    let ended = verify(&pair.publisher.url(), &db, &["--dir", within]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert_eq!(std::fs::read_dir(&scratch).expect("readable").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_at_both_ends_is_equal() {
    let pair = Pair::start();
    let report = equal(&pair.publisher.url(), pair.receiver.db());
    assert_eq!(report["cursor"], Value::Null);
    assert_eq!(report["tables"]["total"], 1);
    pair.publisher.accepts(adjusted("k0", "camera", 5)).await;
    pair.receiver.applies(0).await;
    change(pair.receiver.db(), "DELETE FROM counterfoil_cursor");
    different(&pair.publisher.url(), pair.receiver.db(), &["above the cursor at -1", "sequence 0"]);
}

/// Kills, and load that goes on while it is verified: the file is looked at as it was at
/// one moment.
#[tokio::test(flavor = "multi_thread")]
async fn kills_and_load_change_nothing_about_it() {
    let mut chance = Chance::new();
    let mut pair = Pair::start();
    let producers: Vec<_> = (0..3)
        .map(|n| Producer::start(pair.publisher.client.clone(), &format!("p{n}"), 4))
        .collect();
    for kill in 0..6 {
        let answered = producers.iter().map(Producer::answered).sum::<usize>();
        wait_until("load goes on", async || {
            let now: usize = producers.iter().map(Producer::answered).sum();
            (now > answered + 60).then_some(())
        })
        .await;
        chance.moment(40).await;
        if kill % 2 == 0 {
            pair.receiver.process.kill();
        } else {
            pair.publisher.process.kill();
            pair.publisher = pair.publisher.restart();
        }
        // With the receiver dead, as with both at work.
        equal(&pair.publisher.url(), pair.receiver.db());
        if kill % 2 == 0 {
            pair.receiver = pair.receiver.restart();
        }
        equal(&pair.publisher.url(), pair.receiver.db());
    }
    let accepted = stop_all(producers).await;
    pair.settles().await;
    let report = equal(&pair.publisher.url(), pair.receiver.db());
    assert_eq!(report["cursor"]["sequence"], accepted.len() as i64 - 1);
    assert!(report["outcomes"]["REJECTED"].as_i64() > Some(0), "{report}");
}

/// Dead between commit and ack: the file is ahead of what was acknowledged, and right.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_without_an_ack_is_equal() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 20)).await.expect("accepted");
    Receiver::at(dir.path(), &publisher.url()).dies_at(RECEIVER_AFTER_COMMIT, 0).dies();
    let report = equal(&publisher.url(), &dir.path().join("receiver.db"));
    assert!(report["cursor"]["sequence"].as_i64() >= Some(0), "{report}");
}

/// What somebody does to the file behind the receiver's back.
#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_damage_is_found_and_named() {
    const GONE: &str = "DELETE FROM counterfoil_ledger WHERE sequence = 3";
    let cases: &[(&str, &[&str])] = &[
        (
            "UPDATE stock SET available = 7 WHERE item = 'camera'",
            &["table stock, item \"camera\"", "expected available 2", "found available 7"],
        ),
        (
            "INSERT INTO stock VALUES ('ghost', 1, 1)",
            &[
                "table stock",
                "expected no such row",
                "found item \"ghost\", available 1, version 1",
            ],
        ),
        (
            "DELETE FROM reservation",
            &["table reservation", "expected key \"r0\"", "found no such row"],
        ),
        ("UPDATE total SET total = total + 1", &["table total", "found"]),
        ("DROP TABLE reservation", &["table reservation", "as it was declared"]),
        (GONE, &["the ledger, sequence 3", "expected a row", "found none"]),
        (
            "UPDATE counterfoil_ledger SET fingerprint = zeroblob(32) WHERE sequence = 3",
            &["the ledger, sequence 3", "expected fingerprint", "found fingerprint 000000"],
        ),
        (
            "UPDATE counterfoil_ledger SET key = 'other' WHERE sequence = 3",
            &["the ledger, sequence 3", "expected key \"r1\"", "found key \"other\""],
        ),
        (
            "UPDATE counterfoil_ledger SET outcome = 'APPLIED', reason = NULL WHERE sequence = 3",
            &[
                "the ledger, sequence 3",
                "expected outcome \"REJECTED\"",
                "found outcome \"APPLIED\"",
            ],
        ),
        (
            "UPDATE counterfoil_ledger SET result = '{}' WHERE sequence = 2",
            &["the ledger, sequence 2", "available", "found", "result \"{}\""],
        ),
        (
            "INSERT INTO counterfoil_ledger SELECT log, 7, 'more', fingerprint, outcome, reason,
                result, applied_at FROM counterfoil_ledger WHERE sequence = 6",
            &["the ledger, above the cursor at 6", "found sequence 7"],
        ),
        (
            "UPDATE counterfoil_cursor SET sequence = 5",
            &["the ledger, above the cursor at 5", "found sequence 6"],
        ),
        (
            "UPDATE counterfoil_cursor SET sequence = 7",
            &["the file's cursor", "below 7", "found 7"],
        ),
        (
            "UPDATE counterfoil_cursor SET chain = zeroblob(32)",
            &["the file's cursor, sequence 6", "found chain 0000"],
        ),
        (
            "UPDATE counterfoil_cursor SET log_id = '01234567-89ab-4def-8123-456789abcdef'",
            &["the file's cursor", "found log 01234567-89ab-4def-8123-456789abcdef"],
        ),
        // Rows that are said to have been pruned, and a count that does not fit.
        (
            "INSERT INTO counterfoil_meta VALUES ('ledger_from', '4'),
                ('ledger_chain', hex(zeroblob(32))), ('ledger_counts', '{\"APPLIED\":3}');
             DELETE FROM counterfoil_ledger WHERE sequence < 4",
            &["the ledger's pruned rows", "expected 4", "found 3"],
        ),
        (
            "INSERT INTO counterfoil_meta VALUES ('ledger_from', '4'),
                ('ledger_chain', hex(zeroblob(32))), ('ledger_counts', '{\"APPLIED\":4}');
             DELETE FROM counterfoil_ledger WHERE sequence < 4",
            &["the ledger, sequence 3", "expected chain", "found chain 0000"],
        ),
    ];
    let pair = mixed().await;
    let url = pair.publisher.url();
    let db = pair.receiver.db().to_owned();
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let damaged = pair.dir.path().join("damaged.db");
    for (sql, parts) in cases {
        std::fs::copy(&db, &damaged).expect("a clean end leaves everything in one file");
        change(&damaged, sql);
        println!("{sql}");
        different(&url, &damaged, parts);
        for ending in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{ending}", damaged.display()));
        }
    }
    equal(&url, &db);
}

fn projection_version(db: &Path) -> i64 {
    let version = "SELECT value FROM counterfoil_meta WHERE name = 'projection_version'";
    let text = ledger::open(db).query_row(version, [], |row| row.get::<_, String>(0));
    text.expect("noted").parse().expect("a number")
}

/// Uploads a copy of a database as it is now, as one at this cursor.
async fn stores_snapshot(publisher: &Publisher, db: &Path, cursor: &Cursor) {
    let copy = db.with_extension("copy");
    let _ = std::fs::remove_file(&copy);
    let vacuum = "VACUUM INTO ?1";
    let made = ledger::open(db).execute(vacuum, [copy.to_str().expect("UTF-8")]);
    made.expect("a copy");
    let bytes = Bytes::from(std::fs::read(&copy).expect("readable"));
    let snapshot = Snapshot {
        cursor: Some(cursor.clone()),
        projection: "inventory".into(),
        projection_version: Some(projection_version(db)),
        schema_digest: Bytes::from_static(&[1; 32]),
        size_bytes: Some(bytes.len() as i64),
        sha256: Bytes::copy_from_slice(&Sha256::digest(&bytes)),
        receiver: "receiver".into(),
        create_time: Some(Default::default()),
        ..Default::default()
    };
    let snapshots = Snapshots::of(publisher);
    let offset = snapshots.offset(&snapshot).await as usize;
    let upload = snapshots.open_upload(&snapshot);
    for from in (offset..bytes.len()).step_by(1 << 20) {
        let to = bytes.len().min(from + (1 << 20));
        upload.piece(from as u64, bytes.slice(from..to)).await;
    }
    upload.answer().await.expect("stored");
}

/// A log that no longer starts at 0, and a ledger that is pruned: the tables are made again
/// from the oldest snapshot that the log goes on from.
#[tokio::test(flavor = "multi_thread")]
async fn behind_a_truncated_log_a_snapshot_is_what_the_tables_are_made_again_from() {
    let mut pair = Pair::with(|publisher| {
        publisher.config("[logs.main]\nmax_events = 50\nsegment_bytes = 4096\n")
    });
    let keeping = pair.receiver.successor().arg("--keep-ledger=retained");
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    pair.receiver = keeping.start();
    let (url, db) = (pair.publisher.url(), pair.receiver.db().to_owned());
    for round in ["k", "l", "m"] {
        pair.carries(adjustments(round, 39)).await;
        pair.carries(vec![reserved(&format!("r-{round}"), "item-1", "t", 1, 0)]).await;
    }
    // The receiver makes some by itself, too, as retention asks for them.
    pair.receiver.snapshot().await.expect("stored");
    pair.carries(adjustments("n", 10)).await;
    pair.receiver.snapshot().await.expect("stored");
    pair.carries(adjustments("o", 20)).await;
    wait_until("the ledger is pruned", async || {
        (pair.receiver.status().await.ledger_from_sequence == Some(100)).then_some(())
    })
    .await;
    let report = equal(&url, &db);
    let rebuilt_from = report["rebuiltFrom"].as_i64().expect("a snapshot");
    assert!((119..150).contains(&rebuilt_from), "{report}");
    assert_eq!(report["events"], serde_json::json!({"from": 100, "last": 149}));
    assert_eq!(report["ledger"], serde_json::json!({"from": 100, "rows": 50}));
    assert_eq!(
        (&report["outcomes"]["APPLIED"], &report["outcomes"]["REJECTED"]),
        (&147.into(), &3.into())
    );

    change(&db, "UPDATE stock SET version = version + 1 WHERE item = 'item-3'");
    different(&url, &db, &["table stock, item \"item-3\"", "version"]);
    change(&db, "UPDATE stock SET version = version - 1 WHERE item = 'item-3'");
    let counts =
        "UPDATE counterfoil_meta SET value = '{\"APPLIED\":100}' WHERE name = 'ledger_counts'";
    change(&db, counts);
    different(&url, &db, &["all that is APPLIED", "expected 147", "found 149"]);
    change(&db, "UPDATE counterfoil_meta SET value = '100' WHERE name = 'ledger_chain'");
    let unreadable = verify(&url, &db, &[]);
    assert_eq!(unreadable.code(), Some(1), "{unreadable:?}");
}

/// A receiver on an empty database behind a truncated log goes on from a snapshot by itself,
/// and is equal to the log then.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_installed_from_a_snapshot_is_equal() {
    let pair = Pair::with(|publisher| {
        publisher.config("[logs.main]\nmax_events = 50\nsegment_bytes = 4096\n")
    });
    for round in ["k", "l", "m"] {
        pair.carries(adjustments(round, 40)).await;
    }
    let made = counterfoil(["snapshot", "--receiver", &pair.receiver.url()]).run();
    assert_eq!(made.code(), Some(0), "{made:?}");
    pair.carries(adjustments("n", 10)).await;
    let fresh = pair.receiver.successor().named("fresh").listen_anywhere().start();
    fresh.applies(129).await;
    for db in [fresh.db(), pair.receiver.db()] {
        let report = equal(&pair.publisher.url(), db);
        assert_eq!(report["rebuiltFrom"], 119, "{report}");
        assert_eq!(report["cursor"]["sequence"], 129, "{report}");
    }
}

/// A snapshot that is not what it was offered as.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_something_else_is_found_out() {
    let pair = Pair::start();
    for round in ["k", "l", "m"] {
        pair.carries(adjustments(round, 30)).await;
    }
    let cursor = pair.publisher.acked("receiver").await.expect("acknowledged");
    let db = pair.receiver.db().to_owned();
    // Nobody is there any more who would make right ones.
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let retaining = pair.publisher.successor().config("[logs.main]\nmax_events = 50\n");
    assert_eq!(pair.publisher.terminate().code(), Some(0));
    let publisher = retaining.start();
    publisher.accepts(adjusted("last", "item-1", 1)).await;
    let other = mixed().await;
    stores_snapshot(&publisher, other.receiver.db(), &cursor).await;
    let parts = ["the publisher's snapshot", "at sequence 89", "one at 6"];
    different(&publisher.url(), &db, &parts);
}

/// The database of a receiver of another publisher, which has the same log by name.
#[tokio::test(flavor = "multi_thread")]
async fn another_log_of_that_name_is_named() {
    let (pair, other) = (mixed().await, mixed().await);
    let (ours, theirs) = (pair.publisher.log().await.log_id, other.publisher.log().await.log_id);
    let parts =
        ["the file's cursor", &format!("expected log {ours}"), &format!("found log {theirs}")];
    different(&pair.publisher.url(), other.receiver.db(), &parts);
}

/// Bytes of the file itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_no_reason_to_fall_over() {
    let pair = mixed().await;
    let db = pair.receiver.db().to_owned();
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let whole = std::fs::read(&db).expect("readable");
    let torn = [&whole[..8192], &vec![0xa5; whole.len() - 8192]].concat();
    std::fs::write(&db, torn).expect("written");
    let ended = verify(&pair.publisher.url(), &db, &[]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(said.contains("the file") || said.contains("malformed"), "{said}");
}

/// A publisher whose events are not what their fingerprints say, not those that the
/// receiver was sent, not all of them, or not what their chain says.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_tells_another_story_is_found_out() {
    let history = History::of(adjustments("k", 4));
    let honest = history.clone();
    let honestly =
        move |n: usize, request: &ReplayRequest| honest.honestly(n as i64 + 1, after(request));
    let fake = FakePublisher::start(honestly).await;
    let dir = directory();
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(3).await;
    let db = receiver.db().to_owned();
    assert_eq!(receiver.terminate().code(), Some(0));
    let silent = verify(&fake.url(), &db, &[]);
    assert_eq!(silent.code(), Some(1), "it has no GetLog: {silent:?}");
    assert!(silent.stderr.contains("error: ") && silent.stderr.contains(&fake.url()), "{silent:?}");
    fake.shows(&history);
    equal(&fake.url(), &db);

    let mut forged = history.event(2);
    forged.subject = "another".into();
    let other = {
        let mut other = history.clone();
        other.push(adjusted("k-4", "other", 1));
        Event { sequence: Some(2), ..other.event(4) }
    };
    let untold = history.batch(&[0, 1]);
    let stories = [
        (vec![history.batch_of(vec![forged], 2)], ["after sequence 1", "not its fingerprint's"]),
        (
            vec![history.batch_of(vec![other], 2)],
            ["the ledger, sequence 2", "expected key \"k-4\""],
        ),
        (vec![history.batch_of(vec![history.event(3)], 3)], ["expected event 2", "found event 3"]),
        (
            vec![history.batch_of(vec![history.event(2)], 1)],
            ["sequence 2", "the chain of its events"],
        ),
        (vec![Step::End], ["expected an event 3", "found that the log ends before 2"]),
    ];
    for (end, parts) in stories {
        let script = [vec![history.started(0), untold.clone()], end].concat();
        let liar = FakePublisher::start(move |_, _| script.clone()).await;
        liar.shows(&history);
        different(&liar.url(), &db, &parts);
    }
}

/// Keys that a publisher has let through again: noted, and without an effect.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_come_again_are_equal_too() {
    let again = vec![adjusted("k-0", "item-0", 1), adjusted("k-1", "item-1", 9)];
    let history = History::of([adjustments("k", 4), again].concat());
    let honest = history.clone();
    let fake =
        FakePublisher::start(move |n, request| honest.honestly(n as i64 + 1, after(request)));
    let fake = fake.await;
    fake.shows(&history);
    let dir = directory();
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(5).await;
    assert_eq!(receiver.ledger().outcomes()[4..], ["DUPLICATE", "REJECTED"]);
    let db = receiver.db().to_owned();
    assert_eq!(receiver.terminate().code(), Some(0));
    assert_eq!(equal(&fake.url(), &db)["outcomes"]["DUPLICATE"], 1);
    change(
        &db,
        "DROP INDEX counterfoil_ledger_key;
         UPDATE counterfoil_ledger SET outcome = 'APPLIED' WHERE sequence = 4",
    );
    different(&fake.url(), &db, &["key \"k-0\"", "one row that has the say", "found 2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_usage_is_said_with_code_2() {
    let pair = mixed().await;
    let (url, dir) = (pair.publisher.url(), pair.dir.path());
    let text = dir.join("text");
    std::fs::write(&text, "no database, but long enough to be looked at as one, it seems")
        .expect("written");
    let theirs = dir.join("theirs.db");
    change(&theirs, "CREATE TABLE users (n)");
    let empty = dir.join("empty.db");
    std::fs::write(&empty, "").expect("written");
    let db = pair.receiver.db();
    let cases: &[(&str, &Path, &[&str], &str)] = &[
        (&url, &dir.join("none.db"), &[], "no such file"),
        (&url, &text, &[], "not a SQLite database"),
        (&url, &theirs, &[], "another application"),
        (&url, &empty, &[], "nothing in it"),
        (&url, db, &["--log", "other"], "follows the log main"),
        ("nonsense", db, &[], "nonsense"),
        (&url, db, &["--dir", "/does/not/exist"], "/does/not/exist"),
    ];
    for (url, db, flags, said) in cases {
        let ended = verify(url, db, flags);
        assert_eq!(ended.code(), Some(2), "{said}: {ended:?}");
        assert!(ended.stderr.contains(said), "{said}: {ended:?}");
    }
    assert_eq!(std::fs::read(&empty).expect("readable"), b"", "nothing is written");
}
