//! One SQLite file: opening it, its own tables, its write-ahead log. Knows
//! nothing of the network, and nothing of what a projection does.

pub mod baseline;
mod checkpoint;
pub mod contents;
pub mod cursor;
pub mod descent;
pub mod fit;
pub mod gate;
pub mod guard;
mod kind;
pub mod ledger;
pub mod lock;
pub mod marks;
mod migrate;
mod open;
pub mod outbox;
pub mod prune;
pub mod recover;
pub mod replace;
pub mod reserved;
pub mod skipped;
pub mod staged;
pub mod trouble;

use std::{path::PathBuf, sync::Arc};

use rusqlite::Connection;

pub use kind::Kind;
pub use open::{OpenError, is_receivers, make_empty, open, open_for_reading, reopen};

/// The version of the receiver's own tables, in SQLite's `user_version`.
const SCHEMA_VERSION: i32 = 3;
/// The table of what was done.
const LEDGER: &str = include_str!("ledger.sql");
/// The table of follow-up events.
const OUTBOX: &str = include_str!("outbox.sql");
/// The table of what was set aside.
const SKIPPED: &str = include_str!("skipped.sql");
/// All of the receiver's own tables.
pub const SCHEMA: &str = concat!(
    include_str!("schema.sql"),
    include_str!("ledger.sql"),
    include_str!("outbox.sql"),
    include_str!("skipped.sql")
);

/// The connection that writes. One thread owns it.
pub struct Store {
    /// The connection.
    pub connection: Connection,
    /// Keeps a projection from what is not its own.
    pub guard: guard::Guard,
    /// What the database is.
    pub kind: Arc<Kind>,
    /// The log that is applied.
    pub log: String,
    db: PathBuf,
    wal: checkpoint::Wal,
}

#[cfg(test)]
mod tests;
