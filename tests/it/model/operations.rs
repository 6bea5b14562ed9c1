//! Histories, made up. An operation is a sketch: what it comes to is settled when
//! its turn comes, against what the model holds by then, so that right versions,
//! exact repeats and times near the bounds come about often, and a history of
//! which a part is left out is still one.

use std::{fmt, ops::Range};

use counterfoil::proto::crash;
use proptest::{collection::vec, option, prelude::*, sample};

use super::{Bounds, Hour, Intent, Key, Model};

/// Operations of one history. One that fails can be made smaller down to the lower end.
const LENGTH: Range<usize> = 0..200;

/// What happens, and the bounds that it begins under.
#[derive(Debug, Clone)]
pub struct History {
    pub bounds: Bounds,
    pub operations: Vec<Operation>,
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:?}", self.bounds)?;
        self.operations.iter().try_for_each(|operation| writeln!(f, "  {operation:?}"))
    }
}

#[derive(Debug, Clone)]
pub enum Operation {
    /// One request by a call of its own.
    Publish(Request),
    /// Requests on a stream that stays open, all sent before an answer is read.
    Stream(Vec<Request>),
    /// The same, and `kill -9` once so many answers have been read.
    KilledStream(Vec<Request>, usize),
    /// GetReceipt for the key of an earlier request, with or without its time.
    GetReceipt { which: sample::Index, stating: bool },
    /// GetReceipt for a key that nobody has stated.
    GetNothing(SketchedKey),
    /// GetLog, and a Replay of everything retained.
    Look,
    /// The system's clock is set, forward or back.
    SetClock(Hour),
    /// SIGTERM or `kill -9`, and a start, under other bounds where they are stated.
    Restart { kill: bool, key_window: Option<Hour>, max_untimed_keys: Option<usize> },
    /// `kill -9`, and a start; it will die at this crash point after so many passes.
    Arm { point: &'static str, after: u32 },
}

/// One request of Publish.
#[derive(Debug, Clone)]
pub enum Request {
    New(Vec<Sketch>),
    /// An earlier one once more, as it was or otherwise.
    Again {
        which: sample::Index,
        twist: Twist,
    },
}

/// What is changed about an earlier request.
#[derive(Debug, Clone)]
pub enum Twist {
    Nothing,
    /// The last event has other content.
    Content,
    /// The last event expects another version.
    Version(Option<i64>),
    /// The last event states another time, or none.
    Stated(Option<Hour>),
    /// The first event is left out.
    Without,
    /// A new event comes after it.
    With(Sketch),
}

/// An event that nobody has stated yet, or somebody has under the same key.
#[derive(Debug, Clone)]
pub struct Sketch {
    key: SketchedKey,
    /// Hours before now.
    stated: Option<Hour>,
    subject: u8,
    version: SketchedVersion,
    delta: i64,
}

#[derive(Debug, Clone, Copy)]
pub enum SketchedKey {
    Text(u16),
    /// So many hours before now.
    Uuid(Hour, u16),
}

#[derive(Debug, Clone, Copy)]
enum SketchedVersion {
    Absent,
    Right,
    Wrong(i64),
}

impl SketchedKey {
    pub fn settle(self, now: Hour) -> Key {
        match self {
            SketchedKey::Text(number) => Key::Text(number),
            SketchedKey::Uuid(ago, number) => Key::Uuid(now - ago, number),
        }
    }
}

impl Sketch {
    /// The event that comes after these in one request.
    fn settle(&self, model: &Model, before: &[Intent]) -> Intent {
        let Sketch { key, stated, subject, version, delta } = *self;
        let right = || {
            let before = before.iter().filter(|intent| intent.subject == subject);
            model.version(subject) + before.count() as i64
        };
        Intent {
            key: key.settle(model.clock),
            stated: stated.map(|ago| model.clock - ago),
            subject,
            expected_version: match version {
                SketchedVersion::Absent => None,
                SketchedVersion::Right => Some(right()),
                SketchedVersion::Wrong(by) => Some((right() + by).max(0)),
            },
            delta,
        }
    }
}

impl Request {
    /// The events that it comes to, after these earlier requests, one at least.
    pub fn settle(&self, model: &Model, made: &[Vec<Intent>]) -> Vec<Intent> {
        let sketched = |sketches: &[Sketch]| {
            sketches.iter().fold(Vec::new(), |mut intents, sketch| {
                intents.push(sketch.settle(model, &intents));
                intents
            })
        };
        let (which, twist) = match self {
            Request::New(sketches) => return sketched(sketches),
            Request::Again { which, twist } => (which, twist),
        };
        let mut intents = which.get(made).clone();
        let last = intents.last_mut().expect("a request has an event");
        match twist {
            Twist::Nothing => {}
            Twist::Content => last.delta += 1,
            Twist::Version(version) => last.expected_version = *version,
            Twist::Stated(ago) => last.stated = ago.map(|ago| model.clock - ago),
            Twist::Without if intents.len() > 1 => drop(intents.remove(0)),
            Twist::Without => {}
            Twist::With(sketch) => intents.push(sketch.settle(model, &intents)),
        }
        intents
    }
}

/// A history with its bounds.
pub fn history() -> impl Strategy<Value = History> {
    (bounds(), vec(operation(), LENGTH))
        .prop_map(|(bounds, operations)| History { bounds, operations })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let max_events = prop_oneof![Just(4_usize), Just(24), Just(100_000)];
    let max_age = prop_oneof![Just(5), Just(30), Just(168)];
    (key_window(), max_untimed_keys(), max_events, max_age, prop::bool::weighted(0.3)).prop_map(
        |(key_window, max_untimed_keys, max_events, max_age, reject)| Bounds {
            key_window,
            max_untimed_keys,
            // A log that rejects is soon full for good.
            max_events: if reject { max_events.max(16) } else { max_events },
            max_age,
            reject,
        },
    )
}

fn key_window() -> impl Strategy<Value = Hour> {
    prop_oneof![Just(6), Just(24), Just(72)]
}

fn max_untimed_keys() -> impl Strategy<Value = usize> {
    prop_oneof![1 => Just(3_usize), 1 => Just(12), 3 => Just(1_000)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let stream = || vec(request(), 1..8);
    prop_oneof![
        60 => request().prop_map(Operation::Publish),
        30 => stream().prop_map(Operation::Stream),
        2 => (stream(), 0..4_usize).prop_map(|(requests, read)| Operation::KilledStream(requests, read)),
        20 => (any::<sample::Index>(), any::<bool>())
            .prop_map(|(which, stating)| Operation::GetReceipt { which, stating }),
        3 => key().prop_map(Operation::GetNothing),
        2 => Just(Operation::Look),
        3 => clock_step().prop_map(Operation::SetClock),
        1 => (any::<bool>(), option::weighted(0.4, key_window()), option::weighted(0.3, max_untimed_keys()))
            .prop_map(|(kill, key_window, max_untimed_keys)| Operation::Restart { kill, key_window, max_untimed_keys }),
        4 => (sample::select(crash::PUBLISHER.to_vec()), 0..4_u32)
            .prop_map(|(point, after)| Operation::Arm { point, after }),
    ]
}

/// Hours from where the clock has come to; back, and on a little, and by days.
fn clock_step() -> impl Strategy<Value = Hour> {
    prop_oneof![4 => -40_i64..0, 12 => 1..6_i64, 1 => 20..100_i64]
}

fn request() -> impl Strategy<Value = Request> {
    prop_oneof![
        5 => vec(sketch(), 1..=3).prop_map(Request::New),
        5 => (any::<sample::Index>(), twist()).prop_map(|(which, twist)| Request::Again { which, twist }),
    ]
}

fn twist() -> impl Strategy<Value = Twist> {
    prop_oneof![
        8 => Just(Twist::Nothing),
        1 => Just(Twist::Content),
        1 => option::of(0..4_i64).prop_map(Twist::Version),
        1 => option::of(ago()).prop_map(Twist::Stated),
        1 => Just(Twist::Without),
        1 => sketch().prop_map(Twist::With),
    ]
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let version = prop_oneof![
        6 => Just(SketchedVersion::Absent),
        3 => Just(SketchedVersion::Right),
        1 => (-3_i64..=3).prop_map(SketchedVersion::Wrong),
    ];
    (key(), option::weighted(0.3, ago()), 0..4_u8, version, 1..3_i64).prop_map(
        |(key, stated, subject, version, delta)| Sketch { key, stated, subject, version, delta },
    )
}

fn key() -> impl Strategy<Value = SketchedKey> {
    prop_oneof![
        (0..1_000_u16).prop_map(SketchedKey::Text),
        (ago(), 0..40_u16).prop_map(|(ago, number)| SketchedKey::Uuid(ago, number)),
    ]
}

/// Mostly lately; near the bounds of each key window; now and then still to come.
fn ago() -> impl Strategy<Value = Hour> {
    prop_oneof![30 => 1..6_i64, 4 => 5..9_i64, 2 => 22..27_i64, 2 => 70..75_i64, 1 => -3..=0_i64]
}
