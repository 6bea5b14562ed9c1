//! The publisher: holds bounded, durable logs, accepts events, replays them.

mod durable;
pub mod log;
pub mod positions;
pub mod receipts;
