//! Counterfoil carries business events from one service into another's SQLite
//! database, each exactly once in effect, without a broker.
//!
//! - [`proto`]: the contract. Wire messages, checked types, fingerprint, chain,
//!   limits, reasons. Knows nothing of files, sockets or clocks.
//! - [`client`]: what a service needs that publishes.
//! - [`process`]: what both services share as processes.
//! - [`publisher`]: holds the logs.
//! - [`receiver`]: applies events.
//!
//! The halves never import each other; only `proto` and `process` are common.

/// The texts of an event, for projections in Rust.
#[cfg(feature = "receiver")]
pub use bytestring;
/// The SQLite of the receiver, for projections in Rust: one version of it in a program.
#[cfg(feature = "receiver")]
pub use rusqlite;

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod process;
pub mod proto;
#[cfg(feature = "publisher")]
pub mod publisher;
#[cfg(feature = "receiver")]
pub mod receiver;
