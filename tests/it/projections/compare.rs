//! Asks a model what a history has to come to, and compares.

use std::{collections::BTreeMap, path::Path};

use counterfoil::proto::event::hex;
use rusqlite::{Connection, types::ValueRef};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::harness::{ledger::open, process::Launch};

/// What a model says, or what a database has.
#[derive(Debug, Deserialize)]
pub struct Told {
    pub ledger: Vec<Row>,
    tables: BTreeMap<String, Vec<Json>>,
}

/// One row of the ledger.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Row {
    sequence: i64,
    pub outcome: String,
    reason: Option<String>,
    result: Option<Json>,
}

/// What the model of a projection makes of a history: events as `counterfoil tail` prints
/// them.
pub fn model(projection: &str, history: &str) -> Told {
    let script = format!("{}/tests/models/{projection}.py", env!("CARGO_MANIFEST_DIR"));
    let ended = Launch::new("python3").args(["-B", &script]).run_with_input(history);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("the model prints JSON")
}

/// Compares a database with what a model says, sound in itself included.
///
/// # Panics
/// At the first difference, with the event that it comes from.
pub fn compare(db: &Path, model: &Told, history: &str) {
    let db = open(db);
    let ledger = ledger(&db);
    for ((row, expected), event) in ledger.iter().zip(&model.ledger).zip(history.lines()) {
        assert_eq!(row, expected, "the ledger, and the model, of\n{event}");
    }
    assert_eq!(ledger.len(), model.ledger.len(), "rows of the ledger");
    for (table, expected) in &model.tables {
        let (mut rows, mut expected) = (rows(&db, table), expected.clone());
        rows.sort_by_key(Json::to_string);
        expected.sort_by_key(Json::to_string);
        let only = |these: &[Json], those: &[Json]| {
            these.iter().filter(|row| !those.contains(row)).map(|row| format!("{row}\n")).collect()
        };
        let (surplus, missing): (String, String) = (only(&rows, &expected), only(&expected, &rows));
        assert!(rows == expected, "{table} has\n{surplus}and lacks\n{missing}");
    }
    let check: String =
        db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a word");
    assert_eq!(check, "ok");
    let mut orphans = db.prepare("PRAGMA foreign_key_check").expect("known");
    assert!(!orphans.exists([]).expect("checked"), "a row refers to none");
}

fn ledger(db: &Connection) -> Vec<Row> {
    const ROWS: &str =
        "SELECT sequence, outcome, reason, result FROM counterfoil_ledger ORDER BY sequence";
    let mut statement = db.prepare(ROWS).expect("the ledger");
    let rows = statement.query_map([], |row| {
        let outcome: String = row.get(1)?;
        let result: Option<String> = row.get(3)?;
        Ok(Row {
            sequence: row.get(0)?,
            // What a fault says is for people; a model knows only that it is one.
            reason: if outcome == "SKIPPED" { None } else { row.get(2)? },
            outcome,
            result: result.map(|text| serde_json::from_str(&text).expect("a result is JSON")),
        })
    });
    rows.and_then(Iterator::collect).expect("readable")
}

/// The rows of a table, each as a list of its columns.
fn rows(db: &Connection, table: &str) -> Vec<Json> {
    let mut statement = db.prepare(&format!("SELECT * FROM {table}")).expect("a table");
    let columns = statement.column_count();
    let rows = statement.query_map([], |row| {
        let values = (0..columns).map(|n| row.get_ref(n).map(json));
        Ok(Json::Array(values.collect::<Result<_, _>>()?))
    });
    rows.and_then(Iterator::collect).expect("readable")
}

fn json(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => number.into(),
        ValueRef::Text(text) => String::from_utf8(text.to_vec()).expect("text is UTF-8").into(),
        ValueRef::Blob(bytes) => hex(bytes).into(),
    }
}
