//! The file's ledger, row by row: contiguous, and with a chain of its own.

use counterfoil::proto::{
    chain::{Chain, link},
    event::{Event, Fingerprint, Sequence, hex},
    outcome::Outcome,
};
use rusqlite::{Rows, Statement, params};

use super::{Stop, moment::Moment, report::Difference};

/// Reads the rows in order.
pub const ROWS: &str = "SELECT sequence, key, fingerprint, outcome FROM counterfoil_ledger
 WHERE log = ?1 ORDER BY sequence";

/// The rows from the ledger's beginning on, as far as they have been read.
pub struct Ledger<'s> {
    rows: Rows<'s>,
    /// The sequence that the next row must have.
    pub next: Sequence,
    /// The chain before it, worked out from the rows.
    pub chain: Chain,
    /// Rows by outcome, pruned ones included.
    pub outcomes: [i64; Outcome::ALL.len()],
}

/// One row.
struct Row {
    sequence: Sequence,
    key: String,
    fingerprint: Fingerprint,
    outcome: String,
}

impl<'s> Ledger<'s> {
    /// Before the first row. `rows`: of [`ROWS`].
    ///
    /// # Errors
    /// The baseline is none.
    pub fn of(moment: &Moment, rows: &'s mut Statement<'_>) -> Result<Self, Stop> {
        let baseline = moment.baseline;
        let counted = baseline.counts.iter().sum::<i64>();
        if counted != baseline.from {
            let expected = format!("{} rows counted, as many as it begins at", baseline.from);
            return Err(Difference::new("the ledger's pruned rows", expected, counted).into());
        }
        Ok(Ledger {
            rows: rows.query(params![moment.log])?,
            next: baseline.from,
            chain: baseline.chain,
            outcomes: baseline.counts,
        })
    }

    fn read(&mut self) -> Result<Option<Row>, Stop> {
        let Some(row) = self.rows.next()? else { return Ok(None) };
        let row = Row {
            sequence: row.get(0)?,
            key: row.get(1)?,
            fingerprint: row.get(2)?,
            outcome: row.get(3)?,
        };
        Ok(Some(row))
    }

    /// The next row, which has to be there; where there is an event, it is that one's.
    pub fn advance(&mut self, event: Option<&Event>) -> Result<(), Stop> {
        let place = format!("the ledger, sequence {}", self.next);
        let row = match self.read()? {
            Some(row) if row.sequence == self.next => row,
            Some(row) => {
                let found = format!("none; the next one is {}", row.sequence);
                return Err(Difference::new(place, "a row", found).into());
            }
            None => return Err(Difference::new(place, "a row", "none").into()),
        };
        if let Some(event) = event {
            if *row.key != *event.intent.key {
                let (expected, found) = (&event.intent.key, &row.key);
                let (expected, found) = (format!("key {expected:?}"), format!("key {found:?}"));
                return Err(Difference::new(place, expected, found).into());
            }
            if row.fingerprint != event.intent.fingerprint {
                let print = |print| format!("fingerprint {}", hex(print));
                let expected = print(&event.intent.fingerprint);
                return Err(Difference::new(place, expected, print(&row.fingerprint)).into());
            }
        }
        let outcome = Outcome::named(&row.outcome)
            .ok_or_else(|| Difference::new(place, "an outcome", &row.outcome))?;
        self.outcomes[outcome as usize] += 1;
        self.chain = link(&self.chain, self.next, &row.fingerprint, &row.key);
        self.next += 1;
        Ok(())
    }

    /// There are no more rows.
    pub fn ends(&mut self, last: Sequence) -> Result<(), Stop> {
        let Some(row) = self.read()? else { return Ok(()) };
        let place = format!("the ledger, above the cursor at {last}");
        Err(Difference::new(place, "no row", format!("sequence {}", row.sequence)).into())
    }
}

/// Keys over which more than one row has the say. Read without the index that is to keep
/// them apart.
pub const CONTESTED: &str = "SELECT key, count(*) FROM counterfoil_ledger NOT INDEXED
 WHERE log = ?1 AND outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict'
 GROUP BY key HAVING count(*) > 1 LIMIT 1";

/// One row has the say over each key.
pub fn keys_are_settled(moment: &Moment) -> Result<(), Stop> {
    let mut contested = moment.tables.prepare(CONTESTED)?;
    let mut contested = contested.query(params![moment.log])?;
    let Some(row) = contested.next()? else { return Ok(()) };
    let (key, rows): (String, i64) = (row.get(0)?, row.get(1)?);
    let place = format!("the ledger, key {key:?}");
    Err(Difference::new(place, "one row that has the say", format!("{rows}")).into())
}
