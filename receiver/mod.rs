//! The receiver: asks for events, applies each exactly once, acknowledges.
//! [`run`] shows the whole flow.
//!
//! The program `receiver` is a [`Receiver`] with settings of its own. Another program may have
//! one within it, with a projection in Rust, and gets the same promises:
//!
//! ```no_run
//! use std::borrow::Cow;
//!
//! use counterfoil::{
//!     proto::event::Event,
//!     receiver::{
//!         Receiver,
//!         projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables},
//!     },
//! };
//!
//! /// How many events there were of each type.
//! struct Counts;
//!
//! impl Projection for Counts {
//!     fn name(&self) -> &str {
//!         "counts"
//!     }
//!
//!     fn version(&self) -> i64 {
//!         1
//!     }
//!
//!     fn migrations(&self) -> &[Migration] {
//!         const TABLE: &str =
//!             "CREATE TABLE counts (type TEXT NOT NULL PRIMARY KEY, n INTEGER NOT NULL) STRICT";
//!         &[Migration { sql: Cow::Borrowed(TABLE) }]
//!     }
//!
//!     fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
//!         const COUNT: &str = "INSERT INTO counts VALUES (?1, 1)
//!             ON CONFLICT (type) DO UPDATE SET n = n + 1";
//!         tables.statement(COUNT)?.execute([&*event.intent.event_type])?;
//!         Ok(Applied::Done(None))
//!     }
//!
//!     fn queries(&self) -> &[DeclaredQuery] {
//!         &[]
//!     }
//! }
//!
//! # async fn example() -> Result<(), counterfoil::receiver::Error> {
//! let receiver = Receiver::new("http://127.0.0.1:7601", "counts.db", Counts).name("counts");
//! receiver.run(std::future::pending()).await
//! # }
//! ```

pub mod ack;
pub mod admin;
pub mod apply;
pub mod check;
pub mod choose;
pub mod config;
pub mod copy;
pub mod current;
pub mod decide;
pub mod declared;
pub mod download;
mod embedded;
pub mod feed;
pub mod follow_up;
pub mod forward;
#[cfg(test)]
pub mod inventory;
pub mod isolate;
pub mod judged;
pub mod offer;
pub mod projection;
pub mod projections;
pub mod pruning;
pub mod query;
pub mod readers;
pub mod rebuild;
pub mod recent;
pub mod replay;
pub mod resync;
pub mod retry;
pub mod run;
pub mod service;
pub mod skip;
pub mod snapshot;
pub mod source;
pub mod status;
pub mod store;
pub mod tables;
pub mod transaction;
pub mod trial;
pub mod turns;
pub mod values;
pub mod writer;

pub use embedded::{Error, Receiver};

#[cfg(test)]
mod testing;
