//! PublishStream: requests go into the queue as they arrive, one after the
//! other, and their answers come out in the same order. Both are driven by
//! whoever takes the answers: a caller that reads none is soon read no more. It
//! holds nothing that others wait for: room in the queue is waited for by a task.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    halt::shutting_down,
    hub::Hub,
    intake::{Accepting, submit},
};
use crate::proto::{
    limits::{ANSWER_BYTES, MAX_PUBLISH_STREAMS, MAX_STREAM_WEIGHT},
    pb,
    refusal::{Reason, Refusal, status_message},
};

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

/// The answers to a stream of requests. Ends OK when the requests have ended,
/// SHUTTING_DOWN when the process is told to, and as the requests do when they
/// break off; in each case after the answers to all that had arrived.
pub fn open(
    hub: Hub,
    ending: CancellationToken,
    place: OwnedSemaphorePermit,
    requests: impl Stream<Item = Result<pb::PublishRequest, Status>> + Send,
) -> impl Stream<Item = Result<pb::PublishStreamResponse, Status>> + Send {
    let arriving = requests.take_until(ending.clone().cancelled_owned());
    let told_to_end =
        async move { ending.is_cancelled().then(|| Err(Status::from(shutting_down()))) };
    let requests = arriving.chain(stream::once(told_to_end).filter_map(future::ready));
    // The next one is not looked at before this one stands in the queue.
    let submitted = requests.and_then(move |request| {
        let hub = hub.clone();
        async move { Ok(submit(&hub, request).await) }
    });
    Answers {
        submitted: Some(Box::pin(submitted)),
        waiting: VecDeque::new(),
        weight: 0,
        last_word: None,
        _place: place,
    }
}

/// Answers in the order of the requests.
struct Answers<S> {
    /// Nothing once it has ended.
    submitted: Option<Pin<Box<S>>>,
    waiting: VecDeque<Result<Accepting, Refusal>>,
    /// Of those that wait; less than [`MAX_STREAM_WEIGHT`] before the newest.
    weight: usize,
    /// Why the requests have ended, if not by themselves.
    last_word: Option<Status>,
    /// Held for as long as the stream is open.
    _place: OwnedSemaphorePermit,
}

impl<S: Stream<Item = Result<Result<Accepting, Refusal>, Status>>> Answers<S> {
    /// Takes in what has arrived, as far as there is room.
    fn take_in(&mut self, cx: &mut Context<'_>) {
        while self.weight < MAX_STREAM_WEIGHT
            && let Some(submitted) = &mut self.submitted
        {
            match submitted.as_mut().poll_next(cx) {
                Poll::Pending => return,
                Poll::Ready(Some(Ok(request))) => {
                    self.weight += weight(&request);
                    self.waiting.push_back(request);
                }
                Poll::Ready(Some(Err(status))) => {
                    self.last_word = Some(status);
                    self.submitted = None;
                }
                Poll::Ready(None) => self.submitted = None,
            }
        }
    }
}

impl<S: Stream<Item = Result<Result<Accepting, Refusal>, Status>>> Stream for Answers<S> {
    type Item = Result<pb::PublishStreamResponse, Status>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        this.take_in(cx);
        let answer = match this.waiting.front_mut() {
            Some(Ok(accepting)) => ready!(Pin::new(accepting).poll(cx)),
            Some(Err(refusal)) => Err(refusal.clone()),
            None if this.submitted.is_some() => return Poll::Pending,
            None => return Poll::Ready(this.last_word.take().map(Err)),
        };
        if let Some(answered) = this.waiting.pop_front() {
            this.weight -= weight(&answered);
        }
        Poll::Ready(Some(Ok(message(answer))))
    }
}

/// What a request and its answer weigh. A refused request is gone, its answer is not.
fn weight(request: &Result<Accepting, Refusal>) -> usize {
    let texts = |refusal: &Refusal| {
        let fields = refusal.fields.iter().map(|(field, wrong)| field.len() + wrong.len());
        refusal.message.len() + fields.sum::<usize>()
    };
    match request {
        Ok(accepting) => accepting.weight(),
        Err(refusal) => ANSWER_BYTES + texts(refusal),
    }
}

fn message(answer: Result<Vec<pb::Receipt>, Refusal>) -> pb::PublishStreamResponse {
    match answer {
        Ok(receipts) => pb::PublishStreamResponse { receipts, error: None },
        Err(refusal) => pb::PublishStreamResponse {
            receipts: Vec::new(),
            error: Some(status_message(refusal.into())),
        },
    }
}

#[cfg(test)]
mod tests;
