//! One statement of a handler: prepared, bound to what the event says, and run to its end.

use rusqlite::{
    ToSql,
    types::{ToSqlOutput, ValueRef},
};

use super::spec::{Effect, Parameter, Statement};
use crate::{
    proto::event::{DataKind, Event, Time},
    receiver::{
        projection::{Fault, Tables, Why},
        tables,
        values::{Value, Values},
    },
};

/// What the statements of a handler are given.
#[derive(Debug, Clone, Copy)]
pub struct Given<'e> {
    /// The event.
    pub event: &'e Event,
    /// Those of its fields that the handler has named.
    pub values: &'e Values,
}

impl ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Value::Integer(number) => ValueRef::Integer(*number),
            Value::Real(number) => ValueRef::Real(*number),
            Value::Text(text) => ValueRef::Text(text),
        }))
    }
}

/// Whether a query gives at least one row.
pub fn gives_a_row<'t>(
    query: &'t Statement,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> Result<bool, Fault> {
    let ask = || Ok(bound(query, tables, given)?.raw_query().next()?.is_some());
    ask().map_err(|error: rusqlite::Error| Fault::from(error).at(&query.place))
}

/// Runs a statement that writes, and counts the rows that it itself has changed: those of
/// triggers and of foreign keys are not its own.
pub fn run<'t>(effect: &'t Effect, tables: &Tables<'t>, given: Given<'_>) -> Result<(), Fault> {
    let Effect { statement, expect_rows } = effect;
    let changed = changed(statement, tables, given)
        .map_err(|error| Fault::from(error).at(&statement.place))?;
    match expect_rows {
        Some(expected) if changed != *expected => {
            let said = format!("changed {changed} rows, {expected} was expected");
            Err(refused("ROWS", said).at(&statement.place))
        }
        _ => Ok(()),
    }
}

fn changed<'t>(
    statement: &'t Statement,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> rusqlite::Result<u64> {
    let mut prepared = bound(statement, tables, given)?;
    if prepared.column_count() == 0 {
        return Ok(prepared.raw_execute()? as u64);
    }
    // RETURNING: everything is done once the last of its rows is taken.
    let mut rows = prepared.raw_query();
    while rows.next()?.is_some() {}
    drop(rows);
    Ok(if prepared.readonly() { 0 } else { tables.changes() })
}

/// Something that the file, or the receiver, does not allow.
pub fn refused(class: &'static str, said: String) -> Fault {
    Fault { place: None, why: Why::Refused { class, said } }
}

/// A statement with those of its parameters set that it has. What is not set is NULL.
pub fn bound<'s, 't>(
    statement: &'t Statement,
    tables: &'s Tables<'t>,
    given: Given<'_>,
) -> rusqlite::Result<tables::Statement<'s, 't>> {
    let mut prepared = tables.statement(&statement.text)?;
    bind(&mut prepared, statement, given)?;
    Ok(prepared)
}

/// Sets a prepared statement's parameters to what they stand for.
///
/// # Errors
/// Whatever SQLite says.
pub fn bind(
    prepared: &mut rusqlite::Statement<'_>,
    statement: &Statement,
    given: Given<'_>,
) -> rusqlite::Result<()> {
    let mut parameters = statement.parameters.iter();
    parameters.try_for_each(|&(index, parameter)| bind_one(prepared, index, parameter, given))
}

fn bind_one(
    statement: &mut rusqlite::Statement<'_>,
    index: usize,
    parameter: Parameter,
    Given { event, values }: Given<'_>,
) -> rusqlite::Result<()> {
    let intent = &event.intent;
    match parameter {
        // Known to be text, so not looked through again.
        Parameter::Data if intent.kind == DataKind::Json => {
            let text = ToSqlOutput::Borrowed(ValueRef::Text(&intent.data));
            statement.raw_bind_parameter(index, text)
        }
        Parameter::Data => Ok(()),
        Parameter::Raw => statement.raw_bind_parameter(index, &intent.data[..]),
        Parameter::Type => statement.raw_bind_parameter(index, &*intent.event_type),
        Parameter::Subject => statement.raw_bind_parameter(index, &*intent.subject),
        Parameter::Time => statement.raw_bind_parameter(index, intent.time.map(time_text)),
        Parameter::AcceptTime => statement.raw_bind_parameter(index, time_text(event.accept_time)),
        Parameter::Sequence => statement.raw_bind_parameter(index, event.sequence),
        Parameter::SubjectVersion => statement.raw_bind_parameter(index, event.subject_version),
        Parameter::Key => statement.raw_bind_parameter(index, &*intent.key),
        Parameter::Fingerprint => statement.raw_bind_parameter(index, intent.fingerprint),
        Parameter::Attributes => {
            let attributes = intent.attributes.iter();
            let object: serde_json::Map<_, _> =
                attributes.map(|(name, value)| (name.clone(), value.clone().into())).collect();
            let text = serde_json::Value::Object(object).to_string();
            statement.raw_bind_parameter(index, text)
        }
        Parameter::Field(place) => statement.raw_bind_parameter(index, values.get(place)),
    }
}

/// RFC 3339 with nine digits of a second, so that texts sort as the times do.
fn time_text(time: Time) -> String {
    let whole = crate::proto::wire::timestamp(Time { nanos: 0, ..time }).to_string();
    format!("{}.{:09}Z", whole.trim_end_matches('Z'), time.nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_sort_as_text() {
        let cases = [
            ((0, 0), "1970-01-01T00:00:00.000000000Z"),
            ((1_796_000_000, 5), "2026-11-30T00:53:20.000000005Z"),
            ((-1, 999_999_999), "1969-12-31T23:59:59.999999999Z"),
            ((-62_135_596_800, 0), "0001-01-01T00:00:00.000000000Z"),
        ];
        for ((seconds, nanos), expected) in cases {
            assert_eq!(time_text(Time { seconds, nanos }), expected);
        }
    }
}
