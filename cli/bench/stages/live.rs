//! Publishing at full speed while a receiver follows, until its last commit.

use std::time::Instant;

use super::{all_applied, applied, log};
use crate::{
    bench::{
        Plan,
        figure::{Figure, Group, Stage},
        limits,
        load::{CALLERS, STREAM},
        meter::Meter,
    },
    failure::Failure,
    process::Pair,
};

/// With one stream, and with the callers of a client. The receiver has caught up.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted, or not applied once.
pub async fn run(pair: &Pair, plan: &Plan, payload: usize) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for way in [STREAM, CALLERS] {
        let stage = Stage::new(Group::Live, format!("live: {way}"), Some(payload));
        let meter = Meter::start(pair)?;
        let started = Instant::now();
        let (url, of) = (pair.publisher_url(), plan.events_of(payload));
        let (events, _) = way.run(&url, &of, plan.turn * 3 / 2).await?;
        applied(pair, log(pair).await?.next_sequence() - 1).await?;
        let elapsed = started.elapsed();
        let spent = meter.stop()?;
        all_applied(pair).await?;
        let stage = stage.against(limits::SQLITE);
        figures.push(Figure { stage, events, elapsed, spent, latency: None });
    }
    Ok(figures)
}
