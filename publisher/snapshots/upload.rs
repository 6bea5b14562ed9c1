//! The way of an upload: pieces in order, each written and hashed as it comes, then
//! the whole checked, named and answered for.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::Stream;
use tonic::Status;

use super::{
    part::{Part, PartError},
    service::Transfer,
    state::locked,
    store::{Begin, Snapshots},
};
use crate::{
    proto::{
        limits::MAX_SNAPSHOT_CHUNK_BYTES,
        pb,
        refusal::{Reason, Refusal},
        snapshot::Snapshot,
        wire::snapshot as wire,
    },
    publisher::{
        hub::{Hub, Log},
        intake,
        log::LogReader,
    },
};

/// An upload that has started. Blocking.
#[derive(Debug)]
pub struct Upload {
    pub(super) snapshots: Snapshots,
    pub(super) snapshot: Snapshot,
    pub(super) part: Arc<Mutex<Part>>,
    pub(super) turn: u64,
}

/// Takes in a snapshot. On return it is on stable storage.
///
/// # Errors
/// INVALID_FIELD, LOG_NOT_FOUND, NOT_FOUND, LOG_HALTED, LOG_FULL, SNAPSHOT_TOO_LARGE,
/// WRONG_STATE, SNAPSHOT_DAMAGED, SNAPSHOT_NOT_STORED, TRANSFER_ENDED, SHUTTING_DOWN; the
/// connection's.
pub async fn receive(
    hub: &Hub,
    transfer: &Transfer,
    mut pieces: impl Stream<Item = Result<pb::UploadSnapshotRequest, Status>> + Unpin,
) -> Result<Snapshot, Status> {
    let Some(first) = transfer.next(&mut pieces).await? else {
        return Err(Refusal::field("sha256", "is missing: no message came").into());
    };
    let log = intake::log(hub, &first.log)?.clone();
    let id = wire::id(&first.sha256, "sha256")?;
    not_halted(&log)?;
    let begun = transfer.step({
        let log = log.clone();
        move || log.snapshots.begin(id, &*log.reader)
    });
    let upload = match begun.await? {
        Begin::Stored(snapshot) => return Ok(snapshot),
        Begin::Upload(upload) => Arc::new(upload),
    };
    // What a process before this one has left is read once more, for the hash.
    loop {
        let upload = Arc::clone(&upload);
        if transfer.step(move || upload.step(|part, turn| part.catch_up(turn))).await? {
            break;
        }
    }
    let mut piece = Some(first);
    while let Some(pb::UploadSnapshotRequest { offset, data, .. }) = piece {
        not_halted(&log)?;
        let offset = wire::offset(offset, "offset")?;
        if data.len() > MAX_SNAPSHOT_CHUNK_BYTES {
            let wrong =
                format!("has {} bytes, at most {MAX_SNAPSHOT_CHUNK_BYTES} are allowed", data.len());
            return Err(Refusal::field("data", wrong).into());
        }
        let (upload, size) = (Arc::clone(&upload), upload.snapshot.size_bytes);
        let write = move || upload.step(|part, turn| part.write(turn, offset, &data, size));
        transfer.step(write).await?;
        piece = transfer.next(&mut pieces).await?;
    }
    not_halted(&log)?;
    let snapshot = upload.snapshot.clone();
    transfer.step(move || upload.finish(&*log.reader)).await?;
    Ok(snapshot)
}

/// A disk that has failed the log is written no more.
///
/// # Errors
/// LOG_HALTED.
pub fn not_halted(log: &Log) -> Result<(), Refusal> {
    if log.halt.is_closed() { Err(log.halt.refusal()) } else { Ok(()) }
}

impl Upload {
    /// Does something to the bytes. Where their state is unknown afterwards, or they are
    /// the wrong ones, they are thrown away.
    fn step<T>(
        &self,
        step: impl FnOnce(&mut Part, u64) -> Result<T, PartError>,
    ) -> Result<T, Refusal> {
        let done = {
            let mut part = locked(&self.part);
            step(&mut part, self.turn)
        };
        self.judge(done)
    }

    /// Makes it a whole one.
    fn finish(&self, reader: &dyn LogReader) -> Result<(), Refusal> {
        let Snapshot { id, size_bytes, .. } = self.snapshot;
        self.step(|part, turn| part.complete(turn, id, size_bytes))?;
        self.judge(self.snapshots.name(self, reader))?;
        let Snapshot { cursor, receiver, .. } = &self.snapshot;
        tracing::info!(snapshot = %id, sequence = cursor.sequence, receiver, "snapshot stored");
        Ok(())
    }

    fn judge<T>(&self, done: Result<T, PartError>) -> Result<T, Refusal> {
        done.map_err(|error| {
            if matches!(error, PartError::Io(_) | PartError::Damaged) {
                self.snapshots.discard(self);
            }
            error.refusal(&self.snapshot)
        })
    }
}

impl PartError {
    /// What the uploading side is told.
    pub fn refusal(self, Snapshot { size_bytes, .. }: &Snapshot) -> Refusal {
        match self {
            PartError::Ended => Refusal::new(
                Reason::TransferEnded,
                "another upload of this snapshot, or a newer offer of the same receiver, has taken \
                 this one's place; where that was not meant, offer it again and go on from there",
            ),
            PartError::Hole { length } => Refusal::field(
                "offset",
                format!("does not follow the {length} bytes that are here; go on from there"),
            )
            .with("offset", length),
            PartError::TooLong => Refusal::field(
                "data",
                format!("reaches beyond the {size_bytes} bytes that were announced"),
            ),
            PartError::Short { length } => Refusal::field(
                "data",
                format!(
                    "has ended after {length} of {size_bytes} bytes; offer it again and go on from \
                     there"
                ),
            )
            .with("offset", length),
            PartError::Damaged => Refusal::new(
                Reason::SnapshotDamaged,
                "the bytes that came are not those that were announced, and are thrown away; send \
                 them again",
            ),
            PartError::Full => Refusal::new(
                Reason::LogFull,
                "the publisher's disk is full; what has come of the snapshot stays: make room, then \
                 offer it again and go on from there",
            )
            .with("limit", "disk"),
            PartError::Io(error) => not_stored(&error),
        }
    }
}

/// SNAPSHOT_NOT_STORED. The log is not halted by it: nothing was promised of these bytes,
/// and what it has promised itself is found by its own writes.
pub fn not_stored(error: &io::Error) -> Refusal {
    /// A disk that fails is not tried again at once.
    const RETRY_WRITE: Duration = Duration::from_secs(60);
    tracing::error!(%error, "a snapshot cannot be written; what was here of it is thrown away");
    Refusal::new(
        Reason::SnapshotNotStored,
        "the publisher's disk failed: what has come of the snapshot is thrown away; have its disk \
         looked at, then offer it again",
    )
    .retry_after(RETRY_WRITE)
}
