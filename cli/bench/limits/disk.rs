//! A file that grows at its end and is synced after each write.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    time::{Duration, Instant},
};

use crate::failure::Failure;

/// In the working directory.
const NAME: &str = "appended";

/// Appends so many bytes at a time, which stand for so many events, and syncs
/// after each; returns the events within how much time.
///
/// # Errors
/// [`Failure::Runtime`] when the disk fails.
pub fn appended(bytes: usize, events: u64, turn: Duration) -> Result<(u64, Duration), Failure> {
    let through = append(&vec![7; bytes], events, turn)
        .map_err(|error| Failure::Runtime(format!("{NAME}: {error}")))?;
    Ok(through)
}

fn append(block: &[u8], events: u64, turn: Duration) -> io::Result<(u64, Duration)> {
    let mut file = File::create(NAME)?;
    let (started, mut through) = (Instant::now(), 0);
    while started.elapsed() < turn {
        file.write_all(block)?;
        file.sync_data()?;
        through += events;
    }
    let elapsed = started.elapsed();
    fs::remove_file(NAME)?;
    Ok((through, elapsed))
}
