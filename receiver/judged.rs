//! What an event comes to by itself, found out before its turn: on its way in, while the apply
//! thread, which alone has the tables, is busy with those before it.

use super::values::Values;

/// What a projection has found out about one event.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The number of the projection that has: another one may take over before the turn comes.
    pub by: u64,
    /// The place of the handler that takes the event; none: no handler does, and none has to.
    pub place: Option<usize>,
    /// Its fields that the handler has named.
    pub values: Values,
}
