use std::collections::BTreeSet;

use rusqlite::Connection;

use super::{Guard, Mode, functions};

fn guarded() -> (Connection, Guard) {
    let mut tables = Connection::open_in_memory().expect("memory");
    tables
        .execute_batch(
            "PRAGMA foreign_keys = ON;
             PRAGMA trusted_schema = OFF;
             CREATE TABLE counterfoil_meta (a INTEGER PRIMARY KEY) STRICT;
             CREATE TABLE mine (a INTEGER PRIMARY KEY, b TEXT) STRICT;
             CREATE VIEW theirs AS SELECT a FROM counterfoil_meta;
             BEGIN",
        )
        .expect("plain SQL");
    let guard = Guard::on(&mut tables).expect("authorizer");
    (tables, guard)
}

fn refused(mode: Mode, sql: &str) -> String {
    let (tables, guard) = guarded();
    guard.during(mode, || tables.execute_batch(sql)).expect_err(sql);
    guard.take_refused().unwrap_or_default()
}

const CASES: [(&str, &str); 41] = [
    ("COMMIT", "transaction control"),
    ("ROLLBACK", "transaction control"),
    ("SAVEPOINT s", "SAVEPOINT"),
    ("ATTACH ':memory:' AS other", "ATTACH"),
    ("ATTACH lower(':MEMORY:') AS other", "ATTACH"),
    ("DETACH main", "DETACH"),
    ("PRAGMA synchronous = OFF", "PRAGMA synchronous"),
    ("PRAGMA user_version", "PRAGMA user_version"),
    ("SELECT * FROM pragma_table_info('mine')", "a read of pragma_table_info"),
    ("SELECT count(*) FROM pragma_user_version", "a read of pragma_user_version"),
    ("SELECT * FROM dbstat", "a read of dbstat"),
    ("INSERT INTO counterfoil_meta VALUES (1)", "a write to counterfoil_meta"),
    ("INSERT INTO Counterfoil_Meta VALUES (1)", "a write to counterfoil_meta"),
    ("UPDATE counterfoil_meta SET a = 2", "a write to counterfoil_meta"),
    ("DELETE FROM counterfoil_meta", "a write to counterfoil_meta"),
    ("SELECT a FROM counterfoil_meta", "a read of counterfoil_meta"),
    ("SELECT count(*) FROM COUNTERFOIL_META", "a read of COUNTERFOIL_META"),
    ("SELECT * FROM theirs", "a read of counterfoil_meta"),
    ("INSERT INTO mine SELECT a, '' FROM counterfoil_meta", "a read of counterfoil_meta"),
    ("DROP TABLE counterfoil_meta", "DROP TABLE counterfoil_meta"),
    ("ALTER TABLE counterfoil_meta ADD COLUMN b TEXT", "ALTER TABLE counterfoil_meta"),
    ("CREATE TABLE counterfoil_more (a)", "CREATE TABLE counterfoil_more"),
    ("CREATE TABLE \"CounterFoil_more\" (a)", "CREATE TABLE CounterFoil_more"),
    ("CREATE INDEX i ON counterfoil_meta (a)", "CREATE INDEX i"),
    ("CREATE INDEX counterfoil_i ON mine (a)", "CREATE INDEX counterfoil_i"),
    (
        "CREATE TRIGGER t AFTER INSERT ON counterfoil_meta BEGIN SELECT 1; END",
        "CREATE TRIGGER t on counterfoil_meta",
    ),
    ("CREATE TEMP TABLE t (a)", "TEMP"),
    ("CREATE TEMP VIEW t AS SELECT 1", "TEMP"),
    ("CREATE TEMP TRIGGER t AFTER INSERT ON mine BEGIN SELECT 1; END", "CREATE TEMP TRIGGER t"),
    ("CREATE VIRTUAL TABLE f USING fts5 (x)", "CREATE VIRTUAL TABLE f"),
    ("ANALYZE", "ANALYZE"),
    ("SELECT random()", "the function random()"),
    ("SELECT RANDOM()", "the function random()"),
    ("INSERT INTO mine VALUES (1, CURRENT_TIMESTAMP)", "the function current_timestamp()"),
    ("SELECT CURRENT_DATE", "the function current_date()"),
    ("SELECT CURRENT_TIME", "the function current_time()"),
    ("SELECT last_insert_rowid()", "the function last_insert_rowid()"),
    ("SELECT changes()", "the function changes()"),
    ("SELECT load_extension('x')", "the function load_extension()"),
    ("SELECT sqlite_version()", "the function sqlite_version()"),
    ("UPDATE mine SET b = randomblob(1)", "the function randomblob()"),
];

#[test]
fn neither_handlers_nor_migrations_leave_their_own_tables() {
    for (sql, what) in CASES {
        assert_eq!(refused(Mode::Migration, sql), what, "{sql}");
        // What makes something begins with the schema.
        let said = refused(Mode::Handler, sql);
        assert!(said == what || said == "a change of the schema", "{sql}: {said}");
    }
    // A statement that makes a table cannot be prepared for a handler, its own or not.
    for sql in [
        "CREATE TABLE t (a)",
        "DROP TABLE mine",
        "CREATE INDEX i ON mine (b)",
        "ALTER TABLE mine ADD COLUMN c TEXT",
        "CREATE VIEW v AS SELECT 1",
    ] {
        assert_ne!(refused(Mode::Handler, sql), "", "{sql}");
        assert_ne!(refused(Mode::Query, sql), "", "{sql}");
    }
}

#[test]
fn queries_read_and_may_ask_for_the_time() {
    let (tables, guard) = guarded();
    for sql in [
        "INSERT INTO mine VALUES (1, '')",
        "DELETE FROM mine",
        "UPDATE mine SET b = ''",
        "SELECT * FROM theirs",
        "BEGIN",
        "PRAGMA foreign_keys",
        "SELECT load_extension('x')",
    ] {
        guard.during(Mode::Query, || tables.prepare(sql).map(drop)).expect_err(sql);
    }
    for sql in [
        "SELECT datetime('now'), CURRENT_TIMESTAMP, random() FROM mine",
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT i FROM n",
        "SELECT value FROM json_each('[1]')",
    ] {
        guard.during(Mode::Query, || tables.prepare(sql).map(drop)).expect(sql);
    }
}

#[test]
fn handlers_do_with_rows_what_sql_can() {
    let (tables, guard) = guarded();
    let sql = "INSERT INTO mine VALUES (1, 'a') ON CONFLICT (a) DO UPDATE SET b = excluded.b;
         INSERT INTO mine SELECT value, key FROM json_each('[5, 6]') RETURNING a;
         WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n WHERE i < 13)
         INSERT INTO mine SELECT i, '' FROM n;
         UPDATE mine SET b = upper(b) || '{\"a\":1}' ->> 'a' WHERE a IN (SELECT max(a) FROM mine);
         DELETE FROM mine WHERE a > 11";
    guard.during(Mode::Handler, || tables.execute_batch(sql)).expect("its own");
    assert_eq!(guard.take_refused(), None);
    tables.execute_batch("INSERT INTO counterfoil_meta VALUES (1); COMMIT").expect("ours again");
}

/// The last number that a row can have, in whatever way a row gets it.
#[test]
fn a_row_with_the_last_number_is_noticed() {
    const LAST: &str = "9223372036854775807";
    let cases = [
        ("INSERT INTO mine VALUES (LAST, 'a')", true),
        ("INSERT INTO mine VALUES (LAST - 1, 'a')", false),
        ("INSERT INTO mine VALUES (-LAST - 1, 'a')", false),
        ("INSERT INTO mine VALUES (LAST, 'a'); DELETE FROM mine", true),
        ("INSERT INTO mine VALUES (LAST - 1, 'a'); INSERT INTO mine (b) VALUES ('b')", true),
        ("INSERT INTO mine VALUES (1, 'a'); UPDATE mine SET a = LAST", true),
        (
            "INSERT INTO mine VALUES (1, 'a');
             INSERT INTO mine VALUES (1, 'b') ON CONFLICT (a) DO UPDATE SET a = LAST",
            true,
        ),
        ("INSERT INTO mine SELECT value, '' FROM json_each('[1, LAST, 2]')", true),
        ("INSERT INTO mine SELECT * FROM kept", true),
        (
            "INSERT INTO parent VALUES (1); INSERT INTO child VALUES (1);
          UPDATE parent SET a = LAST WHERE a = 1",
            true,
        ),
        ("INSERT INTO watched VALUES (LAST)", true),
        ("INSERT INTO keyed VALUES (LAST)", false),
        ("INSERT INTO numbered (a) VALUES (LAST); INSERT INTO numbered (b) VALUES ('')", true),
        ("DELETE FROM kept", false),
        ("SELECT a FROM kept", false),
    ];
    let set_up = "CREATE TABLE kept (a INTEGER PRIMARY KEY, b TEXT) STRICT;
         INSERT INTO kept VALUES (LAST, 'kept');
         CREATE TABLE parent (a INTEGER NOT NULL UNIQUE) STRICT;
         CREATE TABLE child (a INTEGER PRIMARY KEY REFERENCES parent (a) ON UPDATE CASCADE) STRICT;
         CREATE TABLE watched (n INTEGER) STRICT;
         CREATE TRIGGER t AFTER INSERT ON watched BEGIN INSERT INTO mine VALUES (new.n, ''); END;
         CREATE TABLE keyed (a INTEGER NOT NULL PRIMARY KEY) STRICT, WITHOUT ROWID;
         CREATE TABLE numbered (a INTEGER PRIMARY KEY AUTOINCREMENT, b TEXT) STRICT;";
    for mode in [Mode::Handler, Mode::Migration] {
        for (sql, noticed) in cases {
            let (tables, guard) = guarded();
            tables.execute_batch(&set_up.replace("LAST", LAST)).expect("plain SQL");
            assert_eq!(guard.took_last_row(), None, "the receiver's own");
            let sql = sql.replace("LAST", LAST);
            let done = guard.during(mode, || tables.execute_batch(&sql));
            // A table with AUTOINCREMENT is full after it.
            assert_eq!(done.is_ok(), !sql.contains("numbered"), "{sql}: {done:?}");
            assert_eq!(guard.took_last_row().is_some(), noticed, "{sql}");
            assert_eq!(guard.took_last_row(), None, "told once");
        }
    }
    let (tables, guard) = guarded();
    let last = format!("INSERT INTO mine VALUES ({LAST}, 'a')");
    guard.during(Mode::Handler, || tables.execute_batch(&last)).expect("taken");
    guard.during(Mode::Handler, || {});
    assert_eq!(guard.took_last_row(), None, "what was before is not told of what comes next");
}

#[test]
fn migrations_make_and_change_all_that_is_not_temporary_or_virtual() {
    let (tables, guard) = guarded();
    let steps = [
        "CREATE TABLE p (a INTEGER PRIMARY KEY AUTOINCREMENT, b TEXT UNIQUE) STRICT",
        "CREATE TABLE k (a INTEGER REFERENCES p (a) ON DELETE CASCADE, t TEXT PRIMARY KEY,
             g INTEGER AS (a + 1) STORED, CHECK (a > 0)) STRICT, WITHOUT ROWID",
        "CREATE INDEX k_a ON k (a, date(t)) WHERE a IS NOT NULL",
        "CREATE VIEW v AS SELECT a, t FROM k JOIN p USING (a)",
        "CREATE TRIGGER t AFTER INSERT ON p BEGIN INSERT INTO mine VALUES (new.a, new.b); END",
        "INSERT INTO p (b) VALUES ('x'), ('y')",
        "INSERT INTO k (a, t) VALUES (1, '2026-01-01')",
        "CREATE TABLE copied AS SELECT * FROM v",
        "ALTER TABLE copied RENAME TO copy",
        "ALTER TABLE copy RENAME COLUMN t TO u",
        "ALTER TABLE copy ADD COLUMN n INTEGER NOT NULL DEFAULT 3 CHECK (n > 0)",
        "ALTER TABLE copy ADD COLUMN g AS (n + 1) VIRTUAL",
        "ALTER TABLE copy DROP COLUMN g",
        "ALTER TABLE p RENAME COLUMN b TO c",
        "ALTER TABLE p RENAME TO q",
        "DROP TRIGGER t",
        "DROP INDEX k_a",
        "DROP VIEW v",
        "DELETE FROM q",
        "DROP TABLE k",
        "DROP TABLE q",
    ];
    for sql in steps {
        let done = guard.during(Mode::Migration, || tables.execute_batch(sql));
        assert!(done.is_ok(), "{sql}: {done:?}, refused {:?}", guard.take_refused());
    }
}

#[test]
fn a_trigger_a_view_and_a_foreign_key_are_no_way_around() {
    let (tables, guard) = guarded();
    tables
        .execute_batch(
            "CREATE TABLE keyed (a INTEGER REFERENCES counterfoil_meta (a)) STRICT;
             CREATE TABLE watched (a INTEGER) STRICT;
             CREATE TRIGGER t AFTER INSERT ON watched
             BEGIN INSERT INTO counterfoil_meta VALUES (new.a); END;
             CREATE TABLE dated (a INTEGER) STRICT;
             CREATE TRIGGER d AFTER INSERT ON dated
             BEGIN UPDATE dated SET a = random(); END;
             CREATE VIEW drawn AS SELECT random() AS a;",
        )
        .expect("in the receiver's own mode");
    for (sql, what) in [
        ("INSERT INTO keyed VALUES (1)", "a read of counterfoil_meta"),
        ("INSERT INTO watched VALUES (1)", "a write to counterfoil_meta"),
        ("INSERT INTO dated VALUES (1)", "the function random()"),
        ("SELECT a FROM drawn", "the function random()"),
    ] {
        guard.during(Mode::Handler, || tables.prepare(sql).map(drop)).expect_err(sql);
        assert_eq!(guard.take_refused().as_deref(), Some(what), "{sql}");
    }
}

/// What SQLite itself calls deterministic, and nothing else, may be used.
#[test]
fn every_function_that_is_not_deterministic_is_known() {
    let tables = Connection::open_in_memory().expect("memory");
    let mut list = tables
        .prepare(
            "SELECT DISTINCT name FROM pragma_function_list
             WHERE builtin AND type = 's' AND flags & 0x800 = 0",
        )
        .expect("listed");
    let names = list.query_map([], |row| row.get(0)).expect("listed");
    let names: BTreeSet<String> = names.collect::<rusqlite::Result<_>>().expect("text");
    let unknown: Vec<_> = names.iter().filter(|name| functions::is_deterministic(name)).collect();
    assert!(unknown.is_empty(), "{unknown:?} of {names:?}");
}

/// No table-valued function shows what does not follow from its arguments.
#[test]
fn every_module_that_can_be_read_is_known() {
    let (tables, guard) = guarded();
    let mut list = tables.prepare("SELECT name FROM pragma_module_list").expect("listed");
    let names = list.query_map([], |row| row.get(0)).expect("listed");
    let names: Vec<String> = names.collect::<rusqlite::Result<_>>().expect("text");
    assert!(names.len() > 3, "{names:?}");
    for name in names {
        for sql in [format!("SELECT * FROM {name}"), format!("SELECT count(*) FROM {name}('')")] {
            let found = guard.during(Mode::Handler, || tables.prepare(&sql).map(drop));
            let readable = super::rules::READABLE_MODULES.contains(&name.as_str());
            assert_eq!(found.is_ok(), readable, "{sql}: {found:?}");
        }
    }
}
