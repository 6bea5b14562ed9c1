//! The way of an acknowledgement, of what it reports, and of a receiver's session:
//! decided and made durable by one thread, many at a time, and only then answered.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock, atomic::Ordering},
};

use tokio::sync::{mpsc, oneshot};

use super::{
    ack::{Held, Known, Parts, Row, Session},
    advance::{advance, connected, not_fenced, open, unknown},
    clock::Clock,
    halt::Halt,
    log::{Extent, LogReader},
    outcomes::Outcomes,
    positions::{Position, Positions},
    suspects::{Suspect, Suspects, is_suspicious},
    suspicion::Suspicion,
};
use crate::proto::{
    chain::Cursor,
    event::Sequence,
    outcome::Report,
    refusal::{Reason, Refusal},
};

/// Requests that wait for the thread.
pub const QUEUE: usize = 1_024;

/// What the thread is asked for.
#[derive(Debug)]
pub enum Request {
    /// A receiver's.
    Change {
        /// Its name.
        name: String,
        /// What it asks for.
        change: Change,
        /// Where it is answered.
        answer: Answer,
    },
    /// A receiver is refused at its Replay.
    Refused {
        /// Its name.
        name: String,
        /// Of a process whose last session was this one, where it is sure of it.
        last: Option<i64>,
        /// What it has seen, where it says so.
        seen: Option<Cursor>,
        /// Why it is refused.
        refusal: Refusal,
        /// What it is told, once that is kept that has to be.
        answer: oneshot::Sender<Refusal>,
    },
    /// A receiver is to be forgotten.
    Remove {
        /// Its name.
        name: String,
        /// Told once that is so.
        answer: oneshot::Sender<Result<(), Refusal>>,
    },
    /// The outcomes of an event could not be read.
    Inspect(Sequence),
}

/// What a receiver asks for.
#[derive(Debug)]
pub enum Change {
    /// A Replay opens.
    Open {
        /// After this cursor.
        cursor: Cursor,
        /// Of a process whose last session was this one, where it is sure of it.
        last: Option<i64>,
    },
    /// Everything up to this cursor is committed; none: nothing yet.
    Ack {
        /// Of this session.
        session: i64,
        /// What is committed.
        cursor: Option<Cursor>,
        /// What was done with it.
        report: Option<Report>,
    },
}

/// What a receiver is answered.
#[derive(Debug)]
pub enum Answered {
    /// Its session has begun.
    Opened(Session),
    /// Where it is now.
    Acked(Position),
}

type Answer = oneshot::Sender<Result<Answered, Refusal>>;

/// The thread.
pub struct Keeper {
    log: Arc<str>,
    positions: Positions,
    suspects: Suspects,
    outcomes: Outcomes,
    held: Held,
    reader: Arc<dyn LogReader>,
    halt: Arc<Halt>,
    clock: Arc<Clock>,
    known: Arc<RwLock<Known>>,
    suspicion: Arc<Suspicion>,
    queue: mpsc::Receiver<Request>,
}

/// A receiver's request that has been decided about, and waits for the disk.
struct Decided {
    opens: bool,
    position: Result<Position, Refusal>,
    answer: Answer,
}

impl Keeper {
    /// Works on what comes through `queue`, and shows it in `known` and `suspicion`.
    pub fn new(
        parts: Parts,
        known: Arc<RwLock<Known>>,
        suspicion: Arc<Suspicion>,
        queue: mpsc::Receiver<Request>,
    ) -> Self {
        let Parts { log, positions, suspects, outcomes, held, reader, halt, clock } = parts;
        Keeper {
            log,
            positions,
            suspects,
            outcomes,
            held,
            reader,
            halt,
            clock,
            known,
            suspicion,
            queue,
        }
    }

    /// Until nobody can ask any more.
    pub fn run(mut self) {
        let mut requests = Vec::new();
        self.outcomes.sweep(&self.held);
        while self.queue.blocking_recv_many(&mut requests, QUEUE) > 0 {
            let mut changes = Vec::new();
            for request in requests.drain(..) {
                match request {
                    Request::Change { name, change, answer } => {
                        changes.push((name, change, answer));
                    }
                    Request::Inspect(sequence) => self.outcomes.inspect(sequence),
                    // What was asked before counts before.
                    Request::Refused { name, last, seen, refusal, answer } => {
                        self.settle(std::mem::take(&mut changes));
                        let _ = answer.send(self.refused(name, last, seen, refusal));
                    }
                    Request::Remove { name, answer } => {
                        self.settle(std::mem::take(&mut changes));
                        let _ = answer.send(self.remove(&name));
                    }
                }
            }
            self.settle(changes);
            self.outcomes.sweep(&self.held);
        }
    }

    /// Decides about all that waits, makes the changes durable, and answers. What
    /// is reported comes before the positions that say up to where; files that are
    /// damaged go after the positions that say that it is lost.
    fn settle(&mut self, changes: Vec<(String, Change, Answer)>) {
        let now_ms = self.clock.now_ms();
        let mut changed: HashMap<String, Position> = HashMap::new();
        let mut decided = Vec::new();
        let mut suspicious = Vec::new();
        for (name, change, answer) in changes {
            let known = changed.get(&name).or_else(|| self.positions.get(&name)).cloned();
            let (opens, seen) = match &change {
                Change::Open { cursor, .. } => (true, Some(*cursor)),
                Change::Ack { cursor, .. } => (false, *cursor),
            };
            let position = match change {
                Change::Open { cursor, last } => {
                    open(known.as_ref(), self.positions.removed(), &name, cursor, last)
                }
                Change::Ack { session, cursor, report } => {
                    self.ack(known.as_ref(), &name, session, cursor, report)
                }
            };
            match &position {
                Ok(position) => {
                    self.heard_of(&name, now_ms);
                    if known.as_ref() != Some(position) {
                        changed.insert(name, Position { seen_ms: now_ms, ..position.clone() });
                    }
                }
                Err(refusal) if is_suspicious(refusal.reason) => {
                    suspicious.extend(seen.map(|seen| (name, refusal.reason, seen)));
                }
                Err(_) => {}
            }
            decided.push(Decided { opens, position, answer });
        }
        for (name, reason, seen) in suspicious {
            self.suspect(name, reason, seen);
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
        for Decided { opens, position, answer } in decided {
            let position = position.map(|position| position.reported_below(lost_from));
            let position = position.and_then(|position| recorded.clone().map(|()| position));
            let answered = position.map(|position| match opens {
                true => self.opened(&position),
                false => Answered::Acked(position),
            });
            let _ = answer.send(answered);
        }
    }

    /// The session of a receiver whose position is durable. Made here, so that it counts as
    /// connected before anything else is decided.
    fn opened(&mut self, position: &Position) -> Answered {
        self.clear(&position.name);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let row = known.entry(position.name.clone()).or_insert_with(|| Row::new(position.clone()));
        row.overtaken.store(false, Ordering::Release);
        Answered::Opened(Session::begin(position, row, Arc::clone(&self.clock)))
    }

    fn heard_of(&self, name: &str, now_ms: i64) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(row) = known.get(name) {
            row.seen_ms.store(now_ms, Ordering::Release);
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
        let acked = advance(known, session, cursor, &extent, self.reader.ancestors(), chain_at)?;
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

    /// What a receiver is told whose Replay is refused, and whether that makes it a suspect.
    /// One that was fenced is told so, whatever its cursor. While another process of its
    /// name is connected, that one speaks for the name: its cursor fits, and this process
    /// has not lost the log's history but is one too many.
    fn refused(
        &mut self,
        name: String,
        last: Option<i64>,
        seen: Option<Cursor>,
        refusal: Refusal,
    ) -> Refusal {
        let known = self.positions.get(&name);
        if let Err(fenced) = not_fenced(known, &name, last) {
            return fenced;
        }
        let Some(seen) = seen.filter(|_| is_suspicious(refusal.reason)) else { return refusal };
        let is_another = known.is_some_and(|known| last != Some(known.session));
        if is_another && self.is_connected(&name) {
            tracing::warn!(
                log = &*self.log,
                receiver = name,
                reason = refusal.reason.as_str(),
                "refused; another process of this name is connected, so it makes nobody suspicious"
            );
        } else {
            self.suspect(name, refusal.reason, seen);
        }
        refusal
    }

    fn is_connected(&self, name: &str) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.get(name).is_some_and(Row::connected)
    }

    /// Keeps that a receiver has seen other history. What cannot be written is said again
    /// by the receiver's next attempt.
    fn suspect(&mut self, name: String, reason: Reason, seen: Cursor) {
        let at_ms = self.clock.now_ms();
        match self.suspects.note(Suspect {
            name: name.clone(),
            reason,
            seen,
            at_ms,
            settled: false,
        }) {
            Ok(is_new) => {
                self.suspicion.show(self.suspects.all());
                if is_new {
                    let Extent { log_id, floor, next, .. } = self.reader.extent();
                    tracing::error!(
                        log = &*self.log,
                        %log_id,
                        floor,
                        next,
                        receiver = name,
                        reason = reason.as_str(),
                        seen_log_id = %seen.log_id,
                        seen = seen.sequence,
                        "SUSPECT: a receiver has seen more or other history than this log holds; \
                         see `counterfoil status`"
                    );
                }
            }
            Err(error) => drop(self.halt.judge(&error)),
        }
    }

    fn clear(&mut self, name: &str) {
        match self.suspects.clear(name) {
            Ok(true) => {
                self.suspicion.show(self.suspects.all());
                tracing::info!(log = &*self.log, receiver = name, "under no suspicion any more");
            }
            Ok(false) => {}
            // It stays under suspicion until it is admitted again.
            Err(error) => drop(self.halt.judge(&error)),
        }
    }

    fn remove(&mut self, name: &str) -> Result<(), Refusal> {
        let is_known = {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let row = known.get(name);
            if row.is_some_and(Row::connected) {
                return Err(connected(name));
            }
            row.is_some()
        };
        if !is_known && self.suspects.get(name).is_none() {
            return Err(unknown(name));
        }
        self.positions.remove(name).map_err(|error| self.halt.judge(&error))?;
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(name);
        self.suspects.clear(name).map_err(|error| self.halt.judge(&error))?;
        self.suspicion.show(self.suspects.all());
        tracing::info!(log = &*self.log, receiver = name, "removed");
        Ok(())
    }

    /// Lets durable positions be seen.
    fn show(&self, changed: &[Position]) {
        if changed.is_empty() {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        for position in changed {
            match known.get(&position.name) {
                Some(row) => drop(row.position.send_replace(position.clone())),
                None => {
                    known.insert(position.name.clone(), Row::new(position.clone()));
                }
            }
        }
    }
}
