//! The port to what a receiver does with events: tables of one's own, filled
//! inside the receiver's transaction.

use std::borrow::Cow;

use rusqlite::ErrorCode;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

pub use super::tables::{FollowUp, Tables};
use super::{judged::Judged, store::trouble};
use crate::proto::event::Event;

/// Turns events into rows. Runs on the receiver's apply thread, inside its
/// transaction, through a connection whose authorizer refuses transaction
/// control, ATTACH, PRAGMA and any touch of `counterfoil_*`.
pub trait Projection: Send + Sync + 'static {
    /// Its name, for people and for `counterfoil_meta`.
    fn name(&self) -> &str;

    /// Its version; a database filled by another version is migrated or refused.
    fn version(&self) -> i64;

    /// How its tables come about: each step once for a database, in this order, in the
    /// transaction that notes name and version. A later version only adds steps.
    fn migrations(&self) -> &[Migration];

    /// Makes one event's effect. Deterministic: the same events in the same
    /// order give the same rows. An effect outside `tables` is outside the
    /// promise.
    ///
    /// # Errors
    /// [`Fault`]: the event blocks the log until it can be applied.
    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault>;

    /// Looks at an event by itself, before its turn and on another thread than the one that has
    /// the tables. None, as here: nothing is found out then. What files do; a projection in
    /// Rust leaves both as they are.
    fn judge(&self, _: &Event) -> Option<Judged> {
        None
    }

    /// [`Projection::apply`] with what [`Projection::judge`] has found, this projection's or
    /// another's.
    ///
    /// # Errors
    /// As [`Projection::apply`].
    fn apply_judged<'t>(
        &'t self,
        tables: &Tables<'t>,
        event: &Event,
        _: Option<&Judged>,
    ) -> Result<Applied, Fault> {
        self.apply(tables, event)
    }

    /// The read-only queries it declares.
    fn queries(&self) -> &[DeclaredQuery];

    /// Whether it emits follow-up events ([`Tables::emit`]).
    fn emits(&self) -> bool {
        false
    }

    /// What a database that an earlier version has filled gets.
    fn upgrade(&self) -> Upgrade {
        Upgrade::Migrate
    }

    /// The text of the file that it was read from; none: it is written in Rust. A database
    /// keeps it, so that an earlier version can go on answering.
    fn source(&self) -> Option<&str> {
        None
    }

    /// What it is made of, part by part, as far as that can be compared: another digest of a
    /// part under the same version is refused.
    fn parts(&self) -> Vec<Part> {
        let migrations = self.migrations().iter().enumerate();
        migrations.map(|(n, step)| Part::of(format!("migration[{n}]"), &step.sql)).collect()
    }
}

/// One step that makes or changes tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// One or several statements.
    pub sql: Cow<'static, str>,
}

/// What a database that an earlier version has filled gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upgrade {
    /// The steps that it lacks; its rows stay.
    #[default]
    Migrate,
    /// Another database is filled from the log beside it, and takes its place.
    Rebuild,
}

/// A part of a projection and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Where it stands: `migration[0]`, `on[1]`, `query[stock]`.
    pub place: String,
    /// SHA-256 of its text.
    pub digest: [u8; 32],
}

impl Part {
    /// The part at a place that says this.
    pub fn of(place: impl Into<String>, text: &str) -> Self {
        Part { place: place.into(), digest: Sha256::digest(text).into() }
    }
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
        reason: Cow<'static, str>,
        /// What the caller may want to know, kept in the ledger.
        result: Option<Value>,
    },
}

/// Why an event could not be judged at all.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct Fault {
    /// The statement or the rule at fault, as people find it: `on[1].sql[0]`.
    pub place: Option<String>,
    /// What is wrong.
    pub why: Why,
}

/// What is wrong with an event.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The payload is not what the type's handler expects. Says which field,
    /// and what was expected.
    #[error("{0}")]
    Payload(String),
    /// A statement failed.
    #[error("{}", trouble::said(.0))]
    Sql(#[from] rusqlite::Error),
    /// It came to something that the projection does not allow: a wrong number of rows,
    /// too many steps, a number that no longer is an integer. Says what, and the numbers.
    #[error("{said}")]
    Refused {
        /// A word for programs: `ROWS`, `STEPS`, `OVERFLOW`, `UNKNOWN_TYPE`, `TEXT`,
        /// `FOLLOW_UP`, `FORBIDDEN`.
        class: &'static str,
        /// In words.
        said: String,
    },
}

impl Fault {
    /// The payload is wrong: says how.
    pub fn payload(wrong: impl Into<String>) -> Self {
        Fault { place: None, why: Why::Payload(wrong.into()) }
    }

    /// The same fault, at a statement or rule.
    pub fn at(self, place: impl Into<String>) -> Self {
        Fault { place: Some(place.into()), ..self }
    }

    /// A word for programs: `PAYLOAD`, `CONSTRAINT`, `SQL`, or that of [`Why::Refused`].
    pub fn class(&self) -> &'static str {
        match &self.why {
            Why::Payload(_) => "PAYLOAD",
            Why::Sql(error)
                if error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) =>
            {
                "CONSTRAINT"
            }
            Why::Sql(_) => "SQL",
            Why::Refused { class, .. } => class,
        }
    }
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Self {
        Fault { place: None, why: error.into() }
    }
}

/// A query that callers may ask by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeclaredQuery {
    /// Its name.
    pub name: Cow<'static, str>,
    /// The names of its parameters, without the colon. A parameter that the
    /// caller leaves out is NULL.
    pub parameters: Cow<'static, [Cow<'static, str>]>,
    /// One read-only statement with `:name` parameters.
    pub sql: Cow<'static, str>,
    /// For people.
    pub description: Cow<'static, str>,
    /// Columns of its result that together tell rows apart and put them in order, so that it
    /// can be read page by page; none: it has one page.
    pub page_by: Cow<'static, [Cow<'static, str>]>,
}
