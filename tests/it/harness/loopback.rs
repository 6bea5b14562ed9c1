//! An address of its own for every server of a run. Connections go out from
//! 127.0.0.1, so a port of another loopback address stays free while the process
//! that had it is down, and a restart finds it again.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::atomic::{AtomicU32, Ordering},
};

static GIVEN: AtomicU32 = AtomicU32::new(0);

/// An address that no other server of this test run has.
pub fn address() -> IpAddr {
    let number = GIVEN.fetch_add(1, Ordering::Relaxed);
    // Runs at the same time differ in their process id.
    let run = std::process::id() % 200 + 20;
    let [_, _, high, low] = (number + 1).to_be_bytes();
    Ipv4Addr::new(127, run as u8, high, low).into()
}
