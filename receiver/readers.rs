//! Read-only connections for the service and the acks, off the async runtime. The writer
//! does not wait for them, nor they for it, unless the write-ahead log has to be cut. Each
//! read comes to an end: after a while, and when nobody waits for it any more.

use std::{
    ops::Deref,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, ErrorCode, ffi};
use tokio::sync::Semaphore;
use tonic::Status;

use super::store::{
    self,
    gate::Gate,
    guard::{Guard, Mode},
};
use crate::proto::{
    limits::MAX_READ,
    refusal::{Reason, Refusal},
};

/// Connections open at once.
const MOST: usize = 4;
/// Steps of SQLite's machine between two looks at the clock: some tens of microseconds.
const STEPS: i32 = 1_000;
/// Who waits outside for longer than the longest read has found something else in the way.
const PATIENCE: Duration = Duration::from_secs(MAX_READ.as_secs() + 1);

/// A small pool.
#[derive(Debug, Clone)]
pub struct Readers {
    db: Arc<PathBuf>,
    idle: Arc<Mutex<Vec<Reader>>>,
    permits: Arc<Semaphore>,
    gate: Gate,
}

/// One connection, read-only.
#[derive(Debug)]
pub struct Reader {
    connection: Connection,
    guard: Guard,
}

impl Reader {
    fn open(db: &std::path::Path) -> rusqlite::Result<Self> {
        let mut connection = store::open_for_reading(db)?;
        connection.set_prepared_statement_cache_capacity(64);
        let guard = Guard::on(&mut connection)?;
        Ok(Reader { connection, guard })
    }

    /// One in memory, for tests.
    #[cfg(test)]
    pub(super) fn in_memory(tables: &str) -> Self {
        let mut connection = Connection::open_in_memory().expect("memory");
        connection.execute_batch(store::SCHEMA).expect("schema");
        connection.execute_batch(tables).expect("plain SQL");
        let guard = Guard::on(&mut connection).expect("authorizer");
        Reader { connection, guard }
    }

    /// Runs what a projection's query is to do: it reads its own tables, and nothing else.
    pub fn for_callers<T>(&self, run: impl FnOnce() -> T) -> T {
        self.guard.during(Mode::Query, run)
    }

    /// What is read from now on ends by then, or when nobody waits for it any more.
    fn bound(&mut self, until: Instant, gone: Arc<AtomicBool>) -> rusqlite::Result<()> {
        let over = move || gone.load(Ordering::Relaxed) || Instant::now() >= until;
        self.connection.progress_handler(STEPS, Some(over))
    }
}

impl Deref for Reader {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// Whoever waits for a read. Dropped with the call.
struct Caller(Arc<AtomicBool>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Readers {
    /// Of a database that the writer has opened already, and whose gate this is.
    pub fn new(db: PathBuf, gate: Gate) -> Self {
        let permits = Arc::new(Semaphore::new(MOST));
        Readers { db: Arc::new(db), idle: Arc::default(), permits, gate }
    }

    /// Reads something on a thread that may block.
    ///
    /// # Errors
    /// QUERY_TOO_LONG; else INTERNAL without details, which are logged.
    pub async fn read<T: Send + 'static>(
        &self,
        what: impl FnOnce(&Reader) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Status> {
        let failed = |error: &dyn std::fmt::Display| {
            tracing::error!("the database could not be read: {error}");
            Status::internal("the receiver's database could not be read; its log says why")
        };
        let permit = self.permits.clone().acquire_owned().await.map_err(|e| failed(&e))?;
        let entered = self.gate.enter(PATIENCE).await;
        let gone = Arc::new(AtomicBool::new(false));
        let _caller = Caller(gone.clone());
        let (db, idle) = (self.db.clone(), self.idle.clone());
        let read = tokio::task::spawn_blocking(move || {
            let _inside = (permit, entered);
            if gone.load(Ordering::Relaxed) {
                return Err(rusqlite::Error::SqliteFailure(
                    ffi::Error::new(ffi::SQLITE_INTERRUPT),
                    None,
                ));
            }
            let kept = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = kept.map_or_else(|| Reader::open(&db), Ok)?;
            reader.bound(Instant::now() + MAX_READ, gone)?;
            let found = what(&reader)?; // after an error a new connection is opened
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            Ok(found)
        });
        read.await.map_err(|e| failed(&e))?.map_err(|error| {
            if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) {
                let message =
                    format!("the query took longer than the {} s that one may", MAX_READ.as_secs());
                return Refusal::new(Reason::QueryTooLong, message).into();
            }
            failed(&error)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::refusal::reason_of,
        receiver::{inventory::Inventory, store::open},
    };

    const ENDLESS: &str = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n)
                           SELECT count(*) FROM n";

    /// A read that nobody waits for gives its place back at once, and one that does not end
    /// is ended.
    #[tokio::test]
    async fn a_read_comes_to_an_end() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = open(&db, "main", &Inventory).expect("opened");
        let readers = Readers::new(db, store.gate().clone());
        let endless =
            || readers.read(|tables| tables.query_row(ENDLESS, [], |row| row.get::<_, i64>(0)));
        for _ in 0..2 * MOST {
            let given_up = tokio::time::timeout(Duration::from_millis(20), endless()).await;
            assert!(given_up.is_err(), "it does not end by itself");
        }
        let one =
            readers.read(|tables| tables.query_row("SELECT 1", [], |row| row.get::<_, i64>(0)));
        assert_eq!(one.await.expect("there is room"), 1);
        let status = endless().await.expect_err("ended");
        assert_eq!(reason_of(&status), Some(Reason::QueryTooLong), "{status:?}");
        assert!(store.gate().is_empty());
    }
}
