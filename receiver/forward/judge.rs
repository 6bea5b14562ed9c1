//! What a failed attempt to forward means, and how many are sent together. Pure.

use crate::{
    client::PublishError,
    proto::{limits::MAX_BATCH_EVENTS, refusal::Reason},
};

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// One of several is at fault, or there is no room for all: send fewer together.
    Fewer,
    /// It may pass by itself, or somebody mends it over there: try again after a while.
    Again,
    /// The publisher will never take this one: a person has to decide.
    Stop,
}

/// Judges a failed attempt at so many follow-up events.
///
/// All that is not listed is tried again: it concerns the way or the log, and once that is
/// mended the same events are taken. Nothing goes past the event that waits, or they would
/// lose their order.
pub fn judge(error: &PublishError, events: usize) -> Verdict {
    let PublishError::Refused(_) = error else { return Verdict::Again };
    if events > 1 {
        return Verdict::Fewer;
    }
    match error.reason() {
        Some(
            Reason::InvalidField
            | Reason::EventTooLarge
            | Reason::BatchTooLarge
            | Reason::KeyConflict
            | Reason::KeyExpired
            | Reason::StaleVersion,
        ) => Verdict::Stop,
        _ => Verdict::Again,
    }
}

/// How many are sent together: as many as may be, and after a refusal half as many, until
/// the one at fault is alone; then twice as many each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace(usize);

impl Pace {
    /// At the beginning.
    pub const FULL: Pace = Pace(MAX_BATCH_EVENTS);

    /// At most so many.
    pub fn most(self) -> usize {
        self.0
    }

    /// After so many have been taken.
    pub fn after_success(self) -> Pace {
        Pace((self.0 * 2).min(MAX_BATCH_EVENTS))
    }

    /// After so many have been refused together.
    pub fn after_refusal(self, of: usize) -> Pace {
        Pace((of / 2).max(1))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Status;

    use super::*;
    use crate::proto::refusal::Refusal;

    #[test]
    fn only_what_concerns_the_event_itself_stops() {
        let refused = |reason| PublishError::Refused(Refusal::new(reason, "why").into());
        let lost = Status::unavailable("reset");
        let cases = [
            (refused(Reason::KeyConflict), Verdict::Stop),
            (refused(Reason::KeyExpired), Verdict::Stop),
            (refused(Reason::InvalidField), Verdict::Stop),
            (refused(Reason::EventTooLarge), Verdict::Stop),
            (refused(Reason::StaleVersion), Verdict::Stop),
            (refused(Reason::LogFull), Verdict::Again),
            (refused(Reason::KeysFull), Verdict::Again),
            (refused(Reason::LogHalted), Verdict::Again),
            (refused(Reason::LogSuspect), Verdict::Again),
            (refused(Reason::LogNotFound), Verdict::Again),
            (refused(Reason::StreamsFull), Verdict::Again),
            (refused(Reason::PartialDuplicate), Verdict::Again),
            (PublishError::Refused(Status::permission_denied("no")), Verdict::Again),
            (PublishError::Unanswered { attempts: 1, last: lost.clone() }, Verdict::Again),
            (PublishError::NotSent { attempts: 1, last: lost }, Verdict::Again),
        ];
        for (error, verdict) in cases {
            assert_eq!(judge(&error, 1), verdict, "{error:?}");
            let together = match error {
                PublishError::Refused(_) => Verdict::Fewer,
                _ => Verdict::Again,
            };
            assert_eq!(judge(&error, 2), together, "{error:?}");
        }
    }

    #[test]
    fn the_one_at_fault_is_soon_alone() {
        let (mut pace, mut attempts) = (Pace::FULL, 0);
        while pace.most() > 1 {
            pace = pace.after_refusal(pace.most());
            attempts += 1;
        }
        assert_eq!(attempts, 9);
        assert_eq!(pace.after_refusal(1).most(), 1);
        let grown = (0..10).fold(pace, |pace, _| pace.after_success());
        assert_eq!(grown, Pace::FULL);
    }
}
