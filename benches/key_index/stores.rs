//! The stores that are compared, each behind the same few calls. All of them keep the
//! same of a key: hash, sequence, time, fingerprint, version, time of acceptance. None
//! syncs for an insert, since the log is the truth: each persists what has gathered
//! at the pace of the key index, and may use the same memory for caching.

use std::{error::Error, path::Path, sync::Arc, time::Duration};

use counterfoil::{
    proto::{
        chain::{Chain, EMPTY_CHAIN},
        event::Sequence,
    },
    publisher::{
        durable::Latch,
        log::{Entry, Extent, LogReader, ReadError},
        receipts::{self, Accepted, FLUSH_ROWS, Hash, Names, Shared, Store},
    },
};
use redb::{Durability, ReadableDatabase as _, TableDefinition, WriteTransaction};
use uuid::Uuid;

pub type Outcome<T> = Result<T, Box<dyn Error>>;

/// What another store may use for caching: half of the bound of the whole.
const CACHE_BYTES: usize = 128 << 20;
/// Inserts between two steps of persisting.
const PERSIST_ROWS: usize = FLUSH_ROWS;

/// A store of keys. The appender's calls: look up a group, add a group.
pub trait Keys {
    /// How many of these keys are known.
    fn find(&mut self, keys: &[Hash]) -> Outcome<usize>;

    /// Adds keys that are new, and persists now and then.
    fn insert(&mut self, group: &[(Names, Accepted)]) -> Outcome<()>;

    /// Persists the rest.
    fn close(self: Box<Self>) -> Outcome<()>;
}

/// By name, in the order of the table.
pub const NAMES: [&str; 4] = ["own", "sqlite", "redb", "fjall"];

/// Opens one, with so many keys in it.
pub fn open(name: &str, dir: &Path, keys: u64) -> Outcome<Box<dyn Keys>> {
    Ok(match name {
        "own" => Box::new(Own::open(dir, keys)?),
        "sqlite" => Box::new(Sqlite::open(dir)?),
        "redb" => Box::new(Redb::open(dir)?),
        "fjall" => Box::new(Fjall::open(dir)?),
        other => return Err(format!("there is no store {other:?}").into()),
    })
}

/// The key index of the publisher.
pub struct Own {
    receipts: Shared,
    store: Store,
}

impl Own {
    pub fn open(dir: &Path, keys: u64) -> Outcome<Self> {
        let (receipts, store) =
            receipts::open(dir, Latch::open(dir)?, &Truncated { next: keys as Sequence })?;
        Ok(Own { receipts, store })
    }

    /// Lets everything expire, and forgets it.
    pub fn forget_all(&mut self, clock_ms: i64) -> Outcome<()> {
        self.store.advance(&self.receipts, clock_ms, Duration::from_millis(1))?;
        while receipts::look(&self.receipts).keys() > 0 {
            self.store.forget(&self.receipts)?;
        }
        Ok(())
    }
}

impl Keys for Own {
    fn find(&mut self, keys: &[Hash]) -> Outcome<usize> {
        let receipts = receipts::look(&self.receipts);
        let mut found = 0;
        for key in keys {
            found += usize::from(receipts.find(key)?.is_some());
        }
        Ok(found)
    }

    fn insert(&mut self, group: &[(Names, Accepted)]) -> Outcome<()> {
        let mut receipts = receipts::change(&self.receipts);
        for (names, accepted) in group {
            receipts.insert(*names, accepted.clone());
        }
        drop(receipts);
        self.store.save_if_many(&self.receipts)?;
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Outcome<()> {
        self.store.save_below(Sequence::MAX, &self.receipts)?;
        Ok(())
    }
}

/// A log whose events have all been truncated, so that only the index is measured.
struct Truncated {
    next: Sequence,
}

impl LogReader for Truncated {
    fn extent(&self) -> Extent {
        let log_id = Uuid::nil();
        Extent { log_id, floor: self.next, next: self.next, head_chain: EMPTY_CHAIN, bytes: 0 }
    }

    fn read(&self, from: Sequence, _: usize, _: usize) -> Result<Vec<Entry>, ReadError> {
        match from < self.next {
            true => Err(ReadError::Truncated { asked: from, floor: self.next }),
            false => Ok(Vec::new()),
        }
    }

    fn recent(&self, _: Sequence, _: usize, _: usize) -> Option<Vec<Entry>> {
        None
    }

    fn read_stored(&self, from: Sequence, a: usize, b: usize) -> Result<Vec<Entry>, ReadError> {
        self.read(from, a, b)
    }

    fn chain_at(&self, _: Sequence) -> Result<Chain, ReadError> {
        Ok(EMPTY_CHAIN)
    }
}

const ROW_BYTES: usize = 64;

/// What another store keeps under a key.
fn row(accepted: &Accepted) -> [u8; ROW_BYTES] {
    let Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms } = accepted;
    let mut row = [0; ROW_BYTES];
    row[..32].copy_from_slice(fingerprint);
    let numbers = [*sequence, *subject_version, *accepted_at_ms, time_ms.unwrap_or(i64::MAX)];
    for (at, number) in row[32..].chunks_exact_mut(8).zip(numbers) {
        at.copy_from_slice(&number.to_le_bytes());
    }
    row
}

struct Sqlite {
    connection: rusqlite::Connection,
    pending: usize,
}

impl Sqlite {
    fn open(dir: &Path) -> Outcome<Self> {
        let connection = rusqlite::Connection::open(dir.join("keys.db"))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.pragma_update(None, "cache_size", -((CACHE_BYTES / 1024) as i64))?;
        connection.execute_batch(
            "CREATE TABLE IF NOT EXISTS key (hash BLOB PRIMARY KEY, row BLOB NOT NULL)
               STRICT, WITHOUT ROWID;
             BEGIN",
        )?;
        Ok(Sqlite { connection, pending: 0 })
    }
}

impl Keys for Sqlite {
    fn find(&mut self, keys: &[Hash]) -> Outcome<usize> {
        let mut select = self.connection.prepare_cached("SELECT row FROM key WHERE hash = ?1")?;
        let mut found = 0;
        for key in keys {
            let mut rows = select.query([key])?;
            if let Some(row) = rows.next()? {
                found += usize::from(row.get_ref(0)?.as_blob()?.len() == ROW_BYTES);
            }
        }
        Ok(found)
    }

    fn insert(&mut self, group: &[(Names, Accepted)]) -> Outcome<()> {
        let mut insert = self.connection.prepare_cached("INSERT INTO key VALUES (?1, ?2)")?;
        for (names, accepted) in group {
            insert.execute((&names.key[..], &row(accepted)[..]))?;
        }
        drop(insert);
        self.pending += group.len();
        if self.pending >= PERSIST_ROWS {
            self.pending = 0;
            self.connection.execute_batch("COMMIT; BEGIN")?;
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.connection.execute_batch("COMMIT; PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(())
    }
}

const TABLE: TableDefinition<'_, &[u8; 16], &[u8; ROW_BYTES]> = TableDefinition::new("key");

struct Redb {
    database: redb::Database,
    writing: Option<WriteTransaction>,
    pending: usize,
}

impl Redb {
    fn open(dir: &Path) -> Outcome<Self> {
        let database =
            redb::Builder::new().set_cache_size(CACHE_BYTES).create(dir.join("keys.redb"))?;
        Ok(Redb { database, writing: None, pending: 0 })
    }
}

impl Keys for Redb {
    fn find(&mut self, keys: &[Hash]) -> Outcome<usize> {
        let mut found = 0;
        if let Some(writing) = &self.writing {
            let table = writing.open_table(TABLE)?;
            for key in keys {
                found += usize::from(redb::ReadableTable::get(&table, key)?.is_some());
            }
        } else if let Ok(table) = self.database.begin_read()?.open_table(TABLE) {
            for key in keys {
                found += usize::from(table.get(key)?.is_some());
            }
        }
        Ok(found)
    }

    fn insert(&mut self, group: &[(Names, Accepted)]) -> Outcome<()> {
        if self.writing.is_none() {
            let mut writing = self.database.begin_write()?;
            writing.set_durability(Durability::Immediate)?;
            self.writing = Some(writing);
        }
        if let Some(writing) = &self.writing {
            let mut table = writing.open_table(TABLE)?;
            for (names, accepted) in group {
                table.insert(&names.key, &row(accepted))?;
            }
        }
        self.pending += group.len();
        if self.pending >= PERSIST_ROWS {
            self.pending = 0;
            self.writing.take().map_or(Ok(()), WriteTransaction::commit)?;
        }
        Ok(())
    }

    fn close(mut self: Box<Self>) -> Outcome<()> {
        self.writing.take().map_or(Ok(()), WriteTransaction::commit)?;
        Ok(())
    }
}

struct Fjall {
    database: fjall::Database,
    keys: fjall::Keyspace,
    pending: usize,
}

impl Fjall {
    fn open(dir: &Path) -> Outcome<Self> {
        let database = fjall::Database::builder(dir.join("keys.fjall"))
            .cache_size(CACHE_BYTES as u64)
            .manual_journal_persist(true)
            .open()?;
        let keys = database.keyspace("key", fjall::KeyspaceCreateOptions::default)?;
        Ok(Fjall { database, keys, pending: 0 })
    }
}

impl Keys for Fjall {
    fn find(&mut self, keys: &[Hash]) -> Outcome<usize> {
        let mut found = 0;
        for key in keys {
            found += usize::from(self.keys.get(key)?.is_some());
        }
        Ok(found)
    }

    fn insert(&mut self, group: &[(Names, Accepted)]) -> Outcome<()> {
        let mut batch = self.database.batch();
        for (names, accepted) in group {
            batch.insert(&self.keys, names.key, row(accepted));
        }
        batch.commit()?;
        self.pending += group.len();
        if self.pending >= PERSIST_ROWS {
            self.pending = 0;
            self.database.persist(fjall::PersistMode::SyncAll)?;
        }
        Ok(())
    }

    fn close(self: Box<Self>) -> Outcome<()> {
        self.database.persist(fjall::PersistMode::SyncAll)?;
        Ok(())
    }
}

/// Names and receipt of the n-th of all keys.
pub fn event(n: u64, hashes: &Arc<[Hash]>) -> (Names, Accepted) {
    let names = Names { key: key(n), subject: hashes[n as usize % hashes.len()], stated: false };
    let sequence = n as Sequence;
    let mut fingerprint = [0; 32];
    fingerprint[..16].copy_from_slice(&names.key);
    let accepted = Accepted {
        sequence,
        subject_version: sequence / hashes.len() as i64 + 1,
        fingerprint,
        accepted_at_ms: sequence,
        time_ms: Some(sequence),
    };
    (names, accepted)
}

/// The n-th of all keys: random, as SHA-256 makes them.
pub fn key(n: u64) -> Hash {
    receipts::hash(&format!("key-{n}"))
}
