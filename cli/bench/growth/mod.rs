//! `counterfoil bench --growth`: what an event costs once very many are retained,
//! beside what it costs with few. Both logs are there at the same time, and take
//! turns.

mod report;

use std::{
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use self::report::{Report, Step};
use super::{
    Plan, cpu,
    load::{self, Made, STREAM},
    memory,
    round::in_new_directory,
    stages::{all_applied, caught_up, fill},
};
use crate::{
    arguments,
    failure::Failure,
    link,
    output::say,
    process::{Pair, Service},
};

const FEW: u64 = 100_000;
const MANY: u64 = 10_000_000;
/// Events of one step. Few against both sizes: each step adds them to both logs.
const STEP: u64 = 25_000;
const PAYLOAD: usize = 100;
/// What is not as the default has it: its bounds would let the oldest go.
const SETTINGS: &str = "[logs.main]\nmax_events = 100000000\nmax_bytes = \"64GiB\"\n";

/// Measures and prints.
///
/// # Errors
/// As [`super::run`].
pub async fn run(
    arguments: &arguments::Bench,
    within: &Path,
    machine: String,
) -> Result<ExitCode, Failure> {
    let plan = Plan::of(arguments);
    let many = arguments.events.unwrap_or(if arguments.quick { MANY / 10 } else { MANY });
    let sizes = [FEW.min(many / 10).max(1), many];
    let step = STEP.min(sizes[0] / 4).max(1);
    let rounds = usize::from(arguments.rounds);
    let measured = in_new_directory(within, async |few| {
        // Within the directory of the other one, so that it goes with it.
        let mut many = Pair::new(few.directory())?;
        let mut sides = [Side::new(few), Side::new(&mut many)];
        for (side, size) in sides.iter_mut().zip(sizes) {
            side.prepare(&plan, size).await?;
        }
        for round in 1..=rounds {
            eprintln!("step {round} of {rounds}");
            for side in &mut sides {
                side.step(&plan, step).await?;
            }
        }
        for side in &mut sides {
            side.end().await?;
        }
        Ok(sides.map(|side| side.steps))
    });
    let report = Report::new(machine, SETTINGS, step, sizes, measured.await?);
    if arguments.json {
        say(report.json());
    } else {
        say(report);
    }
    Ok(ExitCode::SUCCESS)
}

/// One log with its services.
struct Side<'a> {
    pair: &'a mut Pair,
    steps: Vec<Step>,
}

impl<'a> Side<'a> {
    fn new(pair: &'a mut Pair) -> Self {
        Side { pair, steps: Vec::new() }
    }

    /// Fills the log, and lets a receiver apply it.
    async fn prepare(&mut self, plan: &Plan, size: u64) -> Result<(), Failure> {
        eprintln!("filling a log with {size} events");
        self.pair.start_publisher_with(Some(SETTINGS)).await?;
        fill::fill(self.pair, plan, PAYLOAD, size).await?;
        self.pair.start_receiver(&self.pair.publisher_url(), None).await?;
        all_applied(self.pair).await
    }

    /// Publishes some more with nobody there, lets the receiver catch up with them,
    /// and starts the publisher again: after an orderly end, and after none.
    async fn step(&mut self, plan: &Plan, events: u64) -> Result<(), Failure> {
        let mut peaks = self.peaks()?;
        self.pair.stop(Service::Receiver).await?;
        let count = usize::try_from(events).unwrap_or(usize::MAX);
        let made = Made::counted(&plan.events_of(PAYLOAD), 1, count);
        let client = link::publisher(&self.pair.publisher_url())?;
        let before = spent(self.pair.publisher_pid())?;
        let started = Instant::now();
        load::stream(client, STREAM.in_flight, made).await.map_err(Failure::Runtime)?;
        let publish = started.elapsed();
        let publish_cpu = spent(self.pair.publisher_pid())?.saturating_sub(before);

        let started = Instant::now();
        self.pair.start_receiver(&self.pair.publisher_url(), None).await?;
        caught_up(self.pair).await?;
        let catch_up = started.elapsed();
        let catch_up_cpu = spent(self.pair.receiver_pid())?;
        let now = self.peaks()?;
        peaks = (peaks.0.max(now.0), peaks.1.max(now.1));

        self.pair.stop(Service::Receiver).await?;
        self.pair.stop(Service::Publisher).await?;
        let restart = self.start_publisher().await?;
        peaks.0 = peaks.0.max(self.peaks()?.0);
        self.pair.kill_publisher().await;
        let after_kill = self.start_publisher().await?;
        peaks.0 = peaks.0.max(self.pair.publisher_pid().map_or(Ok(0), memory::peak)?);
        self.pair.start_receiver(&self.pair.publisher_url(), None).await?;
        caught_up(self.pair).await?;
        self.steps.push(Step {
            publish,
            publish_cpu,
            catch_up,
            catch_up_cpu,
            restart,
            after_kill,
            publisher_peak: peaks.0,
            receiver_peak: peaks.1,
        });
        Ok(())
    }

    async fn start_publisher(&mut self) -> Result<Duration, Failure> {
        let started = Instant::now();
        self.pair.start_publisher_with(Some(SETTINGS)).await?;
        Ok(started.elapsed())
    }

    /// Most memory of the two since the start of each.
    fn peaks(&self) -> Result<(u64, u64), Failure> {
        let of = |pid: Option<u32>| pid.map_or(Ok(0), memory::peak);
        Ok((of(self.pair.publisher_pid())?, of(self.pair.receiver_pid())?))
    }

    async fn end(&mut self) -> Result<(), Failure> {
        self.pair.stop(Service::Receiver).await?;
        self.pair.stop(Service::Publisher).await
    }
}

fn spent(pid: Option<u32>) -> Result<Duration, Failure> {
    pid.map_or(Ok(Duration::ZERO), cpu::spent)
}
