//! From publish to commit: what was sent, what was seen to be committed. Pure.

use std::time::{Duration, Instant};

/// An event and when it was handed to the client.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    /// Where it was accepted.
    pub sequence: i64,
    /// When.
    pub at: Instant,
}

/// What was known to be committed at a time.
#[derive(Debug, Clone, Copy)]
pub struct Commit {
    /// Everything up to here.
    pub sequence: i64,
    /// When it was known.
    pub at: Instant,
}

/// For each event the time until a commit was first seen that holds it. None where
/// there is an event that no commit holds.
pub fn latencies(sent: &[Sent], mut commits: Vec<Commit>) -> Option<Vec<Duration>> {
    commits.sort_by_key(|commit| commit.at);
    // What is committed stays so: an answer that was overtaken tells nothing.
    let mut highest = i64::MIN;
    commits.retain(|commit| {
        let news = commit.sequence > highest;
        highest = highest.max(commit.sequence);
        news
    });
    let latency = |sent: &Sent| {
        let first = commits.partition_point(|commit| commit.sequence < sent.sequence);
        Some(commits.get(first)?.at.saturating_duration_since(sent.at))
    };
    sent.iter().map(latency).collect()
}

/// The value at or below which so many percent lie, of sorted values; nothing is zero.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let place = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(place).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_through_with_the_first_commit_seen_to_hold_it() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let sent = [(0, 0), (1, 1), (2, 2)].map(|(sequence, ms)| Sent { sequence, at: at(ms) });
        let commit = |sequence, ms| Commit { sequence, at: at(ms) };
        // Told out of order, and the second answer was overtaken.
        let commits = vec![commit(2, 9), commit(0, 3), commit(1, 5), commit(0, 6)];
        let times = latencies(&sent, commits).expect("all are through");
        assert_eq!(times, [3, 4, 7].map(Duration::from_millis));
        assert_eq!(latencies(&sent, vec![commit(1, 5)]), None);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let times: Vec<_> = (1..=200).map(Duration::from_millis).collect();
        let cases = [(50, 100), (99, 198), (100, 200)];
        for (percent, millis) in cases {
            assert_eq!(percentile(&times, percent), Duration::from_millis(millis));
        }
        assert_eq!(percentile(&[], 50), Duration::ZERO);
    }
}
