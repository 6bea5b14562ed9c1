//! A field that has a name is the same to a statement as what `->>` takes out of the payload.

use proptest::prelude::*;
use rusqlite::{Connection, ToSql, types::Value as Sql};

use super::{
    payload::Expected,
    spec::{FieldKind, Requirement},
};
use crate::{
    proto::event::Event,
    receiver::{
        testing::event,
        values::{Value, Values},
    },
};

const INTEGER: FieldKind = FieldKind::Integer { min: i64::MIN, max: i64::MAX };
const NUMBER: FieldKind = FieldKind::Number { min: f64::MIN, max: f64::MAX };
const TEXT: FieldKind = FieldKind::Text { min: 0, max: usize::MAX };

/// The field `x` of an event, named.
fn named(kind: FieldKind, event: &Event) -> Values {
    let (place, name) = (String::new(), Some("x".to_owned()));
    let x = Requirement { place, field: "/x".to_owned(), kind: Some(kind), name };
    let requirements = [x];
    let expected = Expected::of(&requirements);
    expected.check(&requirements, &event.intent).expect("as required")
}

/// The field `x` as its name gives it, and as `->>` does; each with its type.
fn both(tables: &Connection, kind: FieldKind, json: &str) -> [(String, Sql); 2] {
    let values = named(kind, &event(0, "k", "t", "s", json));
    let one = |value: &dyn ToSql, sql: &str| {
        let mut prepared = tables.prepare_cached(sql).expect(sql);
        prepared.query_row([value], |row| Ok((row.get(0)?, row.get(1)?))).expect(json)
    };
    [
        one(&values.get(0).expect(json), "SELECT typeof(?1), ?1"),
        one(&json, "SELECT typeof(?1 ->> 'x'), ?1 ->> 'x'"),
    ]
}

/// So that a statement may take either.
fn same(tables: &Connection, kind: FieldKind, written: &str) {
    let json = format!(r#"{{"a":[1],"x": {written} ,"y":{{}}}}"#);
    let [named, taken] = both(tables, kind, &json);
    assert_eq!(named, taken, "{written}");
    if let ((_, Sql::Real(named)), (_, Sql::Real(taken))) = (named, taken) {
        assert_eq!(named.to_bits(), taken.to_bits(), "{written}");
    }
}

#[test]
fn a_name_gives_what_the_arrow_gives() {
    let tables = Connection::open_in_memory().expect("memory");
    let integers = ["0", "3", "-3", "9223372036854775807", "-9223372036854775808"];
    let numbers = [
        "3.5",
        "1e2",
        "1E+2",
        "1e-2",
        "-0",
        "-0.0",
        "0.0",
        "-0e0",
        "0.1",
        "100.0",
        "1e15",
        "9223372036854775808",
        "-9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "123456789012345678901234567890",
        "1e308",
        "1.7976931348623157e308",
        "2.2250738585072014e-308",
        "5e-324",
        "1e-400",
        "0.30000000000000004",
        "9007199254740993.0",
        "123456789.123456789",
    ];
    let texts = [
        "",
        "3",
        "a b",
        r#"\""#,
        r"\\n",
        r"\n",
        r"\u0000",
        r"a\u0000b",
        "ü",
        r"\u00fc",
        r"\ud83d\ude00",
        "\u{feff}\u{10ffff}",
        "\u{7f}",
        r"\/",
        "'",
        "null",
    ];
    for written in integers {
        same(&tables, INTEGER, written);
    }
    for written in integers.iter().chain(&numbers) {
        same(&tables, NUMBER, written);
    }
    for written in texts {
        same(&tables, TEXT, &format!("\"{written}\""));
    }
    for written in ["true", "false"] {
        same(&tables, FieldKind::Boolean, written);
    }
}

/// Of more digits than a double holds `->>` may give the one beside it.
#[test]
fn a_number_is_the_nearest_there_is() {
    let long = "1181230347799189127170";
    let values = named(NUMBER, &event(0, "k", "t", "s", &format!(r#"{{"x":{long}}}"#)));
    assert_eq!(values.get(0), Some(&Value::Real(long.parse().expect("a number"))));
}

/// A text that stands in the payload as it reads is not copied out of it.
#[test]
fn a_text_is_a_part_of_the_payload() {
    let event = event(0, "k", "t", "s", r#"{"x":"as it reads"}"#);
    let values = named(TEXT, &event);
    let Some(Value::Text(text)) = values.get(0) else { panic!("{values:?}") };
    assert_eq!(text, "as it reads");
    assert!(event.intent.data.as_ptr_range().contains(&text.as_ptr()));
}

proptest! {
    #[test]
    fn whatever_the_integer(number: i64) {
        let tables = Connection::open_in_memory().expect("memory");
        same(&tables, INTEGER, &number.to_string());
    }

    #[test]
    fn whatever_the_number(number in proptest::num::f64::NORMAL) {
        let tables = Connection::open_in_memory().expect("memory");
        same(&tables, NUMBER, &number.to_string());
        same(&tables, NUMBER, &format!("{number:e}"));
    }

    #[test]
    fn whatever_the_text(text in any::<String>()) {
        let tables = Connection::open_in_memory().expect("memory");
        same(&tables, TEXT, &serde_json::Value::from(text).to_string());
    }
}
