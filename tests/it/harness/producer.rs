//! A producer as the contract wants it: one intent after another, each repeated
//! with the same key and content until it is answered, whatever dies meanwhile.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use counterfoil::proto::refusal::{Reason, reason_of};
use tokio::{sync::watch, task::JoinHandle};

use super::{
    events::{adjusted, reserved},
    ledger::Accepted,
    publisher::{Client, publish},
};

/// A producer at work. It ends when stopped, or dropped.
pub struct Producer {
    work: JoinHandle<Vec<Accepted>>,
    stop: watch::Sender<bool>,
    answered: Arc<AtomicUsize>,
}

impl Producer {
    /// Publishes batches under keys `NAME-0`, `NAME-1` and so on: adjustments, and
    /// now and then a reservation that its receiver has to reject.
    pub fn start(client: Client, name: &str, batch: usize) -> Producer {
        let (stop, stopped) = watch::channel(false);
        let answered = Arc::new(AtomicUsize::new(0));
        let work = tokio::spawn(produce(client, name.to_owned(), batch, stopped, answered.clone()));
        Producer { work, stop, answered }
    }

    /// Events that were answered so far.
    pub fn answered(&self) -> usize {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends after the batch that is under way, and tells what was accepted.
    pub async fn stop(self) -> Vec<Accepted> {
        self.stop.send_replace(true);
        self.work.await.expect("the producer met an answer that it must not get")
    }
}

/// What producers together had accepted, in the log's order.
pub async fn stop_all(producers: Vec<Producer>) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    for producer in &producers {
        producer.stop.send_replace(true);
    }
    for producer in producers {
        accepted.extend(producer.stop().await);
    }
    accepted.sort_by_key(|event| event.sequence);
    accepted
}

async fn produce(
    client: Client,
    name: String,
    batch: usize,
    stopped: watch::Receiver<bool>,
    answered: Arc<AtomicUsize>,
) -> Vec<Accepted> {
    let mut accepted = Vec::new();
    for first in (0..).step_by(batch) {
        if *stopped.borrow() || stopped.has_changed().is_err() {
            break;
        }
        let is_reservation = |n: usize| n % 7 == 3;
        let delta = |n: usize| match is_reservation(n) {
            true => 0,
            false => (n * 7919 % 201) as i64 - 100,
        };
        let intents: Vec<_> = (first..first + batch)
            .map(|n| {
                let (key, item) = (format!("{name}-{n}"), format!("item-{}", n % 5));
                match is_reservation(n) {
                    true => reserved(&key, &item, "task", 1, i64::MAX),
                    false => adjusted(&key, &item, delta(n)),
                }
            })
            .collect();
        let receipts = loop {
            match publish(&client, "", intents.clone()).await {
                Ok(receipts) => break receipts,
                Err(status) => {
                    let reason = reason_of(&status);
                    let passing = [None, Some(Reason::ShuttingDown), Some(Reason::LogFull)];
                    assert!(passing.contains(&reason), "{status:?}");
                    if stopped.has_changed().is_err() {
                        return accepted;
                    }
                    tokio::time::sleep(std::time::Duration::from_millis(5)).await;
                }
            }
        };
        answered.fetch_add(batch, Ordering::Relaxed);
        accepted.extend((first..).zip(receipts).map(|(n, receipt)| Accepted {
            sequence: receipt.sequence.expect("always set"),
            key: receipt.key,
            delta: delta(n),
        }));
    }
    accepted
}
