//! What applying costs beside the statements themselves: the receiver's writer, and the
//! same statements prepared once by hand on the same kind of connection.
//!
//! ```sh
//! cargo bench --no-default-features --features receiver --bench apply
//! TMPDIR=/a/real/disk …
//! ```
//! Each run starts on a fresh database in `TMPDIR`, which should not be in memory: a commit
//! costs a sync. After each pair the ratio is printed, by the clock and by processor time.

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
        outcome::Outcome,
    },
    receiver::{
        decide::Step,
        inventory::{ADD_TO_TOTAL, ADJUST, Inventory},
        store::{self, Store, cursor, ledger::INSERT},
        writer::Writer,
    },
};
use criterion::{
    BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main,
};
use rusqlite::params;
use uuid::Uuid;

const LOG: &str = "main";
const ITEMS: usize = 1_000;
const DELTA: i64 = 1;
/// Events of one commit.
const BATCHES: [usize; 4] = [1, 16, 128, 1_024];
const PAYLOADS: [usize; 2] = [100, 1_024];
/// Of one run, as long as that is not too many commits.
const EVENTS: usize = 64 * 1_024;
const COMMITS: usize = 512;

fn benches(criterion: &mut Criterion) {
    for payload in PAYLOADS {
        for batch in BATCHES {
            compare(criterion, payload, batch);
        }
    }
}

fn compare(criterion: &mut Criterion, payload: usize, batch: usize) {
    let steps = steps(EVENTS.min(batch * COMMITS), payload);
    let mut group = criterion.benchmark_group(format!("{payload} B"));
    group.sample_size(10).sampling_mode(SamplingMode::Flat);
    group.throughput(Throughput::Elements(steps.len() as u64));
    let mut spent = [Spent::default(); 2];
    let ways: [Way; 2] = [("raw", raw), ("writer", written)];
    for ((name, way), sum) in ways.into_iter().zip(&mut spent) {
        group.bench_function(BenchmarkId::new(name, batch), |bencher| {
            bencher.iter_custom(|runs| {
                let run = (0..runs).fold(Spent::default(), |all, _| all.plus(way(&steps, batch)));
                *sum = sum.plus(run);
                run.clock
            });
        });
    }
    group.finish();
    let [raw, writer] = spent;
    if raw.events > 0 && writer.events > 0 {
        let each = |spent: Spent, time: Duration| time.as_secs_f64() * 1e6 / spent.events as f64;
        let ratio = |of: fn(&Spent) -> Duration| each(raw, of(&raw)) / each(writer, of(&writer));
        println!(
            "{payload} B, {batch} a commit: {:.2} of raw by the clock, {:.2} by processor time \
             ({:.2} and {:.2} us an event)\n",
            ratio(|spent| spent.clock),
            ratio(|spent| spent.processor),
            each(raw, raw.processor),
            each(writer, writer.processor),
        );
    }
}

/// A name, and what applies steps so many at a time.
type Way = (&'static str, fn(&[Step], usize) -> Spent);

/// What some events have cost.
#[derive(Debug, Clone, Copy, Default)]
struct Spent {
    events: usize,
    clock: Duration,
    processor: Duration,
}

impl Spent {
    fn on(events: usize, work: impl FnOnce()) -> Self {
        let (start, used) = (Instant::now(), processor());
        work();
        Spent { events, clock: start.elapsed(), processor: processor() - used }
    }

    fn plus(self, more: Spent) -> Self {
        Spent {
            events: self.events + more.events,
            clock: self.clock + more.clock,
            processor: self.processor + more.processor,
        }
    }
}

/// What this thread has run for.
fn processor() -> Duration {
    let told = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = told.split(' ').next().and_then(|nanos| nanos.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// `stock.adjusted` on a thousand items, with keys as producers make them.
fn steps(count: usize, payload: usize) -> Vec<Step> {
    let frame = r#"{"delta":1,"note":""}"#.len();
    let data = format!(r#"{{"delta":{DELTA},"note":"{}"}}"#, "x".repeat(payload - frame));
    let data = Bytes::from(data);
    let mut after = Cursor::beginning(Uuid::from_u128(1));
    (0..count)
        .map(|n| {
            let mut intent = Intent {
                key: Uuid::now_v7().to_string(),
                event_type: "stock.adjusted".to_owned(),
                subject: format!("item-{}", n * 7 % ITEMS),
                content_type: "application/json".to_owned(),
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
            Step::Next { event, after }
        })
        .collect()
}

/// A fresh database, gone at the end.
fn opened() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = store::open(&directory.path().join("bench.db"), LOG, &Inventory).expect("opened");
    (directory, store)
}

/// As the receiver does it.
fn written(steps: &[Step], batch: usize) -> Spent {
    let (_directory, store) = opened();
    let mut writer = Writer::new(store, None, Arc::new(Inventory));
    Spent::on(steps.len(), || {
        for group in steps.chunks(batch) {
            writer.attempt(group).expect("committed");
            writer.after_commit().expect("copied");
        }
    })
}

/// The same statements and checkpoints, and nothing else.
fn raw(steps: &[Step], batch: usize) -> Spent {
    let (_directory, mut store) = opened();
    Spent::on(steps.len(), || {
        let mut at = None;
        for group in steps.chunks(batch) {
            at = Some(raw_group(&store, at, group));
            store.after_commit().expect("copied");
        }
    })
}

fn raw_group(store: &Store, from: Option<Cursor>, group: &[Step]) -> Cursor {
    let prepare = |sql| store.connection.prepare_cached(sql).expect("valid");
    let (mut insert, mut adjust, mut add) =
        (prepare(INSERT), prepare(ADJUST), prepare(ADD_TO_TOTAL));
    prepare("BEGIN IMMEDIATE").execute([]).expect("begun");
    let mut last = None;
    for step in group {
        let Step::Next { event, after } = step else { unreachable!("all are new") };
        let intent = &event.intent;
        insert
            .execute(params![
                LOG,
                event.sequence,
                intent.key,
                intent.fingerprint,
                Outcome::Applied.as_str(),
                None::<&str>,
                event.accept_time.seconds,
            ])
            .expect("inserted");
        adjust.execute(params![intent.subject, DELTA]).expect("adjusted");
        add.execute([DELTA]).expect("added");
        last = Some(*after);
    }
    let last = last.expect("no group is empty");
    // The first makes the row, the others run `cursor::ADVANCE`.
    assert!(cursor::advance(&store.connection, LOG, from.as_ref(), &last).expect("moved"));
    prepare("COMMIT").execute([]).expect("committed");
    last
}

criterion_group!(all, benches);
criterion_main!(all);
