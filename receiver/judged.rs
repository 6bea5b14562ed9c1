//! What an event comes to by itself, found out before its turn: on its way in, while the apply
//! thread, which alone has the tables, is busy with those before it.

use super::values::Values;

/// What a projection file has found out about one event.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The number of the file as it was read: another one may take over before the turn comes.
    pub(super) by: u64,
    /// The place of the handler that takes the event; none: no handler does, and none has to.
    pub(super) place: Option<usize>,
    /// Its fields that the handler has named.
    pub(super) values: Values,
}

impl Judged {
    /// Its fields that the handler has named.
    pub fn values(&self) -> &Values {
        &self.values
    }
}
