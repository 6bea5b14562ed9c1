//! A projection written in Rust, for the unit tests: stock by item, reservations, and a
//! running total. The program itself has it as a file, and a test holds the two together.

use std::borrow::Cow;

use rusqlite::{OptionalExtension as _, params};
use serde_json::json;

use super::projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables};
use crate::proto::{
    event::{Event, Intent},
    inventory::{self, Movement},
};

/// `stock.adjusted` and `stock.reserved`, both on subject = item.
#[derive(Debug, Clone, Copy)]
pub struct Inventory;

impl Projection for Inventory {
    fn name(&self) -> &str {
        "inventory"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        &[Migration { sql: Cow::Borrowed(TABLES) }]
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let intent = &event.intent;
        match inventory::read(intent)
            .map_err(|unreadable| Fault::payload(unreadable.to_string()))?
        {
            Some(Movement::Adjusted { delta }) => adjust(tables, &intent.subject, delta),
            Some(Movement::Reserved { task, quantity, expected_version }) => {
                reserve(tables, intent, &task, quantity, expected_version)
            }
            None => Ok(Applied::Ignored),
        }
    }

    fn queries(&self) -> &[DeclaredQuery] {
        type Names = Cow<'static, [Cow<'static, str>]>;
        const NONE: Names = Cow::Borrowed(&[]);
        const ITEM: Names = Cow::Borrowed(&[Cow::Borrowed("item")]);
        const KEY: Names = Cow::Borrowed(&[Cow::Borrowed("key")]);
        const fn query(
            name: &'static str,
            parameters: Names,
            page_by: Names,
            sql: &'static str,
        ) -> DeclaredQuery {
            DeclaredQuery {
                name: Cow::Borrowed(name),
                parameters,
                sql: Cow::Borrowed(sql),
                description: Cow::Borrowed(""),
                page_by,
            }
        }
        const QUERIES: &[DeclaredQuery] = &[
            query(
                "stock",
                ITEM,
                ITEM,
                "SELECT item, available, version FROM stock WHERE item = :item
                 UNION ALL
                 SELECT item, available, version FROM stock WHERE :item IS NULL
                 ORDER BY item",
            ),
            query(
                "reservations",
                ITEM,
                KEY,
                "SELECT key, task, item, quantity FROM reservation WHERE item = :item
                 UNION ALL
                 SELECT key, task, item, quantity FROM reservation WHERE :item IS NULL
                 ORDER BY key",
            ),
            query("total", NONE, NONE, "SELECT total FROM total"),
        ];
        QUERIES
    }
}

const TABLES: &str = "CREATE TABLE stock (
                 item      TEXT    NOT NULL PRIMARY KEY,
                 available INTEGER NOT NULL,
                 version   INTEGER NOT NULL CHECK (version > 0)
             ) STRICT, WITHOUT ROWID;
             CREATE TABLE reservation (
                 key      TEXT    NOT NULL PRIMARY KEY,
                 task     TEXT    NOT NULL,
                 item     TEXT    NOT NULL REFERENCES stock (item),
                 quantity INTEGER NOT NULL CHECK (quantity > 0)
             ) STRICT, WITHOUT ROWID;
             CREATE INDEX reservation_item ON reservation (item);
             CREATE TABLE total (total INTEGER NOT NULL) STRICT;
             INSERT INTO total VALUES (0);";
/// Adds to an item's stock, and makes the item where there is none: item, delta.
pub const ADJUST: &str = "INSERT INTO stock (item, available, version) VALUES (?1, ?2, 1)
 ON CONFLICT (item) DO UPDATE
 SET available = available + excluded.available, version = version + 1";
/// Adds to the total of all items: delta. The row is named: a statement that may change
/// several gets a savepoint from SQLite, each time.
pub const ADD_TO_TOTAL: &str = "UPDATE total SET total = total + ?1 WHERE rowid = 1";
const FIND: &str = "SELECT available, version FROM stock WHERE item = ?1";
const TAKE: &str = "UPDATE stock SET available = ?2, version = ?3 WHERE item = ?1";
const RESERVE: &str = "INSERT INTO reservation (key, task, item, quantity) VALUES (?1, ?2, ?3, ?4)";

/// May leave less than nothing: it states what was found.
fn adjust(tables: &Tables<'_>, item: &str, delta: i64) -> Result<Applied, Fault> {
    // STRICT columns refuse what would no longer be an integer, so overflow is a fault.
    tables.statement(ADJUST)?.execute(params![item, delta])?;
    tables.statement(ADD_TO_TOTAL)?.execute([delta])?;
    Ok(Applied::Done(None))
}

fn reserve(
    tables: &Tables<'_>,
    Intent { key, subject, .. }: &Intent,
    task: &str,
    quantity: i64,
    expected_version: i64,
) -> Result<Applied, Fault> {
    let item: &str = subject;
    let stock: Option<(i64, i64)> = tables
        .statement(FIND)?
        .query_row([item], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((available, version)) = stock else {
        return Ok(Applied::Rejected { reason: "unknown_item".into(), result: None });
    };
    let rejected = |reason: &'static str| {
        let result = Some(json!({"available": available, "version": version}));
        Ok(Applied::Rejected { reason: reason.into(), result })
    };
    if version != expected_version {
        return rejected("stale_version");
    }
    if available < quantity {
        return rejected("insufficient_stock");
    }
    let (available, version) = (available - quantity, version + 1);
    tables.statement(TAKE)?.execute(params![item, available, version])?;
    tables.statement(RESERVE)?.execute(params![&**key, task, item, quantity])?;
    Ok(Applied::Done(Some(json!({"available": available, "version": version}))))
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;

    use super::*;
    use crate::receiver::testing::event;

    fn tables() -> Connection {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(TABLES).expect("schema");
        tables
    }

    fn apply(tables: &Connection, sequence: i64, what: &str, data: &str) -> Result<Applied, Fault> {
        let event = event(sequence, &format!("k{sequence}"), what, "camera", data);
        Inventory.apply(&Tables::of(tables), &event)
    }

    fn stock(tables: &Connection) -> (i64, i64, i64) {
        tables
            .query_row("SELECT available, version, total FROM stock, total", [], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
            .expect("one item")
    }

    #[test]
    fn adjusting_creates_and_counts() {
        let tables = tables();
        for (sequence, data) in
            [r#"{"delta":3}"#, r#"{"delta":-5,"note":"broken"}"#, r#"{"delta":1000}"#]
                .into_iter()
                .enumerate()
        {
            let applied = apply(&tables, sequence as i64, "stock.adjusted", data).expect(data);
            assert_eq!(applied, Applied::Done(None));
        }
        assert_eq!(stock(&tables), (998, 3, 998));
    }

    #[test]
    fn reserving_is_judged_in_order() {
        let tables = tables();
        let reserve = |sequence, quantity: i64, version: i64| {
            let data = json!({"task": "t", "quantity": quantity, "expected_version": version});
            apply(&tables, sequence, "stock.reserved", &data.to_string()).expect("judged")
        };
        let rejected = |reason: &'static str, result| {
            let reason = reason.into();
            Applied::Rejected { reason, result }
        };
        assert_eq!(reserve(0, 1, 0), rejected("unknown_item", None));
        apply(&tables, 1, "stock.adjusted", r#"{"delta":5}"#).expect("adjusted");
        let now = Some(json!({"available": 5, "version": 1}));
        // Also too many, but the version is asked first.
        assert_eq!(reserve(2, 9, 0), rejected("stale_version", now.clone()));
        assert_eq!(reserve(3, 6, 1), rejected("insufficient_stock", now));
        let after = json!({"available": 0, "version": 2});
        assert_eq!(reserve(4, 5, 1), Applied::Done(Some(after)));
        assert_eq!(stock(&tables), (0, 2, 5));
        let rows: i64 = tables
            .query_row("SELECT count(*) FROM reservation", [], |row| row.get(0))
            .expect("countable");
        assert_eq!(rows, 1);
    }

    #[test]
    fn bad_payloads_name_field_and_limit() {
        let tables = tables();
        let cases = [
            ("stock.adjusted", r#"{}"#, "delta: is missing", "-1000 to 1000"),
            ("stock.adjusted", r#"{"delta":1001}"#, "delta: is 1001", "-1000 to 1000"),
            ("stock.adjusted", r#"{"delta":-1001}"#, "delta: is -1001", "-1000 to 1000"),
            ("stock.adjusted", r#"{"delta":1.0}"#, "delta: is 1.0", "integer"),
            ("stock.adjusted", r#"{"delta":"1"}"#, "delta: is \"1\"", "integer"),
            ("stock.adjusted", r#"{"delta":99999999999999999999}"#, "delta", "integer"),
            ("stock.adjusted", r#"{"delta":1,"delta":2}"#, "data", "duplicate field"),
            ("stock.adjusted", r#"7"#, "data", "object"),
            ("stock.adjusted", r#"[7]"#, "data", "object"),
            ("stock.reserved", r#"{"quantity":1,"expected_version":0}"#, "task", "text"),
            (
                "stock.reserved",
                r#"{"task":"t","quantity":0,"expected_version":0}"#,
                "quantity: is 0",
                "1 to 1000",
            ),
            (
                "stock.reserved",
                r#"{"task":"t","quantity":1,"expected_version":-1}"#,
                "expected_version: is -1",
                "0 to",
            ),
        ];
        for (what, data, field, expected) in cases {
            let fault = apply(&tables, 0, what, data).expect_err(data).to_string();
            assert!(fault.contains(field) && fault.contains(expected), "{data}: {fault}");
        }
    }

    /// APP-09: a type without a handler is noted, not guessed at.
    #[test]
    fn other_types_are_ignored() {
        assert_eq!(apply(&tables(), 0, "stock.counted", "{}").expect("no fault"), Applied::Ignored);
    }

    #[test]
    fn overflow_is_a_fault() {
        let tables = tables();
        apply(&tables, 0, "stock.adjusted", r#"{"delta":1}"#).expect("adjusted");
        tables.execute("UPDATE total SET total = ?1", [i64::MAX]).expect("set");
        apply(&tables, 1, "stock.adjusted", r#"{"delta":1}"#).expect_err("too large");
    }
}
