//! `counterfoil snapshot`: a copy of a receiver's database to the publisher, now.

use std::{process::ExitCode, time::Duration};

use counterfoil::proto::{
    event::hex,
    pb::{CreateSnapshotRequest, Snapshot},
};

use crate::{
    arguments,
    failure::Failure,
    link,
    numbers::{bytes, grouped},
    output::say,
    snapshots::of_snapshot,
};

/// Making and uploading a large one takes its time.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// Prints the snapshot once it is stored.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL, [`Failure::Runtime`] where there is none.
pub async fn run(arguments: arguments::Snapshot) -> Result<ExitCode, Failure> {
    let url = &arguments.target.receiver;
    let mut receiver = link::receiver_admin(url)?;
    let request = link::within(CreateSnapshotRequest {}, LIMIT);
    let answer =
        receiver.create_snapshot(request).await.map_err(|status| Failure::call(url, &status))?;
    let snapshot = answer.into_inner().snapshot.unwrap_or_default();
    say(if arguments.json { format!("{:#}", of_snapshot(&snapshot)) } else { in_words(&snapshot) });
    Ok(ExitCode::SUCCESS)
}

fn in_words(snapshot: &Snapshot) -> String {
    let sequence = snapshot.cursor.as_ref().and_then(|cursor| cursor.sequence).unwrap_or(-1);
    format!(
        "stored: {} version {} at sequence {}, {}, SHA-256 {}",
        snapshot.projection,
        snapshot.projection_version.unwrap_or(0),
        grouped(sequence),
        bytes(snapshot.size_bytes.unwrap_or(0)),
        hex(&snapshot.sha256)
    )
}
