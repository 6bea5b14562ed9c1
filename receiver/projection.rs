//! The port to what a receiver does with events: tables of one's own, filled
//! inside the receiver's transaction.

use rusqlite::Connection;
use serde_json::Value;

pub use super::tables::Tables;
use crate::proto::event::Event;

/// Turns events into rows. Runs on the receiver's apply thread, inside its
/// transaction, through a connection whose authorizer refuses transaction
/// control, ATTACH, PRAGMA and any touch of `counterfoil_*`.
pub trait Projection: Send + 'static {
    /// Its name, for people and for `counterfoil_meta`.
    fn name(&self) -> &'static str;

    /// Its version; a database filled by another version is refused.
    fn version(&self) -> i64;

    /// Creates its tables. Called once for a database, inside the transaction
    /// that notes name and version.
    ///
    /// # Errors
    /// Whatever SQLite says; the receiver does not start.
    fn create(&self, tables: &Connection) -> rusqlite::Result<()>;

    /// Makes one event's effect. Deterministic: the same events in the same
    /// order give the same rows. An effect outside `tables` is outside the
    /// promise.
    ///
    /// # Errors
    /// [`Fault`]: the event blocks the log until it can be applied.
    fn apply(&self, tables: &Tables<'_>, event: &Event) -> Result<Applied, Fault>;

    /// The read-only queries it declares.
    fn queries(&self) -> &'static [DeclaredQuery];
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Applied {
    /// The effect was made. The result, if any, is kept in the ledger.
    Done(Option<Value>),
    /// No handler for this type; nothing was written.
    Ignored,
    /// A business rule said no; nothing was written.
    Rejected {
        /// The rule, as a word: `unknown_item`.
        reason: &'static str,
        /// What the caller may want to know, kept in the ledger.
        result: Option<Value>,
    },
}

/// Why an event could not be judged at all.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The payload is not what the type's handler expects. Says which field,
    /// and what was expected.
    #[error("{0}")]
    Payload(String),
    /// A statement failed.
    #[error("{0}")]
    Sql(#[from] rusqlite::Error),
}

/// A query that callers may ask by name.
#[derive(Debug, Clone, Copy)]
pub struct DeclaredQuery {
    /// Its name.
    pub name: &'static str,
    /// The names of its parameters, without the colon. A parameter that the
    /// caller leaves out is NULL.
    pub parameters: &'static [&'static str],
    /// One read-only statement with `:name` parameters.
    pub sql: &'static str,
}
