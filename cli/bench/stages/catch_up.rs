//! A receiver with an empty database against a full log, from the start of its
//! process until all of it is acknowledged.

use std::time::{Duration, Instant};

use super::{all_applied, applied, log};
use crate::{
    bench::{
        figure::{Figure, Group, Stage},
        limits,
        meter::Meter,
    },
    failure::Failure,
    process::{Pair, RECEIVER_NAME},
};

/// How often it is asked whether all is acknowledged. The ack follows the last
/// commit within a millisecond or two.
const ASKED_EVERY: Duration = Duration::from_millis(1);
/// Longest time for it after the last commit.
const ACK: Duration = Duration::from_secs(10);

/// Starts the receiver, which stays.
///
/// # Errors
/// [`Failure::Runtime`] when it does not catch up, or has not applied each event once.
pub async fn run(pair: &mut Pair, payload: usize) -> Result<Figure, Failure> {
    let stage = Stage::new(Group::CatchUp, "receiver with an empty database", Some(payload));
    let events = log(pair).await?.next_sequence();
    let meter = Meter::start(pair)?;
    let started = Instant::now();
    pair.start_receiver(&pair.publisher_url(), None).await?;
    applied(pair, events - 1).await?;
    acked(pair, events - 1).await?;
    let elapsed = started.elapsed();
    let spent = meter.with_new_receiver(pair).stop()?;
    all_applied(pair).await?;
    let (stage, events) = (stage.against(limits::SQLITE), events.unsigned_abs());
    Ok(Figure { stage, events, elapsed, spent, latency: None })
}

async fn acked(pair: &Pair, sequence: i64) -> Result<(), Failure> {
    let given_up = Instant::now() + ACK;
    while Instant::now() < given_up {
        let receivers = log(pair).await?.receivers;
        let own = receivers.iter().find(|receiver| receiver.name == RECEIVER_NAME);
        let acked = own.and_then(|receiver| receiver.acked.as_ref());
        if acked.is_some_and(|cursor| cursor.sequence() >= sequence) {
            return Ok(());
        }
        tokio::time::sleep(ASKED_EVERY).await;
    }
    Err(Failure::Runtime(format!("sequence {sequence} is applied and not acked after {ACK:?}")))
}
