//! The marks of the outbox: where each follow-up event that was forwarded stands in the other
//! log. That log may go back in time; then the marks from some place on are true no more.

use rusqlite::{Connection, OptionalExtension as _, Row, params};

use super::outbox::{Forwarded, time_of};
use crate::proto::event::{Sequence, Time};

/// A place in the other log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The incarnation of the log, as it stands in the row.
    pub log_id: String,
    /// Where in it.
    pub at: Sequence,
}

/// A follow-up event that is noted as forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    /// Where it is said to stand.
    pub place: Place,
    /// Its key.
    pub key: String,
    /// The time that its key is known by, if it has one.
    pub first_attempt_time: Option<Time>,
}

fn mark(row: &Row<'_>) -> rusqlite::Result<Mark> {
    Ok(Mark {
        place: Place { log_id: row.get(0)?, at: row.get(1)? },
        key: row.get(2)?,
        first_attempt_time: time_of(row, 3)?,
    })
}

/// The last one of each incarnation of the log.
///
/// # Errors
/// Whatever SQLite says.
pub fn last(tables: &Connection) -> rusqlite::Result<Vec<Mark>> {
    // From one name to the next: there are few of them, and many rows of each.
    let mut names = tables.prepare_cached(
        "SELECT min(forwarded_log_id) FROM counterfoil_outbox
         WHERE forwarded_log_id > ?1 AND forwarded_sequence IS NOT NULL",
    )?;
    let (mut found, mut after) = (Vec::new(), String::new());
    while let Some(log_id) = names.query_row([&after], |row| row.get::<_, Option<String>>(0))? {
        found.extend(last_up_to(tables, &Place { log_id: log_id.clone(), at: Sequence::MAX })?);
        after = log_id;
    }
    Ok(found)
}

/// The last one that is not behind a place.
///
/// # Errors
/// Whatever SQLite says.
pub fn last_up_to(tables: &Connection, place: &Place) -> rusqlite::Result<Option<Mark>> {
    tables
        .prepare_cached(
            "SELECT forwarded_log_id, forwarded_sequence, key, first_attempt_time
             FROM counterfoil_outbox WHERE forwarded_log_id = ?1 AND forwarded_sequence <= ?2
             ORDER BY forwarded_sequence DESC LIMIT 1",
        )?
        .query_row(params![place.log_id, place.at], mark)
        .optional()
}

/// The first place of these at which another follow-up event is noted.
///
/// # Errors
/// Whatever SQLite says.
pub fn taken(tables: &Connection, forwarded: &[Forwarded]) -> rusqlite::Result<Option<Place>> {
    let mut other = tables.prepare_cached(
        "SELECT 1 FROM counterfoil_outbox
         WHERE forwarded_log_id = ?1 AND forwarded_sequence = ?2 AND key <> ?3",
    )?;
    let mut first: Option<Place> = None;
    for Forwarded { key, log_id, at, .. } in forwarded {
        let log_id = log_id.to_string();
        let earlier = first.as_ref().is_none_or(|first| *at < first.at);
        if earlier && other.exists(params![log_id, at, key])? {
            first = Some(Place { log_id, at: *at });
        }
    }
    Ok(first)
}

/// Lets those wait again that are noted from a place on. How many those are.
///
/// # Errors
/// Whatever SQLite says.
pub fn set_back(tables: &Connection, from: &Place) -> rusqlite::Result<usize> {
    tables
        .prepare_cached(
            "UPDATE counterfoil_outbox SET forwarded_log_id = NULL, forwarded_sequence = NULL
             WHERE forwarded_log_id = ?1 AND forwarded_sequence >= ?2",
        )?
        .execute(params![from.log_id, from.at])
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::receiver::store::outbox;

    const A: Uuid = Uuid::from_u128(0xa);
    const B: Uuid = Uuid::from_u128(0xb);

    /// One follow-up of each event; those with a place are forwarded.
    fn marked(places: &[Option<(Uuid, Sequence)>]) -> Connection {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        let insert = "INSERT INTO counterfoil_outbox (sequence, number, key, type, subject,
            content_type, json, data) VALUES (?1, 0, 'k' || ?1, 't', 's', '', 1, x'7b7d')";
        for (sequence, place) in (0..).zip(places) {
            tables.execute(insert, [sequence]).expect("inserted");
            if let Some((log_id, at)) = *place {
                let marked = outbox::mark(&tables, &[forwarded(sequence, log_id, at)]);
                assert_eq!(marked, Ok(1));
            }
        }
        tables
    }

    fn forwarded(sequence: Sequence, log_id: Uuid, at: Sequence) -> Forwarded {
        Forwarded { sequence, number: 0, key: format!("k{sequence}"), log_id, at }
    }

    fn place(log_id: Uuid, at: Sequence) -> Place {
        Place { log_id: log_id.to_string(), at }
    }

    #[test]
    fn the_last_ones_are_found_by_the_index() {
        let tables =
            marked(&[Some((A, 3)), Some((A, 9)), Some((B, 20)), Some((A, 4)), None, Some((B, 21))]);
        let found: Vec<_> = last(&tables).expect("readable");
        let found: Vec<_> = found.iter().map(|mark| (&*mark.key, mark.place.clone())).collect();
        assert_eq!(found, [("k1", place(A, 9)), ("k5", place(B, 21))]);
        let up_to = |at| last_up_to(&tables, &place(A, at)).expect("readable").map(|m| m.place.at);
        assert_eq!([2, 3, 8, 9].map(up_to), [None, Some(3), Some(4), Some(9)]);
        for wanted in [
            "forwarded_log_id = 'a' AND forwarded_sequence <= 5 ORDER BY forwarded_sequence DESC",
            "forwarded_log_id = 'a' AND forwarded_sequence = 5 AND key <> 'k'",
            "forwarded_log_id > 'a' AND forwarded_sequence IS NOT NULL",
        ] {
            let sql = format!("EXPLAIN QUERY PLAN SELECT 1 FROM counterfoil_outbox WHERE {wanted}");
            let plan: String = tables.query_row(&sql, [], |row| row.get(3)).expect("a plan");
            assert!(plan.contains("counterfoil_outbox_forwarded"), "{wanted}: {plan}");
        }
    }

    #[test]
    fn a_place_has_one_event() {
        let tables = marked(&[Some((A, 3)), Some((A, 4)), None, None]);
        let taken = |of: &[Forwarded]| taken(&tables, of).expect("readable");
        assert_eq!(taken(&[forwarded(0, A, 3), forwarded(2, A, 5), forwarded(3, B, 4)]), None);
        assert_eq!(taken(&[forwarded(3, A, 4), forwarded(2, A, 3)]), Some(place(A, 3)));
    }

    #[test]
    fn what_is_lost_waits_again() {
        let tables = marked(&[Some((A, 3)), Some((A, 4)), Some((B, 9)), Some((A, 5))]);
        assert_eq!(set_back(&tables, &place(A, 4)), Ok(2));
        let waiting = outbox::pending(&tables, 9, 9_999).expect("readable");
        let waiting: Vec<_> = waiting.iter().map(|outgoing| outgoing.sequence).collect();
        assert_eq!(waiting, [1, 3]);
    }
}
