//! The ways in which the same events are applied.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use counterfoil::{
    proto::{
        chain::Cursor,
        event::{DataKind, Event, Intent, Time, fingerprint},
        inventory::{self, Movement},
    },
    receiver::{
        decide::Step,
        declared::{self, Given, spec::Effect},
        projection::{Applied, DeclaredQuery, Fault, Migration, Projection, Tables},
        projections,
        store::{
            self, Store, cursor,
            ledger::{BLOCK, Rows},
        },
        values::Values,
        writer::Writer,
    },
};
use rusqlite::params;
use uuid::Uuid;

const LOG: &str = "main";
const ITEMS: usize = 1_000;
const TYPE: &str = "stock.adjusted";

/// What applies steps so many at a time.
pub type Way = fn(&[Step], usize) -> Spent;

/// What some events have cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spent {
    /// How many.
    pub events: usize,
    /// By the clock.
    pub clock: Duration,
    /// Of processor time.
    pub processor: Duration,
}

impl Spent {
    fn on(events: usize, work: impl FnOnce()) -> Self {
        let (start, used) = (Instant::now(), processor());
        work();
        Spent { events, clock: start.elapsed(), processor: processor() - used }
    }

    /// Both together.
    pub fn plus(self, more: Spent) -> Self {
        Spent {
            events: self.events + more.events,
            clock: self.clock + more.clock,
            processor: self.processor + more.processor,
        }
    }

    /// Microseconds of one event, out of a sum.
    pub fn each(&self, time: Duration) -> f64 {
        time.as_secs_f64() * 1e6 / self.events as f64
    }
}

/// What this thread has run for.
fn processor() -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// `stock.adjusted` on a thousand items, with keys as producers make them.
pub fn steps(count: usize, payload: usize) -> Vec<Step> {
    let frame = r#"{"delta":1,"note":""}"#.len();
    let data = format!(r#"{{"delta":1,"note":"{}"}}"#, "x".repeat(payload - frame));
    let data = Bytes::from(data);
    let mut after = Cursor::beginning(Uuid::from_u128(1));
    (0..count)
        .map(|n| {
            let mut intent = Intent {
                key: Uuid::now_v7().to_string().into(),
                event_type: TYPE.into(),
                subject: format!("item-{}", n * 7 % ITEMS).into(),
                content_type: "application/json".into(),
                kind: DataKind::Json,
                data: data.clone(),
                attributes: Vec::new(),
                expected_version: None,
                first_attempt_time: None,
                time: None,
                fingerprint: [0; 32],
            };
            intent.fingerprint = fingerprint(&intent.content());
            after = after.advance(&intent.fingerprint, &intent.key);
            let accept_time = Time { seconds: 1_796_000_000, nanos: 0 };
            let event = Event { sequence: n as i64, subject_version: 1, accept_time, intent };
            Step::Next { event, after, judged: None }
        })
        .collect()
}

/// A fresh database, gone at the end.
fn opened(projection: &dyn Projection) -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = store::open(&directory.path().join("bench.db"), LOG, projection).expect("opened");
    (directory, store)
}

/// As the receiver does it with the file.
pub fn declared(steps: &[Step], batch: usize) -> Spent {
    written(Arc::new(projections::inventory()), steps, batch)
}

/// As the receiver does it with the same statements called from Rust.
pub fn called(steps: &[Step], batch: usize) -> Spent {
    written(Arc::new(Called::new()), steps, batch)
}

fn written(projection: Arc<dyn Projection>, steps: &[Step], batch: usize) -> Spent {
    let (_directory, store) = opened(projection.as_ref());
    let mut writer = Writer::new(store, None, projection);
    Spent::on(steps.len(), || {
        for group in steps.chunks(batch) {
            writer.attempt(group).expect("committed");
            writer.after_commit().expect("copied");
        }
    })
}

/// What the file does with the events here, as somebody writes it in Rust: its statements
/// word for word, given what is read out of the payload, and nothing that the file does beside
/// them.
struct Called {
    migrations: Vec<Migration>,
    adjust: String,
    add_to_total: String,
}

impl Called {
    fn new() -> Self {
        let file = projections::inventory();
        let handler = file.handler(TYPE).expect("taken");
        let [adjust, add_to_total] = &handler.sql[..] else { panic!("not the two statements") };
        let text = |effect: &Effect| effect.statement.text.clone();
        let migrations = file.migrations().to_vec();
        Called { migrations, adjust: text(adjust), add_to_total: text(add_to_total) }
    }
}

impl Projection for Called {
    fn name(&self) -> &str {
        "called"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        &self.migrations
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let intent = &event.intent;
        let read = inventory::read(intent).map_err(|error| Fault::payload(error.to_string()))?;
        let Some(Movement::Adjusted { delta }) = read else { return Ok(Applied::Ignored) };
        tables.statement(&self.adjust)?.execute(params![&*intent.subject, delta])?;
        tables.statement(&self.add_to_total)?.execute([delta])?;
        Ok(Applied::Done(None))
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }
}

/// The same statements and checkpoints, and nothing else.
pub fn raw(steps: &[Step], batch: usize) -> Spent {
    let inventory = projections::inventory();
    let effects = &inventory.handler(TYPE).expect("taken").sql;
    // All payloads are the same.
    let Some(Step::Next { event: first, .. }) = steps.first() else { return Spent::default() };
    let judged = inventory.judged(first).expect("as required");
    let (_directory, mut store) = opened(&inventory);
    Spent::on(steps.len(), || {
        let mut at = None;
        for group in steps.chunks(batch) {
            at = Some(raw_group(&store, effects, judged.values(), at, group));
            store.after_commit().expect("copied");
        }
    })
}

fn raw_group(
    store: &Store,
    effects: &[Effect],
    values: &Values,
    from: Option<Cursor>,
    group: &[Step],
) -> Cursor {
    let prepare = |sql| store.connection.prepare_cached(sql).expect("valid");
    let mut rows = Rows::of(&store.connection, LOG, 0).expect("valid");
    let statements = effects.iter().map(|effect| &effect.statement);
    let mut prepared: Vec<_> =
        statements.map(|statement| (statement, prepare(&statement.text))).collect();
    prepare("BEGIN IMMEDIATE").execute([]).expect("begun");
    let mut last = None;
    for block in group.chunks(BLOCK) {
        rows.claim_new(block.iter().map(Step::event)).expect("inserted");
        for step in block {
            let Step::Next { event, after, .. } = step else { unreachable!("all are new") };
            for (statement, prepared) in &mut prepared {
                declared::bind(prepared, statement, Given { event, values }).expect("bound");
                prepared.raw_execute().expect("done");
            }
            last = Some(*after);
        }
    }
    let last = last.expect("no group is empty");
    // The first makes the row, the others run `cursor::ADVANCE`.
    assert!(cursor::advance(&store.connection, LOG, from.as_ref(), &last).expect("moved"));
    prepare("COMMIT").execute([]).expect("committed");
    last
}
