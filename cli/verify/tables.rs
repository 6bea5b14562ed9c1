//! What the receiver's file holds, against what the projection made once more.

use std::{cmp::Ordering, collections::BTreeMap};

use counterfoil::proto::outcome::Outcome;
use rusqlite::{Connection, Rows, params};

use super::{Stop, moment::Moment, report::Difference, scratch::Scratch, value::Value};

/// What was done with each event, as far as both ledgers have rows; and how often each
/// outcome came about in all.
pub fn outcomes_are_equal(
    moment: &Moment,
    scratch: &Scratch,
    counts: &[i64; Outcome::ALL.len()],
) -> Result<(), Stop> {
    let baseline = scratch.baseline()?;
    let rows = "SELECT sequence, outcome, reason, result FROM counterfoil_ledger
                WHERE log = ?1 AND sequence >= ?2 ORDER BY sequence";
    let from = moment.baseline.from.max(baseline.from);
    let (mut here, mut there) = (moment.tables.prepare(rows)?, scratch.tables().prepare(rows)?);
    let mut here = here.query(params![moment.log, from])?;
    let mut there = there.query(params![moment.log, from])?;
    let columns = ["sequence", "outcome", "reason", "result"].map(str::to_owned);
    loop {
        match (values(&mut here, 4)?, values(&mut there, 4)?) {
            (None, None) => break,
            (found, expected) if found == expected => {}
            (found, expected) => {
                let sequence = expected.as_ref().or(found.as_ref()).map(|row| row[0].to_string());
                let place = format!("the ledger, sequence {}", sequence.unwrap_or_default());
                let said = |row: Option<Vec<Value>>| match row {
                    Some(row) => named(&columns[1..], &row[1..]),
                    None => "no row".to_owned(),
                };
                return Err(Difference::new(place, said(expected), said(found)).into());
            }
        }
    }
    let mut expected = baseline.counts;
    let count = "SELECT count(*) FROM counterfoil_ledger WHERE log = ?1 AND outcome = ?2";
    let mut count = scratch.tables().prepare(count)?;
    for (outcome, sum) in Outcome::ALL.into_iter().zip(&mut expected) {
        let rows: i64 = count.query_row(params![moment.log, outcome.as_str()], |row| row.get(0))?;
        *sum += rows;
        let found = counts[outcome as usize];
        if found != *sum {
            let place = format!("the ledger, all that is {}", outcome.as_str());
            return Err(Difference::new(place, *sum, found).into());
        }
    }
    Ok(())
}

/// Compares all tables that the projection declares, row by row. Answers with the rows of
/// each, and with the tables that are not the projection's.
pub fn compare(
    moment: &Moment,
    scratch: &Scratch,
) -> Result<(BTreeMap<String, u64>, Vec<String>), Stop> {
    let declared = Connection::open_in_memory()?;
    for step in scratch.projection.migrations() {
        declared.execute_batch(&step.sql)?;
    }
    let mut compared = BTreeMap::new();
    for table in names(&declared)? {
        let rows = compare_table(&Table::declared(&declared, &table)?, moment, scratch)?;
        compared.insert(table, rows);
    }
    let mut others = names(&moment.tables)?;
    others.retain(|table| !compared.contains_key(table));
    Ok((compared, others))
}

/// Tables, but for the receiver's and SQLite's own.
fn names(tables: &Connection) -> rusqlite::Result<Vec<String>> {
    let names = r"SELECT name FROM sqlite_schema WHERE type = 'table'
                   AND name NOT LIKE 'counterfoil\_%' ESCAPE '\'
                   AND name NOT LIKE 'sqlite\_%' ESCAPE '\' ORDER BY name";
    tables.prepare(names)?.query_map([], |row| row.get(0))?.collect()
}

/// A table as the projection declares it.
struct Table {
    name: String,
    columns: Vec<String>,
    /// The places of the columns that rows are put in order by: the primary key's, or all.
    order: Vec<usize>,
}

impl Table {
    fn declared(tables: &Connection, name: &str) -> rusqlite::Result<Table> {
        let info = "SELECT name, pk FROM pragma_table_info(?1) ORDER BY cid";
        let mut info = tables.prepare(info)?;
        let info = info.query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (columns, keys): (Vec<String>, Vec<i64>) =
            info.collect::<rusqlite::Result<Vec<(String, i64)>>>()?.into_iter().unzip();
        let mut order: Vec<usize> = (0..columns.len()).filter(|&n| keys[n] > 0).collect();
        order.sort_by_key(|&n| keys[n]);
        if order.is_empty() {
            order = (0..columns.len()).collect();
        }
        Ok(Table { name: name.to_owned(), columns, order })
    }

    /// All its rows, in an order that both databases have.
    fn select(&self) -> String {
        let quoted = |name: &String| format!("\"{}\"", name.replace('"', "\"\""));
        let columns: Vec<_> = self.columns.iter().map(quoted).collect();
        let order = self.order.iter().map(|&n| format!("{} COLLATE BINARY", columns[n]));
        format!(
            "SELECT {} FROM {} ORDER BY {}",
            columns.join(", "),
            quoted(&self.name),
            order.collect::<Vec<_>>().join(", ")
        )
    }

    fn compare_keys(&self, one: &[Value], other: &[Value]) -> Ordering {
        let orders = self.order.iter().map(|&n| one[n].compare(&other[n]));
        orders.fold(Ordering::Equal, Ordering::then)
    }

    /// What differs between two rows, at least one of which is there.
    fn difference(&self, found: Option<&[Value]>, expected: Option<&[Value]>) -> Difference {
        let place = format!("table {}", self.name);
        let all = |row: &[Value]| named(&self.columns, row);
        let (found, expected) = match (found, expected) {
            (Some(found), Some(expected)) => match self.compare_keys(found, expected) {
                Ordering::Equal => {
                    let key =
                        self.order.iter().map(|&n| named(&self.columns[n..=n], &expected[n..=n]));
                    let place = format!("{place}, {}", key.collect::<Vec<_>>().join(", "));
                    let differing: Vec<_> =
                        (0..found.len()).filter(|&n| found[n] != expected[n]).collect();
                    let of = |row: &[Value]| {
                        let parts =
                            differing.iter().map(|&n| named(&self.columns[n..=n], &row[n..=n]));
                        parts.collect::<Vec<_>>().join(", ")
                    };
                    return Difference::new(place, of(expected), of(found));
                }
                Ordering::Less => (Some(found), None),
                Ordering::Greater => (None, Some(expected)),
            },
            rows => rows,
        };
        match (found, expected) {
            (Some(found), _) => Difference::new(place, "no such row", all(found)),
            (None, expected) => {
                Difference::new(place, expected.map(all).unwrap_or_default(), "no such row")
            }
        }
    }
}

fn compare_table(table: &Table, moment: &Moment, scratch: &Scratch) -> Result<u64, Stop> {
    let select = table.select();
    let mut here = moment.tables.prepare(&select).map_err(|error| {
        let found = format!("that it cannot be read: {error}");
        Difference::new(format!("table {}", table.name), "as it was declared", found)
    })?;
    let mut there = scratch.tables().prepare(&select)?;
    let (mut here, mut there) = (here.query([])?, there.query([])?);
    let width = table.columns.len();
    let mut rows = 0;
    loop {
        match (values(&mut here, width)?, values(&mut there, width)?) {
            (None, None) => return Ok(rows),
            (found, expected) if found == expected => rows += 1,
            (found, expected) => {
                return Err(table.difference(found.as_deref(), expected.as_deref()).into());
            }
        }
    }
}

/// The next row; none: there are no more.
fn values(rows: &mut Rows<'_>, width: usize) -> rusqlite::Result<Option<Vec<Value>>> {
    let Some(row) = rows.next()? else { return Ok(None) };
    (0..width)
        .map(|column| row.get_ref(column).map(Value::from))
        .collect::<rusqlite::Result<_>>()
        .map(Some)
}

/// Values with their columns' names.
fn named(columns: &[String], values: &[Value]) -> String {
    let parts = columns.iter().zip(values).map(|(name, value)| format!("{name} {value}"));
    parts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sql: &str, name: &str) -> Table {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(sql).expect(sql);
        Table::declared(&tables, name).expect("declared")
    }

    fn row(item: &str, available: i64) -> Vec<Value> {
        vec![Value::Text(item.into()), Value::Integer(available)]
    }

    #[test]
    fn rows_are_read_in_an_order_of_their_own() {
        let cases = [
            (
                "CREATE TABLE t (a, b, c, PRIMARY KEY (c, a))",
                "\"c\" COLLATE BINARY, \"a\" COLLATE BINARY",
            ),
            ("CREATE TABLE t (a, b)", "\"a\" COLLATE BINARY, \"b\" COLLATE BINARY"),
        ];
        for (sql, order) in cases {
            let select = table(sql, "t").select();
            assert!(select.ends_with(&format!("FROM \"t\" ORDER BY {order}")), "{select}");
        }
        let odd = table("CREATE TABLE \"o\"\"dd\" (\"a b\")", "o\"dd").select();
        assert_eq!(odd, "SELECT \"a b\" FROM \"o\"\"dd\" ORDER BY \"a b\" COLLATE BINARY");
    }

    #[test]
    fn a_difference_names_the_row_and_what_differs_in_it() {
        let stock = table("CREATE TABLE stock (item PRIMARY KEY, available)", "stock");
        let (a3, a4, b1) = (row("a", 3), row("a", 4), row("b", 1));
        let cases = [
            (
                Some(&a4),
                Some(&a3),
                "table stock, item \"a\": expected available 3, found available 4",
            ),
            (
                Some(&a3),
                Some(&b1),
                "table stock: expected no such row, found item \"a\", available 3",
            ),
            (
                Some(&b1),
                Some(&a3),
                "table stock: expected item \"a\", available 3, found no such row",
            ),
            (None, Some(&b1), "table stock: expected item \"b\", available 1, found no such row"),
            (Some(&b1), None, "table stock: expected no such row, found item \"b\", available 1"),
        ];
        for (found, expected, said) in cases {
            let difference =
                stock.difference(found.map(Vec::as_slice), expected.map(Vec::as_slice));
            assert_eq!(difference.to_string(), said);
        }
    }
}
