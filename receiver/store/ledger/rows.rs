//! Writing the rows of one group of events: each before its effect is made, many by one
//! statement.

use std::sync::LazyLock;

use rusqlite::{CachedStatement, Connection, Statement, ffi};

use super::by_key;
use crate::proto::{
    event::{Event, Fingerprint},
    outcome::Outcome,
};

/// Rows that one statement claims at most. To begin and end a statement is a tenth of what a
/// small event costs; sixteen share that out, and more of them gain hardly anything.
pub const BLOCK: usize = 16;

static INSERT_ONE: LazyLock<String> = LazyLock::new(|| insert_sql(1));
static INSERT_BLOCK: LazyLock<String> = LazyLock::new(|| insert_sql(BLOCK));

/// What the rows of a statement have in common, by the number of its parameter.
const LOG: usize = 1;
const OUTCOME: usize = 2;
const REASON: usize = 3;
const APPLIED_AT: usize = 4;
/// The first parameter that is of one row alone: its sequence, its key and its fingerprint.
const FIRST_OF_ROW: usize = 5;
const PARAMETERS_OF_ROW: usize = 3;

/// A statement that writes so many rows, up to the first one that cannot be written (FAIL).
/// To take back those before it, SQLite would keep a copy of each page that they change,
/// which costs more than is gained where the keys are in no order.
fn insert_sql(rows: usize) -> String {
    let row = |row| {
        let sequence = FIRST_OF_ROW + row * PARAMETERS_OF_ROW;
        let [key, fingerprint] = [sequence + 1, sequence + 2];
        format!(
            "(?{LOG}, ?{OUTCOME}, ?{REASON}, ?{APPLIED_AT}, ?{sequence}, ?{key}, ?{fingerprint})"
        )
    };
    let rows: Vec<_> = (0..rows).map(row).collect();
    format!(
        "INSERT OR FAIL INTO counterfoil_ledger
           (log, outcome, reason, applied_at, sequence, key, fingerprint)
         VALUES {}",
        rows.join(", ")
    )
}

/// Writes the rows of one group. What they have in common is bound once.
pub struct Rows<'c> {
    tables: &'c Connection,
    log: &'c str,
    now_ms: i64,
    one: CachedStatement<'c>,
    /// Prepared for the first block: most groups of live traffic have none.
    block: Option<CachedStatement<'c>>,
}

impl<'c> Rows<'c> {
    /// Of a group that is applied at `now_ms`, milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn of(tables: &'c Connection, log: &'c str, now_ms: i64) -> rusqlite::Result<Self> {
        let one = prepare(tables, &INSERT_ONE, log, now_ms)?;
        Ok(Rows { tables, log, now_ms, one, block: None })
    }

    /// Writes the event's row as APPLIED, before its effect is made: of two
    /// attempts at one key only one gets past this. Answers with the fingerprint
    /// under which the key is known already, and has written nothing then.
    ///
    /// # Errors
    /// Whatever else SQLite says.
    pub fn claim(&mut self, event: &Event) -> rusqlite::Result<Option<Fingerprint>> {
        match self.write(event) {
            Ok(()) => Ok(None),
            // Which row it is that stands in the way decides: the key's, or (an error) the
            // sequence's.
            Err(error) if violates_uniqueness(&error) => {
                match by_key(self.tables, self.log, &event.intent.key)? {
                    Some(known) => Ok(Some(known.fingerprint)),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Claims the rows of [`BLOCK`] events, before any of their effects is made, up to the
    /// first one whose key or sequence is known already. Answers with how many that are: the
    /// others, and all where they are more or fewer, are to be claimed one by one.
    ///
    /// # Errors
    /// Whatever else SQLite says.
    pub fn claim_block<'e>(
        &mut self,
        events: impl ExactSizeIterator<Item = &'e Event>,
    ) -> rusqlite::Result<usize> {
        if events.len() != BLOCK {
            return Ok(0);
        }
        let block = match &mut self.block {
            Some(block) => block,
            none => none.insert(prepare(self.tables, &INSERT_BLOCK, self.log, self.now_ms)?),
        };
        for (row, event) in events.enumerate() {
            bind_row(block, row, event)?;
        }
        match execute(block, BLOCK) {
            Ok(()) => Ok(BLOCK),
            Err(error) if violates_uniqueness(&error) => Ok(self.tables.changes() as usize),
            Err(error) => Err(error),
        }
    }

    /// Claims the rows of events none of which is known: at most [`BLOCK`].
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn claim_new<'e>(
        &mut self,
        events: impl ExactSizeIterator<Item = &'e Event> + Clone,
    ) -> rusqlite::Result<()> {
        let claimed = self.claim_block(events.clone())?;
        events.skip(claimed).try_for_each(|event| self.claim(event).map(drop))
    }

    /// Writes the row of an event without an effect.
    ///
    /// # Errors
    /// Whatever SQLite says, a row at this sequence included;
    /// [`rusqlite::Error::StatementChangedRows`] where it wrote nothing.
    pub fn insert(
        &mut self,
        event: &Event,
        outcome: Outcome,
        reason: Option<&str>,
    ) -> rusqlite::Result<()> {
        bind_outcome(&mut self.one, outcome, reason)?;
        let written = self.write(event);
        bind_outcome(&mut self.one, Outcome::Applied, None)?;
        written
    }

    fn write(&mut self, event: &Event) -> rusqlite::Result<()> {
        bind_row(&mut self.one, 0, event)?;
        execute(&mut self.one, 1)
    }
}

/// A statement whose rows are APPLIED until something else is bound.
fn prepare<'c>(
    tables: &'c Connection,
    sql: &str,
    log: &str,
    now_ms: i64,
) -> rusqlite::Result<CachedStatement<'c>> {
    let mut insert = tables.prepare_cached(sql)?;
    insert.raw_bind_parameter(LOG, log)?;
    insert.raw_bind_parameter(APPLIED_AT, now_ms)?;
    bind_outcome(&mut insert, Outcome::Applied, None)?;
    Ok(insert)
}

fn bind_outcome(
    insert: &mut Statement<'_>,
    outcome: Outcome,
    reason: Option<&str>,
) -> rusqlite::Result<()> {
    insert.raw_bind_parameter(OUTCOME, outcome.as_str())?;
    insert.raw_bind_parameter(REASON, reason)
}

fn bind_row(insert: &mut Statement<'_>, row: usize, event: &Event) -> rusqlite::Result<()> {
    let sequence = FIRST_OF_ROW + row * PARAMETERS_OF_ROW;
    insert.raw_bind_parameter(sequence, event.sequence)?;
    insert.raw_bind_parameter(sequence + 1, &*event.intent.key)?;
    insert.raw_bind_parameter(sequence + 2, event.intent.fingerprint)
}

fn execute(insert: &mut Statement<'_>, rows: usize) -> rusqlite::Result<()> {
    let inserted = insert.raw_execute()?;
    if inserted == rows { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(inserted)) }
}

fn violates_uniqueness(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
    )
}
