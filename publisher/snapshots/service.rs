//! The RPC edge of snapshots, and what its streams share: their number is bounded, so
//! is their use of the disk, and none outlives the process's end or a silent peer.

use std::{pin::Pin, sync::Arc};

use futures_util::{Stream, StreamExt as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    download,
    store::Offer,
    upload::{self, not_halted},
};
use crate::{
    proto::{
        limits::*,
        pb::{self, snapshot_service_server::SnapshotService},
        refusal::{Reason, Refusal},
        wire::{name, snapshot as wire},
    },
    publisher::{blocking::blocking, halt::shutting_down, hub::Hub, intake},
};

/// `counterfoil.v1.SnapshotService` over the logs of this process.
#[derive(Clone)]
pub struct Service {
    hub: Hub,
    /// Transfers that may still be opened.
    transfers: Arc<Semaphore>,
    /// Steps of them that may use the disk.
    disk: Arc<Semaphore>,
    /// Cancelled when the process ends.
    ending: CancellationToken,
}

impl Service {
    /// Serves these logs until `ending` is cancelled.
    pub fn new(hub: Hub, ending: CancellationToken) -> Self {
        let transfers = Arc::new(Semaphore::new(MAX_SNAPSHOT_TRANSFERS));
        let disk = Arc::new(Semaphore::new(SNAPSHOT_DISK_STEPS));
        Service { hub, transfers, disk, ending }
    }

    /// A place among the transfers.
    pub(super) fn transfer(&self) -> Result<Transfer, Refusal> {
        let place = Arc::clone(&self.transfers).try_acquire_owned().map_err(|_| {
            Refusal::new(
                Reason::StreamsFull,
                format!(
                    "{MAX_SNAPSHOT_TRANSFERS} transfers of snapshots are open, and no more at a \
                     time; try again when one has ended"
                ),
            )
            .with("limit", MAX_SNAPSHOT_TRANSFERS)
        })?;
        let (disk, ending) = (Arc::clone(&self.disk), self.ending.clone());
        Ok(Transfer { disk, ending, _place: place })
    }
}

#[tonic::async_trait]
impl SnapshotService for Service {
    async fn offer_snapshot(
        &self,
        request: Request<pb::OfferSnapshotRequest>,
    ) -> Result<Response<pb::OfferSnapshotResponse>, Status> {
        let snapshot = request.into_inner().snapshot;
        let snapshot = snapshot.ok_or_else(|| Refusal::field("snapshot", "is missing"))?;
        let snapshot = wire::checked(snapshot, "snapshot")?;
        let log = self.hub.log(&snapshot.log)?.clone();
        not_halted(&log)?;
        let size = snapshot.size_bytes;
        let offer = blocking(move || log.snapshots.offer(snapshot, &*log.reader)).await?;
        let (stored, offset) = match offer {
            Offer::Stored => (true, size),
            Offer::From(offset) => (false, offset),
        };
        // Sizes are announced as positive i64.
        Ok(Response::new(pb::OfferSnapshotResponse { stored, offset: Some(offset as i64) }))
    }

    async fn upload_snapshot(
        &self,
        request: Request<Streaming<pb::UploadSnapshotRequest>>,
    ) -> Result<Response<pb::UploadSnapshotResponse>, Status> {
        let transfer = self.transfer()?;
        let stored = upload::receive(&self.hub, &transfer, request.into_inner()).await?;
        let snapshot = Some(wire::message(&stored));
        Ok(Response::new(pb::UploadSnapshotResponse { snapshot }))
    }

    async fn list_snapshots(
        &self,
        request: Request<pb::ListSnapshotsRequest>,
    ) -> Result<Response<pb::ListSnapshotsResponse>, Status> {
        let pb::ListSnapshotsRequest { log, projection } = request.into_inner();
        let log = intake::log(&self.hub, &log)?.clone();
        if !projection.is_empty() {
            name(&projection, "projection")?;
        }
        let list = move || {
            log.snapshots.tidy(&*log.reader);
            Ok(log.snapshots.list(&*log.reader))
        };
        let all = blocking(list).await?;
        let wanted =
            all.iter().filter(|found| projection.is_empty() || found.projection == projection);
        let snapshots = wanted.map(wire::message).collect();
        Ok(Response::new(pb::ListSnapshotsResponse { snapshots }))
    }

    type DownloadSnapshotStream =
        Pin<Box<dyn Stream<Item = Result<pb::DownloadSnapshotResponse, Status>> + Send>>;

    async fn download_snapshot(
        &self,
        request: Request<pb::DownloadSnapshotRequest>,
    ) -> Result<Response<Self::DownloadSnapshotStream>, Status> {
        let pb::DownloadSnapshotRequest { log, sha256, offset } = request.into_inner();
        let log = intake::log(&self.hub, &log)?;
        let id = wire::id(&sha256, "sha256")?;
        let offset = wire::offset(offset, "offset")?;
        let parts = download::open(log, self.transfer()?, id, offset).await?;
        Ok(Response::new(Box::pin(parts)))
    }
}

/// One open upload or download.
pub struct Transfer {
    disk: Arc<Semaphore>,
    /// Cancelled when the process ends.
    pub ending: CancellationToken,
    _place: OwnedSemaphorePermit,
}

impl Transfer {
    /// Does something short to the disk.
    ///
    /// # Errors
    /// Those of `step`; SHUTTING_DOWN.
    pub async fn step<T: Send + 'static>(
        &self,
        step: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        let turn = Arc::clone(&self.disk).acquire_owned().await;
        let turn = turn.map_err(|_| self.shutting_down())?;
        // Held by the step itself, which goes on when its caller has gone.
        blocking(move || {
            let _turn = turn;
            step()
        })
        .await
    }

    /// The next message of the other end; none once it has sent all.
    ///
    /// # Errors
    /// SHUTTING_DOWN, TRANSFER_ENDED (silence); the connection's.
    pub async fn next<T>(
        &self,
        messages: &mut (impl Stream<Item = Result<T, Status>> + Unpin),
    ) -> Result<Option<T>, Status> {
        tokio::select! {
            biased;
            () = self.ending.cancelled() => Err(self.shutting_down().into()),
            message = tokio::time::timeout(SNAPSHOT_SILENCE, messages.next()) => match message {
                Ok(message) => message.transpose(),
                Err(_) => Err(silent().into()),
            },
        }
    }

    /// SHUTTING_DOWN.
    pub fn shutting_down(&self) -> Refusal {
        let message = "the publisher is ending; reconnect and go on from the byte that was reached";
        Refusal { message: message.to_owned(), ..shutting_down() }
    }
}

/// TRANSFER_ENDED, for a peer that is not heard of.
pub fn silent() -> Refusal {
    Refusal::new(
        Reason::TransferEnded,
        format!(
            "nothing was sent or taken for {} s; go on from the byte that was reached",
            SNAPSHOT_SILENCE.as_secs()
        ),
    )
}
