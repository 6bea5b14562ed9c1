//! The client for services that publish: callers await one receipt each, and
//! what they have in flight together travels on one PublishStream.
//!
//! ```no_run
//! use counterfoil::{client::Publisher, proto::pb::NewEvent};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let publisher = Publisher::connect("http://127.0.0.1:7601")?;
//! let event = NewEvent {
//!     // Made once for each intent and kept until its receipt is there.
//!     key: uuid::Uuid::now_v7().to_string(),
//!     r#type: "stock.adjusted".into(),
//!     subject: "camera".into(),
//!     ..NewEvent::default()
//! };
//! let receipt = publisher.publish(event).await?;
//! println!("accepted at sequence {}", receipt.sequence());
//! # Ok(())
//! # }
//! ```
//!
//! A [`Publisher`] is cloned for each caller; all clones share one connection.
//! There is no timer: a lone event is sent at once, and under load whatever has
//! gathered goes out together. Each call is one request, atomic by itself, and
//! they are accepted in the order in which they were submitted. A refusal is its
//! caller's alone and the others go on, also where [`PublishError::verdict`] says
//! that the same request may succeed later.
//!
//! **Keys.** Use a UUIDv7 as key: the time in it lets the publisher drop the
//! receipt once no attempt can be waiting any more, and tell a late attempt from
//! a first one. Keep the key with the intent, durably, before the first attempt:
//! after [`PublishError::Unanswered`], or a crash, repeat the event as it was
//! under the same key.
//!
//! **When the stream breaks**, what was not answered is sent again, in its order
//! and under the same keys, on a new one. A receipt that says
//! [`DUPLICATE`](crate::proto::pb::PublishOutcome::Duplicate) may therefore be
//! the answer to the first `publish` of a key too.

mod codec;
mod connect;
mod error;
mod flight;
mod judge;
mod stream;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use prost::Message as _;
use tokio::sync::{Semaphore, mpsc, oneshot};

use self::flight::{Call, Flight, Published};
pub use self::{
    connect::channel,
    error::{ConnectError, PublishError},
    judge::{Verdict, delay, judge},
};
use crate::proto::{
    limits::MAX_MESSAGE_BYTES,
    pb::{NewEvent, PublishRequest, Receipt},
    refusal::{Reason, Refusal},
};

/// What a request costs beside its bytes while it waits, about.
const CALL_BYTES: usize = 256;

/// How to publish.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The publisher, such as `http://127.0.0.1:7601`.
    pub url: String,
    /// The log; empty: `main`.
    pub log: String,
    /// Attempts in a row at one request before its caller is told that there is no
    /// answer; nothing: for ever. Streams that break are attempts at what was sent on
    /// them, and at all that waits if they brought no answer; one that brought any
    /// begins the count anew.
    pub attempts: Option<u32>,
    /// A stream that owes an answer and gives none for this long, or up to a quarter
    /// longer, counts as broken.
    pub patience: Duration,
    /// Bytes of the requests that wait for their answers, with what they cost
    /// beside. Further callers wait for room.
    pub max_waiting_bytes: usize,
}

impl Settings {
    /// The log `main` of the publisher at `url`, 12 attempts (about 15 s where
    /// nobody listens), 30 s of patience, 16 MiB.
    pub fn new(url: impl Into<String>) -> Self {
        Settings {
            url: url.into(),
            log: String::new(),
            attempts: Some(12),
            patience: Duration::from_secs(30),
            max_waiting_bytes: 16 * 1024 * 1024,
        }
    }
}

impl From<&str> for Settings {
    fn from(url: &str) -> Self {
        Settings::new(url)
    }
}

/// Publishes to one log. A clone shares the connection.
#[derive(Debug, Clone)]
pub struct Publisher {
    log: String,
    queue: mpsc::UnboundedSender<Call>,
    /// Bounds the queue and what is unanswered, in bytes.
    room: Arc<Semaphore>,
    /// Permits of `room`.
    most: u32,
    repeated: Arc<AtomicU64>,
}

impl Publisher {
    /// Connects when the first event is published, and again whenever the
    /// connection was lost. Called within a Tokio runtime; what is published
    /// through a clone travels on a task of that runtime, which ends once all
    /// clones are gone and everything has its answer. Where that runtime ends before,
    /// calls from others get [`PublishError::Unanswered`].
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect(settings: impl Into<Settings>) -> Result<Self, ConnectError> {
        let Settings { url, log, attempts, patience, max_waiting_bytes } = settings.into();
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| ConnectError::NoRuntime)?;
        let channel = channel(&url)?;
        let (queue, queued) = mpsc::unbounded_channel();
        let repeated = Arc::default();
        let flight = Flight::new(queued, Arc::clone(&repeated));
        runtime.spawn(stream::run(channel, flight, attempts, patience));
        let most = u32::try_from(max_waiting_bytes.max(CALL_BYTES)).unwrap_or(u32::MAX);
        let room = Arc::new(Semaphore::new(most as usize));
        Ok(Publisher { log, queue, room, most, repeated })
    }

    /// Publishes one event. Returns once it is on stable storage.
    ///
    /// Dropping the future stops nothing once it was polled to the queue: see [`Self::submit`].
    ///
    /// # Errors
    /// [`PublishError`].
    pub async fn publish(&self, event: NewEvent) -> Result<Receipt, PublishError> {
        let mut receipts = self.publish_all(vec![event]).await?;
        // As many as there were events: an answer with other ones counts as none.
        receipts.pop().ok_or_else(PublishError::ended)
    }

    /// Publishes events together: all are accepted, or none. Receipts come in
    /// their order.
    ///
    /// # Errors
    /// [`PublishError`].
    pub async fn publish_all(&self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, PublishError> {
        self.submit(events).await?.await
    }

    /// The same in two steps, for a caller that has many requests in flight in an
    /// order: returns once the request has its place in the queue, and waits for
    /// room there first. Dropping what it returns stops nothing.
    ///
    /// # Errors
    /// [`PublishError::Refused`] for a request that is too large for a message,
    /// [`PublishError::Unanswered`] once the runtime of [`Self::connect`] has ended.
    pub async fn submit(&self, events: Vec<NewEvent>) -> Result<Submitted, PublishError> {
        let count = events.len();
        let request = PublishRequest { log: self.log.clone(), events };
        let length = request.encoded_len();
        if length > MAX_MESSAGE_BYTES {
            return Err(too_large(length));
        }
        let (answer, answered) = oneshot::channel();
        let needed = u32::try_from(length + CALL_BYTES).map_or(self.most, |n| n.min(self.most));
        let room = Arc::clone(&self.room).acquire_many_owned(needed).await;
        let call = Call {
            request: request.encode_to_vec().into(),
            events: count,
            answer,
            sent: false,
            attempts: 0,
            _room: room.map_err(|_| PublishError::ended())?,
        };
        self.queue.send(call).map_err(|_| PublishError::ended())?;
        // Closed while it was put in: perhaps nobody has seen it.
        if self.queue.is_closed() {
            return Err(PublishError::ended());
        }
        Ok(Submitted(answered))
    }

    /// Requests that have been sent once more, because a stream broke before
    /// their answer.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }
}

/// A request on its way. Resolves to its receipts, in the order of its events.
#[derive(Debug)]
pub struct Submitted(oneshot::Receiver<Published>);

impl Future for Submitted {
    type Output = Published;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(Pin::new(&mut self.0).poll(cx));
        Poll::Ready(answer.unwrap_or_else(|_| Err(PublishError::ended())))
    }
}

/// The publisher would end the stream over it.
fn too_large(length: usize) -> PublishError {
    let wrong = format!("has {length} bytes, at most {MAX_MESSAGE_BYTES} are allowed");
    let refusal = Refusal::new(Reason::BatchTooLarge, "").at_field("events", wrong);
    PublishError::Refused(refusal.with("limit", MAX_MESSAGE_BYTES).into())
}

#[cfg(test)]
mod scripted;
#[cfg(test)]
mod tests;
