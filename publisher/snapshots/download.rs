//! The way of a download: chunks from an offset on, and an end that says that there
//! are no more.

use std::{fs::File, io, os::unix::fs::FileExt as _, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tonic::Status;

use super::{
    service::{Transfer, silent},
    store::Snapshots,
};
use crate::{
    proto::{
        limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_SILENCE},
        pb::{
            DownloadSnapshotResponse, SnapshotChunk, SnapshotEnd, download_snapshot_response::Part,
        },
        refusal::{Reason, Refusal},
        snapshot::{Snapshot, SnapshotId},
    },
    publisher::{
        hub::Log,
        outgoing::{End, outgoing},
    },
};

/// Chunks that wait for a slow reader.
const WAITING_CHUNKS: usize = 2;

/// Opens a download.
///
/// # Errors
/// NOT_FOUND, INVALID_FIELD, LOG_UNREADABLE, SHUTTING_DOWN.
pub async fn open(
    log: &Log,
    transfer: Transfer,
    id: SnapshotId,
    offset: u64,
) -> Result<impl Stream<Item = Result<DownloadSnapshotResponse, Status>> + Send + use<>, Refusal> {
    let snapshots = log.snapshots.clone();
    let found = {
        let snapshots = snapshots.clone();
        transfer.step(move || snapshots.get(id).map_err(|error| unreadable(&error)))
    };
    let Some((snapshot, file)) = found.await? else { return Err(not_here(id)) };
    if offset > snapshot.size_bytes {
        let wrong = format!("is {offset}; the snapshot has {} bytes", snapshot.size_bytes);
        return Err(Refusal::field("offset", wrong));
    }
    let (parts, receiver) = mpsc::channel(WAITING_CHUNKS);
    // Bytes from an offset on tell nothing of the whole: who resumes checks it.
    let hash = (offset == 0).then(Sha256::new);
    let file = Arc::new(file);
    let download = Download { transfer, snapshots, snapshot, file, offset, hash, parts };
    Ok(outgoing(receiver, tokio::spawn(download.run())))
}

struct Download {
    transfer: Transfer,
    snapshots: Snapshots,
    snapshot: Snapshot,
    file: Arc<File>,
    /// The next byte to send.
    offset: u64,
    /// Over all before it; none where it did not start at 0.
    hash: Option<Sha256>,
    parts: mpsc::Sender<DownloadSnapshotResponse>,
}

impl Download {
    async fn run(mut self) -> Result<(), End> {
        let Snapshot { size_bytes, id, .. } = self.snapshot;
        while self.offset < size_bytes {
            let (offset, data) = (self.offset, self.read().await?);
            self.offset += data.len() as u64;
            let offset = offset as i64; // sizes are positive i64
            self.send(Part::Chunk(SnapshotChunk { offset, data })).await?;
        }
        if let Some(hash) = self.hash.take()
            && SnapshotId(hash.finalize().into()) != id
        {
            return Err(self.damaged().await.into());
        }
        let sha256 = Bytes::copy_from_slice(&id.0);
        self.send(Part::End(SnapshotEnd { size_bytes: size_bytes as i64, sha256 })).await
    }

    /// The next chunk.
    async fn read(&mut self) -> Result<Bytes, End> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let left = self.snapshot.size_bytes - offset;
        let mut hash = self.hash.take();
        let read = move || {
            let mut data = vec![0; left.min(SNAPSHOT_CHUNK_BYTES as u64) as usize];
            match file.read_exact_at(&mut data, offset) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(unreadable(&error)),
            }
            if let Some(hash) = &mut hash {
                hash.update(&data);
            }
            Ok(Some((Bytes::from(data), hash)))
        };
        match self.transfer.step(read).await? {
            Some((data, hash)) => {
                self.hash = hash;
                Ok(data)
            }
            None => Err(self.damaged().await.into()),
        }
    }

    async fn send(&self, part: Part) -> Result<(), End> {
        let message = DownloadSnapshotResponse { part: Some(part) };
        tokio::select! {
            biased;
            () = self.transfer.ending.cancelled() => Err(self.transfer.shutting_down().into()),
            sent = tokio::time::timeout(SNAPSHOT_SILENCE, self.parts.send(message)) => match sent {
                Ok(sent) => sent.map_err(|_| End::Gone),
                Err(_) => Err(silent().into()),
            },
        }
    }

    /// Removes it, so that nobody is sent it again.
    async fn damaged(&self) -> Refusal {
        let Snapshot { id, .. } = self.snapshot;
        tracing::error!(snapshot = %id, "its bytes have changed on the disk; it is removed");
        let snapshots = self.snapshots.clone();
        let removed = self.transfer.step(move || {
            snapshots.remove(id);
            Ok(())
        });
        match removed.await {
            Ok(()) => Refusal::new(
                Reason::SnapshotDamaged,
                "the bytes of this snapshot have changed on the publisher's disk, and it is \
                 removed: throw away what has come, and take the next that ListSnapshots shows",
            ),
            Err(refusal) => refusal,
        }
    }
}

fn not_here(id: SnapshotId) -> Refusal {
    Refusal::new(
        Reason::NotFound,
        format!("there is no snapshot {id}: newer ones may have taken its place; list them again"),
    )
}

fn unreadable(error: &io::Error) -> Refusal {
    const RETRY_READ: Duration = Duration::from_secs(1);
    tracing::error!(%error, "a snapshot cannot be read");
    Refusal::new(Reason::LogUnreadable, "the snapshot cannot be read now; try again")
        .retry_after(RETRY_READ)
}
