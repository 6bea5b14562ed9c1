//! What both services share as processes: settings, logging, serving, ending.
//! Knows nothing of logs or databases.

pub mod config;
mod connections;
pub mod failure;
mod serve;

pub use failure::Failure;
pub use serve::{Service, bind, serve};

use std::io::IsTerminal as _;

/// Starts logging to standard error, with colours only on a terminal; `RUST_LOG` filters, `info` is the default.
pub fn start_logging() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
