//! Reads the receiver's ledger row by row, as any caller could, and checks it
//! against the input: one row for each event, in the same order.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{BufRead as _, BufReader},
    path::Path,
};

use counterfoil::proto::pb::{
    GetLedgerEntryRequest, LedgerEntry, Outcome, get_ledger_entry_request::By,
};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde::Deserialize;

use super::process::Pair;
use crate::{failure::Failure, link};

/// Calls in flight: enough to keep both processes busy.
const IN_FLIGHT: usize = 128;

/// What stands in the ledger, counted.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Rows.
    pub rows: u64,
    /// Rows by outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// REJECTED rows by reason.
    pub rejections: BTreeMap<String, u64>,
}

/// Reads all rows up to sequence `last`.
///
/// # Errors
/// [`Failure::Runtime`] where a row is missing, or is another event's.
pub async fn read(pair: &Pair, events: &Path, last: i64) -> Result<Ledger, Failure> {
    let keys = keys(events)?;
    if keys.len() as i64 != last + 1 {
        let (keys, rows) = (keys.len(), last + 1);
        return Err(Failure::Runtime(format!("{keys} keys were published, the log has {rows}")));
    }
    let url = pair.receiver_url();
    let client = link::receiver(&url)?;
    let failed = |status: tonic::Status| Failure::call(&url, &status);
    futures_util::stream::iter(0..=last)
        .map(|sequence| {
            let mut client = client.clone();
            let request = GetLedgerEntryRequest { by: Some(By::Sequence(sequence)) };
            async move { client.get_ledger_entry(link::call(request)).await }
        })
        .buffered(IN_FLIGHT)
        .map_err(failed)
        .zip(futures_util::stream::iter(keys))
        .map(|(row, key)| row.map(|row| (row.into_inner().entry.unwrap_or_default(), key)))
        .try_fold(Ledger::default(), |mut ledger, (row, key)| async move {
            ledger.count(row, &key)?;
            Ok(ledger)
        })
        .await
}

impl Ledger {
    fn count(&mut self, row: LedgerEntry, key: &str) -> Result<(), Failure> {
        let (found, sequence) = (&row.key, row.sequence.unwrap_or(-1));
        if found != key || sequence != self.rows as i64 {
            return Err(Failure::Runtime(format!(
                "ledger row {sequence} has key {found:?}; expected row {} with key {key:?}",
                self.rows
            )));
        }
        self.rows += 1;
        let outcome = row.outcome().as_str_name();
        let outcome = outcome.strip_prefix("OUTCOME_").unwrap_or(outcome).to_owned();
        *self.outcomes.entry(outcome).or_default() += 1;
        if row.outcome() == Outcome::Rejected {
            *self.rejections.entry(row.reason).or_default() += 1;
        }
        Ok(())
    }
}

/// The keys of the input, each once, in the order of their first line.
fn keys(events: &Path) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct Keyed {
        key: String,
    }
    let wrong = |what: String| Failure::Usage(format!("{}: {what}", events.display()));
    let file = File::open(events).map_err(|error| wrong(error.to_string()))?;
    let mut seen = HashSet::new();
    let mut keys = Vec::new();
    for line in BufReader::new(file).lines() {
        let line = line.map_err(|error| wrong(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let Keyed { key } = serde_json::from_str(&line)
            .map_err(|error| wrong(format!("the demo needs a key on every line: {error}")))?;
        if seen.insert(key.clone()) {
            keys.push(key);
        }
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sequence: i64, key: &str, outcome: Outcome, reason: &str) -> LedgerEntry {
        LedgerEntry {
            sequence: Some(sequence),
            key: key.into(),
            outcome: outcome.into(),
            reason: reason.into(),
            ..Default::default()
        }
    }

    #[test]
    fn rows_are_counted_in_order_and_nothing_else_passes() {
        let mut ledger = Ledger::default();
        ledger.count(row(0, "a", Outcome::Applied, ""), "a").expect("first");
        ledger.count(row(1, "b", Outcome::Rejected, "unknown_item"), "b").expect("second");
        assert_eq!((ledger.rows, ledger.outcomes["APPLIED"]), (2, 1));
        assert_eq!(ledger.rejections["unknown_item"], 1);
        for wrong in [row(3, "c", Outcome::Applied, ""), row(2, "x", Outcome::Applied, "")] {
            assert!(ledger.count(wrong, "c").is_err());
        }
    }
}
