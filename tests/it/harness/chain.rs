//! Three services in a row, as five processes: a publisher, a receiver that applies its
//! events and forwards what follows from them, a second publisher, and a receiver of that.
//! The first receiver has the projection `warehouse`, the second `purchasing`.

use std::{collections::BTreeMap, path::Path};

use counterfoil::proto::pb::{Event, event::Data};
use tempfile::TempDir;

use super::{
    ledger::open,
    pair::directory,
    publisher::Publisher,
    receiver::{Receiver, Setup},
    wait::wait_until,
};

/// A projection file that this program comes with.
pub fn projection(name: &str) -> String {
    let root = env!("CARGO_MANIFEST_DIR");
    format!("{root}/projections/{name}/projection.toml")
}

/// All but the first receiver. The directory goes last.
pub struct Chain {
    pub first: Publisher,
    pub second: Publisher,
    pub buyer: Receiver,
    pub dir: TempDir,
}

impl Chain {
    /// Starts them.
    pub fn start() -> Chain {
        let dir = directory();
        let first = Publisher::start(&dir.path().join("first"));
        let second = Publisher::start(&dir.path().join("second"));
        let buyer = Receiver::at(dir.path(), &second.url()).named("purchasing");
        let buyer = buyer.arg("--projection").arg(projection("purchasing")).start();
        Chain { first, second, buyer, dir }
    }

    /// How the first receiver is started; `to` is the publisher that it forwards to.
    pub fn warehouse(&self, to: &str) -> Setup {
        Receiver::at(self.dir.path(), &self.first.url())
            .named("warehouse")
            .arg("--projection")
            .arg(projection("warehouse"))
            .arg("--forward-to")
            .arg(to)
    }

    /// Waits until all that was accepted has come through to the end.
    pub async fn settles(&self, warehouse: &Receiver) {
        let applied = async |publisher: &Publisher, receiver: &Receiver| {
            let next = publisher.log().await.next_sequence;
            let status = receiver.try_status().await.ok()?;
            let cursor = status.cursor.as_ref().and_then(|cursor| cursor.sequence);
            (cursor.unwrap_or(-1) + 1 == next.expect("always set")).then_some(status)
        };
        wait_until("all is applied, forwarded and applied", async || {
            let status = applied(&self.first, warehouse).await?;
            (status.outbox_pending == Some(0)).then_some(())?;
            applied(&self.second, &self.buyer).await.map(drop)
        })
        .await;
    }

    /// Checks that each follow-up event is in the second log exactly once and in order, and
    /// that its receiver has applied each once.
    pub async fn check(&self, warehouse: &Path) {
        let expected = follow_ups(&self.first.everything().await);
        let found = self.second.everything().await;
        let found: Vec<_> = found.iter().map(|event| event.key.as_str()).collect();
        assert_eq!(found, expected, "the second log");
        let outbox = open(warehouse);
        let numbers: Vec<i64> = column(
            &outbox,
            "SELECT forwarded_sequence FROM counterfoil_outbox ORDER BY sequence, number",
        );
        let in_order: Vec<i64> = (0..expected.len() as i64).collect();
        assert_eq!(numbers, in_order, "the marks");
        let buyer = open(self.buyer.db());
        let keys: Vec<String> = column(
            &buyer,
            "SELECT key FROM counterfoil_ledger WHERE outcome = 'APPLIED' ORDER BY sequence",
        );
        assert_eq!(keys, expected, "what the second receiver has applied");
        let stock = "SELECT item || ' ' || available FROM stock ORDER BY item";
        let known = "SELECT item || ' ' || available FROM known ORDER BY item";
        assert_eq!(column::<String>(&outbox, stock), column::<String>(&buyer, known));
    }
}

fn column<T: rusqlite::types::FromSql>(db: &rusqlite::Connection, sql: &str) -> Vec<T> {
    let mut select = db.prepare(sql).expect("valid");
    let rows = select.query_map([], |row| row.get(0)).expect("readable");
    rows.collect::<Result<_, _>>().expect("readable")
}

/// The keys of what `warehouse` lets follow from these events, worked out once more.
pub fn follow_ups(events: &[Event]) -> Vec<String> {
    let mut available = BTreeMap::<&str, i64>::new();
    let mut keys = Vec::new();
    for event in events.iter().filter(|event| event.r#type == "stock.adjusted") {
        let Some(Data::JsonText(text)) = &event.data else { panic!("an adjustment has JSON") };
        let json: serde_json::Value = serde_json::from_str(text).expect("JSON");
        let delta = json["delta"].as_i64().expect("an integer");
        let before = available.entry(&event.subject).or_default();
        let after = *before + delta;
        keys.push(format!("{}/warehouse/moved/0", event.key));
        if after < 3 && *before >= 3 {
            keys.push(format!("{}/warehouse/low/0", event.key));
        }
        *before = after;
    }
    keys
}
