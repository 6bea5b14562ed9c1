//! One round: each stage once, the limits in between, with new processes and
//! new files.

use std::path::Path;

use super::{
    PAYLOADS, Plan,
    figure::{Figure, Group},
    limits,
    stages::{catch_up, fill, live, paced, publish, replay},
};
use crate::{
    failure::Failure,
    process::{Pair, Service, told_to_end},
};

/// Runs the stages that are asked for.
///
/// # Errors
/// [`Failure::Runtime`] when one of them fails, or this process is told to end.
pub async fn run(within: &Path, plan: &Plan) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    if plan.has(Group::Limits) {
        let measured = in_new_directory(within, async |pair| limits::common(pair, plan).await);
        figures.extend(measured.await?);
    }
    for payload in PAYLOADS {
        let measured = in_new_directory(within, async |pair| stages(pair, plan, payload).await);
        figures.extend(measured.await?);
    }
    Ok(figures)
}

/// Whatever comes of it, no process and no file is left behind.
pub async fn in_new_directory<T>(
    within: &Path,
    measure: impl AsyncFnOnce(&mut Pair) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut pair = Pair::new(within)?;
    let (measured, told) = tokio::select! {
        measured = measure(&mut pair) => (measured, false),
        name = told_to_end() => (Err(Failure::Runtime(format!("ended by {name}"))), true),
    };
    if measured.is_err() && !told {
        pair.show_logs();
    }
    pair.kill().await;
    measured
}

/// What has a receiver comes before what has none: it then follows from the start,
/// and nobody reads what is published at the end.
async fn stages(pair: &mut Pair, plan: &Plan, payload: usize) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    if plan.has(Group::Limits) {
        figures.extend(limits::of_payload(pair, plan, payload).await?);
    }
    if !Group::PRODUCT.iter().any(|group| plan.has(*group)) {
        return Ok(figures);
    }
    pair.start_publisher().await?;
    let filled = fill::run(pair, plan, payload).await?;
    if plan.has(Group::Replay) {
        figures.extend(replay::run(pair, plan, payload).await?);
    }
    if [Group::CatchUp, Group::Live, Group::Paced].iter().any(|group| plan.has(*group)) {
        let caught_up = catch_up::run(pair, payload).await?;
        figures.extend(plan.has(Group::CatchUp).then_some(caught_up));
        if plan.has(Group::Live) {
            figures.extend(live::run(pair, plan, payload).await?);
        }
        if plan.has(Group::Paced) {
            figures.extend(paced::run(pair, plan, payload).await?);
        }
        pair.stop(Service::Receiver).await?;
    }
    if plan.has(Group::Publish) {
        figures.push(filled);
        figures.extend(publish::run(pair, plan, payload).await?);
    }
    pair.stop(Service::Publisher).await?;
    Ok(figures)
}
