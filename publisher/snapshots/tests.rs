//! Snapshots of a log in memory: what takes longer, or fails otherwise, than a story
//! on real processes can wait for.

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::{
    download,
    service::{Service, Transfer},
    store::Offer,
    upload,
};
use crate::{
    proto::{
        limits::*,
        pb::{self, download_snapshot_response::Part},
        refusal::{Reason, Refusal, reason_of},
        snapshot::{Snapshot, SnapshotId},
    },
    publisher::{
        hub::Hub,
        log::CommitError,
        testing::{Running, intent, start, wide},
    },
};

/// So many bytes, at a place of the log.
fn snapshot(running: &Running, place: i64, bytes: usize) -> (Snapshot, Bytes) {
    let content = Bytes::from(vec![place as u8; bytes]);
    let snapshot = Snapshot {
        log: "main".into(),
        cursor: running.cursor(place),
        projection: "inventory".into(),
        projection_version: 1,
        schema_digest: [0; 32],
        size_bytes: bytes as u64,
        id: SnapshotId(Sha256::digest(&content).into()),
        receiver: "shop".into(),
        create_time: None,
    };
    (snapshot, content)
}

fn offer(running: &Running, snapshot: &Snapshot) -> Result<Offer, Refusal> {
    running.log.snapshots.offer(snapshot.clone(), &*running.log.reader)
}

fn hub(running: &Running) -> Hub {
    Hub::of([running.log.clone()])
}

fn transfer(running: &Running) -> Transfer {
    let service = Service::new(hub(running), running.log.ending.clone());
    service.transfer().expect("the first")
}

fn piece(snapshot: &Snapshot, data: Bytes) -> pb::UploadSnapshotRequest {
    let sha256 = Bytes::copy_from_slice(&snapshot.id.0);
    pb::UploadSnapshotRequest { log: String::new(), sha256, offset: 0, data }
}

/// What becomes of an upload of these messages.
async fn uploaded(
    running: &Running,
    pieces: impl Stream<Item = Result<pb::UploadSnapshotRequest, Status>> + Unpin,
) -> Result<Snapshot, Option<Reason>> {
    let received = upload::receive(&hub(running), &transfer(running), pieces).await;
    received.map_err(|status| reason_of(&status))
}

/// Offers one and uploads it in one piece.
async fn stored(running: &Running, place: i64, bytes: usize) -> Snapshot {
    let (snapshot, content) = snapshot(running, place, bytes);
    assert_eq!(offer(running, &snapshot), Ok(Offer::From(0)));
    let pieces = stream::iter([Ok(piece(&snapshot, content))]);
    assert_eq!(uploaded(running, pieces).await, Ok(snapshot.clone()));
    snapshot
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_falls_silent_is_ended_and_what_came_stays() {
    let running = start(wide());
    running.fill(1).await;
    let (snapshot, content) = snapshot(&running, 0, 1_000);
    assert_eq!(offer(&running, &snapshot), Ok(Offer::From(0)));
    let first = stream::iter([Ok(piece(&snapshot, content.slice(..300)))]);
    let silent = first.chain(stream::pending());
    assert_eq!(uploaded(&running, silent).await, Err(Some(Reason::TransferEnded)));
    assert_eq!(offer(&running, &snapshot), Ok(Offer::From(300)));
    let nothing = stream::pending();
    assert_eq!(uploaded(&running, nothing).await, Err(Some(Reason::TransferEnded)));
}

#[tokio::test(start_paused = true)]
async fn a_download_that_nobody_reads_is_ended() {
    let running = start(wide());
    running.fill(1).await;
    let Snapshot { id, .. } = stored(&running, 0, MAX_SNAPSHOT_CHUNK_BYTES).await;
    let parts = download::open(&running.log, transfer(&running), id, 0).await.expect("opened");
    tokio::time::sleep(2 * SNAPSHOT_SILENCE).await;
    let parts: Vec<_> = parts.collect().await;
    let (last, before) = parts.split_last().expect("not empty");
    let ended = last.as_ref().expect_err("ended").clone();
    assert_eq!(reason_of(&ended), Some(Reason::TransferEnded));
    let chunk = |part: &Result<pb::DownloadSnapshotResponse, _>| {
        matches!(part, Ok(pb::DownloadSnapshotResponse { part: Some(Part::Chunk(_)) }))
    };
    assert!(before.iter().all(chunk) && before.len() < 4, "{}", before.len());
}

#[tokio::test]
async fn a_halted_log_takes_no_snapshots_and_gives_those_it_has() {
    let running = start(wide());
    running.fill(2).await;
    let whole = stored(&running, 0, 1_000).await;
    let (next, content) = snapshot(&running, 1, 1_000);
    assert_eq!(offer(&running, &next), Ok(Offer::From(0)));
    running.engine.fail_next(CommitError::Halted("a sync failed".into()));
    running.publish(intent("lost", "camera")).await.expect_err("halted");
    let pieces = stream::iter([Ok(piece(&next, content))]);
    assert_eq!(uploaded(&running, pieces).await, Err(Some(Reason::LogHalted)));
    let parts = download::open(&running.log, transfer(&running), whole.id, 0).await;
    let parts: Vec<_> = parts.expect("opened").collect().await;
    assert!(matches!(
        parts.last(),
        Some(Ok(pb::DownloadSnapshotResponse { part: Some(Part::End(_)) }))
    ));
}

#[tokio::test]
async fn offers_are_bounded_and_the_oldest_are_forgotten() {
    let running = start(wide());
    running.fill(MAX_SNAPSHOT_OFFERS + 2).await;
    let offered: Vec<_> = (0..MAX_SNAPSHOT_OFFERS as i64 + 2)
        .map(|place| {
            let (snapshot, content) = snapshot(&running, place, 10);
            // Each by a receiver of its own.
            let snapshot = Snapshot { receiver: format!("shop-{place}"), ..snapshot };
            assert_eq!(offer(&running, &snapshot), Ok(Offer::From(0)));
            (snapshot, content)
        })
        .collect();
    for (at, (snapshot, content)) in offered.iter().enumerate().take(3) {
        let pieces = stream::iter([Ok(piece(snapshot, content.clone()))]);
        let expected = if at < 2 { Err(Some(Reason::NotFound)) } else { Ok(snapshot.clone()) };
        assert_eq!(uploaded(&running, pieces).await, expected, "{at}");
    }
}

#[tokio::test]
async fn bytes_of_another_announced_size_are_not_gone_on_with() {
    let running = start(wide());
    running.fill(1).await;
    let (right, content) = snapshot(&running, 0, 300);
    let long = Snapshot { size_bytes: 1_000, ..right.clone() };
    assert_eq!(offer(&running, &long), Ok(Offer::From(0)));
    let pieces = stream::iter([Ok(piece(&long, Bytes::from(vec![1; 400])))]);
    assert_eq!(uploaded(&running, pieces).await, Err(Some(Reason::InvalidField)));
    assert_eq!(offer(&running, &long), Ok(Offer::From(400)));
    assert_eq!(offer(&running, &right), Ok(Offer::From(0)));
    let pieces = stream::iter([Ok(piece(&right, content))]);
    assert_eq!(uploaded(&running, pieces).await, Ok(right));
}
