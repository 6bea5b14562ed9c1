//! What came of a publish, counted, and told to a person. Pure.

use std::{fmt, time::Duration};

use tonic::Status;

use crate::{
    failure::explain,
    numbers::{counted, grouped, rate},
};

/// Refusals shown; the others are counted.
const SHOWN: usize = 20;

/// What came of the events.
#[derive(Debug, Default)]
pub struct Summary {
    /// Appended to the log.
    pub appended: u64,
    /// Known already under the same key with the same content.
    pub duplicate: u64,
    /// Refused, each for itself.
    pub refused: u64,
    /// Sent, but no answer came: accepted or not, nobody knows.
    pub unanswered: u64,
    /// The line from which on nothing is known to have been accepted.
    pub stopped_at: Option<u64>,
    /// Requests that were sent once more.
    pub repeated: u64,
    /// Events that were sent under a key made here.
    pub made_keys: u64,
    /// The first refusals: line and why.
    shown: Vec<(u64, String)>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Summary {
    /// Notes a refusal.
    pub fn refuse(&mut self, line: u64, status: &Status) {
        self.refused += 1;
        if self.shown.len() < SHOWN {
            // It was refused alone: its place in that request means nothing to a reader of lines.
            let why = explain(status).replacen("events[0]: ", "", 1).replacen("events[0].", "", 1);
            self.shown.push((line, why));
        }
    }

    /// Events that were answered.
    pub fn answered(&self) -> u64 {
        self.appended + self.duplicate + self.refused
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, why) in &self.shown {
            writeln!(to, "line {line}: {why}")?;
        }
        if self.refused > self.shown.len() as u64 {
            let more = self.refused - self.shown.len() as u64;
            writeln!(to, "and {} more refused", grouped(more as i64))?;
        }
        let counts =
            [(self.appended, "appended"), (self.duplicate, "duplicate"), (self.refused, "refused")]
                .map(|(count, word)| format!("{} {word}", grouped(count as i64)));
        let seconds = self.elapsed.as_secs_f64();
        write!(to, "{}; {seconds:.1} s, {}", counts.join(", "), rate(self.answered(), seconds))?;
        if self.repeated > 0 {
            write!(to, "; {} repeated", counted(self.repeated, "request"))?;
        }
        if self.unanswered > 0 {
            let events = counted(self.unanswered, "event");
            write!(to, "\n{events} may have been accepted, but no answer came; ")?;
            if self.made_keys > 0 {
                let lines = counted(self.made_keys, "line");
                write!(
                    to,
                    "{lines} had no key of their own, and another run would publish them again under new ones"
                )?;
            } else {
                write!(to, "the same input may be sent again, its keys make that safe")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_shown_up_to_a_bound() {
        let mut summary = Summary { appended: 1000, ..Summary::default() };
        for line in 1..=25 {
            summary.refuse(line, &Status::invalid_argument("no"));
        }
        summary.elapsed = Duration::from_millis(500);
        let text = summary.to_string();
        assert!(text.contains("line 20: "), "{text}");
        assert!(!text.contains("line 21: "), "{text}");
        assert!(text.contains("and 5 more refused"), "{text}");
        assert!(
            text.ends_with("1,000 appended, 0 duplicate, 25 refused; 0.5 s, 2,050/s"),
            "{text}"
        );
    }

    #[test]
    fn what_is_unknown_is_said() {
        let keyed = Summary { unanswered: 7, ..Summary::default() };
        assert!(keyed.to_string().contains("7 events may have been accepted"));
        assert!(keyed.to_string().contains("keys make that safe"));
        let made = Summary { made_keys: 3, ..keyed };
        assert!(made.to_string().contains("3 lines had no key of their own"));
    }
}
