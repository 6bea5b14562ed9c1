//! Processor time of a process, as the kernel counts it.

use std::{fs, time::Duration};

use crate::failure::Failure;

/// Time that a process has run on a processor since its start.
///
/// # Errors
/// [`Failure::Runtime`] when the process is gone.
pub fn spent(pid: u32) -> Result<Duration, Failure> {
    let path = format!("/proc/{pid}/stat");
    let text =
        fs::read_to_string(&path).map_err(|error| Failure::Runtime(format!("{path}: {error}")))?;
    parse(&text).ok_or_else(|| Failure::Runtime(format!("{path}: is not as expected")))
}

/// Fields 14 and 15 of proc_pid_stat(5), in ticks of 10 ms.
fn parse(stat: &str) -> Option<Duration> {
    // Field 2 is a name in parentheses and may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_found_behind_any_name() {
        let stat = "42 (a) b) S 1 42 42 0 -1 4194560 100 0 0 0 123 45 0 0 20 0 5 0 99";
        assert_eq!(parse(stat), Some(Duration::from_millis(1_680)));
        assert_eq!(parse(""), None);
        assert!(spent(std::process::id()).is_ok());
    }
}
