//! When the apply thread prunes the ledger: while nothing waits to be applied, enough
//! rows at a time to be worth a sync; in quiet times whatever may go; under load that
//! does not end, once very many may.

use std::time::{Duration, Instant, SystemTime};

use super::{Apply, Stop, store_changed};
use crate::{
    proto::{
        event::{Sequence, Time},
        limits::{MAX_PRUNED_ROWS, PRESSING_ROWS},
    },
    receiver::{
        pruning::Keep,
        store::{
            prune::Bound,
            trouble::{self, Trouble},
        },
        writer::Failed,
    },
};

/// Rows that are only too young are looked at again after this part of the time that they
/// are kept, within these bounds.
const LOOKS: u32 = 8;
const SHORTEST_LOOK: Duration = Duration::from_millis(200);
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// What the thread remembers between two looks.
pub(super) struct Pruning {
    keep: Keep,
    /// The ledger's first row, as was seen last.
    from: Sequence,
    /// Not before then.
    next_look: Instant,
}

impl Pruning {
    pub(super) fn new(keep: Keep) -> Self {
        Pruning { keep, from: 0, next_look: Instant::now() }
    }

    /// Whether rows are ever pruned.
    pub(super) fn is_wanted(&self) -> bool {
        self.keep != Keep::All
    }
}

impl Apply {
    /// Sees where the ledger begins, and how many follow-up events wait: another database may
    /// have come into the place of the one before.
    pub(super) fn look_at_ledger(&mut self) {
        self.look_at_outbox();
        let Some(from) = self.writer.ledger_from() else { return };
        self.pruning.from = from;
        self.board.note(|status| status.ledger_from = from);
        self.look_at_skipped();
    }

    /// Nothing waits to be applied now. `true`: something was pruned.
    pub(super) fn prune_between_groups(&mut self) -> bool {
        self.prune(MAX_PRUNED_ROWS as Sequence)
    }

    /// Nothing has come for a while. `true`: something was pruned.
    pub(super) fn prune_in_quiet(&mut self) -> bool {
        self.prune(1)
    }

    /// More waits to be applied.
    pub(super) fn prune_under_load(&mut self) {
        self.prune(PRESSING_ROWS);
    }

    /// One transaction, if there are so many rows that may go.
    fn prune(&mut self, least: Sequence) -> bool {
        if self.halted || self.may_go_on().is_err() || self.pruning.next_look > Instant::now() {
            return false;
        }
        let now_ms = Time::from_system(SystemTime::now()).unix_millis();
        let committed = self.writer.committed().map_or(-1, |cursor| cursor.sequence);
        let Pruning { keep, from, .. } = self.pruning;
        let bound = self.board.heard().bound(keep, from, committed, now_ms);
        let Some(bound) = bound.filter(|bound| bound.below - from >= least) else {
            return false;
        };
        self.prune_to(bound)
    }

    fn prune_to(&mut self, bound: Bound) -> bool {
        let failed = match self.writer.prune(bound) {
            Ok(Some(baseline)) => {
                tracing::debug!(from = baseline.from, "ledger rows were pruned");
                self.pruning.from = baseline.from;
                self.board.note(|status| status.ledger_from = baseline.from);
                self.idle = false;
                if let Err(error) = self.writer.after_commit() {
                    self.checkpoint_failed(&error);
                }
                return true;
            }
            Ok(None) => {
                self.wait_for_age();
                return false;
            }
            Err(failed) => failed,
        };
        match failed {
            Failed::Changed(why) => self.stop(store_changed(&why)),
            Failed::Disk(error) => self.stop(Stop::Latch(error.to_string())),
            Failed::Store(error) if trouble::judge(&error) == Trouble::Broken => {
                self.stop(Stop::Latch(trouble::said(&error)));
            }
            // There will be another time: applying does not wait for it.
            failed => {
                tracing::debug!(?failed, "the ledger could not be pruned yet");
                self.pruning.next_look = Instant::now() + LONGEST_LOOK;
            }
        }
        false
    }

    /// Nothing may go although it is not needed any more: it is too young.
    fn wait_for_age(&mut self) {
        let age = match self.pruning.keep {
            Keep::For(time) => time / LOOKS,
            Keep::All | Keep::Retained => Duration::ZERO,
        };
        self.pruning.next_look = Instant::now() + age.clamp(SHORTEST_LOOK, LONGEST_LOOK);
    }
}
