//! What a failed call means, judged in one place, and how long to wait. Pure.

use std::time::Duration;

use counterfoil::proto::refusal::{Reason, reason_of};
use tonic::{Code, Status};

/// Waits grow from here.
const FIRST_DELAY: Duration = Duration::from_millis(100);
/// Waits grow to here.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// What a failed call means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Whether it took effect is unknown, or it came at a bad moment: repeat it as it was.
    Retry,
    /// Something in the request itself is at fault; another request may succeed.
    Request,
    /// No request will succeed until somebody has acted.
    Stop,
}

/// Judges a failed call.
pub fn judge(status: &Status) -> Verdict {
    match status.code() {
        // Transport faults arrive under any of these, depending on who noticed.
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => Verdict::Retry,
        Code::InvalidArgument | Code::AlreadyExists | Code::Aborted | Code::OutOfRange => {
            Verdict::Request
        }
        Code::FailedPrecondition if reason_of(status) == Some(Reason::PartialDuplicate) => {
            Verdict::Request
        }
        _ => Verdict::Stop,
    }
}

/// How long to wait before attempt number `attempt` (the second attempt is 2).
/// `chance` in 0..1 spreads the waits of many callers over the whole range.
pub fn delay(attempt: u32, chance: f64) -> Duration {
    let doublings = attempt.saturating_sub(2).min(16);
    FIRST_DELAY.saturating_mul(1 << doublings).min(LONGEST_DELAY).mul_f64(chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::refusal::Refusal;

    use super::*;

    #[test]
    fn only_what_may_pass_by_itself_is_retried() {
        let said = |reason| Status::from(Refusal::new(reason, "why"));
        let cases = [
            (Status::unavailable("reset"), Verdict::Retry),
            (Status::unknown("reset"), Verdict::Retry),
            (Status::internal("h2"), Verdict::Retry),
            (Status::cancelled("timeout"), Verdict::Retry),
            (Status::deadline_exceeded("late"), Verdict::Retry),
            (said(Reason::ShuttingDown), Verdict::Retry),
            (said(Reason::InvalidField), Verdict::Request),
            (said(Reason::EventTooLarge), Verdict::Request),
            (said(Reason::BatchTooLarge), Verdict::Request),
            (said(Reason::KeyConflict), Verdict::Request),
            (said(Reason::PartialDuplicate), Verdict::Request),
            (said(Reason::StaleVersion), Verdict::Request),
            (said(Reason::CursorExpired), Verdict::Request),
            (said(Reason::LogHalted), Verdict::Stop),
            (said(Reason::LogFull), Verdict::Stop),
            (said(Reason::LogNotFound), Verdict::Stop),
            (said(Reason::Corrupt), Verdict::Stop),
            (Status::unimplemented("other"), Verdict::Stop),
            (Status::unauthenticated("who"), Verdict::Stop),
            (Status::permission_denied("no"), Verdict::Stop),
        ];
        for (status, verdict) in cases {
            assert_eq!(judge(&status), verdict, "{status:?}");
        }
    }

    #[test]
    fn waits_grow_to_a_cap_and_are_spread() {
        let cases = [(2, 1.0, 100), (3, 1.0, 200), (7, 1.0, 3200), (8, 1.0, 5000), (40, 1.0, 5000)];
        for (attempt, chance, millis) in cases {
            assert_eq!(delay(attempt, chance), Duration::from_millis(millis), "{attempt}");
        }
        assert_eq!(delay(8, 0.5), Duration::from_millis(2500));
        assert_eq!(delay(8, 0.0), Duration::ZERO);
    }
}
