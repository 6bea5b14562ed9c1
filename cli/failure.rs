//! Why a command ends early, told to a person: the reason, the numbers, what to do.

use std::{io, process::ExitCode};

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

/// Why a command ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A call was refused or failed. Exit code 1.
    #[error("{0}")]
    Runtime(String),
    /// Wrong usage or input. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// Standard output was closed by its reader. No failure: exit code 0.
    #[error("standard output was closed")]
    OutputClosed,
}

impl Failure {
    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::OutputClosed => ExitCode::SUCCESS,
            Failure::Runtime(_) => ExitCode::FAILURE,
            Failure::Usage(_) => ExitCode::from(2),
        }
    }

    /// A call to `url` that did not succeed.
    pub fn call(url: &str, status: &Status) -> Self {
        Failure::Runtime(format!("{url}: {}", explain(status)))
    }

    /// Standard output that cannot be written.
    pub fn output(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Runtime(format!("standard output: {error}")),
        }
    }
}

/// One line: the reason (or the code, where no service spoke), the sentence, the numbers.
pub fn explain(status: &Status) -> String {
    let Some(info) = status.get_details_error_info() else {
        return format!("{}: {}", code_word(status.code()), sentence(status));
    };
    // "index" counts within a request, which the person has not seen.
    let told = info.metadata.iter().filter(|(name, _)| *name != "index");
    let mut numbers: Vec<_> = told.map(|(name, value)| format!("{name}={value}")).collect();
    numbers.sort();
    let numbers =
        if numbers.is_empty() { String::new() } else { format!(" ({})", numbers.join(", ")) };
    format!("{}: {}{numbers}", info.reason, sentence(status))
}

/// A transport error says only "transport error"; its cause is what helps.
fn sentence(status: &Status) -> String {
    let mut cause = std::error::Error::source(status);
    let mut last = None;
    while let Some(error) = cause {
        last = Some(error.to_string());
        cause = error.source();
    }
    match last {
        Some(cause) if !status.message().contains(&cause) => {
            format!("{}: {cause}", status.message())
        }
        _ => status.message().to_owned(),
    }
}

fn code_word(code: Code) -> &'static str {
    match code {
        Code::Unavailable => "UNAVAILABLE",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::Cancelled => "CANCELLED",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        other => other.description(),
    }
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::refusal::{Reason, Refusal};

    use super::*;

    #[test]
    fn reason_sentence_and_numbers_are_on_one_line() {
        let refusal = Refusal::new(Reason::CursorExpired, "sequence 2 is no longer retained")
            .with("next", 9)
            .with("floor", 5);
        assert_eq!(
            explain(&refusal.into()),
            "CURSOR_EXPIRED: sequence 2 is no longer retained (floor=5, next=9)"
        );
        assert_eq!(
            explain(&Status::unavailable("tcp connect error")),
            "UNAVAILABLE: tcp connect error"
        );
    }
}
