//! The receiver: asks for events, applies each exactly once, acknowledges.
//! [`run`] shows the whole flow.

pub mod ack;
pub mod admin;
pub mod apply;
pub mod check;
pub mod choose;
pub mod config;
pub mod copy;
pub mod current;
pub mod decide;
pub mod declared;
pub mod download;
pub mod feed;
pub mod follow_up;
pub mod forward;
#[cfg(test)]
pub mod inventory;
pub mod isolate;
pub mod offer;
pub mod projection;
pub mod projections;
pub mod pruning;
pub mod query;
pub mod readers;
pub mod rebuild;
pub mod recent;
pub mod replay;
pub mod resync;
pub mod retry;
pub mod run;
pub mod service;
pub mod skip;
pub mod snapshot;
pub mod source;
pub mod status;
pub mod store;
pub mod tables;
pub mod transaction;
pub mod trial;
pub mod writer;

#[cfg(test)]
mod testing;
