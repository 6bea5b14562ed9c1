//! Events of types that a projection has no handler for (APP-09).

use counterfoil::proto::{
    pb::{Outcome, ReceiverState, get_ledger_entry_request::By},
    refusal::Reason,
};

use super::{Declared, file, noted};
use crate::harness::{events::event, refusal::refused, wait::wait_until};

/// Version 1 knows `thing.noted`; version 2 knows `thing.lost` too.
fn things(version: i64, header: &str) -> String {
    let later = r#"
[[on]]
type = "thing.lost"
sql = "INSERT INTO thing VALUES (:key, 'lost')"
"#;
    let later = if version == 1 { "" } else { later };
    format!(
        r#"
[projection]
name = "things"
version = {version}
{header}
[[migration]]
sql = "CREATE TABLE thing (key TEXT NOT NULL PRIMARY KEY, what TEXT NOT NULL) STRICT"
[[on]]
type = "thing.noted"
sql = "INSERT INTO thing VALUES (:key, 'noted')"
{later}
"#
    )
}

/// Ignored is an outcome: the cursor moves, the ledger and the publisher say so. A later
/// version that knows the type is filled from the log's beginning, and has what the earlier
/// one passed over.
#[tokio::test(flavor = "multi_thread")]
async fn app_09_what_was_ignored_is_noted_and_found_by_a_later_version() {
    let mut pair = Declared::start(&things(1, ""));
    let events = [noted("a", "", "{}"), event("b", "thing.lost", "", "{}"), noted("c", "", "{}")];
    pair.carries(events).await;
    let entry = pair.receiver.entry(By::Sequence(1)).await.expect("a row");
    assert_eq!(entry.outcome(), Outcome::Ignored);
    pair.publisher.waits_for_ack("receiver", 2).await;
    let told = pair.publisher.receipt("b").await.outcomes;
    assert_eq!(told[0].outcome(), Outcome::Ignored);
    assert_eq!(pair.value::<i64>("SELECT count(*) FROM thing"), 2);

    file(pair.dir.path(), &things(2, "upgrade = \"rebuild\""));
    pair.receiver = pair.receiver.restart();
    wait_until("version 2 has taken over", async || {
        let status = pair.receiver.try_status().await.ok()?;
        (status.projection_version == Some(2)).then_some(())
    })
    .await;
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    assert_eq!(pair.value::<i64>("SELECT count(*) FROM thing WHERE what = 'lost'"), 1);
    let entry = pair.receiver.entry(By::Sequence(1)).await.expect("a row");
    assert_eq!(entry.outcome(), Outcome::Applied);
}

/// Or it stops there, and a later version goes on from there.
#[tokio::test(flavor = "multi_thread")]
async fn app_09_a_type_may_stop_it_until_it_is_known() {
    let halts = "on_unknown_type = \"halt\"";
    let mut pair = Declared::with(&things(1, halts), |setup| setup.arg("--apply-attempts=1"));
    let events = [noted("a", "", "{}"), event("b", "thing.lost", "", "{}"), noted("c", "", "{}")];
    pair.publish(events).await;
    let failure = pair.halts().await;
    assert_eq!((failure.sequence, failure.class.as_str()), (Some(1), "UNKNOWN_TYPE"));
    assert_eq!(failure.r#type, "thing.lost");
    refused(pair.receiver.entry(By::Sequence(1)).await, Reason::NotFound);

    file(pair.dir.path(), &things(2, halts));
    pair.receiver = pair.receiver.restart();
    pair.receiver.applies(2).await;
    assert_eq!(pair.value::<i64>("SELECT count(*) FROM thing WHERE what = 'lost'"), 1);
}
