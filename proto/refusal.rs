//! What callers are told when something is refused: the reasons, their status
//! codes (one table), and how they travel.

use std::time::Duration;

use prost::Message as _;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// `domain` of every `google.rpc.ErrorInfo` of these services.
pub const DOMAIN: &str = "counterfoil";

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal => $code:ident;)*) => {
        /// Why something was refused. Clients branch on its text.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The text in `ErrorInfo.reason`.
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$name => $text,)* }
            }

            /// The status code it travels under.
            pub fn code(self) -> Code {
                match self { $(Reason::$name => Code::$code,)* }
            }
        }
    };
}

reasons! {
    /// A field is missing, malformed or out of range; `BadRequest` names it.
    InvalidField = "INVALID_FIELD" => InvalidArgument;
    /// One event is larger than a limit.
    EventTooLarge = "EVENT_TOO_LARGE" => InvalidArgument;
    /// A request has too many events, or too many bytes.
    BatchTooLarge = "BATCH_TOO_LARGE" => InvalidArgument;
    /// The key is known with other content.
    KeyConflict = "KEY_CONFLICT" => AlreadyExists;
    /// Some keys of the batch are known and some are not.
    PartialDuplicate = "PARTIAL_DUPLICATE" => FailedPrecondition;
    /// The key is unknown and its intent's time lies before the key floor: what
    /// became of it is no longer known.
    KeyExpired = "KEY_EXPIRED" => FailedPrecondition;
    /// The cursor is of another incarnation of the log.
    LogMismatch = "LOG_MISMATCH" => FailedPrecondition;
    /// The cursor's chain is not this log's: same numbers, other history.
    Diverged = "DIVERGED" => FailedPrecondition;
    /// The log takes no writes until it has been recovered.
    LogHalted = "LOG_HALTED" => FailedPrecondition;
    /// A receiver has seen more or other history than the log holds, and the log was told
    /// to take no events then.
    LogSuspect = "LOG_SUSPECT" => FailedPrecondition;
    /// What was asked for does not fit what its object is doing now.
    WrongState = "WRONG_STATE" => FailedPrecondition;
    /// An event that was set aside cannot be applied now either.
    EventFailed = "EVENT_FAILED" => FailedPrecondition;
    /// The receiver has stopped and will not go on by itself.
    ReceiverHalted = "RECEIVER_HALTED" => FailedPrecondition;
    /// The subject has another version than the intent expects.
    StaleVersion = "STALE_VERSION" => Aborted;
    /// A newer Replay of the same receiver name has taken over.
    ReceiverFenced = "RECEIVER_FENCED" => Aborted;
    /// The place is no longer retained.
    CursorExpired = "CURSOR_EXPIRED" => OutOfRange;
    /// The place lies beyond the log's end.
    CursorAhead = "CURSOR_AHEAD" => OutOfRange;
    /// The log is full and was told to refuse, or the disk is full.
    LogFull = "LOG_FULL" => ResourceExhausted;
    /// A snapshot is larger than all that the log may keep of them.
    SnapshotTooLarge = "SNAPSHOT_TOO_LARGE" => ResourceExhausted;
    /// There are as many keys without a time as the log may hold.
    KeysFull = "KEYS_FULL" => ResourceExhausted;
    /// There are as many open PublishStreams, or transfers of snapshots, as the publisher
    /// may have.
    StreamsFull = "STREAMS_FULL" => ResourceExhausted;
    /// A query took longer than it may.
    QueryTooLong = "QUERY_TOO_LONG" => ResourceExhausted;
    /// There is no log of that name.
    LogNotFound = "LOG_NOT_FOUND" => NotFound;
    /// What was asked for does not exist.
    NotFound = "NOT_FOUND" => NotFound;
    /// The process is ending; another attempt may reach its successor.
    ShuttingDown = "SHUTTING_DOWN" => Unavailable;
    /// The receiver has not got that far yet.
    NotCaughtUp = "NOT_CAUGHT_UP" => Unavailable;
    /// A read failed for a reason that may pass; what is stored is not known to be damaged.
    LogUnreadable = "LOG_UNREADABLE" => Unavailable;
    /// Stored data is damaged.
    Corrupt = "CORRUPT" => DataLoss;
    /// The bytes of a snapshot are not those that were announced.
    SnapshotDamaged = "SNAPSHOT_DAMAGED" => DataLoss;
    /// The publisher's disk failed while a snapshot was written; what was there of it is
    /// thrown away.
    SnapshotNotStored = "SNAPSHOT_NOT_STORED" => Unavailable;
    /// A transfer of a snapshot was ended: another one has taken its place, or its other
    /// end was silent for too long.
    TransferEnded = "TRANSFER_ENDED" => Aborted;
}

/// A refusal: what happened, the numbers, what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// One or two sentences for a person. No SQL, no path, no internals.
    pub message: String,
    /// The numbers, for programs: `ErrorInfo.metadata`.
    pub metadata: Vec<(&'static str, String)>,
    /// Fields at fault and what is wrong with each: `BadRequest`.
    pub fields: Vec<(String, String)>,
    /// When another attempt makes sense: `RetryInfo`.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal without numbers.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Refusal {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            fields: Vec::new(),
            retry_after: None,
        }
    }

    /// INVALID_FIELD for one field.
    pub fn field(field: impl Into<String>, wrong: impl Into<String>) -> Self {
        Self::new(Reason::InvalidField, "").at_field(field, wrong)
    }

    /// The same with a field at fault; the message names it.
    pub fn at_field(mut self, field: impl Into<String>, wrong: impl Into<String>) -> Self {
        let (field, wrong) = (field.into(), wrong.into());
        if self.message.is_empty() {
            self.message = format!("{field}: {wrong}");
        }
        self.fields.push((field, wrong));
        self
    }

    /// The same with a number for programs.
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.metadata.push((name, value.to_string()));
        self
    }

    /// The same with a hint when to try again.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = Some(delay);
        self
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        let mut details = ErrorDetails::new();
        details.set_error_info(
            refusal.reason.as_str(),
            DOMAIN,
            refusal
                .metadata
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect::<std::collections::HashMap<_, _>>(),
        );
        for (field, wrong) in refusal.fields {
            details.add_bad_request_violation(field, wrong);
        }
        if refusal.retry_after.is_some() {
            details.set_retry_info(refusal.retry_after);
        }
        Status::with_error_details(refusal.reason.code(), refusal.message, details)
    }
}

/// A status as a message carries it, with its details.
pub fn status_message(status: Status) -> tonic_types::pb::Status {
    let details = tonic_types::pb::Status::decode(status.details()).unwrap_or_default().details;
    let (code, message) = (status.code().into(), status.message().to_owned());
    tonic_types::pb::Status { code, message, details }
}

/// The status that a message carries.
pub fn status_of(message: &tonic_types::pb::Status) -> Status {
    let details = message.encode_to_vec().into();
    Status::with_details(Code::from(message.code), message.message.clone(), details)
}

/// The reason that a status of these services carries.
pub fn reason_of(status: &Status) -> Option<Reason> {
    let info = status.get_details_error_info()?;
    (info.domain == DOMAIN)
        .then(|| Reason::ALL.iter().copied().find(|reason| reason.as_str() == info.reason))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_comes_back_from_its_status() {
        for &reason in Reason::ALL {
            let status = Status::from(Refusal::new(reason, "why").with("floor", 3));
            assert_eq!(status.code(), reason.code());
            assert_eq!(reason_of(&status), Some(reason));
            let info = status.get_details_error_info().expect("set above");
            assert_eq!(info.metadata["floor"], "3");
            let carried = status_of(&status_message(status.clone()));
            assert_eq!((carried.code(), carried.message()), (status.code(), status.message()));
            assert_eq!(carried.details(), status.details());
        }
    }
}
