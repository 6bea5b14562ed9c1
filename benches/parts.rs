//! The parts of an event's way, each for itself and without a disk: what one event
//! costs in each of them.
//!
//! ```sh
//! cargo bench --no-default-features --features publisher --bench parts
//! ```

use std::{hint::black_box, time::Duration};

use bytes::{Bytes, BytesMut};
use counterfoil::{
    proto::{
        chain::{EMPTY_CHAIN, link},
        event::{Event, Intent, Time, fingerprint},
        limits::FRAME_EVENTS,
        pb, publishing, stored,
        wire::{self, DataForm},
    },
    publisher::{
        admit::Prepared,
        batch::Batch,
        frame::{Shape, pack},
        group::{Ground, Group},
        halt::Halt,
        log::{Entry, EventLog as _, memory::MemoryLog, segment},
        oldest::Oldest,
        receipts::{self, Receipts},
        retention::{Hold, Limits, OnAhead, WhenFull},
    },
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use prost::Message as _;
use tokio::sync::{oneshot, watch};
use uuid::Uuid;

const PAYLOADS: [usize; 2] = [100, 1_024];
const NOW: Time = Time { seconds: 1_800_000_000, nanos: 0 };

criterion_group!(parts, intents, groups, frames, replays);
criterion_main!(parts);

/// An adjustment of stock with a payload of so many bytes.
fn asked(turn: usize, bytes: usize) -> pb::NewEvent {
    let (before, after) = (r#"{"delta":3,"note":""#, r#""}"#);
    let note = "n".repeat(bytes - before.len() - after.len());
    pb::NewEvent {
        key: Uuid::now_v7().to_string(),
        r#type: "stock.adjusted".to_owned(),
        subject: format!("item-{}", turn % 1_000),
        data: Some(pb::new_event::Data::JsonText(format!("{before}{note}{after}"))),
        ..pb::NewEvent::default()
    }
}

fn intent(turn: usize, bytes: usize) -> Intent {
    wire::intent(asked(turn, bytes), format_args!("events"), NOW).expect("within all limits")
}

/// So many requests of one event each.
fn requests(count: usize) -> Batch {
    let (mut batch, mut room) = (Batch::default(), BytesMut::new());
    for turn in 0..count {
        batch.add(&mut vec![Prepared::new(&intent(turn, 100).stated(), &mut room)]);
    }
    batch
}

/// As the log holds them, from sequence 0 on.
fn entries(count: usize, bytes: usize) -> Vec<Entry> {
    let mut chain = EMPTY_CHAIN;
    (0..count)
        .map(|turn| {
            let (sequence, intent) = (turn as i64, intent(turn, bytes));
            chain = link(&chain, sequence, &intent.fingerprint, &intent.key);
            let event = Event { sequence, subject_version: 1, accept_time: NOW, intent };
            let accepted_at_ms = NOW.unix_millis();
            Entry { chain, accepted_at_ms, body: wire::stored(&event) }
        })
        .collect()
}

/// From a request to what the appender gets, and the two hashes of it.
fn intents(criterion: &mut Criterion) {
    for bytes in PAYLOADS {
        let mut group = criterion.benchmark_group(format!("intent, {bytes} B"));
        group.throughput(Throughput::Elements(1));
        let one = intent(1, bytes);
        let request = pb::PublishRequest { log: String::new(), events: vec![asked(1, bytes)] };
        let sent = Bytes::from(request.encode_to_vec());
        let received =
            || publishing::PublishRequest::decode(sent.clone()).expect("as it was sent").events;
        group.bench_function("decode a request", |bencher| bencher.iter(received));
        group.bench_function("check and hash", |bencher| {
            bencher.iter_batched(
                received,
                |mut events| {
                    let (mut attributes, at) = (Vec::new(), format_args!("events"));
                    let stated = wire::stated(&mut events[0], &mut attributes, at, NOW);
                    stated.expect("within all limits").fingerprint
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("fingerprint", |bencher| {
            bencher.iter(|| fingerprint(&black_box(&one).content()));
        });
        group.bench_function("chain link", |bencher| {
            bencher.iter(|| link(&EMPTY_CHAIN, 7, &one.fingerprint, black_box(&one.key)));
        });
        group.bench_function("Prepared::new", |bencher| {
            let (stated, mut room) = (one.stated(), BytesMut::new());
            bencher.iter(|| Prepared::new(black_box(&stated), &mut room));
        });
        group.finish();
    }
}

/// Deciding about a group, on an index in memory.
fn groups(criterion: &mut Criterion) {
    let engine = MemoryLog::new(Uuid::nil());
    let reader = engine.reader();
    let (shared, _store) = Receipts::in_memory(Uuid::nil());
    let (healthy, _) = watch::channel(true);
    let halt = Halt::new("main", healthy);
    let limits = Limits {
        max_events: 10_000_000,
        max_bytes: 1 << 32,
        max_age: None,
        when_full: WhenFull::DropOldest,
        key_window: Duration::from_secs(86_400),
        max_untimed_keys: 1_000_000,
        hold_for_receivers: false,
        hold_lease: Duration::from_secs(86_400),
        on_ahead: OnAhead::Alarm,
    };
    let receipts = receipts::look(&shared);
    let ground = Ground {
        receipts: &receipts,
        log: &*reader,
        limits: &limits,
        halt: &halt,
        hold: &Hold::NOTHING,
        suspect: None,
        now_ms: NOW.unix_millis(),
    };
    let mut group = criterion.benchmark_group("group, 100 B");
    for size in [128, 1_024] {
        group.throughput(Throughput::Elements(size as u64));
        group.bench_function(format!("take {size}"), |bencher| {
            let take = |batch| {
                let (mut group, mut oldest) =
                    (Group::new(reader.extent(), size), Oldest::default());
                group.take(batch, oneshot::channel().0, &ground, &mut oldest);
                group
            };
            bencher.iter_batched(|| requests(size), take, BatchSize::LargeInput);
        });
    }
    group.finish();
}

/// A frame as it is written to a segment.
fn frames(criterion: &mut Criterion) {
    for bytes in PAYLOADS {
        let mut group = criterion.benchmark_group(format!("segment, {bytes} B"));
        for size in [128, 1_024] {
            let entries = entries(size, bytes);
            let mut out = Vec::new();
            group.throughput(Throughput::Elements(size as u64));
            group.bench_function(format!("encode a frame of {size}"), |bencher| {
                bencher.iter(|| {
                    out.clear();
                    segment::format::encode_frame(&mut out, 7, 0, &entries, 0).expect("it fits");
                });
            });
        }
        group.finish();
    }
}

/// From the log to the receiver.
fn replays(criterion: &mut Criterion) {
    let shape = Shape { types: Vec::new(), form: DataForm::Stored };
    for bytes in PAYLOADS {
        let entries = entries(FRAME_EVENTS, bytes);
        let packed =
            || pack(Uuid::nil(), 0, &entries, &shape, None).expect("whole entries").batches;
        let sent = |batch| stored::ReplayResponse { frame: Some(stored::Frame::Batch(batch)) };
        let frames: Vec<_> = packed().into_iter().map(sent).collect();
        let mut group = criterion.benchmark_group(format!("replay, {bytes} B"));
        group.throughput(Throughput::Elements(FRAME_EVENTS as u64));
        group.bench_function(format!("pack {FRAME_EVENTS}"), |bencher| bencher.iter(packed));
        group.bench_function(format!("encode {FRAME_EVENTS}"), |bencher| {
            bencher.iter(|| frames.iter().map(|frame| frame.encode_to_vec().len()).sum::<usize>());
        });
        let received: Vec<_> =
            frames.iter().map(|frame| Bytes::from(frame.encode_to_vec())).collect();
        group.bench_function(format!("decode and check {FRAME_EVENTS}"), |bencher| {
            bencher.iter(|| received.iter().map(decoded).sum::<usize>());
        });
        group.finish();
    }
}

/// As a receiver does: every event checked, its fingerprint worked out anew.
fn decoded(frame: &Bytes) -> usize {
    let frame = stored::ReplayResponse::decode(frame.clone()).expect("as it was sent");
    let Some(stored::Frame::Batch(batch)) = frame.frame else { return 0 };
    let events = batch.events.into_iter().map(wire::replayed);
    events.map(|event| usize::from(event.is_ok())).sum()
}
