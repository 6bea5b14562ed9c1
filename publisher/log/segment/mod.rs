//! The durable engine: a log in segment files. [`format`] draws their bytes,
//! [`writer`] appends, [`reader`] reads what is committed, [`recover`] finds out
//! what stands in the files of a process that died, [`seal`] spares it the full
//! ones. Knows nothing of events.

pub mod format;
mod meta;
mod reader;
mod recover;
mod seal;
mod writer;

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod sealed;
#[cfg(test)]
mod tests;

pub(in crate::publisher) use meta::{Identity, read as identity, succeed};
pub(in crate::publisher) use recover::{Copied, check, copy};
pub use writer::{Options, SegmentLog};
