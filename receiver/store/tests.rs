//! Databases that may be used, that may not, and that are brought back.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::*;
use crate::receiver::inventory::Inventory;

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let db = directory.path().join("test.db");
    (directory, db)
}

fn opened(db: &Path) -> Store {
    open(db, "main", &Inventory).expect("opened")
}

/// Something of ours in it, still in the write-ahead log.
fn filled(db: &Path) {
    let store = opened(db);
    store.connection.execute("INSERT INTO stock VALUES ('camera', 3, 1)", []).expect("written");
}

fn refusal(db: &Path) -> String {
    match open(db, "main", &Inventory) {
        Err(error @ OpenError::Refused(_)) => error.to_string(),
        Err(error) => panic!("refused, but for {error:?}"),
        Ok(_) => panic!("opened"),
    }
}

/// SQL-05, SQL-13: what the promises rest on is set on every open.
#[test]
fn settings_are_set() {
    let (_directory, db) = directory();
    for _ in 0..2 {
        let store = opened(&db);
        let word = |pragma: &str| -> String {
            let sql = format!("SELECT CAST({pragma} AS TEXT) FROM pragma_{pragma}");
            store.connection.query_row(&sql, [], |row| row.get(0)).expect(pragma)
        };
        assert_eq!(word("journal_mode"), "wal");
        assert_eq!(word("synchronous"), "2");
        assert_eq!(word("foreign_keys"), "1");
        let number = |pragma| -> i64 {
            store.connection.pragma_query_value(None, pragma, |row| row.get(0)).expect(pragma)
        };
        assert_eq!(number("wal_autocheckpoint"), 0);
        let orphan = "INSERT INTO reservation VALUES ('k', 't', 'no such item', 1)";
        store.connection.execute(orphan, []).expect_err("an orphan");
    }
}

#[test]
fn every_table_is_strict() {
    let (_directory, db) = directory();
    let store = opened(&db);
    let lax: i64 = store
        .connection
        .query_row(
            "SELECT count(*) FROM pragma_table_list WHERE type = 'table' AND schema = 'main'
               AND NOT strict AND name NOT LIKE 'sqlite_%'",
            [],
            |row| row.get(0),
        )
        .expect("a number");
    assert_eq!(lax, 0);
}

#[test]
fn what_is_not_ours_is_refused_and_left_alone() {
    let changes = [
        ("PRAGMA user_version = 4", "newer"),
        ("PRAGMA application_id = 7", "another application"),
        ("UPDATE counterfoil_meta SET value = 'other' WHERE name = 'projection'", "other"),
        ("UPDATE counterfoil_meta SET value = '9' WHERE name = 'projection_version'", "9"),
        ("UPDATE counterfoil_meta SET value = 'orders' WHERE name = 'log'", "orders"),
    ];
    for (change, word) in changes {
        let (_directory, db) = directory();
        opened(&db).connection.execute_batch(change).expect(change);
        let said = refusal(&db);
        assert!(said.contains(word), "{change}: {said}");
        assert!(refusal(&db).contains(word), "{change}, again");
    }
    let (_directory, db) = directory();
    Connection::open(&db).and_then(|c| c.execute_batch("CREATE TABLE mine (a)")).expect("theirs");
    assert!(refusal(&db).contains("another application"));
    fs::write(&db, "not a database, but long enough to be looked at as one, it seems")
        .expect("written");
    assert!(refusal(&db).contains("not a SQLite database"));
}

#[test]
fn one_receiver_at_a_time() {
    let (_directory, db) = directory();
    let held = lock::lock(&db).expect("free");
    let refused = lock::lock(&db).expect_err("held");
    assert_eq!(refused.code(), 3);
    drop(held);
    lock::lock(&db).expect("free again");
}

#[test]
fn one_name_for_one_database() {
    let (directory, db) = directory();
    let missing = lock::real_name(&db).expect("its directory is there");
    filled(&db);
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&db, &link).expect("linked");
    let names = [&db, &link].map(|name| lock::real_name(name).expect("it is there"));
    assert_eq!(names, [missing.clone(), missing]);
}

/// The barrier: nothing is opened while a reader keeps the write-ahead log.
#[test]
fn an_open_crosses_the_barrier() {
    let (_directory, db) = directory();
    filled(&db);
    let wal = lock::beside(&db, "-wal");
    assert!(fs::metadata(&wal).expect("a write-ahead log").len() > 0);
    drop(opened(&db));
    assert_eq!(fs::metadata(&wal).expect("a write-ahead log").len(), 0);

    filled_again(&db);
    let reader = open_for_reading(&db).expect("readable");
    reader.execute_batch("BEGIN; SELECT * FROM stock").expect("a snapshot");
    assert!(matches!(open(&db, "main", &Inventory), Err(OpenError::Held)));
    drop(reader);
    opened(&db);
}

fn filled_again(db: &Path) {
    let store = opened(db);
    store.connection.execute("UPDATE stock SET version = version + 1", []).expect("written");
}

#[test]
fn a_marked_database_is_served_only_after_recover() {
    let (directory, db) = directory();
    filled(&db);
    lock::mark_halted(&db, "a sync failed");
    let refused = lock::refuse_halted(&db).expect_err("marked");
    assert_eq!(refused.code(), 1);
    for words in ["a sync failed", "receiver recover --db"] {
        assert!(refused.to_string().contains(words), "{refused}");
    }
    let kept = recover::recover(&db).expect("recovered");
    lock::refuse_halted(&db).expect("no marker");
    assert!(kept.exists(), "the old file is kept");
    assert!(lock::beside(&kept, "-wal").exists(), "with its write-ahead log");
    let store = opened(&db);
    let found: i64 = store
        .connection
        .query_row("SELECT available FROM stock", [], |row| row.get(0))
        .expect("what was there");
    assert_eq!(found, 3);
    let left = fs::read_dir(directory.path()).expect("readable").filter_map(Result::ok);
    let left: Vec<_> =
        left.filter(|f| f.file_name().to_string_lossy().contains("recover")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// Killed between the renames: the second run takes the finished copy and goes on.
#[test]
fn recover_may_be_interrupted() {
    let (_directory, db) = directory();
    filled(&db);
    lock::mark_halted(&db, "a sync failed");
    let store = opened(&db);
    let copy = lock::beside(&db, ".recovered");
    store.connection.execute("VACUUM INTO ?1", [copy.to_str()]).expect("copied");
    drop(store);
    fs::rename(lock::beside(&db, "-wal"), lock::beside(&db, ".kept-1-wal")).expect("renamed");
    fs::rename(&db, lock::beside(&db, ".kept-1")).expect("renamed");
    recover::recover(&db).expect("recovered");
    let store = opened(&db);
    let found: i64 = store
        .connection
        .query_row("SELECT available FROM stock", [], |row| row.get(0))
        .expect("what was there");
    assert_eq!(found, 3);
    lock::refuse_halted(&db).expect("no marker");
}

#[test]
fn recover_without_a_database_says_so() {
    let (_directory, db) = directory();
    let failure = recover::recover(&db).expect_err("nothing there");
    assert!(failure.to_string().contains("there is no database"), "{failure}");
}

#[test]
fn a_database_with_two_names_is_refused() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let db = directory.path().join("one.db");
    std::fs::write(&db, "").expect("written");
    std::fs::hard_link(&db, directory.path().join("two.db")).expect("linked");
    let refused = lock::lock(&db).expect_err("two names").to_string();
    assert!(refused.contains("2 names"), "{refused}");
}

#[test]
fn another_applications_database_is_not_recovered() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let db = directory.path().join("app.db");
    Connection::open(&db)
        .and_then(|app| app.execute_batch("CREATE TABLE users (n); INSERT INTO users VALUES (1)"))
        .expect("made");
    let refused = recover::recover(&db).expect_err("not ours").to_string();
    assert!(refused.contains("another application"), "{refused}");
    let names = std::fs::read_dir(directory.path()).expect("listed").count();
    assert_eq!(names, 2, "the database and the lock, as before");
}

/// What format 1 has left is there in this one, and a second open finds nothing to do.
#[test]
fn an_earlier_format_is_brought_to_this_one() {
    let (_directory, db) = directory();
    drop(opened(&db));
    let old = Connection::open(&db).expect("opened");
    old.execute_batch(
        "DROP TABLE counterfoil_outbox;
         DROP TABLE counterfoil_skipped;
         DROP TABLE counterfoil_ledger;
         CREATE TABLE counterfoil_ledger (
             log TEXT NOT NULL, sequence INTEGER NOT NULL CHECK (sequence >= 0),
             key TEXT NOT NULL, fingerprint BLOB NOT NULL CHECK (length(fingerprint) = 32),
             outcome TEXT NOT NULL CHECK (outcome IN ('APPLIED', 'IGNORED', 'REJECTED', 'DUPLICATE')),
             reason TEXT, result TEXT, applied_at INTEGER NOT NULL, PRIMARY KEY (log, sequence)
         ) STRICT, WITHOUT ROWID;
         CREATE UNIQUE INDEX counterfoil_ledger_key ON counterfoil_ledger (log, key)
             WHERE outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict';
         INSERT INTO counterfoil_ledger VALUES
             ('main', 1, 'a', zeroblob(32), 'DUPLICATE', NULL, NULL, 7),
             ('main', 0, 'a', zeroblob(32), 'REJECTED', 'unknown_item', '{}', 5);
         PRAGMA user_version = 1;",
    )
    .expect("as format 1 was");
    drop(old);
    for _ in 0..2 {
        let tables = opened(&db).connection;
        let row = ledger::by_key(&tables, "main", "a").expect("readable").expect("there");
        assert_eq!((row.sequence, row.reason.as_deref()), (0, Some("unknown_item")));
        assert_eq!((row.result.as_deref(), row.applied_at_ms), (Some("{}"), 5));
        let row = ledger::by_sequence(&tables, "main", 1).expect("readable").expect("there");
        assert_eq!(row.outcome, crate::proto::outcome::Outcome::Duplicate);
        let again = "INSERT INTO counterfoil_ledger
            VALUES ('main', 2, 'a', zeroblob(32), 'APPLIED', NULL, NULL, 9)";
        tables.execute(again, []).expect_err("a key has one row that has the say");
        let tables: i64 = tables
            .query_row("SELECT count(*) FROM sqlite_schema WHERE name LIKE '%ledger%'", [], |row| {
                row.get(0)
            })
            .expect("countable");
        assert_eq!(tables, 2, "the table and its index");
    }
}

/// What format 2 has left gets what it lacks, word for word as a new database has it.
#[test]
fn format_2_gets_the_tables_that_it_lacks() {
    let (_directory, db) = directory();
    drop(opened(&db));
    let old = Connection::open(&db).expect("opened");
    old.execute_batch(
        "DROP TABLE counterfoil_outbox; DROP TABLE counterfoil_skipped; PRAGMA user_version = 2;",
    )
    .expect("as format 2 was");
    drop(old);
    let tables = opened(&db).connection;
    let kind = Kind::of("main", &Inventory).expect("declared");
    assert!(kind.stands_in(&tables).expect("readable"));
}

/// Readers that overlap, each beginning before the one before it ends, while 40 MiB are
/// written. `through`: whether they come through the gate. How large the write-ahead log was.
fn peak_beside_overlapping_readers(through: bool) -> u64 {
    let (_directory, db) = directory();
    let mut store = opened(&db);
    let wal = lock::beside(&db, "-wal");
    let mut inside = None;
    let mut peak = 0;
    for n in 0..160 {
        let entered = if through { store.gate().try_enter().map(Some) } else { Some(None) };
        let next = entered.map(|entered| {
            let reader = open_for_reading(&db).expect("readable");
            reader.execute_batch("BEGIN; SELECT * FROM stock").expect("a snapshot");
            (reader, entered)
        });
        drop(std::mem::replace(&mut inside, next));
        let write = "INSERT INTO stock VALUES (?1 || hex(zeroblob(128 * 1024)), 1, 1)";
        store.connection.execute(write, [n]).expect("written");
        store.after_commit().expect("no error");
        peak = peak.max(fs::metadata(&wal).map_or(0, |file| file.len()));
    }
    peak
}

/// SQL-04: readers that leave no moment without a reader would let the write-ahead log grow
/// with all that is written.
#[test]
fn readers_that_overlap_leave_a_moment_to_cut_the_log() {
    const MIB: u64 = 1 << 20;
    let (gated, ungated) =
        (peak_beside_overlapping_readers(true), peak_beside_overlapping_readers(false));
    assert!(gated < 24 * MIB, "{gated} bytes");
    assert!(ungated > 32 * MIB, "{ungated} bytes: nothing is shown by this");
}
