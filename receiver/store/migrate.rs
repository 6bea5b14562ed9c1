//! Databases that earlier versions have made, brought to the tables of this one: in one
//! transaction, before anything else is done with them.

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::{LEDGER, OUTBOX, SCHEMA_VERSION, SKIPPED};

/// Format 1 had the log's name in the ledger's keys.
const SET_ASIDE_1: &str = "
ALTER TABLE counterfoil_ledger RENAME TO counterfoil_ledger_1;
DROP INDEX counterfoil_ledger_key;";
const COPY_FROM_1: &str = "
INSERT INTO counterfoil_ledger
SELECT log, sequence, key, fingerprint, outcome, reason, result, applied_at
FROM counterfoil_ledger_1 ORDER BY sequence;
DROP TABLE counterfoil_ledger_1;";

/// What format 2 did not have.
const ADDED_BY_3: [&str; 2] = [OUTBOX, SKIPPED];

/// Brings a database of an earlier format to [`SCHEMA_VERSION`].
///
/// # Errors
/// Whatever SQLite says; the database is as it was then.
pub(super) fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version == SCHEMA_VERSION {
        return Ok(());
    }
    tracing::info!(from = version, to = SCHEMA_VERSION, "the database gets this version's tables");
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    if version < 2 {
        transaction.execute_batch(SET_ASIDE_1)?;
        transaction.execute_batch(LEDGER)?;
        transaction.execute_batch(COPY_FROM_1)?;
    }
    for tables in ADDED_BY_3 {
        transaction.execute_batch(tables)?;
    }
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}
