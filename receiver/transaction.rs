//! One group of events in one transaction: effects, ledger rows and cursor,
//! all or none. Knows nothing of trying again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{
    decide::{Decision, Known, Step, decide},
    projection::{Applied, Fault, Projection, Why},
    store::{
        Store, baseline, cursor,
        guard::Mode,
        ledger::{self, KEY_CONFLICT, Rows},
        trouble::{self, Trouble},
    },
    tables::Tables,
};
use crate::proto::{
    chain::Cursor,
    crash,
    event::{Event, Time},
    outcome::{Outcome, Reported},
};

/// What a commit has brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Committed {
    /// The cursor it moved to; none: there was nothing to write.
    pub cursor: Option<Cursor>,
    /// Events by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [i64; Outcome::ALL.len()],
    /// What there is to report of them: all but the plain APPLIED, in rising order.
    pub told: Vec<Reported>,
    /// When the publisher accepted the last event.
    pub event_time: Time,
}

/// Why a group was not committed.
#[derive(Debug)]
pub enum Failed {
    /// One event could not be applied. Rolled back.
    Event(EventFault),
    /// The store could not take it. Rolled back.
    Store(rusqlite::Error),
    /// COMMIT failed: the group may or may not be there. What it would have brought.
    Unknown(rusqlite::Error, Committed),
    /// The cursor is not where it was left: someone else writes to the
    /// database. Rolled back.
    CursorMoved,
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
    let transaction = Transaction::new_unchecked(&store.connection, TransactionBehavior::Immediate)
        .map_err(Failed::Store)?;
    let committed =
        apply_all(store, &transaction, projection, from, steps).map_err(|why| match why {
            EventFault::Statement(error)
            | EventFault::Projection(Fault { why: Why::Sql(error), .. })
                if trouble::judge(&error) != Trouble::Statement =>
            {
                Failed::Store(error)
            }
            why => Failed::Event(why),
        })?;
    if let Some(after) = &committed.cursor {
        let moved = cursor::advance(&transaction, &store.log, from, after);
        if !moved.map_err(Failed::Store)? {
            return Err(Failed::CursorMoved);
        }
    }
    crash::point(crash::RECEIVER_BEFORE_COMMIT);
    if let Err(error) = transaction.commit() {
        return Err(match error.sqlite_error_code() {
            // One that is checked last. The transaction has been rolled back on drop.
            Some(ErrorCode::ConstraintViolation) => Failed::Event(EventFault::Statement(error)),
            _ => Failed::Unknown(error, committed),
        });
    }
    if committed.cursor.is_some() {
        crash::point(crash::RECEIVER_AFTER_COMMIT);
    }
    Ok(committed)
}

/// The events inside the transaction, one after the other: what a commit would bring.
fn apply_all(
    store: &Store,
    transaction: &Connection,
    projection: &dyn Projection,
    from: Option<&Cursor>,
    steps: &[Step],
) -> Result<Committed, EventFault> {
    let now_ms = Time::from_system(std::time::SystemTime::now()).unix_millis();
    let mut group = Group {
        store,
        projection,
        rows: Rows::of(transaction, &store.log, now_ms).map_err(EventFault::Statement)?,
        tables: Tables::of(transaction),
        committed: Committed {
            cursor: None,
            outcomes: [0; Outcome::ALL.len()],
            told: Vec::new(),
            event_time: Time { seconds: 0, nanos: 0 },
        },
    };
    let mut last = from.map_or(-1, |cursor| cursor.sequence);
    for step in steps {
        group.apply(last, step.event())?;
        // Never back: a step may turn out to have been committed before.
        if let Step::Next { event, after } = step
            && after.sequence > last
        {
            last = after.sequence;
            group.committed.event_time = event.accept_time;
            group.committed.cursor = Some(*after);
        }
    }
    Ok(group.committed)
}

/// A group while its events are applied.
struct Group<'c> {
    store: &'c Store,
    projection: &'c dyn Projection,
    rows: Rows<'c>,
    tables: Tables<'c>,
    committed: Committed,
}

impl Group<'_> {
    /// One event, after `last`. One that had been done before changes nothing.
    fn apply(&mut self, last: i64, event: &Event) -> Result<(), EventFault> {
        let mut known = Known::default();
        if event.sequence <= last {
            let row = ledger::by_sequence(&self.tables, &self.store.log, event.sequence);
            known.by_sequence = row.map_err(EventFault::Statement)?.map(|row| row.fingerprint);
            known.ledger_from = baseline::from(&self.tables).map_err(EventFault::Statement)?;
        } else {
            known.by_key = self.rows.claim(event).map_err(EventFault::Statement)?;
        }
        match decide(last, event.sequence, &event.intent.fingerprint, &known) {
            Decision::Apply => self.effect(event),
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

    /// Lets the projection make its effect, and concludes the row that was claimed.
    fn effect(&mut self, event: &Event) -> Result<(), EventFault> {
        let Group { store, projection, tables, .. } = self;
        let changes = tables.total_changes();
        let run = AssertUnwindSafe(|| projection.apply(tables, event));
        let applied = store
            .guard
            .during(Mode::Handler, || catch_unwind(run))
            .map_err(|_| EventFault::Panicked)?
            .map_err(EventFault::Projection)?;
        if tables.is_autocommit() {
            return Err(EventFault::Misbehaved("the projection ended the transaction"));
        }
        let wrote = tables.total_changes() != changes;
        let (outcome, reason, result) = match applied {
            Applied::Done(None) => {
                self.count(event, Outcome::Applied, None, None);
                return Ok(());
            }
            Applied::Done(result) => (Outcome::Applied, None, result),
            Applied::Ignored | Applied::Rejected { .. } if wrote => {
                return Err(EventFault::Misbehaved(
                    "the projection wrote rows and said it had not",
                ));
            }
            Applied::Ignored => (Outcome::Ignored, None, None),
            Applied::Rejected { reason, result } => (Outcome::Rejected, Some(reason), result),
        };
        let (reason, result) = (reason.as_deref(), result.map(|value| value.to_string()));
        let (log, sequence) = (&store.log, event.sequence);
        ledger::conclude(tables, log, sequence, outcome, reason, result.as_deref())
            .map_err(EventFault::Statement)?;
        self.count(event, outcome, reason, result);
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
mod tests {
    use super::*;
    use crate::receiver::{
        decide::place,
        inventory::Inventory,
        store,
        testing::{adjustments, cursor_after},
    };

    /// A group that turns out to be there already, and one step of it alone:
    /// neither has an effect, and the cursor stays.
    #[test]
    fn the_cursor_never_goes_back() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store =
            store::open(&directory.path().join("test.db"), "main", &Inventory).expect("opened");
        let events = adjustments(0, 3);
        let after = cursor_after(&events);
        let (steps, _) = place(cursor_after(&[]), events, &after).expect("fits");
        let group = commit(&store, &Inventory, None, &steps).expect("committed");
        assert_eq!(group.cursor, Some(after));
        for again in [&steps[..], &steps[1..2]] {
            let group = commit(&store, &Inventory, Some(&after), again).expect("nothing to do");
            assert_eq!((group.cursor, group.outcomes), (None, [0; Outcome::ALL.len()]));
            assert_eq!(cursor::read(&store.connection, "main").expect("readable"), Some(after));
        }
    }
}
