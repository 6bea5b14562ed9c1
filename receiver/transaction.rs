//! One group of events in one transaction: effects, ledger rows and cursor,
//! all or none. Knows nothing of trying again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{
    decide::{Decision, Known, Step, decide},
    follow_up,
    judged::Judged,
    projection::{Applied, Fault, Projection, Why},
    store::{
        Store, baseline, cursor,
        guard::{Guard, Mode},
        ledger::{self, KEY_CONFLICT, Rows},
        outbox,
        skipped::{self, Aside},
        trouble,
    },
    tables::{FollowUp, Tables},
};
use crate::proto::{
    chain::Cursor,
    crash,
    event::{Event, Time},
    limits::MAX_EVENT_STEPS,
    outcome::{Outcome, Reported},
};

/// What a commit has brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Committed {
    /// The cursor it moved to; none: there was nothing to write.
    pub cursor: Option<Cursor>,
    /// Events by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [i64; Outcome::ALL.len()],
    /// What there is to report of them: all but the plain APPLIED, in rising order.
    pub told: Vec<Reported>,
    /// When the publisher accepted the last event.
    pub event_time: Time,
    /// Follow-up events that wait to be forwarded.
    pub emitted: i64,
}

/// Why a group was not committed.
#[derive(Debug)]
pub enum Failed {
    /// One event could not be applied. Rolled back.
    Event(Faulty),
    /// The store could not take it. Rolled back.
    Store(rusqlite::Error),
    /// COMMIT failed: the group may or may not be there. What it would have brought.
    Unknown(rusqlite::Error, Committed),
    /// The cursor is not where it was left: someone else writes to the
    /// database. Rolled back.
    CursorMoved,
}

/// An event of a group that could not be applied.
#[derive(Debug)]
pub struct Faulty {
    /// Its place in the group, from 0; none: it shows only with the commit that there is one.
    pub at: Option<usize>,
    /// Why.
    pub why: EventFault,
}

/// Why an event could not be applied.
#[derive(Debug)]
pub enum EventFault {
    /// The projection could not judge it.
    Projection(Fault),
    /// A statement of the receiver's own failed that concerns this event alone.
    Statement(rusqlite::Error),
    /// The projection panicked: the connection has to be replaced.
    Panicked,
    /// The projection wrote although it said that it had not, or ended the transaction.
    Misbehaved(&'static str),
    /// Another event was applied at this sequence.
    Conflict,
    /// It was applied, and its ledger row is gone.
    Lost,
}

/// Applies and commits a group. `from` is the committed cursor.
///
/// # Errors
/// [`Failed`].
pub fn commit(
    store: &Store,
    projection: &dyn Projection,
    from: Option<&Cursor>,
    steps: &[Step],
) -> Result<Committed, Failed> {
    let transaction = begin(store)?;
    let committed = apply_all(store, &transaction, projection, from, steps)?;
    let committed = finish(store, transaction, from, committed, crash::RECEIVER_BEFORE_COMMIT)?;
    if committed.cursor.is_some() {
        crash::point(crash::RECEIVER_AFTER_COMMIT);
    }
    Ok(committed)
}

/// Begins what has the only right to write.
pub(super) fn begin(store: &Store) -> Result<Transaction<'_>, Failed> {
    Transaction::new_unchecked(&store.connection, TransactionBehavior::Immediate)
        .map_err(Failed::Store)
}

/// Moves the cursor from where it is believed to be and commits, behind a crash point.
pub(super) fn finish(
    store: &Store,
    transaction: Transaction<'_>,
    from: Option<&Cursor>,
    committed: Committed,
    point: &'static str,
) -> Result<Committed, Failed> {
    if let Some(to) = &committed.cursor {
        let moved = cursor::advance(&transaction, &store.log, from, to);
        if !moved.map_err(Failed::Store)? {
            return Err(Failed::CursorMoved);
        }
    }
    crash::point(point);
    if let Err(error) = transaction.commit() {
        return Err(match error.sqlite_error_code() {
            // One that is checked last. The transaction has been rolled back on drop.
            Some(ErrorCode::ConstraintViolation) => {
                Failed::Event(Faulty { at: None, why: EventFault::Statement(error) })
            }
            _ => Failed::Unknown(error, committed),
        });
    }
    Ok(committed)
}

/// Whether it is the event's, or the store's.
pub(super) fn failed(at: usize, why: EventFault) -> Failed {
    match why {
        EventFault::Statement(error)
        | EventFault::Projection(Fault { why: Why::Sql(error), .. })
            if !trouble::is_of_statement(&error) =>
        {
            Failed::Store(error)
        }
        why => Failed::Event(Faulty { at: Some(at), why }),
    }
}

/// The events inside the transaction, one after the other: what a commit would bring.
fn apply_all(
    store: &Store,
    transaction: &Connection,
    projection: &dyn Projection,
    from: Option<&Cursor>,
    steps: &[Step],
) -> Result<Committed, Failed> {
    let mut group = Group::of(store, transaction, projection).map_err(Failed::Store)?;
    let mut last = from.map_or(-1, |cursor| cursor.sequence);
    for (first, block) in (0..).step_by(ledger::BLOCK).zip(steps.chunks(ledger::BLOCK)) {
        let claimed = group.claim(last, block);
        // Whose row it was is not told. The first is tried by itself then, and so on.
        let claimed = claimed.map_err(|error| failed(first, EventFault::Statement(error)))?;
        for (at, step) in (first..).zip(block) {
            group.apply(last, step, at < first + claimed).map_err(|why| failed(at, why))?;
            // Never back: a step may turn out to have been committed before.
            if let Step::Next { event, after, .. } = step
                && after.sequence > last
            {
                last = after.sequence;
                group.moves_to(*after, event);
            }
        }
    }
    Ok(group.committed)
}

/// A group while its events are applied.
pub(super) struct Group<'c> {
    store: &'c Store,
    projection: &'c dyn Projection,
    rows: Rows<'c>,
    tables: Tables<'c>,
    now_ms: i64,
    /// Its events had been set aside in their turn.
    late: bool,
    committed: Committed,
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) outcome: Outcome,
    pub(super) reason: Option<String>,
    /// JSON.
    pub(super) result: Option<String>,
}

impl<'c> Group<'c> {
    /// Before its first event.
    pub(super) fn of(
        store: &'c Store,
        transaction: &'c Connection,
        projection: &'c dyn Projection,
    ) -> rusqlite::Result<Self> {
        let now_ms = Time::from_system(std::time::SystemTime::now()).unix_millis();
        Ok(Group {
            store,
            projection,
            rows: Rows::of(transaction, &store.log, now_ms)?,
            tables: Tables::of(transaction),
            now_ms,
            late: false,
            committed: Committed::default(),
        })
    }

    /// For an event that had been set aside in its turn.
    pub(super) fn late(&mut self) -> &mut Self {
        self.late = true;
        self
    }

    /// The cursor will be behind this event.
    pub(super) fn moves_to(&mut self, after: Cursor, event: &Event) {
        self.committed.event_time = event.accept_time;
        self.committed.cursor = Some(after);
    }

    /// What a commit would bring.
    pub(super) fn into_committed(self) -> Committed {
        self.committed
    }

    /// When all of it happens, milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> i64 {
        self.now_ms
    }

    /// Claims the rows of a block of events after `last`: answers with how many of them, from
    /// the first one on, have theirs.
    fn claim(&mut self, last: i64, block: &[Step]) -> rusqlite::Result<usize> {
        let next = |step: &Step| matches!(step, Step::Next { event, .. } if event.sequence > last);
        if !block.iter().all(next) {
            return Ok(0);
        }
        self.rows.claim_block(block.iter().map(Step::event))
    }

    /// One event, after `last`. One that had been done before changes nothing. `claimed`: its
    /// row is there.
    fn apply(&mut self, last: i64, step: &Step, claimed: bool) -> Result<(), EventFault> {
        let event = step.event();
        let mut known = Known::default();
        if event.sequence <= last {
            let row = ledger::by_sequence(&self.tables, &self.store.log, event.sequence);
            known.by_sequence = row.map_err(EventFault::Statement)?.map(|row| row.fingerprint);
            known.ledger_from = baseline::from(&self.tables).map_err(EventFault::Statement)?;
        } else if !claimed {
            known.by_key = self.rows.claim(event).map_err(EventFault::Statement)?;
        }
        match decide(last, event.sequence, &event.intent.fingerprint, &known) {
            Decision::Apply => self.conclude_effect(event, step.judged()),
            Decision::Duplicate => self.note(event, Outcome::Duplicate, None),
            Decision::KeyConflict => self.note(event, Outcome::Rejected, Some(KEY_CONFLICT)),
            Decision::AlreadyDone => Ok(()),
            Decision::Conflict => Err(EventFault::Conflict),
            Decision::Lost => Err(EventFault::Lost),
            Decision::Gap => unreachable!("a step never lies beyond the one before it"),
        }
    }

    /// A row for an event without an effect.
    fn note(
        &mut self,
        event: &Event,
        outcome: Outcome,
        reason: Option<&str>,
    ) -> Result<(), EventFault> {
        self.rows.insert(event, outcome, reason).map_err(EventFault::Statement)?;
        self.count(event, outcome, reason, None);
        Ok(())
    }

    /// Sets aside an event that comes next, without an effect. Where its key is known, that
    /// has the say, as ever.
    pub(super) fn set_aside(&mut self, event: &Event, aside: &Aside) -> Result<(), EventFault> {
        let by_key = self.rows.claim(event).map_err(EventFault::Statement)?;
        let known = Known { by_key, ..Known::default() };
        match decide(event.sequence - 1, event.sequence, &event.intent.fingerprint, &known) {
            Decision::Duplicate => return self.note(event, Outcome::Duplicate, None),
            Decision::KeyConflict => {
                return self.note(event, Outcome::Rejected, Some(KEY_CONFLICT));
            }
            _ => {}
        }
        skipped::keep(&self.tables, event, aside, self.now_ms).map_err(EventFault::Statement)?;
        let reason = Some(aside.reason.clone());
        self.conclude(event, Effect { outcome: Outcome::Skipped, reason, result: None })
    }

    /// Lets the projection make its effect, and concludes the row that was claimed.
    fn conclude_effect(
        &mut self,
        event: &Event,
        judged: Option<&Judged>,
    ) -> Result<(), EventFault> {
        match self.effect(event, judged)? {
            Effect { outcome: Outcome::Applied, reason: None, result: None } => {
                self.count(event, Outcome::Applied, None, None);
                Ok(())
            }
            effect => self.conclude(event, effect),
        }
    }

    /// Notes on the event's row what came of it.
    fn conclude(&mut self, event: &Event, effect: Effect) -> Result<(), EventFault> {
        let Effect { outcome, reason, result } = effect;
        let (log, reason) = (&self.store.log, reason.as_deref());
        let (tables, sequence) = (&self.tables, event.sequence);
        ledger::conclude(tables, log, sequence, outcome, reason, result.as_deref())
            .map_err(EventFault::Statement)?;
        self.count(event, outcome, reason, result);
        Ok(())
    }

    /// Lets the projection make its effect: what came of it. `judged`: what it has found out
    /// before, if anything.
    pub(super) fn effect(
        &mut self,
        event: &Event,
        judged: Option<&Judged>,
    ) -> Result<Effect, EventFault> {
        let Group { store, projection, tables, .. } = self;
        let changes = tables.total_changes();
        let run = AssertUnwindSafe(|| projection.apply_judged(tables, event, judged));
        let applied = store.guard.during(Mode::Handler, || catch_unwind(run));
        let emitted = tables.take_emitted();
        let applied = applied.map_err(|_| EventFault::Panicked)?;
        // Before what SQLite has said, which may be about a table that is full by it.
        if let Some(said) = store.guard.took_last_row() {
            let place = applied.err().and_then(|fault| fault.place);
            let why = Why::Refused { class: "OVERFLOW", said: said.to_owned() };
            return Err(EventFault::Projection(Fault { place, why }));
        }
        let applied =
            applied.map_err(|fault| EventFault::Projection(explained(fault, &store.guard)))?;
        if tables.is_autocommit() {
            return Err(EventFault::Misbehaved("the projection ended the transaction"));
        }
        let wrote = tables.total_changes() != changes || !emitted.is_empty();
        if matches!(applied, Applied::Done(_)) {
            self.emit(event, emitted)?;
        }
        let (outcome, reason, result) = match applied {
            Applied::Done(result) => (Outcome::Applied, None, result),
            Applied::Ignored | Applied::Rejected { .. } if wrote => {
                return Err(EventFault::Misbehaved(
                    "the projection wrote rows, or let events follow, and said it had not",
                ));
            }
            Applied::Ignored => (Outcome::Ignored, None, None),
            Applied::Rejected { reason, result } => {
                (Outcome::Rejected, Some(reason.into_owned()), result)
            }
        };
        Ok(Effect { outcome, reason, result: result.map(|value| value.to_string()) })
    }

    /// Keeps what follows from an event, until it is forwarded.
    fn emit(&mut self, event: &Event, emitted: Vec<FollowUp>) -> Result<(), EventFault> {
        if emitted.is_empty() {
            return Ok(());
        }
        if !self.projection.emits() {
            return Err(EventFault::Misbehaved(
                "the projection let events follow and does not say that it does",
            ));
        }
        let mut outgoing = follow_up::outgoing(event, self.projection.name(), emitted)
            .map_err(EventFault::Projection)?;
        if self.late {
            outbox::leave_out_known(&self.tables, event.sequence, &mut outgoing)
                .map_err(EventFault::Statement)?;
        }
        for follow_up in &outgoing {
            outbox::insert(&self.tables, follow_up).map_err(EventFault::Statement)?;
        }
        self.committed.emitted += outgoing.len() as i64;
        Ok(())
    }

    fn count(
        &mut self,
        event: &Event,
        outcome: Outcome,
        reason: Option<&str>,
        result: Option<String>,
    ) {
        self.committed.outcomes[outcome as usize] += 1;
        self.committed.told.extend(ledger::told(event.sequence, outcome, reason, result));
    }
}

/// What SQLite says to a projection that it may not do something is what the guard has told
/// it; the guard knows what it was.
fn explained(fault: Fault, guard: &Guard) -> Fault {
    let Why::Sql(error) = &fault.why else { return fault };
    if !trouble::is_of_statement(error) {
        return fault;
    }
    let why = if guard.took_too_many_steps(error) {
        let said = format!("took more than {MAX_EVENT_STEPS} steps of SQLite's");
        Why::Refused { class: "STEPS", said }
    } else if let Some(what) = guard.take_refused() {
        Why::Refused { class: "FORBIDDEN", said: format!("may not use {what}") }
    } else {
        return fault;
    };
    Fault { why, ..fault }
}

impl EventFault {
    /// The statement or rule of the projection at fault.
    pub fn statement(&self) -> Option<String> {
        match self {
            EventFault::Projection(fault) => fault.place.clone(),
            _ => None,
        }
    }

    /// A word for what is wrong with the event.
    pub fn class(&self) -> Option<&'static str> {
        match self {
            EventFault::Projection(fault) => Some(fault.class()),
            // The projection's constraints that are checked last, with the commit.
            EventFault::Statement(_) => Some("CONSTRAINT"),
            EventFault::Panicked => Some("PANIC"),
            EventFault::Misbehaved(_) => Some("SQL"),
            EventFault::Conflict | EventFault::Lost => None,
        }
    }

    /// Class, place and words, for whoever looks at it later.
    pub fn noted(&self) -> String {
        let class = self.class().map_or_else(String::new, |class| format!("{class}: "));
        let place = self.statement().map_or_else(String::new, |place| format!("{place}: "));
        format!("{class}{place}{}", self.said())
    }

    /// In words, for people who are not on this machine.
    pub fn said(&self) -> String {
        match self {
            EventFault::Projection(fault) => fault.to_string(),
            EventFault::Statement(error) => trouble::said(error),
            EventFault::Panicked => "the projection panicked".to_owned(),
            EventFault::Misbehaved(what) => (*what).to_owned(),
            EventFault::Conflict => "another event was applied at this sequence".to_owned(),
            EventFault::Lost => "it was applied, and the ledger has lost its row".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
