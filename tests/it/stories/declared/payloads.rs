//! What comes in goes into tables, and out through queries, as it is.

use counterfoil::proto::event::hex;
use prost_types::value::Kind;

use super::{Declared, binary, noted};
use crate::harness::{events::event, ledger::open, tools::counterfoil, wait::DEADLINE};

/// Keeps all that a statement sees of an event.
const KEEPER: &str = r#"
[projection]
name = "keeper"
version = 1
[[migration]]
sql = '''
CREATE TABLE kept (
    key TEXT NOT NULL PRIMARY KEY, subject TEXT NOT NULL, type TEXT NOT NULL, data TEXT,
    raw BLOB NOT NULL, fingerprint BLOB NOT NULL, attributes TEXT NOT NULL, text TEXT,
    sequence INTEGER NOT NULL, version INTEGER NOT NULL
) STRICT'''
[[on]]
type = "*"
sql = '''
INSERT INTO kept VALUES (:key, :subject, :type, :data, :raw, :fingerprint, :attributes,
    CASE WHEN :data IS NOT NULL THEN :data ->> '$.text' END, :sequence, :subject_version)'''
[[query]]
name = "kept"
parameters = ["key"]
sql = "SELECT * FROM kept WHERE key = :key"
"#;

/// A message of a newer schema: field 1 is a varint, 15 and 2047 are unknown to whoever
/// reads it, one of them twice and once with a longer varint than it takes.
const PROTOBUF: [u8; 19] = [
    0x08, 0x03, 0x7a, 0x02, 0xff, 0x00, 0xf8, 0x7f, 0x81, 0x80, 0x00, 0x7a, 0x00, 0x08, 0x80, 0x80,
    0x80, 0x00, 0x00,
];

/// API-06: a payload is bytes, from end to end; nobody decodes it and writes it anew.
#[tokio::test(flavor = "multi_thread")]
async fn api_06_fields_that_nobody_knows_come_through() {
    let pair = Declared::start(KEEPER);
    let receipt = pair.publisher.accepts(binary(noted("k", "x", ""), &PROTOBUF)).await;
    pair.receiver.applies(0).await;
    assert_eq!(pair.value::<Vec<u8>>("SELECT raw FROM kept"), PROTOBUF);
    assert_eq!(pair.value::<Vec<u8>>("SELECT fingerprint FROM kept"), receipt.fingerprint);
    assert_eq!(pair.value::<Option<String>>("SELECT data FROM kept"), None);
    let replayed = pair.publisher.everything().await;
    assert_eq!(replayed[0].fingerprint, receipt.fingerprint);
}

/// A payload of no bytes, and JSON that is no object: each is what it is.
#[tokio::test(flavor = "multi_thread")]
async fn empty_payloads_are_payloads() {
    let pair = Declared::start(KEEPER);
    let empty = binary(noted("empty", "", ""), &[]);
    pair.carries([empty, noted("null", "", "null"), noted("{}", "", " {} ")]).await;
    let mut rows = Vec::new();
    for key in ["empty", "null", "{}"] {
        let sql = format!(
            "SELECT hex(raw) || ' ' || coalesce(data, 'none') FROM kept WHERE key = '{key}'"
        );
        rows.push(pair.value::<String>(&sql));
    }
    assert_eq!(rows, [" none", "6E756C6C null", "207B7D20  {} "]);
}

/// Bytes that a statement calls text are kept as they are, and compared as they are. JSON
/// brings none: half of a surrogate pair is no character, and is not accepted.
#[tokio::test(flavor = "multi_thread")]
async fn text_that_is_none_is_compared_by_its_bytes() {
    let keeper = KEEPER
        .replace("CASE WHEN :data IS NOT NULL THEN :data ->> '$.text' END", "CAST(:raw AS TEXT)");
    let pair = Declared::start(&keeper);
    let half = noted("half", "", r#"{"text":"\ud800"}"#);
    let refused = pair.publisher.publish(vec![half]).await.expect_err("no character");
    assert!(
        refused.message().contains(r"events[0].json_text: has \ud800 at byte 9"),
        "{refused:?}"
    );
    let whole = noted("whole", "", r#"{"text":"\ud83d\ude00"}"#);
    pair.carries([whole, binary(noted("bytes", "", ""), &[0x61, 0xed, 0xa0, 0x80, 0xff])]).await;
    let kept = "SELECT hex(text) FROM kept WHERE key = 'bytes'";
    assert_eq!(pair.value::<String>(kept), "61EDA080FF");
    let rows = pair.ask("kept", "key", "bytes").await;
    match rows[0].fields["text"].kind.clone() {
        Some(Kind::StringValue(text)) => assert!(text.starts_with("a\u{fffd}"), "{text:?}"),
        other => panic!("{other:?}"),
    }
    let verify = |code: i32, part: &str| {
        let verify = ["verify", "--publisher", &pair.publisher.url(), "--db"];
        let projection = pair.dir.path().join("projection.toml");
        let ended = counterfoil(verify).arg(pair.receiver.db()).arg("--projection");
        let ended = ended.arg(&projection).run();
        assert_eq!(ended.code(), Some(code), "{ended:?}");
        assert!(format!("{ended:?}").contains(part), "{ended:?}");
    };
    verify(0, "EQUAL");
    let beside = rusqlite::Connection::open(pair.receiver.db()).expect("opened beside it");
    beside.busy_timeout(DEADLINE).expect("set");
    let change = "UPDATE kept SET text = CAST(x'61fe' AS TEXT) WHERE key = 'bytes'";
    beside.execute(change, []).expect("changed");
    verify(1, "text that is not UTF-8");
}

/// What keys and subjects may be, and all that JSON can say, NUL included.
#[tokio::test(flavor = "multi_thread")]
async fn odd_text_comes_through_tables_and_queries() {
    let pair = Declared::start(KEEPER);
    let texts = [
        "before\0after",
        "\0",
        "\u{202e}\u{5de}\u{5e9}\u{5e7}\u{5e4}\u{5ea}",
        "\u{1f4f7}\u{10ffff}",
        "e\u{301}\u{e9}",
        "'; DROP TABLE kept; --",
        "%s\\\"\r\n\t",
        "",
    ];
    let keys =
        ["\u{1f511}", "k' OR '1'='1", "\u{202e}k", "k\\", "k%", "k\u{301}", ":key", "\u{fffd}"];
    for (key, text) in keys.into_iter().zip(texts) {
        let json = serde_json::json!({ "text": text }).to_string();
        let mut event = event(key, "thing.noted", key, &json);
        event.attributes.insert("\u{1f3f7}".into(), text.into());
        pair.carries([event]).await;
        let row = &pair.ask("kept", "key", key).await[0];
        let field = |name: &str| row.fields[name].kind.clone();
        let is = |text: &str| Some(Kind::StringValue(text.into()));
        assert_eq!(field("text"), is(text), "{row:?}");
        assert_eq!((field("subject"), field("key")), (is(key), is(key)));
        assert_eq!(field("data"), is(&json));
        let attributes = serde_json::json!({ "\u{1f3f7}": text }).to_string();
        assert_eq!(field("attributes"), is(&attributes));
        let db = open(pair.receiver.db());
        let bytes: Vec<u8> = db
            .query_row("SELECT CAST(text AS BLOB) FROM kept WHERE key = ?1", [key], |row| {
                row.get(0)
            })
            .expect("one row");
        assert_eq!(hex(&bytes), hex(text.as_bytes()));
    }
}

/// Integers, up to their ends.
const NUMBERS: &str = r#"
[projection]
name = "numbers"
version = 1
[[migration]]
sql = "CREATE TABLE number (name TEXT NOT NULL PRIMARY KEY, value INTEGER NOT NULL) STRICT"
[[on]]
type = "number.set"
require = [{ field = "/value", type = "integer" }]
sql = '''
INSERT INTO number (name, value) VALUES (:subject, :data ->> 'value')
    ON CONFLICT (name) DO UPDATE SET value = excluded.value'''
expect_rows = 1
result = "SELECT value FROM number WHERE name = :subject"
[[on]]
type = "number.raised"
sql = "UPDATE number SET value = value + (:data ->> 'by') WHERE name = :subject"
expect_rows = 1
[[on]]
type = "number.doubled"
sql = "UPDATE number SET value = value WHERE name = :subject"
result = "SELECT value + value AS twice FROM number WHERE name = :subject"
[[query]]
name = "with"
parameters = ["value"]
sql = "SELECT name, value FROM number WHERE value = :value"
[[query]]
name = "sum"
sql = "SELECT sum(value) AS sum FROM number"
"#;

/// Neither a table nor an answer nor the ledger makes anything else of 2^63 - 1.
#[tokio::test(flavor = "multi_thread")]
async fn integers_are_exact_up_to_their_ends() {
    let pair = Declared::start(NUMBERS);
    for number in [i64::MAX, i64::MIN, i64::MAX - 1, (1 << 53) + 1, -(1 << 53) - 1, 0, -1] {
        let name = format!("n{number}");
        let json = format!(r#"{{"value":{number}}}"#);
        pair.carries([event(&name, "number.set", &name, &json)]).await;
        let sql = format!("SELECT value FROM number WHERE name = '{name}'");
        assert_eq!(pair.value::<i64>(&sql), number);
        // Asked for as text, as a caller has to who speaks JSON.
        let rows = pair.ask("with", "value", &number.to_string()).await;
        assert_eq!(rows.len(), 1, "{number}");
        let shown = match rows[0].fields["value"].kind.clone() {
            Some(Kind::StringValue(text)) => text,
            Some(Kind::NumberValue(value)) if value.abs() < 9e15 => format!("{value:.0}"),
            other => panic!("{number}: {other:?}"),
        };
        assert_eq!(shown, number.to_string());
        let sql = format!("SELECT result FROM counterfoil_ledger WHERE key = '{name}'");
        assert_eq!(pair.value::<String>(&sql), json);
    }
}

/// One more than the most is a fault; it is not 9.22e18.
#[tokio::test(flavor = "multi_thread")]
async fn what_no_longer_is_an_integer_is_a_fault() {
    let most = i64::MAX;
    let cases = [
        ("number.raised", r#"{"by":1}"#, "CONSTRAINT", "on[1].sql[0]"),
        ("number.doubled", "{}", "OVERFLOW", "on[2].result"),
        ("number.set", r#"{"value":9223372036854775808}"#, "PAYLOAD", "on[0].require[0]"),
        ("number.set", r#"{"value":1.0}"#, "PAYLOAD", "on[0].require[0]"),
    ];
    for (kind, json, class, place) in cases {
        let pair = Declared::with(NUMBERS, |setup| setup.arg("--apply-attempts=1"));
        let set = event("set", "number.set", "n", &format!(r#"{{"value":{most}}}"#));
        pair.publish([set, event("over", kind, "n", json)]).await;
        let failure = pair.halts().await;
        assert_eq!((failure.class.as_str(), failure.statement.as_str()), (class, place));
        assert_eq!(failure.sequence, Some(1));
        assert_eq!(pair.value::<i64>("SELECT value FROM number"), most, "{kind}");
        assert_eq!(pair.value::<String>("SELECT typeof(value) FROM number"), "integer");
    }
}
