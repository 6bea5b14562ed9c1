//! Publishing at a fixed rate while a receiver follows: how long it takes from
//! `publish` to the commit of the effect. An open loop: what is due is sent,
//! whether or not earlier events are through.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use counterfoil::{
    client::{PublishError, Publisher},
    proto::pb::{WaitAppliedRequest, receiver_service_client::ReceiverServiceClient},
};
use tokio::{sync::mpsc, task::JoinSet, time};
use tonic::transport::Channel;

use super::{all_applied, log};
use crate::{
    bench::{
        Plan,
        figure::{Figure, Group, Stage},
        latency::{Commit, Sent, latencies, percentile},
        meter::Meter,
    },
    failure::Failure,
    link,
    process::Pair,
};

/// Events a second.
const RATES: [u64; 3] = [500, 2_000, 5_000];
/// What is due is sent this often.
const TICK: Duration = Duration::from_millis(1);
/// Calls that wait at the receiver. While the answer of one is on its way another
/// one sees the next commit.
const WATCHERS: usize = 2;
/// Longest wait of one call.
const PATIENCE: Duration = Duration::from_secs(60);

/// Each rate once, through the client module. The receiver has caught up.
///
/// # Errors
/// [`Failure::Runtime`] when an event is not accepted, or not applied once.
pub async fn run(pair: &Pair, plan: &Plan, payload: usize) -> Result<Vec<Figure>, Failure> {
    let mut figures = Vec::new();
    for rate in RATES {
        let stage = Stage::new(Group::Paced, format!("paced, {rate} a second"), Some(payload));
        figures.push(measure(pair, plan, stage, rate).await?);
        all_applied(pair).await?;
    }
    Ok(figures)
}

async fn measure(pair: &Pair, plan: &Plan, stage: Stage, rate: u64) -> Result<Figure, Failure> {
    let first = log(pair).await?.next_sequence();
    let url = pair.receiver_url();
    let (asked, (seen, mut told)) =
        (Arc::new(AtomicI64::new(first - 1)), mpsc::unbounded_channel());
    let mut watchers = JoinSet::new();
    for _ in 0..WATCHERS {
        let receiver = link::receiver(&url)?;
        watchers.spawn(watch(receiver, url.clone(), Arc::clone(&asked), seen.clone()));
    }
    let meter = Meter::start(pair)?;
    let started = Instant::now();
    let sent = publish(pair, plan, stage.payload.unwrap_or_default(), rate).await?;
    let elapsed = started.elapsed();
    let last = sent.iter().map(|sent| sent.sequence).max().unwrap_or(first - 1);
    let mut commits: Vec<Commit> = Vec::new();
    while commits.last().is_none_or(|commit| commit.sequence < last) {
        commits.push(told.recv().await.ok_or_else(unseen)??);
    }
    let spent = meter.stop()?;
    drop(watchers); // they wait for what never comes
    let mut times = latencies(&sent, commits).ok_or_else(unseen)?;
    times.sort();
    let latency = Some((percentile(&times, 50), percentile(&times, 99)));
    Ok(Figure { stage, events: sent.len() as u64, elapsed, spent, latency })
}

fn unseen() -> Failure {
    Failure::Runtime("paced: not every commit was seen; run it again".to_owned())
}

/// Sends what is due until the turn is over; returns what was accepted, once all is.
async fn publish(
    pair: &Pair,
    plan: &Plan,
    payload: usize,
    rate: u64,
) -> Result<Vec<Sent>, Failure> {
    let publisher = Publisher::connect(pair.publisher_url().as_str())
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let (events, turn) = (plan.events_of(payload), plan.turn * 3 / 2);
    let count = (turn.as_secs_f64() * rate as f64) as usize;
    let (mut sending, mut due) = (JoinSet::new(), 0);
    let mut tick = time::interval(TICK);
    let started = Instant::now();
    while due < count {
        tick.tick().await;
        let now = (started.elapsed().as_secs_f64() * rate as f64) as usize + 1;
        for turn in due..now.min(count) {
            let (publisher, event) = (publisher.clone(), events.make(turn));
            let at = Instant::now();
            sending.spawn(async move {
                let receipt = publisher.publish(event).await?;
                Ok::<_, PublishError>(Sent { sequence: receipt.sequence(), at })
            });
        }
        due = now.min(count).max(due);
    }
    let mut sent = Vec::with_capacity(count);
    while let Some(ended) = sending.join_next().await {
        let ended = ended.map_err(|error| Failure::Runtime(error.to_string()))?;
        sent.push(ended.map_err(|error| Failure::Runtime(format!("paced: {error}")))?);
    }
    Ok(sent)
}

type Seen = mpsc::UnboundedSender<Result<Commit, Failure>>;

/// Waits for the next sequence that nobody waits for yet, again and again, and
/// tells what is committed by then. Never ends but with a failure.
async fn watch(
    mut receiver: ReceiverServiceClient<Channel>,
    url: String,
    asked: Arc<AtomicI64>,
    seen: Seen,
) {
    let mut known = -1;
    loop {
        asked.fetch_max(known, Ordering::Relaxed);
        let sequence = asked.fetch_add(1, Ordering::Relaxed) + 1;
        let told = wait(&mut receiver, &url, sequence).await;
        known = told.as_ref().map_or(known, |commit| commit.sequence);
        let failed = told.is_err();
        if seen.send(told).is_err() || failed {
            return;
        }
    }
}

async fn wait(
    receiver: &mut ReceiverServiceClient<Channel>,
    url: &str,
    sequence: i64,
) -> Result<Commit, Failure> {
    let wait = link::within(WaitAppliedRequest { sequence }, PATIENCE);
    let answer = receiver.wait_applied(wait).await;
    let at = Instant::now();
    let cursor = answer.map_err(|status| Failure::call(url, &status))?.into_inner().cursor;
    Ok(Commit { sequence: cursor.map_or(-1, |cursor| cursor.sequence()), at })
}
