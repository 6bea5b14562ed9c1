//! Reading a full log: one reader, several, and several beside one that stalls.

use std::time::Instant;

use counterfoil::proto::pb::{ReplayRequest, ReplayResponse, replay_response::Frame};
use tokio::task::JoinSet;
use tonic::Streaming;

use crate::{
    bench::{
        Plan,
        figure::{Figure, Group, Stage},
        limits,
        meter::Meter,
    },
    failure::Failure,
    link,
    process::Pair,
};

/// The name of the stage with one reader.
pub const ONE: &str = "Replay, 1 reader";
const EIGHT: &str = "Replay, 8 readers together";
const BESIDE_STALLED: &str = "Replay, 8 readers beside a stalled one";
const READERS: u64 = 8;

/// One, eight, and eight with a ninth that does not read.
///
/// # Errors
/// [`Failure::Runtime`] when a stream fails, or ends too early.
pub async fn run(pair: &Pair, plan: &Plan, payload: usize) -> Result<Vec<Figure>, Failure> {
    let stage = |name: &str| Stage::new(Group::Replay, name, Some(payload));
    let one = stage(ONE).against(limits::tonic(ONE));
    let one = measure(pair, one, 1, plan.events).await?;
    // All readers together read twice the log.
    let each = plan.events.div_ceil(READERS / 2);
    let eight = measure(pair, stage(EIGHT).against(ONE), READERS, each).await?;
    let stalled = open(&pair.publisher_url(), 0).await?;
    let beside = measure(pair, stage(BESIDE_STALLED).against(EIGHT), READERS, each).await?;
    drop(stalled);
    Ok(vec![one, eight, beside])
}

async fn measure(pair: &Pair, stage: Stage, readers: u64, each: u64) -> Result<Figure, Failure> {
    let meter = Meter::start(pair)?;
    let started = Instant::now();
    let mut reading = JoinSet::new();
    for _ in 0..readers {
        let url = pair.publisher_url();
        reading.spawn(async move { read(&url, each).await });
    }
    let mut events = 0;
    while let Some(ended) = reading.join_next().await {
        events += ended.map_err(|error| Failure::Runtime(error.to_string()))??;
    }
    let elapsed = started.elapsed();
    if events != readers * each {
        let expected = readers * each;
        return Err(Failure::Runtime(format!(
            "{}: {events} of {expected} events came",
            stage.name
        )));
    }
    Ok(Figure { stage, events, elapsed, spent: meter.stop()?, latency: None })
}

/// Reads so many events from the beginning, over a connection of its own; returns
/// how many came.
///
/// # Errors
/// [`Failure::Runtime`] when the stream fails.
pub async fn read(url: &str, limit: u64) -> Result<u64, Failure> {
    let mut frames = open(url, limit).await?;
    let mut events = 0;
    while let Some(frame) = frames.message().await.map_err(|s| Failure::call(url, &s))? {
        if let Some(Frame::Batch(batch)) = frame.frame {
            events += batch.events.len() as u64;
        }
    }
    Ok(events)
}

/// 0: no limit.
async fn open(url: &str, limit: u64) -> Result<Streaming<ReplayResponse>, Failure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let request = ReplayRequest { limit, ..ReplayRequest::default() };
    let opened = link::publisher(url)?.replay(request).await;
    Ok(opened.map_err(|status| Failure::call(url, &status))?.into_inner())
}
