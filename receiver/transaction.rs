//! One group of events in one transaction: effects, ledger rows and cursor,
//! all or none. Knows nothing of trying again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};

use super::{
    decide::{Decision, Known, Step, decide},
    projection::{Applied, Fault, Projection},
    store::{
        Store, cursor,
        ledger::{self, KEY_CONFLICT},
        trouble::{self, Trouble},
    },
};
use crate::proto::{
    chain::Cursor,
    crash,
    event::{Event, Time},
    outcome::Outcome,
};

/// What a commit has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The cursor it moved to; none: there was nothing to write.
    pub cursor: Option<Cursor>,
    /// Events by outcome, in the order of [`Outcome::ALL`].
    pub outcomes: [i64; Outcome::ALL.len()],
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
    /// The payload is not what its type requires; says which field and why.
    Payload(String),
    /// A statement failed that concerns this event alone.
    Statement(rusqlite::Error),
    /// The projection panicked: the connection has to be replaced.
    Panicked,
    /// The projection wrote although it said that it had not, or ended the transaction.
    Misbehaved(&'static str),
    /// Another event was applied at this sequence.
    Conflict,
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
    let now_ms = Time::from_system(std::time::SystemTime::now()).unix_millis();
    let event_time = Time { seconds: 0, nanos: 0 };
    let mut committed = Committed { cursor: None, outcomes: [0; Outcome::ALL.len()], event_time };
    let mut last = from.map_or(-1, |cursor| cursor.sequence);
    for step in steps {
        let outcome =
            apply(store, &transaction, projection, last, step.event(), now_ms).map_err(|why| {
                match why {
                    EventFault::Statement(error)
                        if trouble::judge(&error) != Trouble::Statement =>
                    {
                        Failed::Store(error)
                    }
                    why => Failed::Event(why),
                }
            })?;
        if let Some(outcome) = outcome {
            committed.outcomes[outcome as usize] += 1;
        }
        // Never back: a step may turn out to have been committed before.
        if let Step::Next { event, after } = step
            && after.sequence > last
        {
            last = after.sequence;
            committed.event_time = event.accept_time;
            committed.cursor = Some(*after);
        }
    }
    if let Some(after) = &committed.cursor {
        let moved = cursor::advance(&transaction, &store.log, from, after);
        if !moved.map_err(Failed::Store)? {
            return Err(Failed::CursorMoved);
        }
    }
    crash::point(crash::RECEIVER_BEFORE_COMMIT);
    transaction.commit().map_err(|error| match error.sqlite_error_code() {
        // One that is checked last. The transaction has been rolled back on drop.
        Some(ErrorCode::ConstraintViolation) => Failed::Event(EventFault::Statement(error)),
        _ => Failed::Unknown(error, committed),
    })?;
    if committed.cursor.is_some() {
        crash::point(crash::RECEIVER_AFTER_COMMIT);
    }
    Ok(committed)
}

/// One event inside the transaction. None: it had been done before.
fn apply(
    store: &Store,
    tables: &Connection,
    projection: &dyn Projection,
    last: i64,
    event: &Event,
    now_ms: i64,
) -> Result<Option<Outcome>, EventFault> {
    let log = &store.log;
    let mut known = Known::default();
    if event.sequence <= last {
        let row = ledger::by_sequence(tables, log, event.sequence);
        known.by_sequence = row.map_err(EventFault::Statement)?.map(|row| row.fingerprint);
    } else {
        known.by_key = ledger::claim(tables, log, event, now_ms).map_err(EventFault::Statement)?;
    }
    let note = |outcome, reason| {
        ledger::insert(tables, log, event, outcome, reason, now_ms)
            .map(|()| Some(outcome))
            .map_err(EventFault::Statement)
    };
    match decide(last, event.sequence, &event.intent.fingerprint, &known) {
        Decision::Apply => effect(store, tables, projection, event).map(Some),
        Decision::Duplicate => note(Outcome::Duplicate, None),
        Decision::KeyConflict => note(Outcome::Rejected, Some(KEY_CONFLICT)),
        Decision::AlreadyDone => Ok(None),
        Decision::Conflict => Err(EventFault::Conflict),
        Decision::Gap => unreachable!("a step never lies beyond the one before it"),
    }
}

/// Lets the projection make its effect, and concludes the row that was claimed.
fn effect(
    store: &Store,
    tables: &Connection,
    projection: &dyn Projection,
    event: &Event,
) -> Result<Outcome, EventFault> {
    let changes = tables.total_changes();
    let run = AssertUnwindSafe(|| projection.apply(tables, event));
    let applied =
        store.guard.during(|| catch_unwind(run)).map_err(|_| EventFault::Panicked)?.map_err(
            |fault| match fault {
                Fault::Payload(wrong) => EventFault::Payload(wrong),
                Fault::Sql(error) => EventFault::Statement(error),
            },
        )?;
    if tables.is_autocommit() {
        return Err(EventFault::Misbehaved("the projection ended the transaction"));
    }
    let wrote = tables.total_changes() != changes;
    let (outcome, reason, result) = match applied {
        Applied::Done(None) => return Ok(Outcome::Applied),
        Applied::Done(result) => (Outcome::Applied, None, result),
        Applied::Ignored | Applied::Rejected { .. } if wrote => {
            return Err(EventFault::Misbehaved("the projection wrote rows and said it had not"));
        }
        Applied::Ignored => (Outcome::Ignored, None, None),
        Applied::Rejected { reason, result } => (Outcome::Rejected, Some(reason), result),
    };
    let result = result.map(|value| value.to_string());
    ledger::conclude(tables, &store.log, event.sequence, outcome, reason, result.as_deref())
        .map_err(EventFault::Statement)?;
    Ok(outcome)
}

impl EventFault {
    /// In words, for people who are not on this machine.
    pub fn said(&self) -> String {
        match self {
            EventFault::Payload(wrong) => wrong.clone(),
            EventFault::Statement(error) => trouble::said(error),
            EventFault::Panicked => "the projection panicked".to_owned(),
            EventFault::Misbehaved(what) => (*what).to_owned(),
            EventFault::Conflict => "another event was applied at this sequence".to_owned(),
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
