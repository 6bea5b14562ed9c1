//! Filling a log, as fast as it goes.

use std::time::Instant;

use counterfoil::proto::limits::MAX_GROUP_EVENTS;

use crate::{
    bench::{
        Plan,
        figure::{Figure, Group, Stage},
        limits,
        load::{self, Made},
        meter::Meter,
    },
    failure::Failure,
    link,
    process::Pair,
};

/// Events in one request.
const PER_REQUEST: usize = 100;
/// Requests unanswered.
const IN_FLIGHT: usize = 64;

/// Publishes as many events as are to be retained, into an empty log.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted.
pub async fn run(pair: &Pair, plan: &Plan, payload: usize) -> Result<Figure, Failure> {
    let name = format!("PublishStream, {PER_REQUEST} events a request");
    let stage = Stage::new(Group::Publish, name, Some(payload));
    let stage = stage.against(limits::file(MAX_GROUP_EVENTS));
    let meter = Meter::start(pair)?;
    let started = Instant::now();
    let events = fill(pair, plan, payload, plan.events).await?;
    let elapsed = started.elapsed();
    Ok(Figure { stage, events, elapsed, spent: meter.stop()?, latency: None })
}

/// Publishes so many more.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted.
pub async fn fill(pair: &Pair, plan: &Plan, payload: usize, count: u64) -> Result<u64, Failure> {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let made = Made::counted(&plan.events_of(payload), PER_REQUEST, count);
    let client = link::publisher(&pair.publisher_url())?;
    load::stream(client, IN_FLIGHT, made)
        .await
        .map_err(|why| Failure::Runtime(format!("filling the log: {why}")))
}
