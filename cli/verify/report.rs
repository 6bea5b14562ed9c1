//! What was found, for people and for programs. Pure.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
};

use counterfoil::proto::{
    chain::Cursor,
    event::{Sequence, hex},
    outcome::Outcome,
};
use serde_json::{Value, json};

use super::moment::Moment;
use crate::numbers::{counted, grouped};

/// The first thing that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where.
    pub at: String,
    /// What should be there.
    pub expected: String,
    /// What is.
    pub found: String,
}

impl Difference {
    /// At a place.
    pub fn new(at: impl ToString, expected: impl ToString, found: impl ToString) -> Self {
        let (expected, found) = (expected.to_string(), found.to_string());
        Difference { at: at.to_string(), expected, found }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}: expected {}, found {}", self.at, self.expected, self.found)
    }
}

/// What was compared, and what came of it.
#[derive(Debug, Clone)]
pub struct Report {
    db: PathBuf,
    log: String,
    /// The publisher's incarnation.
    pub log_id: String,
    cursor: Option<Cursor>,
    ledger_from: Sequence,
    /// The first and the last event that were read; the first may be above the last.
    pub events: Option<(Sequence, Sequence)>,
    /// Rows of the ledger.
    pub ledger_rows: Option<i64>,
    /// By outcome, pruned rows included.
    pub outcomes: Option<[i64; Outcome::ALL.len()]>,
    /// The snapshot's sequence that the tables were made again from; -1: from nothing.
    pub rebuilt_from: Option<Sequence>,
    /// The projection's tables, and their rows.
    pub tables: BTreeMap<String, u64>,
    /// Tables that are not the projection's.
    pub others: Vec<String>,
    /// What could not be checked, and why.
    pub unchecked: Vec<String>,
    /// What is not as it should be.
    pub difference: Option<Difference>,
}

impl Report {
    /// Of a file of which nothing has been compared yet.
    pub fn of(db: &Path, moment: &Moment) -> Self {
        Report {
            db: db.to_owned(),
            log: moment.log.clone(),
            log_id: String::new(),
            cursor: moment.cursor,
            ledger_from: moment.baseline.from,
            events: None,
            ledger_rows: None,
            outcomes: None,
            rebuilt_from: None,
            tables: BTreeMap::new(),
            others: Vec::new(),
            unchecked: Vec::new(),
            difference: None,
        }
    }

    /// Everything was checked, and nothing differs.
    pub fn is_equal(&self) -> bool {
        self.difference.is_none() && self.unchecked.is_empty()
    }

    fn verdict(&self) -> &'static str {
        match (&self.difference, self.unchecked.is_empty()) {
            (Some(_), _) => "different",
            (None, false) => "incomplete",
            (None, true) => "equal",
        }
    }

    /// For people; the last line says what came of it.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<11}{value}");
        };
        let at = self.cursor.map_or_else(
            || "nothing applied yet".to_owned(),
            |cursor| format!("applied up to {}", grouped(cursor.sequence)),
        );
        line("file", format!("{}, log {}, {at}", self.db.display(), self.log));
        if self.difference.is_none() {
            self.say_what_agrees(&mut line);
        }
        for what in &self.unchecked {
            line("unchecked", what.clone());
        }
        match (&self.difference, self.unchecked.is_empty()) {
            (Some(difference), _) => line("DIFFERENT", difference.to_string()),
            (None, true) => line("EQUAL", "everything was checked".to_owned()),
            (None, false) => {
                line("INCOMPLETE", "what could be checked is equal".to_owned());
            }
        }
        text
    }

    fn say_what_agrees(&self, line: &mut impl FnMut(&str, String)) {
        match self.events {
            Some((from, last)) if from <= last => line(
                "publisher",
                format!(
                    "events {} to {}: contents have their fingerprints, the chain holds",
                    grouped(from),
                    grouped(last)
                ),
            ),
            Some(_) => line("publisher", "no event to read; the chain holds".to_owned()),
            None => {}
        }
        if let Some(rows) = self.ledger_rows {
            let pruned = match self.ledger_from {
                0 => String::new(),
                from => format!(" after {} that were pruned", grouped(from)),
            };
            let rows = counted(rows.unsigned_abs(), "row");
            line("ledger", format!("{rows}{pruned}: no hole, the chain ends at the cursor"));
        }
        if let Some(outcomes) = self.outcomes {
            let outcomes = Outcome::ALL.iter().zip(outcomes).filter(|(_, count)| *count > 0);
            let outcomes =
                outcomes.map(|(outcome, n)| format!("{} {}", grouped(n), outcome.as_str()));
            line("outcomes", outcomes.collect::<Vec<_>>().join(", "));
        }
        if let Some(from) = self.rebuilt_from {
            let base = match from {
                -1 => "from nothing".to_owned(),
                from => format!("from a snapshot at {}", grouped(from)),
            };
            let rows = counted(self.tables.values().sum(), "row");
            let tables = counted(self.tables.len() as u64, "table");
            line("tables", format!("made again {base}: {rows} in {tables} are the same"));
        }
        if !self.others.is_empty() {
            let others = self.others.join(", ");
            line("beside", format!("{others}: not the projection's, not compared"));
        }
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let outcomes = self.outcomes.map(|counts| {
            Outcome::ALL
                .iter()
                .zip(counts)
                .map(|(outcome, n)| (outcome.as_str().to_owned(), n.into()))
                .collect::<serde_json::Map<_, _>>()
        });
        json!({
            "verdict": self.verdict(),
            "log": self.log,
            "logId": self.log_id,
            "cursor": self.cursor.map(|cursor| json!({
                "logId": cursor.log_id.to_string(),
                "sequence": cursor.sequence,
                "chain": hex(&cursor.chain),
            })),
            "events": self.events.map(|(from, last)| json!({ "from": from, "last": last })),
            "ledger": self.ledger_rows.map(|rows| json!({ "from": self.ledger_from, "rows": rows })),
            "outcomes": outcomes,
            "rebuiltFrom": self.rebuilt_from,
            "tables": self.tables,
            "otherTables": self.others,
            "unchecked": self.unchecked,
            "difference": self.difference.as_ref().map(|difference| json!({
                "at": difference.at,
                "expected": difference.expected,
                "found": difference.found,
            })),
        })
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn report() -> Report {
        Report {
            db: "r.db".into(),
            log: "main".to_owned(),
            log_id: Uuid::from_u128(1).to_string(),
            cursor: Some(Cursor { log_id: Uuid::from_u128(1), sequence: 1_999, chain: [1; 32] }),
            ledger_from: 1_000,
            events: Some((1_000, 1_999)),
            ledger_rows: Some(1_000),
            outcomes: Some([1_990, 0, 10, 0, 0]),
            rebuilt_from: Some(1_500),
            tables: [("stock".to_owned(), 7), ("total".to_owned(), 1)].into(),
            others: Vec::new(),
            unchecked: Vec::new(),
            difference: None,
        }
    }

    #[test]
    fn what_was_checked_is_said_and_the_last_line_has_the_verdict() {
        let equal = report();
        let text = equal.text();
        for part in [
            "file       r.db, log main, applied up to 1,999\n",
            "publisher  events 1,000 to 1,999: ",
            "ledger     1,000 rows after 1,000 that were pruned: ",
            "outcomes   1,990 APPLIED, 10 REJECTED\n",
            "tables     made again from a snapshot at 1,500: 8 rows in 2 tables are the same\n",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
        assert!(text.ends_with("EQUAL      everything was checked\n"), "{text}");
        assert!(equal.is_equal() && equal.json()["verdict"] == "equal");

        let unchecked = Report { unchecked: vec!["the tables: why".to_owned()], ..report() };
        assert!(unchecked.text().contains("unchecked  the tables: why\nINCOMPLETE "));
        assert!(!unchecked.is_equal() && unchecked.json()["verdict"] == "incomplete");

        let difference = Some(Difference::new("here", 1, 2));
        let different = Report { difference, ..unchecked };
        assert!(different.text().ends_with("DIFFERENT  here: expected 1, found 2\n"));
        assert!(!different.is_equal() && different.json()["difference"]["found"] == "2");
    }
}
