//! What the figures were taken on.

use std::{fs, path::Path};

use crate::failure::Failure;

/// `f_type` of file systems that live in memory (statfs(2)).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Processors and kernel, in a line.
///
/// # Errors
/// [`Failure::Usage`] when the directory is not there, or in memory, where a sync
/// costs nothing.
pub fn describe(dir: &Path) -> Result<String, Failure> {
    let wrong = |why: String| Failure::Usage(format!("{}: {why}", dir.display()));
    let about = rustix::fs::statfs(dir).map_err(|error| wrong(error.to_string()))?;
    #[allow(clippy::unnecessary_cast)] // its width depends on the platform
    if IN_MEMORY.contains(&(about.f_type as i64)) {
        return Err(wrong("is in memory; name a directory on a disk with --dir".to_owned()));
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let model = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = model
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "))
        .map_or("processors", |(_, name)| name);
    Ok(format!("{processors} x {model}, Linux {}", kernel.trim()))
}
