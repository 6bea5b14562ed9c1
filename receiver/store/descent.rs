//! Whether other content goes on from what is applied: its ledger, held against the cursor.
//! A `log_id` does not tell that. A log that was put back to an older copy keeps its name,
//! and fills the places behind the copy with other events.

use rusqlite::{Connection, params};

use super::baseline::Baseline;
use crate::proto::{
    chain::{Chain, Cursor, link},
    event::{Fingerprint, Sequence},
};

/// What a ledger says of a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Descent {
    /// It has the same history up to there.
    Same,
    /// It has another one.
    Other,
    /// It says nothing: its first row, of this sequence, is beyond.
    Unknown(Sequence),
}

/// Holds a ledger against a cursor that is not beyond its end.
///
/// # Errors
/// Whatever SQLite says.
pub fn of(tables: &Connection, log: &str, cursor: &Cursor) -> rusqlite::Result<Descent> {
    let baseline = Baseline::read(tables)?;
    if cursor.sequence < baseline.from - 1 {
        return Ok(Descent::Unknown(baseline.from));
    }
    let chain = chain_at(tables, log, &baseline, cursor.sequence)?;
    Ok(if chain == Some(cursor.chain) { Descent::Same } else { Descent::Other })
}

/// Whether a ledger has a row for each sequence from where it begins up to a cursor, none
/// beside them, and the cursor's chain there.
///
/// # Errors
/// Whatever SQLite says.
pub fn leads_to(tables: &Connection, log: &str, cursor: &Cursor) -> rusqlite::Result<bool> {
    let baseline = Baseline::read(tables)?;
    let rows: i64 =
        tables.query_row("SELECT count(*) FROM counterfoil_ledger", [], |row| row.get(0))?;
    Ok(rows == cursor.sequence + 1 - baseline.from
        && chain_at(tables, log, &baseline, cursor.sequence)? == Some(cursor.chain))
}

/// The chain at a sequence, made of the ledger's rows from where it begins. None: a row is
/// missing.
fn chain_at(
    tables: &Connection,
    log: &str,
    baseline: &Baseline,
    sequence: Sequence,
) -> rusqlite::Result<Option<Chain>> {
    let mut rows = tables.prepare(
        "SELECT sequence, key, fingerprint FROM counterfoil_ledger
         WHERE log = ?1 AND sequence >= ?2 AND sequence <= ?3 ORDER BY sequence",
    )?;
    let mut rows = rows.query(params![log, baseline.from, sequence])?;
    let (mut next, mut chain) = (baseline.from, baseline.chain);
    while let Some(row) = rows.next()? {
        if row.get::<_, Sequence>(0)? != next {
            return Ok(None);
        }
        let fingerprint: Fingerprint = row.get(2)?;
        chain = link(&chain, next, &fingerprint, row.get_ref(1)?.as_str()?);
        next += 1;
    }
    Ok((next == sequence + 1).then_some(chain))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::outcome::Outcome,
        receiver::{
            inventory::Inventory,
            store::{self, ledger, prune},
            testing::{adjustments, cursor_after},
        },
    };

    #[test]
    fn a_ledger_tells_whose_history_it_goes_on_from() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        let tables = &store.connection;
        for event in adjustments(0, 20) {
            let mut rows = ledger::Rows::of(tables, "main", 0).expect("valid");
            rows.insert(&event, Outcome::Applied, None).expect("inserted");
        }
        let end = cursor_after(&adjustments(0, 20));
        assert!(store::cursor::advance(tables, "main", None, &end).expect("moved"));
        let at = |count| cursor_after(&adjustments(0, count));
        let of = |cursor: &Cursor| super::of(tables, "main", cursor).expect("readable");
        let other = Cursor { chain: [9; 32], ..at(8) };
        for count in [1, 8, 20] {
            assert_eq!(of(&at(count)), Descent::Same, "after {count}");
        }
        assert_eq!(of(&other), Descent::Other);
        prune::prune(&store, prune::Bound { below: 8, before_ms: None }).expect("pruned");
        assert_eq!(of(&at(7)), Descent::Unknown(8));
        assert_eq!((of(&at(8)), of(&other)), (Descent::Same, Descent::Other), "by the baseline");
        assert_eq!(of(&at(9)), Descent::Same);
        tables.execute("DELETE FROM counterfoil_ledger WHERE sequence = 12", []).expect("deleted");
        assert_eq!((of(&at(12)), of(&at(13))), (Descent::Same, Descent::Other));
    }
}
