//! The end of a rebuild on the apply thread: it waits at one place until the rebuilt
//! database has come there too, and puts it in the place of its own.

use std::{fmt, path::PathBuf, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{Apply, EVENT_FAILED};
use crate::{
    proto::{chain::Cursor, crash},
    receiver::{
        choose::{Standing, standing},
        current::Serving,
    },
};

/// So long the live one is held at most before the rebuilt one is handed over; then it goes
/// on, and is held again later.
const LONGEST_HOLD: Duration = Duration::from_secs(10);

/// Asks the apply thread to wait at what it has committed.
#[derive(Debug)]
pub struct Hold {
    /// Answered with that; dropped where the database cannot be replaced now.
    pub held: oneshot::Sender<Option<Cursor>>,
    /// What takes its place. Dropped, the thread goes on.
    pub handed: oneshot::Receiver<TakeOver>,
}

/// A rebuilt database, whole and in one file.
pub struct TakeOver {
    /// The file.
    pub staged: PathBuf,
    /// The cursor in it: that at which the thread waits, or further on with the same history.
    pub brings: Option<Cursor>,
    /// The version of the projection that goes on from it.
    pub successor: Serving,
    /// Answered once it has taken over, or with why not.
    pub done: oneshot::Sender<Result<(), String>>,
}

impl fmt::Debug for TakeOver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TakeOver").field("staged", &self.staged).finish_non_exhaustive()
    }
}

impl Apply {
    /// Waits where it is, for a bounded time, and lets what is handed over take over.
    pub(super) fn hold(&mut self, hold: Hold) {
        let Hold { held, handed } = hold;
        // The new version may be what an event waits for; of all else it mends nothing.
        let halted = self.halted && self.board.halted_for() != Some(EVENT_FAILED);
        if self.may_go_on().is_err() || halted || self.writer.ready().is_err() {
            return;
        }
        if held.send(self.writer.committed()).is_err() {
            return;
        }
        let ending = self.ending.clone();
        let handed = async {
            tokio::select! {
                handed = timeout(LONGEST_HOLD, handed) => handed.ok().and_then(Result::ok),
                () = ending.cancelled() => None,
            }
        };
        let Some(take_over) = self.runtime.block_on(handed) else { return };
        let TakeOver { staged, brings, successor, done } = take_over;
        let over = self.take_over(&staged, brings, successor);
        let _ = done.send(over); // nobody waits any more: it is there all the same
    }

    fn take_over(
        &mut self,
        staged: &std::path::Path,
        brings: Option<Cursor>,
        successor: Serving,
    ) -> Result<(), String> {
        let ours = self.writer.committed();
        if standing(ours.as_ref(), brings.as_ref()) == Standing::Behind {
            return Err("what was rebuilt is older than the live database".to_owned());
        }
        crash::point(crash::RECEIVER_REBUILD_BEFORE_SWAP);
        let version = successor.projection.version();
        let ending = self.ending.clone();
        let go_on = move || !ending.is_cancelled();
        let done = self.writer.take_over(staged, brings, successor, &go_on);
        let done = match done {
            Ok(done) => done,
            Err(failed) => {
                let why = self.failed(failed);
                // It may have come through all the same: then it has.
                if self.may_go_on().is_err() || self.writer.ready().is_err() {
                    return Err(why);
                }
                if self.writer.current().projection().version() != version {
                    return Err(why);
                }
                true
            }
        };
        if !done {
            return Err("the receiver is ending".to_owned());
        }
        crash::point(crash::RECEIVER_REBUILD_AFTER_SWAP);
        self.stuck = None;
        (self.refused, self.gaps, self.idle) = (None, 0, false);
        // What it could not apply is the new version's to judge.
        if self.halted && self.board.halted_for() == Some(EVENT_FAILED) {
            self.go_on();
        }
        // First: who sees that it has taken over sees what it has brought, too.
        self.look_at_ledger();
        self.look_at_outbox();
        self.look_at_skipped();
        self.board.note_taken_over(brings);
        tracing::info!(version, "the rebuilt database has taken over");
        Ok(())
    }
}
