//! Snapshots out: makes one and uploads it to the publisher, when retention makes it due,
//! when it is time, and when a person asks. One at a time; applying never waits for it, and
//! what fails is said and tried again.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Status, transport::Endpoint};

use super::{
    current::Current,
    replay::{SILENCE, within},
    retry::{self, Verdict, judge},
    snapshot::{self, Made, MakeError},
    source::{DEADLINE, Source},
    status::{self, Board, State},
    store::Kind,
};
use crate::proto::{
    backoff::{CALL_BASE, backoff},
    crash,
    event::Time,
    limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_PACE, SNAPSHOT_SPACING},
    pb,
    refusal::{Reason, Refusal, reason_of},
    wire,
};

/// A person's wish for a snapshot; answered once it is stored.
pub type Order = oneshot::Sender<Result<pb::Snapshot, Status>>;

/// Pieces that are read ahead of the connection.
const AHEAD: usize = 4;
/// A snapshot whose bytes arrive damaged so often is given up.
const MOST_DAMAGED: u32 = 3;

/// What offering snapshots takes.
pub struct Offers {
    /// Where the publisher is: how to connect is set already.
    pub publisher: Endpoint,
    /// This receiver's name.
    pub name: String,
    /// The database.
    pub db: PathBuf,
    /// What it is.
    pub current: Current,
    /// What is due, and where the newest one is written to.
    pub board: Arc<Board>,
    /// One this often, whatever is due.
    pub every: Option<Duration>,
    /// From people.
    pub orders: mpsc::Receiver<Order>,
    /// Told to end.
    pub ending: CancellationToken,
}

impl Offers {
    /// Offers until the receiver ends.
    pub async fn keep(mut self) {
        let ending = self.ending.clone();
        tokio::select! {
            () = self.offer() => {}
            () = ending.cancelled() => {}
        }
    }

    async fn offer(&mut self) {
        let status = self.board.status();
        let mut timer = self.every.map(|every| Instant::now() + every);
        let mut not_before = Instant::now();
        let mut failed = 0;
        loop {
            let due = async {
                sleep_until(not_before).await;
                // Looked at now and then: waiting for it would wake this task at each commit.
                while !is_due(&status.borrow()) {
                    sleep(SNAPSHOT_SPACING).await;
                }
                // Other receivers of the projection have heard the same.
                sleep(SNAPSHOT_SPACING.mul_f64(rand::random())).await;
            };
            let time = async {
                match timer {
                    Some(at) => sleep_until(at.max(not_before)).await,
                    None => std::future::pending().await,
                }
            };
            let (order, wanted) = tokio::select! {
                order = self.orders.recv() => match order {
                    Some(order) => (Some(order), Wanted::Anyway),
                    None => return,
                },
                () = due => (None, Wanted::Due),
                () = time => (None, Wanted::News),
            };
            let begun = Instant::now();
            let outcome = self.produce(wanted).await;
            not_before = Instant::now() + SNAPSHOT_SPACING.max(begun.elapsed() * SNAPSHOT_PACE);
            match &outcome {
                Ok(_) => failed = 0,
                Err(why) => {
                    failed += 1;
                    not_before += backoff(failed, SNAPSHOT_SPACING, rand::random());
                    tracing::warn!("no snapshot could be offered: {}", retry::said(why));
                }
            }
            if wanted == Wanted::News || outcome.is_ok() {
                timer = self.every.map(|every| Instant::now() + every);
            }
            if let Some(order) = order {
                // Whoever has hung up has it all the same.
                let _ = order.send(outcome.map(|snapshot| snapshot.unwrap_or_default()));
            }
        }
    }

    /// Makes a snapshot and uploads it; none: it is not wanted any more.
    async fn produce(&self, wanted: Wanted) -> Result<Option<pb::Snapshot>, Status> {
        let kind = self.current.kind();
        if wanted != Wanted::Anyway && !self.still(wanted, &kind).await? {
            return Ok(None);
        }
        let (db, made_as) = (self.db.clone(), kind.clone());
        let made = tokio::task::spawn_blocking(move || snapshot::make(&db, &made_as)).await;
        let made = made.map_err(|error| unmade(&error))?.map_err(|error| match error {
            MakeError::Unfit(_) => Refusal::new(Reason::WrongState, error.to_string()).into(),
            MakeError::Copy(error) => unmade(&error),
        })?;
        let Some(made) = made else {
            return Err(Refusal::new(Reason::WrongState, "nothing is applied yet").into());
        };
        let snapshot = self.describe(&made, &kind);
        self.upload(&made, &snapshot).await?;
        crash::point(crash::RECEIVER_SNAPSHOT_STORED);
        let (sequence, bytes) = (made.cursor.sequence, made.size);
        tracing::info!(sequence, bytes, "the publisher has a new snapshot");
        self.board
            .note(|status| status.snapshot_sequence = status.snapshot_sequence.max(Some(sequence)));
        Ok(Some(snapshot))
    }

    /// Asks whether somebody else has made it meanwhile.
    async fn still(&self, wanted: Wanted, kind: &Kind) -> Result<bool, Status> {
        let source = Source::connect(&self.publisher, &kind.log).await?;
        let listed = source.list(&kind.projection).await?;
        let ours = listed.iter().filter(|listed| {
            listed.projection_version == kind.projection_version
                && listed.schema_digest == kind.digest
        });
        let newest = ours.map(|listed| listed.cursor.sequence).max().unwrap_or(-1);
        self.board.note(|status| status.snapshot_sequence = Some(newest));
        let status = self.board.status();
        let status = status.borrow();
        Ok(match wanted {
            Wanted::Due => is_due(&status),
            _ => connected(&status) && status.committed() > newest,
        })
    }

    fn describe(&self, made: &Made, kind: &Kind) -> pb::Snapshot {
        pb::Snapshot {
            log: kind.log.clone(),
            cursor: Some(wire::cursor_message(&made.cursor)),
            projection: kind.projection.clone(),
            projection_version: Some(kind.projection_version),
            schema_digest: Bytes::copy_from_slice(&kind.digest),
            size_bytes: Some(made.size as i64),
            sha256: Bytes::copy_from_slice(&made.sha256),
            receiver: self.name.clone(),
            create_time: Some(wire::timestamp(Time::from_system(SystemTime::now()))),
        }
    }

    /// Uploads until it is stored, through broken connections, for as long as it is of use.
    async fn upload(&self, made: &Made, snapshot: &pb::Snapshot) -> Result<(), Status> {
        let (mut attempt, mut damaged, mut furthest) = (0, 0, 0);
        loop {
            let mut offset = 0;
            let status = match self.try_upload(made, snapshot, &mut offset).await {
                Ok(()) => return Ok(()),
                Err(status) => status,
            };
            attempt = if offset > furthest { 1 } else { attempt + 1 };
            furthest = furthest.max(offset);
            let outdated = self.board.status().borrow().snapshot_due_below > made.cursor.sequence;
            match reason_of(&status) {
                // It is not needed: there are newer ones.
                Some(Reason::SnapshotTooLarge | Reason::WrongState) => return Err(status),
                Some(Reason::SnapshotDamaged) => damaged += 1,
                _ => {}
            }
            match judge(&status, attempt, None, rand::random()) {
                Verdict::Retry(delay) if !outdated && damaged < MOST_DAMAGED => {
                    tracing::info!(
                        attempt,
                        ?delay,
                        "the upload of a snapshot broke off: {}",
                        retry::said(&status)
                    );
                    sleep(delay.max(CALL_BASE)).await;
                }
                _ => return Err(status),
            }
        }
    }

    /// Offers it and sends what the publisher lacks of it. `offset`: how much it had.
    async fn try_upload(
        &self,
        made: &Made,
        snapshot: &pb::Snapshot,
        offset: &mut u64,
    ) -> Result<(), Status> {
        let source = Source::connect(&self.publisher, &snapshot.log).await?;
        let mut client = source.snapshots();
        let request = pb::OfferSnapshotRequest { snapshot: Some(snapshot.clone()) };
        let offered = within(DEADLINE, client.offer_snapshot(request)).await?.into_inner();
        crash::point(crash::RECEIVER_SNAPSHOT_OFFERED);
        if offered.stored {
            return Ok(());
        }
        *offset = u64::try_from(offered.offset.unwrap_or(0)).unwrap_or(0);
        let (to_connection, pieces) = mpsc::channel(AHEAD);
        let (file, log, sha256) =
            (made.file.clone(), snapshot.log.clone(), snapshot.sha256.clone());
        let from = *offset;
        tokio::task::spawn_blocking(move || {
            let first = pb::UploadSnapshotRequest { log, sha256, ..Default::default() };
            if let Err(error) = read_pieces(&file, from, first, &to_connection) {
                tracing::warn!(%error, "the file of a snapshot cannot be read");
            }
        });
        // Where that is too short for the way, what has come through counts all the same.
        let patience = SILENCE + Duration::from_secs(made.size >> 20);
        within(patience, client.upload_snapshot(ReceiverStream::new(pieces))).await?;
        Ok(())
    }
}

/// Why one is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// A person has asked.
    Anyway,
    /// The newest one will not be of use for long.
    Due,
    /// It is time, if there is anything new.
    News,
}

fn connected(status: &status::Status) -> bool {
    matches!(status.state(), State::CatchingUp | State::Live)
}

/// Whether the publisher's newest snapshot will not be of use for long, and one made now
/// will. Pure.
fn is_due(status: &status::Status) -> bool {
    let below = status.snapshot_due_below;
    connected(status)
        && below > 0
        && status.committed() >= below
        && status.snapshot_sequence.is_none_or(|newest| newest < below)
}

/// Sends a file's bytes from an offset on, until they end or nobody takes them any more.
fn read_pieces(
    file: &std::path::Path,
    from: u64,
    first: pb::UploadSnapshotRequest,
    to_connection: &mpsc::Sender<pb::UploadSnapshotRequest>,
) -> io::Result<()> {
    let mut file = File::open(file)?;
    file.seek(SeekFrom::Start(from))?;
    let (mut offset, mut request) = (from, first);
    loop {
        let mut data = Vec::with_capacity(SNAPSHOT_CHUNK_BYTES);
        (&mut file).take(SNAPSHOT_CHUNK_BYTES as u64).read_to_end(&mut data)?;
        // One without data says at least which snapshot it is.
        if data.is_empty() && offset > from {
            return Ok(());
        }
        let ends = data.is_empty();
        let after = offset + data.len() as u64;
        (request.offset, request.data) = (offset as i64, data.into());
        if to_connection.blocking_send(std::mem::take(&mut request)).is_err() || ends {
            return Ok(());
        }
        offset = after;
        crash::point(crash::RECEIVER_SNAPSHOT_SENT);
    }
}

/// What failed stands in the log; callers elsewhere learn no paths.
fn unmade(error: &dyn std::fmt::Display) -> Status {
    tracing::error!("a snapshot could not be made: {error}");
    Status::internal("the snapshot could not be made; the receiver's log says why")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::chain::Cursor,
        receiver::{status::Link, testing::log_id},
    };

    #[test]
    fn one_is_due_where_the_newest_one_is_too_old_and_ours_would_not_be() {
        let due = |below, committed, newest, link: Link| {
            let board =
                Board::new(Some(Cursor { sequence: committed, ..Cursor::beginning(log_id()) }));
            board.note(|status| {
                (status.snapshot_due_below, status.snapshot_sequence) = (below, newest);
                status.link = link;
            });
            let status = board.status();
            is_due(&status.borrow())
        };
        let up = || Link::Up(None);
        assert!(due(50, 60, None, up()));
        assert!(due(50, 50, Some(49), up()));
        assert!(due(50, 60, Some(-1), up()));
        assert!(!due(50, 60, Some(50), up()), "the newest one still is of use");
        assert!(!due(50, 49, Some(10), up()), "ours would not be");
        assert!(!due(0, 60, None, up()), "none is needed");
        assert!(!due(50, 60, None, Link::Down("gone".into())));
    }

    #[test]
    fn a_file_is_sent_in_pieces_from_an_offset_on() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("whole");
        let whole: Vec<u8> = (0..2 * SNAPSHOT_CHUNK_BYTES + 7).map(|n| n as u8).collect();
        std::fs::write(&path, &whole).expect("written");
        for (from, expected) in [(0, 3), (5, 3), (whole.len() - 1, 1), (whole.len(), 1)] {
            let (sender, mut pieces) = mpsc::channel(9);
            let first = pb::UploadSnapshotRequest { log: "main".into(), ..Default::default() };
            read_pieces(&path, from as u64, first, &sender).expect("readable");
            drop(sender);
            let (mut count, mut bytes) = (0, Vec::new());
            while let Some(piece) = pieces.blocking_recv() {
                assert_eq!(piece.offset as usize, from + bytes.len());
                assert_eq!(piece.log, if count == 0 { "main" } else { "" });
                bytes.extend_from_slice(&piece.data);
                count += 1;
            }
            assert_eq!((count, &bytes[..]), (expected, &whole[from..]));
        }
    }
}
