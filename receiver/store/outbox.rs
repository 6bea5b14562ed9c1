//! The follow-up events that wait to be forwarded, those that were, and those that a
//! person has given up. Knows nothing of where they go.

use std::{collections::BTreeMap, str::FromStr as _};

use bytestring::ByteString;
use prost_types::Timestamp;
use rusqlite::{Connection, Row, params, types::Type};
use uuid::Uuid;

use crate::proto::{
    event::{DataKind, Intent, Sequence, Time, fingerprint},
    wire,
};

/// A follow-up event in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Of the event that it follows from.
    pub sequence: Sequence,
    /// Which one of that event's, from 0.
    pub number: i64,
    /// What is to be published.
    pub intent: Intent,
}

/// Where a follow-up event has got its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forwarded {
    /// Of the event that it follows from.
    pub sequence: Sequence,
    /// Which one of that event's.
    pub number: i64,
    /// Its own key: another row may have come into the place of the one that was sent.
    pub key: String,
    /// The incarnation of the log that has it.
    pub log_id: Uuid,
    /// Where it stands there.
    pub at: Sequence,
}

/// Puts one in, in the transaction of the event that it follows from.
///
/// # Errors
/// Whatever SQLite says.
pub fn insert(tables: &Connection, outgoing: &Outgoing) -> rusqlite::Result<()> {
    let Outgoing { sequence, number, intent } = outgoing;
    let text = |time: Time| wire::timestamp(time).to_string();
    tables
        .prepare_cached(
            "INSERT INTO counterfoil_outbox (sequence, number, key, type, subject, content_type,
                 json, data, time, first_attempt_time, expected_version)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
        )?
        .execute(params![
            sequence,
            number,
            &*intent.key,
            &*intent.event_type,
            &*intent.subject,
            &*intent.content_type,
            intent.kind == DataKind::Json,
            &intent.data[..],
            intent.time.map(text),
            intent.first_attempt_time.map(text),
            intent.expected_version,
        ])?;
    Ok(())
}

/// Of what follows from an event that is applied later, leaves out what an earlier version of
/// the projection, which could apply it in its turn, has emitted under the same key: that may
/// be on its way. The rest is numbered behind it.
///
/// # Errors
/// Whatever SQLite says.
pub fn leave_out_known(
    tables: &Connection,
    sequence: Sequence,
    outgoing: &mut Vec<Outgoing>,
) -> rusqlite::Result<()> {
    let select = "SELECT key, number FROM counterfoil_outbox WHERE sequence = ?1";
    let known = tables
        .prepare_cached(select)?
        .query_map([sequence], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<BTreeMap<String, i64>>>()?;
    let Some(last) = known.values().max() else { return Ok(()) };
    outgoing.retain(|outgoing| !known.contains_key(&*outgoing.intent.key));
    for (outgoing, number) in outgoing.iter_mut().zip(last + 1..) {
        outgoing.number = number;
    }
    Ok(())
}

/// The first of those that wait, in their order: at most `rows`, and no more than `bytes`
/// of them but for the first.
///
/// # Errors
/// Whatever SQLite says, what cannot be read as a follow-up event included.
pub fn pending(tables: &Connection, rows: usize, bytes: usize) -> rusqlite::Result<Vec<Outgoing>> {
    let mut select = tables.prepare_cached(
        "SELECT sequence, number, key, type, subject, content_type, json, data, time,
             first_attempt_time, expected_version
         FROM counterfoil_outbox WHERE forwarded_sequence IS NULL AND given_up IS NULL
         ORDER BY sequence, number LIMIT ?1",
    )?;
    let mut found = select.query([rows as i64])?;
    let (mut waiting, mut taken) = (Vec::new(), 0);
    while let Some(row) = found.next()? {
        let outgoing = outgoing(row)?;
        taken += weight(&outgoing.intent);
        if taken > bytes && !waiting.is_empty() {
            break;
        }
        waiting.push(outgoing);
    }
    Ok(waiting)
}

/// About what an event takes in a request, and in a log; rather more.
fn weight(intent: &Intent) -> usize {
    /// Tags and lengths, fingerprint, place and times.
    const OTHER_BYTES: usize = 256;
    let texts = [&intent.key, &intent.event_type, &intent.subject, &intent.content_type];
    OTHER_BYTES + intent.data.len() + texts.iter().map(|text| text.len()).sum::<usize>()
}

fn outgoing(row: &Row<'_>) -> rusqlite::Result<Outgoing> {
    let text = |column| row.get::<_, String>(column).map(ByteString::from);
    let mut intent = Intent {
        key: text(2)?,
        event_type: text(3)?,
        subject: text(4)?,
        content_type: text(5)?,
        kind: if row.get(6)? { DataKind::Json } else { DataKind::Binary },
        data: row.get::<_, Vec<u8>>(7)?.into(),
        attributes: Vec::new(),
        expected_version: row.get(10)?,
        first_attempt_time: time_of(row, 9)?,
        time: time_of(row, 8)?,
        fingerprint: [0; 32],
    };
    intent.fingerprint = fingerprint(&intent.content());
    Ok(Outgoing { sequence: row.get(0)?, number: row.get(1)?, intent })
}

/// A time as [`insert`] writes it.
pub(super) fn time_of(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Time>> {
    let text: Option<String> = row.get(column)?;
    let time = text.map(|text| Timestamp::from_str(&text)).transpose().map_err(|error| {
        rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
    })?;
    Ok(time.map(|at| Time { seconds: at.seconds, nanos: at.nanos.unsigned_abs() }))
}

/// How many wait.
///
/// # Errors
/// Whatever SQLite says.
pub fn count_pending(tables: &Connection) -> rusqlite::Result<i64> {
    tables
        .prepare_cached(
            "SELECT count(*) FROM counterfoil_outbox
             WHERE forwarded_sequence IS NULL AND given_up IS NULL",
        )?
        .query_row([], |row| row.get(0))
}

/// Notes of those that still wait that they have been forwarded. How many those were.
///
/// # Errors
/// Whatever SQLite says.
pub fn mark(tables: &Connection, forwarded: &[Forwarded]) -> rusqlite::Result<usize> {
    let mut update = tables.prepare_cached(
        "UPDATE counterfoil_outbox SET forwarded_log_id = ?4, forwarded_sequence = ?5
         WHERE sequence = ?1 AND number = ?2 AND key = ?3
           AND forwarded_sequence IS NULL AND given_up IS NULL",
    )?;
    let mut marked = 0;
    for Forwarded { sequence, number, key, log_id, at } in forwarded {
        marked += update.execute(params![sequence, number, key, log_id.to_string(), at])?;
    }
    Ok(marked)
}

/// Notes of one that still waits that it will not be forwarded, and why. `false`: it does
/// not wait.
///
/// # Errors
/// Whatever SQLite says.
pub fn give_up(
    tables: &Connection,
    sequence: Sequence,
    number: i64,
    reason: &str,
) -> rusqlite::Result<bool> {
    let given_up = tables
        .prepare_cached(
            "UPDATE counterfoil_outbox SET given_up = ?3 WHERE sequence = ?1 AND number = ?2
               AND forwarded_sequence IS NULL AND given_up IS NULL",
        )?
        .execute(params![sequence, number, reason])?;
    Ok(given_up == 1)
}

/// Takes those away that follow from events below a sequence, but for those that wait.
///
/// # Errors
/// Whatever SQLite says.
pub fn prune(tables: &Connection, below: Sequence) -> rusqlite::Result<()> {
    tables
        .prepare_cached(
            "DELETE FROM counterfoil_outbox WHERE sequence < ?1
               AND (forwarded_sequence IS NOT NULL OR given_up IS NOT NULL)",
        )?
        .execute([below])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::testing::event;

    fn outbox() -> Connection {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        tables
    }

    fn outgoing(sequence: Sequence, number: i64) -> Outgoing {
        let key = format!("k{sequence}/shop/low/{number}");
        let intent = event(sequence, &key, "stock.low", "camera", "{}").intent;
        Outgoing { sequence, number, intent }
    }

    fn places(tables: &Connection, rows: usize, bytes: usize) -> Vec<(Sequence, i64)> {
        let waiting = pending(tables, rows, bytes).expect("readable");
        waiting.iter().map(|outgoing| (outgoing.sequence, outgoing.number)).collect()
    }

    #[test]
    fn what_is_put_in_comes_back_as_it_was() {
        let tables = outbox();
        let mut plain = outgoing(3, 0);
        let mut full = outgoing(3, 1);
        full.intent.kind = DataKind::Binary;
        full.intent.data = vec![0, 255, 10].into();
        full.intent.expected_version = Some(i64::MAX);
        full.intent.time = Some(Time { seconds: -62_135_596_800, nanos: 0 });
        full.intent.first_attempt_time =
            Some(Time { seconds: 253_402_300_799, nanos: 999_999_999 });
        for outgoing in [&mut plain, &mut full] {
            outgoing.intent.fingerprint = fingerprint(&outgoing.intent.content());
            insert(&tables, outgoing).expect("inserted");
        }
        assert_eq!(pending(&tables, 9, 9_999), Ok(vec![plain, full]));
    }

    #[test]
    fn the_first_ones_that_wait_come_in_order() {
        let tables = outbox();
        for (sequence, number) in [(9, 0), (2, 1), (2, 0), (10, 0)] {
            insert(&tables, &outgoing(sequence, number)).expect("inserted");
        }
        assert_eq!(places(&tables, 9, usize::MAX), [(2, 0), (2, 1), (9, 0), (10, 0)]);
        assert_eq!(places(&tables, 3, usize::MAX), [(2, 0), (2, 1), (9, 0)]);
        assert_eq!(places(&tables, 9, 1), [(2, 0)], "the first one whatever its size");
        assert_eq!(places(&tables, 9, 700), [(2, 0), (2, 1)]);
        let of_pending = "EXPLAIN QUERY PLAN SELECT key FROM counterfoil_outbox
            WHERE forwarded_sequence IS NULL AND given_up IS NULL ORDER BY sequence, number LIMIT 1";
        let plan: String = tables.query_row(of_pending, [], |row| row.get(3)).expect("a plan");
        assert!(plan.contains("counterfoil_outbox_pending"), "{plan}");
    }

    #[test]
    fn each_is_forwarded_or_given_up_once() {
        let tables = outbox();
        for number in 0..4 {
            insert(&tables, &outgoing(0, number)).expect("inserted");
        }
        let forwarded = |number: i64, key: &str, at| Forwarded {
            sequence: 0,
            number,
            key: key.into(),
            log_id: Uuid::from_u128(7),
            at,
        };
        let [first, other] = [forwarded(0, "k0/shop/low/0", 5), forwarded(1, "somebody's else", 6)];
        assert_eq!(mark(&tables, &[first.clone(), other]), Ok(1));
        assert_eq!(mark(&tables, &[Forwarded { at: 9, ..first }]), Ok(0), "it stays the first");
        let give_up = |number| give_up(&tables, 0, number, "no use").expect("written");
        assert_eq!([0, 1, 1, 7].map(give_up), [false, true, false, false]);
        assert_eq!(count_pending(&tables), Ok(2));
        let at = "SELECT forwarded_sequence FROM counterfoil_outbox WHERE number = 0";
        assert_eq!(tables.query_row(at, [], |row| row.get(0)), Ok(5));
    }

    #[test]
    fn what_waits_is_not_pruned() {
        let tables = outbox();
        for sequence in 0..4 {
            insert(&tables, &outgoing(sequence, 0)).expect("inserted");
        }
        assert_eq!(give_up(&tables, 1, 0, "no use"), Ok(true));
        assert_eq!(give_up(&tables, 3, 0, "no use"), Ok(true));
        prune(&tables, 3).expect("pruned");
        let left = "SELECT group_concat(sequence) FROM counterfoil_outbox";
        assert_eq!(tables.query_row(left, [], |row| row.get(0)), Ok("0,2,3".to_owned()));
    }
}
