//! Why a process ends, and the exit code that says so.

use std::process::ExitCode;

/// Why a process ends other than by being told to. Each carries one sentence
/// for the person who started it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something failed while running. Exit code 1.
    #[error("{0}")]
    Runtime(String),
    /// Wrong usage or configuration. Exit code 2.
    #[error("{0}")]
    Usage(String),
    /// The directory or database is in use, or of a format this version cannot use. Exit code 3.
    #[error("{0}")]
    InUse(String),
}

impl Failure {
    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Runtime(_) => 1,
            Failure::Usage(_) => 2,
            Failure::InUse(_) => 3,
        }
    }

    /// Turns the end of a process into its exit code; a failure is said on standard error.
    pub fn exit_code(ended: Result<(), Failure>) -> ExitCode {
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("error: {failure}");
                ExitCode::from(failure.code())
            }
        }
    }
}
