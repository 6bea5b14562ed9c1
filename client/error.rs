//! Why something could not be published.

use tonic::Status;

use super::judge::{Verdict, is_final, judge};
use crate::proto::refusal::{Reason, reason_of};

/// Why there is no publisher to publish to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The text is no URL of a publisher.
    #[error("{0:?} is not a URL such as http://127.0.0.1:7601")]
    InvalidUrl(String),
    /// There is no Tokio runtime to work on.
    #[error("called outside a Tokio runtime")]
    NoRuntime,
}

/// Why an event has no receipt.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PublishError {
    /// The publisher refused it: this attempt wrote nothing. [`Self::reason`] says
    /// why, [`Self::verdict`] whether to repeat it: that is the caller's to decide,
    /// since what it submitted after it has gone on.
    #[error("refused: {}", .0.message())]
    Refused(Status),
    /// It was sent, and no answer came: it may have been accepted. Repeat it as it
    /// was, under the same key.
    #[error("no answer after {attempts} attempts, it may have been accepted: {}", last.message())]
    Unanswered {
        /// Attempts in a row.
        attempts: u32,
        /// What ended the last one.
        last: Status,
    },
    /// The publisher could not be reached: nothing was sent.
    #[error("not sent, after {attempts} attempts to reach the publisher: {}", last.message())]
    NotSent {
        /// Attempts in a row.
        attempts: u32,
        /// What ended the last one.
        last: Status,
    },
}

impl PublishError {
    /// The task that carried the requests has ended.
    pub(super) fn ended() -> Self {
        let last = Status::cancelled("the runtime that carried it has ended");
        PublishError::Unanswered { attempts: 1, last }
    }

    /// The refusal, or what ended the last attempt.
    pub fn status(&self) -> &Status {
        match self {
            PublishError::Refused(status) => status,
            PublishError::Unanswered { last, .. } | PublishError::NotSent { last, .. } => last,
        }
    }

    /// What to do about it: repeat it as it was, mend the request, or get somebody to act.
    pub fn verdict(&self) -> Verdict {
        match self {
            PublishError::Refused(status) => judge(status),
            PublishError::Unanswered { last, .. } | PublishError::NotSent { last, .. } => {
                if is_final(last) {
                    Verdict::Stop
                } else {
                    Verdict::Retry
                }
            }
        }
    }

    /// Why the publisher refused, where it did.
    pub fn reason(&self) -> Option<Reason> {
        reason_of(self.status())
    }
}
