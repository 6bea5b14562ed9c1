//! PublishStream: requests go into the queue as they arrive, one after the
//! other, and their answers come out in the same order. Both are driven by
//! whoever takes the answers: a caller that reads none is soon read no more. It
//! holds nothing that others wait for: room in the queue is waited for by a task.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, future, stream};
use prost::Message as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    admit::{Prepared, stored_bytes},
    batch::{Answered, Batch},
    halt::shutting_down,
    hub::{Hub, Log},
    intake,
    publish::Submitted,
};
use crate::proto::{
    limits::{ANSWER_BYTES, MAX_PUBLISH_STREAMS, MAX_STREAM_BATCH, MAX_STREAM_WEIGHT},
    pb,
    publishing::PublishRequest,
    refusal::{Reason, Refusal, status_message},
    wire,
};

/// Events and answers are encoded in pieces of memory of about this size.
const ROOM_BYTES: usize = 64 * 1024;

/// A place among the open streams, which `free` counts.
///
/// # Errors
/// STREAMS_FULL. Not a wait: its caller would not know what for, nor how long.
pub fn place(free: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Refusal> {
    Arc::clone(free).try_acquire_owned().map_err(|_| {
        Refusal::new(
            Reason::StreamsFull,
            format!(
                "{MAX_PUBLISH_STREAMS} PublishStreams are open, as many as there may be; share one among callers, or use Publish"
            ),
        )
        .with("limit", MAX_PUBLISH_STREAMS)
    })
}

/// The answers to a stream of requests, each an encoded [`pb::PublishStreamResponse`].
/// Ends OK when the requests have ended, SHUTTING_DOWN when the process is told to, and
/// as the requests do when they break off; in each case after the answers to all that
/// had arrived.
pub fn open(
    hub: Hub,
    ending: CancellationToken,
    place: OwnedSemaphorePermit,
    requests: impl Stream<Item = Result<PublishRequest, Status>> + Send,
) -> impl Stream<Item = Result<Bytes, Status>> + Send {
    let arriving = requests.take_until(ending.clone().cancelled_owned());
    let told_to_end =
        async move { ending.is_cancelled().then(|| Err(Status::from(shutting_down()))) };
    let requests = arriving.chain(stream::once(told_to_end).filter_map(future::ready));
    Answers {
        hub,
        requests: Some(Box::pin(requests)),
        gathered: None,
        waiting: VecDeque::new(),
        queueing: false,
        weight: 0,
        last_word: None,
        contents: BytesMut::new(),
        events: Vec::new(),
        answers: BytesMut::new(),
        _place: place,
    }
}

/// Answers in the order of the requests.
struct Answers<S> {
    hub: Hub,
    /// Nothing once they have ended.
    requests: Option<Pin<Box<S>>>,
    /// Requests that go into the queue together once no more have arrived, and their log.
    gathered: Option<(Log, Batch)>,
    waiting: VecDeque<Waiting>,
    /// The last of those that were submitted may not have its place in the queue yet:
    /// before that, no others are looked at.
    queueing: bool,
    /// Of all that has gathered or waits; less than [`MAX_STREAM_WEIGHT`] before the newest.
    weight: usize,
    /// Why the requests have ended, if not by themselves.
    last_word: Option<Status>,
    /// Where events are encoded, and listed.
    contents: BytesMut,
    events: Vec<Prepared>,
    /// Where answers are encoded.
    answers: BytesMut,
    /// Held for as long as the stream is open.
    _place: OwnedSemaphorePermit,
}

/// What is to be answered.
enum Waiting {
    /// Requests in the queue.
    Submitted { submitted: Submitted, key_window: Duration },
    /// Requests that have their answers, and what those weigh together.
    Answered { answered: Answered, key_window: Duration, weight: usize },
    /// A request that never got there.
    Refused(Refusal),
}

impl<S: Stream<Item = Result<PublishRequest, Status>>> Answers<S> {
    /// Takes in what has arrived, as far as there is room.
    fn take_in(&mut self, cx: &mut Context<'_>) {
        while self.poll_queued(cx).is_ready()
            && self.weight < MAX_STREAM_WEIGHT
            && let Some(requests) = &mut self.requests
        {
            match requests.as_mut().poll_next(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(Ok(request))) => self.gather(request),
                Poll::Ready(Some(Err(status))) => {
                    self.last_word = Some(status);
                    self.requests = None;
                }
                Poll::Ready(None) => self.requests = None,
            }
        }
        // Nobody waits for those that may come later. If these have to wait for room,
        // that is looked at the next time, when they are waited for.
        if !self.queueing {
            self.submit();
            let _ = self.poll_queued(cx);
        }
    }

    fn poll_queued(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.queueing {
            let last = self.waiting.iter_mut().rev().find_map(|waiting| match waiting {
                Waiting::Submitted { submitted, .. } => Some(submitted),
                _ => None,
            });
            // One that has been answered has been queued.
            last.map_or(Poll::Ready(()), |submitted| submitted.poll_queued(cx)).map(|()| {
                self.queueing = false;
            })
        } else {
            Poll::Ready(())
        }
    }

    /// Checks a request and lets it join those that have gathered, if it may.
    fn gather(&mut self, request: PublishRequest) {
        let Answers { hub, contents, events, .. } = self;
        if contents.capacity() == 0 {
            // In pieces of this size from here on, each of them for many events.
            *contents = BytesMut::with_capacity(ROOM_BYTES);
        }
        let log = match intake::prepare(hub, request, contents, events) {
            Ok(log) => log,
            Err(refusal) => {
                self.submit(); // its answer comes after theirs
                self.weight += weight(&refusal);
                return self.waiting.push_back(Waiting::Refused(refusal));
            }
        };
        let joins = self.gathered.as_ref().is_some_and(|(same, batch)| {
            Arc::ptr_eq(&same.name, &log.name)
                && batch.len() < MAX_STREAM_BATCH
                && log.publisher.fit_together(batch, events.len(), stored_bytes(events))
        });
        if !joins {
            let log = log.clone();
            self.submit();
            self.gathered = Some((log, Batch::default()));
        }
        if let Some((_, batch)) = &mut self.gathered {
            let before = batch.weight();
            batch.add(&mut self.events);
            self.weight += batch.weight() - before;
        }
    }

    /// Puts what has gathered into the queue.
    fn submit(&mut self) {
        if let Some((log, batch)) = self.gathered.take() {
            let (submitted, key_window) = (log.publisher.submit(batch), log.limits.key_window);
            self.waiting.push_back(Waiting::Submitted { submitted, key_window });
            self.queueing = true;
        }
    }

    /// Nothing waits: what the largest request has needed is given back.
    fn rest(&mut self) {
        self.contents = BytesMut::new();
        self.events = Vec::new();
        self.answers = BytesMut::new();
    }

    /// The next answer; nothing when there is none to come for what has been taken in.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Some(first) = self.waiting.front_mut() else { return Poll::Ready(None) };
            match first {
                Waiting::Submitted { submitted, key_window } => {
                    let (weight, key_window) = (submitted.weight(), *key_window);
                    let answered = ready!(Pin::new(submitted).poll(cx));
                    *first = Waiting::Answered { answered, key_window, weight };
                }
                Waiting::Answered { answered, key_window, weight } => match answered.take_next() {
                    Some(Ok(receipts)) => {
                        if self.answers.capacity() == 0 {
                            self.answers = BytesMut::with_capacity(ROOM_BYTES);
                        }
                        for receipt in receipts {
                            let receipt = intake::receipted(&receipt, *key_window);
                            wire::put_receipt(&receipt, &mut self.answers);
                        }
                        return Poll::Ready(Some(self.answers.split().freeze()));
                    }
                    Some(Err(refusal)) => return Poll::Ready(Some(refused(refusal))),
                    None => {
                        self.weight -= *weight;
                        self.waiting.pop_front();
                    }
                },
                Waiting::Refused(refusal) => {
                    let refusal = refusal.clone();
                    self.weight -= weight(&refusal);
                    self.waiting.pop_front();
                    return Poll::Ready(Some(refused(refusal)));
                }
            }
        }
    }
}

impl<S: Stream<Item = Result<PublishRequest, Status>>> Stream for Answers<S> {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        // What is there is given out before more is looked at: it is there for a whole batch.
        if matches!(this.waiting.front(), Some(Waiting::Answered { .. }))
            && let Poll::Ready(Some(answer)) = this.poll_answer(cx)
        {
            return Poll::Ready(Some(Ok(answer)));
        }
        this.take_in(cx);
        match ready!(this.poll_answer(cx)) {
            Some(answer) => Poll::Ready(Some(Ok(answer))),
            None if this.requests.is_some() => {
                this.rest();
                Poll::Pending
            }
            None => Poll::Ready(this.last_word.take().map(Err)),
        }
    }
}

/// What the answer to a request weighs that is refused and gone.
fn weight(refusal: &Refusal) -> usize {
    let fields = refusal.fields.iter().map(|(field, wrong)| field.len() + wrong.len());
    ANSWER_BYTES + refusal.message.len() + fields.sum::<usize>()
}

fn refused(refusal: Refusal) -> Bytes {
    let error = Some(status_message(refusal.into()));
    pb::PublishStreamResponse { receipts: Vec::new(), error }.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
