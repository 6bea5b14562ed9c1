//! A compose project for one story, and the words that stories are told in.

mod engine;
mod pair;

pub use pair::{BOTH, Pair, RECEIVER, Service, docker, integer};
use std::{
    fmt::Debug,
    time::{Duration, Instant},
};

/// The longest that a story waits for anything, unless it says otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How often a condition outside this process is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(150);

/// Looks until `found` finds something. Fails with what was seen last.
pub fn wait_for<T, Seen: Debug>(
    what: &str,
    limit: Duration,
    mut found: impl FnMut() -> Result<T, Seen>,
) -> T {
    let started = Instant::now();
    loop {
        match found() {
            Ok(value) => return value,
            Err(seen) if started.elapsed() > limit => {
                panic!("waited {limit:?} for {what}; last seen: {seen:#?}")
            }
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Says whether the story can be told here; if so the images are there.
#[macro_export]
macro_rules! needs_docker {
    () => {
        if !$crate::harness::ready(module_path!()) {
            return;
        }
    };
}

pub use engine::{TAG, ready};
