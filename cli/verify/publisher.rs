//! The publisher's end: what it says of its log, the events themselves, and snapshots.

use std::{fs::File, io::Write as _, ops::RangeInclusive, path::Path, time::Duration};

use counterfoil::{
    proto::{
        chain::Cursor,
        event::{Sequence, hex},
        pb::{
            self, DownloadSnapshotRequest, GetLogRequest, ListSnapshotsRequest, Log, ReplayRequest,
            Snapshot, StartAt, download_snapshot_response::Part, replay_request::Start,
            snapshot_service_client::SnapshotServiceClient,
        },
        refusal::{Reason, reason_of},
        served::publisher_service_client::PublisherServiceClient,
        stored::{Frame, ReplayResponse},
        wire,
    },
    receiver::projection::Projection,
};
use sha2::{Digest as _, Sha256};
use tonic::{Code, Status, Streaming, transport::Channel};
use uuid::Uuid;

use super::{Stop, check::Batch, report::Difference};
use crate::{arguments::Source, failure::Failure, link};

/// Without a frame for so long, heartbeats included, the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(45);

/// A publisher, and which of its logs.
pub struct Publisher {
    url: String,
    log: String,
    events: PublisherServiceClient<Channel>,
    snapshots: SnapshotServiceClient<Channel>,
}

impl Publisher {
    /// Connects with the first call.
    ///
    /// # Errors
    /// [`Failure::Usage`] for text that is no URL.
    pub fn at(source: &Source) -> Result<Self, Failure> {
        Ok(Publisher {
            url: source.publisher.clone(),
            log: source.log.clone(),
            events: link::stored_events(&source.publisher)?,
            snapshots: link::snapshots(&source.publisher)?,
        })
    }

    fn failed(&self, status: &Status) -> Failure {
        Failure::call(&self.url, status)
    }

    /// GetLog.
    pub async fn log(&mut self) -> Result<Log, Failure> {
        let request = link::call(GetLogRequest { log: self.log.clone() });
        let answer = self.events.get_log(request).await.map_err(|status| self.failed(&status))?;
        let log = answer.into_inner().log;
        log.ok_or_else(|| Failure::Runtime(format!("{}: no log in the answer", self.url)))
    }

    /// All retained events up to a cursor, from the oldest on.
    pub async fn walk(&mut self, until: Option<&Cursor>) -> Result<Walk, Failure> {
        let request = ReplayRequest {
            log: self.log.clone(),
            start: Some(Start::StartAt(StartAt::Oldest.into())),
            ..Default::default()
        };
        let opened = self.events.replay(request).await;
        let mut frames = opened.map_err(|status| self.failed(&status))?.into_inner();
        let first = heard(&mut frames).await.map_err(|status| self.failed(&status))?;
        let start = match first.and_then(|first| first.frame) {
            Some(Frame::Started(started)) => start(&started),
            _ => None,
        };
        let start = start.ok_or_else(|| {
            Failure::Runtime(format!("{}: the Replay does not begin as it should", self.url))
        })?;
        let last = until.map_or(-1, |cursor| cursor.sequence);
        Ok(Walk { url: self.url.clone(), frames, start, at: start.sequence, last })
    }

    /// The oldest snapshot of a projection within a range of sequences.
    pub async fn oldest_snapshot(
        &mut self,
        projection: &dyn Projection,
        reach: RangeInclusive<Sequence>,
    ) -> Result<Option<Snapshot>, Failure> {
        let request = ListSnapshotsRequest {
            log: self.log.clone(),
            projection: projection.name().to_owned(),
        };
        let listed = match self.snapshots.list_snapshots(link::call(request)).await {
            Ok(answer) => answer.into_inner().snapshots,
            // A publisher of before there were any.
            Err(status) if status.code() == Code::Unimplemented => Vec::new(),
            Err(status) => return Err(self.failed(&status)),
        };
        let sequence = |snapshot: &Snapshot| snapshot.cursor.as_ref().and_then(|at| at.sequence);
        let fits = |snapshot: &Snapshot| {
            snapshot.projection_version == Some(projection.version())
                && sequence(snapshot).is_some_and(|at| reach.contains(&at))
        };
        Ok(listed.into_iter().filter(fits).min_by_key(sequence))
    }

    /// Brings a snapshot into a file.
    pub async fn download(&mut self, snapshot: &Snapshot, into: &Path) -> Result<(), Failure> {
        let disk = |error: std::io::Error| Failure::Runtime(format!("{}: {error}", into.display()));
        let name = hex(&snapshot.sha256);
        let torn = || Failure::Runtime(format!("snapshot {name} did not come whole; try again"));
        let request = DownloadSnapshotRequest {
            log: self.log.clone(),
            sha256: snapshot.sha256.clone(),
            offset: 0,
        };
        let opened = self.snapshots.download_snapshot(request).await;
        let mut parts = opened.map_err(|status| self.failed(&status))?.into_inner();
        let (mut file, mut hash) = (File::create(into).map_err(disk)?, Sha256::new());
        loop {
            match heard(&mut parts).await.map_err(|status| self.failed(&status))? {
                None => return Err(torn()),
                Some(answer) => match answer.part {
                    Some(Part::Chunk(chunk)) => {
                        hash.update(&chunk.data);
                        file.write_all(&chunk.data).map_err(disk)?;
                    }
                    Some(Part::End(_)) => break,
                    None => {}
                },
            }
        }
        if hash.finalize()[..] == snapshot.sha256[..] { Ok(()) } else { Err(torn()) }
    }
}

/// The next message; none: the stream has ended.
async fn heard<T>(stream: &mut Streaming<T>) -> Result<Option<T>, Status> {
    tokio::time::timeout(SILENCE, stream.message())
        .await
        .unwrap_or_else(|_| Err(Status::unavailable(format!("nothing was heard for {SILENCE:?}"))))
}

/// Where a Replay starts. The cursor before the first event proves nothing by itself.
fn start(started: &pb::ReplayStarted) -> Option<Cursor> {
    let log_id = Uuid::parse_str(&started.log_id).ok()?;
    let cursor = wire::cursor(&started.cursor.clone().unwrap_or_default(), "cursor").ok()?;
    Some(cursor.unwrap_or_else(|| Cursor::beginning(log_id)))
}

/// A Replay up to the file's cursor.
pub struct Walk {
    url: String,
    frames: Streaming<ReplayResponse>,
    start: Cursor,
    /// The last event read.
    at: Sequence,
    /// The last one wanted.
    last: Sequence,
}

impl Walk {
    /// What the publisher says comes before the first event.
    pub fn start(&self) -> Cursor {
        self.start
    }

    /// Events to come.
    pub fn length(&self) -> u64 {
        u64::try_from(self.last - self.start.sequence).unwrap_or(0)
    }

    /// The next events, with their content checked against their fingerprints; none: all
    /// up to the file's cursor have come.
    pub async fn next(&mut self) -> Result<Option<Batch>, Stop> {
        while self.at < self.last {
            let frame = heard(&mut self.frames).await.map_err(|status| self.broken(&status))?;
            let Some(frame) = frame else {
                let (expected, found) = (format!("an event {}", self.last), self.at + 1);
                let found = format!("that the log ends before {found}");
                return Err(Difference::new("the publisher's log", expected, found).into());
            };
            let Some(Frame::Batch(batch)) = frame.frame else { continue };
            let events =
                batch.events.into_iter().map(wire::replayed).collect::<Result<Vec<_>, _>>();
            let mut events = events.map_err(|refusal| self.broken(&refusal.into()))?;
            let stated = wire::cursor(&batch.cursor.unwrap_or_default(), "cursor");
            let stated = stated.map_err(|refusal| self.broken(&refusal.into()))?;
            self.at = events.last().map_or(self.at, |event| event.sequence);
            // What was published since is none of this moment's.
            let beyond = events.iter().any(|event| event.sequence > self.last);
            events.retain(|event| event.sequence <= self.last);
            return Ok(Some(Batch { events, stated: stated.filter(|_| !beyond) }));
        }
        Ok(None)
    }

    fn broken(&self, status: &Status) -> Stop {
        let after = format!("the publisher's log, after sequence {}", self.at);
        match reason_of(status) {
            Some(Reason::Corrupt) => {
                Difference::new(after, "events as they were accepted", status.message()).into()
            }
            Some(Reason::CursorExpired) => Failure::Runtime(format!(
                "the publisher has dropped events while they were read, after sequence {}; run this \
                 again",
                self.at
            ))
            .into(),
            _ => Failure::call(&self.url, status).into(),
        }
    }
}

/// The file follows this incarnation, or had come no further in an ancestor than both have
/// in common.
pub fn same_lineage(cursor: &Cursor, log: &Log) -> Result<(), Difference> {
    let ours = cursor.log_id.to_string();
    let ancestor = log.ancestors.iter().find(|ancestor| ancestor.log_id == ours);
    let common = ancestor.and_then(|ancestor| ancestor.last_sequence).unwrap_or(-1);
    if log.log_id == ours || cursor.sequence <= common {
        return Ok(());
    }
    let found = match ancestor {
        None => format!("log {ours}"),
        Some(_) => {
            format!(
                "log {ours} at sequence {}; both have in common up to {common}",
                cursor.sequence
            )
        }
    };
    Err(Difference::new("the file's cursor", format!("log {}", log.log_id), found))
}

/// The publisher's log has come as far as the file.
pub fn not_ahead(cursor: &Cursor, log: &Log) -> Result<(), Difference> {
    let next = log.next_sequence.unwrap_or(0);
    if cursor.sequence < next {
        return Ok(());
    }
    let expected = format!("a sequence below {next}, where the publisher's log ends");
    Err(Difference::new("the file's cursor", expected, cursor.sequence))
}

#[cfg(test)]
mod tests {
    use counterfoil::proto::{chain::EMPTY_CHAIN, pb::Ancestor};

    use super::*;

    #[test]
    fn only_what_both_have_in_common_is_of_an_ancestor() {
        let id = |n| Uuid::from_u128(n);
        let ancestor = |n, last| Ancestor { log_id: id(n).to_string(), last_sequence: Some(last) };
        let log = Log {
            log_id: id(3).to_string(),
            next_sequence: Some(20),
            ancestors: vec![ancestor(2, 9), ancestor(1, 4)],
            ..Default::default()
        };
        let cases = [
            (3, 19, true),
            (2, 9, true),
            (2, 10, false),
            (1, 4, true),
            (1, 5, false),
            (7, 0, false),
        ];
        for (log_id, sequence, same) in cases {
            let cursor = Cursor { log_id: id(log_id), sequence, chain: EMPTY_CHAIN };
            assert_eq!(same_lineage(&cursor, &log).is_ok(), same, "{log_id} at {sequence}");
            assert!(not_ahead(&cursor, &log).is_ok());
        }
        let ahead = Cursor { log_id: id(3), sequence: 20, chain: EMPTY_CHAIN };
        let said = not_ahead(&ahead, &log).expect_err("it has no event 20").to_string();
        assert_eq!(
            said,
            "the file's cursor: expected a sequence below 20, where the publisher's log ends, found 20"
        );
    }
}
