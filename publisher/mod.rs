//! The publisher: holds bounded, durable logs, accepts events, replays them.

pub mod ack;
pub mod admin;
pub mod admit;
pub mod advance;
pub mod aging;
pub mod batch;
mod blocking;
pub mod clock;
pub mod config;
pub mod data_dir;
pub mod durable;
pub mod edge;
pub mod fork;
pub mod frame;
pub mod group;
pub mod halt;
pub mod headroom;
pub mod hub;
pub mod intake;
mod journal;
pub mod keeper;
pub mod log;
pub mod oldest;
pub mod outcomes;
pub mod outgoing;
pub mod payloads;
pub mod positions;
pub mod publish;
pub mod publish_stream;
pub mod receipts;
pub mod recover;
pub mod repair;
pub mod replay;
pub mod resume;
pub mod retention;
pub mod run;
pub mod service;
pub mod show;
pub mod snapshots;
pub mod suspects;
pub mod suspicion;
pub mod trim;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod testing;
