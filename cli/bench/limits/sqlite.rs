//! What SQLite does with exactly the receiver's statements, on a database that
//! the receiver's own code has opened: the same tables, settings and checkpoints.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use counterfoil::{
    proto::{chain::Cursor, limits::MAX_COMMIT_EVENTS, outcome::Outcome},
    receiver::{
        inventory::{ADD_TO_TOTAL, ADJUST, Inventory},
        store::{
            self, Store,
            cursor::{self, ADVANCE},
            ledger::INSERT,
        },
    },
};
use rusqlite::params;
use uuid::Uuid;

use crate::{bench::events::item, failure::Failure};

/// In the working directory.
const NAME: &str = "limit.db";
const LOG: &str = "main";
const DELTA: i64 = 3;

/// One event as it is bound to the statements.
struct Row {
    sequence: i64,
    key: String,
    fingerprint: [u8; 32],
    item: String,
}

/// Applies so many events to an empty database, as many a commit as the receiver
/// does at most. The time is that within the transactions and checkpoints.
///
/// # Errors
/// [`Failure::Runtime`] when SQLite fails, or when not every row is there at the end.
pub fn applied(events: u64) -> Result<(u64, Duration), Failure> {
    let failed = |what: String| Failure::Runtime(format!("{NAME}: {what}"));
    let mut store =
        store::open(Path::new(NAME), LOG, &Inventory).map_err(|error| failed(error.to_string()))?;
    let elapsed = fill(&mut store, events).map_err(|error| failed(error.to_string()))?;
    let count: i64 = store
        .connection
        .query_row("SELECT count(*) FROM counterfoil_ledger", [], |row| row.get(0))
        .map_err(|error| failed(error.to_string()))?;
    if count.unsigned_abs() != events {
        return Err(failed(format!("holds {count} rows of {events}")));
    }
    store.close().map_err(|error| failed(error.to_string()))?;
    for name in [NAME, "limit.db-wal", "limit.db-shm"] {
        let _ = fs::remove_file(name); // the directory goes with everything in it
    }
    Ok((events, elapsed))
}

fn fill(store: &mut Store, events: u64) -> rusqlite::Result<Duration> {
    let log_id = Uuid::new_v4();
    let at = |sequence: i64| Cursor { log_id, sequence, chain: hash(sequence) };
    let (mut last, mut elapsed) = (None::<Cursor>, Duration::ZERO);
    let end = i64::try_from(events).unwrap_or(i64::MAX);
    for first in (0..end).step_by(MAX_COMMIT_EVENTS) {
        let rows: Vec<Row> = (first..end).take(MAX_COMMIT_EVENTS).map(row).collect();
        let next = at(first + rows.len() as i64 - 1);
        let started = Instant::now();
        commit(store, &rows, last.as_ref(), &next)?;
        store.after_commit()?;
        elapsed += started.elapsed();
        last = Some(next);
    }
    Ok(elapsed)
}

fn commit(
    store: &Store,
    rows: &[Row],
    last: Option<&Cursor>,
    next: &Cursor,
) -> rusqlite::Result<()> {
    let tables = &store.connection;
    tables.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    {
        let mut insert = tables.prepare_cached(INSERT)?;
        let mut adjust = tables.prepare_cached(ADJUST)?;
        let mut add = tables.prepare_cached(ADD_TO_TOTAL)?;
        let outcome = Outcome::Applied.as_str();
        for Row { sequence, key, fingerprint, item } in rows {
            insert.execute(params![LOG, sequence, key, fingerprint, outcome, None::<&str>, 0])?;
            adjust.execute(params![item, DELTA])?;
            add.execute([DELTA])?;
        }
        match last {
            None => assert_moved(cursor::advance(tables, LOG, None, next)?)?,
            Some(last) => {
                let log_id = next.log_id.to_string();
                let moved = tables.prepare_cached(ADVANCE)?.execute(params![
                    LOG,
                    log_id,
                    next.sequence,
                    next.chain,
                    last.sequence,
                    last.chain
                ])?;
                assert_moved(moved == 1)?;
            }
        }
    }
    tables.prepare_cached("COMMIT")?.execute([])?;
    Ok(())
}

fn assert_moved(moved: bool) -> rusqlite::Result<()> {
    if moved { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(0)) }
}

fn row(sequence: i64) -> Row {
    let item = item(usize::try_from(sequence).unwrap_or_default());
    Row { sequence, key: Uuid::now_v7().to_string(), fingerprint: hash(sequence), item }
}

/// Bytes that look like a hash: SQLite takes them as they are.
fn hash(sequence: i64) -> [u8; 32] {
    let mut hash = [0; 32];
    for (place, bytes) in hash.chunks_exact_mut(8).enumerate() {
        let mixed = (sequence + place as i64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64);
        bytes.copy_from_slice(&mixed.to_be_bytes());
    }
    hash
}
