//! The running hash of a log, and the cursor that proves a place in it. Pure.

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::event::{Fingerprint, Sequence};

/// Running hash: two histories with equal chain at a sequence are equal up to it.
pub type Chain = [u8; 32];

/// The chain before the first event, at sequence -1.
pub const EMPTY_CHAIN: Chain = [0; 32];

/// `SHA-256(chain(n-1) ‖ be64(n) ‖ fingerprint(n) ‖ be32(len key) ‖ key)`.
pub fn link(
    before: &Chain,
    sequence: Sequence,
    fingerprint: &Fingerprint,
    key: impl AsRef<[u8]>,
) -> Chain {
    let key = key.as_ref();
    // All that has a fixed size, in one piece.
    let mut head = [0; 32 + 8 + 32 + 4];
    head[..32].copy_from_slice(before);
    head[32..40].copy_from_slice(&sequence.to_be_bytes());
    head[40..72].copy_from_slice(fingerprint);
    head[72..].copy_from_slice(&(key.len() as u32).to_be_bytes());
    Sha256::new().chain_update(head).chain_update(key).finalize().into()
}

/// What has been applied of a log: everything up to and including `sequence`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    /// The incarnation of the log.
    pub log_id: Uuid,
    /// The last event applied; -1: none.
    pub sequence: Sequence,
    /// The chain at `sequence`.
    pub chain: Chain,
}

/// An incarnation that another one goes on from: the same history up to `last`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ancestor {
    /// The incarnation.
    pub log_id: Uuid,
    /// The last sequence that is the same in both; -1: none.
    pub last: Sequence,
}

impl Cursor {
    /// Nothing applied yet.
    pub fn beginning(log_id: Uuid) -> Self {
        Cursor { log_id, sequence: -1, chain: EMPTY_CHAIN }
    }

    /// The cursor after one more event. The caller has checked that the event
    /// follows: its sequence is `self.sequence + 1`.
    pub fn advance(&self, fingerprint: &Fingerprint, key: &str) -> Self {
        let sequence = self.sequence + 1;
        Cursor { chain: link(&self.chain, sequence, fingerprint, key), sequence, ..*self }
    }
}
