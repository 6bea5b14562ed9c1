//! What happens after a write that may have been lost: the log takes no more of
//! them, health says so, the process stays up and reads go on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::watch;

use super::log::CommitError;
use crate::proto::refusal::{Reason, Refusal};

/// Whether one log still takes writes. Once closed it stays closed.
#[derive(Debug)]
pub struct Halt {
    log: String,
    closed: AtomicBool,
    /// Of the whole process.
    healthy: watch::Sender<bool>,
}

impl Halt {
    /// An open one. `healthy` turns false when it closes.
    pub fn new(log: &str, healthy: watch::Sender<bool>) -> Self {
        Halt { log: log.to_owned(), closed: AtomicBool::new(false), healthy }
    }

    /// Whether the log takes no more writes.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// What callers are told about a commit that failed; one that may have lost
    /// something closes the log.
    pub fn judge(&self, error: &CommitError) -> Refusal {
        match error {
            CommitError::DiskFull => Refusal::new(
                Reason::LogFull,
                "the publisher's disk is full: nothing was written; make room, then repeat the request",
            )
            .with("limit", "disk"),
            CommitError::Halted(why) => {
                self.close(why);
                self.refusal()
            }
        }
    }

    fn close(&self, why: &str) {
        if !self.closed.swap(true, Ordering::AcqRel) {
            tracing::error!(log = self.log, why, "no more writes");
        }
        self.healthy.send_replace(false);
    }

    /// What callers are told when the thread that would answer them is gone.
    pub fn gone(&self) -> Refusal {
        if self.is_closed() {
            return self.refusal();
        }
        shutting_down()
    }

    /// LOG_HALTED.
    pub fn refusal(&self) -> Refusal {
        Refusal::new(Reason::LogHalted, self.sentence())
    }

    /// One sentence for a person: why, and what to do.
    pub fn sentence(&self) -> String {
        format!(
            "log {} takes no writes since a write to its disk failed: stop the publisher, run \
             `publisher recover`, and start it again",
            self.log
        )
    }
}

/// SHUTTING_DOWN, for a request.
pub fn shutting_down() -> Refusal {
    Refusal::new(Reason::ShuttingDown, "the publisher is ending; repeat the request")
        .retry_after(std::time::Duration::from_secs(1))
}

/// Held by a thread that writes, or a task that answers: if it fails, the log is closed rather
/// than left waiting for it.
#[derive(Debug)]
pub struct Guard(pub Arc<Halt>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.close("a thread has failed");
        }
    }
}
