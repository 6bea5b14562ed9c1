//! What a rebuilt database takes over from the one that it replaces: what cannot be made
//! again from the log, since it is not in there.

use std::{collections::HashSet, path::Path};

use rusqlite::{Connection, params, types::Value};

use super::Stuck;
use crate::{proto::event::Sequence, receiver::store};

/// What the ledger of follow-ups says of one that the earlier version did not emit.
const HAD_ITS_TURN: &str = "the event was applied by an earlier version of the projection";

/// The follow-up events of what the earlier version has applied, up to `last`, are those
/// that it has emitted: forwarded once, given up, or waiting still. What the new version
/// would emit beside them for the past is not forwarded.
pub fn outbox(live: &Path, rebuilt: &Connection, last: Sequence) -> Result<(), Stuck> {
    let live = store::open_for_reading(live)?;
    let transaction = rebuilt.unchecked_transaction()?;
    let mut waiting = HashSet::new();
    {
        let mut rows = live.prepare(
            "SELECT sequence, key, forwarded_log_id, forwarded_sequence, given_up,
                 forwarded_sequence IS NULL AND given_up IS NULL,
                 type, subject, content_type, json, data, time, first_attempt_time,
                 expected_version
             FROM counterfoil_outbox ORDER BY sequence, number",
        )?;
        let mut mark = transaction.prepare(
            "UPDATE counterfoil_outbox
             SET forwarded_log_id = ?3, forwarded_sequence = ?4, given_up = ?5
             WHERE sequence = ?1 AND key = ?2",
        )?;
        // Its number may be another one's there.
        let mut keep = transaction.prepare(
            "INSERT INTO counterfoil_outbox (sequence, number, key, type, subject, content_type,
                 json, data, time, first_attempt_time, expected_version)
             SELECT ?1, coalesce(max(number) + 1, 0), ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10
             FROM counterfoil_outbox WHERE sequence = ?1",
        )?;
        let mut found = rows.query([])?;
        while let Some(row) = found.next()? {
            let values = |from: usize, to: usize| {
                (from..to).map(|n| row.get::<_, Value>(n)).collect::<rusqlite::Result<Vec<_>>>()
            };
            let marked = mark.execute(rusqlite::params_from_iter(values(0, 5)?))?;
            if row.get(5)? {
                waiting.insert(row.get::<_, String>(1)?);
                if marked == 0 {
                    let (mut place, rest) = (values(0, 2)?, values(6, 14)?);
                    place.extend(rest);
                    keep.execute(rusqlite::params_from_iter(place))?;
                }
            }
        }
        let mut unsent = transaction.prepare(
            "SELECT sequence, number, key FROM counterfoil_outbox
             WHERE forwarded_sequence IS NULL AND given_up IS NULL AND sequence <= ?1",
        )?;
        let unsent = unsent
            .query_map([last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<Vec<(Sequence, i64, String)>>>()?;
        let mut give_up = transaction.prepare(
            "UPDATE counterfoil_outbox SET given_up = ?3 WHERE sequence = ?1 AND number = ?2",
        )?;
        for (sequence, number, key) in unsent {
            if !waiting.contains(&key) {
                give_up.execute(params![sequence, number, HAD_ITS_TURN])?;
            }
        }
    }
    transaction.commit()?;
    Ok(())
}
