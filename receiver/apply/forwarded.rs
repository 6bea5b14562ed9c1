//! What changes in the outbox once its events have been applied: some have been forwarded,
//! the other log has lost some, or a person has given one up. One attempt; whoever asks tries again.

use rusqlite::Connection;

use super::Apply;
use crate::{
    proto::{
        crash,
        event::Sequence,
        refusal::{Reason, Refusal},
    },
    receiver::store::{
        marks::{self, Place},
        outbox::{self, Forwarded},
    },
};

/// What has come of noting what was forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Noted {
    /// All of it is noted.
    All,
    /// Nothing: another follow-up event is noted at a place that one of these has. The other
    /// log has lost what it had from there on, and has given its numbers to others.
    Taken(Place),
}

impl Apply {
    /// Notes what has been forwarded, also after a halt: it is there, whatever has happened
    /// here since. Nothing of it where one has the place that another one is noted at.
    pub(super) fn note_forwarded(&mut self, forwarded: &[Forwarded]) -> Result<Noted, String> {
        let noted = self.change_outbox(|tables| match marks::taken(tables, forwarded)? {
            Some(taken) => Ok(Err(taken)),
            None => outbox::mark(tables, forwarded).map(Ok),
        })?;
        match noted {
            Ok(marked) => self.fewer_wait(marked, forwarded.len()),
            Err(taken) => return Ok(Noted::Taken(taken)),
        }
        crash::point(crash::RECEIVER_FORWARD_AFTER_MARK);
        Ok(Noted::All)
    }

    /// Lets those wait again that the other log has lost. How many those are.
    pub(super) fn note_lost(&mut self, lost: &Place) -> Result<usize, String> {
        let again = self.change_outbox(|tables| marks::set_back(tables, lost));
        // Also where nobody knows what has come of it: a rebuild's copy has other marks then.
        self.board.note_outbox_rewritten();
        let again = again?;
        self.look_at_outbox();
        Ok(again)
    }

    /// Notes that one will not be forwarded.
    pub(super) fn give_up(
        &mut self,
        sequence: Sequence,
        number: i64,
        reason: &str,
    ) -> Result<(), Refusal> {
        let wrong = |message: String| Err(Refusal::new(Reason::WrongState, message));
        match self.change_outbox(|tables| outbox::give_up(tables, sequence, number, reason)) {
            Ok(false) => {
                self.fewer_wait(0, 1);
                wrong("it does not wait any more".to_owned())
            }
            Ok(true) => {
                tracing::warn!(sequence, number, reason, "a follow-up event has been given up");
                self.fewer_wait(1, 1);
                self.board.outbox().notify_one();
                Ok(())
            }
            Err(why) => wrong(format!("it could not be noted: {why}")),
        }
    }

    /// So many fewer wait. Where they are not as many as they should be, an attempt before,
    /// of which nobody knew what came of it, has come through: they are counted anew.
    fn fewer_wait(&mut self, fewer: usize, expected: usize) {
        match fewer == expected {
            true => self.board.note(|status| status.outbox_pending -= fewer as i64),
            false => self.look_at_outbox(),
        }
    }

    /// One transaction.
    fn change_outbox<T>(
        &mut self,
        change: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, String> {
        self.fit_for(true)?;
        let changed = self.writer.change(change).map_err(|failed| self.failed(failed))?;
        self.idle = false;
        if let Err(error) = self.writer.after_commit() {
            self.checkpoint_failed(&error);
        }
        Ok(changed)
    }

    /// Sees how many follow-up events wait.
    pub(super) fn look_at_outbox(&mut self) {
        if let Some(pending) = self.writer.outbox_pending() {
            self.board.note(|status| status.outbox_pending = pending);
            self.board.outbox().notify_one();
        }
    }
}
