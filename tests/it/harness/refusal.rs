//! What a refusal says: reason, numbers, fields.

use std::collections::HashMap;

use counterfoil::proto::refusal::{DOMAIN, Reason, reason_of};
use tonic::Status;
use tonic_types::StatusExt as _;

/// Takes a refusal apart, and checks that it is one of the contract's, with
/// nothing in it that a remote caller must not see.
///
/// # Panics
/// If the call succeeded, or failed in another way.
pub fn refused<T: std::fmt::Debug>(result: Result<T, Status>, reason: Reason) -> Refused {
    let status = match result {
        Ok(answer) => panic!("expected {reason:?}, got an answer: {answer:?}"),
        Err(status) => status,
    };
    assert_eq!(reason_of(&status), Some(reason), "{status:?}");
    assert_eq!(status.code(), reason.code(), "{status:?}");
    assert_discreet(status.message());
    let info = status.get_details_error_info().expect("reason_of found it");
    assert_eq!(info.domain, DOMAIN);
    let fields = status.get_details_bad_request().map_or_else(Vec::new, |bad| {
        bad.field_violations.into_iter().map(|field| field.field).collect()
    });
    let retry = status.get_details_retry_info().is_some_and(|retry| retry.retry_delay.is_some());
    Refused { message: status.message().to_owned(), numbers: info.metadata, fields, retry }
}

/// API-08: neither SQL, nor a path, nor internal wording.
fn assert_discreet(message: &str) {
    for word in ["SELECT", "INSERT", "sqlite", "/tmp", ".rs", "os error", "panicked", "Err("] {
        assert!(!message.contains(word), "{word:?} is none of a caller's business: {message}");
    }
    assert!(!message.is_empty(), "a refusal has a sentence");
}

/// A refusal, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub message: String,
    pub numbers: HashMap<String, String>,
    pub fields: Vec<String>,
    pub retry: bool,
}

impl Refused {
    /// A number out of the metadata.
    ///
    /// # Panics
    /// If it is not there.
    pub fn number(&self, name: &str) -> i64 {
        let text = self.numbers.get(name).unwrap_or_else(|| panic!("no {name:?} in {self:?}"));
        text.parse().unwrap_or_else(|_| panic!("{name:?} is no number in {self:?}"))
    }
}
