//! The parts of a stored event that receipts are made of, borrowed from its
//! bytes, and the short hash of a name. Pure. Reading only what is needed keeps
//! the opening of a long log short.

use bytes::Buf;
use sha2::{Digest as _, Sha256};

use crate::proto::event::{Fingerprint, Time, intent_time_ms};

/// The first half of the SHA-256 of a key or a subject: nobody can make two
/// that collide, and the index stays small.
pub type Hash = [u8; 16];

/// The hash of a key or a subject.
pub fn hash(name: &str) -> Hash {
    let mut hash = [0; 16];
    hash.copy_from_slice(&Sha256::digest(name.as_bytes())[..16]);
    hash
}

/// What an event is looked up by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// Of its key.
    pub key: Hash,
    /// Of its subject.
    pub subject: Hash,
    /// Its time was stated beside the key; the key alone does not tell it.
    pub stated: bool,
}

impl Names {
    /// Of an event whose receipt is kept by this time.
    pub fn of(key: &str, subject: &str, time_ms: Option<i64>) -> Self {
        let stated = time_ms.is_some() && intent_time_ms(key, None).is_none();
        Names { key: hash(key), subject: hash(subject), stated }
    }
}

/// What a receipt needs of `counterfoil.v1.Event`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Stored<'a> {
    pub key: &'a str,
    pub subject: &'a str,
    pub subject_version: i64,
    pub fingerprint: Fingerprint,
    pub first_attempt_time: Option<Time>,
}

// Field numbers of `counterfoil.v1.Event`; a test holds them against the generated type.
const KEY: u64 = 2;
const SUBJECT: u64 = 4;
const SUBJECT_VERSION: u64 = 5;
const FINGERPRINT: u64 = 7;
const FIRST_ATTEMPT_TIME: u64 = 8;
// And of `google.protobuf.Timestamp`.
const SECONDS: u64 = 1;
const NANOS: u64 = 2;

/// Reads the parts out of an encoded event.
///
/// # Errors
/// What is wrong with the bytes.
pub fn stored(mut rest: &[u8]) -> Result<Stored<'_>, &'static str> {
    let mut stored = Stored::default();
    let mut fingerprint = None;
    while !rest.is_empty() {
        let tag = varint(&mut rest).ok_or(CUT)?;
        match (tag >> 3, tag & 7) {
            (SUBJECT_VERSION, 0) => stored.subject_version = varint(&mut rest).ok_or(CUT)? as i64,
            (field, 2) => {
                let bytes = sized(&mut rest).ok_or(CUT)?;
                let text = || std::str::from_utf8(bytes).map_err(|_| "a name is not UTF-8");
                match field {
                    KEY => stored.key = text()?,
                    SUBJECT => stored.subject = text()?,
                    FINGERPRINT => fingerprint = bytes.try_into().ok(),
                    FIRST_ATTEMPT_TIME => stored.first_attempt_time = Some(time(bytes)?),
                    _ => {}
                }
            }
            (_, wire_type) => skip(wire_type, &mut rest)?,
        }
    }
    stored.fingerprint = fingerprint.ok_or("a stored event has no fingerprint")?;
    Ok(stored)
}

const CUT: &str = "a stored event ends early";

/// Reads a time out of an encoded `google.protobuf.Timestamp`.
fn time(mut rest: &[u8]) -> Result<Time, &'static str> {
    let mut time = Time { seconds: 0, nanos: 0 };
    while !rest.is_empty() {
        let tag = varint(&mut rest).ok_or(CUT)?;
        match (tag >> 3, tag & 7) {
            (SECONDS, 0) => time.seconds = varint(&mut rest).ok_or(CUT)? as i64,
            (NANOS, 0) => time.nanos = varint(&mut rest).ok_or(CUT)? as u32,
            (_, wire_type) => skip(wire_type, &mut rest)?,
        }
    }
    Ok(time)
}

/// Goes past a field that is not needed.
fn skip(wire_type: u64, rest: &mut &[u8]) -> Result<(), &'static str> {
    match wire_type {
        0 => drop(varint(rest).ok_or(CUT)?),
        1 => drop(rest.try_get_u64().map_err(|_| CUT)?),
        2 => drop(sized(rest).ok_or(CUT)?),
        5 => drop(rest.try_get_u32().map_err(|_| CUT)?),
        _ => return Err("a stored event cannot be read"),
    }
    Ok(())
}

/// Bytes with their length before them.
fn sized<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(rest)?).ok()?;
    rest.split_off(..length)
}

/// A number in base 128, low digits first.
fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *rest.split_off_first()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::proto::pb;

    fn event() -> pb::Event {
        pb::Event {
            sequence: Some(300),
            key: "k-ü".into(),
            r#type: "stock.adjusted".into(),
            subject: "camera".into(),
            subject_version: Some(1 << 40),
            accept_time: Some(prost_types::Timestamp { seconds: -5, nanos: 7 }),
            fingerprint: vec![9; 32].into(),
            first_attempt_time: Some(prost_types::Timestamp { seconds: 1 << 33, nanos: 8 }),
            expected_version: Some(0),
            attributes: [("a".to_owned(), "b".to_owned())].into(),
            data: Some(pb::event::Data::Binary(vec![0xff; 300].into())),
            ..Default::default()
        }
    }

    #[test]
    fn it_reads_what_the_generated_type_writes() {
        let bytes = event().encode_to_vec();
        let expected = Stored {
            key: "k-ü",
            subject: "camera",
            subject_version: 1 << 40,
            fingerprint: [9; 32],
            first_attempt_time: Some(Time { seconds: 1 << 33, nanos: 8 }),
        };
        assert_eq!(stored(&bytes), Ok(expected));
    }

    #[test]
    fn no_part_of_an_event_makes_it_panic() {
        let bytes = event().encode_to_vec();
        for end in 0..bytes.len() {
            let _ = stored(&bytes[..end]);
            let mut flipped = bytes.clone();
            for bit in 0..8 {
                flipped[end] ^= 1 << bit;
                let _ = stored(&flipped);
            }
        }
        assert_eq!(stored(&[]), Err("a stored event has no fingerprint"));
    }

    #[test]
    fn a_time_is_stated_where_the_key_does_not_tell_it() {
        let v7 = "01980000-0000-7000-8000-000000000000";
        let stated = |key, time_ms| Names::of(key, "camera", time_ms).stated;
        assert!(stated("k", Some(7)) && !stated("k", None) && !stated(v7, Some(7)));
    }
}
