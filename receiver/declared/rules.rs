//! What may not stand in SQL wherever it would pass SQLite: words that lose rows, that end
//! the receiver's transaction, or that come out otherwise when they are run again. Pure.
//! The guard of the connection is the second net; this one says what to write instead.

use super::{
    flaw::listed,
    spec::Parameter,
    statements::Piece,
    tokens::{Kind, Token},
};
use crate::receiver::store::guard::functions;

/// Where a statement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Context {
    /// In a migration: makes and changes tables.
    Migration,
    /// In the `sql` of a handler: writes.
    Effect,
    /// A `row`, `result` or `emit` query of a handler: reads.
    Asked,
    /// A query that callers ask: reads, and need not come out the same twice.
    Query,
}

/// What is wrong at a place of a statement.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where in the statement, in bytes.
    pub at: usize,
    /// What was found, and what to write instead.
    pub message: String,
    /// Whether the statement means nothing by itself here, and so is not looked at further.
    pub fatal: bool,
}

/// All that is wrong with the words of one statement.
pub fn findings(piece: &Piece<'_>, context: Context) -> Vec<Finding> {
    let tokens = piece.tokens.as_slice();
    let mut found = Vec::new();
    if let Some(message) = kind(tokens, context) {
        found.push(Finding { at: 0, message, fatal: true });
        return found;
    }
    for (n, token) in tokens.iter().enumerate() {
        let before = n.checked_sub(1).map(|before| &tokens[before]);
        let rest = &tokens[n..];
        let wrong = [
            own_tables(token, tokens.get(n + 1)),
            unfinished(token),
            replacing(before, rest),
            conflict(rest),
            raising(rest),
            parameter(token, context),
            unless(context == Context::Query, || unrepeatable(before, rest, context)),
        ];
        found.extend(wrong.into_iter().flatten().map(|message| Finding {
            at: token.at,
            message,
            // What SQLite makes of the rest would only repeat it.
            fatal: token.kind == Kind::Open || token.text.contains('\0'),
        }));
    }
    found
}

fn unless(condition: bool, look: impl FnOnce() -> Option<String>) -> Option<String> {
    if condition { None } else { look() }
}

/// Statements that have no place there at all.
fn kind(tokens: &[Token<'_>], context: Context) -> Option<String> {
    let first = tokens.first().filter(|token| token.kind == Kind::Word)?;
    let word = first.text.to_ascii_uppercase();
    let tables = context == Context::Migration;
    match word.as_str() {
        "BEGIN" | "COMMIT" | "END" | "ROLLBACK" | "SAVEPOINT" | "RELEASE" => Some(format!(
            "{word} is not allowed: the receiver's own transaction holds all that an event does, \
             and its cursor; leave it out"
        )),
        "ATTACH" | "DETACH" => Some(format!(
            "{word} is not allowed: a transaction over two files is not safe from a crash; keep \
             the tables in this database"
        )),
        "PRAGMA" | "VACUUM" => Some(format!(
            "{word} is not allowed: the receiver's promises rest on its own settings of the \
             database; leave it out"
        )),
        "EXPLAIN" => Some("EXPLAIN is not allowed: it runs nothing; leave the word out".to_owned()),
        "ANALYZE" | "REINDEX" => Some(format!(
            "{word} is not allowed: it writes what no migration declares; leave it out"
        )),
        "CREATE" | "DROP" | "ALTER" if !tables => Some(format!(
            "{word} is not allowed here: tables are made and changed in [[migration]] only, once \
             for a database"
        )),
        "CREATE" => created(tokens),
        _ => None,
    }
}

/// What a migration may not make.
fn created(tokens: &[Token<'_>]) -> Option<String> {
    let second = tokens.get(1)?;
    if second.is("TEMP") || second.is("TEMPORARY") {
        return Some(format!(
            "CREATE {} is not allowed: what it makes is gone after a restart; leave the word out",
            second.text.to_ascii_uppercase()
        ));
    }
    second.is("VIRTUAL").then(|| {
        "CREATE VIRTUAL TABLE is not allowed: what such a table holds is neither STRICT nor \
         compared; write an ordinary table"
            .to_owned()
    })
}

/// Names that are the receiver's, or SQLite's.
fn own_tables(token: &Token<'_>, next: Option<&Token<'_>>) -> Option<String> {
    let name = token.name()?;
    let begins = |prefix: &str| {
        name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix))
    };
    if begins("counterfoil_") {
        return Some(format!(
            "{name} is not allowed: names that begin with counterfoil_ are the receiver's own; \
             give tables of yours another name"
        ));
    }
    (begins("sqlite_") && !next.is_some_and(|next| next.is_mark("("))).then(|| {
        format!(
            "{name} is not allowed: names that begin with sqlite_ are SQLite's own, and no event \
             has made what stands there; leave it out"
        )
    })
}

fn unfinished(token: &Token<'_>) -> Option<String> {
    if token.kind == Kind::Open {
        let what = if token.text.starts_with('/') { "the comment" } else { "the quote" };
        return Some(format!("{what} that begins here does not end"));
    }
    token.text.contains('\0').then(|| {
        "a NUL character stands here, and SQLite reads nothing behind it; leave it out".to_owned()
    })
}

/// `REPLACE INTO`, and what may stand behind `INSERT OR` and `UPDATE OR`.
fn replacing(before: Option<&Token<'_>>, rest: &[Token<'_>]) -> Option<String> {
    let first = &rest[0];
    let into = rest.get(1).is_some_and(|next| next.is("INTO"));
    if first.is("REPLACE") && into && !before.is_some_and(|before| before.is("OR")) {
        return Some(
            "REPLACE INTO deletes the row it replaces, and with it what refers to it; write \
             INSERT INTO … ON CONFLICT (column) DO UPDATE SET …"
                .to_owned(),
        );
    }
    let verb = before.filter(|before| before.is("INSERT") || before.is("UPDATE"))?;
    let how = rest.get(1).filter(|_| first.is("OR"))?;
    let verb = verb.text.to_ascii_uppercase();
    let insert = verb == "INSERT";
    let how = how.text.to_ascii_uppercase();
    let why = match (how.as_str(), insert) {
        ("REPLACE", true) => {
            "deletes the row it replaces, and with it what refers to it; write INSERT INTO … ON \
             CONFLICT (column) DO UPDATE SET …"
        }
        ("REPLACE", false) => {
            "deletes the rows that are in its way, and with them what refers to them; write \
             UPDATE, and DELETE before it what has to go"
        }
        ("IGNORE", true) => {
            "passes over NOT NULL and CHECK too, so a wrong row is lost without a word; write \
             INSERT INTO … ON CONFLICT (column) DO NOTHING"
        }
        ("IGNORE", false) => {
            "passes over every constraint, so a change is lost without a word; write UPDATE, and \
             in its WHERE which rows are to change"
        }
        ("ROLLBACK", _) => {
            "ends the receiver's transaction, and with it what other events have done; leave OR \
             ROLLBACK out"
        }
        ("FAIL", _) => {
            "leaves what the statement has done before it fails; leave OR FAIL out, and all of it \
             is undone"
        }
        _ => return None,
    };
    Some(format!("{verb} OR {how} {why}"))
}

/// `ON CONFLICT`, in a statement and in a table.
fn conflict(rest: &[Token<'_>]) -> Option<String> {
    let [on, conflict, next, ..] = rest else { return None };
    if !on.is("ON") || !conflict.is("CONFLICT") {
        return None;
    }
    if next.is("DO") && rest.get(3).is_some_and(|what| what.is("NOTHING")) {
        return Some(
            "ON CONFLICT DO NOTHING passes over every conflict, the unexpected ones too; name the \
             columns of the one that is meant: ON CONFLICT (column) DO NOTHING"
                .to_owned(),
        );
    }
    let how = ["REPLACE", "IGNORE", "ROLLBACK", "FAIL"].into_iter().find(|how| next.is(how))?;
    Some(format!(
        "ON CONFLICT {how} makes every statement that meets it do what INSERT OR {how} does, \
         which is not allowed; leave it out"
    ))
}

/// `RAISE` other than with ABORT.
fn raising(rest: &[Token<'_>]) -> Option<String> {
    let [raise, open, how, ..] = rest else { return None };
    if !raise.is("RAISE") || !open.is_mark("(") {
        return None;
    }
    let how = how.text.to_ascii_uppercase();
    let why = match how.as_str() {
        "ROLLBACK" => "ends the receiver's transaction",
        "IGNORE" => "loses the change without a word",
        "FAIL" => "leaves what the statement has done so far",
        _ => return None,
    };
    Some(format!("RAISE({how}) {why}; write RAISE(ABORT, 'why'), which is a fault of the event"))
}

/// Parameters other than `:name`, and any in a migration.
fn parameter(token: &Token<'_>, context: Context) -> Option<String> {
    if token.kind != Kind::Parameter {
        return None;
    }
    let written = token.text;
    if context == Context::Migration {
        return Some(format!(
            "{written} is not allowed: a migration sees no event, so the parameter would be NULL; \
             write a value"
        ));
    }
    if written.starts_with(':') {
        return None;
    }
    let instead = if context == Context::Query {
        ":name, with a name that stands in parameters".to_owned()
    } else {
        format!("one of {}", known_parameters())
    };
    Some(format!("{written} is not allowed: parameters are told by their names; write {instead}"))
}

/// What the statements of a handler see of an event, for people.
pub fn known_parameters() -> String {
    listed(Parameter::ALL.iter().map(|(name, _)| *name))
}

/// Functions of time: repeatable as long as they are told which.
const OF_TIME: [&str; 7] =
    ["date", "time", "datetime", "julianday", "strftime", "unixepoch", "timediff"];

/// What would give other rows when the same events are applied again.
fn unrepeatable(
    before: Option<&Token<'_>>,
    rest: &[Token<'_>],
    context: Context,
) -> Option<String> {
    let first = &rest[0];
    if first.kind != Kind::Word || before.is_some_and(|before| before.is_mark(".")) {
        return None;
    }
    let instead = match context {
        Context::Migration => "leave it to the handlers, which have :accept_time and the payload",
        _ => "take :accept_time, when the event was accepted, or a field of :data",
    };
    let again = "applying the same events again would give other rows";
    if ["CURRENT_TIMESTAMP", "CURRENT_DATE", "CURRENT_TIME"].iter().any(|word| first.is(word)) {
        let word = first.text.to_ascii_uppercase();
        return Some(format!("{word} is not allowed: {again}; {instead}"));
    }
    if !rest.get(1).is_some_and(|open| open.is_mark("(")) {
        return None;
    }
    let name = first.text.to_ascii_lowercase();
    if !functions::is_deterministic(&name) {
        let instead = match name.as_str() {
            "changes" | "total_changes" if context != Context::Migration => {
                "expect_rows says how many rows a statement has to change"
            }
            "random" | "randomblob" if context != Context::Migration => {
                "take :key or :fingerprint, of which each event has its own"
            }
            _ => instead,
        };
        return Some(format!("{name}() is not allowed: {again}; {instead}"));
    }
    if !OF_TIME.contains(&name.as_str()) {
        return None;
    }
    let given = arguments(rest);
    let least = if name == "strftime" { 2 } else { 1 };
    if given.is_empty() || given.iter().filter(|token| token.is_mark(",")).count() + 1 < least {
        return Some(format!(
            "{name}() without a time is the time of the run, which is not allowed: {again}; \
             {instead}"
        ));
    }
    if let [only] = given[..]
        && ["'subsec'", "'subsecond'"].iter().any(|word| only.text.eq_ignore_ascii_case(word))
    {
        let text = only.text;
        return Some(format!(
            "{name}({text}) is the time of the run, which is not allowed: {again}; {instead}"
        ));
    }
    let word = given.iter().find_map(|token| {
        let text = token.text.trim_matches('\'').trim().to_ascii_lowercase();
        let kind = token.kind == Kind::Literal;
        ["now", "localtime", "utc"].into_iter().find(|word| kind && text == *word)
    })?;
    Some(match word {
        "now" => format!("{name}('now') is not allowed: {again}; {instead}"),
        _ => format!(
            "{name}(…, '{word}') is not allowed: it depends on the machine's time zone, so {again} \
             elsewhere; leave '{word}' out, times here are UTC"
        ),
    })
}

/// What stands within the parentheses behind a function's name, those of others left out.
fn arguments<'t, 's>(call: &'t [Token<'s>]) -> Vec<&'t Token<'s>> {
    let mut depth = 0_usize;
    let mut given = Vec::new();
    for token in call.iter().skip(1) {
        if token.is_mark(")") {
            depth = depth.saturating_sub(1);
            if depth == 0 {
                break;
            }
        }
        if depth == 1 {
            given.push(token);
        }
        if token.is_mark("(") {
            depth += 1;
        }
    }
    given
}

#[cfg(test)]
mod tests {
    use super::{
        super::statements::statements,
        Context::{Asked, Effect, Migration, Query},
        *,
    };

    fn said(sql: &str, context: Context) -> Vec<String> {
        let pieces = statements(sql);
        let found = pieces.iter().flat_map(|piece| findings(piece, context));
        found.map(|finding| finding.message).collect()
    }

    #[test]
    fn words_that_lose_rows_or_come_out_otherwise_are_found() {
        let cases = [
            (Effect, "REPLACE INTO t VALUES (1)", "REPLACE INTO deletes"),
            (Effect, "insert or replace into t values (1)", "INSERT OR REPLACE deletes"),
            (Effect, "UPDATE OR REPLACE t SET a = 1", "DELETE before it"),
            (Effect, "INSERT OR IGNORE INTO t VALUES (1)", "DO NOTHING"),
            (Effect, "UPDATE OR IGNORE t SET a = 1", "in its WHERE"),
            (Effect, "INSERT OR ROLLBACK INTO t VALUES (1)", "other events"),
            (Effect, "INSERT OR FAIL INTO t VALUES (1)", "leave OR FAIL out"),
            (Effect, "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "name the columns"),
            (Effect, "COMMIT", "transaction"),
            (Effect, "PRAGMA foreign_keys = OFF", "PRAGMA is not allowed"),
            (Effect, "ATTACH 'x' AS y", "two files"),
            (Effect, "CREATE TABLE t (a)", "[[migration]]"),
            (Effect, "INSERT INTO t VALUES (?1)", "?1 is not allowed"),
            (Effect, "INSERT INTO t VALUES (random())", "random()"),
            (Effect, "INSERT INTO t VALUES (current_timestamp)", "CURRENT_TIMESTAMP"),
            (Effect, "INSERT INTO t VALUES (date())", "without a time"),
            (Effect, "INSERT INTO t VALUES (strftime('%s'))", "without a time"),
            (Effect, "INSERT INTO t VALUES (date(' Now '))", "date('now')"),
            (Effect, "INSERT INTO t VALUES (unixepoch('subsec'))", "time of the run"),
            (Effect, "INSERT INTO t VALUES (datetime(:time, 'localtime'))", "time zone"),
            (Effect, "DELETE FROM Counterfoil_ledger", "receiver's own"),
            (Asked, "SELECT 1 FROM \"counterfoil_cursor\"", "receiver's own"),
            (Asked, "SELECT 'open", "does not end"),
            (Asked, "EXPLAIN SELECT 1", "runs nothing"),
            (Migration, "CREATE TABLE t (a DEFAULT (random())) STRICT", "random()"),
            (Migration, "CREATE TABLE t (a UNIQUE ON CONFLICT REPLACE) STRICT", "REPLACE"),
            (Migration, "CREATE TEMP TABLE t (a)", "restart"),
            (Migration, "CREATE VIRTUAL TABLE t USING fts5(a)", "VIRTUAL"),
            (Migration, "INSERT INTO t VALUES (:data)", "sees no event"),
            (
                Migration,
                "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT RAISE(IGNORE); END",
                "RAISE(ABORT",
            ),
            (Query, "SELECT * FROM t WHERE a = ?", "stands in parameters"),
        ];
        for (context, sql, part) in cases {
            let said = said(sql, context);
            assert_eq!(said.len(), 1, "{sql}: {said:?}");
            assert!(said[0].contains(part), "{sql}: {said:?}");
        }
    }

    #[test]
    fn what_only_looks_like_them_is_left_alone() {
        let cases = [
            (Effect, "UPDATE t SET a = replace(a, 'x', 'y')"),
            (Effect, "INSERT OR ABORT INTO t VALUES (1)"),
            (Effect, "INSERT INTO t VALUES ('INSERT OR REPLACE; random()') -- COMMIT"),
            (Effect, "INSERT INTO t VALUES (1) ON CONFLICT (a) DO NOTHING"),
            (Effect, "INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = excluded.a"),
            (Effect, "INSERT INTO t (date, time) VALUES (date(:time), time(:time, '+1 day'))"),
            (Effect, "INSERT INTO t VALUES (strftime('%Y', :accept_time))"),
            (Effect, "UPDATE t SET random = 1, changes = changes + 1"),
            (Asked, "SELECT 1 FROM t WHERE a = 1 OR replace(b, 'x', '') = 'c'"),
            (Migration, "CREATE TABLE t (a TEXT NOT NULL REFERENCES u ON DELETE CASCADE) STRICT"),
            (Migration, "CREATE TABLE t (a TEXT UNIQUE ON CONFLICT ABORT) STRICT"),
            (Query, "SELECT date('now'), random()"),
        ];
        for (context, sql) in cases {
            assert_eq!(said(sql, context), Vec::<String>::new(), "{sql}");
        }
    }
}
