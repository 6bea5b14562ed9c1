//! The receiver: asks for events, applies each exactly once, acknowledges.
//! [`run`] shows the whole flow.

pub mod ack;
pub mod apply;
pub mod config;
pub mod decide;
pub mod inventory;
pub mod projection;
pub mod projections;
pub mod pruning;
pub mod readers;
pub mod recent;
pub mod replay;
pub mod retry;
pub mod run;
pub mod service;
pub mod status;
pub mod store;
pub mod tables;
pub mod transaction;
pub mod writer;

#[cfg(test)]
mod testing;
