//! The services from outside: real processes, real files, real connections.
//! [`stories`] says what must hold, one theme a file; [`model`] holds
//! made-up histories against a reference, [`projections`] what projection files make of
//! them against models in another language; [`harness`] has the machinery.

mod harness;
mod model;
mod projections;
mod stories;
