//! What SQLite does with exactly the receiver's statements, on a database that
//! the receiver's own code has opened: the same tables, settings and checkpoints.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use counterfoil::{
    proto::{
        chain::Cursor,
        event::{DataKind, Event, Intent, Time},
        limits::MAX_COMMIT_EVENTS,
    },
    receiver::{
        declared::{self, Given, spec::Effect},
        projections,
        store::{
            self, Store,
            cursor::{self, ADVANCE},
            ledger::{BLOCK, Rows},
        },
        values::Values,
    },
};
use rusqlite::params;
use uuid::Uuid;

use crate::{
    bench::events::{Events, item},
    failure::Failure,
};

/// In the working directory.
const NAME: &str = "limit.db";
const LOG: &str = "main";
/// What the events of the other stages have, the smaller ones.
const PAYLOAD_BYTES: usize = 100;

/// Applies so many events to an empty database, as many a commit as the receiver
/// does at most. The time is that within the transactions and checkpoints.
///
/// # Errors
/// [`Failure::Runtime`] when SQLite fails, or when not every row is there at the end.
pub fn applied(events: u64) -> Result<(u64, Duration), Failure> {
    let failed = |what: String| Failure::Runtime(format!("{NAME}: {what}"));
    let inventory = projections::inventory();
    let mut store =
        store::open(Path::new(NAME), LOG, &inventory).map_err(|error| failed(error.to_string()))?;
    let payload = Events::of(PAYLOAD_BYTES).payload();
    let first = event(0, &payload);
    let Some(handler) = inventory.handler(&first.intent.event_type) else {
        return Err(failed("inventory does not take what is published".to_owned()));
    };
    // All payloads are the same.
    let judged = inventory.judged(&first).map_err(|fault| failed(fault.to_string()))?;
    let elapsed = fill(&mut store, (&handler.sql, judged.values()), events, &payload)
        .map_err(|error| failed(error.to_string()))?;
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

fn fill(
    store: &mut Store,
    effects: (&[Effect], &Values),
    events: u64,
    payload: &Bytes,
) -> rusqlite::Result<Duration> {
    let log_id = Uuid::new_v4();
    let at = |sequence: i64| Cursor { log_id, sequence, chain: hash(sequence) };
    let (mut last, mut elapsed) = (None::<Cursor>, Duration::ZERO);
    let end = i64::try_from(events).unwrap_or(i64::MAX);
    for first in (0..end).step_by(MAX_COMMIT_EVENTS) {
        let group = (first..end).take(MAX_COMMIT_EVENTS);
        let group: Vec<Event> = group.map(|sequence| event(sequence, payload)).collect();
        let next = at(first + group.len() as i64 - 1);
        let started = Instant::now();
        commit(store, effects, &group, last.as_ref(), &next)?;
        store.after_commit()?;
        elapsed += started.elapsed();
        last = Some(next);
    }
    Ok(elapsed)
}

fn commit(
    store: &Store,
    (effects, values): (&[Effect], &Values),
    group: &[Event],
    last: Option<&Cursor>,
    next: &Cursor,
) -> rusqlite::Result<()> {
    let tables = &store.connection;
    tables.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    {
        let mut rows = Rows::of(tables, LOG, 0)?;
        let statements = effects.iter().map(|effect| &effect.statement);
        let mut prepared = statements
            .map(|statement| Ok((statement, tables.prepare_cached(&statement.text)?)))
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for block in group.chunks(BLOCK) {
            rows.claim_new(block.iter())?;
            for event in block {
                for (statement, prepared) in &mut prepared {
                    declared::bind(prepared, statement, Given { event, values })?;
                    prepared.raw_execute()?;
                }
            }
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

fn event(sequence: i64, payload: &Bytes) -> Event {
    let intent = Intent {
        key: Uuid::now_v7().to_string().into(),
        event_type: "stock.adjusted".into(),
        subject: item(usize::try_from(sequence).unwrap_or_default()).into(),
        content_type: DataKind::Json.default_content_type().into(),
        kind: DataKind::Json,
        data: payload.clone(),
        attributes: Vec::new(),
        expected_version: None,
        first_attempt_time: None,
        time: None,
        fingerprint: hash(sequence),
    };
    let accept_time = Time { seconds: 0, nanos: 0 };
    Event { sequence, subject_version: 1, accept_time, intent }
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
