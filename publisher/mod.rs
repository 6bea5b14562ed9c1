//! The publisher: holds bounded, durable logs, accepts events, replays them.

pub mod log;
