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
            // The first after a pause: whoever is about to submit has one turn of the
            // scheduler to come along.
            if state.sender.take().is_some() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::task::noop_waker_ref;
    use tokio::sync::Semaphore;

    use super::*;

    struct Callers {
        queue: mpsc::UnboundedSender<Call>,
        flight: Flight,
    }

    fn callers() -> Callers {
        let (queue, queued) = mpsc::unbounded_channel();
        Callers { queue, flight: Flight::new(queued) }
    }

    impl Callers {
        fn submit(&self, request: &'static str) -> oneshot::Receiver<Answer> {
            let (answer, answered) = oneshot::channel();
            let room = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("there is room");
            let request = Bytes::from_static(request.as_bytes());
            let call = Call { request, events: 1, answer, sent: false, attempts: 0, _room: room };
            self.queue.send(call).expect("the flight takes it");
            answered
        }

        /// What goes out on a stream until it has to wait, or ends.
        fn sent(&self, stream: StreamNumber) -> Vec<Bytes> {
            let mut cx = Context::from_waker(noop_waker_ref());
            let next = || match self.flight.poll_send(stream, &mut cx) {
                Poll::Ready(request) => request,
                Poll::Pending => None,
            };
            std::iter::from_fn(next).collect()
        }

        fn answers(&self) -> Result<(), Status> {
            let receipts = vec![Receipt::default()];
            self.flight.answer(PublishStreamResponse { receipts, error: None })
        }
    }

    #[test]
    fn what_is_unanswered_goes_out_again_in_order_before_what_is_new() {
        let callers = callers();
        let answers = ["a", "b", "c"].map(|request| callers.submit(request));
        let first = callers.flight.open();
        assert_eq!(callers.sent(first), ["a", "b", "c"]);
        callers.answers().expect("a was asked");
        callers.flight.broke(&Status::unavailable("cut"), None);
        let _d = callers.submit("d");
        let second = callers.flight.open();
        assert_eq!(callers.sent(first), [""; 0], "the old stream takes nothing from the new one");
        assert_eq!(callers.sent(second), ["b", "c", "d"]);
        assert_eq!(callers.flight.repeated(), 2);
        let [mut a, mut b, _] = answers;
        assert!(a.try_recv().expect("answered").is_ok());
        assert!(b.try_recv().is_err(), "not answered yet");
    }

    #[test]
    fn after_a_pause_whoever_is_about_to_submit_comes_along() {
        let callers = callers();
        let stream = callers.flight.open();
        assert_eq!(callers.sent(stream), [""; 0]);
        let _a = callers.submit("a");
        assert_eq!(callers.sent(stream), [""; 0], "one turn of the scheduler");
        let _b = callers.submit("b");
        assert_eq!(callers.sent(stream), ["a", "b"]);
    }

    #[test]
    fn an_answer_that_nobody_asked_for_is_none() {
        let callers = callers();
        callers.flight.open();
        assert!(callers.answers().is_err());
        let _a = callers.submit("a");
        assert!(callers.answers().is_err(), "queued, and not sent");
    }

    #[test]
    fn attempts_are_counted_for_all_who_wait() {
        let callers = callers();
        let (mut a, mut b) = (callers.submit("a"), callers.submit("b"));
        let cut = Status::unavailable("cut");
        for attempt in 1..=2 {
            let stream = callers.flight.open();
            if attempt == 2 {
                assert_eq!(callers.sent(stream), ["a", "b"]);
            }
            callers.flight.broke(&cut, Some(3));
        }
        let mut c = callers.submit("c");
        callers.flight.open();
        callers.flight.broke(&cut, Some(3));
        for answer in [&mut a, &mut b] {
            let error = answer.try_recv().expect("answered").expect_err("given up");
            assert!(matches!(error, PublishError::Unanswered { attempts: 3, .. }), "{error:?}");
        }
        assert!(c.try_recv().is_err(), "it has had one attempt");
        callers.flight.broke(&Status::unimplemented("no streams"), Some(3));
        let error = c.try_recv().expect("answered").expect_err("no use");
        assert!(matches!(error, PublishError::NotSent { attempts: 2, .. }), "{error:?}");
    }
}
