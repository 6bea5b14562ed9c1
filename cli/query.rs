//! `counterfoil query`: what a receiver's projection answers, as a table or as JSON lines.

use std::{process::ExitCode, time::Duration};

use counterfoil::proto::{
    limits::{FIRST_UNSAFE_INTEGER, MAX_READ},
    pb::{DeclaredQuery, ListQueriesRequest, QueryRequest, QueryResponse},
};
use prost_types::{Struct, Value, value::Kind};

use crate::{arguments, failure::Failure, link, output::say};

/// A query may wait for its sequence, and then take its time.
const LIMIT: Duration = Duration::from_secs(2 * MAX_READ.as_secs() + 10);

/// Asks it; prints the rows.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL or no parameter, [`Failure::Runtime`] where it
/// is refused.
pub async fn run(arguments: arguments::Query) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver(url)?;
    let Some(name) = arguments.name.clone().filter(|_| !arguments.list) else {
        let listed = receiver.list_queries(link::call(ListQueriesRequest {})).await;
        let listed = listed.map_err(|status| Failure::call(url, &status))?.into_inner();
        let lines = listed.queries.iter().map(|query| match arguments.json {
            true => as_json(query),
            false => in_words(query),
        });
        say(lines.collect::<Vec<_>>().join("\n"));
        return Ok(ExitCode::SUCCESS);
    };
    let mut request = QueryRequest {
        name,
        parameters: Some(parameters(&arguments.parameters)?),
        min_sequence: arguments.min_sequence,
        ..QueryRequest::default()
    };
    loop {
        let asked = link::within(request.clone(), LIMIT);
        let page = receiver.query(asked).await.map_err(|status| Failure::call(url, &status))?;
        let page = page.into_inner();
        let shown = if arguments.json { lines(&page) } else { table(&page) };
        if !shown.is_empty() {
            say(shown);
        }
        match (page.truncated, arguments.all && !page.next_page_token.is_empty()) {
            (true, true) => request.page_token = page.next_page_token,
            (true, false) => {
                let more = if page.next_page_token.is_empty() { "" } else { "; see --all" };
                eprintln!("there are more rows{more}");
                break;
            }
            (false, _) => break,
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `name=value`, each; whole numbers that a double holds are numbers, all else is text.
fn parameters(given: &[String]) -> Result<Struct, Failure> {
    let mut fields = std::collections::BTreeMap::new();
    for text in given {
        let (name, value) = text.split_once('=').ok_or_else(|| {
            Failure::Usage(format!("{text:?} is no parameter; NAME=VALUE was expected"))
        })?;
        let kind = match value.parse::<i64>() {
            Ok(number)
                if (number as f64).abs() < FIRST_UNSAFE_INTEGER && number.to_string() == value =>
            {
                Kind::NumberValue(number as f64)
            }
            _ => Kind::StringValue(value.to_owned()),
        };
        fields.insert(name.to_owned(), Value { kind: Some(kind) });
    }
    Ok(Struct { fields })
}

/// One JSON object for each row.
fn lines(page: &QueryResponse) -> String {
    let line = |row: &Struct| {
        let fields = row.fields.iter().map(|(name, value)| (name.clone(), json(value)));
        serde_json::Value::Object(fields.collect()).to_string()
    };
    page.rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn json(value: &Value) -> serde_json::Value {
    match &value.kind {
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::BoolValue(truth)) => (*truth).into(),
        Some(Kind::NumberValue(number))
            if number.fract() == 0.0 && number.abs() < FIRST_UNSAFE_INTEGER =>
        {
            (*number as i64).into()
        }
        Some(Kind::NumberValue(number)) => (*number).into(),
        // A row holds no others.
        _ => serde_json::Value::Null,
    }
}

/// The rows under the names of their columns; numbers to the right.
fn table(page: &QueryResponse) -> String {
    let cell = |row: &Struct, column: &String| match row.fields.get(column).map(json) {
        None | Some(serde_json::Value::Null) => ("-".to_owned(), false),
        Some(serde_json::Value::String(text)) => (text.escape_debug().to_string(), false),
        Some(number) => (number.to_string(), true),
    };
    let names = page.columns.iter().map(|name| (name.escape_debug().to_string(), false)).collect();
    let rows =
        page.rows.iter().map(|row| page.columns.iter().map(|name| cell(row, name)).collect());
    let rows: Vec<Vec<(String, bool)>> = std::iter::once(names).chain(rows).collect();
    let widths: Vec<_> = (0..page.columns.len())
        .map(|n| rows.iter().map(|row| row[n].0.chars().count()).max().unwrap_or_default())
        .collect();
    let numbers: Vec<_> =
        (0..page.columns.len()).map(|n| rows[1..].iter().any(|row| row[n].1)).collect();
    let line = |row: &Vec<(String, bool)>| {
        let cells = row.iter().zip(&widths).zip(&numbers).map(|(((text, _), &width), &number)| {
            if number { format!("{text:>width$}") } else { format!("{text:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What there is to ask, as it is typed.
fn in_words(query: &DeclaredQuery) -> String {
    let parameters = query.parameters.iter().map(|name| format!(" {name}=…"));
    let mut text = query.name.clone() + &parameters.collect::<String>();
    if !query.description.is_empty() {
        text = format!("{text}\n    {}", query.description);
    }
    text
}

fn as_json(query: &DeclaredQuery) -> String {
    serde_json::json!({
        "name": query.name,
        "description": query.description,
        "parameters": query.parameters,
        "pageBy": query.page_by,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> QueryResponse {
        let row = |item: &str, available: Kind| Struct {
            fields: [("item", Kind::StringValue(item.into())), ("available", available)]
                .map(|(name, kind)| (name.to_owned(), Value { kind: Some(kind) }))
                .into(),
        };
        QueryResponse {
            rows: vec![
                row("camera\n", Kind::NumberValue(12.0)),
                row("x", Kind::StringValue("9223372036854775807".into())),
                row("y", Kind::NullValue(0)),
            ],
            columns: vec!["item".into(), "available".into()],
            ..QueryResponse::default()
        }
    }

    #[test]
    fn rows_stand_under_their_columns() {
        let expected = "item                available\n\
                        camera\\n                   12\n\
                        x         9223372036854775807\n\
                        y                           -";
        assert_eq!(table(&page()), expected);
    }

    #[test]
    fn json_lines_are_exact() {
        let expected = "{\"available\":12,\"item\":\"camera\\n\"}\n\
                        {\"available\":\"9223372036854775807\",\"item\":\"x\"}\n\
                        {\"available\":null,\"item\":\"y\"}";
        assert_eq!(lines(&page()), expected);
    }

    #[test]
    fn a_parameter_is_a_number_where_nothing_is_lost() {
        let number = Kind::NumberValue(-7.0);
        let text = |text: &str| Kind::StringValue(text.to_owned());
        let cases = [
            ("-7", number),
            ("9007199254740991", Kind::NumberValue(9_007_199_254_740_991.0)),
            ("9007199254740993", text("9007199254740993")),
            ("007", text("007")),
            ("1.5", text("1.5")),
            ("a=b", text("a=b")),
            ("", text("")),
        ];
        for (value, expected) in cases {
            let read = parameters(&[format!("n={value}")]).expect("a parameter");
            assert_eq!(read.fields["n"].kind, Some(expected), "{value}");
        }
        parameters(&["n".to_owned()]).expect_err("no value");
    }
}
