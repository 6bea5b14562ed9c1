//! `counterfoil status`: both ends on one screen, also when one of them is down.

pub mod json;
mod screen;

use std::{io::IsTerminal as _, process::ExitCode};

use counterfoil::proto::pb::{
    GetLogRequest, GetStatusRequest, GetStatusResponse, Log, LogState, ReceiverState,
};

use crate::{
    arguments,
    failure::{Failure, explain},
    link,
    output::say,
};

/// What both ends said, or why one did not.
pub struct Both {
    /// The publisher's URL.
    pub publisher_url: String,
    /// The publisher's log.
    pub publisher: Result<Log, String>,
    /// The receiver's URL.
    pub receiver_url: String,
    /// The receiver's status.
    pub receiver: Result<GetStatusResponse, String>,
}

impl Both {
    /// Both answer, neither has stopped for good or waits for a person, forwarding included,
    /// and the receiver lacks no events that the publisher no longer has.
    fn is_well(&self) -> bool {
        let publisher = self.publisher.as_ref().is_ok_and(|log| log.state() == LogState::Active);
        let stopped = [ReceiverState::Halted, ReceiverState::Resyncing];
        let forwarding_stopped = |status: &GetStatusResponse| {
            let failure = status.forward_failure.as_ref();
            failure.is_some_and(|failure| failure.next_attempt_time.is_none())
        };
        let receiver = self
            .receiver
            .as_ref()
            .is_ok_and(|status| !stopped.contains(&status.state()) && !forwarding_stopped(status));
        publisher && receiver
    }
}

/// Prints the status of both ends; exit code 1 if one is down, halted, suspect or
/// resyncing.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub async fn run(arguments: arguments::Status) -> Result<ExitCode, Failure> {
    let mut publisher = link::publisher(&arguments.source.publisher)?;
    let mut receiver = link::receiver(&arguments.target.receiver)?;
    let get_log = GetLogRequest { log: arguments.source.log.clone() };
    let (log, status) = tokio::join!(
        publisher.get_log(link::call(get_log)),
        receiver.get_status(link::call(GetStatusRequest {})),
    );
    let both = Both {
        publisher_url: arguments.source.publisher,
        publisher: match log {
            Ok(response) => {
                response.into_inner().log.ok_or_else(|| "answered without a log".to_owned())
            }
            Err(status) => Err(explain(&status)),
        },
        receiver_url: arguments.target.receiver,
        receiver: status.map(tonic::Response::into_inner).map_err(|status| explain(&status)),
    };
    if arguments.json {
        say(json::show(&both));
    } else {
        say(screen::show(&both, std::io::stdout().is_terminal()).trim_end());
    }
    Ok(if both.is_well() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// An enum's name without its prefix.
fn word(name: &'static str, prefix: &str) -> &'static str {
    name.strip_prefix(prefix).unwrap_or(name)
}
