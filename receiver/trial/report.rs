//! What came of a trial, for people.

use std::{collections::BTreeMap, fmt};

use crate::{
    proto::{
        event::{Event, Sequence},
        outcome::Outcome,
    },
    receiver::transaction::{Committed, EventFault},
};

/// Failures that are shown one by one.
const SHOWN: usize = 10;

/// What came of the events.
#[derive(Debug, Default)]
pub struct Report {
    /// What they were run against, in words.
    pub against: String,
    /// The first one.
    pub first: Sequence,
    /// The one behind the last.
    pub end: Sequence,
    /// By outcome, in the order of [`Outcome::ALL`].
    outcomes: [i64; Outcome::ALL.len()],
    /// Those that are rejected, by reason.
    rejected: BTreeMap<String, i64>,
    failed: i64,
    /// The first ones that fail, a line each.
    failures: Vec<String>,
}

impl Report {
    /// Of what is run against this.
    pub(super) fn of(against: String) -> Self {
        Report { against, ..Report::default() }
    }

    /// A commit has come through.
    pub(super) fn count(&mut self, committed: &Committed) {
        for (sum, more) in self.outcomes.iter_mut().zip(committed.outcomes) {
            *sum += more;
        }
        for told in committed.told.iter().filter(|told| told.outcome == Outcome::Rejected) {
            *self.rejected.entry(told.reason.clone()).or_default() += 1;
        }
    }

    /// An event has failed.
    pub(super) fn fail(&mut self, event: &Event, why: &EventFault) {
        self.failed += 1;
        if self.failures.len() < SHOWN {
            let (event_type, subject) = (&event.intent.event_type, &event.intent.subject);
            self.failures.push(format!(
                "event {} ({event_type}, subject {subject:?}): {}",
                event.sequence,
                why.noted()
            ));
        }
    }

    /// Whether no event would fail.
    pub fn is_sound(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let events = self.end - self.first;
        if events <= 0 {
            write!(out, "no events to run {}", self.against)?;
            return match self.first {
                ..=0 => Ok(()),
                _ => write!(out, ": it has all of them; --from N runs those from N on again"),
            };
        }
        let of = |outcome: Outcome| self.outcomes[outcome as usize];
        writeln!(out, "events {} to {} {}", self.first, self.end - 1, self.against)?;
        write!(
            out,
            "{events} {}: {} would be applied, {} ignored, {} rejected",
            if events == 1 { "event" } else { "events" },
            of(Outcome::Applied),
            of(Outcome::Ignored),
            of(Outcome::Rejected)
        )?;
        if !self.rejected.is_empty() {
            let reasons: Vec<_> =
                self.rejected.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
            write!(out, " ({})", reasons.join(", "))?;
        }
        if of(Outcome::Duplicate) > 0 {
            write!(out, ", {} duplicates", of(Outcome::Duplicate))?;
        }
        write!(out, ", {} would fail", self.failed)?;
        for failure in &self.failures {
            write!(out, "\n  {failure}")?;
        }
        let more = self.failed - self.failures.len() as i64;
        if more > 0 {
            write!(out, "\n  and {more} more")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::outcome::Reported,
        receiver::{projection::Fault, testing::event},
    };

    #[test]
    fn what_came_of_them_in_words() {
        let mut report =
            Report { against: "against a copy".to_owned(), first: 3, end: 20, ..Report::default() };
        let rejected = |sequence, reason: &str| Reported {
            sequence,
            outcome: Outcome::Rejected,
            reason: reason.to_owned(),
            result: String::new(),
        };
        let mut outcomes = [0; Outcome::ALL.len()];
        outcomes[Outcome::Applied as usize] = 2;
        outcomes[Outcome::Rejected as usize] = 3;
        report.count(&Committed {
            outcomes,
            told: vec![rejected(3, "too_late"), rejected(4, "full"), rejected(5, "full")],
            ..Committed::default()
        });
        assert!(report.is_sound());
        for sequence in 8..20 {
            let wrong = EventFault::Projection(Fault::payload("delta: is missing").at("on[0]"));
            report.fail(&event(sequence, "k", "stock.adjusted", "a \"b\"", "{}"), &wrong);
        }
        assert!(!report.is_sound());
        let said = report.to_string();
        let begins = "events 3 to 19 against a copy\n17 events: 2 would be applied, 0 ignored, 3 \
                      rejected (2 full, 1 too_late), 12 would fail\n  event 8 (stock.adjusted, \
                      subject \"a \\\"b\\\"\"): PAYLOAD: on[0]: delta: is missing\n";
        assert!(said.starts_with(begins), "{said}");
        assert!(said.ends_with("\n  and 2 more"), "{said}");
        let none = Report { first: 3, end: 3, ..report };
        let said = none.to_string();
        assert!(said.starts_with("no events to run against a copy: "), "{said}");
    }
}
