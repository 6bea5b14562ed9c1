//! A receiver inside a program of one's own, with a projection in Rust: what each customer has
//! ordered, in cents.
//!
//! ```sh
//! cargo run --example embedded -- http://127.0.0.1:7601 customers.db
//! counterfoil publish - <<< '{"key":"o1","type":"order.placed","subject":"ada","json":{"cents":4200}}'
//! ```

use std::{borrow::Cow, path::PathBuf};

use counterfoil::{
    proto::event::Event,
    receiver::{
        self, Receiver,
        projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables},
    },
    rusqlite::params,
};

/// `order.placed` on subject = customer, with `cents`.
pub struct Customers;

impl Projection for Customers {
    fn name(&self) -> &str {
        "customers"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        const TABLE: &str = "CREATE TABLE customer (
            name TEXT NOT NULL PRIMARY KEY, orders INTEGER NOT NULL, cents INTEGER NOT NULL) STRICT";
        &[Migration { sql: Cow::Borrowed(TABLE) }]
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        const ADD: &str = "INSERT INTO customer VALUES (?1, 1, ?2)
            ON CONFLICT (name) DO UPDATE SET orders = orders + 1, cents = cents + excluded.cents";
        let intent = &event.intent;
        if intent.event_type != "order.placed" {
            return Ok(Applied::Ignored);
        }
        let json: serde_json::Value = serde_json::from_slice(&intent.data)
            .map_err(|error| Fault::payload(format!("it is not JSON: {error}")))?;
        let cents = json["cents"].as_i64().ok_or_else(|| Fault::payload("/cents is no integer"))?;
        if cents < 0 {
            return Ok(Applied::Rejected { reason: "negative_amount".into(), result: None });
        }
        tables.statement(ADD)?.execute(params![&*intent.subject, cents])?;
        Ok(Applied::Done(None))
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }
}

#[tokio::main]
async fn main() -> Result<(), receiver::Error> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "http://127.0.0.1:7601".to_owned());
    let db = PathBuf::from(arguments.next().unwrap_or_else(|| "customers.db".to_owned()));

    let receiver = Receiver::new(url, db, Customers).name("customers");
    let mut applied = receiver.applied();
    tokio::spawn(async move {
        while applied.changed().await.is_ok() {
            println!("applied up to {}", *applied.borrow_and_update());
        }
    });
    let told = async {
        let _ = tokio::signal::ctrl_c().await; // where it cannot be caught, it ends us anyway
    };
    receiver.run(told).await
}
