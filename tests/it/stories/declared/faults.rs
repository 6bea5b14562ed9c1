//! A statement that fails takes all of its event with it, and says where it stands and not
//! what it says.

use super::{Declared, noted};
use crate::harness::events::event;

/// Two statements, of which the second may fail.
const LEDGER: &str = r#"
[projection]
name = "till"
version = 1
[[migration]]
sql = '''
CREATE TABLE sale (key TEXT NOT NULL PRIMARY KEY) STRICT;
CREATE TABLE drawer (secret_cents INTEGER NOT NULL CHECK (secret_cents >= 0)) STRICT;
INSERT INTO drawer VALUES (100);
'''
[[on]]
type = "thing.noted"
sql = '''
INSERT INTO sale VALUES (:key);
UPDATE drawer SET secret_cents = secret_cents - (:data ->> 'cents');
'''
[[on]]
type = "thing.lost"
sql = "DELETE FROM sale WHERE key = :subject"
expect_rows = 1
[[query]]
name = "drawer"
sql = "SELECT secret_cents FROM drawer"
[[query]]
name = "broken"
sql = "SELECT abs(-9223372036854775807 - count(*)) AS secret FROM sale"
"#;

/// SQL-14, APP-08: what the first statement did is gone with the second's failure, the
/// ledger has no row, the cursor stays, and neither a restart nor the events behind it
/// change that; queries go on being answered.
#[tokio::test(flavor = "multi_thread")]
async fn sql_14_half_an_event_is_none() {
    let mut pair = Declared::with(LEDGER, |setup| setup.arg("--apply-attempts=2"));
    pair.carries([noted("good", "", r#"{"cents":40}"#)]).await;
    let bad = noted("bad", "", r#"{"cents":61}"#);
    pair.publish([bad, noted("later", "", r#"{"cents":1}"#)]).await;
    for _ in 0..2 {
        let failure = pair.halts().await;
        assert_eq!((failure.sequence, failure.key.as_str()), (Some(1), "bad"));
        assert_eq!(failure.class, "CONSTRAINT");
        assert_eq!(failure.statement, "on[0].sql[1]");
        let said = "Event 1 failed: a CHECK constraint failed (SQLite code 275).";
        assert_eq!(failure.message, said);
        assert_eq!(failure.attempts, Some(2));
        assert_eq!(pair.value::<i64>("SELECT count(*) FROM sale"), 1);
        assert_eq!(pair.value::<i64>("SELECT secret_cents FROM drawer"), 60);
        assert_eq!(pair.value::<i64>("SELECT max(sequence) FROM counterfoil_ledger"), 0);
        assert_eq!(pair.value::<i64>("SELECT sequence FROM counterfoil_cursor"), 0);
        let answer = pair.receiver.query("drawer").await.expect("answered while it is halted");
        assert_eq!(answer.rows.len(), 1);
        pair.receiver = pair.receiver.restart();
    }
}

/// A statement that changes more or fewer rows than its file expects has met something that
/// its author did not think of.
#[tokio::test(flavor = "multi_thread")]
async fn rows_are_counted() {
    let pair = Declared::with(LEDGER, |setup| setup.arg("--apply-attempts=1"));
    pair.publish([event("lost", "thing.lost", "nothing", "{}")]).await;
    let failure = pair.halts().await;
    assert_eq!((failure.class.as_str(), failure.statement.as_str()), ("ROWS", "on[1].sql[0]"));
}

/// API-08: what a person far away is told has the place, but no SQL, table or path.
#[tokio::test(flavor = "multi_thread")]
async fn api_08_statements_are_told_by_their_places() {
    let pair = Declared::with(LEDGER, |setup| setup.arg("--apply-attempts=1"));
    pair.carries([noted("good", "", r#"{"cents":40}"#)]).await;
    // With one sale this is the least integer, which has no opposite.
    let refused = pair.receiver.query("broken").await.expect_err("an overflow");
    let wrong = noted("bad", "", r#"{"cents":1000}"#);
    pair.publish([wrong]).await;
    let failure = pair.halts().await;
    let status = pair.receiver.status().await;
    let dir = pair.dir.path().to_str().expect("text").to_owned();
    for told in [refused.message(), &failure.message, &status.state_detail] {
        for secret in ["SELECT", "UPDATE", "secret", "drawer", ">= 0", "sale", &dir] {
            assert!(!told.contains(secret), "{secret:?} is told: {told}");
        }
    }
    let said = pair.receiver.process.said();
    for part in ["on[0].sql[1]", "CHECK constraint failed: secret_cents >= 0"] {
        assert!(said.contains(part), "the log says all of it: {said}");
    }
}
