//! The pair as containers, driven from outside as a person would: docker,
//! compose, grpcurl. Each story has a project of its own, with its own network
//! and volumes, and takes it down whatever happens.
//!
//! Without a Docker engine the stories say SKIPPED and pass; with CI set they fail.

mod between_commit_and_ack;
mod harness;
mod operations;
mod restarts;
