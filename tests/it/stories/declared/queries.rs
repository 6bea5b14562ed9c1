//! Queries of a file that take too long, or fail when they are run; and an event that was set
//! aside, applied by a later version of the file.

use counterfoil::proto::{
    pb::{Outcome, ReceiverState},
    refusal::Reason,
};
use tonic::Code;

use super::{Declared, file};
use crate::harness::{
    events::event,
    refusal::refused,
    tools::counterfoil,
    wait::{wait_until, within},
};

const SLOW: &str = r#"
[projection]
name = "slow"
version = 1

[[migration]]
sql = "CREATE TABLE seen (subject TEXT NOT NULL PRIMARY KEY) STRICT;"

[[on]]
type = "seen"
sql = "INSERT INTO seen VALUES (:subject)"

[[query]]
name = "seen"
sql = "SELECT subject FROM seen"
page_by = ["subject"]

[[query]]
name = "endless"
sql = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) AS n FROM n"

[[query]]
name = "failing"
sql = "SELECT json_extract(subject, '$') AS x FROM seen"
"#;

/// What does not end is ended, at once where nobody waits for it; nobody else is held up.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_takes_too_long_is_ended() {
    let declared = Declared::start(SLOW);
    declared.carries([event("k0", "seen", "a", "{}")]).await;
    let receiver = &declared.receiver;
    // More than are run at a time; their callers give up.
    for _ in 0..12 {
        let given_up =
            tokio::time::timeout(std::time::Duration::from_millis(50), receiver.query("endless"));
        given_up.await.expect_err("it does not end by itself");
    }
    let rows = within("a short query", receiver.query("seen")).await.expect("answered").rows;
    assert_eq!(rows.len(), 1);
    let (long, published) =
        tokio::join!(receiver.query("endless"), declared.carries([event("k1", "seen", "b", "{}")]));
    let () = published;
    refused(long, Reason::QueryTooLong);
    assert_eq!(receiver.query("seen").await.expect("answered").rows.len(), 2);
}

/// API-08: what fails is logged, and the caller is told nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn api_08_a_query_that_fails_says_so_in_the_log_only() {
    let declared = Declared::start(SLOW);
    declared.carries([event("k0", "seen", "no JSON", "{}")]).await;
    let status = declared.receiver.query("failing").await.expect_err("malformed JSON");
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    for word in ["json", "JSON", "SELECT", "seen", "malformed"] {
        assert!(!status.message().contains(word), "{status:?}");
    }
    let receiver = declared.receiver;
    wait_until("the log says why", async || {
        receiver.process.said().contains("malformed JSON").then_some(())
    })
    .await;
}

fn shelves(version: i64, most: i64) -> String {
    format!(
        r#"
[projection]
name = "shelves"
version = {version}

[[migration]]
sql = "CREATE TABLE shelf (item TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL) STRICT;"

[[on]]
type = "shelved"
require = [{{ field = "/n", type = "integer", max = {most} }}]
sql = '''
INSERT INTO shelf VALUES (:subject, :data ->> 'n')
    ON CONFLICT (item) DO UPDATE SET n = n + excluded.n
'''

[[query]]
name = "shelf"
sql = "SELECT item, n FROM shelf"
"#
    )
}

/// The file was wrong and not the event: it is mended, and what was set aside is applied.
#[tokio::test(flavor = "multi_thread")]
async fn a_later_version_applies_what_was_set_aside() {
    let mut declared =
        Declared::with(&shelves(1, 10), |setup| setup.arg("--apply-attempts").arg("1"));
    declared.carries([event("k0", "shelved", "a", r#"{"n":1}"#)]).await;
    declared.publish([event("k1", "shelved", "a", r#"{"n":11}"#)]).await;
    declared.publish([event("k2", "shelved", "b", r#"{"n":2}"#)]).await;
    let status = declared.receiver.waits_for_state(ReceiverState::Halted).await;
    let failure = status.failure.expect("says why");
    assert_eq!((&*failure.statement, &*failure.class), ("on[0].require[0]", "PAYLOAD"));
    declared.receiver.skip(1, "more than a shelf holds").await.expect("set aside");
    declared.receiver.applies(2).await;

    file(declared.dir.path(), &shelves(2, 100));
    let successor = declared.receiver.successor();
    assert_eq!(declared.receiver.terminate().code(), Some(0));
    declared.receiver = successor.start();
    let applied = declared.receiver.apply_skipped(1).await.expect("applied now");
    assert_eq!(applied.entry.expect("a row").outcome(), Outcome::Applied);
    assert_eq!(applied.applied_after, Some(2));
    let shown = counterfoil(["query", "--receiver", &declared.receiver.url(), "shelf"]).run();
    assert_eq!(shown.stdout, "item   n\na     12\nb      2\n");
}
