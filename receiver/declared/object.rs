//! The one row of a query as a JSON object, for the ledger.

use rusqlite::{Row, types::ValueRef};
use serde_json::{Map, Number, Value};

use super::{
    spec::Statement,
    statement::{Given, bound, refused},
};
use crate::{
    proto::event::hex,
    receiver::projection::{Fault, Tables},
};

/// From here on a REAL is what is left of an integer that 64 bits did not hold (2^63).
const FIRST_TOO_LARGE: f64 = 9_223_372_036_854_775_808.0;

/// What a query's row says; none: it gives no row, or there is no query.
pub fn of<'t>(
    query: Option<&'t Statement>,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> Result<Option<Value>, Fault> {
    let Some(query) = query else { return Ok(None) };
    only_row(query, tables, given).map_err(|fault| fault.at(&query.place))
}

fn only_row<'t>(
    query: &'t Statement,
    tables: &Tables<'t>,
    given: Given<'_>,
) -> Result<Option<Value>, Fault> {
    let mut prepared = bound(query, tables, given)?;
    let mut rows = prepared.raw_query();
    let Some(row) = rows.next()? else { return Ok(None) };
    let object = object(row)?;
    match rows.next()? {
        None => Ok(Some(object)),
        Some(_) => {
            Err(refused("ROWS", "gave more than one row, at most one was expected".to_owned()))
        }
    }
}

fn object(row: &Row<'_>) -> Result<Value, Fault> {
    let columns = row.as_ref();
    let mut object = Map::new();
    for index in 0..columns.column_count() {
        let name = columns.column_name(index)?;
        object.insert(name.to_owned(), value(name, row.get_ref(index)?)?);
    }
    Ok(Value::Object(object))
}

/// A value of a column. Integers are exact; a blob is text in hexadecimal.
pub fn value(column: &str, value: ValueRef<'_>) -> Result<Value, Fault> {
    Ok(match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => number.into(),
        ValueRef::Real(number) => {
            let known = Some(number).filter(|number| number.abs() < FIRST_TOO_LARGE);
            match known.and_then(Number::from_f64) {
                Some(number) => Value::Number(number),
                None => {
                    let said = format!("{column}: {number:e} is beyond what 64 bits hold");
                    return Err(refused("OVERFLOW", said));
                }
            }
        }
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => text.into(),
            Err(_) => return Err(refused("TEXT", format!("{column}: the text is not UTF-8"))),
        },
        ValueRef::Blob(bytes) => hex(bytes).into(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_exact_or_a_fault() {
        let cases = [
            (ValueRef::Null, json!(null)),
            (ValueRef::Integer(i64::MAX), json!(9_223_372_036_854_775_807_i64)),
            (ValueRef::Integer(i64::MIN), json!(i64::MIN)),
            (ValueRef::Real(0.5), json!(0.5)),
            (ValueRef::Real(-9.2e18), json!(-9.2e18)),
            (ValueRef::Text("a\0ü".as_bytes()), json!("a\0ü")),
            (ValueRef::Text(b""), json!("")),
            (ValueRef::Blob(&[0, 255]), json!("00ff")),
        ];
        for (found, expected) in cases {
            assert_eq!(value("a", found).expect("exact"), expected, "{found:?}");
        }
        let cases = [
            (ValueRef::Real(FIRST_TOO_LARGE), "OVERFLOW", "a: 9.223372036854776e18"),
            (ValueRef::Real(-FIRST_TOO_LARGE), "OVERFLOW", "a: -9.223372036854776e18"),
            (ValueRef::Real(f64::INFINITY), "OVERFLOW", "a: inf"),
            (ValueRef::Text(&[0xff]), "TEXT", "UTF-8"),
        ];
        for (found, class, part) in cases {
            let fault = value("a", found).expect_err(part);
            assert_eq!(fault.class(), class);
            assert!(fault.to_string().contains(part), "{fault}");
        }
    }
}
