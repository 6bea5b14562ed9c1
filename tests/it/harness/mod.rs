//! What the stories need: processes that can be killed, clients, a publisher that
//! lies, a link that breaks, and failures that explain themselves.

pub mod chain;
pub mod chance;
pub mod clock;
pub mod events;
pub mod fake_publisher;
pub mod files;
pub mod frames;
pub mod ledger;
pub mod loopback;
pub mod pair;
pub mod process;
pub mod producer;
pub mod proxy;
pub mod publish_stream;
pub mod publisher;
pub mod put_back;
pub mod receiver;
pub mod refusal;
pub mod shelf;
pub mod snapshot;
pub mod tools;
pub mod wait;
