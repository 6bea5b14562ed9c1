//! The logs of this process by name, each with its threads. Built once, at start.

use std::{collections::BTreeMap, ops::Range, path::Path, sync::Arc, thread::JoinHandle};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    ack::{self, Receivers},
    aging::Aging,
    clock::Clock,
    config::LogSettings,
    data_dir::DataDir,
    durable::Latch,
    fork,
    halt::Halt,
    log::{
        EventLog, Extent, LogReader, OpenError,
        segment::{Options, SegmentLog},
    },
    outcomes::Outcomes,
    payloads::Payloads,
    positions::Positions,
    publish::{Parts, Publisher},
    receipts, recover,
    retention::Limits,
    snapshots::{self, Snapshots},
    suspects::Suspects,
};
use crate::{
    process::Failure,
    proto::{
        event::{Sequence, duration_millis},
        refusal::{Reason, Refusal},
    },
};

/// One log, as the calls see it. A clone is the same log.
#[derive(Clone)]
pub struct Log {
    /// Its name.
    pub name: Arc<str>,
    /// Its bounds.
    pub limits: Limits,
    /// What its payloads may be.
    pub payloads: Payloads,
    /// Reads what is on stable storage.
    pub reader: Arc<dyn LogReader>,
    /// The newest extent: a hint that there is more to read.
    pub extent: watch::Receiver<Extent>,
    /// What is looked up by key.
    pub receipts: receipts::Shared,
    /// Where events go in.
    pub publisher: Publisher,
    /// Where acknowledgements go in.
    pub receivers: Receivers,
    /// Copies of receivers' databases.
    pub snapshots: Snapshots,
    /// Whether it takes writes.
    pub halt: Arc<Halt>,
    /// Its clock.
    pub clock: Arc<Clock>,
    /// How old its events are.
    pub aging: Arc<Aging>,
    /// Cancelled when the process ends.
    pub ending: CancellationToken,
}

/// What a log is made of.
pub struct Storage {
    /// The events.
    pub engine: Box<dyn EventLog>,
    /// What is looked up by key.
    pub receipts: receipts::Shared,
    /// Where that is kept.
    pub store: receipts::Store,
    /// How far each receiver has come.
    pub positions: Positions,
    /// Receivers that have seen other history.
    pub suspects: Suspects,
    /// What each receiver has reported.
    pub outcomes: Outcomes,
    /// Copies of receivers' databases.
    pub snapshots: Snapshots,
}

impl Storage {
    /// Opens a log's directory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        dir: &Path,
        options: Options,
        snapshots: snapshots::Bounds,
    ) -> Result<Self, OpenError> {
        // One latch for all: after a failed write of one, none of them writes or removes.
        let latch = Latch::open(dir)?;
        let engine = SegmentLog::open(dir, options, latch.clone())?;
        let (receipts, store) = receipts::open(dir, latch.clone(), &*engine.reader())?;
        let positions = Positions::open(dir, latch.clone())?;
        let suspects = Suspects::open(dir, latch.clone())?;
        let outcomes = Outcomes::open(dir, latch)?;
        // Beside that latch: see docs/adr/0014-snapshots.md.
        let snapshots = Snapshots::open(dir, snapshots)?;
        let engine = Box::new(engine);
        Ok(Storage { engine, receipts, store, positions, suspects, outcomes, snapshots })
    }
}

/// The threads of a log. They end by themselves when nobody uses the log any more.
pub type Threads = [JoinHandle<()>; 2];

impl Log {
    /// Starts a log's threads. Called within a runtime.
    ///
    /// # Errors
    /// The operating system's, when there are no threads.
    pub fn start(
        name: &str,
        limits: Limits,
        payloads: Payloads,
        storage: Storage,
        healthy: watch::Sender<bool>,
        ending: CancellationToken,
    ) -> std::io::Result<(Log, Threads)> {
        let Storage { engine, receipts, store, mut positions, suspects, outcomes, snapshots } =
            storage;
        let name: Arc<str> = name.into();
        let reader = engine.reader();
        let halt = Arc::new(Halt::new(&name, healthy));
        let clock = Arc::new(Clock::after(receipts::look(&receipts).clock_ms()));
        let aging = Arc::new(Aging::default());
        let (extent_sender, extent) = watch::channel(reader.extent());
        let held = {
            let receipts = Arc::clone(&receipts);
            Box::new(move |range: Range<Sequence>| {
                let receipts = receipts::look(&receipts);
                receipts.next() < range.end || receipts.holds_any(range)
            })
        };
        if limits.hold_for_receivers
            && let Err(error) = positions.start(clock.now_ms(), duration_millis(limits.hold_lease))
        {
            halt.judge(&error); // a lease may last longer for it
        }
        let (receivers, keeper) = Receivers::start(ack::Parts {
            log: Arc::clone(&name),
            positions,
            suspects,
            outcomes,
            held,
            reader: Arc::clone(&reader),
            halt: Arc::clone(&halt),
            clock: Arc::clone(&clock),
        })?;
        let parts = Parts {
            engine,
            receipts: Arc::clone(&receipts),
            store,
            limits: limits.clone(),
            receivers: receivers.clone(),
            halt: Arc::clone(&halt),
            extent: extent_sender,
            clock: Arc::clone(&clock),
            aging: Arc::clone(&aging),
        };
        let (publisher, appender) = Publisher::start(parts)?;
        let log = Log {
            name,
            limits,
            payloads,
            reader,
            extent,
            receipts,
            publisher,
            receivers,
            snapshots,
            halt,
            clock,
            aging,
            ending,
        };
        Ok((log, [appender, keeper]))
    }
}

/// All logs of the process.
#[derive(Clone)]
pub struct Hub(Arc<BTreeMap<String, Log>>);

impl Hub {
    /// Opens the configured logs of a directory. What stands there beside them
    /// is left alone.
    ///
    /// # Errors
    /// [`Failure`] with one sentence.
    pub fn open(
        dir: &DataDir,
        settings: &BTreeMap<String, LogSettings>,
        healthy: &watch::Sender<bool>,
        ending: &CancellationToken,
    ) -> Result<(Self, Vec<Threads>), Failure> {
        for name in dir.logs()? {
            if !settings.contains_key(&name) {
                tracing::warn!(log = name, "left alone: not in the configuration");
            }
        }
        let mut logs = BTreeMap::new();
        let mut threads = Vec::new();
        for (name, settings) in settings {
            let log_dir = dir.log_dir(name)?;
            if recover::is_needed(&log_dir)? {
                return Err(Failure::Runtime(format!(
                    "log {name} is halted: a write to its disk had failed; run `publisher recover` \
                     with the same --data-dir, then start again"
                )));
            }
            if fork::is_unfinished(&log_dir)? {
                return Err(Failure::Runtime(format!(
                    "log {name} is being forked: run `publisher fork --log {name}` with the same \
                     --data-dir once more, which completes it, then start again"
                )));
            }
            let options = Options { segment_bytes: settings.segment_bytes };
            let storage = Storage::open(&log_dir, options, settings.snapshots)?;
            let (log, started) = Log::start(
                name,
                settings.limits.clone(),
                settings.payloads,
                storage,
                healthy.clone(),
                ending.clone(),
            )
            .map_err(|error| Failure::Runtime(format!("no thread for log {name}: {error}")))?;
            let extent = log.reader.extent();
            let Extent { floor, next, .. } = extent;
            tracing::info!(log = name, floor, next, "opened");
            let suspicion = log.receivers.suspicion();
            let suspects = suspicion.all();
            if !suspects.is_empty() {
                tracing::error!(log = name, "SUSPECT: {}", suspicion.sentence(&suspects, &extent));
            }
            logs.insert(name.clone(), log);
            threads.push(started);
        }
        Ok((Hub(Arc::new(logs)), threads))
    }

    /// These logs.
    pub fn of(logs: impl IntoIterator<Item = Log>) -> Self {
        Hub(Arc::new(logs.into_iter().map(|log| (log.name.to_string(), log)).collect()))
    }

    /// One log.
    ///
    /// # Errors
    /// LOG_NOT_FOUND.
    pub fn log(&self, name: &str) -> Result<&Log, Refusal> {
        self.0.get(name).ok_or_else(|| {
            Refusal::new(
                Reason::LogNotFound,
                format!(
                    "there is no log {name:?}; logs are named in the publisher's configuration"
                ),
            )
        })
    }

    /// All of them, by name.
    pub fn all(&self) -> impl Iterator<Item = &Log> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use uuid::Uuid;

    use super::*;
    use crate::{
        proto::chain::{Cursor, EMPTY_CHAIN},
        publisher::{log::CommitError, positions::Position},
    };

    #[test]
    fn after_a_failed_write_of_one_part_no_other_writes() {
        let dir = tempfile::tempdir().expect("a directory");
        let bounds = snapshots::Bounds { keep: 1, max_bytes: 1 };
        let mut storage = Storage::open(dir.path(), Options::default(), bounds).expect("opens");
        // What stands in the way of the next list of receipts.
        fs::create_dir(dir.path().join("receipts.tmp")).expect("created");
        let advanced = storage.store.advance(&storage.receipts, 90_000, Duration::from_secs(1));
        assert!(matches!(advanced, Err(CommitError::Halted(_))), "{advanced:?}");
        let committed = storage.engine.commit(&[], 0);
        assert!(matches!(committed, Err(CommitError::Halted(_))), "{committed:?}");
        let acked = Cursor { log_id: Uuid::nil(), sequence: -1, chain: EMPTY_CHAIN };
        let position =
            Position { name: "shop".into(), session: 1, acked, reported: -1, seen_ms: 0 };
        let recorded = storage.positions.record(&[position]);
        assert!(matches!(recorded, Err(CommitError::Halted(_))), "{recorded:?}");
    }
}
