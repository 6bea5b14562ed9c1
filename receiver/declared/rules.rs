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
            counting(token),
            deferring(before, token),
            parameter(token, context),
            unless(context == Context::Query, || unrepeatable(tokens, n, context)),
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
             give what is yours another name"
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

/// `AUTOINCREMENT`, a word that only a table can have.
fn counting(token: &Token<'_>) -> Option<String> {
    token.is("AUTOINCREMENT").then(|| {
        "AUTOINCREMENT is not allowed: it counts in a table of SQLite's own, and ends at 2^63-1 as \
         if the disk were full; leave it out: numbers are given once without it, too, as long as \
         no row is deleted, and :sequence gives each event one of its own"
            .to_owned()
    })
}

/// `DEFERRABLE`, a word that only a foreign key can have.
fn deferring(before: Option<&Token<'_>>, token: &Token<'_>) -> Option<String> {
    let not = before.is_some_and(|before| before.is("NOT"));
    (token.is("DEFERRABLE") && !not).then(|| {
        "DEFERRABLE is not allowed: such a reference is judged at COMMIT, with whatever other \
         events share it; leave it out"
            .to_owned()
    })
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
        format!("one of {}, or a name that require gives a field with as", known_parameters())
    };
    Some(format!("{written} is not allowed: parameters are told by their names; write {instead}"))
}

/// What the statements of a handler see of an event, for people.
fn known_parameters() -> String {
    listed(Parameter::ALL.iter().map(|(name, _)| *name))
}

/// Functions of time: repeatable as long as they are told which. Which of their arguments are
/// times; modifiers follow.
const OF_TIME: [(&str, std::ops::Range<usize>); 7] = [
    ("date", 0..1),
    ("time", 0..1),
    ("datetime", 0..1),
    ("julianday", 0..1),
    ("strftime", 1..2),
    ("unixepoch", 0..1),
    ("timediff", 0..2),
];

/// What would give other rows when the same events are applied again.
fn unrepeatable(tokens: &[Token<'_>], n: usize, context: Context) -> Option<String> {
    let rest = &tokens[n..];
    let first = &rest[0];
    let behind_dot = n.checked_sub(1).is_some_and(|before| tokens[before].is_mark("."));
    if first.kind != Kind::Word || behind_dot {
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
    if !rest.get(1).is_some_and(|open| open.is_mark("(")) || names_a_table(tokens, n) {
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
    let (_, times) = OF_TIME.into_iter().find(|(known, _)| *known == name)?;
    let given = arguments(rest);
    if given.len() < times.end {
        return Some(format!(
            "{name}() without a time is the time of the run, which is not allowed: {again}; \
             {instead}"
        ));
    }
    let word = given.iter().enumerate().find_map(|(place, argument)| {
        // A word that is part of a larger expression may be anything: a field's name.
        let [Token { kind: Kind::Literal, text, .. }] = argument[..] else { return None };
        let text = text.trim_matches('\'').trim();
        let words: &[&str] = match place {
            place if times.contains(&place) => &["now", "subsec", "subsecond"],
            place if place >= times.end => &["localtime", "utc"],
            _ => &[],
        };
        words.iter().copied().find(|word| text.eq_ignore_ascii_case(word))
    })?;
    Some(match word {
        "now" => format!("{name}('now') is not allowed: {again}; {instead}"),
        "subsec" | "subsecond" => format!(
            "{name}('{word}') is the time of the run, which is not allowed: {again}; {instead}"
        ),
        _ => format!(
            "{name}(…, '{word}') is not allowed: it depends on the machine's time zone, so {again} \
             elsewhere; leave '{word}' out, times here are UTC"
        ),
    })
}

/// Whether a name before a parenthesis is that of a table and no call: where a table is made,
/// filled, indexed or referred to, and where one is made by WITH.
fn names_a_table(tokens: &[Token<'_>], n: usize) -> bool {
    let (before, rest) = (&tokens[..n], &tokens[n..]);
    let index = before.first().is_some_and(|first| first.is("CREATE"))
        && before.iter().take(3).any(|word| word.is("INDEX"));
    match before {
        [.., last] if last.is("ON") => index,
        [.., one, not, exists] if exists.is("EXISTS") => one.is("IF") && not.is("NOT"),
        [.., last] if last.is_mark(",") || last.is("RECURSIVE") || last.is("WITH") => {
            let mut behind = rest[1..].iter().skip(closes(&rest[1..]));
            behind.next().is_some_and(|word| word.is("AS"))
                && behind.next().is_some_and(|next| {
                    next.is_mark("(") || next.is("NOT") || next.is("MATERIALIZED")
                })
        }
        [.., last] => ["TABLE", "INTO", "REFERENCES"].iter().any(|word| last.is(word)),
        [] => false,
    }
}

/// How many tokens there are from an opening parenthesis to the one that closes it.
fn closes(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    let end = tokens.iter().position(|token| {
        depth += usize::from(token.is_mark("("));
        depth = depth.saturating_sub(usize::from(token.is_mark(")")));
        depth == 0
    });
    end.map_or(tokens.len(), |end| end + 1)
}

/// What stands within the parentheses behind a function's name, argument by argument; within
/// the parentheses of others nothing is looked at.
fn arguments<'s>(call: &[Token<'s>]) -> Vec<Vec<Token<'s>>> {
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
            if given.is_empty() {
                given.push(Vec::new());
            }
            match given.last_mut() {
                Some(argument) if !token.is_mark(",") => argument.push(*token),
                _ => given.push(Vec::new()),
            }
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
            (Migration, "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT) STRICT", ":sequence"),
            (
                Migration,
                "CREATE TABLE t (a TEXT REFERENCES u DEFERRABLE INITIALLY DEFERRED) STRICT",
                "at COMMIT",
            ),
            (Effect, "INSERT INTO t SELECT a FROM u JOIN v ON random() > 0", "random()"),
            (Effect, "INSERT INTO t SELECT a, random() AS b FROM u", "random()"),
            (Effect, "INSERT INTO t SELECT 1 WHERE NOT EXISTS (SELECT changes())", "changes()"),
            (Effect, "INSERT INTO t VALUES (timediff(:time, 'now'))", "timediff('now')"),
            (Effect, "INSERT INTO t VALUES (datetime('subsec', '+1 day'))", "time of the run"),
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
            (
                Effect,
                "INSERT INTO t VALUES (date(:data ->> 'utc'), time(:data ->> 'now', '+1 day'))",
            ),
            (Effect, "INSERT INTO t VALUES (strftime('now', :time), date(:time || 'utc'))"),
            (Effect, "INSERT INTO changes (a) VALUES (1)"),
            (
                Effect,
                "WITH a AS (SELECT 1), random (n) AS (SELECT 2) INSERT INTO t SELECT n FROM random",
            ),
            (
                Asked,
                "WITH RECURSIVE random (n) AS NOT MATERIALIZED (SELECT 2) SELECT n FROM random",
            ),
            (Migration, "CREATE TABLE IF NOT EXISTS random (a TEXT REFERENCES changes (a)) STRICT"),
            (Migration, "CREATE TABLE changes (random INTEGER, changes TEXT) STRICT"),
            (Migration, "CREATE UNIQUE INDEX i ON changes (random)"),
            (
                Migration,
                "CREATE TABLE t (a TEXT REFERENCES u NOT DEFERRABLE, deferred TEXT) STRICT",
            ),
            (Query, "SELECT date('now'), random()"),
        ];
        for (context, sql) in cases {
            assert_eq!(said(sql, context), Vec::<String>::new(), "{sql}");
        }
    }
}
