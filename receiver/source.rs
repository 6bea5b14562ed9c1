//! What the publisher has to go on from: the log as it is now, and its snapshots.

use std::time::Duration;

use tonic::{
    Status,
    transport::{Channel, Endpoint},
};
use uuid::Uuid;

use super::{
    choose::{Incarnation, Listed},
    replay::{client, unreachable, within},
};
use crate::proto::{
    event::Sequence,
    limits::MAX_MESSAGE_BYTES,
    pb::{self, snapshot_service_client::SnapshotServiceClient},
    wire,
};

/// One call's own deadline.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// A connection over which snapshots are listed and carried.
#[derive(Debug, Clone)]
pub struct Source {
    channel: Channel,
    log: String,
}

/// A log at one moment.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The oldest sequence that is retained.
    pub floor: Sequence,
    /// The sequence that the next event will get.
    pub next: Sequence,
    /// Itself, and those that it was forked from.
    pub lineage: Vec<Incarnation>,
}

impl Source {
    /// Connects.
    ///
    /// # Errors
    /// UNAVAILABLE: the publisher cannot be reached.
    pub async fn connect(publisher: &Endpoint, log: &str) -> Result<Self, Status> {
        let channel = publisher.connect().await.map_err(|error| unreachable(&error))?;
        Ok(Source { channel, log: log.to_owned() })
    }

    /// The log.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// For snapshots.
    pub fn snapshots(&self) -> SnapshotServiceClient<Channel> {
        SnapshotServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
    }

    /// The log as it is now.
    ///
    /// # Errors
    /// The publisher's, or the transport's.
    pub async fn extent(&self) -> Result<Extent, Status> {
        let mut client = client(self.channel.clone());
        let request = pb::GetLogRequest { log: self.log.clone() };
        let answer = within(DEADLINE, client.get_log(request)).await?.into_inner();
        let log = answer.log.unwrap_or_default();
        let own = Uuid::parse_str(&log.log_id)
            .map_err(|_| Status::internal("the publisher names no log_id"))?;
        let ancestors = log.ancestors.iter().filter_map(|ancestor| {
            let log_id = Uuid::parse_str(&ancestor.log_id).ok()?;
            Some(Incarnation { log_id, last: ancestor.last_sequence.unwrap_or(-1) })
        });
        let own = Incarnation { log_id: own, last: Sequence::MAX };
        let lineage = std::iter::once(own).chain(ancestors).collect();
        let (floor, next) = (log.floor_sequence.unwrap_or(0), log.next_sequence.unwrap_or(0));
        Ok(Extent { floor, next, lineage })
    }

    /// The snapshots of a projection that a receiver may go on from. What makes no sense is
    /// left out.
    ///
    /// # Errors
    /// The publisher's, or the transport's.
    pub async fn list(&self, projection: &str) -> Result<Vec<Listed>, Status> {
        let (log, projection) = (self.log.clone(), projection.to_owned());
        let request = pb::ListSnapshotsRequest { log, projection };
        let answer = within(DEADLINE, self.snapshots().list_snapshots(request)).await?;
        Ok(answer.into_inner().snapshots.into_iter().filter_map(listed).collect())
    }
}

fn listed(snapshot: pb::Snapshot) -> Option<Listed> {
    Some(Listed {
        cursor: wire::cursor(snapshot.cursor.as_ref()?, "cursor").ok()??,
        projection: snapshot.projection,
        projection_version: snapshot.projection_version?,
        schema_digest: snapshot.schema_digest.to_vec(),
        size: u64::try_from(snapshot.size_bytes?).ok()?,
        sha256: snapshot.sha256.as_ref().try_into().ok()?,
    })
}
