//! The way of an acknowledgement, and of a receiver's session: decided and made
//! durable by one thread, many at a time, and only then answered.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    halt::{Guard, Halt},
    log::{Extent, LogReader, ReadError},
    positions::{Position, Positions},
    resume,
};
use crate::proto::{
    chain::{Chain, Cursor},
    event::Sequence,
    refusal::{Reason, Refusal},
};

/// Requests that wait for the thread.
const QUEUE: usize = 1_024;

/// The receivers of one log: what is known of them, and the entrance for changes.
#[derive(Debug, Clone)]
pub struct Receivers {
    known: Arc<RwLock<Known>>,
    queue: mpsc::Sender<Request>,
    halt: Arc<Halt>,
}

/// Durable positions, each to be watched by the stream of its session.
type Known = BTreeMap<String, watch::Sender<Position>>;

#[derive(Debug)]
struct Request {
    name: String,
    change: Change,
    answer: oneshot::Sender<Result<Position, Refusal>>,
}

#[derive(Debug)]
enum Change {
    /// A Replay opens after this cursor.
    Open(Cursor),
    /// Everything up to this cursor is committed; none: nothing yet.
    Ack { session: i64, cursor: Option<Cursor> },
}

/// A receiver's session, held by its stream. The receiver counts as connected
/// while somebody holds it.
#[derive(Debug)]
pub struct Session {
    number: i64,
    position: watch::Receiver<Position>,
}

impl Session {
    /// Its fencing number.
    pub fn number(&self) -> i64 {
        self.number
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

impl Receivers {
    /// Starts the thread that owns the positions. It ends with its entrances.
    ///
    /// # Errors
    /// The operating system's, when there is no thread.
    pub fn start(
        positions: Positions,
        reader: Arc<dyn LogReader>,
        halt: Arc<Halt>,
    ) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let known: Known = positions
            .all()
            .map(|position| (position.name.clone(), watch::Sender::new(position.clone())))
            .collect();
        let known = Arc::new(RwLock::new(known));
        let (sender, queue) = mpsc::channel(QUEUE);
        let guard = Guard(Arc::clone(&halt));
        let receivers =
            Receivers { known: Arc::clone(&known), queue: sender, halt: Arc::clone(&halt) };
        let keeper = Keeper { positions, known, reader, halt, queue };
        let thread = std::thread::Builder::new().name("positions".to_owned()).spawn(move || {
            let _guard = guard;
            keeper.run();
        })?;
        Ok((receivers, thread))
    }

    /// Begins a session after a cursor and fences the one before. On return both
    /// are on stable storage.
    ///
    /// # Errors
    /// LOG_HALTED, LOG_FULL (the disk), SHUTTING_DOWN.
    pub async fn open(&self, name: &str, cursor: Cursor) -> Result<Session, Refusal> {
        let position = self.change(name, Change::Open(cursor)).await?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let row = known.get(name).expect("a row that was answered for is never removed");
        Ok(Session { number: position.session, position: row.subscribe() })
    }

    /// Takes note of what a receiver has committed. On return it is on stable
    /// storage; the answer is the highest cursor of the session.
    ///
    /// # Errors
    /// NOT_FOUND, RECEIVER_FENCED, INVALID_FIELD, LOG_MISMATCH, CURSOR_AHEAD,
    /// DIVERGED, LOG_HALTED, LOG_FULL (the disk), SHUTTING_DOWN.
    pub async fn ack(
        &self,
        name: &str,
        session: i64,
        cursor: Option<Cursor>,
    ) -> Result<Cursor, Refusal> {
        Ok(self.change(name, Change::Ack { session, cursor }).await?.acked)
    }

    async fn change(&self, name: &str, change: Change) -> Result<Position, Refusal> {
        let gone = || self.halt.gone();
        let (answer, answered) = oneshot::channel();
        let request = Request { name: name.to_owned(), change, answer };
        self.queue.send(request).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// All receivers: position, and whether the newest session's stream is open.
    pub fn all(&self) -> Vec<(Position, bool)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|row| (row.borrow().clone(), row.receiver_count() > 0)).collect()
    }

    /// The sequence below which every receiver has acknowledged everything, and
    /// the receivers that have not acknowledged it; `floor` where none is known.
    pub fn acknowledged(&self, floor: Sequence) -> (Sequence, Vec<String>) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let needs = |row: &watch::Sender<Position>| row.borrow().acked.sequence + 1;
        let Some(lowest) = known.values().map(needs).min() else { return (floor, Vec::new()) };
        let holds = |(name, row): (&String, _)| (needs(row) == lowest).then(|| name.clone());
        (lowest.max(floor), known.iter().filter_map(holds).collect())
    }
}

struct Keeper {
    positions: Positions,
    known: Arc<RwLock<Known>>,
    reader: Arc<dyn LogReader>,
    halt: Arc<Halt>,
    queue: mpsc::Receiver<Request>,
}

impl Keeper {
    fn run(mut self) {
        let mut requests = Vec::new();
        while self.queue.blocking_recv_many(&mut requests, QUEUE) > 0 {
            self.settle(requests.drain(..));
        }
    }

    /// Decides about all that waits, makes the changes durable in one step, and answers.
    fn settle(&mut self, requests: impl Iterator<Item = Request>) {
        let mut changed: HashMap<String, Position> = HashMap::new();
        let mut answers = Vec::new();
        for Request { name, change, answer } in requests {
            let known = changed.get(&name).or_else(|| self.positions.get(&name));
            let decided = self.decide(known, &name, change);
            if let Ok(position) = &decided
                && known != Some(position)
            {
                changed.insert(name, position.clone());
            }
            answers.push((answer, decided));
        }
        let changed: Vec<Position> = changed.into_values().collect();
        let recorded = self.positions.record(&changed).map_err(|error| self.halt.judge(&error));
        if recorded.is_ok() {
            self.show(&changed);
        }
        for (answer, decided) in answers {
            let _ = answer.send(decided.and_then(|position| recorded.clone().map(|()| position)));
        }
    }

    fn decide(
        &self,
        known: Option<&Position>,
        name: &str,
        change: Change,
    ) -> Result<Position, Refusal> {
        match change {
            Change::Open(acked) => {
                let session = known.map_or(0, |position| position.session) + 1;
                Ok(Position { name: name.to_owned(), session, acked })
            }
            Change::Ack { session, cursor } => {
                let extent = self.reader.extent();
                let chain_at = |sequence| self.reader.chain_at(sequence);
                let known = known.ok_or_else(|| unknown(name))?;
                let acked = advance(known, session, cursor, &extent, chain_at)?;
                Ok(Position { acked, ..known.clone() })
            }
        }
    }

    /// Lets durable positions be seen.
    fn show(&self, changed: &[Position]) {
        if changed.is_empty() {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for position in changed {
            match known.get(&position.name) {
                Some(row) => drop(row.send_replace(position.clone())),
                None => {
                    known.insert(position.name.clone(), watch::Sender::new(position.clone()));
                }
            }
        }
    }
}

fn unknown(name: &str) -> Refusal {
    Refusal::new(
        Reason::NotFound,
        format!("no receiver {name:?} is known; a Replay under that name makes it known"),
    )
}

/// What a receiver has acknowledged after an Ack.
fn advance(
    known: &Position,
    session: i64,
    cursor: Option<Cursor>,
    extent: &Extent,
    chain_at: impl FnOnce(Sequence) -> Result<Chain, ReadError>,
) -> Result<Cursor, Refusal> {
    if session < known.session {
        return Err(fenced(&known.name, session, known.session));
    }
    if session > known.session {
        return Err(Refusal::field(
            "session",
            format!("is {session}; the newest session of {:?} is {}", known.name, known.session),
        ));
    }
    let Some(cursor) = cursor else { return Ok(known.acked) };
    resume::same_log(&cursor, extent)?;
    resume::not_ahead(&cursor, extent)?;
    match chain_at(cursor.sequence) {
        Ok(chain) => resume::same_history(&cursor, &chain)?,
        // A slow receiver was overtaken while it applied: what it has, it has.
        Err(ReadError::Truncated { .. }) => {}
        Err(error) => return Err(resume::failed(&error)),
    }
    Ok(if cursor.sequence > known.acked.sequence { cursor } else { known.acked })
}

/// RECEIVER_FENCED.
pub fn fenced(name: &str, session: i64, newest: i64) -> Refusal {
    Refusal::new(
        Reason::ReceiverFenced,
        format!(
            "session {session} of receiver {name:?} has ended: session {newest} has taken over; \
             run one process for each receiver name"
        ),
    )
    .with("session", newest)
}

#[cfg(test)]
mod tests;
