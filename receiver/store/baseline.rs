//! Where the ledger begins, and what is kept of the rows that were pruned: enough to
//! prove the rest. Stands in `counterfoil_meta`; where nothing does, nothing was pruned.

use rusqlite::{Connection, OptionalExtension as _, params, types::Type};
use serde_json::{Map, Value};

use crate::proto::{
    chain::{Chain, EMPTY_CHAIN},
    event::Sequence,
    outcome::Outcome,
};

/// The first sequence that the ledger has a row of.
const FROM: &str = "ledger_from";
/// The chain at the sequence before it, in hexadecimal.
const CHAIN: &str = "ledger_chain";
/// How many rows of each outcome were pruned, as a JSON object.
const COUNTS: &str = "ledger_counts";

/// What came before the first row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Baseline {
    /// The first sequence that has a row, if it is applied.
    pub from: Sequence,
    /// The chain at `from - 1`.
    pub chain: Chain,
    /// Pruned rows by outcome, in the order of [`Outcome::ALL`]; together `from`.
    pub counts: [i64; Outcome::ALL.len()],
}

impl Baseline {
    /// Of a ledger that has all its rows.
    pub const BEGINNING: Baseline =
        Baseline { from: 0, chain: EMPTY_CHAIN, counts: [0; Outcome::ALL.len()] };

    /// Reads it.
    ///
    /// # Errors
    /// Whatever SQLite says, what cannot be read as a baseline included.
    pub fn read(tables: &Connection) -> rusqlite::Result<Baseline> {
        let from = from(tables)?;
        if from == 0 {
            return Ok(Baseline::BEGINNING);
        }
        let chain = "SELECT unhex(value) FROM counterfoil_meta WHERE name = ?1";
        let chain = tables.prepare_cached(chain)?.query_row([CHAIN], |row| row.get(0))?;
        let counts = "SELECT value FROM counterfoil_meta WHERE name = ?1";
        let counts = tables.prepare_cached(counts)?.query_row([COUNTS], |row| {
            let text = row.get_ref(0)?.as_str()?;
            serde_json::from_str::<Map<String, Value>>(text).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
            })
        })?;
        let count =
            |outcome: Outcome| counts.get(outcome.as_str()).and_then(Value::as_i64).unwrap_or(0);
        Ok(Baseline { from, chain, counts: Outcome::ALL.map(count) })
    }

    /// Puts it in the place of the one before.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn write(&self, tables: &Connection) -> rusqlite::Result<()> {
        let counts = Outcome::ALL.into_iter().zip(self.counts).filter(|(_, count)| *count > 0);
        let counts: Map<String, Value> =
            counts.map(|(outcome, count)| (outcome.as_str().to_owned(), count.into())).collect();
        let put = "INSERT INTO counterfoil_meta VALUES (?1, ?2)
                   ON CONFLICT (name) DO UPDATE SET value = excluded.value";
        let mut put = tables.prepare_cached(put)?;
        put.execute(params![FROM, self.from.to_string()])?;
        put.execute(params![CHAIN, crate::proto::event::hex(&self.chain)])?;
        put.execute(params![COUNTS, Value::Object(counts).to_string()])?;
        Ok(())
    }
}

/// The first sequence that the ledger has a row of.
///
/// # Errors
/// Whatever SQLite says.
pub fn from(tables: &Connection) -> rusqlite::Result<Sequence> {
    let from = "SELECT value FROM counterfoil_meta WHERE name = ?1";
    let from = tables.prepare_cached(from)?.query_row([FROM], |row| {
        row.get_ref(0)?.as_str()?.parse().map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error))
        })
    });
    Ok(from.optional()?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        assert_eq!(Baseline::read(&tables), Ok(Baseline::BEGINNING));
        for (from, counts) in [(7, [3, 0, 4, 0, 0]), (9, [3, 2, 4, 0, 0])] {
            let baseline = Baseline { from, chain: [0xab; 32], counts };
            baseline.write(&tables).expect("written");
            assert_eq!(Baseline::read(&tables), Ok(baseline));
        }
        let unreadable = [(FROM, "x"), (COUNTS, "{"), (CHAIN, "xyz"), (CHAIN, "ab")];
        for (name, value) in unreadable {
            let change = "UPDATE counterfoil_meta SET value = ?2 WHERE name = ?1";
            tables.execute(change, [name, value]).expect("changed");
            Baseline::read(&tables).expect_err(name);
            Baseline { from: 9, ..Baseline::BEGINNING }.write(&tables).expect("mended");
        }
    }
}
