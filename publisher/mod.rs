//! The publisher: holds bounded, durable logs, accepts events, replays them.

pub mod data_dir;
mod durable;
pub mod log;
pub mod positions;
pub mod receipts;
pub mod recover;
