//! The file that says that a directory holds a log, and which one.
//!
//! ```text
//! log = "CFLGMET" version(1) log_id(16) ( log_id(16) last(i64) )* crc32c(u32, over all before it)
//! ```
//! Little-endian. Behind the log's own identity stand those that it was forked from, the
//! newest first, each with the last sequence that is the same in both. Version 1 has none of
//! them, and is written where there are none.

use std::{fs, io, path::Path};

use bytes::{Buf as _, BufMut as _};
use uuid::Uuid;

use super::super::OpenError;
use crate::{
    proto::{chain::Ancestor, event::Sequence},
    publisher::durable,
};

/// Its name.
pub const FILE: &str = "log";
const MAGIC: &[u8; 7] = b"CFLGMET";
const VERSION: u8 = 2;
const WITHOUT_ANCESTORS: u8 = 1;
/// Up to the log's own identity.
const HEAD_BYTES: usize = 24;
const ANCESTOR_BYTES: usize = 24;

/// Which log it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// This incarnation.
    pub log_id: Uuid,
    /// Those that it was forked from, the newest first.
    pub ancestors: Vec<Ancestor>,
}

impl Identity {
    /// Of a log that was forked from none.
    pub fn new(log_id: Uuid) -> Self {
        Identity { log_id, ancestors: Vec::new() }
    }

    /// Whether an identity is this log's, or was.
    pub fn covers(&self, log_id: Uuid) -> bool {
        self.log_id == log_id || self.ancestors.iter().any(|ancestor| ancestor.log_id == log_id)
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.put_u8(if self.ancestors.is_empty() { WITHOUT_ANCESTORS } else { VERSION });
        out.put_slice(self.log_id.as_bytes());
        for Ancestor { log_id, last } in &self.ancestors {
            out.put_slice(log_id.as_bytes());
            out.put_i64_le(*last);
        }
        let sum = crc32c::crc32c(&out);
        out.put_u32_le(sum);
        out
    }
}

/// The log's identity; None where there is no log yet.
///
/// # Errors
/// [`OpenError`].
pub fn read(dir: &Path) -> Result<Option<Identity>, OpenError> {
    let path = dir.join(FILE);
    let content = match fs::read(&path) {
        Ok(content) => content,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(OpenError::io("read", &path, error)),
    };
    let damaged = || OpenError::Damaged {
        path: path.display().to_string(),
        what: "it does not name a log".to_owned(),
    };
    let rest = content.strip_prefix(MAGIC).ok_or_else(damaged)?;
    if let Some(&version) = rest.first()
        && version > VERSION
    {
        return Err(OpenError::Format(format!(
            "{} has format {version}; this version reads up to {VERSION}",
            path.display()
        )));
    }
    decode(&content).map(Some).ok_or_else(damaged)
}

fn decode(content: &[u8]) -> Option<Identity> {
    let (covered, sum) = content.split_last_chunk::<4>()?;
    if covered.len() < HEAD_BYTES || crc32c::crc32c(covered).to_le_bytes() != *sum {
        return None;
    }
    let (head, rest) = covered.split_at(HEAD_BYTES);
    let (ancestors, []) = rest.as_chunks::<ANCESTOR_BYTES>() else { return None };
    let stated = if ancestors.is_empty() { WITHOUT_ANCESTORS } else { VERSION };
    let ancestor = |bytes: &[u8; ANCESTOR_BYTES]| {
        let (log_id, mut last) = bytes.split_at(16);
        Some(Ancestor { log_id: Uuid::from_slice(log_id).ok()?, last: last.get_i64_le() })
    };
    Some(Identity {
        log_id: Uuid::from_slice(&head[8..]).ok().filter(|_| head[7] == stated)?,
        ancestors: ancestors.iter().map(ancestor).collect::<Option<_>>()?,
    })
}

/// Writes it, durably.
///
/// # Errors
/// [`OpenError`].
pub fn write(dir: &Path, identity: &Identity) -> Result<(), OpenError> {
    let path = dir.join(FILE);
    durable::replace(&path, &identity.encode())
        .map_err(|error| OpenError::io("create", &path, error))?;
    Ok(())
}

/// Makes a log another incarnation, which goes on from the present one: both are the same
/// up to `last`. Durable.
///
/// # Errors
/// [`OpenError`], also where there is no log.
pub fn succeed(dir: &Path, log_id: Uuid, last: Sequence) -> Result<(), OpenError> {
    let present = read(dir)?.ok_or_else(|| OpenError::Damaged {
        path: dir.display().to_string(),
        what: format!("it has no file {FILE:?}"),
    })?;
    let parent = Ancestor { log_id: present.log_id, last };
    let ancestors = [vec![parent], present.ancestors].concat();
    write(dir, &Identity { log_id, ancestors })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_names_all_that_came_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let id = Uuid::from_u128;
        assert!(succeed(dir.path(), id(2), 4).is_err(), "there is no log");
        write(dir.path(), &Identity::new(id(1))).expect("written");
        succeed(dir.path(), id(2), 4).expect("forked");
        succeed(dir.path(), id(3), 9).expect("forked");
        let identity = read(dir.path()).expect("readable").expect("a log");
        let told: Vec<_> = identity.ancestors.iter().map(|a| (a.log_id, a.last)).collect();
        assert_eq!((identity.log_id, told), (id(3), vec![(id(2), 9), (id(1), 4)]));
        assert!((1..4).all(|n| identity.covers(id(n))) && !identity.covers(id(4)));
    }

    #[test]
    fn an_identity_comes_back_and_every_flipped_bit_or_missing_byte_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()).expect("readable"), None);
        let ancestor = |n, last| Ancestor { log_id: Uuid::from_u128(n), last };
        let plain = Identity::new(Uuid::from_u128(0x1234));
        let forked =
            Identity { ancestors: vec![ancestor(7, 30), ancestor(8, -1)], ..plain.clone() };
        for (identity, bytes) in [(plain, 28), (forked, 76)] {
            write(dir.path(), &identity).expect("written");
            assert_eq!(read(dir.path()).expect("readable").as_ref(), Some(&identity));
            let content = fs::read(dir.path().join(FILE)).expect("read");
            assert_eq!(content.len(), bytes);
            for bit in 0..content.len() * 8 {
                let mut flipped = content.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(dir.path().join(FILE), flipped).expect("written");
                assert!(read(dir.path()).is_err(), "bit {bit}");
            }
            for length in 0..content.len() {
                fs::write(dir.path().join(FILE), &content[..length]).expect("written");
                assert!(read(dir.path()).is_err(), "{length} bytes");
            }
        }
    }
}
