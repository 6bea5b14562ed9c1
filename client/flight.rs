//! The requests of all callers on their way: what is queued, what was sent, and
//! what has to be sent again. Keeps the order; knows nothing of connections.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use tonic::Status;

use super::{error::PublishError, judge::is_final};
use crate::proto::{
    pb::{PublishStreamResponse, Receipt},
    refusal::{Reason, reason_of, status_of},
};

/// What a caller gets.
pub type Published = Result<Vec<Receipt>, PublishError>;

/// One request and its caller.
#[derive(Debug)]
pub struct Call {
    /// The encoded request.
    pub request: Bytes,
    /// Its events: as many receipts it has to get.
    pub events: usize,
    /// Its caller.
    pub answer: oneshot::Sender<Published>,
    /// Whether it has ever been sent.
    pub sent: bool,
    /// Streams in a row that broke over it: it was sent, or they brought no answer at all.
    pub attempts: u32,
    /// Its share of the room for what waits.
    pub _room: OwnedSemaphorePermit,
}

/// The number of a stream. An older one than the newest sends nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamNumber(u64);

/// The requests on their way. Belongs to the task that carries them: where that
/// ends, all callers are told so, since nobody else would answer them.
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
    /// Whether the newest stream has brought an answer.
    progress: bool,
    /// Calls that were sent once more.
    repeated: Arc<AtomicU64>,
}

impl Flight {
    /// Takes its requests from a queue, and counts those that it sends once more.
    pub fn new(queue: mpsc::UnboundedReceiver<Call>, repeated: Arc<AtomicU64>) -> Self {
        Flight(Mutex::new(State {
            queue,
            calls: VecDeque::new(),
            sent: 0,
            newest: StreamNumber(0),
            sender: None,
            answered: 0,
            progress: false,
            repeated,
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
        repeated.fetch_add(call.sent.into(), Ordering::Relaxed);
        call.sent = true;
        Poll::Ready(Some(call.request.clone()))
    }

    /// Hands an answer to the caller of the oldest request. A refusal, whatever it
    /// says, is its caller's alone: going back for it would reorder the others.
    ///
    /// # Errors
    /// Why this is no answer, and the stream has to be given up.
    pub fn answer(&self, response: PublishStreamResponse) -> Result<(), Status> {
        let refused = response.error.as_ref().map(status_of);
        if let Some(status) = &refused
            && reason_of(status) == Some(Reason::ShuttingDown)
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
        state.progress = true;
        drop(state);
        if let Some(call) = call {
            let answer =
                refused.map_or(Ok(response.receipts), |why| Err(PublishError::Refused(why)));
            let _ = call.answer.send(answer); // its caller may have gone
        }
        Ok(())
    }

    /// The newest stream has ended. Tells those callers who have had as many
    /// attempts as there may be, or all if another one would be of no use.
    /// Returns whether the stream had brought an answer.
    pub fn broke(&self, status: &Status, attempts: Option<u32>) -> bool {
        let (progress, given_up) = {
            let mut state = self.state();
            let State { sent, progress, .. } = *state;
            state.close();
            // Whoever has waited in the queue has waited for this stream too.
            while let Ok(call) = state.queue.try_recv() {
                state.calls.push_back(call);
            }
            let is_final = is_final(status);
            for (place, call) in state.calls.iter_mut().enumerate() {
                if progress {
                    call.attempts = 0;
                }
                if !progress || place < sent || is_final {
                    call.attempts = call.attempts.saturating_add(1);
                }
            }
            let is_over =
                |call: &&Call| is_final || attempts.is_some_and(|most| call.attempts >= most);
            // Attempts do not grow towards the newer ones.
            let given_up = state.calls.iter().take_while(is_over).count();
            (progress, state.calls.drain(..given_up).collect::<Vec<_>>())
        };
        for Call { answer, sent, attempts, .. } in given_up {
            let last = status.clone();
            let _ = answer.send(Err(match sent {
                true => PublishError::Unanswered { attempts, last },
                false => PublishError::NotSent { attempts, last },
            }));
        }
        progress
    }

    /// Which request is the oldest without an answer, if there is one.
    pub fn oldest(&self) -> Option<u64> {
        let state = self.state();
        (!state.calls.is_empty()).then_some(state.answered)
    }
}

impl State {
    /// Ends the newest stream and makes its successor the newest.
    fn close(&mut self) {
        self.newest.0 += 1;
        self.sent = 0;
        self.progress = false;
        if let Some(sender) = self.sender.take() {
            sender.wake();
        }
    }
}

impl Drop for State {
    /// The queue's own drop stops at a call that is just being put in; this waits for it.
    fn drop(&mut self) {
        self.queue.close();
        while self.queue.try_recv().is_ok() {}
    }
}

#[cfg(test)]
pub mod tests {
    use futures_util::task::noop_waker_ref;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::proto::refusal::{Refusal, status_message};

    /// Callers of a flight that no stream carries but by hand.
    pub struct Callers {
        queue: mpsc::UnboundedSender<Call>,
        pub flight: Flight,
        repeated: Arc<AtomicU64>,
    }

    pub fn callers() -> Callers {
        let (queue, queued) = mpsc::unbounded_channel();
        let repeated = Arc::default();
        Callers { queue, flight: Flight::new(queued, Arc::clone(&repeated)), repeated }
    }

    impl Callers {
        pub fn submit(&self, request: &'static str) -> oneshot::Receiver<Published> {
            let (answer, answered) = oneshot::channel();
            let room = Arc::new(Semaphore::new(1)).try_acquire_owned().expect("there is room");
            let request = Bytes::from_static(request.as_bytes());
            let call = Call { request, events: 1, answer, sent: false, attempts: 0, _room: room };
            self.queue.send(call).expect("the flight takes it");
            answered
        }

        /// What goes out on a stream until it has to wait, or ends.
        pub fn sent(&self, stream: StreamNumber) -> Vec<Bytes> {
            let mut cx = Context::from_waker(noop_waker_ref());
            let next = || match self.flight.poll_send(stream, &mut cx) {
                Poll::Ready(request) => request,
                Poll::Pending => None,
            };
            std::iter::from_fn(next).collect()
        }

        pub fn answers(&self) -> Result<(), Status> {
            let receipts = vec![Receipt::default()];
            self.flight.answer(PublishStreamResponse { receipts, error: None })
        }

        fn refuses(&self, reason: Reason) -> Result<(), Status> {
            let error = Some(status_message(Refusal::new(reason, "why").into()));
            self.flight.answer(PublishStreamResponse { receipts: Vec::new(), error })
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
        assert_eq!(callers.repeated.load(Ordering::Relaxed), 2);
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
    fn only_an_ending_publisher_ends_the_stream_with_a_refusal() {
        for &reason in Reason::ALL {
            let callers = callers();
            let mut a = callers.submit("a");
            let stream = callers.flight.open();
            assert_eq!(callers.sent(stream), ["a"]);
            let ends = callers.refuses(reason).is_err();
            assert_eq!(ends, reason == Reason::ShuttingDown, "{reason:?}");
            assert_eq!(a.try_recv().is_err(), ends, "{reason:?}: it has its answer, or waits");
        }
    }

    #[test]
    fn whoever_waits_is_told_when_nothing_carries_the_requests_any_more() {
        let callers = callers();
        let (mut a, mut b) = (callers.submit("a"), callers.submit("b"));
        let stream = callers.flight.open();
        assert_eq!(callers.sent(stream), ["a", "b"]);
        let mut c = callers.submit("c");
        let Callers { queue, flight, .. } = callers;
        drop(flight);
        for answer in [&mut a, &mut b, &mut c] {
            assert_eq!(answer.try_recv().err(), Some(oneshot::error::TryRecvError::Closed));
        }
        assert!(queue.is_closed());
    }

    #[test]
    fn a_stream_that_brings_answers_is_no_failed_attempt_at_what_it_did_not_carry() {
        let callers = callers();
        let cut = Status::unavailable("cut");
        let (_a, mut b) = (callers.submit("a"), callers.submit("b"));
        assert!(!callers.flight.broke(&cut, Some(2)), "nothing was answered");
        let stream = callers.flight.open();
        assert_eq!(callers.sent(stream), ["a", "b"]);
        callers.answers().expect("a was asked");
        let mut c = callers.submit("c");
        assert!(callers.flight.broke(&cut, Some(2)), "a was answered");
        assert!(b.try_recv().is_err(), "after progress its count begins anew");
        callers.flight.open();
        callers.flight.broke(&cut, Some(2));
        let error = b.try_recv().expect("answered").expect_err("given up");
        assert!(matches!(error, PublishError::Unanswered { attempts: 2, .. }), "{error:?}");
        assert!(c.try_recv().is_err(), "it has had one attempt");
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
