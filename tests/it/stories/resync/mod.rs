//! Going on from a snapshot: by itself, on order, through deaths at every place, and what
//! is refused.

mod adopted;
mod by_itself;
mod killed;
mod offered;
mod ordered;
mod overtaken;
mod publisher_that_lies;

use std::{fs, path::PathBuf};

use tempfile::TempDir;

use crate::harness::{
    events::{adjusted, adjustments},
    ledger::Ledger,
    pair::directory,
    publisher::Publisher,
    receiver::{Receiver, Setup},
};

/// A publisher that has dropped nearly everything, and a receiver `maker` that has applied
/// all of it; its snapshot is at the publisher.
struct Scene {
    maker: Receiver,
    publisher: Publisher,
    /// The database of a receiver that got only the first events.
    early: PathBuf,
    dir: TempDir,
}

/// What the publisher retains in the end.
const RETAINS: &str = "[logs.main]\nmax_events = 10\n";
/// Events that the early database has.
const EARLY: usize = 3;

impl Scene {
    /// After so many events.
    async fn after(count: usize) -> Scene {
        let dir = directory();
        let publisher = Publisher::start(dir.path());
        publisher.publish(adjustments("early", EARLY)).await.expect("accepted");
        let receiver = Receiver::at(dir.path(), &publisher.url()).named("early").start();
        receiver.applies(EARLY as i64 - 1).await;
        let early = receiver.db().to_owned();
        assert_eq!(receiver.terminate().code(), Some(0)); // leaves everything in one file

        let maker = Receiver::at(dir.path(), &publisher.url()).named("maker").start();
        let mut left = count - EARLY;
        while left > 0 {
            let batch = left.min(1_000);
            left -= batch;
            let events = adjustments(&format!("k{left}"), batch);
            publisher.publish(events).await.expect("accepted");
        }
        maker.applies(count as i64 - 1).await;
        let made = maker.snapshot().await.expect("stored");
        assert_eq!(made.cursor.expect("a cursor").sequence, Some(count as i64 - 1));
        let again = publisher.successor().config(RETAINS);
        assert_eq!(publisher.terminate().code(), Some(0));
        let publisher = again.start();
        publisher.accepts(adjusted("last", "a", 1)).await;
        maker.applies(count as i64).await;
        let floor = publisher.log().await.floor_sequence;
        assert_eq!(floor, Some(count as i64 - 9), "nearly everything is dropped");
        Scene { maker, publisher, early, dir }
    }

    /// A receiver of this name, on an empty database.
    fn empty(&self, name: &str) -> Setup {
        Receiver::at(self.dir.path(), &self.publisher.url()).named(name)
    }

    /// A receiver of this name, on a database that has the first events.
    fn early(&self, name: &str) -> (Setup, PathBuf) {
        let db = self.dir.path().join(format!("{name}.db"));
        fs::copy(&self.early, &db).expect("copied");
        (self.empty(name), db)
    }
}

/// What two databases say is the same, but for who says it.
fn same(ours: &Ledger, theirs: &Ledger) {
    assert_eq!(ours.cursor, theirs.cursor);
    assert_eq!(ours.rows, theirs.rows);
    assert_eq!((ours.total, &ours.stock), (theirs.total, &theirs.stock));
}

/// What holds of a database that only had adjustments by one.
fn is_whole(ledger: &Ledger) {
    assert_eq!(ledger.rows.len() as i64, ledger.cursor + 1);
    assert_eq!(ledger.total, ledger.cursor + 1);
    let sequences: Vec<_> = ledger.rows.iter().map(|row| row.sequence).collect();
    assert_eq!(sequences, (0..=ledger.cursor).collect::<Vec<_>>());
}
