//! What a projection file says, checked: every statement can be prepared, every name is
//! known. Pure values, with the places that people find them by.

use crate::receiver::projection::{DeclaredQuery, Migration, Upgrade};

/// A whole file.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Its name.
    pub name: String,
    /// Its version, 1 or more.
    pub version: i64,
    /// What becomes of an event that no handler takes.
    pub on_unknown_type: OnUnknownType,
    /// What a database that an earlier version has filled gets.
    pub upgrade: Upgrade,
    /// How its tables come about.
    pub migrations: Vec<Migration>,
    /// What it does with events, in the file's order.
    pub handlers: Vec<Handler>,
    /// What callers may ask.
    pub queries: Vec<DeclaredQuery>,
    /// The text of the file.
    pub source: String,
}

/// What becomes of an event that no handler takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnUnknownType {
    /// A ledger row IGNORED.
    #[default]
    Ignore,
    /// A fault.
    Halt,
}

/// What is done with events of some types.
#[derive(Debug, Clone)]
pub struct Handler {
    /// Where it stands: `on[1]`.
    pub place: String,
    /// The types it takes. No other handler takes any of them as exactly as this one.
    pub types: Vec<TypePattern>,
    /// What the payload has to have; otherwise it is a fault.
    pub require: Vec<Requirement>,
    /// Business rules, asked in this order before anything is written.
    pub reject_unless: Vec<Rule>,
    /// What is run, in this order.
    pub sql: Vec<Effect>,
    /// Gives the ledger's result: its one row as a JSON object.
    pub result: Option<Statement>,
    /// What follows from the event: each row of its query is an event.
    pub emit: Vec<Emission>,
}

/// Types that a handler takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TypePattern {
    /// This one.
    Exact(String),
    /// All that begin so; the empty prefix is all types. Of two that match, the longer
    /// prefix is nearer, and an exact one is nearer than any prefix.
    Prefix(String),
}

/// One thing that a payload has to have.
#[derive(Debug, Clone, PartialEq)]
pub struct Requirement {
    /// Where it stands: `on[1].require[0]`.
    pub place: String,
    /// A JSON pointer (RFC 6901): `/lines/0/item`.
    pub field: String,
    /// What stands there; none: anything, also null.
    pub kind: Option<FieldKind>,
    /// The parameter, without the colon, by which the handler's statements are given what
    /// stands there. Only what has one of the kinds that [`FieldKind::is_value`] says.
    pub name: Option<String>,
}

/// What stands at a JSON pointer.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldKind {
    /// A whole number that 64 bits hold, written without fraction and exponent.
    Integer {
        /// The smallest that is allowed.
        min: i64,
        /// The largest that is allowed.
        max: i64,
    },
    /// Any number.
    Number {
        /// The smallest that is allowed.
        min: f64,
        /// The largest that is allowed.
        max: f64,
    },
    /// Text, its length in bytes.
    Text {
        /// The shortest that is allowed.
        min: usize,
        /// The longest that is allowed.
        max: usize,
    },
    /// True or false.
    Boolean,
    /// A list, its length in items.
    List {
        /// The shortest that is allowed.
        min: usize,
        /// The longest that is allowed.
        max: usize,
    },
    /// An object.
    Object,
}

impl FieldKind {
    /// Whether it is one value, so that SQL can be given it.
    pub fn is_value(&self) -> bool {
        !matches!(self, FieldKind::List { .. } | FieldKind::Object)
    }
}

/// A business rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// Must return a row, or the event is rejected.
    pub row: Statement,
    /// The reason then, as a word.
    pub reason: String,
    /// Gives the ledger's result then: its one row, if any, as a JSON object.
    pub result: Option<Statement>,
}

/// A statement that writes.
#[derive(Debug, Clone)]
pub struct Effect {
    /// What is run.
    pub statement: Statement,
    /// How many rows it has to change; none: any number. More or fewer are a fault.
    pub expect_rows: Option<u64>,
}

/// Events that follow from one.
#[derive(Debug, Clone)]
pub struct Emission {
    /// Names this kind of follow-up; part of the derived key.
    pub name: String,
    /// The type, unless a row says another.
    pub event_type: Option<String>,
    /// Its columns are those of a follow-up, [`EMISSION_COLUMNS`].
    pub query: Statement,
}

/// What the query of an emission may give: `data` is JSON text (or a blob), times are text
/// as RFC 3339 has it.
pub const EMISSION_COLUMNS: [&str; 7] =
    ["type", "subject", "data", "content_type", "time", "first_attempt_time", "expected_version"];

/// One SQL statement of a handler.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Where it stands: `on[1].sql[0]`.
    pub place: String,
    /// One statement, without the semicolon. Prepared by where it stands in memory, so it
    /// is not moved while the projection lives.
    pub text: String,
    /// What is bound: SQLite's index of each parameter, and what it stands for.
    pub parameters: Vec<(usize, Parameter)>,
}

/// What a statement of a handler sees of the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// `:data`, the payload as JSON text; NULL where it is no JSON.
    Data,
    /// `:raw`, the payload's bytes as a blob.
    Raw,
    /// `:type`.
    Type,
    /// `:subject`.
    Subject,
    /// `:time`, as RFC 3339 text; NULL where the producer gave none.
    Time,
    /// `:accept_time`, as RFC 3339 text.
    AcceptTime,
    /// `:sequence`.
    Sequence,
    /// `:subject_version`.
    SubjectVersion,
    /// `:key`.
    Key,
    /// `:fingerprint`, 32 bytes.
    Fingerprint,
    /// `:attributes`, a JSON object.
    Attributes,
    /// A field of the payload that the handler's requirements have named: the one so many
    /// places from the first that has a name.
    Field(usize),
}

impl Parameter {
    /// Each that every event has, with its name, colon included.
    pub const ALL: [(&str, Parameter); 11] = [
        (":data", Parameter::Data),
        (":raw", Parameter::Raw),
        (":type", Parameter::Type),
        (":subject", Parameter::Subject),
        (":time", Parameter::Time),
        (":accept_time", Parameter::AcceptTime),
        (":sequence", Parameter::Sequence),
        (":subject_version", Parameter::SubjectVersion),
        (":key", Parameter::Key),
        (":fingerprint", Parameter::Fingerprint),
        (":attributes", Parameter::Attributes),
    ];

    /// The parameter of a name, colon included, that every event has.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|(_, parameter)| *parameter)
    }
}
