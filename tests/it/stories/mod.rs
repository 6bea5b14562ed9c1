//! What must hold, told one theme a file.

mod ack;
mod api;
mod apply;
mod client;
mod crash_points;
mod durability;
mod fencing;
mod fingerprint;
mod keys;
mod kill_between_commit_and_ack;
mod kill_storm;
mod outcomes;
mod process;
mod pruning;
mod publish;
mod publish_stream;
mod receipts;
mod replay;
mod restore;
mod retention;
mod sealed;
mod snapshots;
mod sqlite;
mod tool;
mod transport;
mod verify;
