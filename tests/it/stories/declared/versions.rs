//! A migration that fails half-way has not begun.

use rusqlite::Connection;

use super::{Declared, file, noted, value};
use crate::harness::{ledger::open, receiver::Setup};

/// Version 2 adds a table, fills it, and wants of the rows that there are what they are not.
fn things(version: i64) -> String {
    let second = r#"
[[migration]]
sql = '''
CREATE TABLE extra (k TEXT NOT NULL) STRICT;
INSERT INTO extra SELECT key FROM thing;
UPDATE thing SET name = 'written over';
CREATE UNIQUE INDEX thing_name ON thing (name);
'''
"#;
    let second = if version == 1 { "" } else { second };
    format!(
        r#"
[projection]
name = "things"
version = {version}
[[migration]]
sql = "CREATE TABLE thing (key TEXT NOT NULL PRIMARY KEY, name TEXT NOT NULL) STRICT"
{second}
[[on]]
type = "thing.noted"
sql = "INSERT INTO thing VALUES (:key, :subject)"
"#
    )
}

/// Everything that a database says.
fn contents(db: &Connection) -> Vec<String> {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name";
    let mut names = db.prepare(tables).expect("readable");
    let names: Vec<String> =
        names.query_map([], |row| row.get(0)).and_then(Iterator::collect).expect("names");
    let mut all = Vec::new();
    for name in names.iter().map(String::as_str).chain(["sqlite_schema"]) {
        let mut rows = db.prepare(&format!("SELECT * FROM {name}")).expect("a table");
        let columns = rows.column_count();
        let rows = rows.query_map([], |row| {
            let values = (0..columns).map(|n| row.get_ref(n).map(|value| format!("{value:?}")));
            Ok(format!("{name}: {}", values.collect::<Result<Vec<_>, _>>()?.join(", ")))
        });
        let rows: Vec<String> = rows.and_then(Iterator::collect).expect("rows");
        all.extend(rows);
    }
    all
}

/// The database is as it was, to the last row, and the version that it is of goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_migration_that_fails_half_way_changes_nothing() {
    let pair = Declared::start(&things(1));
    pair.carries([noted("a", "same", "{}"), noted("b", "same", "{}")]).await;
    pair.publisher.waits_for_ack("receiver", 1).await;
    let Declared { receiver, publisher, dir } = pair;
    let setup: Setup = receiver.successor();
    assert_eq!(receiver.terminate().code(), Some(0));
    let before = contents(&open(setup.db()));
    assert!(before.iter().any(|row| row.starts_with("thing: ")), "{before:?}");

    file(dir.path(), &things(2));
    let ended = setup.clone().refuses();
    assert!(matches!(ended.code(), Some(1 | 2)), "{ended:?}");
    assert!(ended.stderr.contains("migration[1]"), "says which: {ended:?}");
    assert_eq!(contents(&open(setup.db())), before);

    file(dir.path(), &things(1));
    let receiver = setup.start();
    let last = publisher.accepts(noted("c", "same", "{}")).await.sequence.expect("always set");
    receiver.applies(last).await;
    assert_eq!(value::<i64>(receiver.db(), "SELECT count(*) FROM thing"), 3);
}
