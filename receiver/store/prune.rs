//! Takes the oldest rows out of the ledger, a few in one transaction, with what their events
//! have let follow, and keeps in the same transaction what proves the rest. Which rows may
//! go others decide.

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

use super::{Store, baseline::Baseline, outbox};
use crate::proto::{
    chain::link,
    crash,
    event::{Fingerprint, Sequence},
    limits::MAX_PRUNED_ROWS,
    outcome::Outcome,
};

/// Which rows may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Only those of sequences below this. Never above the cursor's next.
    pub below: Sequence,
    /// Only those that were applied before this time, milliseconds since the Unix epoch,
    /// and none after the first that was not; none: of any time.
    pub before_ms: Option<i64>,
}

/// Why nothing was pruned.
#[derive(Debug)]
pub enum Failed {
    /// The store could not take it. Rolled back.
    Store(rusqlite::Error),
    /// COMMIT failed: it may or may not have come about, and either is right.
    Unknown(rusqlite::Error),
    /// The ledger lacks this row. Rolled back.
    Hole(Sequence),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Self {
        Failed::Store(error)
    }
}

/// Prunes up to [`MAX_PRUNED_ROWS`] rows. None: there was none that may go.
///
/// # Errors
/// [`Failed`].
pub fn prune(store: &Store, bound: Bound) -> Result<Option<Baseline>, Failed> {
    let connection = &store.connection;
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let before = Baseline::read(&transaction)?;
    let after = beyond(&transaction, &store.log, before, bound)?;
    if after.from == before.from {
        return Ok(None);
    }
    transaction
        .prepare_cached("DELETE FROM counterfoil_ledger WHERE log = ?1 AND sequence < ?2")?
        .execute(params![store.log, after.from])?;
    outbox::prune(&transaction, after.from)?;
    after.write(&transaction)?;
    crash::point(crash::RECEIVER_BEFORE_PRUNE_COMMIT);
    transaction.commit().map_err(Failed::Unknown)?;
    crash::point(crash::RECEIVER_AFTER_PRUNE_COMMIT);
    Ok(Some(after))
}

/// The baseline once the rows that may go have gone.
fn beyond(
    tables: &Connection,
    log: &str,
    before: Baseline,
    bound: Bound,
) -> Result<Baseline, Failed> {
    let mut rows = tables.prepare_cached(
        "SELECT sequence, key, fingerprint, outcome, applied_at FROM counterfoil_ledger
         WHERE log = ?1 AND sequence >= ?2 AND sequence < ?3 ORDER BY sequence",
    )?;
    // Below the bound everything is applied, so there is a row of everything.
    let most = bound.below.min(before.from + MAX_PRUNED_ROWS as Sequence);
    let mut rows = rows.query(params![log, before.from, most])?;
    let mut after = before;
    while after.from < most {
        let row = rows.next()?.ok_or(Failed::Hole(after.from))?;
        if row.get::<_, Sequence>(0)? != after.from {
            return Err(Failed::Hole(after.from));
        }
        let applied_at: i64 = row.get(4)?;
        if bound.before_ms.is_some_and(|before| applied_at >= before) {
            break;
        }
        let (key, fingerprint): (String, Fingerprint) = (row.get(1)?, row.get(2)?);
        let outcome: String = row.get(3)?;
        let outcome = Outcome::named(&outcome).ok_or(rusqlite::Error::InvalidQuery)?;
        after.counts[outcome as usize] += 1;
        after.chain = link(&after.chain, after.from, &fingerprint, key);
        after.from += 1;
    }
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{
        inventory::Inventory,
        store::{self, cursor, ledger},
        testing::{adjustments, cursor_after},
    };

    /// A store whose ledger has so many rows, each applied at its sequence in ms.
    fn filled(rows: Sequence) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        let events = adjustments(0, rows);
        store.connection.execute_batch("BEGIN").expect("begun");
        for event in &events {
            let mut rows =
                ledger::Rows::of(&store.connection, "main", event.sequence).expect("valid");
            let (outcome, reason) = match event.sequence % 5 {
                0 => (Outcome::Rejected, Some("unknown_item")),
                _ => (Outcome::Applied, None),
            };
            rows.insert(event, outcome, reason).expect("inserted");
        }
        let cursor = cursor_after(&events);
        assert!(cursor::advance(&store.connection, "main", None, &cursor).expect("moved"));
        store.connection.execute_batch("COMMIT").expect("committed");
        (directory, store)
    }

    fn left(store: &Store) -> (Sequence, Sequence) {
        let all = "SELECT coalesce(min(sequence), -1), count(*) FROM counterfoil_ledger";
        store.connection.query_row(all, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("counted")
    }

    #[test]
    fn what_goes_is_counted_and_the_chain_goes_on_from_there() {
        let (_directory, store) = filled(20);
        let bound = |below, before_ms| Bound { below, before_ms };
        let pruned = |bound| prune(&store, bound).expect("pruned").map(|baseline| baseline.from);
        assert_eq!(pruned(bound(0, None)), None);
        assert_eq!(pruned(bound(7, None)), Some(7));
        assert_eq!((pruned(bound(7, None)), pruned(bound(3, None))), (None, None));
        assert_eq!(left(&store), (7, 13));
        // Of a time: those before it, and none that is younger.
        assert_eq!((pruned(bound(20, Some(7))), pruned(bound(20, Some(12)))), (None, Some(12)));
        assert_eq!(pruned(bound(14, Some(99))), Some(14));
        let baseline = Baseline::read(&store.connection).expect("readable");
        assert_eq!(baseline.chain, cursor_after(&adjustments(0, 14)).chain);
        assert_eq!(baseline.counts, [11, 0, 3, 0, 0]);
        // All of it: the cursor is then proven by the baseline alone.
        assert_eq!(pruned(bound(20, None)), Some(20));
        assert_eq!(left(&store), (-1, 0));
        let cursor = cursor::read(&store.connection, "main").expect("readable").expect("there");
        let baseline = Baseline::read(&store.connection).expect("readable");
        assert_eq!((baseline.chain, baseline.counts), (cursor.chain, [16, 0, 4, 0, 0]));
    }

    #[test]
    fn one_transaction_takes_a_bounded_piece() {
        let most = MAX_PRUNED_ROWS as Sequence;
        let (_directory, store) = filled(most + 10);
        let bound = Bound { below: most + 5, before_ms: None };
        let pruned = || prune(&store, bound).expect("pruned").map(|baseline| baseline.from);
        assert_eq!([pruned(), pruned(), pruned()], [Some(most), Some(most + 5), None]);
    }

    #[test]
    fn a_hole_is_no_reason_to_take_the_rest() {
        for missing in [0, 4, 9] {
            let (_directory, store) = filled(10);
            let delete = "DELETE FROM counterfoil_ledger WHERE sequence = ?1";
            store.connection.execute(delete, [missing]).expect("deleted");
            match prune(&store, Bound { below: 10, before_ms: None }) {
                Err(Failed::Hole(found)) => assert_eq!(found, missing),
                other => panic!("{other:?}"),
            }
            assert_eq!(left(&store).1, 9, "nothing else is taken away");
            assert_eq!(Baseline::read(&store.connection), Ok(Baseline::BEGINNING));
        }
    }
}
