//! Events that were set aside: kept with what they failed with, until their effect is made
//! after all, and then with when that was.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use crate::proto::{
    event::{Event, Sequence},
    refusal::Refusal,
    wire,
};

/// Why an event is set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Aside {
    /// What the ledger says: a person's words, or the fault's.
    pub reason: String,
    /// What it could not be applied for.
    pub fault: String,
}

/// An event that was set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// Its stored bytes.
    event: Vec<u8>,
    /// The cursor's sequence when its effect was made; none: it has not been made.
    pub applied_after: Option<Sequence>,
}

impl SetAside {
    /// The event, its fingerprint computed anew and compared.
    ///
    /// # Errors
    /// CORRUPT.
    pub fn event(&self) -> Result<Event, Refusal> {
        wire::replayed(Bytes::copy_from_slice(&self.event))
    }
}

/// Keeps an event that is set aside at `now_ms`, milliseconds since the Unix epoch.
///
/// # Errors
/// Whatever SQLite says.
pub fn keep(
    tables: &Connection,
    event: &Event,
    aside: &Aside,
    now_ms: i64,
) -> rusqlite::Result<()> {
    tables
        .prepare_cached(
            "INSERT INTO counterfoil_skipped
                 (sequence, reason, skipped_at, key, type, subject, event, fault)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            event.sequence,
            aside.reason,
            now_ms,
            &*event.intent.key,
            &*event.intent.event_type,
            &*event.intent.subject,
            &wire::stored(event)[..],
            aside.fault,
        ])?;
    Ok(())
}

/// The event that was set aside at a sequence.
///
/// # Errors
/// Whatever SQLite says.
pub fn find(tables: &Connection, sequence: Sequence) -> rusqlite::Result<Option<SetAside>> {
    let select = "SELECT event, applied_after FROM counterfoil_skipped WHERE sequence = ?1";
    let found =
        |row: &rusqlite::Row<'_>| Ok(SetAside { event: row.get(0)?, applied_after: row.get(1)? });
    tables.prepare_cached(select)?.query_row([sequence], found).optional()
}

/// Notes that the effect was made after all, while the cursor was at `after`.
///
/// # Errors
/// Whatever SQLite says.
pub fn note_applied(
    tables: &Connection,
    sequence: Sequence,
    after: Sequence,
    now_ms: i64,
) -> rusqlite::Result<()> {
    let note = "UPDATE counterfoil_skipped SET applied_at = ?2, applied_after = ?3,
                    applied_turn = (SELECT coalesce(max(applied_turn) + 1, 0) FROM counterfoil_skipped)
                WHERE sequence = ?1 AND applied_at IS NULL";
    match tables.execute(note, params![sequence, now_ms, after])? {
        1 => Ok(()),
        changed => Err(rusqlite::Error::StatementChangedRows(changed)),
    }
}

/// How many wait for their effect.
///
/// # Errors
/// Whatever SQLite says.
pub fn waiting(tables: &Connection) -> rusqlite::Result<i64> {
    let count = "SELECT count(*) FROM counterfoil_skipped WHERE applied_at IS NULL";
    tables.prepare_cached(count)?.query_row([], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::testing::adjustments;

    #[test]
    fn an_event_comes_back_as_it_was_and_its_turn_is_noted() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        let events = adjustments(0, 3);
        let aside = Aside { reason: "no".to_owned(), fault: "PAYLOAD: delta".to_owned() };
        for event in &events {
            keep(&tables, event, &aside, 7).expect("kept");
        }
        keep(&tables, &events[0], &aside, 7).expect_err("a sequence is set aside once");
        let found = |n: i64| find(&tables, n).expect("readable");
        assert_eq!(found(1).expect("there").event().expect("whole"), events[1]);
        assert_eq!(found(9), None);
        for n in [2, 0] {
            note_applied(&tables, n, 5, 9).expect("noted");
            note_applied(&tables, n, 6, 9).expect_err("a second time");
            assert_eq!(found(n).expect("there").applied_after, Some(5));
        }
        assert_eq!(waiting(&tables), Ok(1));
        let turns = "SELECT group_concat(sequence) FROM (SELECT sequence FROM counterfoil_skipped
                     WHERE applied_turn IS NOT NULL ORDER BY applied_turn)";
        let turns: String = tables.query_row(turns, [], |row| row.get(0)).expect("readable");
        assert_eq!(turns, "2,0");
        let forge = "UPDATE counterfoil_skipped SET event = CAST(event || x'1a0178' AS BLOB)
                 WHERE sequence = 1";
        tables.execute(forge, []).expect("forged");
        found(1).expect("there").event().map(|event| event.intent.fingerprint).expect_err("forged");
    }
}
