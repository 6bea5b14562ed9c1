//! The publisher's process: settings, run, exit code.

use std::process::ExitCode;

use clap::Parser as _;
use counterfoil::{
    process::{self, Failure},
    proto::crash,
    publisher::{
        config::{Cli, Command, Flags},
        run,
    },
};

fn main() -> ExitCode {
    crash::arm();
    let cli = Cli::parse();
    process::start_logging();
    Failure::exit_code(match cli.command {
        Some(Command::Recover { data_dir }) => run::recover(&data_dir),
        None => serve(cli.serve),
    })
}

fn serve(flags: Flags) -> Result<(), Failure> {
    let settings = flags.settle()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Runtime(format!("no threads to run on: {error}")))?;
    let ended = runtime.block_on(async {
        let listener = process::bind(&settings.listen).await?;
        run::run(settings, listener).await
    });
    // A read that still runs does not hold up the end.
    runtime.shutdown_background();
    ended
}
