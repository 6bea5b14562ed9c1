//! Copies the receipts of a log whose disk has failed into a new directory.

use std::path::Path;

use super::{file, format::Bad, manifest, retired};
use crate::publisher::{durable, log::OpenError};

/// Copies what one directory keeps of receipts into new files in another, durably,
/// and says how many receipts there are.
///
/// # Errors
/// [`OpenError`]: what is damaged is not copied.
pub fn copy(from: &Path, to: &Path) -> Result<u64, OpenError> {
    let mut count = retired::copy(from, to)?;
    let Some(manifest) = manifest::read(from)? else { return Ok(count) };
    let write = |path: &Path, bytes: &[u8]| {
        durable::replace(path, bytes).map_err(|error| OpenError::io("write", path, error))
    };
    for part in &manifest.parts {
        let path = file::path(from, part.first, part.generation);
        let content = file::read(&path)?;
        if !part.is(&content.header) {
            return Err(Bad::Damaged("it is not the file that was saved").at(&path));
        }
        write(&file::path(to, part.first, part.generation), &content.encode())?;
        count += part.rows;
    }
    write(&to.join(manifest::FILE), &manifest.encode())?;
    Ok(count)
}
