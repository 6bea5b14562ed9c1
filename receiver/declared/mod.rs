//! A projection that stands in a file: tables, handlers and queries, declared in TOML and
//! run by the receiver inside its own transaction. `spec` is what a file says once it has
//! been checked; the rest either makes one of a text or runs it.

pub mod spec;
