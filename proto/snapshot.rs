//! A copy of a receiver's database, as publisher and receiver speak of it. Pure.

use std::fmt;

use super::{
    chain::Cursor,
    event::{Time, hex},
};

/// SHA-256 of a snapshot's bytes: its name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub [u8; 32]);

impl SnapshotId {
    /// Back from what [`fmt::Display`] writes; none for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        if text.len() != 64 || !text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut id = [0; 32];
        for (byte, at) in id.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        }
        Some(SnapshotId(id))
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is known of a snapshot beside its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Name of the log that it was filled from.
    pub log: String,
    /// Everything up to here is in it, and nothing else; never before the first event.
    pub cursor: Cursor,
    /// The projection's name.
    pub projection: String,
    /// The projection's version.
    pub projection_version: i64,
    /// SHA-256 of the tables that the receiver and its projection declare.
    pub schema_digest: [u8; 32],
    /// Its size in bytes; at least 1.
    pub size_bytes: u64,
    /// SHA-256 of its bytes.
    pub id: SnapshotId,
    /// The receiver that made it.
    pub receiver: String,
    /// When, by the receiver's clock.
    pub create_time: Option<Time>,
}

impl Snapshot {
    /// Whether both were made by the same projection: one takes the other's place.
    pub fn same_projection(&self, other: &Snapshot) -> bool {
        self.projection == other.projection && self.projection_version == other.projection_version
    }

    /// The greater, the newer: by how far it reaches, then by when it was made.
    pub fn age_order(&self) -> impl Ord + use<> {
        (self.cursor.sequence, self.create_time.map(Time::unix_millis), self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_64_lower_case_digits_and_nothing_else() {
        let id = SnapshotId(std::array::from_fn(|n| n as u8 * 7));
        assert_eq!(SnapshotId::from_hex(&id.to_string()), Some(id));
        let text = id.to_string();
        for other in ["", &text[1..], &text.to_uppercase(), &format!("{text}0"), &"+f".repeat(32)] {
            assert_eq!(SnapshotId::from_hex(other), None, "{other}");
        }
    }
}
