//! The receiver: asks for events, applies each exactly once, acknowledges.

pub mod projection;
