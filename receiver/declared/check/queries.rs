//! `[[query]]`: one statement that reads, with the parameters that it says.

use super::{handlers::named_columns, only, parameters::line_of, sandbox::Sandbox};
use crate::receiver::{
    declared::{
        file::Query,
        flaw::{Flaws, listed, meant},
        rules::Context,
        statements::Piece,
        text::Text,
    },
    projection::DeclaredQuery,
};

pub(super) fn check(sandbox: &Sandbox, query: Query, flaws: &mut Flaws) -> DeclaredQuery {
    let sql = query.sql.as_ref().and_then(|text| {
        let piece = only(text, &query.place, flaws)?;
        prepare(sandbox, &query, (text, &piece), flaws);
        Some(piece.text.to_owned())
    });
    let sql = sql.unwrap_or_default();
    let owned = |texts: Vec<Text>| texts.into_iter().map(|text| text.text.into()).collect();
    DeclaredQuery {
        name: query.name.into(),
        parameters: owned(query.parameters),
        sql: sql.into(),
        description: query.description.into(),
        page_by: owned(query.page_by),
    }
}

fn prepare(
    sandbox: &Sandbox,
    query: &Query,
    (text, piece): (&Text, &Piece<'_>),
    flaws: &mut Flaws,
) {
    let place = query.place.as_str();
    let Some(prepared) = sandbox.prepare((text, piece), Context::Query, place, flaws) else {
        return;
    };
    let statement = prepared.statement;
    if !statement.readonly() || statement.column_count() == 0 {
        let message =
            "does not only read; a query answers callers, and what writes is under [[on]]";
        flaws.add(text.line_at(piece.at), place, message);
        return;
    }
    let declared = || query.parameters.iter().map(|parameter| parameter.text.as_str());
    let mut used = Vec::new();
    for index in 1..=statement.parameter_count() {
        let named = statement.parameter_name(index).and_then(|name| name.strip_prefix(':'));
        let Some(name) = named else { continue };
        used.push(name);
        if !declared().any(|known| known == name) {
            let near = meant(name, declared());
            let message = format!(
                ":{name} is not declared; write it into parameters, which are: {}{near}",
                listed(declared())
            );
            flaws.add(line_of(text, piece, &format!(":{name}")), place, message);
        }
    }
    for parameter in &query.parameters {
        if !used.contains(&parameter.text.as_str()) {
            let message = format!(
                "has {:?}, which the statement does not use; write :{} in it, or leave it out here",
                parameter.text, parameter.text
            );
            flaws.add(parameter.line_at(0), format!("{place}.parameters"), message);
        }
    }
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    named_columns(text, place, &columns, flaws);
    for (n, column) in query.page_by.iter().enumerate() {
        let written = column.text.as_str();
        let place = format!("{place}.page_by");
        if query.page_by[..n].iter().any(|other| other.text == written) {
            flaws.add(column.line_at(0), place, format!("has {written:?} twice; once is enough"));
        } else if !columns.iter().any(|known| known == written) {
            let near = meant(written, columns.iter().map(String::as_str));
            let message = format!(
                "has {written:?}, no column of the result; there are: {}{near}",
                listed(&columns)
            );
            flaws.add(column.line_at(0), place, message);
        }
    }
}
