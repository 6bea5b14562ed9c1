//! The ledger: one row for every sequence, saying what was done with it.

use rusqlite::{Connection, OptionalExtension as _, Params, Row, ffi, params};

use crate::proto::{
    event::{Event, Fingerprint, Sequence},
    outcome::Outcome,
};

/// The reason of a row whose key had been seen with other content.
pub const KEY_CONFLICT: &str = "key_conflict";

/// Which of a key's rows has the say over it. The unique index has the same
/// condition, word for word, or SQLite would not use it.
const HAS_THE_SAY: &str = "outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict'";

/// One row as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The event's sequence.
    pub sequence: Sequence,
    /// Its key.
    pub key: String,
    /// Its content's hash.
    pub fingerprint: Fingerprint,
    /// What was done.
    pub outcome: Outcome,
    /// Why, for REJECTED.
    pub reason: Option<String>,
    /// JSON that the projection gave.
    pub result: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub applied_at_ms: i64,
}

/// Writes the event's row as APPLIED, before its effect is made: of two
/// attempts at one key only one gets past this. Answers with the fingerprint
/// under which the key is known already, and has written nothing then.
///
/// # Errors
/// Whatever else SQLite says.
pub fn claim(
    tables: &Connection,
    log: &str,
    event: &Event,
    now_ms: i64,
) -> rusqlite::Result<Option<Fingerprint>> {
    match insert(tables, log, event, Outcome::Applied, None, now_ms) {
        Ok(()) => Ok(None),
        // Which row it is that stands in the way decides: the key's, or (an error) the sequence's.
        Err(error) if violates_uniqueness(&error) => {
            match by_key(tables, log, &event.intent.key)? {
                Some(known) => Ok(Some(known.fingerprint)),
                None => Err(error),
            }
        }
        Err(error) => Err(error),
    }
}

fn violates_uniqueness(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
    )
}

/// Writes the row of an event without an effect.
///
/// # Errors
/// Whatever SQLite says, a row at this sequence included;
/// [`rusqlite::Error::StatementChangedRows`] where it wrote nothing.
pub fn insert(
    tables: &Connection,
    log: &str,
    event: &Event,
    outcome: Outcome,
    reason: Option<&str>,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let inserted = tables
        .prepare_cached(
            "INSERT INTO counterfoil_ledger
               (log, sequence, key, fingerprint, outcome, reason, applied_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            log,
            event.sequence,
            event.intent.key,
            event.intent.fingerprint,
            outcome.as_str(),
            reason,
            now_ms,
        ])?;
    if inserted == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(inserted)) }
}

/// Notes on a claimed row what came of the event, where that is not a plain APPLIED.
///
/// # Errors
/// Whatever SQLite says; [`rusqlite::Error::StatementChangedRows`] without the row.
pub fn conclude(
    tables: &Connection,
    log: &str,
    sequence: Sequence,
    outcome: Outcome,
    reason: Option<&str>,
    result: Option<&str>,
) -> rusqlite::Result<()> {
    let changed = tables
        .prepare_cached(
            "UPDATE counterfoil_ledger SET outcome = ?3, reason = ?4, result = ?5
             WHERE log = ?1 AND sequence = ?2",
        )?
        .execute(params![log, sequence, outcome.as_str(), reason, result])?;
    if changed == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed)) }
}

/// The row of a sequence.
///
/// # Errors
/// Whatever SQLite says.
pub fn by_sequence(
    tables: &Connection,
    log: &str,
    sequence: Sequence,
) -> rusqlite::Result<Option<Entry>> {
    find(tables, "sequence = ?2", params![log, sequence])
}

/// The row that had the say over a key.
///
/// # Errors
/// Whatever SQLite says.
pub fn by_key(tables: &Connection, log: &str, key: &str) -> rusqlite::Result<Option<Entry>> {
    find(tables, &format!("key = ?2 AND {HAS_THE_SAY}"), params![log, key])
}

fn find(tables: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Option<Entry>> {
    let columns = "sequence, key, fingerprint, outcome, reason, result, applied_at";
    let select = format!("SELECT {columns} FROM counterfoil_ledger WHERE log = ?1 AND {which}");
    tables.prepare_cached(&select)?.query_row(values, entry).optional()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    let word = row.get_ref(3)?.as_str()?;
    let outcome = Outcome::ALL
        .into_iter()
        .find(|outcome| outcome.as_str() == word)
        .ok_or(rusqlite::Error::InvalidQuery)?; // the table's CHECK knows no other word
    Ok(Entry {
        sequence: row.get(0)?,
        key: row.get(1)?,
        fingerprint: row.get(2)?,
        outcome,
        reason: row.get(4)?,
        result: row.get(5)?,
        applied_at_ms: row.get(6)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise each look for a key would read the whole ledger.
    #[test]
    fn a_key_is_found_by_its_index() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(include_str!("schema.sql")).expect("schema");
        let plan = format!(
            "EXPLAIN QUERY PLAN SELECT * FROM counterfoil_ledger
             WHERE log = ?1 AND key = ?2 AND {HAS_THE_SAY}"
        );
        let plan: String =
            tables.query_row(&plan, ["main", "k"], |row| row.get(3)).expect("a plan");
        assert!(plan.contains("USING INDEX counterfoil_ledger_key"), "{plan}");
        assert!(HAS_THE_SAY.contains(KEY_CONFLICT));
        assert!(HAS_THE_SAY.contains(Outcome::Duplicate.as_str()));
    }
}
