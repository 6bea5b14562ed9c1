//! A publisher and a receiver that follows it, in a directory of their own.

use counterfoil::proto::pb::{NewEvent, Receipt};
use tempfile::TempDir;

use super::{
    ledger::Ledger,
    publisher::{Publisher, Setup},
    receiver::Receiver,
    wait::wait_until,
};

/// A directory that goes away with the test.
pub fn directory() -> TempDir {
    tempfile::Builder::new().prefix("counterfoil-it-").tempdir().expect("a temporary directory")
}

/// Both services. The receiver goes first when dropped, the directory last.
pub struct Pair {
    pub receiver: Receiver,
    pub publisher: Publisher,
    pub dir: TempDir,
}

impl Pair {
    /// Both with embedded defaults.
    pub fn start() -> Pair {
        Pair::with(|publisher| publisher)
    }

    /// The same, the publisher configured otherwise.
    pub fn with(configured: impl FnOnce(Setup) -> Setup) -> Pair {
        let dir = directory();
        let publisher = configured(Publisher::at(dir.path())).start();
        let receiver = Receiver::start(dir.path(), &publisher.url());
        Pair { receiver, publisher, dir }
    }

    /// Publishes, and waits until the receiver has committed and acknowledged it.
    pub async fn carries(&self, events: Vec<NewEvent>) -> Vec<Receipt> {
        let receipts = self.publisher.publish(events).await.expect("the events are accepted");
        let last = receipts.last().and_then(|receipt| receipt.sequence).expect("a sequence");
        self.receiver.applies(last).await;
        self.publisher.waits_for_ack("receiver", last).await;
        receipts
    }

    /// Waits until everything accepted is committed and acknowledged, then checks
    /// the invariants.
    pub async fn settles(&self) -> Ledger {
        let next = self.publisher.log().await.next_sequence.expect("always set");
        wait_until("everything accepted is committed and acknowledged", async || {
            let acked = self.publisher.acked("receiver").await.and_then(|cursor| cursor.sequence);
            (acked.unwrap_or(-1) == next - 1).then_some(())
        })
        .await;
        let ledger = self.receiver.ledger();
        ledger.check(&self.publisher.accepted().await, Some(next - 1));
        ledger
    }
}
