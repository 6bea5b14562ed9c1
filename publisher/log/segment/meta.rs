//! The file that says that a directory holds a log, and which one.
//!
//! `log` = "CFLGMET" version(1) log_id(16) crc32c(u32, little-endian)

use std::{fs, io, path::Path};

use uuid::Uuid;

use super::super::OpenError;
use crate::publisher::durable;

/// Its name.
pub const FILE: &str = "log";
const MAGIC: &[u8; 7] = b"CFLGMET";
const VERSION: u8 = 1;
const BYTES: usize = 28;

/// The log's identity; None where there is no log yet.
///
/// # Errors
/// [`OpenError`].
pub fn read(dir: &Path) -> Result<Option<Uuid>, OpenError> {
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
    let covered =
        content.get(..BYTES - 4).filter(|_| content.len() == BYTES).ok_or_else(damaged)?;
    if crc32c::crc32c(covered).to_le_bytes() != content[BYTES - 4..] || covered[7] != VERSION {
        return Err(damaged());
    }
    Uuid::from_slice(&covered[8..]).map(Some).map_err(|_| damaged())
}

/// Writes it, durably.
///
/// # Errors
/// [`OpenError`].
pub fn write(dir: &Path, log_id: Uuid) -> Result<(), OpenError> {
    let mut content = [MAGIC, &[VERSION][..], log_id.as_bytes()].concat();
    content.extend(crc32c::crc32c(&content).to_le_bytes());
    let path = dir.join(FILE);
    durable::replace(&path, &content).map_err(|error| OpenError::io("create", &path, error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_comes_back_and_every_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(read(dir.path()).expect("readable"), None);
        let log_id = Uuid::from_u128(0x1234);
        write(dir.path(), log_id).expect("written");
        assert_eq!(read(dir.path()).expect("readable"), Some(log_id));
        let content = fs::read(dir.path().join(FILE)).expect("read");
        assert_eq!(content.len(), BYTES);
        for bit in 0..content.len() * 8 {
            let mut flipped = content.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            fs::write(dir.path().join(FILE), flipped).expect("written");
            assert!(read(dir.path()).is_err(), "bit {bit}");
        }
    }
}
