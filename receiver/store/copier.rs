//! Copying the write-ahead log into the database on a thread and a connection of their own,
//! while the writer goes on committing. It copies what was committed when it began; the writer
//! copies the rest, which is little, so that the log can start over.

use std::{
    io,
    path::Path,
    sync::mpsc::{self, TryRecvError},
    thread::{self, JoinHandle},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig, wal::CheckpointMode};

use super::checkpoint::checkpoint;

/// Copies when it is told to. Ends, and lets go of the database, when it is dropped.
pub(super) struct Copier {
    /// None from the moment when it is to end.
    orders: Option<mpsc::Sender<()>>,
    results: mpsc::Receiver<rusqlite::Result<bool>>,
    under_way: bool,
    thread: Option<JoinHandle<()>>,
}

impl Copier {
    /// One for the database of an open store.
    ///
    /// # Errors
    /// In words: there is no connection, or no thread.
    pub fn start(db: &Path) -> Result<Self, String> {
        let connection = open(db).map_err(|error| error.to_string())?;
        let (orders, ordered) = mpsc::channel();
        let (done, results) = mpsc::channel();
        let copy = move || {
            while ordered.recv().is_ok() {
                if done.send(checkpoint(&connection, CheckpointMode::PASSIVE)).is_err() {
                    break;
                }
            }
        };
        let thread = thread::Builder::new().name("copier".to_owned()).spawn(copy);
        let thread = thread.map_err(|error: io::Error| error.to_string())?;
        Ok(Copier { orders: Some(orders), results, under_way: false, thread: Some(thread) })
    }

    /// Lets it begin. Called when nothing is under way.
    pub fn begin(&mut self) {
        self.under_way = self.orders.as_ref().is_some_and(|orders| orders.send(()).is_ok());
    }

    /// What has come of it, once it has ended. Not told twice.
    pub fn ended(&mut self) -> Option<rusqlite::Result<bool>> {
        if !self.under_way {
            return None;
        }
        let ended = match self.results.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Ok(false),
            Ok(ended) => ended,
        };
        self.under_way = false;
        Some(ended)
    }

    /// The same, and waits for it to end.
    pub fn wait(&mut self) -> Option<rusqlite::Result<bool>> {
        std::mem::take(&mut self.under_way).then(|| self.results.recv().unwrap_or(Ok(false)))
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that copies the write-ahead log has failed");
        }
    }
}

fn open(db: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(db, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn it_copies_when_it_is_told_to_and_tells_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let db = dir.path().join("db");
        let writer = Connection::open(&db).expect("opened");
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (x);",
            )
            .expect("written");
        let length = || fs::metadata(&db).expect("there").len();
        let mut copier = Copier::start(&db).expect("started");
        assert!(copier.ended().is_none() && copier.wait().is_none(), "nothing is under way");
        for _ in 0..3 {
            let before = length();
            writer.execute_batch("INSERT INTO t VALUES (zeroblob(100000))").expect("written");
            assert_eq!(length(), before, "the writer does not copy");
            copier.begin();
            assert!(matches!(copier.wait(), Some(Ok(true))), "all of it");
            assert!(length() >= before + 90_000, "nearly all pages are new");
            assert!(copier.ended().is_none());
        }
        // With a reader in the log, part of what comes after it has to wait.
        let reader = Connection::open(&db).expect("opened");
        reader.execute_batch("BEGIN; SELECT * FROM t").expect("read");
        writer.execute_batch("INSERT INTO t VALUES (zeroblob(100000))").expect("written");
        copier.begin();
        let ended = loop {
            if let Some(ended) = copier.ended() {
                break ended;
            }
            thread::yield_now();
        };
        assert!(matches!(ended, Ok(false)), "{ended:?}");
        drop(copier);
        assert!(fs::metadata(dir.path().join("db-wal")).expect("there").len() > 0);
    }
}
