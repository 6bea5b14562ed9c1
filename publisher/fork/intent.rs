//! What a fork is going to do, written down before it does anything.
//!
//! ```text
//! forking = one frame of a journal: log_id(16) parent(16) last(i64) from(i64) at_ms(i64)
//! ```
//! Little-endian. While the file stands, the fork is not complete.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::{Buf as _, BufMut as _};
use uuid::Uuid;

use crate::{
    proto::event::Sequence,
    publisher::{durable, journal::Format, log::OpenError},
};

const FILE: &str = "forking";
const FORMAT: Format = Format { magic: *b"CFFORKI", version: 1, mark: *b"CFfk", what: "forks" };

/// What a fork is going to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// The new incarnation.
    pub log_id: Uuid,
    /// The present one.
    pub parent: Uuid,
    /// The last sequence that is the same in both; -1: none.
    pub last: Sequence,
    /// Number of the first new event. Invariant: `last < from`.
    pub from: Sequence,
    /// When it was decided, milliseconds since the Unix epoch.
    pub at_ms: i64,
}

/// Where it stands.
pub fn path(log_dir: &Path) -> PathBuf {
    log_dir.join(FILE)
}

/// Copies what stands in one directory to another, durably.
///
/// # Errors
/// [`OpenError`].
pub fn copy(from: &Path, to: &Path) -> Result<(), OpenError> {
    Intent::read(from)?.map_or(Ok(()), |intent| intent.write(to))
}

/// Reads what stands in a log's directory, and changes nothing.
///
/// # Errors
/// [`OpenError`].
pub fn check(log_dir: &Path) -> Result<(), OpenError> {
    Intent::read(log_dir).map(drop)
}

impl Intent {
    /// That of a log's directory; None: no fork has begun, or all are complete.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn read(log_dir: &Path) -> Result<Option<Self>, OpenError> {
        let path = path(log_dir);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let mut intent = None;
        FORMAT.read(&path, &content[..], |_, body| {
            intent = Some(decode(body)?);
            Some(())
        })?;
        let what = "it does not say what the fork is going to do".to_owned();
        let damaged = OpenError::Damaged { path: path.display().to_string(), what };
        intent.map(Some).ok_or(damaged)
    }

    /// Puts it into a log's directory, durably.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn write(&self, log_dir: &Path) -> Result<(), OpenError> {
        let mut content = FORMAT.header();
        FORMAT.frame(&mut content, |out| {
            out.put_slice(self.log_id.as_bytes());
            out.put_slice(self.parent.as_bytes());
            out.put_i64_le(self.last);
            out.put_i64_le(self.from);
            out.put_i64_le(self.at_ms);
        });
        let path = path(log_dir);
        durable::replace(&path, &content)
            .map(drop)
            .map_err(|error| OpenError::io("write", &path, error))
    }

    /// Takes it away, durably: the fork is complete.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn remove(log_dir: &Path) -> Result<(), OpenError> {
        let path = path(log_dir);
        fs::remove_file(&path)
            .and_then(|()| durable::sync_dir(log_dir))
            .map_err(|error| OpenError::io("remove", &path, error))
    }
}

fn decode(mut body: &[u8]) -> Option<Intent> {
    let mut id = || {
        let mut id = [0; 16];
        body.try_copy_to_slice(&mut id).ok()?;
        Some(Uuid::from_bytes(id))
    };
    let (log_id, parent) = (id()?, id()?);
    let intent = Intent {
        log_id,
        parent,
        last: body.try_get_i64_le().ok()?,
        from: body.try_get_i64_le().ok()?,
        at_ms: body.try_get_i64_le().ok()?,
    };
    (body.is_empty() && (-1..intent.from).contains(&intent.last)).then_some(intent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_comes_back_until_it_is_removed_and_damage_is_noticed() {
        let dir = durable::scratch();
        assert_eq!(Intent::read(dir.path()).expect("readable"), None);
        let (log_id, parent) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let intent = Intent { log_id, parent, last: 4, from: 9, at_ms: 7 };
        intent.write(dir.path()).expect("written");
        assert_eq!(Intent::read(dir.path()).expect("readable"), Some(intent.clone()));
        let other = durable::scratch();
        copy(dir.path(), other.path()).expect("copied");
        assert_eq!(Intent::read(other.path()).expect("readable"), Some(intent));
        let content = fs::read(path(dir.path())).expect("read");
        for at in 0..content.len() {
            fs::write(path(dir.path()), &content[..at]).expect("written");
            assert!(Intent::read(dir.path()).is_err(), "{at} bytes");
        }
        Intent::remove(dir.path()).expect("removed");
        assert_eq!(Intent::read(dir.path()).expect("readable"), None);
    }
}
