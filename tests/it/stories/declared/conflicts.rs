//! What a conflict clause takes with it, and what is left of such clauses in a file.

use rusqlite::Connection;

use super::{Declared, file, noted};
use crate::harness::{events::event, pair::directory, receiver::Receiver};

/// A table with a CHECK, filled by a statement of the story's.
fn counted(sql: &str) -> String {
    format!(
        r#"
[projection]
name = "counted"
version = 1
[[migration]]
sql = "CREATE TABLE counted (k TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL CHECK (n > 0)) STRICT"
[[on]]
type = "thing.noted"
sql = "{sql}"
"#
    )
}

/// APP-11: `OR IGNORE` means repetitions and swallows a broken CHECK too: the event would
/// count as applied, without an effect. A file may not say it; a conflict with a name may be
/// passed over, and all else is a fault.
#[tokio::test(flavor = "multi_thread")]
async fn app_11_only_the_conflict_that_is_named_is_passed_over() {
    let swallowed = Connection::open_in_memory().expect("memory");
    swallowed
        .execute_batch("CREATE TABLE counted (k TEXT PRIMARY KEY, n INTEGER CHECK (n > 0)) STRICT")
        .expect("plain SQL");
    let rows = swallowed.execute("INSERT OR IGNORE INTO counted VALUES ('k', 0)", []);
    assert_eq!(rows, Ok(0), "what the rule is there for");

    let dir = directory();
    let values = "VALUES (:subject, :data ->> 'n')";
    let refused = [
        (format!("INSERT OR IGNORE INTO counted {values}"), "OR IGNORE"),
        (format!("INSERT INTO counted {values} ON CONFLICT DO NOTHING"), "DO NOTHING"),
        (format!("INSERT OR REPLACE INTO counted {values}"), "OR REPLACE"),
    ];
    for (sql, named) in refused {
        let ended = Receiver::check(&file(dir.path(), &counted(&sql)));
        assert_eq!(ended.code(), Some(1), "{sql}: {ended:?}");
        assert!(ended.stderr.contains("on[0].sql[0]"), "{ended:?}");
        assert!(ended.stderr.contains(named), "{ended:?}");
    }

    let sql = format!("INSERT INTO counted {values} ON CONFLICT (k) DO NOTHING");
    let pair = Declared::with(&counted(&sql), |setup| setup.arg("--apply-attempts=1"));
    pair.carries([noted("1", "k", r#"{"n":7}"#), noted("2", "k", r#"{"n":8}"#)]).await;
    assert_eq!(pair.value::<i64>("SELECT n FROM counted"), 7, "passed over");
    pair.publish([noted("3", "other", r#"{"n":0}"#)]).await;
    let failure = pair.halts().await;
    assert_eq!((failure.sequence, failure.class.as_str()), (Some(2), "CONSTRAINT"));
    assert_eq!(pair.value::<i64>("SELECT max(sequence) FROM counterfoil_ledger"), 1);
}

/// A customer and what hangs on it, filled by a statement of the story's.
fn customers(sql: &str) -> String {
    format!(
        r#"
[projection]
name = "customers"
version = 1
[[migration]]
sql = '''
{CUSTOMERS}
'''
[[on]]
type = "customer.seen"
sql = "{sql}"
[[on]]
type = "visit.noted"
sql = "INSERT INTO visit VALUES (:key, :subject)"
"#
    )
}

const CUSTOMERS: &str = "CREATE TABLE customer (name TEXT NOT NULL PRIMARY KEY, city TEXT) STRICT;
CREATE TABLE visit (key TEXT NOT NULL PRIMARY KEY,
    customer TEXT NOT NULL REFERENCES customer (name) ON DELETE CASCADE) STRICT;";

/// `OR REPLACE` deletes the row that it replaces, and with it what refers to it: shown on
/// plain SQLite, refused in a file, and left whole by the upsert that stands for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_is_written_anew_keeps_its_children() {
    let values = "VALUES (:subject, :data ->> 'city')";
    let replaces = format!("INSERT OR REPLACE INTO customer {values}");
    let wiped = Connection::open_in_memory().expect("memory");
    wiped
        .execute_batch(&format!(
            "PRAGMA foreign_keys = ON; {CUSTOMERS} INSERT INTO customer VALUES ('ada', 'Oslo');
             INSERT INTO visit VALUES ('v1', 'ada'), ('v2', 'ada');
             INSERT OR REPLACE INTO customer VALUES ('ada', 'Rome');"
        ))
        .expect("plain SQL");
    let left: i64 =
        wiped.query_row("SELECT count(*) FROM visit", [], |row| row.get(0)).expect("a number");
    assert_eq!(left, 0, "what the rule is there for");

    let dir = directory();
    let ended = Receiver::check(&file(dir.path(), &customers(&replaces)));
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    for part in ["on[0].sql[0]", "OR REPLACE", "ON CONFLICT"] {
        assert!(ended.stderr.contains(part), "{part} is missing: {ended:?}");
    }
    let ended = Receiver::at(dir.path(), "http://127.0.0.1:1")
        .projection(file(dir.path(), &customers(&replaces)))
        .refuses();
    assert_eq!(ended.code(), Some(2), "nor does it start: {ended:?}");

    let upsert = format!(
        "INSERT INTO customer {values} ON CONFLICT (name) DO UPDATE SET city = excluded.city"
    );
    let pair = Declared::start(&customers(&upsert));
    let seen = |key: &str, city: &str| {
        event(key, "customer.seen", "ada", &format!(r#"{{"city":"{city}"}}"#))
    };
    let visit = |key: &str| event(key, "visit.noted", "ada", "{}");
    pair.carries([seen("1", "Oslo"), visit("v1"), visit("v2"), seen("2", "Rome")]).await;
    assert_eq!(pair.value::<i64>("SELECT count(*) FROM visit"), 2);
    assert_eq!(pair.value::<String>("SELECT city FROM customer"), "Rome");
}
