//! Reads all that is kept of receipts: a start reads no more than it needs.

use std::path::Path;

use super::{file, manifest};
use crate::publisher::log::OpenError;

/// Reads every receipt that stands in a file. How many those are.
///
/// # Errors
/// [`OpenError`]: the first file that is missing or damaged.
pub fn check(dir: &Path) -> Result<u64, OpenError> {
    let Some(manifest) = manifest::read(dir)? else { return Ok(0) };
    let mut receipts = 0;
    for part in &manifest.parts {
        let path = file::path(dir, part.first, part.generation);
        let header = file::read(&path)?.header;
        file::is_saved(&path, &header, part, &manifest)?;
        receipts += header.rows;
    }
    Ok(receipts)
}
