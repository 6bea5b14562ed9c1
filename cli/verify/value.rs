//! A value of a table, as it is stored.

use std::{cmp::Ordering, fmt};

use counterfoil::proto::event::hex;
use rusqlite::types::ValueRef;

/// Characters of a text that a difference shows.
const SHOWN: usize = 60;

/// One value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// NULL.
    Null,
    /// INTEGER.
    Integer(i64),
    /// REAL.
    Real(f64),
    /// TEXT, which SQLite stores without looking whether it is UTF-8:
    /// `CAST(:raw AS TEXT)` stores what came.
    Text(Vec<u8>),
    /// BLOB.
    Blob(Vec<u8>),
}

impl From<ValueRef<'_>> for Value {
    fn from(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => Value::Integer(number),
            ValueRef::Real(number) => Value::Real(number),
            ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        }
    }
}

impl Value {
    /// As SQLite orders values that are compared byte by byte.
    pub fn compare(&self, other: &Value) -> Ordering {
        let class = |value: &Value| match value {
            Value::Null => 0,
            Value::Integer(_) | Value::Real(_) => 1,
            Value::Text(_) => 2,
            Value::Blob(_) => 3,
        };
        match (self, other) {
            (Value::Integer(one), Value::Integer(other)) => one.cmp(other),
            (Value::Integer(one), Value::Real(other)) => (*one as f64).total_cmp(other),
            (Value::Real(one), Value::Integer(other)) => one.total_cmp(&(*other as f64)),
            (Value::Real(one), Value::Real(other)) => one.total_cmp(other),
            (Value::Text(one), Value::Text(other)) | (Value::Blob(one), Value::Blob(other)) => {
                one.cmp(other)
            }
            (one, other) => class(one).cmp(&class(other)),
        }
    }
}

/// For people, the beginning of what is long.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("NULL"),
            Value::Integer(number) => number.fmt(f),
            Value::Real(number) => number.fmt(f),
            Value::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => short(text, f),
                Err(_) => {
                    f.write_str("text that is not UTF-8, ")?;
                    short(&hex(bytes), f)
                }
            },
            Value::Blob(bytes) => short(&hex(bytes), f),
        }
    }
}

fn short(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => write!(f, "{:?}…", &text[..end]),
        None => write!(f, "{text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_ordered_as_sqlite_orders_them() {
        let ordered = [
            Value::Null,
            Value::Integer(-1),
            Value::Real(0.5),
            Value::Integer(1),
            Value::Text("B".into()),
            Value::Text("a".into()),
            Value::Text(vec![0xed, 0xa0, 0x80]),
            Value::Blob(vec![0]),
            Value::Blob(vec![1]),
        ];
        for pair in ordered.windows(2) {
            assert_eq!(pair[0].compare(&pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(pair[1].compare(&pair[0]), Ordering::Greater, "{pair:?}");
        }
    }

    #[test]
    fn texts_are_shown_whatever_they_hold() {
        let cases = [
            (Value::from(ValueRef::Text("a\"é".as_bytes())), "\"a\\\"é\"".to_owned()),
            (
                Value::from(ValueRef::Text(&[b'a', 0xff])),
                r#"text that is not UTF-8, "61ff""#.into(),
            ),
            (Value::from(ValueRef::Blob(&[0xff])), r#""ff""#.into()),
            (Value::Text(vec![b'x'; SHOWN + 1]), format!("\"{}\"…", "x".repeat(SHOWN))),
        ];
        for (value, expected) in cases {
            assert_eq!(value.to_string(), expected);
        }
    }
}
