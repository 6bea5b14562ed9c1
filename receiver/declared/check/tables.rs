//! The migrations: run one statement at a time, and what they have made looked at.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::sandbox::Sandbox;
use crate::receiver::declared::{
    flaw::Flaws,
    rules::Context,
    statements::{Piece, statements},
    text::Text,
};

/// Where a table, a view or a trigger was made.
type Origins = HashMap<String, (String, usize)>;

pub(super) fn make(
    sandbox: &Sandbox,
    migrations: &[Text],
    flaws: &mut Flaws,
) -> rusqlite::Result<()> {
    let own = sandbox.own();
    let mut origins = Origins::new();
    let mut complete = true;
    let mut loose = HashSet::new();
    // All in one transaction, as in a real database.
    own.execute_batch("BEGIN")?;
    for (n, text) in migrations.iter().enumerate() {
        let place = format!("migration[{n}]");
        let pieces = statements(&text.text);
        if pieces.is_empty() {
            flaws.add(text.line_at(0), place.as_str(), "is empty; write the statements of a step");
        }
        for piece in &pieces {
            if !step(sandbox, (text, piece), &place, flaws) {
                sandbox.give_up_tables();
                complete = false;
            }
            note(own, &mut origins, &place, text.line_at(piece.at))?;
            not_strict(own, (text, piece), &place, &mut loose, flaws)?;
        }
    }
    if let Err(error) = own.execute_batch("COMMIT") {
        let line = migrations.last().map_or(1, |text| text.line_at(0));
        flaws.add(line, "migration", format!("what the steps leave is refused: {error}"));
        own.execute_batch("ROLLBACK")?;
        sandbox.give_up_tables();
        complete = false;
    }
    if complete {
        foreign_keys(own, &origins, flaws)?;
        views(sandbox, &origins, flaws)?;
        triggers(sandbox, &origins, flaws)?;
    }
    Ok(())
}

/// One statement.
fn step(
    sandbox: &Sandbox,
    (text, piece): (&Text, &Piece<'_>),
    place: &str,
    flaws: &mut Flaws,
) -> bool {
    let context = Context::Migration;
    let Some(mut prepared) = sandbox.prepare((text, piece), context, place, flaws) else {
        return false;
    };
    match sandbox.run(&mut prepared, context) {
        Ok(()) => true,
        Err(refusal) => {
            if prepared.clean {
                let message = format!("fails: {}", refusal.message);
                flaws.add(text.line_at(piece.at + refusal.at), place, message);
            }
            false
        }
    }
}

/// What is there now and was not before.
fn note(own: &Connection, origins: &mut Origins, place: &str, line: usize) -> rusqlite::Result<()> {
    for name in objects(own, "type IN ('table', 'view', 'trigger')")? {
        origins.entry(name).or_insert_with(|| (place.to_owned(), line));
    }
    Ok(())
}

/// Names of the projection's own.
fn objects(own: &Connection, which: &str) -> rusqlite::Result<Vec<String>> {
    let mut select = own.prepare(&format!(
        "SELECT name FROM sqlite_schema WHERE {which}
         AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE 'counterfoil\\_%' ESCAPE '\\'
         ORDER BY rowid"
    ))?;
    select.query_map([], |row| row.get(0))?.collect()
}

/// Tables that this statement has made without STRICT.
fn not_strict(
    own: &Connection,
    (text, piece): (&Text, &Piece<'_>),
    place: &str,
    seen: &mut HashSet<String>,
    flaws: &mut Flaws,
) -> rusqlite::Result<()> {
    let mut list = own.prepare(
        "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table'
         AND strict = 0 AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let copies = piece.tokens.windows(2).any(|two| two[0].is("AS") && !two[1].is_mark("("));
    let names: Vec<String> = list.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for name in names {
        if !seen.insert(name.clone()) {
            continue;
        }
        let instead = if copies {
            "a copy cannot be; make it with its columns, and fill it by INSERT INTO … SELECT"
        } else {
            "write STRICT behind its closing bracket"
        };
        let message = format!(
            "table {name} is not STRICT, so a number that overflows and a value of another type \
             would be stored as something else without a word; {instead}"
        );
        flaws.add(text.line_at(piece.at), place, message);
    }
    Ok(())
}

/// Foreign keys that lead nowhere.
fn foreign_keys(own: &Connection, origins: &Origins, flaws: &mut Flaws) -> rusqlite::Result<()> {
    let tables = objects(own, "type = 'table'")?;
    for table in &tables {
        let (place, line) = &origins[table];
        let mut list = own.prepare("SELECT DISTINCT \"table\" FROM pragma_foreign_key_list(?1)")?;
        let parents: Vec<String> =
            list.query_map([table], |row| row.get(0))?.collect::<Result<_, _>>()?;
        let known = |parent: &String| tables.iter().any(|table| table.eq_ignore_ascii_case(parent));
        let lost: Vec<&String> = parents.iter().filter(|parent| !known(parent)).collect();
        for parent in &lost {
            let message = format!(
                "table {table} refers to {parent}, which no migration makes; make it, or correct \
                 REFERENCES"
            );
            flaws.add(*line, place.as_str(), message);
        }
        let checked = own
            .prepare("SELECT count(*) FROM pragma_foreign_key_check(?1)")
            .and_then(|mut check| check.query_row([table], |row| row.get::<_, i64>(0)));
        if checked.is_err() && lost.is_empty() {
            let message = format!(
                "table {table} refers to columns that do not tell the rows of {} apart; REFERENCES \
                 has to name a PRIMARY KEY or UNIQUE columns, all of them",
                parents.join(" or ")
            );
            flaws.add(*line, place.as_str(), message);
        }
    }
    Ok(())
}

/// Views that name what is not there.
fn views(sandbox: &Sandbox, origins: &Origins, flaws: &mut Flaws) -> rusqlite::Result<()> {
    for view in objects(sandbox.own(), "type = 'view'")? {
        let sql = format!("SELECT * FROM {}", quoted(&view));
        let prepared = sandbox.guarded(Context::Query, || sandbox.own().prepare(&sql).map(drop));
        if let Err(refusal) = prepared {
            let (place, line) = &origins[&view];
            flaws.add(*line, place.as_str(), format!("view {view}: {}", refusal.message));
        }
    }
    Ok(())
}

/// Triggers that cannot be run: SQLite looks into them when their table is written.
fn triggers(sandbox: &Sandbox, origins: &Origins, flaws: &mut Flaws) -> rusqlite::Result<()> {
    let own = sandbox.own();
    let mut select = own.prepare(
        "SELECT name, tbl_name,
                (SELECT name FROM pragma_table_info(tbl_name) ORDER BY pk DESC, cid LIMIT 1)
         FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid",
    )?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows: Vec<(String, String, String)> = rows.collect::<Result<_, _>>()?;
    for (trigger, table, column) in rows {
        let (table, column) = (quoted(&table), quoted(&column));
        let writes = [
            format!("INSERT INTO {table} ({column}) VALUES (NULL)"),
            format!("UPDATE {table} SET {column} = NULL"),
            format!("DELETE FROM {table}"),
        ];
        for sql in writes {
            let prepared = sandbox.guarded(Context::Effect, || own.prepare(&sql).map(drop));
            let (place, line) = &origins[&trigger];
            if let Err(refusal) = prepared {
                flaws.add(*line, place.as_str(), format!("trigger {trigger}: {}", refusal.message));
            }
        }
    }
    Ok(())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
