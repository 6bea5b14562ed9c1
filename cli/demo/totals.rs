//! What the receiver holds, against what was worked out without it.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use counterfoil::proto::{
    event::hex,
    pb::{QueryRequest, QueryResponse},
};
use prost_types::{Struct, value::Kind};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use super::{ledger::Ledger, process::Pair};
use crate::{failure::Failure, link, numbers::grouped};

/// The figures of `examples/vending_totals.py`.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Totals {
    published: u64,
    total: i64,
    outcomes: BTreeMap<String, u64>,
    rejections: BTreeMap<String, u64>,
    items: u64,
    stock_sha256: String,
}

impl Totals {
    /// Reads them from a file.
    ///
    /// # Errors
    /// [`Failure::Usage`] where there is none, or another file.
    pub fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |what: String| Failure::Usage(format!("{}: {what}", path.display()));
        let text = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
    }
}

/// Asks the receiver for the same figures.
///
/// # Errors
/// [`Failure::Runtime`] when it refuses, or answers with something else than
/// rows of the projection `inventory`.
pub async fn ask(pair: &Pair, last: i64, ledger: Ledger) -> Result<Totals, Failure> {
    let total = query(pair, "total", last).await?;
    let total = total.rows.first().and_then(|row| integer(row, "total"));
    let stock = query(pair, "stock", last).await?;
    if stock.truncated {
        return Err(Failure::Runtime("the demo can compare at most 1000 items".to_owned()));
    }
    Ok(Totals {
        published: ledger.rows,
        total: total.ok_or_else(|| Failure::Runtime("there is no total".to_owned()))?,
        outcomes: ledger.outcomes,
        rejections: ledger.rejections,
        items: stock.rows.len() as u64,
        stock_sha256: digest(&stock.rows)
            .ok_or_else(|| Failure::Runtime("a row of stock lacks a column".to_owned()))?,
    })
}

async fn query(pair: &Pair, name: &str, last: i64) -> Result<QueryResponse, Failure> {
    let url = pair.receiver_url();
    let request =
        QueryRequest { name: name.to_owned(), min_sequence: Some(last), ..QueryRequest::default() };
    let response = link::receiver(&url)?.query(link::call(request)).await;
    response.map(tonic::Response::into_inner).map_err(|status| Failure::call(&url, &status))
}

/// One line for each item, sorted: item, tab, available, tab, version, newline.
fn digest(rows: &[Struct]) -> Option<String> {
    let mut lines = rows
        .iter()
        .map(|row| {
            let (available, version) = (integer(row, "available")?, integer(row, "version")?);
            Some(format!("{}\t{available}\t{version}\n", text(row, "item")?))
        })
        .collect::<Option<Vec<_>>>()?;
    lines.sort_unstable();
    Some(hex(&Sha256::digest(lines.concat())))
}

fn integer(row: &Struct, column: &str) -> Option<i64> {
    match row.fields.get(column)?.kind.as_ref()? {
        Kind::NumberValue(number) => Some(*number as i64),
        Kind::StringValue(text) => text.parse().ok(),
        _ => None,
    }
}

fn text<'a>(row: &'a Struct, column: &str) -> Option<&'a str> {
    match row.fields.get(column)?.kind.as_ref()? {
        Kind::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Both, side by side.
pub fn compare(found: &Totals, expected: &Totals) -> String {
    let mut rows = vec![(
        "ledger rows".to_owned(),
        grouped(found.published as i64),
        grouped(expected.published as i64),
    )];
    let count = |counts: &BTreeMap<String, u64>, name: &str| {
        grouped(counts.get(name).copied().unwrap_or(0) as i64)
    };
    let mut counts = |found: &BTreeMap<String, u64>, expected: &BTreeMap<String, u64>, indent| {
        let names: std::collections::BTreeSet<_> = found.keys().chain(expected.keys()).collect();
        for name in names {
            rows.push((format!("{indent}{name}"), count(found, name), count(expected, name)));
        }
    };
    counts(&found.outcomes, &expected.outcomes, "  ");
    counts(&found.rejections, &expected.rejections, "    ");
    rows.push(("items".to_owned(), grouped(found.items as i64), grouped(expected.items as i64)));
    rows.push(("total".to_owned(), grouped(found.total), grouped(expected.total)));
    let short = |hash: &str| hash.get(..12).unwrap_or(hash).to_owned();
    rows.push(("stock".to_owned(), short(&found.stock_sha256), short(&expected.stock_sha256)));

    let mut text = format!("{:<26}{:>14}  {:>14}\n", "", "receiver", "independently");
    for (name, found, expected) in rows {
        let verdict = if found == expected { "equal" } else { "NOT EQUAL" };
        let _ = writeln!(text, "{name:<26}{found:>14}  {expected:>14}  {verdict}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(total: i64) -> Totals {
        Totals {
            published: 2,
            total,
            outcomes: [("APPLIED".to_owned(), 2)].into(),
            rejections: BTreeMap::new(),
            items: 1,
            stock_sha256: "ab".repeat(32),
        }
    }

    #[test]
    fn a_difference_is_shouted() {
        assert!(!compare(&totals(1_000), &totals(1_000)).contains("NOT"));
        let text = compare(&totals(1_000), &totals(999));
        assert!(
            text.contains("total                              1,000             999  NOT EQUAL"),
            "{text}"
        );
    }

    #[test]
    fn the_digest_is_over_sorted_lines() {
        let row = |item: &str, available: f64| {
            let value = |kind| prost_types::Value { kind: Some(kind) };
            Struct {
                fields: [
                    ("item".to_owned(), value(Kind::StringValue(item.to_owned()))),
                    ("available".to_owned(), value(Kind::NumberValue(available))),
                    ("version".to_owned(), value(Kind::NumberValue(1.0))),
                ]
                .into(),
            }
        };
        let expected = hex(&Sha256::digest("a\t-2\t1\nb\t3\t1\n"));
        assert_eq!(digest(&[row("b", 3.0), row("a", -2.0)]), Some(expected));
        assert_eq!(digest(&[Struct::default()]), None);
    }
}
