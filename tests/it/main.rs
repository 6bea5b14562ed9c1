//! The services from outside: real processes, real files, real connections.
//! [`stories`] says what must hold, one theme a file; [`harness`] has the machinery.

mod harness;
mod stories;
