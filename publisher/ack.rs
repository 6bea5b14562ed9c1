//! The way of an acknowledgement, of what it reports, and of a receiver's session:
//! decided and made durable by one thread, many at a time, and only then answered.

use std::{
    collections::{BTreeMap, HashMap},
    ops::Range,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{mpsc, oneshot, watch};

use super::{
    halt::{Guard, Halt},
    log::{Extent, LogReader, ReadError},
    outcomes::{Outcomes, Reader},
    positions::{Position, Positions},
    resume,
};
use crate::proto::{
    chain::{Chain, Cursor},
    event::Sequence,
    outcome::{Outcome, Report, Reported},
    refusal::{Reason, Refusal},
};

/// Requests that wait for the thread.
const QUEUE: usize = 1_024;

/// The receivers of one log: what is known of them, and the entrance for changes.
#[derive(Debug, Clone)]
pub struct Receivers {
    known: Arc<RwLock<Known>>,
    outcomes: Reader,
    queue: mpsc::Sender<Request>,
    halt: Arc<Halt>,
}

/// Whether receipts are held, or are still to come, of any event of a range.
pub type Held = Box<dyn Fn(Range<Sequence>) -> bool + Send>;

/// Durable positions, each to be watched by the stream of its session.
type Known = BTreeMap<String, watch::Sender<Position>>;

#[derive(Debug)]
enum Request {
    /// A receiver's.
    Change { name: String, change: Change, answer: oneshot::Sender<Result<Position, Refusal>> },
    /// The outcomes of an event could not be read.
    Inspect(Sequence),
}

#[derive(Debug)]
enum Change {
    /// A Replay opens after this cursor, of a process whose last session was this one.
    Open { cursor: Cursor, last: Option<i64> },
    /// Everything up to this cursor is committed; none: nothing yet.
    Ack { session: i64, cursor: Option<Cursor>, report: Option<Report> },
}

/// A receiver's session, held by its stream. The receiver counts as connected
/// while somebody holds it.
#[derive(Debug)]
pub struct Session {
    number: i64,
    reported: Sequence,
    position: watch::Receiver<Position>,
}

impl Session {
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

impl Receivers {
    /// Starts the thread that owns positions and outcomes. It ends with its
    /// entrances.
    ///
    /// # Errors
    /// The operating system's, when there is no thread.
    pub fn start(
        positions: Positions,
        outcomes: Outcomes,
        held: Held,
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
        let receivers = Receivers {
            known: Arc::clone(&known),
            outcomes: outcomes.reader(),
            queue: sender,
            halt: Arc::clone(&halt),
        };
        let keeper = Keeper { positions, outcomes, held, known, reader, halt, queue };
        let thread = std::thread::Builder::new().name("positions".to_owned()).spawn(move || {
            let _guard = guard;
            keeper.run();
        })?;
        Ok((receivers, thread))
    }

    /// Begins a session after a cursor and fences the one before, unless the caller's own
    /// `last` one has been fenced. On return both are on stable storage.
    ///
    /// # Errors
    /// RECEIVER_FENCED, LOG_HALTED, LOG_FULL (the disk), SHUTTING_DOWN.
    pub async fn open(
        &self,
        name: &str,
        cursor: Cursor,
        last: Option<i64>,
    ) -> Result<Session, Refusal> {
        let position = self.change(name, Change::Open { cursor, last }).await?;
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let row = known.get(name).expect("a row that was answered for is never removed");
        let Position { session, reported, .. } = position;
        Ok(Session { number: session, reported, position: row.subscribe() })
    }

    /// Takes note of what a receiver has committed and of what it reports. On
    /// return both are on stable storage; the answer has the highest cursor of the
    /// session. What was reported before is not changed.
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
        self.change(name, Change::Ack { session, cursor, report }).await
    }

    async fn change(&self, name: &str, change: Change) -> Result<Position, Refusal> {
        let gone = || self.halt.gone();
        let (answer, answered) = oneshot::channel();
        let request = Request::Change { name: name.to_owned(), change, answer };
        self.queue.send(request).await.map_err(|_| gone())?;
        answered.await.map_err(|_| gone())?
    }

    /// All receivers: position, and whether the newest session's stream is open.
    pub fn all(&self) -> Vec<(Position, bool)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|row| (row.borrow().clone(), row.receiver_count() > 0)).collect()
    }

    /// What each receiver that has reported so far did with an event, by name.
    /// Reads a file.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn outcomes(&self, sequence: Sequence) -> Result<Vec<(String, Reported)>, ReadError> {
        let names: Vec<String> = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let positions = known.values().map(|row| row.borrow());
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
    outcomes: Outcomes,
    held: Held,
    known: Arc<RwLock<Known>>,
    reader: Arc<dyn LogReader>,
    halt: Arc<Halt>,
    queue: mpsc::Receiver<Request>,
}

impl Keeper {
    fn run(mut self) {
        let mut requests = Vec::new();
        self.outcomes.sweep(&self.held);
        while self.queue.blocking_recv_many(&mut requests, QUEUE) > 0 {
            self.settle(requests.drain(..));
            self.outcomes.sweep(&self.held);
        }
    }

    /// Decides about all that waits, makes the changes durable, and answers. What
    /// is reported comes before the positions that say up to where; files that are
    /// damaged go after the positions that say that it is lost.
    fn settle(&mut self, requests: impl Iterator<Item = Request>) {
        let mut changed: HashMap<String, Position> = HashMap::new();
        let mut answers = Vec::new();
        for request in requests {
            let (name, change, answer) = match request {
                Request::Change { name, change, answer } => (name, change, answer),
                Request::Inspect(sequence) => {
                    self.outcomes.inspect(sequence);
                    continue;
                }
            };
            let known = changed.get(&name).or_else(|| self.positions.get(&name)).cloned();
            let decided = match change {
                Change::Open { cursor, last } => open(known.as_ref(), &name, cursor, last),
                Change::Ack { session, cursor, report } => {
                    self.ack(known.as_ref(), &name, session, cursor, report)
                }
            };
            if let Ok(position) = &decided
                && known.as_ref() != Some(position)
            {
                changed.insert(name, position.clone());
            }
            answers.push((answer, decided));
        }
        let lost_from = self.outcomes.lost_from();
        for position in self.positions.all().filter(|_| lost_from.is_some()) {
            changed.entry(position.name.clone()).or_insert_with(|| position.clone());
        }
        let changed: Vec<Position> =
            changed.into_values().map(|position| position.reported_below(lost_from)).collect();
        let recorded = self
            .outcomes
            .commit()
            .and_then(|()| self.positions.record(&changed))
            .map_err(|error| self.halt.judge(&error));
        if recorded.is_ok() {
            self.show(&changed);
            if let Err(error) = self.outcomes.set_aside() {
                self.halt.judge(&error); // all that was asked for is done
            }
        }
        for (answer, decided) in answers {
            let position = decided.map(|position| position.reported_below(lost_from));
            let _ = answer.send(position.and_then(|position| recorded.clone().map(|()| position)));
        }
    }

    fn ack(
        &mut self,
        known: Option<&Position>,
        name: &str,
        session: i64,
        cursor: Option<Cursor>,
        report: Option<Report>,
    ) -> Result<Position, Refusal> {
        let known = known.ok_or_else(|| unknown(name))?;
        let extent = self.reader.extent();
        let chain_at = |sequence| self.reader.chain_at(sequence);
        let acked = advance(known, session, cursor, &extent, chain_at)?;
        let reported = match &report {
            // One that starts higher was made before something was lost.
            Some(report) if report.after.is_none_or(|after| after <= known.reported) => self
                .outcomes
                .add(name, known.reported, report)
                .map_err(|error| self.halt.judge(&error))?,
            _ => known.reported,
        };
        Ok(Position { acked, reported, ..known.clone() })
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

/// A receiver's position as a Replay opens after a cursor. A database that was put
/// back does its work again, and reports it again.
fn open(
    known: Option<&Position>,
    name: &str,
    cursor: Cursor,
    last: Option<i64>,
) -> Result<Position, Refusal> {
    let (session, reported) = known.map_or((0, -1), |known| (known.session, known.reported));
    match last {
        // A session above the newest is of a log that was put back: nobody took over.
        Some(last) if last < session => Err(fenced(name, last, session)),
        _ => Ok(Position {
            name: name.to_owned(),
            session: session + 1,
            acked: cursor,
            reported: reported.min(cursor.sequence),
        }),
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
