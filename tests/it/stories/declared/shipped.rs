//! The projections that come along, as their comments say.

use std::path::{Path, PathBuf};

use counterfoil::proto::pb::Outcome;
use prost_types::value::Kind;

use super::Declared;
use crate::harness::{events::event, receiver::Receiver};

fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("projections").join(name).join("projection.toml")
}

fn text(name: &str) -> String {
    std::fs::read_to_string(shipped(name)).expect("there")
}

/// Each that there is, none of them left out.
#[test]
fn they_have_no_flaws() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("projections");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).expect("there") {
        let ended = Receiver::check(&entry.expect("an entry").path().join("projection.toml"));
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        checked += 1;
    }
    assert!(checked >= 4, "{checked}");
}

/// One event fills three tables, and a customer who is forgotten leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn orders_stand_with_their_lines() {
    let pair = Declared::start(&text("orders"));
    let lines = r#"[{"item":"camera","quantity":2,"price_cents":49900},{"item":"lens","quantity":1,"price_cents":15000}]"#;
    let placed = format!(r#"{{"customer":"ada","lines":{lines}}}"#);
    pair.carries([
        event("1", "order.placed", "17", &placed),
        event("2", "order.placed", "17", &placed),
        event("3", "order.line_changed", "17", r#"{"line":0,"quantity":1}"#),
    ])
    .await;
    let results = "SELECT group_concat(coalesce(reason, result), ' ' ORDER BY sequence)
                   FROM counterfoil_ledger";
    let told: String = pair.value(results);
    assert_eq!(told, r#"{"lines":2,"total_cents":114800} order_exists {"total_cents":64900}"#);
    let lines = pair.ask("lines", "order", "17").await;
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[0].fields["item"].kind, Some(Kind::StringValue("camera".into())));
    pair.carries([event("4", "order.cancelled", "17", "{}")]).await;
    assert_eq!(pair.value::<i64>("SELECT open FROM customer"), 0);
    pair.carries([event("5", "customer.forgotten", "ada", "{}")]).await;
    let left = "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM order_line)";
    assert_eq!(pair.value::<i64>(left), 0);
}

/// Nobody gives what they do not have, and who asked learns so from the publisher.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_cannot_be_overdrawn() {
    let pair = Declared::start(&text("accounts"));
    let moved = |key: &str, cents: i64| {
        let json = format!(r#"{{"from":"ada","to":"ben","cents":{cents}}}"#);
        event(key, "money.transferred", "", &json)
    };
    pair.carries([
        event("1", "account.opened", "ada", "{}"),
        event("2", "account.opened", "ben", "{}"),
        event("3", "money.deposited", "ada", r#"{"cents":500}"#),
        moved("4", 501),
        moved("5", 500),
    ])
    .await;
    pair.publisher.waits_for_ack("receiver", 4).await;
    let told = pair.publisher.receipt("4").await.outcomes;
    assert_eq!(told[0].outcome(), Outcome::Rejected);
    assert_eq!(told[0].reason, "insufficient_funds");
    assert_eq!(told[0].result, r#"{"balance":500}"#);
    let told = pair.publisher.receipt("5").await.outcomes;
    assert_eq!(told[0].result, r#"{"from_balance":0,"to_balance":500}"#);
    let books = &pair.receiver.query("books").await.expect("declared").rows[0];
    assert_eq!(books.fields["deposited"], books.fields["balances"]);
}
