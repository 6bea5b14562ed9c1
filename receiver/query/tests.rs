use prost_types::value::Kind;

use super::*;
use crate::proto::limits::MAX_MESSAGE_BYTES;

fn query(
    sql: &'static str,
    parameters: &[&'static str],
    page_by: &[&'static str],
) -> DeclaredQuery {
    let owned = |names: &[&'static str]| names.iter().map(|&name| name.into()).collect::<Vec<_>>();
    DeclaredQuery {
        name: "numbers".into(),
        parameters: owned(parameters).into(),
        sql: sql.into(),
        page_by: owned(page_by).into(),
        ..DeclaredQuery::default()
    }
}

/// 1,001 numbers from `:least` on.
fn numbers() -> DeclaredQuery {
    let sql = "WITH RECURSIVE n (n) AS
                   (SELECT coalesce(:least, 0) UNION ALL SELECT n + 1 FROM n LIMIT 1001)
               SELECT n FROM n";
    query(sql, &["least"], &[])
}

fn given(name: &str, kind: Kind) -> Option<prost_types::Struct> {
    let value = prost_types::Value { kind: Some(kind) };
    Some(prost_types::Struct { fields: [(name.to_owned(), value)].into() })
}

fn text(text: &str) -> Kind {
    Kind::StringValue(text.to_owned())
}

fn asks(
    reader: &Reader,
    query: &DeclaredQuery,
    parameters: Option<prost_types::Struct>,
    page: (i32, &str),
) -> Result<Rows, Refusal> {
    Asked::of(query, parameters, page.0, page.1)?.run(reader, "main").expect("valid SQL")
}

#[test]
fn rows_are_bounded_and_parameters_may_be_left_out() {
    let tables = Reader::in_memory("");
    let seven = || given("least", Kind::NumberValue(7.0));
    for (given, first) in [(None, 0.0), (seven(), 7.0), (None, 0.0)] {
        let found = asks(&tables, &numbers(), given, (0, "")).expect("declared");
        assert_eq!((found.rows.len(), found.sequence, found.truncated), (1_000, -1, true));
        assert_eq!(found.rows[0].fields["n"].kind, Some(Kind::NumberValue(first)));
        assert_eq!((found.columns, &*found.next), (vec!["n".to_owned()], ""));
    }
    let found = asks(&tables, &numbers(), None, (3, "")).expect("declared");
    assert_eq!((found.rows.len(), found.truncated), (3, true));
    let refusal = asks(&tables, &numbers(), None, (-1, "")).expect_err("no size");
    assert_eq!(refusal.fields[0].0, "page_size");
}

#[test]
fn undeclared_parameters_are_refused() {
    let refusal = checked(&numbers(), given("most", Kind::NumberValue(1.0)));
    let refusal = refusal.expect_err("undeclared");
    assert_eq!(refusal.fields[0].0, "parameters.most");
    assert!(refusal.message.contains("least"));
}

#[test]
fn what_a_double_cannot_hold_is_text() {
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

/// API-06: an integer that came as text goes back as text, exactly.
#[test]
fn integers_at_the_edge_are_exact_as_parameters_too() {
    let tables = Reader::in_memory(
        "CREATE TABLE mine (n INTEGER PRIMARY KEY) STRICT;
         INSERT INTO mine VALUES (9223372036854775807), (9223372036854775806),
             (-9223372036854775808), (9007199254740993);",
    );
    let query = query("SELECT n FROM mine WHERE n = :n", &["n"], &[]);
    for n in [i64::MAX, i64::MAX - 1, i64::MIN, (1 << 53) + 1] {
        let asked = given("n", text(&n.to_string()));
        let found = asks(&tables, &query, asked, (0, "")).expect("declared");
        assert_eq!(found.rows.len(), 1, "{n}");
        assert_eq!(found.rows[0].fields["n"].kind, Some(text(&n.to_string())));
    }
}

/// What a double has rounded already is no longer what the caller meant.
#[test]
fn numbers_that_were_rounded_are_refused() {
    for number in [9_007_199_254_740_992.0, -1e300, f64::INFINITY, f64::NAN] {
        let refusal = checked(&numbers(), given("least", Kind::NumberValue(number)));
        let refusal = refusal.expect_err("rounded");
        assert_eq!(refusal.fields[0].0, "parameters.least");
        assert!(refusal.message.contains("say it as text"), "{}", refusal.message);
    }
    let exact = checked(&numbers(), given("least", Kind::NumberValue(-9_007_199_254_740_991.0)));
    assert_eq!(exact, Ok(vec![(":least".to_owned(), Value::Integer(-9_007_199_254_740_991))]));
}

/// Parameters that SQLite cannot do anything with are the caller's, and end no connection.
#[test]
fn parameters_that_do_not_fit_are_told() {
    let tables = Reader::in_memory("CREATE TABLE mine (n INTEGER PRIMARY KEY) STRICT");
    let limited = query("SELECT n FROM mine LIMIT :n", &["n"], &[]);
    for wrong in [None, given("n", text("abc"))] {
        let refusal = asks(&tables, &limited, wrong, (0, "")).expect_err("no number");
        assert_eq!(refusal.reason, Reason::InvalidField);
        assert_eq!(refusal.fields[0].0, "parameters");
        assert!(refusal.message.contains("these parameters ("), "{}", refusal.message);
        assert!(!refusal.message.contains("SELECT"), "{}", refusal.message);
    }
    let found = asks(&tables, &limited, given("n", text("7")), (0, "")).expect("a number");
    assert_eq!(found.rows, []);
    let json = query("SELECT '{' ->> 'a' AS a", &[], &[]);
    let asked = Asked::of(&json, None, 0, "").expect("declared");
    asked.run(&tables, "main").expect_err("whoever asks");
}

/// What a column's collation calls the same tells rows apart, and the rows of a later page are
/// sought and not counted off.
#[test]
fn pages_go_by_bytes_whatever_the_collation() {
    let tables = Reader::in_memory(
        "CREATE TABLE people (name TEXT NOT NULL COLLATE NOCASE, n INTEGER NOT NULL) STRICT;
         INSERT INTO people VALUES ('ann', 1), ('Ann', 2), ('ANN', 3), ('bob ', 4), ('bob', 5);
         CREATE TABLE loose (a ANY NOT NULL) STRICT;
         INSERT INTO loose VALUES (1), (1.0);
         CREATE TABLE mine (a TEXT NOT NULL, b TEXT NOT NULL, PRIMARY KEY (a, b)) STRICT;",
    );
    let people = query("SELECT name, n FROM people", &[], &["name"]);
    let (mut read, mut token) = (Vec::new(), String::new());
    loop {
        let found = asks(&tables, &people, None, (1, &token)).expect("declared");
        read.extend(found.rows.iter().map(|row| row.fields["n"].kind.clone()));
        token = found.next;
        if token.is_empty() {
            break;
        }
    }
    let expected = [3.0, 2.0, 1.0, 5.0, 4.0].map(|n| Some(Kind::NumberValue(n)));
    assert_eq!(read, expected);
    let loose = query("SELECT a FROM loose", &[], &["a"]);
    let refusal = asks(&tables, &loose, None, (1, "")).expect_err("1 and 1.0");
    assert!(refusal.message.contains("the same"), "{}", refusal.message);
    let mine = query("SELECT b, a FROM mine", &[], &["a", "b"]);
    let plan = format!("EXPLAIN QUERY PLAN {}", page::statement(&mine, true));
    let mut plan = tables.prepare(&plan).expect("valid SQL");
    let rows = plan.raw_query().mapped(|row| row.get(3));
    let plan: Vec<String> = rows.collect::<rusqlite::Result<_>>().expect("texts");
    assert!(plan.len() == 1 && plan[0].contains("(a,b)>(?,?)"), "{plan:?}");
}

/// Every row once, in order, whatever the pages' size and the columns' kind.
#[test]
fn pages_have_every_row_once() {
    let tables = Reader::in_memory(
        "CREATE TABLE mine (a ANY NOT NULL, b INTEGER NOT NULL, PRIMARY KEY (a, b)) STRICT;
         INSERT INTO mine VALUES (1, 9223372036854775807), (1, 9223372036854775806), (0.1, 0),
             (0.1, -9223372036854775808), ('1', 1), ('', 2), (x'00', 3), (x'', 4), ('é', 5);",
    );
    let query = query("SELECT b, a FROM mine WHERE b >= coalesce(:b, b);", &["b"], &["a", "b"]);
    let all = asks(&tables, &query, None, (0, "")).expect("declared").rows;
    assert_eq!(all.len(), 9);
    for size in 1..=10 {
        let (mut read, mut token) = (Vec::new(), String::new());
        loop {
            let found = asks(&tables, &query, None, (size, &token)).expect("declared");
            assert_eq!(found.truncated, !found.next.is_empty());
            read.extend(found.rows);
            token = found.next;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(read, all, "pages of {size}");
    }
    let first = asks(&tables, &query, None, (2, "")).expect("declared");
    let other = given("b", Kind::NumberValue(1.0));
    let refusal = asks(&tables, &query, other, (2, &first.next)).expect_err("other parameters");
    assert_eq!(refusal.fields[0].0, "page_token");
}

#[test]
fn what_does_not_tell_rows_apart_is_no_place() {
    let tables = Reader::in_memory(
        "CREATE TABLE mine (a TEXT, b INTEGER NOT NULL) STRICT;
         INSERT INTO mine VALUES ('x', 1), ('x', 2), (NULL, 3);",
    );
    for (column, words) in [("a", "NULL"), ("c", "the same")] {
        let query = query("SELECT a, b, b > 0 AS c FROM mine", &[], &[column]);
        let query = DeclaredQuery { page_by: vec![column.into()].into(), ..query };
        let refusal = asks(&tables, &query, None, (2, "")).expect_err(words);
        assert!(refusal.message.contains(words), "{}", refusal.message);
    }
}

/// An answer fits a message: a page ends earlier then.
#[test]
fn pages_end_before_they_are_too_large() {
    let tables = Reader::in_memory(
        "CREATE TABLE mine (n INTEGER PRIMARY KEY, t TEXT NOT NULL) STRICT;
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n LIMIT 20)
         INSERT INTO mine SELECT n, hex(zeroblob(150000)) FROM n;",
    );
    for page_by in [&["n"][..], &[]] {
        let query = query("SELECT n, t FROM mine", &[], page_by);
        let found = asks(&tables, &query, None, (0, "")).expect("declared");
        assert_eq!((found.rows.len(), found.truncated), (13, true));
        let bytes: usize = found.rows.iter().map(|row| row.encoded_len() + ROW_FRAME_BYTES).sum();
        assert!(bytes < MAX_MESSAGE_BYTES);
        assert_eq!(found.next.is_empty(), page_by.is_empty());
    }
    let large = query("SELECT hex(zeroblob(3000000)) AS t", &[], &[]);
    let refusal = asks(&tables, &large, None, (0, "")).expect_err("one row is too large");
    assert_eq!(refusal.reason, Reason::QueryTooLong);
}

/// A query keeps to the projection's own tables, and writes nothing.
#[test]
fn a_query_reads_its_own_tables_only() {
    let tables = Reader::in_memory("CREATE TABLE mine (n INTEGER PRIMARY KEY) STRICT");
    for sql in [
        "SELECT * FROM counterfoil_ledger",
        "SELECT * FROM sqlite_schema",
        "INSERT INTO mine VALUES (1) RETURNING n",
        "PRAGMA user_version",
    ] {
        let asked = Asked::of(&query(sql, &[], &[]), None, 0, "").expect("declared");
        asked.run(&tables, "main").expect_err(sql);
    }
    let now = query("SELECT strftime('%s', 'now') AS s, n FROM mine", &[], &[]);
    assert_eq!(asks(&tables, &now, None, (0, "")).expect("allowed").rows, []);
}
