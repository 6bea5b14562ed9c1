//! `counterfoil bench`: how fast events can be published on this machine, the
//! ways to publish side by side.

mod cpu;
mod load;
mod machine;
mod table;

use std::{path::Path, process::ExitCode, time::Duration};

use self::{
    load::{Load, Way},
    table::{Table, Turn},
};
use crate::{
    arguments,
    failure::Failure,
    output::say,
    process::{Pair, Service, told_to_end},
};

/// What is measured, in the order of the table.
const WAYS: [Way; 5] = [
    Way { load: Load::Unary, in_flight: 1 },
    Way { load: Load::Unary, in_flight: 16 },
    BASE,
    Way { load: Load::Client, in_flight: 128 },
    Way { load: Load::Stream, in_flight: 1024 },
];
/// What the others are compared with.
const BASE: Way = Way { load: Load::Unary, in_flight: 128 };

/// How long each way has its turn in a round.
const TURN: Duration = Duration::from_secs(2);
const QUICK_TURN: Duration = Duration::from_millis(400);
/// How long each way runs before it is measured.
const WARM_UP: Duration = Duration::from_millis(100);

/// Measures and prints.
///
/// # Errors
/// [`Failure::Usage`] for a directory that is on no disk; [`Failure::Runtime`]
/// when the publisher does not run, or does not accept an event.
pub async fn run(arguments: arguments::Bench) -> Result<ExitCode, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("built without optimisation: the figures of such a build say little");
    }
    let within = arguments.dir.unwrap_or_else(std::env::temp_dir);
    let machine = machine::describe(&within)?;
    let turn = if arguments.quick { QUICK_TURN } else { TURN };
    let mut turns = Vec::new();
    for number in 1..=arguments.rounds {
        eprintln!("round {number} of {}", arguments.rounds);
        turns.push(round(&within, turn).await?);
    }
    let table = Table::new(machine, turn, &turns);
    if arguments.json {
        say(table.json());
    } else {
        say(table);
    }
    Ok(ExitCode::SUCCESS)
}

/// Each way once, with a publisher of their own.
async fn round(within: &Path, turn: Duration) -> Result<Vec<(Way, Turn)>, Failure> {
    let mut pair = Pair::new(within)?;
    let turns = tokio::select! {
        turns = turns(&mut pair, turn) => turns,
        name = told_to_end() => Err(Failure::Runtime(format!("ended by {name}"))),
    };
    // Whatever came of it: no process and no file is left behind.
    pair.kill().await;
    turns
}

async fn turns(pair: &mut Pair, turn: Duration) -> Result<Vec<(Way, Turn)>, Failure> {
    pair.start_publisher().await?;
    let mut turns = Vec::new();
    for way in WAYS {
        turns.push((way, measure(pair, way, turn).await?));
    }
    pair.stop(Service::Publisher).await?;
    Ok(turns)
}

async fn measure(pair: &Pair, way: Way, turn: Duration) -> Result<Turn, Failure> {
    let gone = || Failure::Runtime("the publisher has ended".to_owned());
    let (url, publisher) = (pair.publisher_url(), pair.publisher_pid().ok_or_else(gone)?);
    let client = std::process::id();
    way.run(&url, WARM_UP).await?;
    let before = (cpu::spent(publisher)?, cpu::spent(client)?);
    let (events, elapsed) = way.run(&url, turn).await?;
    Ok(Turn {
        events,
        elapsed,
        publisher_cpu: cpu::spent(publisher)?.saturating_sub(before.0),
        client_cpu: cpu::spent(client)?.saturating_sub(before.1),
    })
}
