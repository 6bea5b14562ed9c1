//! Publishing as fast as receipts come back.

use crate::{
    bench::{
        Plan,
        figure::{Figure, Group, Stage},
        limits,
        load::{WAYS, Way},
        meter::Meter,
    },
    failure::Failure,
    process::Pair,
};

/// Each way once.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted.
pub async fn run(pair: &Pair, plan: &Plan, payload: usize) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for way in WAYS {
        let stage = Stage::new(Group::Publish, way.to_string(), Some(payload));
        figures.push(measure(pair, plan, stage.against(limits::tonic(way)), way).await?);
    }
    Ok(figures)
}

/// One way.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted.
pub async fn measure(pair: &Pair, plan: &Plan, stage: Stage, way: Way) -> Result<Figure, Failure> {
    let (url, of) = (pair.publisher_url(), plan.events_of(stage.payload.unwrap_or_default()));
    way.run(&url, &of, plan.warm_up).await?;
    let meter = Meter::start(pair)?;
    let (events, elapsed) = way.run(&url, &of, plan.turn).await?;
    Ok(Figure { stage, events, elapsed, spent: meter.stop()?, latency: None })
}
