//! Declared handlers on tables in memory, in the mode that the receiver runs them in.

use bytes::Bytes;
use rusqlite::Connection;
use serde_json::json;

use super::{
    Declared,
    spec::{
        Effect, Emission, FieldKind, Handler, OnUnknownType, Parameter, Requirement, Rule, Spec,
        Statement, TypePattern,
    },
};
use crate::{
    proto::event::{DataKind, Event, Time},
    receiver::{
        projection::{Applied, Fault, Migration, Projection as _, Tables, Upgrade},
        store::guard::{Guard, Mode},
        testing::event,
        values::Value,
    },
};

const TABLES: &str = "CREATE TABLE seen (
         key TEXT NOT NULL PRIMARY KEY, number INTEGER, text TEXT, bytes BLOB
     ) STRICT;
     CREATE TABLE copy (key TEXT NOT NULL) STRICT;
     CREATE TRIGGER copied AFTER INSERT ON seen BEGIN INSERT INTO copy (key) VALUES (new.key); END;";

/// A projection on its tables.
struct Bench {
    tables: Connection,
    guard: Guard,
    declared: Declared,
}

impl Bench {
    /// With one handler for all types.
    fn new(handler: impl FnOnce(&Connection) -> Handler) -> Self {
        Self::of(OnUnknownType::Ignore, |tables| vec![handler(tables)])
    }

    fn of(
        on_unknown_type: OnUnknownType,
        handlers: impl FnOnce(&Connection) -> Vec<Handler>,
    ) -> Self {
        let mut tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(TABLES).expect("plain SQL");
        let guard = Guard::on(&mut tables).expect("guarded");
        guard.bound_steps(&mut tables).expect("bounded");
        let declared = Declared::new(Spec {
            name: "test".to_owned(),
            version: 1,
            on_unknown_type,
            upgrade: Upgrade::Migrate,
            migrations: vec![Migration { sql: TABLES.into() }],
            handlers: handlers(&tables),
            queries: Vec::new(),
            source: String::new(),
        });
        Bench { tables, guard, declared }
    }

    fn apply(&self, event: &Event) -> Result<Applied, Fault> {
        let tables = Tables::of(&self.tables);
        self.guard.during(Mode::Handler, || self.declared.apply(&tables, event))
    }

    fn json(&self, json: &str) -> Result<Applied, Fault> {
        self.apply(&event(7, "k7", "thing.seen", "subject", json))
    }

    fn one<T: rusqlite::types::FromSql>(&self, sql: &str) -> T {
        self.tables.query_row(sql, [], |row| row.get(0)).expect(sql)
    }
}

/// A statement with its parameters, as a check of a file finds them.
fn statement(tables: &Connection, place: &str, text: &str) -> Statement {
    let prepared = tables.prepare(text).expect(text);
    let parameters = (1..=prepared.parameter_count()).map(|index| {
        let name = prepared.parameter_name(index).expect("named");
        (index, Parameter::named(name).expect("known"))
    });
    let parameters = parameters.collect();
    Statement { place: place.to_owned(), text: text.to_owned(), parameters }
}

fn handler(tables: &Connection, sql: &[(&str, Option<u64>)]) -> Handler {
    let effects = sql.iter().enumerate().map(|(n, (text, expect_rows))| Effect {
        statement: statement(tables, &format!("on[0].sql[{n}]"), text),
        expect_rows: *expect_rows,
    });
    Handler {
        place: "on[0]".to_owned(),
        types: vec![TypePattern::Prefix(String::new())],
        require: Vec::new(),
        reject_unless: Vec::new(),
        sql: effects.collect(),
        result: None,
        emit: Vec::new(),
    }
}

fn with_result(tables: &Connection, sql: &[(&str, Option<u64>)], result: &str) -> Handler {
    let result = Some(statement(tables, "on[0].result", result));
    Handler { result, ..handler(tables, sql) }
}

fn done(result: serde_json::Value) -> Applied {
    Applied::Done(Some(result))
}

fn at(fault: &Fault) -> (&str, &str) {
    (fault.class(), fault.place.as_deref().unwrap_or_default())
}

#[test]
fn statements_see_all_of_the_event() {
    let bench = Bench::new(|tables| {
        with_result(
            tables,
            &[],
            "SELECT :data AS data, :raw AS raw, :type AS type, :subject AS subject,
                 :time AS time, :accept_time AS accepted, :sequence AS sequence,
                 :subject_version AS version, :key AS key, :fingerprint AS fingerprint,
                 :attributes AS attributes, typeof(:raw) AS kind",
        )
    });
    let mut event = event(i64::MAX, "k\0ü'", "thing.seen", "a\0\"b", r#"{"a": 1}"#);
    event.intent.attributes = vec![("n".into(), "\"\0".into()), ("x".into(), String::new())];
    event.intent.fingerprint = [0xab; 32];
    let seen = json!({
        "data": r#"{"a": 1}"#, "raw": "7b2261223a20317d", "type": "thing.seen",
        "subject": "a\0\"b", "time": null, "accepted": "2026-11-30T00:53:20.000000000Z",
        "sequence": i64::MAX, "version": 1, "key": "k\0ü'", "fingerprint": "ab".repeat(32),
        "attributes": r#"{"n":"\"\u0000","x":""}"#, "kind": "blob",
    });
    assert_eq!(bench.apply(&event).expect("seen"), done(seen));
    // Neither the empty payload nor one that is no JSON is text.
    event.intent.time = Some(Time { seconds: -1, nanos: 1 });
    event.intent.attributes.clear();
    for data in [&b""[..], b"\0\xff"] {
        event.intent.kind = DataKind::Binary;
        event.intent.data = Bytes::from_static(data);
        let Ok(Applied::Done(Some(seen))) = bench.apply(&event) else { panic!("not seen") };
        assert_eq!(seen["data"], json!(null));
        assert_eq!(seen["raw"], crate::proto::event::hex(data));
        assert_eq!((&seen["kind"], &seen["attributes"]), (&json!("blob"), &json!("{}")));
        assert_eq!(seen["time"], "1969-12-31T23:59:59.000000001Z");
    }
}

/// Texts keep every character, U+0000 included.
#[test]
fn odd_texts() {
    let bench = Bench::new(|tables| {
        with_result(
            tables,
            &[("INSERT INTO seen (key, text) VALUES (:key, :data ->> 't')", Some(1))],
            "SELECT text, length(CAST(text AS BLOB)) AS bytes FROM seen WHERE key = :key",
        )
    });
    let texts = ["", "\u{feff}a", "'; DROP TABLE seen; --", "\u{10ffff}", "e\u{301}", "\t\n\u{7f}"];
    for (n, text) in texts.iter().enumerate() {
        let data = json!({ "t": text }).to_string();
        let event = event(0, &format!("k{n}\0'"), "thing.seen", "s", &data);
        let expected = json!({"text": text, "bytes": text.len()});
        assert_eq!(bench.apply(&event).expect(text), done(expected));
    }
    assert_eq!(bench.one::<String>("SELECT max(key) FROM seen"), "k5\0'");
    let nul = bench.json(r#"{"t":"a\u0000b"}"#).expect("taken");
    assert_eq!(nul, done(json!({"text": "a\0b", "bytes": 3})));
}

#[test]
fn integers_are_exact_to_the_last_or_a_fault() {
    let bench = Bench::new(|tables| {
        with_result(
            tables,
            &[(
                "INSERT INTO seen (key, number) VALUES ('n', :data ->> 'n')
                 ON CONFLICT (key) DO UPDATE SET number = number + excluded.number",
                Some(1),
            )],
            "SELECT number FROM seen",
        )
    });
    let add = |json: &str| bench.json(json);
    assert_eq!(
        add(r#"{"n":9223372036854775806}"#).expect("held"),
        done(json!({"number": i64::MAX - 1}))
    );
    assert_eq!(add(r#"{"n":1}"#).expect("held"), done(json!({"number": i64::MAX})));
    let fault = add(r#"{"n":1}"#).expect_err("2^63");
    assert_eq!(at(&fault), ("CONSTRAINT", "on[0].sql[0]"));
    let fault = add(r#"{"n":9223372036854775808}"#).expect_err("2^63 as it came");
    assert_eq!(at(&fault), ("CONSTRAINT", "on[0].sql[0]"));
    assert_eq!(bench.one::<i64>("SELECT number FROM seen"), i64::MAX);
    bench.tables.execute("DELETE FROM seen", []).expect("gone");
    let least = add(r#"{"n":-9223372036854775808}"#).expect("held");
    assert_eq!(least, done(json!({"number": i64::MIN})));
}

#[test]
fn a_result_is_one_row_of_numbers_that_64_bits_hold() {
    let result = |sql: &'static str| {
        let bench = Bench::new(|tables| with_result(tables, &[], sql));
        bench.json(r#"{"n":9223372036854775807}"#)
    };
    assert_eq!(result("SELECT 1 AS a WHERE 0").expect("no row"), Applied::Done(None));
    assert_eq!(
        result("SELECT :data ->> 'n' AS n, 0.5 AS r, x'00ff' AS b").expect("a row"),
        done(json!({"n": i64::MAX, "r": 0.5, "b": "00ff"}))
    );
    for (sql, class) in [
        ("SELECT 1 AS a UNION ALL SELECT 2", "ROWS"),
        ("SELECT (:data ->> 'n') + 1 AS a", "OVERFLOW"),
        ("SELECT 9e999 AS a", "OVERFLOW"),
        ("SELECT sum(value) AS a FROM json_each('[9223372036854775807, 1]')", "SQL"),
        ("SELECT CAST(x'ff' AS TEXT) AS a", "TEXT"),
    ] {
        let fault = result(sql).expect_err(sql);
        assert_eq!(at(&fault), (class, "on[0].result"), "{sql}: {fault}");
    }
}

#[test]
fn rows_are_counted_for_each_statement_alone() {
    type Sql = &'static [(&'static str, Option<u64>)];
    const INSERT: &str = "INSERT INTO seen (key) SELECT value FROM json_each(:data)";
    let cases: [(Sql, Result<(), &str>); 7] = [
        // Those of the trigger are not this statement's.
        (&[(INSERT, Some(2))], Ok(())),
        (&[(INSERT, Some(1))], Err("on[0].sql[0]")),
        (&[(INSERT, None)], Ok(())),
        (&[(INSERT, Some(2)), ("DELETE FROM seen WHERE key = 'x'", Some(1))], Err("on[0].sql[1]")),
        (&[(INSERT, None), ("DELETE FROM seen WHERE key = 'x'", Some(0))], Ok(())),
        (
            &[("INSERT INTO seen (key) SELECT value FROM json_each(:data) RETURNING key", Some(2))],
            Ok(()),
        ),
        (&[(INSERT, None), ("SELECT key FROM seen", Some(2))], Err("on[0].sql[1]")),
    ];
    for (sql, expected) in cases {
        let bench = Bench::new(|tables| handler(tables, sql));
        let applied = bench.json(r#"["a", "b"]"#);
        match expected {
            Ok(()) => assert_eq!(applied.expect("as many"), Applied::Done(None), "{sql:?}"),
            Err(place) => {
                let fault = applied.expect_err(place);
                assert_eq!(at(&fault), ("ROWS", place), "{sql:?}: {fault}");
                assert!(fault.to_string().contains("expected"), "{fault}");
            }
        }
    }
}

#[test]
fn rules_are_asked_in_order_before_anything_is_written() {
    let bench = Bench::new(|tables| {
        let rule = |n: usize, row: &str, reason: &str, result: Option<&str>| Rule {
            row: statement(tables, &format!("on[0].reject_unless[{n}].row"), row),
            reason: reason.to_owned(),
            result: result
                .map(|sql| statement(tables, &format!("on[0].reject_unless[{n}].result"), sql)),
        };
        let insert = ("INSERT INTO seen (key) VALUES (:key)", Some(1));
        Handler {
            reject_unless: vec![
                rule(0, "SELECT 1 WHERE :data ->> 'a'", "no_a", None),
                rule(
                    1,
                    "SELECT 1 WHERE :data ->> 'b'",
                    "no_b",
                    Some("SELECT count(*) AS n FROM seen"),
                ),
            ],
            ..handler(tables, &[insert])
        }
    });
    let rejected =
        |reason: &'static str, result| Applied::Rejected { reason: reason.into(), result };
    assert_eq!(bench.json("{}").expect("judged"), rejected("no_a", None));
    let none = Some(json!({"n": 0}));
    assert_eq!(bench.json(r#"{"a":1}"#).expect("judged"), rejected("no_b", none));
    assert_eq!(bench.json(r#"{"a":1,"b":1}"#).expect("judged"), Applied::Done(None));
    assert_eq!(bench.one::<i64>("SELECT count(*) FROM seen"), 1);
}

#[test]
fn the_nearest_handler_takes_a_type() {
    let types = ["a.b", "a.*", "a.b.*", "*"];
    let handlers = |tables: &Connection, types: &[&str]| {
        let handlers = types.iter().enumerate().map(|(n, text)| Handler {
            types: vec![match text.strip_suffix('*') {
                Some(prefix) => TypePattern::Prefix(prefix.to_owned()),
                None => TypePattern::Exact((*text).to_owned()),
            }],
            ..with_result(tables, &[], &format!("SELECT {n} AS taken"))
        });
        handlers.collect::<Vec<_>>()
    };
    let bench = Bench::of(OnUnknownType::Halt, |tables| handlers(tables, &types));
    for (event_type, taken) in [("a.b", 0), ("a.c", 1), ("a.b.c", 2), ("a.bc", 1), ("b", 3)] {
        let applied = bench.apply(&event(0, "k", event_type, "s", "{}")).expect("taken");
        assert_eq!(applied, done(json!({"taken": taken})), "{event_type}");
    }
    for (on_unknown_type, halts) in [(OnUnknownType::Ignore, false), (OnUnknownType::Halt, true)] {
        let bench = Bench::of(on_unknown_type, |tables| handlers(tables, &types[..1]));
        match bench.apply(&event(0, "k", "c", "s", "{}")) {
            Ok(applied) => assert_eq!((applied, halts), (Applied::Ignored, false)),
            Err(fault) => {
                assert_eq!((at(&fault), halts), (("UNKNOWN_TYPE", ""), true));
                assert!(fault.to_string().contains("type c"), "{fault}");
            }
        }
    }
}

#[test]
fn what_is_required_comes_first() {
    let bench = Bench::new(|tables| Handler {
        require: vec![Requirement {
            place: "on[0].require[0]".to_owned(),
            field: "/n".to_owned(),
            kind: Some(FieldKind::Integer { min: 1, max: 9 }),
            name: None,
        }],
        ..handler(
            tables,
            &[("INSERT INTO seen (key, number) VALUES (:key, :data ->> 'n')", Some(1))],
        )
    });
    let fault = bench.json(r#"{"n":10}"#).expect_err("too many");
    assert_eq!(at(&fault), ("PAYLOAD", "on[0].require[0]"));
    assert_eq!(fault.to_string(), "/n: is 10, an integer from 1 to 9 was expected");
    bench.json(r#"{"n":9}"#).expect("within");
    assert_eq!(bench.one::<i64>("SELECT number FROM seen"), 9);
}

#[test]
fn a_required_field_is_given_by_its_name() {
    let text = format!(
        r#"
        projection = {{ name = "test", version = 1 }}
        migration = [{{ sql = """{TABLES}""" }}]
        [[on]]
        type = "*"
        require = [
            {{ field = "/much", type = "number", as = "much" }},
            {{ field = "/left" }},
            {{ field = "/to/0/name", type = "text", as = "_2" }},
            {{ field = "/sure", type = "boolean", as = "sure" }},
        ]
        reject_unless = [
            {{ row = "SELECT 1 WHERE :much < 3", reason = "much", result = "SELECT :much AS much" }},
        ]
        sql = "INSERT INTO seen (key, number, text) VALUES (:key, :sure, :_2)"
        result = "SELECT :_2 AS name, typeof(:much) AS kind, :data ->> 'left' AS left"
        emit = [{{ name = "e", type = "t", query = "SELECT :_2 AS subject, json_object('a', :much) AS data" }}]
        "#
    );
    let bench = Bench::new(|_| super::read("test", &text).expect("no flaws").handlers.remove(0));
    let json = r#"{"left": 1, "sure": true, "much": 3.5, "to": [{"name": "n"}]}"#;
    let (reason, result) = ("much".into(), Some(json!({"much": 3.5})));
    assert_eq!(bench.json(json).expect("judged"), Applied::Rejected { reason, result });
    let tables = Tables::of(&bench.tables);
    let seen = event(7, "k", "t", "s", &json.replace("3.5", "2").replace("\"n\"", "\"\\u00fc\""));
    let applied = bench.declared.apply(&tables, &seen).expect("applied");
    assert_eq!(applied, done(json!({"name": "ü", "kind": "integer", "left": 1})));
    let [followed] = &tables.take_emitted()[..] else { panic!("one event") };
    assert_eq!((&*followed.subject, &followed.data[..]), ("ü", &br#"{"a":2}"#[..]));
    assert_eq!(bench.one::<String>("SELECT number || text FROM seen"), "1ü");
}

/// So the apply thread need not do it, and whoever does needs no tables.
#[test]
fn an_event_is_judged_apart_from_its_effect() {
    fn is_sent<T: Send + 'static>(_: &T) {}
    let bench = Bench::new(|_| {
        let text = include_str!("../../projections/warehouse/projection.toml");
        super::read("warehouse", text).expect("no flaws").handlers.remove(0)
    });
    let adjusted = |json| event(0, "k", "stock.adjusted", "camera", json);
    let judged = bench.declared.judged(&adjusted(r#"{"delta":3}"#)).expect("as required");
    is_sent(&judged);
    assert_eq!(judged.values.get(0), Some(&Value::Integer(3)));
    let fault = bench.declared.judged(&adjusted(r#"{"delta":1001}"#)).expect_err("too many");
    assert_eq!(at(&fault), ("PAYLOAD", "on[0].require[0]"));
    let judged = bench.declared.judged(&event(0, "k", "stock.counted", "camera", "{}"));
    let applied = bench.declared.carry_out(
        &Tables::of(&bench.tables),
        &event(0, "k", "stock.counted", "camera", "{}"),
        &judged.expect("nobody's"),
    );
    assert_eq!(applied.expect("nothing is done"), Applied::Ignored);
}

/// Another version may have taken over before an event's turn comes.
#[test]
fn what_was_found_out_before_counts_for_the_projection_that_has_found_it() {
    let text = r#"
        [projection]
        name = "sums"
        version = 1
        [[migration]]
        sql = "CREATE TABLE sum (n INTEGER NOT NULL) STRICT"
        [[on]]
        type = "added"
        require = [{ field = "/n", type = "integer", as = "n" }]
        sql = "INSERT INTO sum (n) VALUES (:n)"
    "#;
    let [ours, another] =
        [(); 2].map(|()| Declared::new(super::read("sums", text).expect("no flaws")));
    let connection = Connection::open_in_memory().expect("memory");
    connection.execute_batch(&ours.migrations()[0].sql).expect("made");
    let tables = Tables::of(&connection);
    let added = |n: i64| event(0, "k", "added", "s", &format!(r#"{{"n":{n}}}"#));
    let [three, four] = [3, 4].map(added);
    for (judged, expected) in
        [(ours.judge(&three), 3), (another.judge(&three), 4), (ours.judge(&added(5)), 5), (None, 4)]
    {
        ours.apply_judged(&tables, &four, judged.as_ref()).expect("applied");
        let last: i64 = connection
            .query_row("SELECT n FROM sum ORDER BY rowid DESC", [], |row| row.get(0))
            .expect("a row");
        assert_eq!(last, expected);
    }
    assert_eq!(ours.judge(&event(0, "k", "added", "s", "{}")), None, "said in its turn");
}

/// What stands in a forked log for an event that is lost is taken by whom names it, and
/// halts nobody.
#[test]
fn a_lost_event_is_for_those_who_ask_for_it() {
    let lost = event(0, "k", crate::proto::event::LOST_TYPE, "s", "{}");
    let taken = |pattern: TypePattern| {
        let bench = Bench::of(OnUnknownType::Halt, |tables| {
            vec![Handler { types: vec![pattern], ..with_result(tables, &[], "SELECT 1 AS a") }]
        });
        bench.apply(&lost).expect("no fault") != Applied::Ignored
    };
    assert!(!taken(TypePattern::Prefix(String::new())));
    assert!(!taken(TypePattern::Exact("a".to_owned())));
    assert!(taken(TypePattern::Prefix("counterfoil.".to_owned())));
    assert!(taken(TypePattern::Exact("counterfoil.lost".to_owned())));
}

/// Data that somebody else has chosen is no way to the clock, nor is a column's DEFAULT.
#[test]
fn nothing_that_changes_from_one_run_to_the_next_is_reached() {
    let bench = Bench::new(|tables| {
        handler(
            tables,
            &[(
                "INSERT INTO seen (key, text) VALUES (:key, date(:data ->> 'day', :data ->> 'by'))",
                Some(1),
            )],
        )
    });
    bench.json(r#"{"day":"2026-11-30","by":"+1 day"}"#).expect("a day");
    assert_eq!(bench.one::<String>("SELECT text FROM seen"), "2026-12-01");
    for json in [r#"{"day":"NOW","by":"+1 day"}"#, r#"{"day":"2026-11-30","by":"localtime"}"#] {
        let fault = bench.json(json).expect_err(json);
        assert_eq!(at(&fault), ("SQL", "on[0].sql[0]"), "{fault}");
        let refused = bench.guard.take_refused().expect("known");
        assert!(refused.ends_with("in the function date()"), "{refused}");
    }
    for default in ["CURRENT_TIMESTAMP", "(random())", "(datetime('now'))", "(hex(randomblob(4)))"]
    {
        bench
            .tables
            .execute_batch(&format!(
                "DELETE FROM seen; DROP TABLE copy; CREATE TABLE copy (key TEXT NOT NULL, at ANY DEFAULT {default}) STRICT"
            ))
            .expect("the receiver's own mode");
        bench.tables.execute("INSERT INTO seen (key) VALUES (?1)", [default]).expect("not refused");
        let fault = bench.json(r#"{"day":"2026-11-30"}"#).expect_err(default);
        assert_eq!(at(&fault), ("SQL", "on[0].sql[0]"), "{default}: {fault}");
        assert!(bench.guard.take_refused().is_some(), "{default}");
    }
}

#[test]
fn an_event_that_takes_too_many_steps_is_ended() {
    let bench = Bench::new(|tables| {
        let count = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :data ->> 'n')
            INSERT INTO seen (key) SELECT max(i) FROM n";
        handler(tables, &[(count, Some(1))])
    });
    bench.json(r#"{"n":100000}"#).expect("a million steps");
    let fault = bench.json(r#"{"n":100000000}"#).expect_err("without an end");
    let crate::receiver::projection::Why::Sql(error) = &fault.why else { panic!("{fault}") };
    assert!(bench.guard.took_too_many_steps(error), "{error}");
    assert_eq!(fault.place.as_deref(), Some("on[0].sql[0]"));
    // The next one starts anew.
    bench.json(r#"{"n":100001}"#).expect("a million steps");
}

/// One step can make it, so steps do not bound it.
#[test]
fn a_value_that_is_too_large_is_a_fault() {
    let bench = Bench::new(|tables| {
        let keep = "INSERT INTO seen (key) SELECT length(zeroblob(:data ->> 'bytes'))";
        handler(tables, &[(keep, Some(1))])
    });
    bench.json(r#"{"bytes":16000000}"#).expect("within the bound");
    let fault = bench.json(r#"{"bytes":17000000}"#).expect_err("beyond it");
    assert_eq!((fault.class(), fault.place.as_deref()), ("SQL", Some("on[0].sql[0]")));
}

#[test]
fn rows_follow_as_events_that_a_publisher_takes() {
    let emitting = |query: &'static str| {
        Bench::new(|tables| Handler {
            emit: vec![Emission {
                name: "low".to_owned(),
                event_type: Some("stock.low".to_owned()),
                query: statement(tables, "on[0].emit[0].query", query),
            }],
            ..handler(tables, &[])
        })
    };
    let emitted = |query: &'static str, json: &str| {
        let bench = emitting(query);
        let tables = Tables::of(&bench.tables);
        let event = event(7, "k7", "thing.seen", "subject", json);
        bench.declared.apply(&tables, &event).map(|_| tables.take_emitted())
    };
    let rows = emitted(
        "SELECT value ->> 's' AS subject, value AS data, 3 AS expected_version,
             '2026-11-30T01:02:03.5+01:00' AS time FROM json_each(:data)",
        r#"[{"s":"a"},{"s":"b"}]"#,
    )
    .expect("followed");
    let said: Vec<_> = rows.iter().map(|row| (row.subject.as_str(), &row.data[..])).collect();
    assert_eq!(said, [("a", &br#"{"s":"a"}"#[..]), ("b", br#"{"s":"b"}"#)]);
    assert_eq!((rows[0].name.as_str(), rows[0].event_type.as_str()), ("low", "stock.low"));
    assert_eq!((rows[0].kind, rows[0].content_type.as_str()), (DataKind::Json, "application/json"));
    assert_eq!(rows[0].time, Some(Time { seconds: 1_796_083_323 - 86_400, nanos: 500_000_000 }));
    assert_eq!(rows[0].expected_version, Some(3));
    let [bare] = &emitted("SELECT 'other.type' AS type", "{}").expect("followed")[..] else {
        panic!("one row")
    };
    assert_eq!(
        (bare.event_type.as_str(), bare.kind, bare.data.len()),
        ("other.type", DataKind::Binary, 0)
    );
    for (query, part) in [
        ("SELECT '{' AS data", "is not JSON"),
        ("SELECT 1 AS data", "data: is an integer, JSON text or a blob"),
        ("SELECT CAST(x'22ff22' AS TEXT) AS data", "not UTF-8"),
        ("SELECT zeroblob(600000) AS data", "at most 524288"),
        ("SELECT 'a b' AS type", "type"),
        ("SELECT char(10) AS subject", "U+000A"),
        ("SELECT 1 AS subject", "subject: is an integer, text was expected"),
        (
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n",
            "more than",
        ),
        ("SELECT 'tomorrow' AS time", "time: is \"tomorrow\""),
        ("SELECT -1 AS expected_version", "expected_version"),
        ("SELECT 9223372036854775807 + 1 AS expected_version", "a real number"),
    ] {
        let fault = emitted(query, "{}").expect_err(query);
        assert_eq!(at(&fault), ("FOLLOW_UP", "on[0].emit[0].query"), "{query}: {fault}");
        assert!(fault.to_string().contains(part), "{query}: {fault}");
    }
}

/// The digests are kept in databases: another spelling here would refuse them all.
#[test]
fn parts_are_spelled_as_ever() {
    let bench = Bench::new(|tables| handler(tables, &[("DELETE FROM seen", Some(1))]));
    let parts = bench.declared.parts();
    let told: Vec<_> = parts
        .iter()
        .map(|part| (part.place.as_str(), crate::proto::event::hex(&part.digest[..4])))
        .collect();
    let places: Vec<_> = told.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, ["projection", "migration[0]", "on[0]"]);
    assert_eq!((told[0].1.as_str(), told[2].1.as_str()), ("fa59a74e", "9f97297f"));
}

/// The file that stands in for what was written in Rust gives the same outcomes and rows.
#[test]
fn inventory_as_a_file_does_what_it_did_in_rust() {
    use crate::receiver::inventory::Inventory;
    let text = include_str!("../../projections/inventory/projection.toml");
    let declared = Declared::new(super::read("inventory", text).expect("without a flaw"));
    let step = |sequence: usize| {
        let n = sequence % 13;
        let adjust = |delta: i64| ("stock.adjusted", json!({"delta": delta, "note": "ü"}));
        let reserve = |quantity: i64, expected_version: i64| {
            (
                "stock.reserved",
                json!({"task": "t", "quantity": quantity, "expected_version": expected_version}),
            )
        };
        let (event_type, data) = match n {
            0 | 3 | 7 => adjust(n as i64 * 5 - 3),
            1 | 5 => reserve(2, (sequence / 13) as i64),
            2 => reserve(1_000, 1),
            4 => reserve(1, 2),
            6 => ("stock.counted", json!({})),
            8 => adjust(1_001),
            9 => ("stock.adjusted", json!({"delta": 1.5})),
            10 => ("stock.reserved", json!({"task": "", "quantity": 1, "expected_version": 1})),
            11 => ("stock.adjusted", json!([1])),
            _ => reserve(1, 3),
        };
        let subject =
            ["camera", "lens", "unknown"][sequence % if n.is_multiple_of(2) { 2 } else { 3 }];
        event(sequence as i64, &format!("k{sequence}"), event_type, subject, &data.to_string())
    };
    let told = |projection: &dyn crate::receiver::projection::Projection| {
        let mut connection = Connection::open_in_memory().expect("memory");
        let guard = Guard::on(&mut connection).expect("guarded");
        for migration in projection.migrations() {
            connection.execute_batch(&migration.sql).expect("valid");
        }
        let applied: Vec<_> = (0..500)
            .map(|sequence| {
                let event = step(sequence);
                let tables = Tables::of(&connection);
                let applied = guard.during(Mode::Handler, || projection.apply(&tables, &event));
                applied.map_err(|fault| fault.class())
            })
            .collect();
        let rows: String = connection
            .query_row(
                "SELECT json_group_array(json_array(item, available, version))
                     || (SELECT json_group_array(json_array(key, task, item, quantity)) FROM reservation)
                     || (SELECT total FROM total) FROM stock",
                [],
                |row| row.get(0),
            )
            .expect("one text");
        (applied, rows)
    };
    let (in_rust, as_a_file) = (told(&Inventory), told(&declared));
    for (sequence, (rust, file)) in in_rust.0.iter().zip(&as_a_file.0).enumerate() {
        assert_eq!(rust, file, "event {sequence}: {:?}", step(sequence).intent);
    }
    assert_eq!(in_rust.1, as_a_file.1);
    let outcome = |wanted: fn(&Result<Applied, &str>) -> bool| in_rust.0.iter().any(wanted);
    assert!(outcome(|applied| matches!(applied, Ok(Applied::Rejected { .. }))));
    assert!(outcome(|applied| matches!(applied, Ok(Applied::Done(Some(_))))));
}
