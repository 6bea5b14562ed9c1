//! What processes use between two moments.

use std::time::Duration;

use super::{
    cpu,
    figure::{Spent, Usage},
    memory,
};
use crate::{failure::Failure, process::Pair};

/// The first of the two moments.
pub struct Meter {
    publisher: Option<Process>,
    receiver: Option<Process>,
    client: Process,
}

struct Process {
    pid: u32,
    before: Duration,
}

impl Process {
    fn from_now(pid: u32) -> Result<Self, Failure> {
        memory::reset_peak(pid);
        Ok(Process { pid, before: cpu::spent(pid)? })
    }

    fn used(&self) -> Result<Usage, Failure> {
        let cpu = cpu::spent(self.pid)?.saturating_sub(self.before);
        Ok(Usage { cpu, peak_bytes: memory::peak(self.pid)? })
    }
}

impl Meter {
    /// Of this process and of the services that run.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when one of them has ended.
    pub fn start(pair: &Pair) -> Result<Self, Failure> {
        Ok(Meter {
            publisher: pair.publisher_pid().map(Process::from_now).transpose()?,
            receiver: pair.receiver_pid().map(Process::from_now).transpose()?,
            client: Process::from_now(std::process::id())?,
        })
    }

    /// Counts a receiver in that was started meanwhile, from its start on.
    pub fn with_new_receiver(mut self, pair: &Pair) -> Self {
        let of_new = |pid| Process { pid, before: Duration::ZERO };
        self.receiver = pair.receiver_pid().map(of_new);
        self
    }

    /// The second moment.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when a process has ended meanwhile.
    pub fn stop(self) -> Result<Spent, Failure> {
        Ok(Spent {
            publisher: self.publisher.as_ref().map(Process::used).transpose()?,
            receiver: self.receiver.as_ref().map(Process::used).transpose()?,
            client: Some(self.client.used()?),
        })
    }
}
