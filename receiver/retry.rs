//! What a failed call means to the receiver: try again after a while, or stop and
//! say why. The one place of the receiver that judges it; a client that publishes
//! judges by other rules, since a refusal there concerns one request of many. Pure:
//! the attempt's number and the random number are handed in.

use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::proto::{
    backoff::{CALL_BASE, CAP, backoff},
    refusal::{Reason, reason_of},
};

/// What a failed call means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this delay.
    Retry(Duration),
    /// Trying again cannot help.
    Stop {
        /// The reason in `ErrorInfo`, or a word for the code.
        reason: &'static str,
        /// One sentence.
        message: String,
    },
}

/// Judges a failed call. `attempt` counts from 1, `limit` is the number of
/// attempts allowed, `random` lies in 0..1.
///
/// Everything is retried except what is listed here: transport faults arrive
/// under many codes (Unknown, Internal, Cancelled), so a list of codes worth
/// retrying would always be too short.
pub fn judge(status: &Status, attempt: u32, limit: Option<u32>, random: f64) -> Verdict {
    let stop = |reason| Verdict::Stop {
        reason,
        message: format!("The publisher said: {}.", said(status)),
    };
    match reason_of(status) {
        Some(
            reason @ (Reason::LogMismatch
            | Reason::CursorAhead
            | Reason::CursorExpired
            | Reason::Diverged
            | Reason::ReceiverFenced
            | Reason::InvalidField
            | Reason::LogNotFound
            | Reason::Corrupt),
        ) => return stop(reason.as_str()),
        Some(_) => {}
        None => match status.code() {
            Code::InvalidArgument => return stop("INVALID_ARGUMENT"),
            Code::Unauthenticated => return stop("UNAUTHENTICATED"),
            Code::PermissionDenied => return stop("PERMISSION_DENIED"),
            Code::Unimplemented => return stop("UNIMPLEMENTED"),
            Code::DataLoss => return stop("CORRUPT"),
            _ => {}
        },
    }
    if let Some(limit) = limit
        && attempt >= limit
    {
        return Verdict::Stop {
            reason: "UNREACHABLE",
            message: format!("{attempt} attempts in a row failed; the last: {}.", said(status)),
        };
    }
    let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
    let hint = hint.unwrap_or_default().min(CAP);
    Verdict::Retry(backoff(attempt, CALL_BASE, random).max(hint))
}

/// A status in words, without a full stop.
pub fn said(status: &Status) -> String {
    let message = status.message().trim_end_matches('.');
    if message.is_empty() { status.code().description().to_owned() } else { message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::refusal::Refusal;

    fn stops(status: &Status) -> bool {
        matches!(judge(status, 1, None, 0.5), Verdict::Stop { .. })
    }

    /// NET-09: faults of a transport come under any code and are all retried.
    #[test]
    fn codes_without_a_reason() {
        use Code::*;
        let retried = [
            Unknown,
            Internal,
            Cancelled,
            Unavailable,
            DeadlineExceeded,
            ResourceExhausted,
            Aborted,
            FailedPrecondition,
            NotFound,
            OutOfRange,
            AlreadyExists,
        ];
        for code in retried {
            assert!(!stops(&Status::new(code, "x")), "{code:?}");
        }
        for code in [InvalidArgument, Unauthenticated, PermissionDenied, Unimplemented, DataLoss] {
            assert!(stops(&Status::new(code, "x")), "{code:?}");
        }
    }

    #[test]
    fn every_reason_is_judged() {
        use Reason::*;
        let stopping = [
            LogMismatch,
            CursorAhead,
            CursorExpired,
            Diverged,
            ReceiverFenced,
            InvalidField,
            LogNotFound,
            Corrupt,
        ];
        for &reason in Reason::ALL {
            let status = Status::from(Refusal::new(reason, "why"));
            assert_eq!(stops(&status), stopping.contains(&reason), "{reason:?}");
        }
    }

    #[test]
    fn attempts_are_bounded_where_a_limit_is_set() {
        let down = Status::unavailable("connection refused");
        assert!(matches!(judge(&down, 2, Some(3), 0.5), Verdict::Retry(_)));
        let Verdict::Stop { reason, message } = judge(&down, 3, Some(3), 0.5) else {
            panic!("the limit is reached")
        };
        assert_eq!(reason, "UNREACHABLE");
        assert!(message.contains("3 attempts") && message.contains("connection refused"));
    }

    #[test]
    fn a_hint_is_followed_where_it_is_longer() {
        let hinted = Refusal::new(Reason::ShuttingDown, "x").retry_after(Duration::from_secs(1));
        let judged = judge(&hinted.into(), 1, None, 0.0);
        assert_eq!(judged, Verdict::Retry(Duration::from_secs(1)));
    }
}
