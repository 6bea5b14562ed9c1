//! What a receiver's database says, read beside the receiver and read-only, and
//! the invariants that hold for it after any crash.

use std::{
    collections::{BTreeMap, HashSet},
    path::Path,
};

use counterfoil::proto::pb::{Event, event::Data};
use rusqlite::{Connection, OpenFlags};

/// One ledger row, without the hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    pub sequence: i64,
    pub key: String,
    pub outcome: String,
    pub reason: Option<String>,
}

/// The database of a receiver with the projection `inventory`, in one read.
#[derive(Debug, Clone)]
pub struct Ledger {
    /// The cursor's sequence; -1 before the first event.
    pub cursor: i64,
    pub rows: Vec<Row>,
    /// The running total over all items.
    pub total: i64,
    /// `available` and `version` by item.
    pub stock: BTreeMap<String, (i64, i64)>,
}

/// Opens a database beside its receiver, read-only.
///
/// # Panics
/// If that fails.
pub fn open(db: &Path) -> Connection {
    let connection = Connection::open_with_flags(db, OpenFlags::SQLITE_OPEN_READ_ONLY);
    let connection = connection.unwrap_or_else(|error| panic!("{}: {error}", db.display()));
    connection.busy_timeout(super::wait::DEADLINE).expect("a timeout can be set");
    connection
}

impl Ledger {
    /// Reads all of it in one transaction.
    ///
    /// # Panics
    /// If it cannot be read.
    pub fn read(db: &Path) -> Ledger {
        Self::try_read(&open(db)).unwrap_or_else(|error| panic!("{}: {error}", db.display()))
    }

    fn try_read(db: &Connection) -> rusqlite::Result<Ledger> {
        let db = db.unchecked_transaction()?;
        let cursor = db.query_row(
            "SELECT coalesce(max(sequence), -1) FROM counterfoil_cursor",
            [],
            |row| row.get(0),
        )?;
        let rows = db
            .prepare(
                "SELECT sequence, key, outcome, reason FROM counterfoil_ledger ORDER BY sequence",
            )?
            .query_map([], |row| {
                Ok(Row {
                    sequence: row.get(0)?,
                    key: row.get(1)?,
                    outcome: row.get(2)?,
                    reason: row.get(3)?,
                })
            })?
            .collect::<Result<_, _>>()?;
        let total =
            db.query_row("SELECT coalesce(sum(total), 0) FROM total", [], |row| row.get(0))?;
        let stock = db
            .prepare("SELECT item, available, version FROM stock")?
            .query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))))?
            .collect::<Result<_, _>>()?;
        Ok(Ledger { cursor, rows, total, stock })
    }

    /// A line for a failing test.
    pub fn facts(db: &Path) -> String {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
        match Connection::open_with_flags(db, flags).and_then(|db| Self::try_read(&db)) {
            Ok(ledger) => format!(
                "cursor {}, {} ledger rows, total {}, last row {:?}",
                ledger.cursor,
                ledger.rows.len(),
                ledger.total,
                ledger.rows.last()
            ),
            Err(error) => format!("cannot be read: {error}"),
        }
    }

    /// Outcomes by sequence.
    pub fn outcomes(&self) -> Vec<&str> {
        self.rows.iter().map(|row| row.outcome.as_str()).collect()
    }

    /// Checks what holds at every moment, whatever was killed: the ledger is
    /// contiguous and ends at the cursor, each row is the accepted event of its
    /// sequence, each accepted key stands once, the effect is the sum of what was
    /// applied, and nothing is acknowledged that is not committed.
    ///
    /// `accepted` is everything the log ever accepted, in order.
    ///
    /// # Panics
    /// At the first that does not hold.
    pub fn check(&self, accepted: &[Accepted], acked: Option<i64>) {
        let sequences: Vec<_> = self.rows.iter().map(|row| row.sequence).collect();
        let contiguous: Vec<_> = (0..self.rows.len() as i64).collect();
        assert_eq!(sequences, contiguous, "the ledger has a hole or a repetition");
        let highest = self.rows.last().map_or(-1, |row| row.sequence);
        assert_eq!(self.cursor, highest, "the cursor is not the highest ledger row");
        assert!(
            acked.unwrap_or(-1) <= self.cursor,
            "acknowledged {acked:?}, committed only {}",
            self.cursor
        );
        assert!(self.rows.len() <= accepted.len(), "the ledger has more rows than were accepted");
        let keys: HashSet<_> = self.rows.iter().map(|row| &row.key).collect();
        assert_eq!(keys.len(), self.rows.len(), "a key stands twice in the ledger");
        let mut sum = 0;
        for (row, event) in self.rows.iter().zip(accepted) {
            assert_eq!(event.sequence, row.sequence, "the log has a hole");
            assert_eq!(event.key, row.key, "sequence {} is another event", row.sequence);
            if row.outcome == "APPLIED" {
                sum += event.delta;
            }
        }
        assert_eq!(self.total, sum, "the total is not the sum of what was applied");
    }
}

/// An accepted event, as far as the invariants look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    pub sequence: i64,
    pub key: String,
    /// What it adds to the total; 0 for all but `stock.adjusted`.
    pub delta: i64,
}

impl From<&Event> for Accepted {
    fn from(event: &Event) -> Self {
        let sequence = event.sequence.expect("always set");
        Accepted {
            sequence,
            key: event.key.clone(),
            delta: delta(&event.r#type, event.data.as_ref()),
        }
    }
}

fn delta(kind: &str, data: Option<&Data>) -> i64 {
    let Some(Data::JsonText(text)) = data else { return 0 };
    if kind != "stock.adjusted" {
        return 0;
    }
    let json: serde_json::Value = serde_json::from_str(text).expect("the log holds checked JSON");
    json["delta"].as_i64().expect("an adjustment has a delta")
}
