//! What a receiver did with an event, and how it says so. Pure; knows nothing of
//! wire messages and of where it is kept.

use super::event::Sequence;

/// What was done with an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The effect was made.
    Applied,
    /// The projection has no handler for the type.
    Ignored,
    /// A business rule, or the key, said no.
    Rejected,
    /// The key had been seen with the same content.
    Duplicate,
    /// An operator set the event aside.
    Skipped,
}

impl Outcome {
    /// All of them, in the order of the wire's enum.
    pub const ALL: [Outcome; 5] = [
        Outcome::Applied,
        Outcome::Ignored,
        Outcome::Rejected,
        Outcome::Duplicate,
        Outcome::Skipped,
    ];

    /// The outcome of a word; none: there is none of that name.
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.as_str() == word)
    }

    /// The word, as tables and people have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Applied => "APPLIED",
            Outcome::Ignored => "IGNORED",
            Outcome::Rejected => "REJECTED",
            Outcome::Duplicate => "DUPLICATE",
            Outcome::Skipped => "SKIPPED",
        }
    }
}

/// What a receiver says of one event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    /// The event.
    pub sequence: Sequence,
    /// What was done.
    pub outcome: Outcome,
    /// Why; may be empty.
    pub reason: String,
    /// JSON that the projection gave; may be empty.
    pub result: String,
}

/// What a receiver says of all events up to one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// It starts after this; none: after what is known already.
    pub after: Option<Sequence>,
    /// Up to here it is complete: what is not among the outcomes, and was not
    /// before, was applied and gave no result.
    pub through: Sequence,
    /// In rising order, none above `through`.
    pub outcomes: Vec<Reported>,
}
