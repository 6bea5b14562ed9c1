//! Setting one event aside, and making its effect later: each in one transaction with all
//! that has to go along. Knows nothing of trying again, and of who has said so.

use rusqlite::Connection;

use super::{
    projection::Projection,
    store::{
        Store,
        baseline::Baseline,
        ledger::{self, Entry},
        skipped::{self, Aside},
    },
    transaction::{self, Committed, Effect, EventFault, Failed, Group},
};
use crate::proto::{
    chain::Cursor,
    crash,
    event::{Event, Sequence},
    outcome::Outcome,
    refusal::{Reason, Refusal},
};

/// Sets aside the event that comes next: ledger row, the event itself and the cursor.
///
/// # Errors
/// [`Failed`].
pub fn set_aside(
    store: &Store,
    projection: &dyn Projection,
    from: Option<&Cursor>,
    event: &Event,
    after: Cursor,
    aside: &Aside,
) -> Result<Committed, Failed> {
    let transaction = transaction::begin(store)?;
    let mut group = Group::of(store, &transaction, projection).map_err(Failed::Store)?;
    group.set_aside(event, aside).map_err(|why| transaction::failed(0, why))?;
    group.moves_to(after, event);
    let committed = group.into_committed();
    let point = crash::RECEIVER_BEFORE_SKIP_COMMIT;
    let committed = transaction::finish(store, transaction, from, committed, point)?;
    crash::point(crash::RECEIVER_AFTER_SKIP_COMMIT);
    Ok(committed)
}

/// What became of an event that had been set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Late {
    /// Its ledger row; where that was pruned, what it would be.
    pub entry: Entry,
    /// The cursor's sequence when its effect was made.
    pub after: Sequence,
    /// It has been made just now, and not before.
    pub now: bool,
}

/// Why the effect of an event that had been set aside was not made.
#[derive(Debug)]
pub enum NotLate {
    /// No event was set aside there.
    Unknown,
    /// What is kept of it is damaged.
    Damaged(Refusal),
    /// It cannot be applied, or the store could not take it.
    Failed(Failed),
}

impl From<rusqlite::Error> for NotLate {
    fn from(error: rusqlite::Error) -> Self {
        NotLate::Failed(transaction::failed(0, EventFault::Statement(error)))
    }
}

/// Makes the effect of an event that was set aside, while the cursor is at `last`: the
/// effect, what the ledger says of it, and that it has been made.
///
/// # Errors
/// [`NotLate`]; nothing has changed then, unless the COMMIT is of unknown outcome.
pub fn apply_late(
    store: &Store,
    projection: &dyn Projection,
    sequence: Sequence,
    last: Sequence,
) -> Result<Late, NotLate> {
    let transaction = transaction::begin(store).map_err(NotLate::Failed)?;
    let kept = skipped::find(&transaction, sequence)?.ok_or(NotLate::Unknown)?;
    let event = kept.event().map_err(NotLate::Damaged)?;
    let row = ledger::by_sequence(&transaction, &store.log, sequence)?;
    let (key, fingerprint) = (&*event.intent.key, event.intent.fingerprint);
    if row.as_ref().is_some_and(|row| (&*row.key, row.fingerprint) != (key, fingerprint)) {
        let message = format!("what is kept of event {sequence} is not what the ledger names");
        return Err(NotLate::Damaged(Refusal::new(Reason::Corrupt, message)));
    }
    if let Some(after) = kept.applied_after {
        let entry = row.unwrap_or_else(|| pruned(&event));
        return Ok(Late { entry, after, now: false });
    }
    let mut group = Group::of(store, &transaction, projection)?;
    let effect = group
        .late()
        .effect(&event, None)
        .map_err(|why| NotLate::Failed(transaction::failed(0, why)))?;
    let now_ms = group.now_ms();
    drop(group);
    skipped::note_applied(&transaction, sequence, last, now_ms)?;
    let Effect { outcome, reason, result } = &effect;
    if row.is_some() {
        let (reason, result) = (reason.as_deref(), result.as_deref());
        ledger::conclude(&transaction, &store.log, sequence, *outcome, reason, result)?;
    } else {
        count_anew(&transaction, *outcome)?;
    }
    let entry = Entry {
        outcome: *outcome,
        reason: effect.reason,
        result: effect.result,
        ..row.unwrap_or_else(|| pruned(&event))
    };
    let (nothing, point) = (Committed::default(), crash::RECEIVER_BEFORE_LATE_COMMIT);
    transaction::finish(store, transaction, None, nothing, point).map_err(NotLate::Failed)?;
    crash::point(crash::RECEIVER_AFTER_LATE_COMMIT);
    Ok(Late { entry, after: last, now: true })
}

/// Of what was pruned only numbers are kept.
fn count_anew(tables: &Connection, outcome: Outcome) -> rusqlite::Result<()> {
    let mut baseline = Baseline::read(tables)?;
    baseline.counts[Outcome::Skipped as usize] -= 1;
    baseline.counts[outcome as usize] += 1;
    baseline.write(tables)
}

/// A row that is no longer there.
fn pruned(event: &Event) -> Entry {
    Entry {
        sequence: event.sequence,
        key: event.intent.key.to_string(),
        fingerprint: event.intent.fingerprint,
        outcome: Outcome::Applied,
        reason: None,
        result: None,
        applied_at_ms: event.accept_time.unix_millis(),
    }
}
