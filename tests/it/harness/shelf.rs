//! The snapshots of a publisher that lies: keeps what receivers upload, and hands it out
//! whole, torn, twisted or not at all, as a story wants it.

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use counterfoil::proto::{
    pb::{
        DownloadSnapshotRequest, DownloadSnapshotResponse, ListSnapshotsRequest,
        ListSnapshotsResponse, OfferSnapshotRequest, OfferSnapshotResponse, Snapshot,
        SnapshotChunk, SnapshotEnd, UploadSnapshotRequest, UploadSnapshotResponse,
        download_snapshot_response::Part,
        snapshot_service_server::{SnapshotService, SnapshotServiceServer},
    },
    refusal::{Reason, Refusal},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::wait::wait_until;

/// How a download ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carries {
    /// As it should.
    Whole,
    /// After half the bytes, OK, without an end.
    Half,
    /// After half the bytes, with an error.
    Breaks,
    /// With one byte changed.
    Twisted,
    /// With an end after half the bytes.
    Short,
}

#[derive(Default)]
struct Kept {
    snapshots: Vec<(Snapshot, Bytes)>,
    parts: HashMap<Bytes, (Snapshot, Vec<u8>)>,
    /// How many of the snapshots are listed, if not all.
    shown: Option<usize>,
    downloads: Vec<i64>,
    carries: VecDeque<Carries>,
    offers: Vec<i64>,
    /// Bytes after which uploads break, upload by upload.
    breaks: VecDeque<usize>,
}

/// What is on the shelf, and how it is handed out.
#[derive(Clone, Default)]
pub struct Shelf(Arc<Mutex<Kept>>);

impl Shelf {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().expect("no holder panics")
    }

    /// As it is served.
    pub fn service(&self) -> SnapshotServiceServer<Shelf> {
        SnapshotServiceServer::new(self.clone())
    }

    /// What is stored, in the order in which it came.
    pub fn snapshots(&self) -> Vec<Snapshot> {
        self.kept().snapshots.iter().map(|(snapshot, _)| snapshot.clone()).collect()
    }

    /// The bytes of one, by the order in which they came.
    pub fn bytes(&self, number: usize) -> Bytes {
        self.kept().snapshots[number].1.clone()
    }

    /// Puts a changed one beside those that are there; its bytes are those of the first.
    pub fn adds(&self, snapshot: Snapshot) {
        let mut kept = self.kept();
        let bytes = kept.snapshots[0].1.clone();
        kept.snapshots.push((snapshot, bytes));
    }

    /// Only the first ones are listed from now on.
    pub fn shows(&self, count: usize) {
        self.kept().shown = Some(count);
    }

    /// The next downloads go so, then all are whole.
    pub fn hands_out(&self, carries: &[Carries]) {
        self.kept().carries.extend(carries);
    }

    /// The next uploads break after so many bytes.
    pub fn breaks_uploads(&self, after: &[usize]) {
        self.kept().breaks.extend(after);
    }

    /// From which byte on each download was asked for.
    pub fn downloads(&self) -> Vec<i64> {
        self.kept().downloads.clone()
    }

    /// How much was there at each offer.
    pub fn offers(&self) -> Vec<i64> {
        self.kept().offers.clone()
    }

    /// Waits until so many snapshots are stored.
    pub async fn waits_for(&self, count: usize) {
        wait_until(&format!("{count} snapshots are stored"), async || {
            (self.snapshots().len() >= count).then_some(())
        })
        .await;
    }
}

#[tonic::async_trait]
impl SnapshotService for Shelf {
    async fn offer_snapshot(
        &self,
        request: Request<OfferSnapshotRequest>,
    ) -> Result<Response<OfferSnapshotResponse>, Status> {
        let snapshot = request.into_inner().snapshot.expect("a snapshot is offered");
        let mut kept = self.kept();
        let stored = kept.snapshots.iter().any(|(known, _)| known.sha256 == snapshot.sha256);
        let part = kept.parts.entry(snapshot.sha256.clone()).or_insert((snapshot, Vec::new()));
        let offset = part.1.len() as i64;
        kept.offers.push(offset);
        Ok(Response::new(OfferSnapshotResponse { stored, offset: Some(offset) }))
    }

    async fn upload_snapshot(
        &self,
        request: Request<Streaming<UploadSnapshotRequest>>,
    ) -> Result<Response<UploadSnapshotResponse>, Status> {
        let mut pieces = request.into_inner();
        let breaks = self.kept().breaks.pop_front();
        let (mut name, mut came) = (Bytes::new(), 0);
        while let Some(piece) = pieces.message().await? {
            if name.is_empty() {
                name = piece.sha256;
            }
            let mut kept = self.kept();
            let (_, part) = kept.parts.get_mut(&name).expect("it was offered");
            assert_eq!(piece.offset, part.len() as i64, "a hole");
            let room = breaks.map_or(usize::MAX, |after| after - came).min(piece.data.len());
            part.extend_from_slice(&piece.data[..room]);
            came += room;
            if breaks.is_some_and(|after| came >= after) {
                return Err(Status::unavailable("the upload broke, as the story wants it"));
            }
        }
        let mut kept = self.kept();
        let (snapshot, part) = kept.parts.remove(&name).expect("it was offered");
        assert_eq!(snapshot.size_bytes, Some(part.len() as i64), "all of it came");
        kept.snapshots.push((snapshot.clone(), part.into()));
        Ok(Response::new(UploadSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let kept = self.kept();
        let shown = kept.shown.unwrap_or(usize::MAX).min(kept.snapshots.len());
        let snapshots = kept.snapshots[..shown].iter().rev();
        let snapshots = snapshots.map(|(snapshot, _)| snapshot.clone()).collect();
        Ok(Response::new(ListSnapshotsResponse { snapshots }))
    }

    type DownloadSnapshotStream =
        Pin<Box<dyn Stream<Item = Result<DownloadSnapshotResponse, Status>> + Send>>;

    async fn download_snapshot(
        &self,
        request: Request<DownloadSnapshotRequest>,
    ) -> Result<Response<Self::DownloadSnapshotStream>, Status> {
        let request = request.into_inner();
        let mut kept = self.kept();
        kept.downloads.push(request.offset);
        let carries = kept.carries.pop_front().unwrap_or(Carries::Whole);
        let found = kept.snapshots.iter().find(|(known, _)| known.sha256 == request.sha256);
        let (snapshot, bytes) = found.cloned().ok_or_else(|| {
            Status::from(Refusal::new(Reason::NotFound, "there is no such snapshot"))
        })?;
        let from = request.offset as usize;
        let until = match carries {
            Carries::Whole | Carries::Twisted => bytes.len(),
            Carries::Half | Carries::Breaks | Carries::Short => from.max(bytes.len() / 2),
        };
        let mut sent = bytes[from..until].to_vec();
        if carries == Carries::Twisted {
            let middle = sent.len() / 2;
            sent[middle] ^= 1;
        }
        let part = |part| Ok(DownloadSnapshotResponse { part: Some(part) });
        let mut frames: Vec<_> = sent
            .chunks(5_000)
            .enumerate()
            .map(|(n, data)| {
                let (offset, data) = ((from + n * 5_000) as i64, Bytes::copy_from_slice(data));
                part(Part::Chunk(SnapshotChunk { offset, data }))
            })
            .collect();
        frames.extend(match carries {
            Carries::Half => None,
            Carries::Breaks => Some(Err(Status::unavailable("broken, as the story wants it"))),
            Carries::Whole | Carries::Twisted | Carries::Short => {
                let size_bytes = snapshot.size_bytes.expect("always set");
                Some(part(Part::End(SnapshotEnd { size_bytes, sha256: snapshot.sha256 })))
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(frames))))
    }
}
