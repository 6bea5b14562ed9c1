//! What a failed call means to whoever calls for one request of many (publishes,
//! or looks): the one place of the client. Pure. What ends a receiver's Replay is
//! judged by the receiver: nearly every refusal concerns its cursor, and stops it.

use std::time::Duration;

use tonic::{Code, Status};

use crate::proto::{
    backoff::{CALL_BASE, backoff},
    refusal::{Reason, reason_of},
};

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
        Code::FailedPrecondition
            if matches!(reason_of(status), Some(Reason::PartialDuplicate | Reason::KeyExpired)) =>
        {
            Verdict::Request
        }
        _ => Verdict::Stop,
    }
}

/// Whether a stream that ended so says that another one would be of no use to
/// anybody. All else is worth another attempt: what HTTP/2, proxies and decoders say
/// comes under nearly any code.
pub fn is_final(ended: &Status) -> bool {
    match reason_of(ended) {
        Some(_) => judge(ended) == Verdict::Stop,
        None => {
            matches!(
                ended.code(),
                Code::Unimplemented | Code::Unauthenticated | Code::PermissionDenied
            )
        }
    }
}

/// How long to wait before attempt number `attempt` (the second attempt is 2).
/// `chance` in 0..1 spreads the waits of many callers over the whole range.
pub fn delay(attempt: u32, chance: f64) -> Duration {
    backoff(attempt.saturating_sub(1), CALL_BASE, chance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::refusal::Refusal;

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
            (said(Reason::KeyExpired), Verdict::Request),
            (said(Reason::CursorExpired), Verdict::Request),
            (said(Reason::LogHalted), Verdict::Stop),
            (said(Reason::LogSuspect), Verdict::Stop),
            (said(Reason::LogFull), Verdict::Stop),
            (said(Reason::KeysFull), Verdict::Stop),
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
    fn a_stream_ends_for_good_only_where_a_service_says_so() {
        let said = |reason| Status::from(Refusal::new(reason, "why"));
        let cases = [
            (Status::unavailable("reset"), false),
            (Status::resource_exhausted("h2: ENHANCE_YOUR_CALM"), false),
            (Status::out_of_range("an answer too large to decode"), false),
            (Status::not_found("a proxy without a route"), false),
            (said(Reason::ShuttingDown), false),
            (said(Reason::LogUnreadable), false),
            (said(Reason::LogHalted), true),
            (Status::unimplemented("no streams"), true),
            (Status::unauthenticated("who"), true),
            (Status::permission_denied("no"), true),
        ];
        for (status, expected) in cases {
            assert_eq!(is_final(&status), expected, "{status:?}");
        }
    }

    #[test]
    fn the_wait_before_the_second_attempt_is_the_shortest() {
        let waits = [2, 3, 7, 8, 40].map(|attempt| delay(attempt, 1.0).as_millis());
        assert_eq!(waits, [100, 200, 3_200, 5_000, 5_000]);
    }
}
