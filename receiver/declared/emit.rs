//! Events that follow from one: each row of a query, held to what a publisher takes, so that
//! nothing is written to the outbox that no publisher would accept.

use std::str::FromStr as _;

use bytes::Bytes;
use rusqlite::{Row, types::ValueRef};

use super::{
    spec::{EMISSION_COLUMNS, Emission},
    statement::{Given, bound, refused},
};
use crate::{
    proto::{
        event::Event,
        limits::MAX_FOLLOW_UPS,
        publishing::{Data, NewEvent},
        wire,
    },
    receiver::{
        projection::{Fault, FollowUp, Tables},
        tables,
    },
};

/// Lets each row of an emission's query follow from the event.
pub fn follow_ups<'t>(
    emission: &'t Emission,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> Result<(), Fault> {
    let at = |fault: Fault| fault.at(&emission.query.place);
    let mut prepared = bound(&emission.query, tables, given).map_err(|error| at(error.into()))?;
    let columns = Columns::of(&prepared);
    let mut rows = prepared.raw_query();
    let mut count = 0;
    while let Some(row) = rows.next().map_err(|error| at(error.into()))? {
        count += 1;
        if count > MAX_FOLLOW_UPS {
            let said = format!("gives more than {MAX_FOLLOW_UPS} rows");
            return Err(at(refused("FOLLOW_UP", said)));
        }
        let follow_up = follow_up(emission, &columns, row, given.event)
            .map_err(|wrong| at(refused("FOLLOW_UP", wrong)))?;
        tables.emit(follow_up);
    }
    Ok(())
}

/// Where the columns of [`EMISSION_COLUMNS`] stand, in that order.
struct Columns([Option<usize>; EMISSION_COLUMNS.len()]);

impl Columns {
    fn of(statement: &tables::Statement<'_, '_>) -> Self {
        let names: Vec<_> = statement.column_names().collect();
        Columns(EMISSION_COLUMNS.map(|column| names.iter().position(|name| *name == column)))
    }

    /// The value of a column; none: NULL, or there is no such column.
    fn get<'r>(&self, row: &'r Row<'_>, column: &str) -> Option<ValueRef<'r>> {
        let known = EMISSION_COLUMNS.iter().position(|known| *known == column)?;
        let value = row.get_ref(self.0[known]?).ok()?;
        (value != ValueRef::Null).then_some(value)
    }

    fn text<'r>(&self, row: &'r Row<'_>, column: &str) -> Result<Option<&'r str>, String> {
        match self.get(row, column) {
            None => Ok(None),
            Some(ValueRef::Text(text)) => match std::str::from_utf8(text) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(format!("{column}: the text is not UTF-8")),
            },
            Some(other) => Err(format!("{column}: is {}, text was expected", kind(other))),
        }
    }

    fn time(&self, row: &Row<'_>, column: &str) -> Result<Option<prost_types::Timestamp>, String> {
        let parse = |text: &str| {
            prost_types::Timestamp::from_str(text).map_err(|_| {
                format!("{column}: is {text:?}, a time as RFC 3339 has it was expected")
            })
        };
        self.text(row, column)?.map(parse).transpose()
    }
}

/// A row as a follow-up event. The error is what is wrong with it.
fn follow_up(
    emission: &Emission,
    columns: &Columns,
    row: &Row<'_>,
    event: &Event,
) -> Result<FollowUp, String> {
    let bytes = |text: &str| Bytes::copy_from_slice(text.as_bytes());
    let event_type = match (columns.text(row, "type")?, &emission.event_type) {
        (Some(said), _) => said,
        (None, Some(declared)) => declared,
        (None, None) => return Err("type: is NULL, text was expected".to_owned()),
    };
    let mut stated = NewEvent {
        // Derived once it is written; long enough for every check.
        key: Bytes::from_static(b"k"),
        event_type: bytes(event_type),
        subject: bytes(columns.text(row, "subject")?.unwrap_or_default()),
        content_type: bytes(columns.text(row, "content_type")?.unwrap_or_default()),
        data: match columns.get(row, "data") {
            None => None,
            Some(ValueRef::Text(_)) => {
                columns.text(row, "data")?.map(|text| Data::JsonText(bytes(text)))
            }
            Some(ValueRef::Blob(bytes)) => Some(Data::Binary(Bytes::copy_from_slice(bytes))),
            Some(other) => {
                return Err(format!("data: is {}, JSON text or a blob was expected", kind(other)));
            }
        },
        time: columns.time(row, "time")?,
        first_attempt_time: columns.time(row, "first_attempt_time")?,
        expected_version: match columns.get(row, "expected_version") {
            None => None,
            Some(ValueRef::Integer(version)) => Some(version),
            Some(other) => {
                return Err(format!(
                    "expected_version: is {}, an integer was expected",
                    kind(other)
                ));
            }
        },
        ..NewEvent::default()
    };
    let mut attributes = Vec::new();
    // The event's own time stands for the clock: a replay has to come to the same.
    let now = event.accept_time;
    let checked =
        wire::stated(&mut stated, &mut attributes, format_args!("{}", emission.name), now)
            .map_err(|refusal| refusal.message)?;
    let intent = checked.to_intent();
    Ok(FollowUp {
        name: emission.name.clone(),
        event_type: intent.event_type.into(),
        subject: intent.subject.into(),
        content_type: intent.content_type.into(),
        kind: intent.kind,
        data: intent.data,
        time: intent.time,
        first_attempt_time: intent.first_attempt_time,
        expected_version: intent.expected_version,
    })
}

fn kind(value: ValueRef<'_>) -> &'static str {
    match value {
        ValueRef::Null => "NULL",
        ValueRef::Integer(_) => "an integer",
        ValueRef::Real(_) => "a real number",
        ValueRef::Text(_) => "text",
        ValueRef::Blob(_) => "a blob",
    }
}
