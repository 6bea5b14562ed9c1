//! Whether a request may be appended, given what is known of its keys and
//! subjects. Pure; the order of its checks is a promise to callers.

use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use hashbrown::HashMap;

use super::receipts::{Accepted, Hash, Names};
use crate::proto::{
    event::{Fingerprint, Sequence, Stated, Time, hex},
    limits::MAX_BATCH_BYTES,
    refusal::{Reason, Refusal},
    wire::{self, StoredContent},
};

/// An intent that only lacks its place in the log.
#[derive(Debug, Clone)]
pub struct Prepared {
    /// The part of its stored bytes that is known by now.
    pub content: StoredContent,
    /// What it is looked up by.
    pub names: Names,
    /// Of its content.
    pub fingerprint: Fingerprint,
    /// Accept only at this version of the subject.
    pub expected_version: Option<i64>,
    /// By which its receipt is kept, milliseconds since the Unix epoch; none: for ever.
    pub time_ms: Option<i64>,
}

impl Prepared {
    /// Encodes an intent behind what others have in `room`.
    pub fn new(intent: &Stated<'_>, room: &mut BytesMut) -> Self {
        let time_ms = intent.time_ms();
        Prepared {
            content: wire::content(intent, room),
            // A time that the key alone tells needs no second look.
            names: Names::of(
                intent.key,
                intent.content.subject,
                intent.content.first_attempt_time.and(time_ms),
            ),
            fingerprint: intent.fingerprint,
            expected_version: intent.content.expected_version,
            time_ms,
        }
    }

    /// Idempotency key, a text.
    pub fn key(&self) -> Bytes {
        Bytes::copy_from_slice(&self.content.bytes[self.content.key.clone()])
    }

    /// The same, for a person.
    fn key_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.content.bytes[self.content.key.clone()])
    }

    /// What it happened to, for a person.
    fn subject_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.content.bytes[self.content.subject.clone()])
    }

    /// Bytes that it will take, at most.
    pub fn stored_bytes(&self) -> usize {
        self.content.bytes.len() + wire::PLACE_BYTES
    }

    /// Its stored bytes, whole now, and its key as a slice of them. Here they are gone then.
    pub fn place(
        &mut self,
        sequence: Sequence,
        subject_version: i64,
        accept_time: Time,
    ) -> (Bytes, Bytes) {
        let StoredContent { bytes, key, .. } = std::mem::take(&mut self.content);
        let body = wire::place(bytes, sequence, subject_version, accept_time);
        let key = body.slice(key);
        (body, key)
    }
}

/// Bytes that events will take together, at most.
pub fn stored_bytes(events: &[Prepared]) -> usize {
    events.iter().map(Prepared::stored_bytes).sum()
}

/// What is to be done with a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// All of it is known with the same content: these are its receipts, in order.
    Duplicate(Vec<Accepted>),
    /// All of it is new: append it, with these versions of the subjects.
    Append(Vec<i64>),
}

/// One request names each key once.
///
/// # Errors
/// INVALID_FIELD with the indexes of both.
pub fn distinct_keys(events: &[Prepared]) -> Result<(), Refusal> {
    if events.len() < 2 {
        return Ok(());
    }
    let mut seen = HashMap::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        if let Some(first) = seen.insert(event.names.key, index) {
            let key = event.key_text();
            return Err(Refusal::field(
                format!("events[{index}].key"),
                format!("is {key:?}, the key of events[{first}] in the same request"),
            ));
        }
    }
    Ok(())
}

/// One request is not too large.
///
/// # Errors
/// BATCH_TOO_LARGE.
pub fn small_enough(events: &[Prepared]) -> Result<(), Refusal> {
    let bytes = stored_bytes(events);
    if bytes <= MAX_BATCH_BYTES {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::BatchTooLarge,
        format!("events: {bytes} bytes together, at most {MAX_BATCH_BYTES} are allowed"),
    )
    .at_field("events", format!("has {bytes} bytes"))
    .with("limit", MAX_BATCH_BYTES))
}

/// Decides about the events of one request, whose keys are distinct. `known`
/// holds the receipt of each key, where there is one; `version` gives the number
/// of a subject's events. Both include what is to be committed before it. No
/// receipt is known any more of intents from before `key_floor_ms`.
///
/// # Errors
/// KEY_CONFLICT, KEY_EXPIRED, PARTIAL_DUPLICATE or STALE_VERSION, whichever comes first.
pub fn admit(
    events: &[Prepared],
    known: &[Option<Accepted>],
    key_floor_ms: i64,
    version: impl Fn(&Hash) -> i64,
) -> Result<Admission, Refusal> {
    for (index, (event, receipt)) in events.iter().zip(known).enumerate() {
        if let Some(receipt) = receipt
            && receipt.fingerprint != event.fingerprint
        {
            return Err(key_conflict(index, event, receipt));
        }
    }
    for (index, (event, receipt)) in events.iter().zip(known).enumerate() {
        if let Some(time_ms) = event.time_ms
            && receipt.is_none()
            && time_ms < key_floor_ms
        {
            return Err(key_expired(index, event, time_ms, key_floor_ms));
        }
    }
    match known.iter().flatten().count() {
        0 => versions(events, version).map(Admission::Append),
        all if all == events.len() => {
            Ok(Admission::Duplicate(known.iter().flatten().cloned().collect()))
        }
        some => Err(partial_duplicate(some, known)),
    }
}

/// Whether there may be so many more keys without a time.
///
/// # Errors
/// KEYS_FULL.
pub fn room_for_keys(events: &[Prepared], untimed: u64, most: u64) -> Result<(), Refusal> {
    let adding = events.iter().filter(|event| event.time_ms.is_none()).count() as u64;
    if adding == 0 || untimed.saturating_add(adding) <= most {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::KeysFull,
        format!(
            "the log holds {untimed} keys without a time and may hold {most}; their receipts are \
             kept for ever, and none is dropped for a new one: use UUIDv7 keys or state \
             first_attempt_time, or raise max_untimed_keys"
        ),
    )
    .with("limit", "max_untimed_keys")
    .with("max_untimed_keys", most)
    .with("untimed_keys", untimed))
}

/// The version that each event gives its subject.
fn versions(events: &[Prepared], version: impl Fn(&Hash) -> i64) -> Result<Vec<i64>, Refusal> {
    let mut within = HashMap::new();
    let mut versions = Vec::with_capacity(events.len());
    for (index, event) in events.iter().enumerate() {
        let known = within.get(&event.names.subject).copied();
        let current = known.unwrap_or_else(|| version(&event.names.subject));
        if let Some(expected) = event.expected_version
            && expected != current
        {
            let subject = event.subject_text();
            return Err(Refusal::new(
                Reason::StaleVersion,
                format!(
                    "events[{index}]: subject {subject:?} is at version {current}, not at the \
                     expected {expected}; read again, decide again, publish under a new key"
                ),
            )
            .with("version", current)
            .with("expected_version", expected)
            .with("subject", subject)
            .with("index", index));
        }
        versions.push(current + 1);
        // Nobody asks after the last one, which mostly is the only one.
        if index + 1 < events.len() {
            within.insert(event.names.subject, current + 1);
        }
    }
    Ok(versions)
}

fn key_conflict(index: usize, event: &Prepared, receipt: &Accepted) -> Refusal {
    Refusal::new(
        Reason::KeyConflict,
        format!(
            "events[{index}]: key {:?} was accepted at sequence {} with other content; \
             another intent needs another key",
            event.key_text(),
            receipt.sequence
        ),
    )
    .with("sequence", receipt.sequence)
    .with("fingerprint", hex(&receipt.fingerprint))
    .with("key", event.key_text())
    .with("index", index)
}

fn key_expired(index: usize, event: &Prepared, time_ms: i64, key_floor_ms: i64) -> Refusal {
    let (time, floor) = (wire::time_text(time_ms), wire::time_text(key_floor_ms));
    Refusal::new(
        Reason::KeyExpired,
        format!(
            "events[{index}]: key {:?} is not known, and its intent is of {time}, before the key \
             floor {floor}: whether it was accepted is no longer known; nothing was written. Find \
             out whether it took effect before you state it under a new key",
            event.key_text()
        ),
    )
    .with("key_floor", floor)
    .with("time", time)
    .with("key", event.key_text())
    .with("index", index)
}

fn partial_duplicate(some: usize, known: &[Option<Accepted>]) -> Refusal {
    let first_new = known.iter().position(Option::is_none).unwrap_or_default();
    Refusal::new(
        Reason::PartialDuplicate,
        format!(
            "{some} of {} keys are known, events[{first_new}] is not; nothing was written: \
             send the batch as it was first sent, or its events one by one",
            known.len()
        ),
    )
    .with("known", some)
    .with("index", first_new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::{receipts::hash, testing::intent};

    fn new(key: &str, subject: &str) -> Prepared {
        Prepared::new(&intent(key, subject).stated(), &mut BytesMut::new())
    }

    fn receipt(event: &Prepared, sequence: i64) -> Accepted {
        Accepted {
            sequence,
            subject_version: sequence + 1,
            fingerprint: event.fingerprint,
            accepted_at_ms: 7,
            time_ms: event.time_ms,
        }
    }

    fn expecting(key: &str, subject: &str, version: i64) -> Prepared {
        Prepared { expected_version: Some(version), ..new(key, subject) }
    }

    /// An intent of so many milliseconds.
    fn at(time_ms: i64, event: &Prepared) -> Prepared {
        Prepared { time_ms: Some(time_ms), ..event.clone() }
    }

    const KEY_FLOOR_MS: i64 = 1_000;

    #[test]
    fn the_order_of_checks() {
        let (a, b) = (new("a", "camera"), new("b", "camera"));
        let other = Accepted { fingerprint: [9; 32], ..receipt(&a, 3) };
        let stale = expecting("a", "camera", 4);
        let append = |versions: &[i64]| Ok(Admission::Append(versions.to_vec()));
        // (case, events, receipts, expectation); "camera" has 5 events.
        type Case = (&'static str, Vec<Prepared>, Vec<Option<Accepted>>, Result<Admission, Reason>);
        let cases: Vec<Case> = vec![
            ("new", vec![a.clone()], vec![None], append(&[6])),
            ("new batch", vec![a.clone(), b.clone()], vec![None, None], append(&[6, 7])),
            ("right version", vec![expecting("a", "camera", 5)], vec![None], append(&[6])),
            ("no events yet", vec![expecting("a", "lens", 0)], vec![None], append(&[1])),
            (
                "versions grow within the batch",
                vec![expecting("a", "camera", 5), expecting("b", "camera", 6)],
                vec![None, None],
                append(&[6, 7]),
            ),
            (
                "the second of a batch is stale",
                vec![expecting("a", "camera", 5), expecting("b", "camera", 5)],
                vec![None, None],
                Err(Reason::StaleVersion),
            ),
            ("stale", vec![stale.clone()], vec![None], Err(Reason::StaleVersion)),
            (
                "PUB-02: a repeat is answered though its version is stale by now",
                vec![stale.clone()],
                vec![Some(receipt(&stale, 3))],
                Ok(Admission::Duplicate(vec![receipt(&stale, 3)])),
            ),
            ("other content", vec![a.clone()], vec![Some(other.clone())], Err(Reason::KeyConflict)),
            (
                "partly known",
                vec![a.clone(), b.clone()],
                vec![Some(receipt(&a, 3)), None],
                Err(Reason::PartialDuplicate),
            ),
            (
                "a conflict is said before a partial duplicate",
                vec![a.clone(), b.clone()],
                vec![Some(other.clone()), None],
                Err(Reason::KeyConflict),
            ),
            (
                "an unknown key from before the key floor",
                vec![at(999, &a)],
                vec![None],
                Err(Reason::KeyExpired),
            ),
            ("one from the key floor itself", vec![at(1_000, &a)], vec![None], append(&[6])),
            (
                "a receipt that is still held is given, whatever its time",
                vec![at(1, &a)],
                vec![Some(receipt(&a, 3))],
                Ok(Admission::Duplicate(vec![receipt(&a, 3)])),
            ),
            (
                "an expired key is said before a partial duplicate",
                vec![a.clone(), at(1, &b)],
                vec![Some(receipt(&a, 3)), None],
                Err(Reason::KeyExpired),
            ),
            (
                "an expired key is said before a stale version",
                vec![at(1, &stale)],
                vec![None],
                Err(Reason::KeyExpired),
            ),
            (
                "a conflict is said before an expired key",
                vec![a.clone(), at(1, &b)],
                vec![Some(other.clone()), None],
                Err(Reason::KeyConflict),
            ),
            (
                "a partial duplicate is said before a stale version",
                vec![b.clone(), stale],
                vec![Some(receipt(&b, 3)), None],
                Err(Reason::PartialDuplicate),
            ),
        ];
        for (case, events, known, expected) in cases {
            let version = |subject: &Hash| if *subject == hash("camera") { 5 } else { 0 };
            let decided =
                admit(&events, &known, KEY_FLOOR_MS, version).map_err(|refusal| refusal.reason);
            assert_eq!(decided, expected, "{case}");
        }
    }

    #[test]
    fn refusals_carry_the_numbers() {
        let a = expecting("a", "camera", 4);
        let stale = admit(std::slice::from_ref(&a), &[None], 0, |_| 5).expect_err("stale");
        assert!(stale.metadata.contains(&("version", "5".to_owned())));
        assert!(stale.metadata.contains(&("expected_version", "4".to_owned())));
        let first = Accepted { fingerprint: [9; 32], ..receipt(&a, 3) };
        let conflict = admit(&[a], &[Some(first)], 0, |_| 5).expect_err("conflict");
        assert!(conflict.metadata.contains(&("sequence", "3".to_owned())));
        assert!(conflict.metadata.contains(&("fingerprint", "09".repeat(32))));
    }

    #[test]
    fn keys_without_a_time_are_counted_and_others_are_not() {
        let untimed = [new("a", "x"), new("b", "x"), at(1, &new("c", "x"))];
        assert_eq!(room_for_keys(&untimed, 8, 10), Ok(()));
        assert_eq!(room_for_keys(&untimed[2..], 10, 10), Ok(()));
        assert_eq!(room_for_keys(&untimed[2..], 11, 10), Ok(()), "the bound has been lowered");
        let refused = room_for_keys(&untimed, 9, 10).expect_err("full");
        assert_eq!(refused.reason, Reason::KeysFull);
        assert!(refused.metadata.contains(&("untimed_keys", "9".to_owned())));
    }

    #[test]
    fn a_key_twice_in_one_request_names_both() {
        let events = [new("a", "x"), new("b", "x"), new("a", "y")];
        let refusal = distinct_keys(&events).expect_err("twice");
        assert_eq!(refusal.reason, Reason::InvalidField);
        assert_eq!(refusal.fields[0].0, "events[2].key");
        assert!(refusal.message.contains("events[0]"), "{refusal}");
        assert_eq!(distinct_keys(&events[..2]), Ok(()));
    }
}
