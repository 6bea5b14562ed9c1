//! Whether what was rebuilt can be put in the live one's place on this disk. Told before it is
//! tried: a try that fails fills the disk for everybody.

use std::{io, path::Path};

/// What the write-ahead log has for each page beside it.
const FRAME_HEADER: u64 = 24;

/// How many bytes are missing on the disk of a database whose pages are all to be written to
/// its write-ahead log; none: they fit.
pub fn missing(db: &Path, pages: u64, page_size: u64) -> io::Result<Option<u64>> {
    let disk = rustix::fs::statvfs(db)?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    Ok(beyond(free, needed(pages, page_size)))
}

fn needed(pages: u64, page_size: u64) -> u64 {
    pages.saturating_mul(page_size + FRAME_HEADER)
}

fn beyond(free: u64, needed: u64) -> Option<u64> {
    needed.checked_sub(free).filter(|missing| *missing > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_told_to_the_byte() {
        let needed = needed(10, 4_096);
        assert_eq!(needed, 41_200);
        let cases = [(0, Some(41_200)), (41_199, Some(1)), (41_200, None), (u64::MAX, None)];
        for (free, missing) in cases {
            assert_eq!(beyond(free, needed), missing, "{free} are free");
        }
    }
}
