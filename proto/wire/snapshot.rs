//! Snapshots between their messages and their checked types.

use bytes::Bytes;

use super::{checked_time, cursor, cursor_message, log_name, name, timestamp};
use crate::proto::{
    pb,
    refusal::Refusal,
    snapshot::{Snapshot, SnapshotId},
};

/// A snapshot as it is announced. `field` is its path in the message.
///
/// # Errors
/// INVALID_FIELD.
pub fn checked(message: pb::Snapshot, field: &str) -> Result<Snapshot, Refusal> {
    let at = |name: &str| format!("{field}.{name}");
    let log = log_name(&message.log)?.to_owned();
    let cursor = cursor(&message.cursor.unwrap_or_default(), &at("cursor"))?.ok_or_else(|| {
        let wrong = "is missing or -1; a snapshot holds at least one event";
        Refusal::field(at("cursor.sequence"), wrong)
    })?;
    name(&message.projection, &at("projection"))?;
    let projection_version = message
        .projection_version
        .ok_or_else(|| Refusal::field(at("projection_version"), "is missing"))?;
    let schema_digest = digest(&message.schema_digest, &at("schema_digest"))?;
    let size_bytes = match message.size_bytes {
        Some(size @ 1..) => size as u64,
        other => {
            let size = other.unwrap_or(0);
            let wrong = format!("is {size}; it must be 1 or more");
            return Err(Refusal::field(at("size_bytes"), wrong));
        }
    };
    let id = id(&message.sha256, &at("sha256"))?;
    name(&message.receiver, &at("receiver"))?;
    let create_time =
        message.create_time.map(|time| checked_time(time, &at("create_time"))).transpose()?;
    Ok(Snapshot {
        log,
        cursor,
        projection: message.projection,
        projection_version,
        schema_digest,
        size_bytes,
        id,
        receiver: message.receiver,
        create_time,
    })
}

/// The same as a message.
pub fn message(snapshot: &Snapshot) -> pb::Snapshot {
    pb::Snapshot {
        log: snapshot.log.clone(),
        cursor: Some(cursor_message(&snapshot.cursor)),
        projection: snapshot.projection.clone(),
        projection_version: Some(snapshot.projection_version),
        schema_digest: Bytes::copy_from_slice(&snapshot.schema_digest),
        // A size that was announced as a positive i64.
        size_bytes: Some(i64::try_from(snapshot.size_bytes).unwrap_or(i64::MAX)),
        sha256: Bytes::copy_from_slice(&snapshot.id.0),
        receiver: snapshot.receiver.clone(),
        create_time: snapshot.create_time.map(timestamp),
    }
}

/// The name of a snapshot as requests carry it.
///
/// # Errors
/// INVALID_FIELD.
pub fn id(bytes: &[u8], field: &str) -> Result<SnapshotId, Refusal> {
    digest(bytes, field).map(SnapshotId)
}

/// A place in a snapshot as requests carry it.
///
/// # Errors
/// INVALID_FIELD.
pub fn offset(offset: i64, field: &str) -> Result<u64, Refusal> {
    u64::try_from(offset)
        .map_err(|_| Refusal::field(field, format!("is {offset}; it must be 0 or more")))
}

fn digest(bytes: &[u8], field: &str) -> Result<[u8; 32], Refusal> {
    bytes
        .try_into()
        .map_err(|_| Refusal::field(field, format!("has {} bytes, a SHA-256 has 32", bytes.len())))
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::proto::{chain::Cursor, refusal::Reason};

    fn whole() -> Snapshot {
        Snapshot {
            log: "main".into(),
            cursor: Cursor { log_id: Uuid::from_u128(7), sequence: 0, chain: [1; 32] },
            projection: "inventory".into(),
            projection_version: 1,
            schema_digest: [2; 32],
            size_bytes: 4096,
            id: SnapshotId([3; 32]),
            receiver: "shop".into(),
            create_time: None,
        }
    }

    #[test]
    fn a_snapshot_comes_back_from_its_message() {
        assert_eq!(checked(message(&whole()), "snapshot"), Ok(whole()));
        let unnamed = pb::Snapshot { log: String::new(), ..message(&whole()) };
        assert_eq!(checked(unnamed, "snapshot"), Ok(whole()), "an empty log is main");
    }

    #[test]
    fn what_is_wrong_is_named() {
        let whole = || message(&whole());
        let beginning = Cursor::beginning(Uuid::from_u128(7));
        let short = Bytes::from_static(&[1; 31]);
        let cases = [
            ("log", pb::Snapshot { log: "a b".into(), ..whole() }),
            ("snapshot.cursor.sequence", pb::Snapshot { cursor: None, ..whole() }),
            (
                "snapshot.cursor.sequence",
                pb::Snapshot { cursor: Some(cursor_message(&beginning)), ..whole() },
            ),
            ("snapshot.projection", pb::Snapshot { projection: String::new(), ..whole() }),
            ("snapshot.projection_version", pb::Snapshot { projection_version: None, ..whole() }),
            ("snapshot.schema_digest", pb::Snapshot { schema_digest: Bytes::new(), ..whole() }),
            ("snapshot.size_bytes", pb::Snapshot { size_bytes: None, ..whole() }),
            ("snapshot.size_bytes", pb::Snapshot { size_bytes: Some(0), ..whole() }),
            ("snapshot.size_bytes", pb::Snapshot { size_bytes: Some(-1), ..whole() }),
            ("snapshot.sha256", pb::Snapshot { sha256: short, ..whole() }),
            ("snapshot.receiver", pb::Snapshot { receiver: "../x".into(), ..whole() }),
        ];
        for (field, wrong) in cases {
            let refusal = checked(wrong, "snapshot").expect_err(field);
            assert_eq!(refusal.reason, Reason::InvalidField);
            assert_eq!(refusal.fields[0].0, field);
        }
    }
}
