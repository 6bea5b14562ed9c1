//! Copies of receivers' databases, kept for receivers whose next events are gone:
//! the newest few of each projection, under a bound of bytes. Knows nothing of what
//! is in them.
//!
//! ```text
//! LOG/snapshots/SHA256.part   being uploaded: what has come so far
//! LOG/snapshots/SHA256.meta   what was announced of one that is whole
//! LOG/snapshots/SHA256.db     its bytes
//! ```
//! A snapshot is there once all three hold: its metadata is durable, its bytes have the
//! hash in their name and are durable, and so is their name. They are copies: what is
//! wrong with one costs that one. A write of it that fails never halts the log.

pub mod download;
mod files;
pub mod offer;
mod part;
mod place;
pub mod service;
mod state;
mod store;
pub mod upload;

pub use files::{check, copy};
pub use offer::Bounds;
pub use store::Snapshots;

#[cfg(test)]
mod tests;
