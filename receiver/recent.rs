//! What the last commits have brought, kept for the acks, so that the ledger need not be
//! read again for what has only just been written to it. Filled after a commit and never
//! before; what is not here any more, or was committed by a process before this one, is
//! read from the ledger. Knows nothing of SQLite and of the network.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::proto::{
    event::Sequence,
    limits::{
        MAX_ACK_OUTCOME_BYTES, MAX_ACK_OUTCOMES, MAX_UNREPORTED_BYTES, MAX_UNREPORTED_OUTCOMES,
    },
    outcome::{Report, Reported},
};

/// What came of the events of a range that ends with the last commit.
#[derive(Debug)]
pub struct Recent(Mutex<Window>);

#[derive(Debug)]
struct Window {
    /// Nothing is known here of this sequence and of those before it.
    after: Sequence,
    /// The last one that is committed. `after <= through`.
    through: Sequence,
    /// All in `after + 1..=through` but the plain APPLIED, in rising order.
    outcomes: VecDeque<Reported>,
    /// Bytes of their texts.
    bytes: usize,
}

impl Recent {
    /// Of a receiver that has committed up to here before it was started.
    pub fn after(committed: Sequence) -> Self {
        let outcomes = VecDeque::new();
        Recent(Mutex::new(Window { after: committed, through: committed, outcomes, bytes: 0 }))
    }

    /// Other content has taken the place of what was there; it is committed up to here.
    pub fn begin_anew(&self, committed: Sequence) {
        let outcomes = VecDeque::new();
        *self.window() = Window { after: committed, through: committed, outcomes, bytes: 0 };
    }

    /// A commit has moved the cursor from where the last one left it to `through`.
    /// `outcomes`: all it has brought but the plain APPLIED, in rising order.
    pub fn add(&self, through: Sequence, outcomes: Vec<Reported>) {
        let mut window = self.window();
        window.through = through;
        window.bytes += outcomes.iter().map(bytes).sum::<usize>();
        window.outcomes.extend(outcomes);
        while window.outcomes.len() > MAX_UNREPORTED_OUTCOMES || window.bytes > MAX_UNREPORTED_BYTES
        {
            let Some(oldest) = window.outcomes.pop_front() else { break };
            window.bytes -= bytes(&oldest);
            window.after = oldest.sequence;
        }
    }

    /// What there is to report of the sequences above `after`, up to `until` or as far as
    /// one Ack reaches. None: not all of them are known here.
    pub fn report(&self, after: Sequence, until: Sequence) -> Option<Report> {
        let window = self.window();
        if !(window.after..=window.through).contains(&after) {
            return None;
        }
        let mut report =
            Report { after: Some(after), through: until.min(window.through), outcomes: Vec::new() };
        let first = window.outcomes.partition_point(|told| told.sequence <= after);
        let mut room = MAX_ACK_OUTCOME_BYTES;
        for told in window.outcomes.range(first..) {
            if told.sequence > report.through {
                break;
            }
            if report.outcomes.len() == MAX_ACK_OUTCOMES || bytes(told) > room {
                report.through = told.sequence - 1;
                break;
            }
            room -= bytes(told);
            report.outcomes.push(told.clone());
        }
        Some(report)
    }

    fn window(&self) -> MutexGuard<'_, Window> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(told: &Reported) -> usize {
    told.reason.len() + told.result.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::{limits::MAX_RESULT_BYTES, outcome::Outcome};

    fn ignored(sequence: Sequence) -> Reported {
        let (reason, result) = (String::new(), String::new());
        Reported { sequence, outcome: Outcome::Ignored, reason, result }
    }

    /// The sequences that a report names, and up to where it speaks.
    fn told(
        recent: &Recent,
        after: Sequence,
        until: Sequence,
    ) -> Option<(Vec<Sequence>, Sequence)> {
        let Report { through, outcomes, .. } = recent.report(after, until)?;
        Some((outcomes.iter().map(|told| told.sequence).collect(), through))
    }

    #[test]
    fn what_was_committed_here_is_told_and_nothing_else() {
        let recent = Recent::after(9);
        assert_eq!(told(&recent, 9, 9), Some((vec![], 9)));
        recent.add(12, vec![ignored(10), ignored(12)]);
        recent.add(20, vec![]);
        recent.add(22, vec![ignored(21)]);
        assert_eq!(told(&recent, 9, 22), Some((vec![10, 12, 21], 22)));
        assert_eq!(told(&recent, 10, 20), Some((vec![12], 20)));
        assert_eq!(told(&recent, 12, 99), Some((vec![21], 22)), "no further than the commit");
        assert_eq!(told(&recent, 22, 22), Some((vec![], 22)));
        assert_eq!(told(&recent, 8, 22), None, "9 was committed before it was started");
        assert_eq!(told(&recent, 23, 30), None, "nobody has committed that");
    }

    #[test]
    fn nothing_is_known_of_what_was_installed() {
        let recent = Recent::after(-1);
        recent.add(9, vec![ignored(3)]);
        recent.begin_anew(5);
        assert_eq!(told(&recent, -1, 9), None);
        recent.add(7, vec![ignored(6)]);
        assert_eq!(told(&recent, 5, 9), Some((vec![6], 7)));
    }

    #[test]
    fn what_is_too_old_is_left_to_the_ledger() {
        let most = MAX_UNREPORTED_OUTCOMES as Sequence;
        let recent = Recent::after(-1);
        recent.add(most + 1, (0..=most + 1).map(ignored).collect());
        assert_eq!(told(&recent, 0, most), None);
        let (all, through) = told(&recent, 1, most).expect("still known");
        assert_eq!((all.first(), through), (Some(&2), MAX_ACK_OUTCOMES as Sequence + 1));

        let full =
            |sequence| Reported { result: "x".repeat(MAX_RESULT_BYTES), ..ignored(sequence) };
        let fitting = (MAX_UNREPORTED_BYTES / MAX_RESULT_BYTES) as Sequence;
        let recent = Recent::after(-1);
        recent.add(fitting, (0..=fitting).map(full).collect());
        assert_eq!((told(&recent, -1, 9), told(&recent, 0, 1)), (None, Some((vec![1], 1))));
    }

    #[test]
    fn a_report_fits_an_ack() {
        let most = MAX_ACK_OUTCOMES as Sequence;
        let recent = Recent::after(-1);
        recent.add(3 * most, (0..2 * most).map(ignored).collect());
        assert_eq!(told(&recent, -1, 3 * most), Some(((0..most).collect(), most - 1)));
        let (all, through) = told(&recent, most - 1, 3 * most).expect("known");
        assert_eq!((all.len() as Sequence, through), (most, 3 * most));

        let full =
            |sequence| Reported { result: "x".repeat(MAX_RESULT_BYTES), ..ignored(sequence) };
        let fitting = (MAX_ACK_OUTCOME_BYTES / MAX_RESULT_BYTES) as Sequence;
        let recent = Recent::after(-1);
        recent.add(99, (0..=99).map(full).collect());
        assert_eq!(told(&recent, -1, 99), Some(((0..fitting).collect(), fitting - 1)));
    }
}
