//! What one event may cost: a bound on the steps that SQLite takes for it, over all of its
//! statements. Steps and not time, so that an event that could be applied once can be applied
//! on any machine.

use std::sync::atomic::Ordering;

use rusqlite::{Connection, ErrorCode};

use super::{Guard, Mode, State};
use crate::proto::limits::MAX_EVENT_STEPS;

/// Steps between two looks at the count. So many take some tens of microseconds, in which
/// asking is nothing.
const STEPS_A_LOOK: u16 = 10_000;

impl Guard {
    /// Bounds what a handler may do for one event, on the connection that this guards.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn bound_steps(&self, connection: &mut Connection) -> rusqlite::Result<()> {
        let state = self.0.clone();
        connection.progress_handler(STEPS_A_LOOK.into(), Some(move || state.look()))
    }

    /// Whether an error of a handler is that it took too many steps.
    pub fn took_too_many_steps(&self, error: &rusqlite::Error) -> bool {
        error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) && self.0.is_over()
    }
}

impl State {
    /// Counts; `true` ends the statement.
    fn look(&self) -> bool {
        if self.mode() != Mode::Handler {
            return false;
        }
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.is_over()
    }

    fn is_over(&self) -> bool {
        self.looks.load(Ordering::Relaxed) >= MAX_EVENT_STEPS / u64::from(STEPS_A_LOOK)
    }
}
