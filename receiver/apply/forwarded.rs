//! What changes in the outbox once its events have been applied: some have been forwarded,
//! or a person has given one up. One attempt; whoever asks tries again.

use rusqlite::Connection;

use super::Apply;
use crate::{
    proto::{
        crash,
        event::Sequence,
        refusal::{Reason, Refusal},
    },
    receiver::store::outbox::{self, Forwarded},
};

impl Apply {
    /// Notes what has been forwarded, also after a halt: it is there, whatever has happened
    /// here since.
    pub(super) fn note_forwarded(&mut self, forwarded: &[Forwarded]) -> Result<(), String> {
        self.change_outbox(|tables| outbox::mark(tables, forwarded))?;
        crash::point(crash::RECEIVER_FORWARD_AFTER_MARK);
        Ok(())
    }

    /// Notes that one will not be forwarded.
    pub(super) fn give_up(
        &mut self,
        sequence: Sequence,
        number: i64,
        reason: &str,
    ) -> Result<(), Refusal> {
        let wrong = |message: String| Err(Refusal::new(Reason::WrongState, message));
        let give_up = |tables: &Connection| {
            outbox::give_up(tables, sequence, number, reason).map(usize::from)
        };
        match self.change_outbox(give_up) {
            Ok(0) => wrong("it does not wait any more".to_owned()),
            Ok(_) => {
                tracing::warn!(sequence, number, reason, "a follow-up event has been given up");
                self.board.outbox().notify_one();
                Ok(())
            }
            Err(why) => wrong(format!("it could not be noted: {why}")),
        }
    }

    /// One transaction after which so many fewer wait.
    fn change_outbox(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<usize>,
    ) -> Result<usize, String> {
        self.fit_for(true)?;
        let fewer = self.writer.change(change).map_err(|failed| self.failed(failed))?;
        self.board.note(|status| status.outbox_pending -= fewer as i64);
        self.idle = false;
        if let Err(error) = self.writer.after_commit() {
            self.checkpoint_failed(&error);
        }
        Ok(fewer)
    }

    /// Sees how many follow-up events wait.
    pub(super) fn look_at_outbox(&mut self) {
        if let Some(pending) = self.writer.outbox_pending() {
            self.board.note(|status| status.outbox_pending = pending);
            self.board.outbox().notify_one();
        }
    }
}
