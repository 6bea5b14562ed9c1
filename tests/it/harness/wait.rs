//! Waiting for something to become true, with a deadline that only a defect reaches.

use std::time::{Duration, Instant};

/// Long, for a noisy machine: reaching it fails the test.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Asks again and again until there is an answer.
///
/// # Panics
/// At the deadline, saying what did not come about.
pub async fn wait_until<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = probe().await {
            return answer;
        }
        assert!(
            start.elapsed() < DEADLINE,
            "within {DEADLINE:?} it did not come about that {what}"
        );
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
}

/// Awaits something that has to end.
///
/// # Panics
/// At the deadline, saying what did not end.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("within {DEADLINE:?} there was no end of: {what}"),
    }
}
