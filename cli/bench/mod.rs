//! `counterfoil bench`: what every stage does on this machine, beside what its
//! parts do with nothing behind them.

mod cpu;
mod events;
mod figure;
mod growth;
mod latency;
pub mod limits;
mod load;
mod machine;
mod memory;
mod meter;
mod plot;
mod round;
mod stages;
mod table;

use std::{process::ExitCode, time::Duration};

pub use self::figure::Group;
use self::{events::Events, table::Table};
use crate::{arguments, failure::Failure, output::say};

/// Sizes of payloads, in bytes.
const PAYLOADS: [usize; 2] = [100, 1_024];
/// Events, and keys, that are retained while the product is measured.
const EVENTS: u64 = 1_000_000;
const QUICK_EVENTS: u64 = 100_000;

/// How much is measured.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which stages.
    groups: Vec<Group>,
    /// Events in the log before the first stage.
    events: u64,
    /// How long a stage has its turn in a round, where time bounds it.
    turn: Duration,
    /// How long publishing goes on before it is measured.
    warm_up: Duration,
}

impl Plan {
    fn of(arguments: &arguments::Bench) -> Self {
        let turn = Duration::from_millis(if arguments.quick { 200 } else { 800 });
        let events = if arguments.quick { QUICK_EVENTS } else { EVENTS };
        Plan {
            groups: arguments.only.clone(),
            events: arguments.events.unwrap_or(events),
            turn,
            warm_up: turn / 8,
        }
    }

    /// Whether these stages are asked for.
    fn has(&self, group: Group) -> bool {
        self.groups.is_empty() || self.groups.contains(&group)
    }

    fn events_of(&self, payload: usize) -> Events {
        Events::of(payload)
    }
}

/// Measures and prints.
///
/// # Errors
/// [`Failure::Usage`] for a directory that is on no disk; [`Failure::Runtime`]
/// when a service does not run, or an event is not accepted, or not applied once.
pub async fn run(arguments: arguments::Bench) -> Result<ExitCode, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("built without optimisation: the figures of such a build say little");
    }
    let within = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    let machine = machine::describe(&within)?;
    if arguments.growth {
        return growth::run(&arguments, &within, machine).await;
    }
    let plan = Plan::of(&arguments);
    let mut rounds = Vec::new();
    for number in 1..=arguments.rounds {
        eprintln!("round {number} of {}", arguments.rounds);
        rounds.push(round::run(&within, &plan).await?);
    }
    let table = Table::new(machine, &plan, &rounds);
    if let Some(file) = &arguments.svg {
        std::fs::write(file, plot::svg(table.machine(), table.rows()))
            .map_err(|error| Failure::Runtime(format!("{}: {error}", file.display())))?;
    }
    if arguments.json {
        say(table.json());
    } else {
        say(table);
    }
    Ok(ExitCode::SUCCESS)
}
