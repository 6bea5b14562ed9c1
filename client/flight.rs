//! The requests of all callers on their way: what is queued, what was sent, and
//! what has to be sent again. Keeps the order; knows nothing of connections.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tonic::Status;

use super::{
    error::PublishError,
    judge::{Verdict, judge},
};
use crate::proto::{
    pb::{PublishStreamResponse, Receipt},
    refusal::status_of,
};

/// What a caller gets.
pub type Answer = Result<Vec<Receipt>, PublishError>;

/// One request and its caller.
#[derive(Debug)]
pub struct Call {
    /// The encoded request.
    pub request: Bytes,
    /// Its events: as many receipts it has to get.
    pub events: usize,
    /// Its caller.
    pub answer: oneshot::Sender<Answer>,
    /// Whether it has ever been sent.
    pub sent: bool,
    /// Streams that broke while it waited.
    pub attempts: u32,
    /// Its share of the room for what waits.
    pub _room: OwnedSemaphorePermit,
}

/// The number of a stream. An older one than the newest sends nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamNumber(u64);

/// The requests on their way.
#[derive(Debug)]
pub struct Flight(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Not taken yet.
    queue: mpsc::UnboundedReceiver<Call>,
    /// Taken from the queue, in its order, and not answered.
    calls: VecDeque<Call>,
    /// So many of them, from the first on, were sent on the newest stream.
    /// At most `calls.len()`.
    sent: usize,
    newest: StreamNumber,
    /// Whoever waits to send on the newest stream.
    sender: Option<Waker>,
    /// Calls that have been answered.
    answered: u64,
    /// Calls that were sent once more.
    repeated: u64,
}

impl Flight {
    /// Takes its requests from a queue.
    pub fn new(queue: mpsc::UnboundedReceiver<Call>) -> Self {
        Flight(Mutex::new(State {
            queue,
            calls: VecDeque::new(),
            sent: 0,
            newest: StreamNumber(0),
            sender: None,
            answered: 0,
            repeated: 0,
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is something to send, once that is known: `false` when
    /// there will never be anything again.
    pub fn poll_work(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = self.state();
        if state.calls.is_empty() {
            match ready!(state.queue.poll_recv(cx)) {
                Some(call) => state.calls.push_back(call),
                None => return Poll::Ready(false),
            }
        }
        Poll::Ready(true)
    }

    /// A new stream: everything that is not answered will be sent on it, in order.
    pub fn open(&self) -> StreamNumber {
        let mut state = self.state();
        state.close();
        state.newest
    }

    /// The next request for a stream; nothing once it has been closed, or there
    /// will be no more.
    pub fn poll_send(&self, stream: StreamNumber, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let mut state = self.state();
        if stream != state.newest {
            return Poll::Ready(None);
        }
        if state.sent == state.calls.len() {
            match state.queue.poll_recv(cx) {
                Poll::Ready(Some(call)) => state.calls.push_back(call),
                Poll::Ready(None) => return Poll::Ready(None),
                Poll::Pending => {
                    state.sender = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
        let State { calls, sent, repeated, .. } = &mut *state;
        let Some(call) = calls.get_mut(*sent) else { return Poll::Ready(None) };
        *sent += 1;
        *repeated += u64::from(call.sent);
        call.sent = true;
        Poll::Ready(Some(call.request.clone()))
    }

    /// Hands an answer to the caller of the oldest request.
    ///
    /// # Errors
    /// Why this is no answer, and the stream has to be given up.
    pub fn answer(&self, response: PublishStreamResponse) -> Result<(), Status> {
        let refused = response.error.as_ref().map(status_of);
        if let Some(status) = &refused
            && judge(status) == Verdict::Retry
        {
            return Err(status.clone());
        }
        let mut state = self.state();
        if state.sent == 0 {
            return Err(Status::internal("the publisher has answered what was not asked"));
        }
        let (asked, got) = (state.calls[0].events, response.receipts.len());
        if refused.is_none() && asked != got {
            return Err(Status::internal(format!(
                "the publisher has answered {asked} events with {got} receipts"
            )));
        }
        let call = state.calls.pop_front();
        state.sent -= 1;
        state.answered += 1;
        drop(state);
        if let Some(call) = call {
            let answer =
                refused.map_or(Ok(response.receipts), |why| Err(PublishError::Refused(why)));
            let _ = call.answer.send(answer); // its caller may have gone
        }
        Ok(())
    }

    /// The newest stream has ended. Tells those callers who have had as many
    /// attempts as there may be; what it tells a publisher that is not worth
    /// another attempt, it tells all.
    pub fn broke(&self, status: &Status, attempts: Option<u32>) {
        let given_up = {
            let mut state = self.state();
            state.close();
            // Whoever has waited in the queue has waited for this stream too.
            while let Ok(call) = state.queue.try_recv() {
                state.calls.push_back(call);
            }
            for call in &mut state.calls {
                call.attempts += 1;
            }
            let most = match judge(status) {
                Verdict::Retry => attempts.unwrap_or(u32::MAX),
                Verdict::Request | Verdict::Stop => 0,
            };
            // Attempts do not grow towards the newer ones.
            let given_up = state.calls.iter().take_while(|call| call.attempts >= most).count();
            state.calls.drain(..given_up).collect::<Vec<_>>()
        };
        for Call { answer, sent, attempts, .. } in given_up {
            let last = status.clone();
            let _ = answer.send(Err(match sent {
                true => PublishError::Unanswered { attempts, last },
                false => PublishError::NotSent { attempts, last },
            }));
        }
    }

    /// Which request is the oldest without an answer, if there is one.
    pub fn oldest(&self) -> Option<u64> {
        let state = self.state();
        (!state.calls.is_empty()).then_some(state.answered)
    }

    /// Requests that have been answered.
    pub fn answered(&self) -> u64 {
        self.state().answered
    }

    /// Requests that were sent once more.
    pub fn repeated(&self) -> u64 {
        self.state().repeated
    }
}

impl State {
    /// Ends the newest stream and makes its successor the newest.
    fn close(&mut self) {
        self.newest.0 += 1;
        self.sent = 0;
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}
