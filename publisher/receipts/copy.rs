//! Copies the receipts of a log whose disk has failed into a new directory.

use std::path::{Path, PathBuf};

use super::{file, manifest, retired};
use crate::publisher::{durable, log::OpenError};

/// What has been copied.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    /// Receipts in files.
    pub receipts: u64,
    /// What is damaged. It is not in the copy, which is therefore refused until the
    /// receipts have been rebuilt.
    pub left_out: Vec<PathBuf>,
}

/// Copies what one directory keeps of receipts into new files in another, durably:
/// all that is whole.
///
/// # Errors
/// [`OpenError`]; damaged files of format 1, which nothing could rebuild, are one.
pub fn copy(from: &Path, to: &Path) -> Result<Copied, OpenError> {
    let mut copied = Copied { receipts: retired::copy(from, to)?, left_out: Vec::new() };
    let write = |path: &Path, bytes: &[u8]| {
        let target = to.join(path.file_name().unwrap_or_default());
        durable::replace(&target, bytes)
            .map(drop)
            .map_err(|error| OpenError::io("write", &target, error))
    };
    for found in file::list(from)? {
        match file::read(&found.path) {
            Ok(content) => {
                write(&found.path, &content.encode())?;
                copied.receipts += content.header.rows;
            }
            Err(error @ OpenError::Io { .. }) => return Err(error),
            Err(_) => copied.left_out.push(found.path),
        }
    }
    match manifest::read(from) {
        Ok(None) => {}
        Ok(Some(manifest)) => write(&from.join(manifest::FILE), &manifest.encode())?,
        Err(error @ OpenError::Io { .. }) => return Err(error),
        Err(_) => copied.left_out.push(from.join(manifest::FILE)),
    }
    Ok(copied)
}
