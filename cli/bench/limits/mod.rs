//! What the parts do with nothing behind them. Each is measured in a process of
//! its own, which is this program again under a name that is not for people:
//! then its processor time and memory are its own, and ending it ends the work.

mod disk;
mod echo;
mod sqlite;

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use counterfoil::proto::limits::MAX_GROUP_EVENTS;
use serde::{Deserialize, Serialize};

use super::{
    Plan, cpu,
    figure::{Figure, Group, Spent, Stage, Usage},
    load::WAYS,
    memory,
    meter::Meter,
    stages::{publish, replay},
};
use crate::{
    arguments::{BenchLimit, Limit},
    failure::Failure,
    numbers::grouped,
    output::say,
    process::{Pair, Service},
};

/// The receiver's statements without the receiver.
pub const SQLITE: &str = "SQLite, the receiver's statements";
/// Groups of so many events that are written and synced together.
const GROUPS: [usize; 2] = [128, MAX_GROUP_EVENTS];

/// The name of what a stage of the product is compared with on tonic.
pub fn tonic(stage: impl std::fmt::Display) -> String {
    format!("tonic: {stage}")
}

/// The name of a file that is written and synced in groups of so many events.
pub fn file(group: usize) -> String {
    format!("file, groups of {} written and synced", grouped(group as i64))
}

/// What such a process has measured of itself, as it prints it.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    events: u64,
    nanos: u64,
    cpu_nanos: u64,
    peak_bytes: u64,
}

/// What such a process does.
///
/// # Errors
/// [`Failure::Runtime`] when the part fails.
pub async fn run(BenchLimit { limit }: BenchLimit) -> Result<ExitCode, Failure> {
    let measured = match limit {
        Limit::Echo { payload } => {
            echo::serve(payload).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Limit::Disk { bytes, events, millis } => {
            measured(|| disk::appended(bytes, events, Duration::from_millis(millis)))?
        }
        Limit::Sqlite { events } => measured(|| sqlite::applied(events))?,
    };
    say(serde_json::to_string(&measured).map_err(|error| Failure::Runtime(error.to_string()))?);
    Ok(ExitCode::SUCCESS)
}

/// Events and the time that counts, with what this process has used by then.
fn measured(part: impl FnOnce() -> Result<(u64, Duration), Failure>) -> Result<Measured, Failure> {
    let pid = std::process::id();
    let before = cpu::spent(pid)?;
    let (events, elapsed) = part()?;
    let cpu = cpu::spent(pid)?.saturating_sub(before);
    Ok(Measured {
        events,
        nanos: nanos(elapsed),
        cpu_nanos: nanos(cpu),
        peak_bytes: memory::peak(pid)?,
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What does not depend on payloads.
///
/// # Errors
/// [`Failure::Runtime`] when a part fails.
pub async fn common(pair: &mut Pair, plan: &Plan) -> Result<Vec<Figure>, Failure> {
    let stage = |name: &str| Stage::new(Group::Limits, name, None);
    let sync = disk(pair, plan, 4_096, 1).await?;
    let events = plan.events.to_string();
    let rows = measure(pair, &["sqlite", "--events", &events]).await?;
    Ok(vec![
        figure(stage("fdatasync after 4 KiB appended"), &sync, |spent, usage| {
            spent.client = Some(usage);
        }),
        figure(stage(SQLITE), &rows, |spent, usage| spent.receiver = Some(usage)),
    ])
}

/// What does.
///
/// # Errors
/// [`Failure::Runtime`] when a part fails.
pub async fn of_payload(
    pair: &mut Pair,
    plan: &Plan,
    payload: usize,
) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for group in GROUPS {
        let stage = Stage::new(Group::Limits, file(group), Some(payload));
        let bytes = group * plan.events_of(payload).request_bytes();
        let written = disk(pair, plan, bytes, group).await?;
        figures.push(figure(stage, &written, |spent, usage| spent.publisher = Some(usage)));
    }
    pair.start_stand_in(&["bench-limit", "echo", "--payload", &payload.to_string()]).await?;
    for way in WAYS {
        let stage = Stage::new(Group::Limits, tonic(way), Some(payload));
        figures.push(publish::measure(pair, plan, stage, way).await?);
    }
    let stage = Stage::new(Group::Limits, tonic(replay::ONE), Some(payload));
    let meter = Meter::start(pair)?;
    let started = Instant::now();
    let events = replay::read(&pair.publisher_url(), plan.events).await?;
    let elapsed = started.elapsed();
    figures.push(Figure { stage, events, elapsed, spent: meter.stop()?, latency: None });
    pair.stop(Service::StandIn).await?;
    Ok(figures)
}

async fn disk(
    pair: &mut Pair,
    plan: &Plan,
    bytes: usize,
    events: usize,
) -> Result<Measured, Failure> {
    let [bytes, events] = [bytes, events].map(|count| count.to_string());
    let millis = plan.turn.as_millis().to_string();
    measure(pair, &["disk", "--bytes", &bytes, "--events", &events, "--millis", &millis]).await
}

async fn measure(pair: &mut Pair, arguments: &[&str]) -> Result<Measured, Failure> {
    let arguments = [&["bench-limit"], arguments].concat();
    let said = pair.measure(&arguments).await?;
    serde_json::from_str(&said)
        .map_err(|error| Failure::Runtime(format!("{}: {error}", arguments.join(" "))))
}

fn figure(stage: Stage, measured: &Measured, put: impl FnOnce(&mut Spent, Usage)) -> Figure {
    let Measured { events, nanos, cpu_nanos, peak_bytes } = *measured;
    let mut spent = Spent::default();
    put(&mut spent, Usage { cpu: Duration::from_nanos(cpu_nanos), peak_bytes });
    Figure { stage, events, elapsed: Duration::from_nanos(nanos), spent, latency: None }
}
