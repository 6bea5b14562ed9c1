//! `counterfoil`, the tool for people. A client like any other: it knows the
//! contract, and nothing of the files of either service; only `bench` and `verify` also
//! run parts of them: to see what they do alone, and to do again what a receiver did.

mod arguments;
mod bench;
mod demo;
mod event_json;
mod failure;
mod health;
mod link;
mod numbers;
mod output;
mod process;
mod publish;
mod query;
mod receipt;
mod remove_receiver;
mod resync;
mod skip;
mod skip_follow_up;
mod snapshot;
mod snapshots;
mod status;
mod tail;
mod verify;

use std::process::ExitCode;

use arguments::{Arguments, Command};
use clap::Parser as _;
use failure::Failure;

/// Events are many small pieces of memory: see docs/performance.md.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let ended = match command {
        Command::Publish(arguments) => publish::run(arguments).await,
        Command::Tail(arguments) => tail::run(arguments).await,
        Command::Status(arguments) => status::run(arguments).await,
        Command::Receipt(arguments) => receipt::run(arguments).await,
        Command::Snapshots(arguments) => snapshots::run(arguments).await,
        Command::RemoveReceiver(arguments) => remove_receiver::run(arguments).await,
        Command::Snapshot(arguments) => snapshot::run(arguments).await,
        Command::Resync(arguments) => resync::run(arguments).await,
        Command::Query(arguments) => query::run(arguments).await,
        Command::Skip(arguments) => skip::skip(arguments).await,
        Command::ApplySkipped(arguments) => skip::apply_skipped(arguments).await,
        Command::SkipFollowUp(arguments) => skip_follow_up::run(arguments).await,
        Command::Health(arguments) => health::run(arguments).await,
        Command::Verify(arguments) => verify::run(arguments).await,
        Command::Bench(arguments) => bench::run(arguments).await,
        Command::BenchLimit(arguments) => bench::limits::run(arguments).await,
        Command::Demo(arguments) => demo::run(arguments).await,
    };
    match ended {
        Ok(code) => code,
        // Whoever read our output has had enough, as `head` does.
        Err(Failure::OutputClosed) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            failure.exit_code()
        }
    }
}
