//! The way of a publish: a bounded queue, one thread that commits whatever has
//! gathered in it, and the answers. Knows nothing of gRPC.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio_util::task::AbortOnDropHandle;

use super::{
    ack::Receivers,
    admit::Prepared,
    clock::Clock,
    group::{Answer, Ground, Group, Receipt},
    halt::{Guard, Halt},
    log::{EventLog, Extent, LogReader},
    oldest::Oldest,
    receipts,
    retention::{Limits, WhenFull},
    trim,
};
use crate::proto::{
    event::{Intent, Sequence},
    limits::*,
    refusal::{Reason, Refusal},
};

/// The entrance: hands requests to the appender.
#[derive(Debug, Clone)]
pub struct Publisher {
    /// Bounded by `room`.
    queue: mpsc::UnboundedSender<Work>,
    /// Weight that the queue has left.
    room: Arc<Semaphore>,
    halt: Arc<Halt>,
}

enum Work {
    Publish(Request),
    /// Time to look for what is too old. Takes room as any other work does.
    Trim {
        _room: OwnedSemaphorePermit,
    },
}

struct Request {
    events: Vec<Prepared>,
    /// Stored bytes, at most.
    bytes: usize,
    answer: Answer,
    _room: OwnedSemaphorePermit,
}

/// What the appender works on.
pub struct Parts {
    /// The log.
    pub engine: Box<dyn EventLog>,
    /// Its receipts.
    pub receipts: receipts::Shared,
    /// Where those are kept.
    pub store: receipts::Store,
    /// Its bounds.
    pub limits: Limits,
    /// Its receivers.
    pub receivers: Receivers,
    /// Whether it takes writes.
    pub halt: Arc<Halt>,
    /// Where each new extent is told.
    pub extent: watch::Sender<Extent>,
    /// The publisher's clock.
    pub clock: Arc<Clock>,
}

impl Publisher {
    /// Starts the appender. It ends once all its entrances are gone and what
    /// waits is done. Called within a runtime, whose timer wakes the appender.
    ///
    /// # Errors
    /// The operating system's, when there is no thread.
    pub fn start(parts: Parts) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (sender, queue) = mpsc::unbounded_channel();
        let reader = parts.engine.reader();
        let halt = Arc::clone(&parts.halt);
        let guard = Guard(Arc::clone(&halt));
        let appender = Appender { reader, parts, queue, carried: None, oldest: Oldest::default() };
        let thread = std::thread::Builder::new().name("appender".to_owned()).spawn(move || {
            let _guard = guard;
            appender.run();
        })?;
        let room = Arc::new(Semaphore::new(MAX_QUEUE_WEIGHT));
        tokio::spawn(tick(sender.downgrade(), Arc::clone(&room)));
        Ok((Publisher { queue: sender, room, halt }, thread))
    }

    /// Puts events that belong together into the queue, and waits for room there
    /// first. What is submitted first is committed first, or with it and before it.
    ///
    /// # Errors
    /// BATCH_TOO_LARGE; LOG_HALTED or SHUTTING_DOWN when nobody takes from the queue.
    pub async fn submit(&self, intents: Vec<Intent>) -> Result<Submitted, Refusal> {
        // Encoded here, many at a time, rather than on the one thread.
        let events: Vec<Prepared> = intents.into_iter().map(Prepared::new).collect();
        let bytes = events.iter().map(Prepared::stored_bytes).sum::<usize>();
        if bytes > MAX_BATCH_BYTES {
            return Err(Refusal::new(
                Reason::BatchTooLarge,
                format!("events: {bytes} bytes together, at most {MAX_BATCH_BYTES} are allowed"),
            )
            .at_field("events", format!("has {bytes} bytes"))
            .with("limit", MAX_BATCH_BYTES));
        }
        let weight = bytes + events.len() * ANSWER_BYTES;
        let (answer, answered) = oneshot::channel();
        // Who waits for room is first in line for it, and those behind get none before
        // it has been taken. Nobody knows when a caller is polled, so a task waits.
        let queued = match Arc::clone(&self.room).try_acquire_many_owned(weight as u32) {
            Ok(room) => {
                let request = Request { events, bytes, answer, _room: room };
                self.queue.send(Work::Publish(request)).is_ok()
            }
            Err(_) => {
                let Publisher { queue, room, .. } = self.clone();
                let waiting = tokio::spawn(async move {
                    let room = room.acquire_many_owned(weight as u32).await.ok()?;
                    let request = Request { events, bytes, answer, _room: room };
                    queue.send(Work::Publish(request)).ok()
                });
                // A caller that hangs up gives up its place in the line.
                AbortOnDropHandle::new(waiting).await.is_ok_and(|queued| queued.is_some())
            }
        };
        match queued {
            true => Ok(Submitted { weight, answered, halt: Arc::clone(&self.halt) }),
            false => Err(self.halt.gone()),
        }
    }
}

/// Events in the queue. Resolves to their receipts once they are on stable
/// storage, or to their refusal; dropping it changes nothing about that.
#[derive(Debug)]
pub struct Submitted {
    weight: usize,
    answered: oneshot::Receiver<Result<Vec<Receipt>, Refusal>>,
    halt: Arc<Halt>,
}

impl Submitted {
    /// What the request weighs in the queue, and its answer after that.
    pub fn weight(&self) -> usize {
        self.weight
    }
}

impl Future for Submitted {
    type Output = Result<Vec<Receipt>, Refusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answered).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| Err(self.halt.gone())))
    }
}

/// Up to where a full log may be emptied, and who holds it there.
pub fn acknowledged(
    limits: &Limits,
    receivers: &Receivers,
    floor: Sequence,
) -> (Sequence, Vec<String>) {
    match limits.when_full {
        WhenFull::Reject => receivers.acknowledged(floor),
        // Whoever may still need them, the oldest go.
        WhenFull::DropOldest => (floor, Vec::new()),
    }
}

/// Wakes the appender now and then, for as long as it has other entrances.
async fn tick(appender: mpsc::WeakUnboundedSender<Work>, room: Arc<Semaphore>) {
    let mut ticks = tokio::time::interval(trim::TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(appender) = appender.upgrade() else { return };
        // With a full queue it is awake, and the next tick is not far.
        if let Ok(room) = Arc::clone(&room).try_acquire_many_owned(ANSWER_BYTES as u32) {
            let _ = appender.send(Work::Trim { _room: room });
        }
    }
}

struct Appender {
    parts: Parts,
    reader: Arc<dyn LogReader>,
    queue: mpsc::UnboundedReceiver<Work>,
    /// Taken from the queue, but not fit for the group before it.
    carried: Option<Work>,
    oldest: Oldest,
}

impl Appender {
    fn run(mut self) {
        while let Some(work) = self.carried.take().or_else(|| self.queue.blocking_recv()) {
            match work {
                Work::Publish(first) => {
                    let requests = self.gather(first);
                    self.commit(requests);
                }
                Work::Trim { .. } => self.trim(),
            }
        }
    }

    /// Everything that waits, as far as it fits one group.
    fn gather(&mut self, first: Request) -> Vec<Request> {
        // No group is larger than the log itself: what is answered OK can be read.
        let limits = &self.parts.limits;
        let most_events = limits.max_events.min(MAX_GROUP_EVENTS as u64) as usize;
        let most_bytes = limits.max_bytes.min(MAX_GROUP_BYTES as u64) as usize;
        let (mut events, mut bytes) = (first.events.len(), first.bytes);
        let mut requests = vec![first];
        while let Ok(work) = self.queue.try_recv() {
            match work {
                Work::Publish(request)
                    if events + request.events.len() <= most_events
                        && bytes + request.bytes <= most_bytes =>
                {
                    events += request.events.len();
                    bytes += request.bytes;
                    requests.push(request);
                }
                other => {
                    self.carried = Some(other);
                    break;
                }
            }
        }
        requests
    }

    fn commit(&mut self, requests: Vec<Request>) {
        let Parts { engine, receipts, store, limits, receivers, halt, extent, clock } =
            &mut self.parts;
        let now_ms = clock.now_ms();
        if !halt.is_closed()
            && let Err(error) = store.advance(receipts, now_ms, limits.key_window)
        {
            halt.judge(&error);
        }
        let base = self.reader.extent();
        let mut group = Group::new(base);
        {
            let receipts = receipts::look(receipts);
            let ground = Ground {
                receipts: &receipts,
                log: &*self.reader,
                limits,
                halt,
                acknowledged: acknowledged(limits, receivers, base.floor),
                now_ms,
            };
            for Request { events, answer, .. } in requests {
                group.take(events, answer, &ground, &mut self.oldest);
            }
        }
        match group.commit(&mut **engine) {
            Ok(committed) => {
                committed.insert_into(receipts);
                if committed.is_new() {
                    extent.send_replace(self.reader.extent());
                }
                committed.answer();
                if let Err(error) = store.save_if_many(receipts) {
                    halt.judge(&error);
                }
            }
            Err(failed) => {
                let refusal = halt.judge(&failed.error);
                failed.answer(&refusal);
            }
        }
    }

    /// Drops what is too old, and gives back what has been dropped.
    fn trim(&mut self) {
        if self.parts.halt.is_closed() {
            return;
        }
        let now_ms = self.parts.clock.now_ms();
        trim::expire(&mut self.parts, &*self.reader, &mut self.oldest, now_ms);
        trim::forget(&mut self.parts, now_ms);
        while trim::release(&mut self.parts) {}
    }
}

#[cfg(test)]
mod tests;
