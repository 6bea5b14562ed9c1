//! The publisher's clock: the system's, but never back. What is decided by time
//! (ages, the key floor) stays decided when the system's clock is set back.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::SystemTime,
};

use crate::proto::event::Time;

/// A clock that never goes back. How far it had come before a restart is handed in.
#[derive(Debug)]
pub struct Clock {
    /// The largest value ever seen, milliseconds since the Unix epoch.
    seen_ms: AtomicI64,
}

impl Clock {
    /// A clock that has seen this time before.
    pub fn after(seen_ms: i64) -> Self {
        Clock { seen_ms: AtomicI64::new(seen_ms) }
    }

    /// Milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        let system_ms = system_ms();
        self.seen_ms.fetch_max(system_ms, Ordering::AcqRel).max(system_ms)
    }

    /// The same as a time.
    pub fn now(&self) -> Time {
        Time::from_unix_millis(self.now_ms())
    }
}

fn system_ms() -> i64 {
    let system_ms = Time::from_system(SystemTime::now()).unix_millis();
    #[cfg(feature = "failpoints")]
    let system_ms = system_ms.saturating_add(stepped::by_ms());
    system_ms
}

/// Steps of the clock, as tests make them: the environment names a file that holds
/// milliseconds to be added.
#[cfg(feature = "failpoints")]
mod stepped {
    use std::{fs, path::PathBuf, sync::LazyLock};

    static FILE: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("COUNTERFOIL_CLOCK_STEP_FILE").map(PathBuf::from));

    pub fn by_ms() -> i64 {
        let text = FILE.as_ref().and_then(|path| fs::read_to_string(path).ok());
        text.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_from_what_it_has_seen_and_never_back() {
        let ahead = Time::from_system(SystemTime::now()).unix_millis() + 60_000;
        let clock = Clock::after(ahead);
        assert_eq!((clock.now_ms(), clock.now_ms()), (ahead, ahead));
        let clock = Clock::after(0);
        let first = clock.now_ms();
        assert!(first > 0 && clock.now_ms() >= first);
    }
}
