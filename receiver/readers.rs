//! Read-only connections for the service and the acks, off the async runtime. The writer
//! does not wait for them, nor they for it.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use rusqlite::{Connection, Row, Statement, types::ValueRef};
use tokio::sync::Semaphore;
use tonic::Status;

use super::{
    projection::DeclaredQuery,
    store::{self, cursor},
};
use crate::proto::{
    event::{Sequence, hex},
    limits::{FIRST_UNSAFE_INTEGER, MAX_QUERY_ROWS},
    refusal::Refusal,
};

/// Connections open at once.
const MOST: usize = 4;

/// A small pool.
#[derive(Debug, Clone)]
pub struct Readers {
    db: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

impl Readers {
    /// Of a database that the writer has opened already.
    pub fn new(db: PathBuf) -> Self {
        Readers { db: Arc::new(db), idle: Arc::default(), permits: Arc::new(Semaphore::new(MOST)) }
    }

    /// Reads something on a thread that may block.
    ///
    /// # Errors
    /// INTERNAL without details; those are logged.
    pub async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!("the database could not be read: {error}");
            Status::internal("the receiver's database could not be read; its log says why")
        };
        let permit = self.permits.clone().acquire_owned().await.map_err(|e| failed(&e))?;
        let Readers { db, idle, .. } = self.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let connection = kept.map_or_else(|| store::open_for_reading(&db), Ok)?;
            let found = what(&connection)?; // after an error a new connection is opened
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            Ok::<_, rusqlite::Error>(found)
        });
        read.await.map_err(|e| failed(&e))?.map_err(|e| failed(&e))
    }
}

/// The answer to a declared query.
#[derive(Debug, PartialEq)]
pub struct Rows {
    /// At most [`MAX_QUERY_ROWS`].
    pub rows: Vec<prost_types::Struct>,
    /// Sequence up to which they are true; -1: nothing is applied.
    pub sequence: Sequence,
    /// There were more.
    pub truncated: bool,
}

/// Parameters for a declared query, checked.
///
/// # Errors
/// INVALID_FIELD naming the parameter and those that are declared.
pub fn parameters(
    query: &DeclaredQuery,
    given: Option<prost_types::Struct>,
) -> Result<Vec<(String, rusqlite::types::Value)>, Refusal> {
    let given = given.unwrap_or_default().fields;
    let field = |name: &str| format!("parameters.{name}");
    let mut checked = Vec::with_capacity(given.len());
    for (name, value) in given {
        if !query.parameters.iter().any(|declared| *declared == name) {
            let declared = match &*query.parameters {
                [] => "this query has none".to_owned(),
                names => format!("this query has: {}", names.join(", ")),
            };
            return Err(Refusal::field(field(&name), format!("is not declared; {declared}")));
        }
        use prost_types::value::Kind;
        use rusqlite::types::Value;
        let value = match value.kind {
            None | Some(Kind::NullValue(_)) => Value::Null,
            Some(Kind::BoolValue(truth)) => Value::Integer(truth.into()),
            Some(Kind::StringValue(text)) => Value::Text(text),
            Some(Kind::NumberValue(number))
                if number.fract() == 0.0 && number.abs() < FIRST_UNSAFE_INTEGER =>
            {
                Value::Integer(number as i64)
            }
            Some(Kind::NumberValue(number)) => Value::Real(number),
            Some(Kind::StructValue(_) | Kind::ListValue(_)) => {
                return Err(Refusal::field(field(&name), "is not text, a number, true or false"));
            }
        };
        checked.push((format!(":{name}"), value));
    }
    Ok(checked)
}

/// Runs a declared query, rows and cursor out of one snapshot.
///
/// # Errors
/// Whatever SQLite says.
pub fn query(
    connection: &Connection,
    log: &str,
    query: &DeclaredQuery,
    parameters: &[(String, rusqlite::types::Value)],
) -> rusqlite::Result<Rows> {
    let snapshot = connection.unchecked_transaction()?;
    let sequence = cursor::read(&snapshot, log)?.map_or(-1, |cursor| cursor.sequence);
    let mut statement = snapshot.prepare_cached(&query.sql)?;
    for name in &*query.parameters {
        bind(&mut statement, &format!(":{name}"), &rusqlite::types::Value::Null)?;
    }
    for (name, value) in parameters {
        bind(&mut statement, name, value)?;
    }
    let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = Vec::new();
    let mut truncated = false;
    let mut found = statement.raw_query();
    while let Some(row) = found.next()? {
        if rows.len() == MAX_QUERY_ROWS {
            truncated = true;
            break;
        }
        rows.push(structure(&columns, row)?);
    }
    Ok(Rows { rows, sequence, truncated })
}

fn bind(
    statement: &mut Statement<'_>,
    name: &str,
    value: &rusqlite::types::Value,
) -> rusqlite::Result<()> {
    match statement.parameter_index(name)? {
        Some(index) => statement.raw_bind_parameter(index, value),
        None => Err(rusqlite::Error::InvalidParameterName(name.to_owned())),
    }
}

fn structure(columns: &[String], row: &Row<'_>) -> rusqlite::Result<prost_types::Struct> {
    let fields = columns.iter().enumerate().map(|(index, column)| {
        let kind = shown(row.get_ref(index)?);
        Ok((column.clone(), prost_types::Value { kind: Some(kind) }))
    });
    Ok(prost_types::Struct { fields: fields.collect::<rusqlite::Result<_>>()? })
}

/// A Struct's numbers are doubles: what one cannot hold is shown as text.
fn shown(value: ValueRef<'_>) -> prost_types::value::Kind {
    use prost_types::value::Kind;
    match value {
        ValueRef::Null => Kind::NullValue(0),
        ValueRef::Integer(number) if (number as f64).abs() < FIRST_UNSAFE_INTEGER => {
            Kind::NumberValue(number as f64)
        }
        ValueRef::Integer(number) => Kind::StringValue(number.to_string()),
        ValueRef::Real(number) if number.is_finite() => Kind::NumberValue(number),
        ValueRef::Real(number) => Kind::StringValue(number.to_string()),
        ValueRef::Text(text) => Kind::StringValue(String::from_utf8_lossy(text).into_owned()),
        ValueRef::Blob(bytes) => Kind::StringValue(hex(bytes)),
    }
}

#[cfg(test)]
mod tests {
    use prost_types::value::Kind;

    use super::*;

    fn numbers() -> DeclaredQuery {
        DeclaredQuery {
            name: "numbers".into(),
            parameters: vec!["least".into()].into(),
            sql: "WITH RECURSIVE n (n) AS
                      (SELECT coalesce(:least, 0) UNION ALL SELECT n + 1 FROM n LIMIT 1001)
                  SELECT n FROM n"
                .into(),
            ..DeclaredQuery::default()
        }
    }

    fn number(value: f64) -> prost_types::Struct {
        let value = prost_types::Value { kind: Some(Kind::NumberValue(value)) };
        prost_types::Struct { fields: [("least".to_owned(), value)].into() }
    }

    #[test]
    fn rows_are_bounded_and_parameters_may_be_left_out() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        for (given, first) in [(None, 0.0), (Some(number(7.0)), 7.0), (None, 0.0)] {
            let parameters = parameters(&numbers(), given).expect("declared");
            let found = query(&tables, "main", &numbers(), &parameters).expect("valid SQL");
            assert_eq!((found.rows.len(), found.sequence, found.truncated), (1_000, -1, true));
            assert_eq!(found.rows[0].fields["n"].kind, Some(Kind::NumberValue(first)));
        }
    }

    #[test]
    fn undeclared_parameters_are_refused() {
        let mut given = number(1.0);
        given.fields.insert("most".to_owned(), prost_types::Value { kind: None });
        let refusal = parameters(&numbers(), Some(given)).expect_err("undeclared");
        assert_eq!(refusal.fields[0].0, "parameters.most");
        assert!(refusal.message.contains("least"));
    }

    #[test]
    fn what_a_double_cannot_hold_is_text() {
        let text = |text: &str| Kind::StringValue(text.to_owned());
        let cases = [
            (ValueRef::Integer(1 << 52), Kind::NumberValue(4_503_599_627_370_496.0)),
            (ValueRef::Integer(1 << 53), text("9007199254740992")),
            (ValueRef::Integer(i64::MIN), text("-9223372036854775808")),
            (ValueRef::Real(f64::INFINITY), text("inf")),
            (ValueRef::Blob(&[1, 255]), text("01ff")),
            (ValueRef::Null, Kind::NullValue(0)),
        ];
        for (value, expected) in cases {
            assert_eq!(shown(value), expected, "{value:?}");
        }
    }
}
