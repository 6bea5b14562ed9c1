//! The publisher's process: settings, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use counterfoil::{
    process::{self, Failure, Threads, Workers},
    proto::crash,
    publisher::{
        config::{Cli, Command, Flags},
        repair, run,
    },
};

/// Each thread that has read keeps some of the memory for it. A few are enough: what they
/// read is nearly always in the system's page cache.
const THREADS: Threads = Threads { workers: Workers::Half, waiting: 4 };

/// Events are many small pieces of memory: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    crash::arm();
    let cli = Cli::parse();
    process::start_logging();
    Failure::exit_code(match cli.command {
        Some(Command::Recover { at }) => repair::recover(&at.data_dir),
        Some(Command::Check { at }) => repair::check(&at.data_dir),
        Some(Command::Fork { at, log, from }) => repair::fork(&at.data_dir, &log, from),
        Some(Command::RebuildReceipts { at, log, forget_truncated }) => {
            repair::rebuild_receipts(&at.data_dir, log.as_deref(), forget_truncated)
        }
        None => serve(cli.serve),
    })
}

fn serve(flags: Flags) -> Result<(), Failure> {
    let settings = flags.settle()?;
    process::block_on(THREADS, async {
        let listener = process::bind(settings.listen).await?;
        run::run(settings, listener).await
    })
}
