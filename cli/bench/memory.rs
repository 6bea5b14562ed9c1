//! Most memory that a process has held at a time, as the kernel counts it.

use std::fs;

use crate::failure::Failure;

/// Begins the count anew, where the kernel allows it: else the peak is that since
/// the start of the process, which is never less.
pub fn reset_peak(pid: u32) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// The peak since the last reset, in bytes.
///
/// # Errors
/// [`Failure::Runtime`] when the process is gone.
pub fn peak(pid: u32) -> Result<u64, Failure> {
    let path = format!("/proc/{pid}/status");
    let text =
        fs::read_to_string(&path).map_err(|error| Failure::Runtime(format!("{path}: {error}")))?;
    parse(&text).ok_or_else(|| Failure::Runtime(format!("{path}: has no VmHWM")))
}

/// The line `VmHWM:     1234 kB` of proc_pid_status(5).
fn parse(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_found_among_the_rest() {
        let status = "Name:\tx\nVmPeak:\t  999 kB\nVmHWM:\t  128 kB\nVmRSS:\t 64 kB\n";
        assert_eq!(parse(status), Some(128 * 1024));
        assert_eq!(parse("Name:\tVmHWM\n"), None);
        reset_peak(std::process::id());
        assert!(peak(std::process::id()).expect("it runs") > 0);
    }
}
