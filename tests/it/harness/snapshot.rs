//! Snapshots as a test offers, uploads and downloads them. To a publisher they are
//! bytes; these are made up.

use std::path::PathBuf;

use bytes::{Bytes, BytesMut};
use counterfoil::proto::{
    event::hex,
    pb::{
        Cursor, DownloadSnapshotRequest, DownloadSnapshotResponse, ListSnapshotsRequest,
        OfferSnapshotRequest, OfferSnapshotResponse, Snapshot, UploadSnapshotRequest,
        UploadSnapshotResponse, download_snapshot_response::Part,
        snapshot_service_client::SnapshotServiceClient,
    },
};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming, transport::Channel};

use super::{
    publisher::{Publisher, channel},
    wait::within,
};

/// Every block of so many bytes is the same but for its number.
const BLOCK_BYTES: u64 = 64 * 1024;

/// Bytes that cost nothing to make, at any place.
#[derive(Debug, Clone)]
pub struct Content {
    pub size: u64,
    block: Vec<u8>,
}

impl Content {
    /// So many bytes; others for another seed.
    pub fn new(seed: u8, size: u64) -> Content {
        let mut state = u32::from(seed) + 1;
        let noise = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        Content { size, block: noise.take(BLOCK_BYTES as usize).collect() }
    }

    /// Those from a place on, at most `most`.
    pub fn read(&self, offset: u64, most: usize) -> Bytes {
        let end = self.size.min(offset + most as u64);
        let mut bytes = BytesMut::with_capacity((end - offset) as usize);
        let first = offset / BLOCK_BYTES;
        for number in first.. {
            let start = number * BLOCK_BYTES;
            if start >= end {
                break;
            }
            bytes.extend_from_slice(&self.block);
            let at = bytes.len() - BLOCK_BYTES as usize;
            bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
        }
        let mut bytes = bytes.freeze().slice((offset - first * BLOCK_BYTES) as usize..);
        bytes.truncate((end - offset) as usize);
        bytes
    }

    /// Their hash.
    pub fn sha256(&self) -> Bytes {
        let mut hash = Sha256::new();
        for offset in (0..self.size).step_by(1 << 20) {
            hash.update(self.read(offset, 1 << 20));
        }
        Bytes::copy_from_slice(&hash.finalize())
    }

    /// A snapshot of projection `inventory`, version 1, by receiver `shop`, that is these
    /// bytes.
    pub fn at(&self, cursor: &Cursor) -> Snapshot {
        Snapshot {
            log: "main".into(),
            cursor: Some(cursor.clone()),
            projection: "inventory".into(),
            projection_version: Some(1),
            schema_digest: Bytes::from_static(&[5; 32]),
            size_bytes: Some(self.size as i64),
            sha256: self.sha256(),
            receiver: "shop".into(),
            create_time: Some(prost_types::Timestamp { seconds: 1_796_000_000, nanos: 0 }),
        }
    }
}

/// Where the publisher keeps what has come of an upload, and the whole of it.
pub fn files(publisher: &Publisher, snapshot: &Snapshot) -> (PathBuf, PathBuf) {
    let dir = publisher.dir().join("logs/main/snapshots");
    let name = hex(&snapshot.sha256);
    (dir.join(format!("{name}.part")), dir.join(format!("{name}.db")))
}

/// One side of the transfers.
#[derive(Clone)]
pub struct Snapshots(SnapshotServiceClient<Channel>);

impl Snapshots {
    /// Of a publisher.
    pub fn of(publisher: &Publisher) -> Snapshots {
        Snapshots::over(channel(publisher.address))
    }

    /// Over a connection of its own kind.
    pub fn over(channel: Channel) -> Snapshots {
        Snapshots(SnapshotServiceClient::new(channel))
    }

    /// Announces one.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn offer(&self, snapshot: &Snapshot) -> Result<OfferSnapshotResponse, Status> {
        let request = OfferSnapshotRequest { snapshot: Some(snapshot.clone()) };
        Ok(within("OfferSnapshot", self.0.clone().offer_snapshot(request)).await?.into_inner())
    }

    /// Announces one that is not stored, and tells from where it is to be uploaded.
    ///
    /// # Panics
    /// If it is refused, or stored.
    pub async fn offset(&self, snapshot: &Snapshot) -> u64 {
        let offer = self.offer(snapshot).await.expect("an offer");
        assert!(!offer.stored, "nothing is to be uploaded: {offer:?}");
        offer.offset.expect("always set") as u64
    }

    /// Opens an upload, to be fed piece by piece.
    pub fn open_upload(&self, snapshot: &Snapshot) -> Upload {
        let (pieces, stream) = mpsc::channel(2);
        let mut client = self.0.clone();
        let answer = tokio::spawn(async move {
            let stored = client.upload_snapshot(ReceiverStream::new(stream)).await?;
            Ok(stored.into_inner())
        });
        Upload { pieces, answer, sha256: snapshot.sha256.clone() }
    }

    /// Uploads bytes from a place to their end, in pieces of this size.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn upload(
        &self,
        snapshot: &Snapshot,
        content: &Content,
        from: u64,
        piece: usize,
    ) -> Result<UploadSnapshotResponse, Status> {
        let upload = self.open_upload(snapshot);
        upload.send(content, from, content.size, piece).await;
        upload.answer().await
    }

    /// Announces and uploads one.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn store(&self, snapshot: &Snapshot, content: &Content) -> Result<(), Status> {
        let offer = self.offer(snapshot).await?;
        if !offer.stored {
            let from = offer.offset.expect("always set") as u64;
            self.upload(snapshot, content, from, 200_000).await?;
        }
        Ok(())
    }

    /// Those that a receiver may resume from.
    pub async fn list(&self) -> Vec<Snapshot> {
        let request = ListSnapshotsRequest::default();
        let answer = within("ListSnapshots", self.0.clone().list_snapshots(request)).await;
        answer.expect("ListSnapshots").into_inner().snapshots
    }

    /// Their places in the log.
    pub async fn places(&self) -> Vec<i64> {
        let place = |snapshot: Snapshot| snapshot.cursor?.sequence;
        self.list().await.into_iter().map(|snapshot| place(snapshot).expect("a place")).collect()
    }

    /// Opens a download.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn download(&self, sha256: &Bytes, offset: u64) -> Result<Download, Status> {
        let request = DownloadSnapshotRequest {
            log: String::new(),
            sha256: sha256.clone(),
            offset: offset as i64,
        };
        let opened = within("DownloadSnapshot", self.0.clone().download_snapshot(request)).await?;
        Ok(Download { stream: opened.into_inner(), offset })
    }

    /// Downloads from a place on, and checks every byte.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn downloads(
        &self,
        snapshot: &Snapshot,
        content: &Content,
        from: u64,
    ) -> Result<(), Status> {
        self.download(&snapshot.sha256, from).await?.rest(snapshot, content).await
    }
}

/// An upload that is under way.
pub struct Upload {
    pub pieces: mpsc::Sender<UploadSnapshotRequest>,
    answer: JoinHandle<Result<UploadSnapshotResponse, Status>>,
    sha256: Bytes,
}

impl Upload {
    /// Sends a piece as it is. One that nobody takes any more is no matter: the answer
    /// says why.
    pub async fn piece(&self, offset: u64, data: Bytes) {
        let message = UploadSnapshotRequest {
            log: String::new(),
            sha256: self.sha256.clone(),
            offset: offset as i64,
            data,
        };
        let _ = within("room for a piece", self.pieces.send(message)).await;
    }

    /// Sends bytes from a place to another; at least one message, if none are left.
    pub async fn send(&self, content: &Content, from: u64, to: u64, piece: usize) {
        if from == to {
            self.piece(from, Bytes::new()).await;
        }
        for offset in (from..to).step_by(piece) {
            let most = piece.min((to - offset) as usize);
            self.piece(offset, content.read(offset, most)).await;
        }
    }

    /// Ends it, and tells what came of it.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn answer(self) -> Result<UploadSnapshotResponse, Status> {
        drop(self.pieces);
        within("the end of an upload", self.answer).await.expect("the upload does not panic")
    }

    /// What came of it, though it was not ended here.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn told(self) -> Result<UploadSnapshotResponse, Status> {
        within("the end of an upload", self.answer).await.expect("the upload does not panic")
    }
}

/// A download that is under way.
pub struct Download {
    stream: Streaming<DownloadSnapshotResponse>,
    offset: u64,
}

impl Download {
    /// The next part; none where the stream ends without saying that it is complete.
    ///
    /// # Errors
    /// The publisher's.
    pub async fn next(&mut self) -> Result<Option<Part>, Status> {
        let message = within("a part of a snapshot", self.stream.message()).await?;
        let part = message.map(|message| message.part.expect("it says something"));
        if let Some(Part::Chunk(chunk)) = &part {
            assert_eq!(chunk.offset as u64, self.offset, "without a hole");
            assert!(!chunk.data.is_empty() && chunk.data.len() <= 1 << 20);
            self.offset += chunk.data.len() as u64;
        }
        Ok(part)
    }

    /// Reads it to its end, and checks every byte.
    ///
    /// # Errors
    /// The publisher's.
    ///
    /// # Panics
    /// At the first byte that is another one, and if the end is not said.
    pub async fn rest(mut self, snapshot: &Snapshot, content: &Content) -> Result<(), Status> {
        loop {
            match self.next().await? {
                Some(Part::Chunk(chunk)) => {
                    let expected = content.read(chunk.offset as u64, chunk.data.len());
                    assert!(chunk.data == expected, "other bytes at {}", chunk.offset);
                }
                Some(Part::End(end)) => {
                    assert_eq!(self.offset, content.size, "the end comes last");
                    assert_eq!(Some(end.size_bytes), snapshot.size_bytes);
                    assert_eq!(end.sha256, snapshot.sha256);
                    assert_eq!(self.next().await?, None);
                    return Ok(());
                }
                None => panic!("the stream has ended at {} without `end`", self.offset),
            }
        }
    }
}
