//! The receiver's process: settings, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use counterfoil::{
    process::{self, Failure, Threads, Workers},
    proto::crash,
    receiver::{
        check,
        config::{CheckFlags, Cli, Command, Flags},
        projections, run, store, trial,
    },
};

/// What it does beside applying is one stream and a call now and then; what waits is four
/// readers of the database at most, and the look-up of a name.
const THREADS: Threads = Threads { workers: Workers::One, waiting: 8 };

/// Events are many small pieces of memory: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    crash::arm();
    let cli = Cli::parse();
    process::start_logging();
    let ended = match cli.command {
        Some(Command::Recover { db }) => recover(&db),
        Some(Command::Check(flags)) => match checked(&flags) {
            Ok(code) => return code,
            Err(failure) => Err(failure),
        },
        None => serve(cli.serve),
    };
    Failure::exit_code(ended)
}

fn serve(flags: Flags) -> Result<(), Failure> {
    let settings = flags.settle()?;
    let projection = projections::load(&settings.projection)
        .map_err(|unusable| Failure::Usage(unusable.to_string()))?;
    process::block_on(THREADS, async {
        let listener = process::bind(settings.listen).await?;
        run::run(settings, projection, listener).await
    })
}

fn checked(flags: &CheckFlags) -> Result<ExitCode, Failure> {
    let Some(spec) = check::check(flags)? else { return Ok(ExitCode::FAILURE) };
    let Some(trial) = flags.trial() else { return Ok(ExitCode::SUCCESS) };
    let report = process::block_on(THREADS, trial::run(trial, projections::of(spec)))?;
    println!("{report}");
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn recover(db: &std::path::Path) -> Result<(), Failure> {
    let kept = store::recover::recover(db)?;
    println!("recovered {}; the old files are kept as {}*", db.display(), kept.display());
    Ok(())
}
