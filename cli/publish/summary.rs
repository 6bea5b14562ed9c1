//! What came of a publish, counted, and told to a person. Pure.

use std::{fmt, time::Duration};

use counterfoil::{
    client::{PublishError, Verdict, judge},
    proto::pb::{PublishOutcome, Receipt},
};
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
    /// Why nothing more was sent.
    pub stop: Option<Stop>,
    /// Requests that were sent once more.
    pub repeated: u64,
    /// Events that were sent under a key made here.
    pub made_keys: u64,
    /// The first refusals: line and why.
    shown: Vec<(u64, String)>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Why nothing more was sent, and what came of the lines that were under way.
#[derive(Debug)]
pub struct Stop {
    /// The line that was not accepted, as far as is known.
    pub line: u64,
    /// Why.
    pub error: PublishError,
    /// The lines after it.
    pub after: UnderWay,
}

/// What came of lines that were under way.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct UnderWay {
    /// Accepted.
    pub accepted: u64,
    /// Refused, for whatever reason.
    pub refused: u64,
    /// Sent, but no answer came.
    pub unanswered: u64,
    /// Not sent.
    pub not_sent: u64,
}

impl Summary {
    /// Notes what came of a line.
    pub fn note(&mut self, line: u64, answer: Result<Vec<Receipt>, PublishError>) {
        if let Some(stop) = &mut self.stop {
            stop.after.note(&answer);
        }
        match answer {
            Ok(receipts) => receipts.iter().for_each(|receipt| self.accept(receipt)),
            Err(PublishError::Refused(status)) if judge(&status) == Verdict::Request => {
                self.refuse(line, &status);
            }
            Err(error) => {
                // Sent without an answer: it may have been accepted.
                self.unanswered += u64::from(matches!(error, PublishError::Unanswered { .. }));
                self.stop.get_or_insert(Stop { line, error, after: UnderWay::default() });
            }
        }
    }

    fn accept(&mut self, receipt: &Receipt) {
        match receipt.outcome() {
            PublishOutcome::Duplicate => self.duplicate += 1,
            _ => self.appended += 1,
        }
    }

    fn refuse(&mut self, line: u64, status: &Status) {
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

impl fmt::Display for Stop {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "stopped at line {}", self.line)?;
        if let PublishError::Unanswered { attempts, .. } | PublishError::NotSent { attempts, .. } =
            &self.error
        {
            write!(to, " after {}", counted((*attempts).into(), "attempt"))?;
        }
        write!(to, ": {}{}", explain(self.error.status()), self.after)
    }
}

impl UnderWay {
    fn note(&mut self, answer: &Result<Vec<Receipt>, PublishError>) {
        let count = match answer {
            Ok(_) => &mut self.accepted,
            Err(PublishError::Refused(_)) => &mut self.refused,
            Err(PublishError::Unanswered { .. }) => &mut self.unanswered,
            Err(PublishError::NotSent { .. }) => &mut self.not_sent,
        };
        *count += 1;
    }
}

/// The end of a sentence; nothing where no line was under way.
impl fmt::Display for UnderWay {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnderWay { accepted, refused, unanswered, not_sent } = *self;
        let lines = accepted + refused + unanswered + not_sent;
        if lines == 0 {
            return Ok(());
        }
        write!(to, "; of {} under way after it, ", counted(lines, "line"))?;
        match (accepted, unanswered) {
            (0, 0) => write!(to, "none was accepted")?,
            (0, _) => write!(to, "none is known to be accepted")?,
            _ => write!(to, "{} accepted", grouped(accepted as i64))?,
        }
        let others =
            [(refused, "refused"), (unanswered, "without an answer"), (not_sent, "not sent")];
        for (count, what) in others.into_iter().filter(|(count, _)| *count > 0) {
            write!(to, ", {} {what}", grouped(count as i64))?;
        }
        Ok(())
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
    use counterfoil::proto::refusal::{Reason, Refusal};

    use super::*;

    fn refused(reason: Reason) -> Result<Vec<Receipt>, PublishError> {
        Err(PublishError::Refused(Refusal::new(reason, "no").into()))
    }

    fn accepted(outcome: PublishOutcome) -> Result<Vec<Receipt>, PublishError> {
        Ok(vec![Receipt { outcome: outcome.into(), ..Default::default() }])
    }

    #[test]
    fn refusals_are_shown_up_to_a_bound() {
        let mut summary = Summary { appended: 1000, ..Summary::default() };
        for line in 1..=25 {
            summary.note(line, refused(Reason::KeyConflict));
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
        assert!(summary.stop.is_none(), "each was at fault itself");
    }

    #[test]
    fn what_is_unknown_is_said() {
        let keyed = Summary { unanswered: 7, ..Summary::default() };
        assert!(keyed.to_string().contains("7 events may have been accepted"));
        assert!(keyed.to_string().contains("keys make that safe"));
        let made = Summary { made_keys: 3, ..keyed };
        assert!(made.to_string().contains("3 lines had no key of their own"));
    }

    #[test]
    fn a_log_that_takes_nothing_more_is_a_stop_and_lines_under_way_count_for_what_they_got() {
        for reason in [Reason::LogHalted, Reason::LogFull, Reason::KeysFull, Reason::LogNotFound] {
            let mut summary = Summary::default();
            summary.note(1, accepted(PublishOutcome::Appended));
            summary.note(2, refused(reason));
            summary.note(3, accepted(PublishOutcome::Duplicate));
            summary.note(4, refused(reason));
            summary.note(5, refused(Reason::InvalidField));
            assert_eq!((summary.appended, summary.duplicate, summary.refused), (1, 1, 1));
            assert_eq!(summary.unanswered, 0);
            let stop = summary.stop.expect("nothing more is sent").to_string();
            let expected = format!(
                "stopped at line 2: {}: no; of 3 lines under way after it, 1 accepted, 2 refused",
                reason.as_str()
            );
            assert_eq!(stop, expected);
        }
    }

    #[test]
    fn without_an_answer_it_stops_and_tells_what_was_sent_from_what_was_not() {
        let last = Status::unavailable("nobody listens");
        let mut summary = Summary::default();
        summary.note(7, Err(PublishError::Unanswered { attempts: 4, last: last.clone() }));
        assert_eq!(
            summary.stop.as_ref().expect("nothing more is sent").to_string(),
            "stopped at line 7 after 4 attempts: UNAVAILABLE: nobody listens"
        );
        summary.note(8, Err(PublishError::Unanswered { attempts: 4, last: last.clone() }));
        summary.note(9, Err(PublishError::NotSent { attempts: 4, last }));
        assert_eq!(summary.unanswered, 2);
        assert_eq!(
            summary.stop.expect("nothing more is sent").after.to_string(),
            "; of 2 lines under way after it, none is known to be accepted, 1 without an answer, \
             1 not sent"
        );
    }

    #[test]
    fn what_is_known_of_lines_under_way_is_said_and_no_more() {
        let (refused, not_sent) = (2, 1_000);
        let cases = [
            (UnderWay::default(), ""),
            (
                UnderWay { refused, not_sent, ..Default::default() },
                "; of 1,002 lines under way after it, none was accepted, 2 refused, 1,000 not sent",
            ),
            (
                UnderWay { accepted: 3, unanswered: 1, ..Default::default() },
                "; of 4 lines under way after it, 3 accepted, 1 without an answer",
            ),
        ];
        for (under_way, expected) in cases {
            assert_eq!(under_way.to_string(), expected);
        }
    }
}
