//! What both services share as processes: settings, logging, serving, ending.
//! Knows nothing of logs or databases.

pub mod config;
mod connections;
pub mod failure;
mod serve;

pub use failure::Failure;
pub use serve::{Service, bind, serve, serve_until};

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

/// How many threads a service runs on, beside those it starts itself.
#[derive(Debug, Clone, Copy)]
pub struct Threads {
    /// That do what is ready.
    pub workers: Workers,
    /// That wait for a disk or a name on behalf of a call; more calls wait for one.
    pub waiting: usize,
}

/// Threads that do what is ready.
#[derive(Debug, Clone, Copy)]
pub enum Workers {
    /// One.
    One,
    /// For half of the processors, at least one: the rest have enough to do with the threads
    /// that the service starts itself, and each worker more is one to be woken.
    Half,
}

impl Workers {
    fn count(self) -> usize {
        match self {
            Workers::One => 1,
            Workers::Half => {
                std::thread::available_parallelism().map_or(1, |all| all.get().div_ceil(2))
            }
        }
    }
}

/// Runs a service to its end. A blocking call that still runs then, such as a
/// read, does not hold up the end.
///
/// # Errors
/// The service's own, or [`Failure::Runtime`] when there are no threads.
pub fn block_on<T>(
    threads: Threads,
    service: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads.workers.count())
        .max_blocking_threads(threads.waiting)
        .enable_all()
        .build()
        .map_err(|error| Failure::Runtime(format!("no threads to run on: {error}")))?;
    let ended = runtime.block_on(service);
    runtime.shutdown_background();
    ended
}
