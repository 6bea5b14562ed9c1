//! The system's clock as a publisher sees it, stepped by a test. Real time goes on
//! beneath the steps.

use std::{
    fs,
    path::{Path, PathBuf},
    time::SystemTime,
};

use counterfoil::proto::event::Time;

pub const HOUR_MS: i64 = 3_600_000;

/// A clock that differs from the real one by so much.
#[derive(Debug, Clone)]
pub struct SteppedClock {
    file: PathBuf,
}

impl SteppedClock {
    /// A clock that has not been stepped yet.
    pub fn new(dir: &Path) -> Self {
        let clock = SteppedClock { file: dir.join("clock-step") };
        clock.stands_ahead(0);
        clock
    }

    /// Sets it so many milliseconds ahead of the real time, or back.
    pub fn stands_ahead(&self, by_ms: i64) {
        fs::write(&self.file, by_ms.to_string()).expect("the clock can be set");
    }

    /// What it shows, in milliseconds since the Unix epoch.
    pub fn now_ms(&self) -> i64 {
        let text = fs::read_to_string(&self.file).expect("it has been set");
        let by_ms: i64 = text.parse().expect("it has been set to a number");
        Time::from_system(SystemTime::now()).unix_millis() + by_ms
    }

    /// What the publisher's environment says of it.
    pub fn env(&self) -> (&'static str, PathBuf) {
        ("COUNTERFOIL_CLOCK_STEP_FILE", self.file.clone())
    }
}
