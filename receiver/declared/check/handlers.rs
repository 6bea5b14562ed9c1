//! `[[on]]`: every statement prepared, its parameters and columns looked at.

use super::{
    only,
    parameters::Names,
    sandbox::{Prepared, Sandbox},
};
use crate::receiver::declared::{
    file::{self, ExpectRows, Rows},
    flaw::{Flaws, listed, meant},
    rules::Context,
    spec::{EMISSION_COLUMNS, Effect, Emission, Handler, Requirement, Rule, Statement},
    statements::{Piece, statements},
    text::Text,
    tokens::Kind,
};

/// What the statements of a handler are prepared with.
struct Scope<'s> {
    sandbox: &'s Sandbox,
    names: Names,
}

pub(super) fn check(sandbox: &Sandbox, on: file::Handler, flaws: &mut Flaws) -> Handler {
    let scope = &Scope { sandbox, names: Names::of(&on, flaws) };
    let rules = on.reject_unless.into_iter().map(|rule| Rule {
        row: asked(scope, rule.row.as_ref(), &format!("{}.row", rule.place), flaws).0,
        result: rule
            .result
            .as_ref()
            .map(|text| result(scope, text, &format!("{}.result", rule.place), flaws)),
        reason: rule.reason,
    });
    let reject_unless = rules.collect();
    let sql = effects(scope, &on.place, &on.sql, on.expect_rows.as_ref(), flaws);
    let require = on.require.into_iter().map(|required| Requirement {
        place: required.place,
        field: required.field,
        kind: required.kind,
        name: required.name.map(|name| name.text),
    });
    Handler {
        types: on.types.into_iter().map(|(pattern, _)| pattern).collect(),
        require: require.collect(),
        reject_unless,
        sql,
        result: on
            .result
            .as_ref()
            .map(|text| result(scope, text, &format!("{}.result", on.place), flaws)),
        emit: on.emit.into_iter().map(|emit| emission(scope, emit, flaws)).collect(),
        place: on.place,
    }
}

/// The statements that write.
fn effects(
    scope: &Scope<'_>,
    on: &str,
    texts: &[Text],
    expect: Option<&ExpectRows>,
    flaws: &mut Flaws,
) -> Vec<Effect> {
    let mut found = Vec::new();
    for text in texts {
        let pieces = statements(&text.text);
        if pieces.is_empty() {
            flaws.add(
                text.line_at(0),
                format!("{on}.sql"),
                "is empty; leave it out, or write a statement",
            );
        }
        for piece in pieces {
            let place = format!("{on}.sql[{}]", found.len());
            let prepared = scope.sandbox.prepare((text, &piece), Context::Effect, &place, flaws);
            if prepared.as_ref().is_some_and(|prepared| prepared.statement.readonly()) {
                flaws.add(
                    text.line_at(piece.at),
                    place.as_str(),
                    "writes nothing, so it does nothing here; a rule stands under reject_unless, \
                     and what the ledger keeps under result",
                );
            }
            found.push(Effect {
                statement: statement(scope, (text, &piece), prepared.as_ref(), &place, flaws),
                expect_rows: None,
            });
        }
    }
    if let Some(ExpectRows { line, rows }) = expect {
        expect_rows(on, *line, rows, &mut found, flaws);
    }
    found
}

fn expect_rows(on: &str, line: usize, rows: &Rows, effects: &mut [Effect], flaws: &mut Flaws) {
    let place = format!("{on}.expect_rows");
    match rows {
        Rows::Each(_) if effects.is_empty() => {
            flaws.add(line, place, "is about the statements of sql, and there are none");
        }
        Rows::Each(rows) => effects.iter_mut().for_each(|effect| effect.expect_rows = *rows),
        Rows::List(list) if list.len() != effects.len() => {
            let message = format!(
                "is a list of {} for {} statements; write a number for each of them, such as [1, \"any\"]",
                list.len(),
                effects.len()
            );
            flaws.add(line, place, message);
        }
        Rows::List(list) => {
            for (effect, rows) in effects.iter_mut().zip(list) {
                effect.expect_rows = *rows;
            }
        }
    }
}

/// A statement and what it is given.
fn statement(
    scope: &Scope<'_>,
    written: (&Text, &Piece<'_>),
    prepared: Option<&Prepared<'_>>,
    place: &str,
    flaws: &mut Flaws,
) -> Statement {
    let parameters = prepared
        .map(|prepared| scope.names.of_statement(written, prepared, place, flaws))
        .unwrap_or_default();
    Statement { place: place.to_owned(), text: written.1.text.to_owned(), parameters }
}

/// A query of a handler, and its columns.
fn asked(
    scope: &Scope<'_>,
    text: Option<&Text>,
    place: &str,
    flaws: &mut Flaws,
) -> (Statement, Option<Vec<String>>) {
    let none =
        || Statement { place: place.to_owned(), text: String::new(), parameters: Vec::new() };
    let Some(text) = text else { return (none(), None) };
    let Some(piece) = only(text, place, flaws) else { return (none(), None) };
    let prepared = scope.sandbox.prepare((text, &piece), Context::Asked, place, flaws);
    let columns = prepared.as_ref().and_then(|prepared| {
        let reads = prepared.statement.readonly() && prepared.statement.column_count() > 0;
        if !reads {
            let message = "does not only read; write a SELECT here, and what writes under sql";
            flaws.add(text.line_at(piece.at), place, message);
        }
        reads.then(|| names(prepared))
    });
    (statement(scope, (text, &piece), prepared.as_ref(), place, flaws), columns)
}

fn names(prepared: &Prepared<'_>) -> Vec<String> {
    prepared.statement.column_names().map(str::to_owned).collect()
}

/// A query whose row becomes the ledger's result.
fn result(scope: &Scope<'_>, text: &Text, place: &str, flaws: &mut Flaws) -> Statement {
    let (statement, columns) = asked(scope, Some(text), place, flaws);
    named_columns(text, place, columns.as_deref().unwrap_or_default(), flaws);
    statement
}

/// Columns become fields of an object, so each has a name, and its own.
pub(super) fn named_columns(text: &Text, place: &str, columns: &[String], flaws: &mut Flaws) {
    let pieces = statements(&text.text);
    let Some(piece) = pieces.first() else { return };
    let line = text.line_at(piece.at);
    for (n, column) in columns.iter().enumerate() {
        if columns[..n].contains(column) {
            let message = format!("gives two columns {column:?}; give one another name with AS");
            flaws.add(line, place, message);
        }
        let given = piece.tokens.iter().any(|token| {
            let inner = token.text.get(1..token.text.len().saturating_sub(1)).unwrap_or_default();
            let quoted = matches!(token.kind, Kind::Name | Kind::Literal);
            token.text == column || (quoted && inner == column)
        });
        if !given && !is_word(column) {
            let message =
                format!("column {} has no name of its own, {column}; write … AS name", n + 1);
            flaws.add(line, place, message);
        }
    }
}

fn is_word(text: &str) -> bool {
    text.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
}

/// A query whose rows are events.
fn emission(scope: &Scope<'_>, emit: file::Emission, flaws: &mut Flaws) -> Emission {
    let place = format!("{}.query", emit.place);
    let (query, columns) = asked(scope, emit.query.as_ref(), &place, flaws);
    if let (Some(columns), Some(text)) = (columns, &emit.query) {
        let line = text.line_at(statements(&text.text).first().map_or(0, |one| one.at));
        for (n, column) in columns.iter().enumerate() {
            if columns[..n].contains(column) {
                flaws.add(
                    line,
                    place.as_str(),
                    format!("gives two columns {column:?}; leave one out"),
                );
            } else if !EMISSION_COLUMNS.contains(&column.as_str()) {
                let near = meant(column, EMISSION_COLUMNS);
                let within = if is_word(column) {
                    format!(", or put it into data with json_object('{column}', …)")
                } else {
                    String::new()
                };
                let message = format!(
                    "gives a column {column:?}, which no event has; there are: {}{near}; name it \
                     with AS{within}",
                    listed(EMISSION_COLUMNS)
                );
                flaws.add(line, place.as_str(), message);
            }
        }
        let has = |name: &str| columns.iter().any(|column| column == name);
        for (name, instead) in [
            ("subject", "what it happened to: … AS subject, or '' AS subject for nothing"),
            ("data", "the payload: json_object('field', …) AS data"),
        ] {
            if !has(name) {
                flaws.add(line, place.as_str(), format!("gives no column {name}; write {instead}"));
            }
        }
        if emit.event_type.is_none() && !has("type") {
            let message = "has no type; write type = \"…\" beside the query, or give a column type";
            flaws.add(emit.line, emit.place.as_str(), message);
        }
    }
    Emission { name: emit.name, event_type: emit.event_type, query }
}
