//! `counterfoil snapshots`: what a publisher keeps of its receivers' databases.

use std::process::ExitCode;

use counterfoil::proto::{
    event::hex,
    pb::{ListSnapshotsRequest, Snapshot},
};
use serde_json::{Value, json};

use crate::{
    arguments,
    failure::Failure,
    link,
    numbers::{bytes, grouped},
    output::say,
    status::json::of_cursor,
};

/// Digits of a hash that are shown; enough to tell a few snapshots apart.
const SHOWN_DIGITS: usize = 12;

/// Prints the snapshots.
///
/// # Errors
/// [`Failure::Runtime`] when the publisher refuses or cannot be reached.
pub async fn run(arguments: arguments::Snapshots) -> Result<ExitCode, Failure> {
    let arguments::Snapshots { source, projection, json } = arguments;
    let mut client = link::snapshots(&source.publisher)?;
    let request = ListSnapshotsRequest { log: source.log.clone(), projection };
    let answer = client
        .list_snapshots(link::call(request))
        .await
        .map_err(|status| Failure::call(&source.publisher, &status))?;
    let snapshots = answer.into_inner().snapshots;
    say(if json { as_json(&snapshots) } else { as_table(&source.log, &snapshots) });
    Ok(ExitCode::SUCCESS)
}

fn sequence(snapshot: &Snapshot) -> Option<i64> {
    snapshot.cursor.as_ref()?.sequence
}

fn as_table(log: &str, snapshots: &[Snapshot]) -> String {
    if snapshots.is_empty() {
        return format!("log {log} has no snapshot that a receiver could resume from");
    }
    let head = ["SEQUENCE", "PROJECTION", "SIZE", "RECEIVER", "MADE", "SHA-256"].map(str::to_owned);
    let row = |snapshot: &Snapshot| {
        let version = snapshot.projection_version.unwrap_or_default();
        let mut digits = hex(&snapshot.sha256);
        digits.truncate(SHOWN_DIGITS);
        [
            grouped(sequence(snapshot).unwrap_or(-1)),
            format!("{} {version}", snapshot.projection),
            bytes(snapshot.size_bytes.unwrap_or_default()),
            snapshot.receiver.clone(),
            snapshot.create_time.as_ref().map(ToString::to_string).unwrap_or_default(),
            digits,
        ]
    };
    let rows: Vec<_> = std::iter::once(head).chain(snapshots.iter().map(row)).collect();
    let widths: Vec<_> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let line = |row: &[String; 6]| {
        let cells: Vec<_> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn as_json(snapshots: &[Snapshot]) -> String {
    let snapshots: Vec<Value> = snapshots.iter().map(of_snapshot).collect();
    format!("{:#}", json!({ "snapshots": snapshots }))
}

/// Under the names of the .proto, numbers as numbers.
pub fn of_snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "log": snapshot.log,
        "cursor": of_cursor(snapshot.cursor.as_ref()),
        "projection": snapshot.projection,
        "projectionVersion": snapshot.projection_version,
        "schemaDigest": hex(&snapshot.schema_digest),
        "sizeBytes": snapshot.size_bytes,
        "sha256": hex(&snapshot.sha256),
        "receiver": snapshot.receiver,
        "createTime": snapshot.create_time.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::pb::Cursor;

    use super::*;

    #[test]
    fn a_table_has_a_line_for_each() {
        let snapshot = |sequence, size_bytes| Snapshot {
            cursor: Some(Cursor { sequence: Some(sequence), ..Default::default() }),
            projection: "inventory".into(),
            projection_version: Some(1),
            size_bytes: Some(size_bytes),
            sha256: vec![0xab; 32].into(),
            receiver: "shop".into(),
            ..Default::default()
        };
        let table = as_table("main", &[snapshot(1_200, 1536), snapshot(7, 5)]);
        let expected = "\
SEQUENCE  PROJECTION   SIZE     RECEIVER  MADE  SHA-256
1,200     inventory 1  1.5 KiB  shop            abababababab
7         inventory 1  5 B      shop            abababababab";
        assert_eq!(table, expected);
        assert!(as_table("main", &[]).contains("main has no snapshot"));
    }
}
