//! What a rebuilt database takes over from the one that it replaces: what cannot be made
//! again from the log, since it is not in there.
//!
//! The follow-up events of what the earlier version has applied are those that it has emitted,
//! word for word: forwarded, given up, or waiting still. What the new version emits in their
//! place, or beside them, is not kept. They may be many, so they are carried while the live
//! one goes on, and what has changed in it since once it is held.

use std::collections::BTreeSet;

use rusqlite::{Connection, Row, params_from_iter, types::Value};

use crate::proto::event::Sequence;

/// Takes over those of the events from `from` to `to`, in one transaction.
pub fn span(
    live: &Connection,
    rebuilt: &Connection,
    from: Sequence,
    to: Sequence,
) -> rusqlite::Result<()> {
    let transaction = rebuilt.unchecked_transaction()?;
    exchange(live, &transaction, "sequence BETWEEN ?1 AND ?2", [from, to])?;
    transaction.commit()
}

/// Takes over what has changed of those of the events up to `to`, which were taken over
/// before: some have been forwarded or given up since, and whatever there is of the events in
/// `renew`. Nothing else has become of them: no mark was taken back.
pub fn changed(
    live: &Connection,
    rebuilt: &Connection,
    to: Sequence,
    renew: &BTreeSet<Sequence>,
) -> rusqlite::Result<()> {
    let transaction = rebuilt.unchecked_transaction()?;
    for &sequence in renew {
        exchange(live, &transaction, "sequence = ?1", [sequence])?;
    }
    let mut fewer = Vec::new();
    fewer_wait(live, &transaction, (0, to), &mut fewer)?;
    for sequence in fewer {
        exchange(live, &transaction, "sequence = ?1", [sequence])?;
    }
    transaction.commit()
}

/// The live one's rows of a place for those that the rebuilt one has there.
fn exchange<const N: usize>(
    live: &Connection,
    rebuilt: &Connection,
    place: &str,
    at: [i64; N],
) -> rusqlite::Result<()> {
    let delete = format!("DELETE FROM counterfoil_outbox WHERE {place}");
    rebuilt.prepare_cached(&delete)?.execute(params_from_iter(at))?;
    let select = format!("SELECT * FROM counterfoil_outbox WHERE {place}");
    let mut select = live.prepare_cached(&select)?;
    let columns: Vec<_> = select.column_names().collect();
    let count = columns.len();
    let insert = format!(
        "INSERT INTO counterfoil_outbox ({}) VALUES ({})",
        columns.join(", "),
        vec!["?"; count].join(", ")
    );
    let mut insert = rebuilt.prepare_cached(&insert)?;
    let mut rows = select.query(params_from_iter(at))?;
    while let Some(row) = rows.next()? {
        let values = (0..count).map(|n| row.get(n)).collect::<Result<Vec<Value>, _>>()?;
        insert.execute(params_from_iter(values))?;
    }
    Ok(())
}

/// The events from `from` to `to` of which fewer follow-ups wait in the live one. Rows only
/// leave off waiting, so as many are the same ones; and where many wait, counting them is all
/// that there is time for.
fn fewer_wait(
    live: &Connection,
    rebuilt: &Connection,
    (from, to): (Sequence, Sequence),
    found: &mut Vec<Sequence>,
) -> rusqlite::Result<()> {
    const WAITING: &str = "SELECT count(*) FROM counterfoil_outbox
        WHERE forwarded_sequence IS NULL AND given_up IS NULL AND sequence BETWEEN ?1 AND ?2";
    let waiting = |tables: &Connection| {
        let count = |row: &Row<'_>| row.get::<_, i64>(0);
        tables.prepare_cached(WAITING)?.query_row([from, to], count)
    };
    if from > to || waiting(live)? == waiting(rebuilt)? {
        return Ok(());
    }
    if from == to {
        found.push(from);
        return Ok(());
    }
    let middle = from + (to - from) / 2;
    fewer_wait(live, rebuilt, (from, middle), found)?;
    fewer_wait(live, rebuilt, (middle + 1, to), found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever `data` says is whose it is; `mark` is SQL of two columns.
    fn put(tables: &Connection, (sequence, number): (Sequence, i64), data: &str, mark: &str) {
        let insert = format!(
            "INSERT INTO counterfoil_outbox (sequence, number, key, type, subject, content_type,
                 json, data, forwarded_sequence, forwarded_log_id, given_up)
             VALUES ({sequence}, {number}, 'k{sequence}/{number}', 't', 's', 'c', 1,
                 CAST('{data}' AS BLOB), {mark})"
        );
        tables.execute(&insert, []).expect("put");
    }

    const WAITS: &str = "NULL, NULL, NULL";
    const SENT: &str = "5, 'log', NULL";

    fn outbox() -> Connection {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        tables
    }

    fn all(tables: &Connection) -> Vec<String> {
        let all = "SELECT sequence || '/' || number || ' ' || CAST(data AS TEXT) || ' '
                       || coalesce(forwarded_sequence, given_up, 'waits')
                   FROM counterfoil_outbox ORDER BY sequence, number";
        let mut all = tables.prepare(all).expect("a statement");
        all.query_map([], |row| row.get(0)).expect("rows").collect::<Result<_, _>>().expect("texts")
    }

    #[test]
    fn the_past_is_as_the_earlier_version_has_emitted_it() {
        let (live, rebuilt) = (outbox(), outbox());
        put(&live, (0, 0), "old", SENT);
        put(&live, (1, 0), "old", WAITS);
        put(&live, (1, 1), "old", "NULL, NULL, 'no use'");
        for place in [(0, 0), (0, 1), (1, 0), (2, 0), (9, 0)] {
            put(&rebuilt, place, "new", WAITS);
        }
        span(&live, &rebuilt, 0, 3).expect("carried");
        let expected = ["0/0 old 5", "1/0 old waits", "1/1 old no use", "9/0 new waits"];
        assert_eq!(all(&rebuilt), expected);
    }

    /// What was carried is not carried again, but for what has changed.
    #[test]
    fn what_has_changed_since_is_all_that_is_carried_again() {
        let (live, rebuilt) = (outbox(), outbox());
        for sequence in 0..6 {
            put(&live, (sequence, 0), "old", if sequence < 2 { SENT } else { WAITS });
        }
        span(&live, &rebuilt, 0, 5).expect("carried");
        rebuilt.execute("UPDATE counterfoil_outbox SET data = x'6F6E6365'", []).expect("marked");
        let change =
            "UPDATE counterfoil_outbox SET (forwarded_sequence, forwarded_log_id, given_up)
                      = ";
        for (changed, place) in
            [("(SELECT 7, 'log', NULL)", 2), ("(SELECT NULL, NULL, 'no use')", 4)]
        {
            let change = format!("{change} {changed} WHERE sequence = {place}");
            live.execute(&change, []).expect("changed");
        }
        put(&live, (3, 1), "late", WAITS);
        put(&live, (0, 1), "late", SENT);
        live.execute("DELETE FROM counterfoil_outbox WHERE sequence = 5", []).expect("pruned");
        changed(&live, &rebuilt, 5, &[0, 3].into()).expect("carried");
        let expected = [
            "0/0 old 5",
            "0/1 late 5",
            "1/0 once 5",
            "2/0 old 7",
            "3/0 old waits",
            "3/1 late waits",
            "4/0 old no use",
        ];
        assert_eq!(all(&rebuilt), expected);
    }
}
