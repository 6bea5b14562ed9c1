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
    aging::Aging,
    batch::{Answered, Batch},
    clock::Clock,
    group::{Answer, Committed, Ground, Group},
    halt::{Guard, Halt},
    log::{EventLog, Extent, LogReader},
    oldest::Oldest,
    receipts,
    retention::{Limits, OnAhead},
    trim,
};
use crate::proto::limits::*;

/// Requests whose answers are given out in one go. With fewer, more is written in smaller
/// pieces; with more, callers wait for the last of them.
const ANSWERED_TOGETHER: usize = 32;
/// Groups that may be committed before the answers to the first of them have gone out.
const COMMITTED_AHEAD: usize = 8;

/// The entrance: hands requests to the appender.
#[derive(Debug, Clone)]
pub struct Publisher {
    /// Bounded by `room`.
    queue: mpsc::UnboundedSender<Work>,
    /// Weight that the queue has left.
    room: Arc<Semaphore>,
    bounds: Bounds,
    halt: Arc<Halt>,
}

/// What one group holds at most, and so a batch of requests too.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    events: usize,
    bytes: usize,
}

impl Bounds {
    /// No group is larger than the log itself: what is answered OK can be read.
    fn of(limits: &Limits) -> Self {
        Bounds {
            events: limits.max_events.min(MAX_GROUP_EVENTS as u64) as usize,
            bytes: limits.max_bytes.min(MAX_GROUP_BYTES as u64) as usize,
        }
    }

    fn hold(self, events: usize, bytes: usize) -> bool {
        events <= self.events && bytes <= self.bytes
    }
}

enum Work {
    Publish(Request),
    /// Time to look for what is too old. Takes room as any other work does.
    Trim {
        _room: OwnedSemaphorePermit,
    },
}

struct Request {
    batch: Batch,
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
    /// Where it is told how old events are.
    pub aging: Arc<Aging>,
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
        let bounds = Bounds::of(&parts.limits);
        let oldest = Oldest::default();
        let (committed, answering) = mpsc::channel(COMMITTED_AHEAD);
        let appender = Appender { reader, parts, bounds, queue, carried: None, oldest, committed };
        let thread = std::thread::Builder::new().name("appender".to_owned()).spawn(move || {
            let _guard = guard;
            appender.run();
        })?;
        let room = Arc::new(Semaphore::new(MAX_QUEUE_WEIGHT));
        tokio::spawn(tick(sender.downgrade(), Arc::clone(&room)));
        tokio::spawn(answer(answering, Guard(Arc::clone(&halt))));
        Ok((Publisher { queue: sender, room, bounds, halt }, thread))
    }

    /// Whether so many events more may go into the queue together with a batch.
    pub fn fit_together(&self, batch: &Batch, events: usize, bytes: usize) -> bool {
        self.bounds.hold(batch.events() + events, batch.stored_bytes() + bytes)
    }

    /// Puts requests into the queue; where it is full, once there is room. What is
    /// submitted first is committed first, or with it and before it, where each is
    /// submitted once the one before is queued.
    pub fn submit(&self, batch: Batch) -> Submitted {
        let (requests, weight) = (batch.len(), batch.weight());
        let (answer, answered) = oneshot::channel();
        // Who waits for room is first in line for it, and those behind get none before
        // it has been taken. Nobody knows when a caller is polled, so a task waits.
        let queueing = match Arc::clone(&self.room).try_acquire_many_owned(weight as u32) {
            Ok(room) => {
                // Where nobody takes it, the answer's channel is closed.
                let _ = self.queue.send(Work::Publish(Request { batch, answer, _room: room }));
                None
            }
            Err(_) => {
                let Publisher { queue, room, .. } = self.clone();
                Some(AbortOnDropHandle::new(tokio::spawn(async move {
                    if let Ok(room) = room.acquire_many_owned(weight as u32).await {
                        let request = Request { batch, answer, _room: room };
                        let _ = queue.send(Work::Publish(request));
                    }
                })))
            }
        };
        Submitted { queueing, requests, weight, answered, halt: Arc::clone(&self.halt) }
    }
}

/// Requests in the queue, or in line for it: there a caller that hangs up gives up its
/// place. Resolves to their answers once what is accepted of them is on stable storage;
/// that it is dropped then changes nothing about that. Where nobody takes from the
/// queue, all are refused: LOG_HALTED or SHUTTING_DOWN.
#[derive(Debug)]
pub struct Submitted {
    /// Those that wait for room.
    queueing: Option<AbortOnDropHandle<()>>,
    requests: usize,
    weight: usize,
    answered: oneshot::Receiver<Answered>,
    halt: Arc<Halt>,
}

impl Submitted {
    /// Whether they stand in the queue, or never will.
    pub fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(queueing) = &mut self.queueing {
            let _ = ready!(Pin::new(queueing).poll(cx));
            self.queueing = None;
        }
        Poll::Ready(())
    }

    /// What the requests weigh in the queue, and their answers after that.
    pub fn weight(&self) -> usize {
        self.weight
    }
}

impl Future for Submitted {
    type Output = Answered;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.answered).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| Answered::refused(self.halt.gone(), self.requests)))
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

/// Tells callers of what is committed, a few at a time: so the first of them are on their way
/// while others are still being told, and publish again while those are on theirs.
async fn answer(mut committed: mpsc::Receiver<Committed>, _guard: Guard) {
    while let Some(mut group) = committed.recv().await {
        while group.answer(ANSWERED_TOGETHER) {
            tokio::task::yield_now().await;
        }
    }
}

struct Appender {
    parts: Parts,
    reader: Arc<dyn LogReader>,
    bounds: Bounds,
    queue: mpsc::UnboundedReceiver<Work>,
    /// Taken from the queue, but not fit for the group before it.
    carried: Option<Work>,
    oldest: Oldest,
    /// Those who are to be told.
    committed: mpsc::Sender<Committed>,
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
        let (mut events, mut bytes) = (first.batch.events(), first.batch.stored_bytes());
        let mut requests = vec![first];
        while let Ok(work) = self.queue.try_recv() {
            match work {
                Work::Publish(request)
                    if self.bounds.hold(
                        events + request.batch.events(),
                        bytes + request.batch.stored_bytes(),
                    ) =>
                {
                    events += request.batch.events();
                    bytes += request.batch.stored_bytes();
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
        let Parts { engine, receipts, store, limits, receivers, halt, extent, clock, .. } =
            &mut self.parts;
        let now_ms = clock.now_ms();
        if !halt.is_closed()
            && let Err(error) = store.advance(receipts, now_ms, limits.key_window)
        {
            halt.judge(&error);
        }
        let base = self.reader.extent();
        let events = requests.iter().map(|request| request.batch.events()).sum();
        let mut group = Group::new(base, events);
        let hold = receivers.hold(limits, base.floor, now_ms);
        let suspect = match limits.on_ahead {
            OnAhead::RefusePublish => receivers.suspicion().refusal(&base),
            OnAhead::Alarm => None,
        };
        {
            let receipts = receipts::look(receipts);
            let events = requests.iter().flat_map(|request| request.batch.prepared());
            receipts.prefetch(events.map(|event| &event.names.key));
            let ground = Ground {
                receipts: &receipts,
                log: &*self.reader,
                limits,
                halt,
                hold: &hold,
                suspect: suspect.as_ref(),
                now_ms,
            };
            for Request { batch, answer, .. } in requests {
                group.take(batch, answer, &ground, &mut self.oldest);
            }
        }
        match group.commit(&mut **engine) {
            Ok(committed) => {
                committed.insert_into(receipts);
                if committed.is_new() {
                    let now = self.reader.extent();
                    receivers.tell_overtaken(base.floor..now.floor);
                    extent.send_replace(now);
                }
                // Where there is no runtime any more, nobody waits either.
                let _ = self.committed.blocking_send(committed);
                if let Err(error) = store.save_beside(receipts) {
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
        self.parts.aging.look(self.parts.limits.max_age, &*self.reader, now_ms);
        trim::forget(&mut self.parts, now_ms);
        while trim::release(&mut self.parts) {}
    }
}

#[cfg(test)]
mod tests;
