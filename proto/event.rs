//! Checked content: what a producer states (an [`Intent`]), what a log holds
//! (an [`Event`]), and the fingerprint of content. Pure.

use std::time::Duration;

use bytes::Bytes;
use bytestring::ByteString;
use sha2::{Digest, Sha256};
use uuid::{Uuid, Variant, Version};

/// Place in a log, from 0. -1 stands for "before the first".
pub type Sequence = i64;
/// SHA-256 of an intent's content.
pub type Fingerprint = [u8; 32];

/// Attributes that carry tracing context. They differ between attempts at one
/// intent, so they are no part of its content.
const TRACING_ATTRIBUTES: [&str; 2] = ["traceparent", "tracestate"];

/// The type of what stands in a forked log for an event that is lost. No producer can publish
/// one.
pub const LOST_TYPE: &str = "counterfoil.lost";

/// A point in time as protobuf states it. `nanos` is 0..1_000_000_000.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds since the Unix epoch.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanos: u32,
}

/// How payload bytes are to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataKind {
    /// Valid JSON text in UTF-8.
    Json,
    /// Any bytes.
    Binary,
}

impl DataKind {
    /// The content type that stands for an empty one.
    pub fn default_content_type(self) -> &'static str {
        match self {
            DataKind::Json => "application/json",
            DataKind::Binary => "application/octet-stream",
        }
    }
}

/// One business intent, all fields within their limits, with its fingerprint. Its texts and its
/// payload may be slices of what it came in, which stays in memory as long as one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Intent {
    /// Idempotency key.
    pub key: ByteString,
    /// What happened. Named so because `type` is a word of Rust's.
    pub event_type: ByteString,
    /// What it happened to.
    pub subject: ByteString,
    /// Media type, never empty.
    pub content_type: ByteString,
    /// How to read `data`.
    pub kind: DataKind,
    /// The payload.
    pub data: Bytes,
    /// Sorted by name's bytes, names unique.
    pub attributes: Vec<(String, String)>,
    /// Accept only at this version of the subject.
    pub expected_version: Option<i64>,
    /// When the first attempt was made.
    pub first_attempt_time: Option<Time>,
    /// When it happened, for people.
    pub time: Option<Time>,
    /// Over everything above but `key` and `time`; see [`fingerprint`].
    pub fingerprint: Fingerprint,
}

/// An accepted event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Place in the log.
    pub sequence: Sequence,
    /// Number of the subject's accepted events, this one included.
    pub subject_version: i64,
    /// The publisher's clock at acceptance.
    pub accept_time: Time,
    /// What was stated.
    pub intent: Intent,
}

/// The content that a fingerprint is made of, borrowed.
#[derive(Debug, Clone, Copy)]
pub struct Content<'a> {
    /// What happened.
    pub event_type: &'a str,
    /// What it happened to.
    pub subject: &'a str,
    /// Media type, never empty.
    pub content_type: &'a str,
    /// The payload.
    pub data: &'a [u8],
    /// Sorted by name's bytes.
    pub attributes: &'a [(String, String)],
    /// Version asked for.
    pub expected_version: Option<i64>,
    /// First attempt's time.
    pub first_attempt_time: Option<Time>,
}

/// An intent whose parts are borrowed, all of them checked.
#[derive(Debug, Clone, Copy)]
pub struct Stated<'a> {
    /// Idempotency key.
    pub key: &'a str,
    /// What its fingerprint covers.
    pub content: Content<'a>,
    /// How to read the payload.
    pub kind: DataKind,
    /// When it happened, for people.
    pub time: Option<Time>,
    /// See [`fingerprint`].
    pub fingerprint: Fingerprint,
}

/// SHA-256 over one unambiguous spelling of the content: a version byte, then
/// each part with its length before it. `docs/fingerprint.md` has the layout
/// and test vectors.
pub fn fingerprint(content: &Content<'_>) -> Fingerprint {
    let mut hash = Sha256::new();
    hash.update([0x01]);
    for part in [content.event_type, content.subject, content.content_type] {
        update_sized(&mut hash, part.as_bytes());
    }
    update_sized(&mut hash, content.data);
    let counted = || {
        content.attributes.iter().filter(|(name, _)| !TRACING_ATTRIBUTES.contains(&name.as_str()))
    };
    hash.update(be32(counted().count()));
    for (name, value) in counted() {
        update_sized(&mut hash, name.as_bytes());
        update_sized(&mut hash, value.as_bytes());
    }
    match content.expected_version {
        None => hash.update([0]),
        Some(version) => {
            hash.update([1]);
            hash.update(version.to_be_bytes());
        }
    }
    match content.first_attempt_time {
        None => hash.update([0]),
        Some(time) => {
            hash.update([1]);
            hash.update(time.seconds.to_be_bytes());
            hash.update(time.nanos.to_be_bytes());
        }
    }
    hash.finalize().into()
}

fn update_sized(hash: &mut Sha256, bytes: &[u8]) {
    hash.update(be32(bytes.len()));
    hash.update(bytes);
}

/// Lengths are bounded by `limits`, far below 2^32.
fn be32(length: usize) -> [u8; 4] {
    (length as u32).to_be_bytes()
}

impl Intent {
    /// See [`intent_time_ms`].
    pub fn time_ms(&self) -> Option<i64> {
        intent_time_ms(&self.key, self.first_attempt_time)
    }

    /// The same, borrowed.
    pub fn stated(&self) -> Stated<'_> {
        Stated {
            key: &self.key,
            content: self.content(),
            kind: self.kind,
            time: self.time,
            fingerprint: self.fingerprint,
        }
    }

    /// The part of the intent that its fingerprint covers.
    pub fn content(&self) -> Content<'_> {
        Content {
            event_type: &self.event_type,
            subject: &self.subject,
            content_type: &self.content_type,
            data: &self.data,
            attributes: &self.attributes,
            expected_version: self.expected_version,
            first_attempt_time: self.first_attempt_time,
        }
    }
}

impl Stated<'_> {
    /// See [`intent_time_ms`].
    pub fn time_ms(&self) -> Option<i64> {
        intent_time_ms(self.key, self.content.first_attempt_time)
    }

    /// The same, owned.
    pub fn to_intent(&self) -> Intent {
        let Content { event_type, subject, content_type, data, attributes, .. } = self.content;
        Intent {
            key: self.key.into(),
            event_type: event_type.into(),
            subject: subject.into(),
            content_type: content_type.into(),
            kind: self.kind,
            data: Bytes::copy_from_slice(data),
            attributes: attributes.to_owned(),
            expected_version: self.content.expected_version,
            first_attempt_time: self.content.first_attempt_time,
            time: self.time,
            fingerprint: self.fingerprint,
        }
    }
}

/// The time of an intent, by which its receipt is kept, in milliseconds since the
/// Unix epoch: its first attempt's or the one inside a UUIDv7 key (RFC 9562, written
/// with hyphens), the later of the two, so that a receipt is never gone before such a
/// key tells it by itself. None: its receipt is kept for ever.
pub fn intent_time_ms(key: &str, first_attempt_time: Option<Time>) -> Option<i64> {
    first_attempt_time.map(Time::unix_millis).max(uuid_v7_ms(key))
}

/// The time inside a key that is a UUIDv7.
fn uuid_v7_ms(key: &str) -> Option<i64> {
    /// Other spellings are taken for text: a hash in hexadecimal is no UUID.
    const HYPHENATED: usize = 36;
    let id = (key.len() == HYPHENATED).then(|| Uuid::try_parse(key).ok())??;
    if id.get_version() != Some(Version::SortRand) || id.get_variant() != Variant::RFC4122 {
        return None;
    }
    let (high, low) = (id.as_fields().0, id.as_fields().1);
    Some(i64::from(high) << 16 | i64::from(low))
}

impl Time {
    /// The time of a system clock. Before 1970 counts as 1970.
    pub fn from_system(at: std::time::SystemTime) -> Self {
        let since = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Time { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() }
    }

    /// Milliseconds since the Unix epoch, rounded down, kept within `i64`.
    pub fn unix_millis(self) -> i64 {
        self.seconds.saturating_mul(1_000).saturating_add(i64::from(self.nanos / 1_000_000))
    }

    /// Back from [`Time::unix_millis`].
    pub fn from_unix_millis(millis: i64) -> Self {
        Time {
            seconds: millis.div_euclid(1_000),
            nanos: (millis.rem_euclid(1_000) * 1_000_000) as u32,
        }
    }
}

/// A duration in milliseconds, kept within `i64`.
pub fn duration_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Lower-case hexadecimal, as people and tools print hashes.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content() -> Content<'static> {
        Content {
            event_type: "stock.adjusted",
            subject: "camera",
            content_type: "application/json",
            data: br#"{"delta":3}"#,
            attributes: &[],
            expected_version: None,
            first_attempt_time: None,
        }
    }

    #[test]
    fn tracing_context_is_no_content() {
        let traced = [
            ("shop".to_owned(), "1".to_owned()),
            ("traceparent".to_owned(), "00-ab-cd-01".to_owned()),
            ("tracestate".to_owned(), "x=1".to_owned()),
        ];
        let plain = &traced[..1];
        assert_eq!(
            fingerprint(&Content { attributes: &traced, ..content() }),
            fingerprint(&Content { attributes: plain, ..content() })
        );
    }

    #[test]
    fn every_part_counts() {
        let one = [("a".to_owned(), "b".to_owned())];
        let at = Time { seconds: 0, nanos: 0 };
        let all = [
            content(),
            Content { event_type: "stock.adjustedc", subject: "amera", ..content() },
            Content { subject: "", ..content() },
            Content { content_type: "text/json", ..content() },
            Content { data: b"", ..content() },
            Content { attributes: &one, ..content() },
            Content { expected_version: Some(0), ..content() },
            Content { first_attempt_time: Some(at), ..content() },
        ];
        let prints: std::collections::HashSet<_> = all.iter().map(fingerprint).collect();
        assert_eq!(prints.len(), all.len());
    }

    #[test]
    fn an_intent_has_the_time_it_states_or_the_one_in_its_key_if_that_is_later() {
        // The example of RFC 9562, A.6.
        let v7 = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F";
        let stated = Some(Time { seconds: 2, nanos: 3_000_000 });
        let cases = [
            (v7, None, Some(1_645_557_742_000)),
            (v7, stated, Some(1_645_557_742_000)),
            (v7, Some(Time::from_unix_millis(1_645_557_742_001)), Some(1_645_557_742_001)),
            ("order-77", stated, Some(2_003)),
            ("order-77", None, None),
            ("017f22e279b07cc398c4dc0c0c07398f", None, None),
            ("{017f22e2-79b0-7cc3-98c4-dc0c0c0739}", None, None),
            ("017f22e2-79b0-4cc3-98c4-dc0c0c07398f", None, None),
            ("017f22e2-79b0-7cc3-18c4-dc0c0c07398f", None, None),
            ("017f22e2-79b0-7cc3-98c4-dc0c0c07398g", None, None),
        ];
        for (key, first_attempt_time, time_ms) in cases {
            assert_eq!(intent_time_ms(key, first_attempt_time), time_ms, "{key}");
        }
    }

    #[test]
    fn millis_go_there_and_back() {
        for millis in [-1, 0, 1, 1_796_000_000_123] {
            assert_eq!(Time::from_unix_millis(millis).unix_millis(), millis);
        }
    }
}
