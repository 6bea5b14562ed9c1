//! What no file can say and only an event shows: a statement without an end, a look at the
//! clock that the payload asks for, a sum that 64 bits do not hold. Each is a fault of that
//! event, with its statement, and nothing else is harmed.

use super::{Declared, noted};
use crate::harness::events::event;

const BOUNDS: &str = r#"
[projection]
name = "bounds"
version = 1
[[migration]]
sql = '''
CREATE TABLE counted (key TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL) STRICT;
CREATE TABLE dated (key TEXT NOT NULL PRIMARY KEY, day TEXT) STRICT;
CREATE TABLE numbered (id INTEGER PRIMARY KEY, key TEXT NOT NULL) STRICT;
'''
[[on]]
type = "thing.noted"
sql = '''
INSERT INTO dated VALUES (:key, date(:data ->> 'day'));
INSERT INTO counted
    WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :data ->> 'n')
    SELECT :key, max(i) FROM n;
'''
expect_rows = 1
result = "SELECT n + (:data ->> 'more') AS n FROM counted WHERE key = :key"
[[on]]
type = "thing.numbered"
sql = """
INSERT INTO numbered VALUES (:data ->> 'id', :key);
INSERT INTO numbered (key) VALUES (:key);
"""
"#;

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_goes_too_far_is_a_fault_with_its_statement() {
    let cases = [
        (r#"{"day":"2026-11-30","n":1000000000,"more":0}"#, "STEPS", "on[0].sql[1]", "steps"),
        (
            r#"{"day":"Now","n":1,"more":0}"#,
            "FORBIDDEN",
            "on[0].sql[0]",
            "'now' in the function date()",
        ),
        (
            r#"{"day":"2026-11-30","n":1,"more":9223372036854775807}"#,
            "OVERFLOW",
            "on[0].result",
            "64 bits",
        ),
    ];
    for (payload, class, place, part) in cases {
        let pair = Declared::with(BOUNDS, |setup| setup.arg("--apply-attempts=1"));
        pair.carries([noted("good", "", r#"{"day":"2026-11-30","n":1000,"more":1}"#)]).await;
        pair.publish([noted("bad", "", payload)]).await;
        let failure = pair.halts().await;
        assert_eq!((failure.class.as_str(), failure.statement.as_str()), (class, place));
        assert!(failure.message.contains(part), "{failure:?}");
        assert_eq!(pair.value::<i64>("SELECT count(*) FROM counted, dated"), 1);
        assert_eq!(pair.value::<i64>("SELECT sequence FROM counterfoil_cursor"), 0);
        let result: String = pair.value("SELECT result FROM counterfoil_ledger");
        assert_eq!(result, r#"{"n":1001}"#);
    }
}

/// From the last number on SQLite picks the numbers of rows by chance, and a replay would
/// pick others; the event that takes it is a fault, and what it has written is gone.
#[tokio::test(flavor = "multi_thread")]
async fn no_row_gets_the_number_after_which_there_is_only_chance() {
    let numbered =
        |key: &str, id: i64| event(key, "thing.numbered", "", &format!(r#"{{"id":{id}}}"#));
    let pair = Declared::with(BOUNDS, |setup| setup.arg("--apply-attempts=1"));
    pair.carries([numbered("first", 1), numbered("high", i64::MAX - 2)]).await;
    pair.publish([numbered("last", i64::MAX), numbered("next", 7)]).await;
    let failure = pair.halts().await;
    assert_eq!((failure.key.as_str(), failure.class.as_str()), ("last", "OVERFLOW"));
    assert!(failure.message.contains("a row got the number 2^63-1"), "{failure:?}");
    let ids: String = pair.value("SELECT group_concat(id, ' ' ORDER BY id) FROM numbered");
    assert_eq!(ids, format!("1 2 {} {}", i64::MAX - 2, i64::MAX - 1));
}
