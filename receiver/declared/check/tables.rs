//! The migrations: run one statement at a time, and what they have made looked at.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::sandbox::Sandbox;
use crate::receiver::{
    declared::{
        flaw::{Flaws, listed},
        rules::Context,
        statements::{Piece, statements},
        text::Text,
        tokens::{Kind, Token, tokens},
    },
    store::reserved::Reserved,
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
    let mut taken = Reserved::of(own)?;
    // All in one transaction, as in a real database.
    own.execute_batch("BEGIN")?;
    'steps: for (n, text) in migrations.iter().enumerate() {
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
            let line = text.line_at(piece.at);
            if ["CREATE", "ALTER", "DROP"].iter().any(|verb| piece.tokens[0].is(verb)) {
                note(own, &mut origins, &place, line)?;
                not_strict(own, (text, piece), &place, &mut loose, flaws)?;
                taken = not_reserved(own, taken, (text, piece), &place, flaws)?;
            }
            if flaws.are_enough() {
                break 'steps;
            }
            if let Some(late) = sandbox.is_late() {
                flaws.add(line, place.as_str(), format!("fails: {late}"));
                sandbox.give_up_tables();
                complete = false;
                break 'steps;
            }
        }
    }
    if own.is_autocommit() {
        // A statement that is refused above has ended it.
        sandbox.give_up_tables();
        complete = false;
    } else if let Err(error) = own.execute_batch("COMMIT") {
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
    match dropped_parent(sandbox.own(), &piece.tokens) {
        Ok(None) => {}
        Ok(Some(message)) => {
            // It is dropped all the same here, so that what follows is looked at.
            flaws.add(text.line_at(piece.at), place, message);
        }
        Err(error) => flaws.add(text.line_at(piece.at), place, format!("fails: {error}")),
    }
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

/// What `DROP TABLE` does to the rows of other tables, at this point: SQLite deletes all rows
/// of a table before it drops it, and what refers to them goes with them.
fn dropped_parent(own: &Connection, tokens: &[Token<'_>]) -> rusqlite::Result<Option<String>> {
    let Some(table) = dropped(tokens) else { return Ok(None) };
    let mut select = own.prepare(
        "SELECT DISTINCT child.name, key.on_delete
         FROM sqlite_schema AS child JOIN pragma_foreign_key_list(child.name) AS key
         WHERE child.type = 'table' AND child.name <> ?1 COLLATE NOCASE
             AND key.\"table\" = ?1 COLLATE NOCASE
             AND key.on_delete IN ('CASCADE', 'SET NULL', 'SET DEFAULT')",
    )?;
    let rows = select.query_map([&table], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let children: Vec<(String, String)> = rows.collect::<rusqlite::Result<_>>()?;
    if children.is_empty() {
        return Ok(None);
    }
    let done = children.iter().map(|(child, how)| match how.as_str() {
        "CASCADE" => format!("deletes the rows of {child}, which refers to it ON DELETE CASCADE"),
        how => format!("changes the rows of {child}, which refers to it ON DELETE {how}"),
    });
    let done = done.collect::<Vec<_>>().join(", and ");
    let children = listed(children.iter().map(|(child, _)| child));
    Ok(Some(format!(
        "DROP TABLE {table} {done}; write the tables as they are to be, with upgrade = \"rebuild\", \
         or drop {children} first"
    )))
}

/// The table of a `DROP TABLE`.
fn dropped(tokens: &[Token<'_>]) -> Option<String> {
    let [drop, table, rest @ ..] = tokens else { return None };
    if !drop.is("DROP") || !table.is("TABLE") {
        return None;
    }
    let rest = match rest {
        [one, exists, rest @ ..] if one.is("IF") && exists.is("EXISTS") => rest,
        rest => rest,
    };
    let name = match rest {
        [_, dot, name, ..] if dot.is_mark(".") => name,
        [name, ..] => name,
        [] => return None,
    };
    let bare = match name.kind {
        Kind::Literal => name.text.trim_matches('\''),
        _ => name.name()?,
    };
    Some(bare.replace("\"\"", "\"").replace("''", "'"))
}

/// Names of the receiver's that a table was given when it was renamed, or a column at all: of
/// these the guard is not asked.
fn not_reserved(
    own: &Connection,
    before: Reserved,
    (text, piece): (&Text, &Piece<'_>),
    place: &str,
    flaws: &mut Flaws,
) -> rusqlite::Result<Reserved> {
    let now = Reserved::of(own)?;
    // What stands there as a name is told by the words already.
    let told = |name: &str| {
        let bare = name.rsplit('.').next().unwrap_or_default();
        let mut names = piece.tokens.iter().filter_map(Token::name);
        names.any(|it| it.eq_ignore_ascii_case(bare))
    };
    if let Some(name) = now.new_since(&before).filter(|name| !told(name)) {
        let line = text.line_at(piece.at);
        let message = format!(
            "the name {name} is not allowed: names that begin with counterfoil_ are the receiver's \
             own; give what is yours another name"
        );
        flaws.add(line, place, message);
    }
    Ok(now)
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
        let (place, line) = origin(origins, table);
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
            flaws.add(line, place, message);
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
            flaws.add(line, place, message);
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
            let (place, line) = origin(origins, &view);
            flaws.add(line, place, format!("view {view}: {}", refusal.message));
        }
    }
    Ok(())
}

/// Triggers that cannot be run: SQLite looks into them when their table is written.
fn triggers(sandbox: &Sandbox, origins: &Origins, flaws: &mut Flaws) -> rusqlite::Result<()> {
    let own = sandbox.own();
    let mut select = own.prepare(
        "SELECT name, tbl_name, sql,
                (SELECT name FROM pragma_table_info(tbl_name) ORDER BY pk DESC, cid LIMIT 1)
         FROM sqlite_schema WHERE type = 'trigger' ORDER BY rowid",
    )?;
    let rows =
        select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
    let rows: Vec<(String, String, String, String)> = rows.collect::<Result<_, _>>()?;
    for (trigger, table, created, column) in rows {
        let sql = fires(&created, &quoted(&table), &quoted(&column));
        if let Err(refusal) = sandbox.guarded(Context::Effect, || own.prepare(&sql).map(drop)) {
            let (place, line) = origin(origins, &trigger);
            flaws.add(line, place, format!("trigger {trigger}: {}", refusal.message));
        }
    }
    Ok(())
}

/// A statement that a trigger is run by.
fn fires(created: &str, table: &str, column: &str) -> String {
    let tokens = tokens(created);
    // CREATE TRIGGER name BEFORE UPDATE OF column ON …: the first of the words behind the name.
    let words = tokens.iter().enumerate().skip(3);
    let mut events = words.filter(|(n, token)| {
        let event = ["INSERT", "UPDATE", "DELETE"].iter().any(|event| token.is(event));
        event && tokens.get(n + 1).is_some_and(|next| next.is("ON") || next.is("OF"))
    });
    match events.next() {
        Some((_, event)) if event.is("INSERT") => {
            format!("INSERT INTO {table} ({column}) VALUES (NULL)")
        }
        Some((_, event)) if event.is("DELETE") => format!("DELETE FROM {table}"),
        Some((n, _)) if tokens[n + 1].is("OF") && n + 2 < tokens.len() => {
            format!("UPDATE {table} SET {} = NULL", tokens[n + 2].text)
        }
        _ => format!("UPDATE {table} SET {column} = NULL"),
    }
}

/// Where it was made.
fn origin<'o>(origins: &'o Origins, name: &str) -> (&'o str, usize) {
    origins.get(name).map_or(("migration", 1), |(place, line)| (place.as_str(), *line))
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_that_is_dropped() {
        let cases = [
            ("DROP TABLE a", Some("a")),
            ("drop table if exists main.\"a\"\"b\"", Some("a\"b")),
            ("DROP TABLE 'it''s'", Some("it's")),
            ("DROP TABLE [if]", Some("if")),
            ("DROP VIEW a", None),
            ("DROP TABLE", None),
        ];
        for (sql, expected) in cases {
            assert_eq!(dropped(&tokens(sql)).as_deref(), expected, "{sql}");
        }
    }

    #[test]
    fn a_trigger_is_run_by_what_it_waits_for() {
        let cases = [
            ("AFTER INSERT ON t BEGIN DELETE FROM u; END", "INSERT INTO t (a) VALUES (NULL)"),
            ("INSTEAD OF DELETE ON t BEGIN SELECT 1; END", "DELETE FROM t"),
            ("BEFORE UPDATE ON t BEGIN SELECT 1; END", "UPDATE t SET a = NULL"),
            ("UPDATE OF b, c ON t BEGIN SELECT 1; END", "UPDATE t SET b = NULL"),
        ];
        for (what, expected) in cases {
            for name in ["x", "IF NOT EXISTS x"] {
                let created = format!("CREATE TRIGGER {name} {what}");
                assert_eq!(fires(&created, "t", "a"), expected, "{created}");
            }
        }
    }
}
