//! Copies the receipts of a log whose disk has failed into a new directory.

use std::path::{Path, PathBuf};

use super::{file, format::Content, manifest, retired};
use crate::publisher::{durable, log::OpenError};

/// What has been copied.
#[derive(Debug, PartialEq, Eq)]
pub struct Copied {
    /// Receipts in files.
    pub receipts: u64,
    /// Files with some damaged receipts. They are copied as they are: who asks for one
    /// of those is told.
    pub damaged: Vec<PathBuf>,
    /// What cannot be used. It is not in the copy, which is therefore refused until the
    /// receipts have been rebuilt.
    pub left_out: Vec<PathBuf>,
}

/// Copies what one directory keeps of receipts into new files in another, durably:
/// all that can be used.
///
/// # Errors
/// [`OpenError`]; damaged files of format 1, which nothing could rebuild, are one.
pub fn copy(from: &Path, to: &Path) -> Result<Copied, OpenError> {
    let mut copied =
        Copied { receipts: retired::copy(from, to)?, damaged: Vec::new(), left_out: Vec::new() };
    let write = |path: &Path, bytes: &[u8]| {
        let target = to.join(path.file_name().unwrap_or_default());
        durable::replace(&target, bytes)
            .map(drop)
            .map_err(|error| OpenError::io("write", &target, error))
    };
    for found in file::list(from)? {
        let salvaged = file::bytes(&found.path).map(|bytes| (Content::salvage(&bytes), bytes));
        match salvaged {
            Ok((Ok((content, damaged)), bytes)) => {
                write(&found.path, &bytes)?;
                copied.receipts += content.header.rows;
                if !damaged.is_empty() {
                    copied.damaged.push(found.path);
                }
            }
            Err(error @ OpenError::Io { .. }) => return Err(error),
            Ok((Err(_), _)) | Err(_) => copied.left_out.push(found.path),
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
