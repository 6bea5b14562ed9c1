//! What callers ask by a declared query: its parameters, one page of its rows, and where the
//! next one begins. Knows nothing of who asks, and of how connections are come by.

mod page;

use prost::Message as _;
use rusqlite::{ErrorCode, Row, Statement, types::Value, types::ValueRef};

use self::page::Token;
use super::{
    projection::DeclaredQuery,
    readers::Reader,
    store::{
        cursor,
        trouble::{self, Trouble},
    },
};
use crate::proto::{
    event::{Sequence, hex},
    limits::{FIRST_UNSAFE_INTEGER, MAX_QUERY_BYTES, MAX_QUERY_ROWS},
    refusal::{Reason, Refusal},
};

/// What a message adds to a row: its tag and its length.
const ROW_FRAME_BYTES: usize = 6;

/// A query with all that a caller says to it, checked.
#[derive(Debug, Clone)]
pub struct Asked {
    query: DeclaredQuery,
    parameters: Vec<(String, Value)>,
    /// Rows of one page.
    size: usize,
    /// Behind this row.
    after: Option<Token>,
}

/// The answer to a declared query.
#[derive(Debug, PartialEq)]
pub struct Rows {
    /// Names of the columns, in their order.
    pub columns: Vec<String>,
    /// One page at most.
    pub rows: Vec<prost_types::Struct>,
    /// Sequence up to which they are true; -1: nothing is applied.
    pub sequence: Sequence,
    /// There were more.
    pub truncated: bool,
    /// Where they go on; empty: there are no more, or the query has no pages.
    pub next: String,
}

impl Asked {
    /// Checks what a caller says.
    ///
    /// # Errors
    /// INVALID_FIELD naming the field, and what was expected.
    pub fn of(
        query: &DeclaredQuery,
        parameters: Option<prost_types::Struct>,
        page_size: i32,
        page_token: &str,
    ) -> Result<Self, Refusal> {
        let parameters = checked(query, parameters)?;
        let size = match usize::try_from(page_size) {
            Ok(0) => MAX_QUERY_ROWS,
            Ok(size) => size.min(MAX_QUERY_ROWS),
            Err(_) => {
                let wrong = format!("is {page_size}; it must be 0 or more");
                return Err(Refusal::field("page_size", wrong));
            }
        };
        let after = match page_token {
            "" => None,
            token => Some(Token::read(token, query, &parameters)?),
        };
        Ok(Asked { query: query.clone(), parameters, size, after })
    }

    /// Runs it, rows and cursor out of one snapshot.
    ///
    /// # Errors
    /// Whatever SQLite says; a refusal where the rows are not such that they can be told.
    pub fn run(&self, reader: &Reader, log: &str) -> rusqlite::Result<Result<Rows, Refusal>> {
        let snapshot = reader.unchecked_transaction()?;
        let sequence = cursor::read(&snapshot, log)?.map_or(-1, |cursor| cursor.sequence);
        reader.for_callers(|| {
            let sql = page::statement(&self.query, self.after.is_some());
            let mut statement = reader.prepare_cached(&sql)?;
            let columns: Vec<String> = statement.column_names().map(str::to_owned).collect();
            let found = match self.bind(&mut statement) {
                Ok(()) => self.collect(statement.raw_query(), columns, sequence),
                Err(error) => Err(error),
            };
            found.or_else(|error| self.unanswered(error).map(Err))
        })
    }

    /// A statement that SQLite has taken and cannot run with what it is given; the database is
    /// well. One that is given nothing is the projection's own affair, and no caller's.
    fn unanswered(&self, error: rusqlite::Error) -> rusqlite::Result<Refusal> {
        let ended = error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted);
        let of_statement =
            error.sqlite_error().is_some() && trouble::judge(&error) == Trouble::Statement;
        if ended || !of_statement || self.query.parameters.is_empty() {
            return Err(error);
        }
        tracing::warn!(query = &*self.query.name, "a query cannot be answered: {error}");
        let said = trouble::said(&error);
        let wrong = format!("the query cannot be answered with these parameters ({said})");
        Ok(Refusal::field("parameters", wrong))
    }

    fn bind(&self, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
        for name in &*self.query.parameters {
            bind(statement, &format!(":{name}"), &Value::Null)?;
        }
        for (name, value) in &self.parameters {
            bind(statement, name, value)?;
        }
        if let Some(after) = &self.after {
            for (n, value) in after.values().iter().enumerate() {
                bind(statement, &page::after(n), value)?;
            }
        }
        if self.has_pages() {
            // One more says whether there is another page, and where it begins.
            bind(statement, page::LIMIT, &Value::Integer(self.size as i64 + 1))?;
        }
        Ok(())
    }

    fn has_pages(&self) -> bool {
        !self.query.page_by.is_empty()
    }

    fn collect(
        &self,
        mut found: rusqlite::Rows<'_>,
        columns: Vec<String>,
        sequence: Sequence,
    ) -> rusqlite::Result<Result<Rows, Refusal>> {
        let mut rows = Vec::new();
        let (mut bytes, mut truncated, mut last) = (0, false, Vec::new());
        while let Some(row) = found.next()? {
            let place = match self.place(&columns, row)? {
                Ok(place) => place,
                Err(refusal) => return Ok(Err(refusal)),
            };
            if self.has_pages() && !rows.is_empty() && page::same(&place, &last) {
                return Ok(Err(wrong_rows("two rows are the same in what its pages go by")));
            }
            let told = structure(&columns, row)?;
            bytes += told.encoded_len() + ROW_FRAME_BYTES;
            if rows.len() == self.size || bytes > MAX_QUERY_BYTES {
                truncated = true;
                break;
            }
            rows.push(told);
            last = place;
        }
        if truncated && rows.is_empty() {
            return Ok(Err(Refusal::new(
                Reason::QueryTooLong,
                "one row of it is larger than an answer may be",
            )
            .with("limit", MAX_QUERY_BYTES)));
        }
        let next = match truncated && self.has_pages() {
            true => Token::of(last).written(&self.query, &self.parameters),
            false => String::new(),
        };
        Ok(Ok(Rows { columns, rows, sequence, truncated, next }))
    }

    /// What tells a row from the others, where the query has pages.
    fn place(
        &self,
        columns: &[String],
        row: &Row<'_>,
    ) -> rusqlite::Result<Result<Vec<Value>, Refusal>> {
        let mut place = Vec::with_capacity(self.query.page_by.len());
        for name in &*self.query.page_by {
            let index = columns
                .iter()
                .position(|column| column == name)
                .ok_or_else(|| rusqlite::Error::InvalidColumnName(name.to_string()))?;
            match row.get(index)? {
                Value::Null => {
                    let wrong =
                        format!("its column {name:?}, by which its pages go, is NULL in a row");
                    return Ok(Err(wrong_rows(&wrong)));
                }
                value => place.push(value),
            }
        }
        Ok(Ok(place))
    }
}

/// The projection says more of its rows than is true.
fn wrong_rows(wrong: &str) -> Refusal {
    Refusal::new(Reason::WrongState, format!("the query cannot be told page by page: {wrong}"))
}

/// Parameters for a declared query, checked.
fn checked(
    query: &DeclaredQuery,
    given: Option<prost_types::Struct>,
) -> Result<Vec<(String, Value)>, Refusal> {
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
        let value = match value.kind {
            None | Some(Kind::NullValue(_)) => Value::Null,
            Some(Kind::BoolValue(truth)) => Value::Integer(truth.into()),
            Some(Kind::StringValue(text)) => Value::Text(text),
            Some(Kind::NumberValue(number))
                if number.fract() == 0.0 && number.abs() < FIRST_UNSAFE_INTEGER =>
            {
                Value::Integer(number as i64)
            }
            Some(Kind::NumberValue(number))
                if number.is_nan() || number.abs() >= FIRST_UNSAFE_INTEGER =>
            {
                let wrong = "is a number that may have been rounded on its way; say it as text";
                return Err(Refusal::field(field(&name), wrong));
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

fn bind(statement: &mut Statement<'_>, name: &str, value: &Value) -> rusqlite::Result<()> {
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
mod tests;
