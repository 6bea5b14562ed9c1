//! What is measured, and what one stage of one round has given. Pure.

use std::time::Duration;

use clap::ValueEnum;

/// Stages that belong together; `--only` takes their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Group {
    /// What the disk, SQLite and tonic do with nothing behind them
    Limits,
    /// Publishing, with nobody who reads
    Publish,
    /// Replay, with nobody who applies
    Replay,
    /// A receiver with an empty database against a full log
    CatchUp,
    /// Publishing at full speed while a receiver follows
    Live,
    /// Publishing at a fixed rate while a receiver follows
    Paced,
}

impl Group {
    /// Those that need the services.
    pub const PRODUCT: [Group; 5] =
        [Group::Publish, Group::Replay, Group::CatchUp, Group::Live, Group::Paced];

    /// As `--only` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Group::Limits => "limits",
            Group::Publish => "publish",
            Group::Replay => "replay",
            Group::CatchUp => "catch-up",
            Group::Live => "live",
            Group::Paced => "paced",
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// Where it stands.
    pub group: Group,
    /// Its name, once in each payload.
    pub name: String,
    /// Bytes of a payload; none where it makes no difference.
    pub payload: Option<usize>,
    /// The name of the stage it is compared with.
    pub against: Option<String>,
}

impl Stage {
    /// A stage that is compared with no other.
    pub fn new(group: Group, name: impl Into<String>, payload: Option<usize>) -> Self {
        Stage { group, name: name.into(), payload, against: None }
    }

    /// The same, compared with another one.
    pub fn against(self, name: impl Into<String>) -> Self {
        Stage { against: Some(name.into()), ..self }
    }
}

/// What one process has used in a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Most memory at a time.
    pub peak_bytes: u64,
}

/// What the processes of a stage have used, those that took part in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// The publisher, or what stands in its place.
    pub publisher: Option<Usage>,
    /// The receiver, or what stands in its place.
    pub receiver: Option<Usage>,
    /// This process.
    pub client: Option<Usage>,
}

impl Spent {
    /// In the order of the table's columns.
    pub fn each(&self) -> [Option<Usage>; 3] {
        [self.publisher, self.receiver, self.client]
    }
}

/// What one stage has given in one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Figure {
    /// Which.
    pub stage: Stage,
    /// Events that are through.
    pub events: u64,
    /// Within this time.
    pub elapsed: Duration,
    /// What it took.
    pub spent: Spent,
    /// The median and the 99th percentile from publish to commit.
    pub latency: Option<(Duration, Duration)>,
}

impl Figure {
    /// How fast.
    pub fn events_per_second(&self) -> f64 {
        self.events as f64 / self.elapsed.as_secs_f64().max(1e-6)
    }

    /// Of so much time, what one event has taken, in microseconds.
    pub fn micros(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.events.max(1) as f64
    }

    /// Processors that were at work, on average.
    pub fn processors(&self) -> f64 {
        let cpu: Duration = self.spent.each().iter().flatten().map(|usage| usage.cpu).sum();
        cpu.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-6)
    }
}
