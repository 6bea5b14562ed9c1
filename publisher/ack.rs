//! The receivers of a log as its calls see them: sessions, acknowledgements and what they
//! report go to one thread, the [keeper](super::keeper), and are answered once they are
//! durable.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicI64, Ordering},
    },
};

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    clock::Clock,
    halt::{Guard, Halt},
    keeper::{Answered, Change, Keeper, QUEUE, Request},
    log::{LogReader, ReadError},
    outcomes::{Outcomes, Reader},
    positions::{Position, Positions},
    retention::{Hold, Limits, Reading, lease_from},
    suspects::Suspects,
    suspicion::Suspicion,
};
use crate::proto::{
    chain::Cursor,
    event::Sequence,
    outcome::{Outcome, Report, Reported},
    refusal::Refusal,
};

/// The receivers of one log: what is known of them, and the entrance for changes.
#[derive(Debug, Clone)]
pub struct Receivers {
    log: Arc<str>,
    known: Arc<RwLock<Known>>,
    suspicion: Arc<Suspicion>,
    outcomes: Reader,
    queue: mpsc::Sender<Request>,
    halt: Arc<Halt>,
    /// When the publisher was started, this time included, by its clock; rising.
    starts: Arc<[i64]>,
}

/// Whether receipts are held, or are still to come, of any event of a range.
pub type Held = Box<dyn Fn(Range<Sequence>) -> bool + Send>;

/// What the receivers of a log are kept by.
pub struct Parts {
    /// The log's name.
    pub log: Arc<str>,
    /// How far each has come.
    pub positions: Positions,
    /// Those that have seen other history.
    pub suspects: Suspects,
    /// What each has reported.
    pub outcomes: Outcomes,
    /// Of which events outcomes are kept.
    pub held: Held,
    /// The log.
    pub reader: Arc<dyn LogReader>,
    /// Whether it takes writes.
    pub halt: Arc<Halt>,
    /// The publisher's clock.
    pub clock: Arc<Clock>,
}

/// The receivers that are known.
pub type Known = BTreeMap<String, Row>;

/// What is known of one receiver.
#[derive(Debug)]
pub struct Row {
    /// Its durable position, to be watched by the stream of its session.
    pub position: watch::Sender<Position>,
    /// When it was last heard of, milliseconds since the Unix epoch.
    pub seen_ms: Arc<AtomicI64>,
    /// Whether it was said of its session that events were dropped which it needs.
    pub overtaken: AtomicBool,
}

impl Row {
    /// Of a durable position.
    pub fn new(position: Position) -> Self {
        let seen_ms = Arc::new(AtomicI64::new(position.seen_ms));
        let overtaken = AtomicBool::new(false);
        Row { position: watch::Sender::new(position), seen_ms, overtaken }
    }

    /// Whether the stream of its newest session is open.
    pub fn connected(&self) -> bool {
        self.position.receiver_count() > 0
    }
}

/// A receiver as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receiver {
    /// How far it has come.
    pub position: Position,
    /// Whether the stream of its newest session is open.
    pub connected: bool,
    /// When it was last heard of, milliseconds since the Unix epoch; 0: not known.
    pub seen_ms: i64,
}

/// A receiver's session, held by its stream. The receiver counts as connected
/// while somebody holds it.
#[derive(Debug)]
pub struct Session {
    number: i64,
    reported: Sequence,
    position: watch::Receiver<Position>,
    seen_ms: Arc<AtomicI64>,
    clock: Arc<Clock>,
}

impl Session {
    /// A session that begins at a position.
    pub fn begin(position: &Position, row: &Row, clock: Arc<Clock>) -> Self {
        Session {
            number: position.session,
            reported: position.reported,
            position: row.position.subscribe(),
            seen_ms: Arc::clone(&row.seen_ms),
            clock,
        }
    }

    /// Its fencing number.
    pub fn number(&self) -> i64 {
        self.number
    }

    /// Up to where its receiver had reported when it began; -1: nothing.
    pub fn reported(&self) -> Sequence {
        self.reported
    }

    /// Returns once a newer session has taken over, with its number.
    pub async fn fenced(&mut self) -> i64 {
        let number = self.number;
        let taken = self.position.wait_for(|position| position.session > number).await;
        let newest = taken.map(|position| position.session);
        match newest {
            Ok(newest) => newest,
            // Positions end with the process; until then nobody takes over.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Session {
    /// Its lease begins when it is gone.
    fn drop(&mut self) {
        self.seen_ms.store(self.clock.now_ms(), Ordering::Release);
    }
}

impl Receivers {
    /// Starts the thread that owns positions and outcomes. It ends with its
    /// entrances.
    ///
    /// # Errors
    /// The operating system's, when there is no thread.
    pub fn start(parts: Parts) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let rows = parts.positions.all();
        let known: Known = rows.map(|row| (row.name.clone(), Row::new(row.clone()))).collect();
        let (sender, queue) = mpsc::channel(QUEUE);
        let guard = Guard(Arc::clone(&parts.halt));
        let mut starts = parts.positions.starts().to_vec();
        starts.push(parts.clock.now_ms());
        let starts = starts.into();
        let suspicion = Suspicion::new(parts.reader.ancestors(), parts.suspects.all());
        let receivers = Receivers {
            log: Arc::clone(&parts.log),
            known: Arc::new(RwLock::new(known)),
            suspicion: Arc::new(suspicion),
            outcomes: parts.outcomes.reader(),
            queue: sender,
            halt: Arc::clone(&parts.halt),
            starts,
        };
        let (known, suspicion) = (Arc::clone(&receivers.known), Arc::clone(&receivers.suspicion));
        let keeper = Keeper::new(parts, known, suspicion, queue);
        let thread = std::thread::Builder::new().name("positions".to_owned()).spawn(move || {
            let _guard = guard;
            keeper.run();
        })?;
        Ok((receivers, thread))
    }

    /// Begins a session after a cursor and fences the one before, unless the caller's own
    /// `last` one has been fenced. On return both are on stable storage, and the receiver
    /// is under no suspicion any more.
    ///
    /// # Errors
    /// RECEIVER_FENCED, LOG_HALTED, LOG_FULL (the disk), SHUTTING_DOWN.
    pub async fn open(
        &self,
        name: &str,
        cursor: Cursor,
        last: Option<i64>,
    ) -> Result<Session, Refusal> {
        match self.change(name, Change::Open { cursor, last }).await? {
            Answered::Opened(session) => Ok(session),
            Answered::Acked(_) => Err(self.halt.gone()), // an Open is answered with a session
        }
    }

    /// Takes note of what a receiver has committed and of what it reports. On
    /// return both are on stable storage; the answer has the highest cursor of the
    /// session. What was reported before is not changed. A receiver that has seen other
    /// history is under suspicion from then on.
    ///
    /// # Errors
    /// NOT_FOUND, RECEIVER_FENCED, INVALID_FIELD, LOG_MISMATCH, CURSOR_AHEAD,
    /// DIVERGED, CORRUPT (the cursor's event), LOG_HALTED, LOG_FULL (the disk),
    /// SHUTTING_DOWN.
    pub async fn ack(
        &self,
        name: &str,
        session: i64,
        cursor: Option<Cursor>,
        report: Option<Report>,
    ) -> Result<Position, Refusal> {
        match self.change(name, Change::Ack { session, cursor, report }).await? {
            Answered::Acked(position) => Ok(position),
            Answered::Opened(_) => Err(self.halt.gone()), // an Ack is answered with a position
        }
    }

    async fn change(&self, name: &str, change: Change) -> Result<Answered, Refusal> {
        let name = name.to_owned();
        self.asks(|answer| Request::Change { name, change, answer }).await?
    }

    /// What a receiver is told whose Replay after `seen` is refused: RECEIVER_FENCED, where
    /// its `last` session was fenced, else why it is refused. Where it has seen other history,
    /// and no other process of its name is connected, that is noted; on return it is on
    /// stable storage, if it can be.
    pub async fn refused(
        &self,
        name: &str,
        last: Option<i64>,
        seen: Option<Cursor>,
        refusal: Refusal,
    ) -> Refusal {
        let (name, why) = (name.to_owned(), refusal.clone());
        let told = self.asks(|answer| Request::Refused { name, last, seen, refusal, answer });
        // Where nobody keeps anything any more, the receiver is refused all the same.
        told.await.unwrap_or(why)
    }

    /// Forgets a receiver, durably.
    ///
    /// # Errors
    /// NOT_FOUND, WRONG_STATE (it is connected), LOG_HALTED, LOG_FULL (the disk),
    /// SHUTTING_DOWN.
    pub async fn remove(&self, name: &str) -> Result<(), Refusal> {
        let name = name.to_owned();
        self.asks(|answer| Request::Remove { name, answer }).await?
    }

    async fn asks<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.queue.send(request(answer)).await.map_err(|_| self.halt.gone())?;
        answered.await.map_err(|_| self.halt.gone())
    }

    /// All receivers, by name.
    pub fn all(&self) -> Vec<Receiver> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let shown = |row: &Row| Receiver {
            position: row.position.borrow().clone(),
            connected: row.connected(),
            seen_ms: row.seen_ms.load(Ordering::Acquire),
        };
        known.values().map(shown).collect()
    }

    /// Those that have seen other history.
    pub fn suspicion(&self) -> &Suspicion {
        &self.suspicion
    }

    /// What each receiver that has reported so far did with an event, by name.
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn outcomes(&self, sequence: Sequence) -> Result<Vec<(String, Reported)>, ReadError> {
        let names: Vec<String> = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let positions = known.values().map(|row| row.position.borrow());
            positions.filter(|row| row.reported >= sequence).map(|row| row.name.clone()).collect()
        };
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = self.outcomes.of(sequence).inspect_err(|_| {
            // No matter if there is no room: who asks again says it again.
            let _ = self.queue.try_send(Request::Inspect(sequence));
        })?;
        let plain = || Reported {
            sequence,
            outcome: Outcome::Applied,
            reason: String::new(),
            result: String::new(),
        };
        let of = |name: String| {
            let row = rows.remove(&name).unwrap_or_else(plain);
            (name, row)
        };
        Ok(names.into_iter().map(of).collect())
    }

    /// What receivers keep of a log with this floor.
    pub fn hold(&self, limits: &Limits, floor: Sequence, now_ms: i64) -> Hold {
        if Hold::needs_no_look(limits) {
            return Hold::NOTHING;
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let readings = known.iter().map(|(name, row)| Reading {
            name,
            needs: row.position.borrow().acked.sequence + 1,
            connected: row.connected(),
            lease_from_ms: lease_from(row.seen_ms.load(Ordering::Acquire), &self.starts),
        });
        Hold::by(limits, floor, readings, now_ms)
    }

    /// Says in the logging who needs events that have just been dropped: once in a session,
    /// for one that reads at the very end of what is retained is passed again and again.
    pub fn tell_overtaken(&self, dropped: Range<Sequence>) {
        for (receiver, needs) in self.overtaken(&dropped) {
            tracing::warn!(
                log = &*self.log,
                receiver,
                needs,
                floor = dropped.end,
                "events were dropped that this receiver has not acknowledged: unless it has \
                 read them, it needs a resync"
            );
        }
    }

    /// The receivers of which that is to be said, each with what it needs.
    fn overtaken(&self, dropped: &Range<Sequence>) -> Vec<(String, Sequence)> {
        if dropped.is_empty() {
            return Vec::new();
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let needs = |row: &Row| row.position.borrow().acked.sequence + 1;
        known
            .iter()
            .map(|(name, row)| (name, needs(row), row))
            .filter(|(_, needs, row)| {
                dropped.contains(needs) && !row.overtaken.swap(true, Ordering::AcqRel)
            })
            .map(|(name, needs, _)| (name.clone(), needs))
            .collect()
    }
}

#[cfg(test)]
mod tests;
