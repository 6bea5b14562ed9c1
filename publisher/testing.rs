//! What the unit tests of the publisher share: intents in one line, and a log in
//! memory that runs.

use std::{path::PathBuf, time::Duration};

use bytes::Bytes;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{
    batch::Batch,
    durable::{self, Latch},
    group::Receipt,
    hub::{Log, Storage},
    log::{EventLog as _, Extent, memory::MemoryLog},
    outcomes::Outcomes,
    payloads::Payloads,
    positions::Positions,
    receipts::Receipts,
    retention::{Limits, OnAhead, WhenFull},
    snapshots::{Bounds, Snapshots},
    suspects::Suspects,
};
use crate::proto::{
    chain::Cursor,
    event::{DataKind, Intent, Sequence, fingerprint},
    refusal::{Reason, Refusal},
};

/// A small intent. Equal arguments give equal content; the key is no content.
pub fn intent(key: &str, subject: &str) -> Intent {
    with_data(key, subject, "{\"delta\":1}")
}

/// The same with this payload.
pub fn with_data(key: &str, subject: &str, data: &str) -> Intent {
    let mut intent = Intent {
        key: key.into(),
        event_type: "stock.adjusted".into(),
        subject: subject.into(),
        content_type: DataKind::Json.default_content_type().into(),
        kind: DataKind::Json,
        data: Bytes::from(data.to_owned()),
        attributes: Vec::new(),
        expected_version: None,
        first_attempt_time: None,
        time: None,
        fingerprint: [0; 32],
    };
    intent.fingerprint = fingerprint(&intent.content());
    intent
}

/// Bounds that nothing reaches.
pub fn wide() -> Limits {
    Limits {
        max_events: 1_000_000,
        max_bytes: 1 << 30,
        max_age: None,
        when_full: WhenFull::DropOldest,
        key_window: Duration::from_secs(86_400),
        max_untimed_keys: 1_000_000,
        hold_for_receivers: false,
        hold_lease: Duration::from_secs(86_400),
        on_ahead: OnAhead::Alarm,
    }
}

/// Room for a few snapshots.
pub const BOUNDS: Bounds = Bounds { keep: 2, max_bytes: 1 << 20 };

/// A log in memory with its threads.
pub struct Running {
    pub log: Log,
    /// The same log, to let it fail.
    pub engine: MemoryLog,
    pub healthy: watch::Receiver<bool>,
    /// Where outcomes stand.
    dir: tempfile::TempDir,
}

/// Starts one.
pub fn start(limits: Limits) -> Running {
    let engine = MemoryLog::new(Uuid::from_u128(1));
    let (receipts, store) = Receipts::in_memory(engine.reader().extent().log_id);
    let dir = durable::scratch();
    let latch = Latch::open(dir.path()).expect("open");
    let storage = Storage {
        receipts,
        store,
        engine: Box::new(engine.clone()),
        positions: Positions::in_memory(),
        suspects: Suspects::in_memory(),
        outcomes: Outcomes::open(dir.path(), latch).expect("opens"),
        snapshots: Snapshots::open(dir.path(), BOUNDS).expect("opens"),
    };
    let (healthy_sender, healthy) = watch::channel(true);
    let ending = CancellationToken::new();
    let (log, _threads) =
        Log::start("main", limits, Payloads::Any, storage, healthy_sender, ending)
            .expect("there are threads");
    Running { log, engine, healthy, dir }
}

impl Running {
    /// Publishes one event.
    pub async fn publish(&self, intent: Intent) -> Result<Receipt, Refusal> {
        self.publish_all(vec![intent]).await.map(|mut receipts| receipts.remove(0))
    }

    /// Publishes events together.
    pub async fn publish_all(&self, intents: Vec<Intent>) -> Result<Vec<Receipt>, Refusal> {
        self.log.publisher.submit(Batch::of(&intents)).await.only()
    }

    /// Publishes events `k0`, `k1`, … one after the other.
    pub async fn fill(&self, count: usize) {
        for n in 0..count {
            self.publish(intent(&format!("k{n}"), "camera")).await.expect("accepted");
        }
    }

    pub fn extent(&self) -> Extent {
        self.log.reader.extent()
    }

    /// The file of the outcomes of a block, by its first sequence.
    pub fn outcomes_file(&self, first: Sequence) -> PathBuf {
        self.dir.path().join(format!("{first:020}.outcomes"))
    }

    /// Lets a receiver be refused, since it has seen other history.
    pub async fn suspect(&self, name: &str, reason: Reason, seen: Cursor) {
        let refusal = Refusal::new(reason, "a test");
        self.log.receivers.refused(name, None, Some(seen), refusal).await;
    }

    /// The cursor at a sequence.
    pub fn cursor(&self, sequence: Sequence) -> Cursor {
        let chain = self.log.reader.chain_at(sequence).expect("retained");
        Cursor { log_id: self.extent().log_id, sequence, chain }
    }
}
