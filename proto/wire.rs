//! The only place where wire messages and checked types turn into each other.
//! Nothing behind it sees a generated type, and nothing before it is trusted.

pub mod snapshot;

use std::{
    collections::BTreeMap,
    fmt::Arguments,
    ops::{Range, RangeInclusive},
};

use bytes::{BufMut as _, Bytes, BytesMut};
use bytestring::ByteString;
use prost::Message as _;
use uuid::Uuid;

use super::{
    chain::{Chain, Cursor, EMPTY_CHAIN},
    event::{
        Content, DataKind, Event, Fingerprint, Intent, Sequence, Stated, Time, duration_millis,
        fingerprint, intent_time_ms,
    },
    limits::*,
    outcome::{Outcome, Report, Reported},
    pb,
    publishing::{Data, NewEvent},
    refusal::{Reason, Refusal},
    stored, surrogates,
};

/// Most bytes that [`place`] adds to an event's content.
pub const PLACE_BYTES: usize = 39;

/// How payloads are shown on a Replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataForm {
    /// JSON as text, anything else as bytes.
    Stored,
    /// JSON objects as Struct where that loses nothing.
    Json,
    /// Everything as bytes.
    Binary,
}

/// Checks one event of a Publish. `at` is its path in the request, such as
/// `events[3]`; `now` the publisher's clock.
///
/// # Errors
/// INVALID_FIELD or EVENT_TOO_LARGE, each naming the field and the limit.
pub fn intent(event: pb::NewEvent, at: Arguments<'_>, now: Time) -> Result<Intent, Refusal> {
    let (mut event, mut attributes) = (NewEvent::from(event), Vec::new());
    stated(&mut event, &mut attributes, at, now).map(|stated| stated.to_intent())
}

/// The same, borrowed from an event whose texts are known to be text. A Struct in it is
/// turned into its text there, and its attributes move to `attributes`.
///
/// # Errors
/// As [`intent`].
pub fn stated<'a>(
    event: &'a mut NewEvent,
    attributes: &'a mut Vec<(String, String)>,
    at: Arguments<'_>,
    now: Time,
) -> Result<Stated<'a>, Refusal> {
    let field = |name: &str| format!("{at}.{name}");
    let key = checked_text(&event.key, 1, MAX_KEY_BYTES)
        .map_err(|wrong| Refusal::field(field("key"), wrong))?;
    let event_type = checked_text(&event.event_type, 1, MAX_TYPE_BYTES)
        .and_then(check_type)
        .map_err(|wrong| Refusal::field(field("type"), wrong))?;
    let subject = checked_text(&event.subject, 0, MAX_SUBJECT_BYTES)
        .map_err(|wrong| Refusal::field(field("subject"), wrong))?;
    let content_type = checked_text(&event.content_type, 0, MAX_CONTENT_TYPE_BYTES)
        .map_err(|wrong| Refusal::field(field("content_type"), wrong))?;
    if event.attributes.len() > MAX_ATTRIBUTES {
        let count = event.attributes.len();
        return Err(Refusal::field(
            field("attributes"),
            format!("has {count} attributes, at most {MAX_ATTRIBUTES} are allowed"),
        ));
    }
    for (name, value) in &event.attributes {
        check_text(name, 1, MAX_ATTRIBUTE_NAME_BYTES)
            .map_err(|wrong| Refusal::field(field("attributes"), format!("a name {wrong}")))?;
        if value.len() > MAX_ATTRIBUTE_VALUE_BYTES {
            let length = value.len();
            return Err(Refusal::field(
                field(&format!("attributes[{name}]")),
                format!("has {length} bytes, at most {MAX_ATTRIBUTE_VALUE_BYTES} are allowed"),
            ));
        }
    }
    if let Some(version) = event.expected_version
        && version < 0
    {
        return Err(Refusal::field(
            field("expected_version"),
            format!("is {version}; it must be 0 or more, or absent"),
        ));
    }
    let first_attempt_time = event
        .first_attempt_time
        .map(|time| checked_time(time, &field("first_attempt_time")))
        .transpose()?;
    if let Some(time_ms) = intent_time_ms(key, first_attempt_time) {
        let lead_ms = time_ms.saturating_sub(now.unix_millis());
        if lead_ms > duration_millis(MAX_CLOCK_LEAD) {
            let (name, what) = match intent_time_ms(key, None) {
                Some(in_key) if in_key == time_ms => ("key", "is a UUIDv7 whose time lies"),
                _ => ("first_attempt_time", "lies"),
            };
            return Err(Refusal::field(
                field(name),
                format!(
                    "{what} {} s ahead of the publisher's clock, at most {} s are allowed",
                    lead_ms / 1_000,
                    MAX_CLOCK_LEAD.as_secs()
                ),
            ));
        }
    }
    let time = event.time.map(|time| checked_time(time, &field("time"))).transpose()?;
    if let Some(Data::Json(object)) = &mut event.data {
        let text = canonical_json(std::mem::take(object)).map_err(|Misfit { path, wrong }| {
            Refusal::field(field(&format!("json{path}")), wrong)
        })?;
        check_data_size(text.len(), at)?;
        event.data = Some(Data::JsonText(text));
    } else if let Some(Data::JsonText(text)) = &event.data {
        check_data_size(text.len(), at)?;
        if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(text) {
            return Err(Refusal::field(field("json_text"), format!("is not JSON: {error}")));
        }
        if let Some(place) = surrogates::lone(text) {
            let escape = String::from_utf8_lossy(&text[place..place + 6]).into_owned();
            let wrong = format!(
                "has {escape} at byte {place}, half of a surrogate pair, which is no character; \
                 write both halves, or send other text"
            );
            return Err(Refusal::field(field("json_text"), wrong));
        }
    }
    let (kind, data): (_, &[u8]) = match &event.data {
        Some(Data::JsonText(text)) => (DataKind::Json, text),
        Some(Data::Binary(bytes)) => (DataKind::Binary, bytes),
        Some(Data::Json(_)) | None => (DataKind::Binary, &[]),
    };
    check_data_size(data.len(), at)?;
    // A BTreeMap iterates in the order of the names' bytes.
    attributes.extend(std::mem::take(&mut event.attributes));
    let content = Content {
        event_type,
        subject,
        content_type: if content_type.is_empty() {
            kind.default_content_type()
        } else {
            content_type
        },
        data,
        attributes,
        expected_version: event.expected_version,
        first_attempt_time,
    };
    Ok(Stated { key, content, kind, time, fingerprint: fingerprint(&content) })
}

fn check_data_size(length: usize, at: Arguments<'_>) -> Result<(), Refusal> {
    if length <= MAX_DATA_BYTES {
        return Ok(());
    }
    let message =
        format!("{at}: the payload has {length} bytes, at most {MAX_DATA_BYTES} are allowed");
    Err(Refusal::new(Reason::EventTooLarge, message)
        .at_field(format!("{at}.data"), format!("has {length} bytes"))
        .with("limit", MAX_DATA_BYTES))
}

/// The same of bytes that are known to be text, with the text.
fn checked_text(bytes: &[u8], least: usize, most: usize) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not text".to_owned())?;
    check_text(text, least, most).map(|()| text)
}

/// Text without control characters, within bounds of bytes. The error continues
/// a sentence that starts with the field's name.
fn check_text(text: &str, least: usize, most: usize) -> Result<(), String> {
    let length = text.len();
    if length < least {
        return Err(format!("is empty; 1 to {most} bytes are allowed"));
    }
    if length > most {
        return Err(format!("has {length} bytes, at most {most} are allowed"));
    }
    // Nearly every text is made of these, and they are quickly looked through.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Ok(());
    }
    match text.chars().find(|c| c.is_control()) {
        Some(control) => Err(format!(
            "holds the control character U+{:04X}, which is not allowed",
            control as u32
        )),
        None => Ok(()),
    }
}

/// A type's name: a letter, then letters, digits, `.`, `_`, `-`.
fn check_type(text: &str) -> Result<&str, String> {
    let letters = text.starts_with(|c: char| c.is_ascii_alphabetic());
    match text.chars().find(|&c| !is_name_char(c)) {
        None if letters => Ok(text),
        None => Err(format!("is {text:?}; it must start with a letter")),
        Some(other) => {
            Err(format!("holds {other:?}; letters, digits, '.', '_' and '-' are allowed"))
        }
    }
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')
}

/// A receiver's or log's name out of letters, digits, `.`, `_`, `-`.
///
/// # Errors
/// INVALID_FIELD with the field's name.
pub fn name(text: &str, field: &str) -> Result<(), Refusal> {
    check_text(text, 1, MAX_NAME_BYTES).map_err(|wrong| Refusal::field(field, wrong))?;
    match text.chars().find(|&c| !is_name_char(c)) {
        None if !text.starts_with('.') => Ok(()),
        None => Err(Refusal::field(field, "starts with '.', which is not allowed")),
        Some(other) => Err(Refusal::field(
            field,
            format!("holds {other:?}; letters, digits, '.', '_' and '-' are allowed"),
        )),
    }
}

/// The name of a log as requests carry it: empty stands for "main".
///
/// # Errors
/// INVALID_FIELD.
pub fn log_name(text: &str) -> Result<&str, Refusal> {
    if text.is_empty() {
        return Ok("main");
    }
    name(text, "log")?;
    Ok(text)
}

/// An idempotency key as requests carry it.
///
/// # Errors
/// INVALID_FIELD.
pub fn key(text: &str) -> Result<&str, Refusal> {
    check_text(text, 1, MAX_KEY_BYTES).map_err(|wrong| Refusal::field("key", wrong))?;
    Ok(text)
}

/// A person's reason, as requests carry it: what a ledger row can say.
///
/// # Errors
/// INVALID_FIELD.
pub fn reason(text: &str) -> Result<&str, Refusal> {
    check_text(text, 1, MAX_REASON_BYTES).map_err(|wrong| Refusal::field("reason", wrong))?;
    Ok(text)
}

/// The range that protobuf defines, years 1 to 9999, in seconds since the Unix epoch.
const TIMESTAMP_SECONDS: RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// A time within the range that protobuf defines. `field` is its path in the request.
///
/// # Errors
/// INVALID_FIELD.
pub fn checked_time(time: prost_types::Timestamp, field: &str) -> Result<Time, Refusal> {
    let seconds_in_range = TIMESTAMP_SECONDS.contains(&time.seconds);
    match u32::try_from(time.nanos) {
        Ok(nanos) if nanos < 1_000_000_000 && seconds_in_range => {
            Ok(Time { seconds: time.seconds, nanos })
        }
        _ => Err(Refusal::field(
            field,
            format!(
                "is {} s and {} ns, outside the years 1 to 9999 or the nanoseconds of a second",
                time.seconds, time.nanos
            ),
        )),
    }
}

/// A time as the wire carries it.
pub fn timestamp(time: Time) -> prost_types::Timestamp {
    let (first, last) = (*TIMESTAMP_SECONDS.start(), *TIMESTAMP_SECONDS.end());
    prost_types::Timestamp { seconds: time.seconds.clamp(first, last), nanos: time.nanos as i32 }
}

/// A time as people and programs read it: RFC 3339.
pub fn time_text(unix_millis: i64) -> String {
    timestamp(Time::from_unix_millis(unix_millis)).to_string()
}

/// A Struct as canonical JSON text (RFC 8785). Its numbers are doubles, so
/// integers from 2^53 on may already have been changed on their way here.
fn canonical_json(object: prost_types::Struct) -> Result<Bytes, Misfit> {
    let value = serde_json::Value::Object(json_object(object)?);
    serde_json_canonicalizer::to_vec(&value)
        .map(Bytes::from)
        .map_err(|error| Misfit::here(format!("cannot be written as JSON: {error}")))
}

/// A value of a Struct that JSON cannot hold.
struct Misfit {
    /// Where it stands, such as `.items[3].count`. Made on the way back from it, so
    /// that values which fit cost no path; long names are cut.
    path: String,
    /// What is wrong with it, as the rest of a sentence.
    wrong: String,
}

impl Misfit {
    fn here(wrong: impl Into<String>) -> Self {
        Misfit { path: String::new(), wrong: wrong.into() }
    }

    fn in_field(self, name: &str) -> Self {
        let path = match name.char_indices().nth(MAX_SHOWN_NAME_CHARS) {
            Some((end, _)) => format!(".{}…{}", &name[..end], self.path),
            None => format!(".{name}{}", self.path),
        };
        Misfit { path, ..self }
    }

    fn at_index(self, index: usize) -> Self {
        Misfit { path: format!("[{index}]{}", self.path), ..self }
    }
}

fn json_object(
    object: prost_types::Struct,
) -> Result<serde_json::Map<String, serde_json::Value>, Misfit> {
    object
        .fields
        .into_iter()
        .map(|(name, value)| match json_value(value) {
            Ok(value) => Ok((name, value)),
            Err(misfit) => Err(misfit.in_field(&name)),
        })
        .collect()
}

fn json_value(value: prost_types::Value) -> Result<serde_json::Value, Misfit> {
    use prost_types::value::Kind;
    use serde_json::Value;
    Ok(match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(truth)) => Value::Bool(truth),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::NumberValue(number)) => {
            if number.fract() == 0.0 && number.abs() >= FIRST_UNSAFE_INTEGER {
                return Err(Misfit::here(format!(
                    "is {number}: integers beyond 2^53 are not exact in `json`; send the payload as `json_text`"
                )));
            }
            match serde_json::Number::from_f64(number) {
                Some(number) => Value::Number(number),
                None => return Err(Misfit::here("is not a finite number")),
            }
        }
        Some(Kind::ListValue(list)) => Value::Array(
            list.values
                .into_iter()
                .enumerate()
                .map(|(index, value)| json_value(value).map_err(|misfit| misfit.at_index(index)))
                .collect::<Result<_, _>>()?,
        ),
        Some(Kind::StructValue(object)) => Value::Object(json_object(object)?),
    })
}

/// JSON as a `google.protobuf.Value`, or nothing where a double cannot hold one of its numbers.
fn exact_value(value: &serde_json::Value) -> Option<prost_types::Value> {
    use prost_types::value::Kind;
    use serde_json::Value;
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(truth) => Kind::BoolValue(*truth),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Number(number) => {
            let double = number.as_f64()?;
            if double.fract() == 0.0 && double.abs() >= FIRST_UNSAFE_INTEGER {
                return None;
            }
            Kind::NumberValue(double)
        }
        Value::Array(values) => Kind::ListValue(prost_types::ListValue {
            values: values.iter().map(exact_value).collect::<Option<_>>()?,
        }),
        Value::Object(fields) => Kind::StructValue(exact_struct(fields)?),
    };
    Some(prost_types::Value { kind: Some(kind) })
}

/// A JSON object as a Struct, or nothing where a double cannot hold one of its numbers.
pub fn exact_struct(
    fields: &serde_json::Map<String, serde_json::Value>,
) -> Option<prost_types::Struct> {
    let fields = fields
        .iter()
        .map(|(name, value)| Some((name.clone(), exact_value(value)?)))
        .collect::<Option<_>>()?;
    Some(prost_types::Struct { fields })
}

/// An event in the form that is stored and, by default, replayed.
pub fn event(event: &Event) -> pb::Event {
    pb::Event {
        sequence: Some(event.sequence),
        subject_version: Some(event.subject_version),
        accept_time: Some(timestamp(event.accept_time)),
        ..without_place(event.intent.clone())
    }
}

/// An intent as it is published.
pub fn new_event(intent: Intent) -> pb::NewEvent {
    let event = without_place(intent);
    let data = event.data.map(|data| match data {
        pb::event::Data::JsonText(text) => pb::new_event::Data::JsonText(text),
        pb::event::Data::Binary(bytes) => pb::new_event::Data::Binary(bytes),
        pb::event::Data::Json(object) => pb::new_event::Data::Json(object),
    });
    pb::NewEvent {
        key: event.key,
        r#type: event.r#type,
        subject: event.subject,
        first_attempt_time: event.first_attempt_time,
        expected_version: event.expected_version,
        time: event.time,
        attributes: event.attributes,
        content_type: event.content_type,
        data,
    }
}

/// An event before it has its place.
fn without_place(intent: Intent) -> pb::Event {
    let data = match intent.kind {
        // `Intent` promises that JSON is UTF-8.
        DataKind::Json => pb::event::Data::JsonText(
            String::from_utf8(intent.data.into())
                .unwrap_or_else(|wrong| String::from_utf8_lossy(wrong.as_bytes()).into_owned()),
        ),
        DataKind::Binary => pb::event::Data::Binary(intent.data),
    };
    pb::Event {
        sequence: None,
        key: intent.key.into(),
        r#type: intent.event_type.into(),
        subject: intent.subject.into(),
        subject_version: None,
        accept_time: None,
        fingerprint: Bytes::copy_from_slice(&intent.fingerprint),
        first_attempt_time: intent.first_attempt_time.map(timestamp),
        expected_version: intent.expected_version,
        time: intent.time.map(timestamp),
        attributes: intent.attributes.into_iter().collect::<BTreeMap<_, _>>(),
        content_type: intent.content_type.into(),
        data: Some(data),
    }
}

/// The bytes under which an event is stored: [`content`] followed by [`place`].
pub fn stored(value: &Event) -> Bytes {
    let mut room = BytesMut::new();
    let StoredContent { bytes, .. } = content(&value.intent.stated(), &mut room);
    place(bytes, value.sequence, value.subject_version, value.accept_time)
}

/// The part of an event's stored bytes that is known before it has its place, and
/// where its names stand in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredContent {
    /// An encoded [`pb::Event`] without its place, with room for that behind it.
    pub bytes: BytesMut,
    /// The key.
    pub key: Range<usize>,
    /// The subject.
    pub subject: Range<usize>,
}

// Tags of `counterfoil.v1.Event`, with their wire types; a test holds them against the
// generated type.
const SEQUENCE: u8 = 1 << 3;
const KEY: u8 = 2 << 3 | 2;
const TYPE: u8 = 3 << 3 | 2;
const SUBJECT: u8 = 4 << 3 | 2;
const SUBJECT_VERSION: u8 = 5 << 3;
const ACCEPT_TIME: u8 = 6 << 3 | 2;
const FINGERPRINT: u8 = 7 << 3 | 2;
const FIRST_ATTEMPT_TIME: u8 = 8 << 3 | 2;
const EXPECTED_VERSION: u8 = 9 << 3;
const TIME: u8 = 10 << 3 | 2;
const ATTRIBUTES: u8 = 11 << 3 | 2;
const CONTENT_TYPE: u8 = 12 << 3 | 2;
const JSON_TEXT: u8 = 14 << 3 | 2;
const BINARY: u8 = 15 << 3 | 2;

/// About as many bytes as [`content`] takes: never less but for many attributes of few
/// bytes each.
fn content_bytes(Stated { key, content, .. }: &Stated<'_>) -> usize {
    /// Tags and lengths, fingerprint, version, times and place.
    const OTHER_BYTES: usize = 160 + PLACE_BYTES;
    let attributes = content.attributes.iter().map(|(name, value)| 8 + name.len() + value.len());
    OTHER_BYTES
        + [*key, content.event_type, content.subject, content.content_type]
            .map(str::len)
            .iter()
            .sum::<usize>()
        + attributes.sum::<usize>()
        + content.data.len()
}

/// Encodes an intent behind what others have in `room`, by hand: nothing of it is
/// copied more than once.
pub fn content(intent: &Stated<'_>, room: &mut BytesMut) -> StoredContent {
    let Stated { key, content, kind, time, fingerprint } = intent;
    room.reserve(content_bytes(intent));
    let mut put = |tag: u8, bytes: &[u8]| {
        put_sized(tag, bytes, room);
        room.len() - bytes.len()..room.len()
    };
    let key = put(KEY, key.as_bytes());
    put(TYPE, content.event_type.as_bytes());
    let subject = match content.subject {
        "" => 0..0,
        subject => put(SUBJECT, subject.as_bytes()),
    };
    put(FINGERPRINT, fingerprint);
    if let Some(time) = content.first_attempt_time {
        put_time(FIRST_ATTEMPT_TIME, time, room);
    }
    if let Some(version) = content.expected_version {
        room.put_u8(EXPECTED_VERSION);
        put_varint(version as u64, room);
    }
    if let Some(time) = time {
        put_time(TIME, *time, room);
    }
    for (name, value) in content.attributes {
        put_attribute(name, value, room);
    }
    put_sized(CONTENT_TYPE, content.content_type.as_bytes(), room);
    let data = match kind {
        DataKind::Json => JSON_TEXT,
        DataKind::Binary => BINARY,
    };
    put_sized(data, content.data, room);
    // What is split off has no more room than it fills: so it is filled, and shortened.
    let length = room.len();
    room.put_bytes(0, PLACE_BYTES);
    let mut bytes = room.split();
    bytes.truncate(length);
    StoredContent { bytes, key, subject }
}

/// Completes an event's stored bytes by its place in the log, where they stand: the fields of
/// a message may come in any order.
pub fn place(
    mut content: BytesMut,
    sequence: Sequence,
    subject_version: i64,
    accept_time: Time,
) -> Bytes {
    content.put_u8(SEQUENCE);
    put_varint(sequence as u64, &mut content);
    content.put_u8(SUBJECT_VERSION);
    put_varint(subject_version as u64, &mut content);
    put_time(ACCEPT_TIME, accept_time, &mut content);
    content.freeze()
}

fn put_sized(tag: u8, bytes: &[u8], room: &mut BytesMut) {
    room.put_u8(tag);
    put_varint(bytes.len() as u64, room);
    room.put_slice(bytes);
}

fn put_time(tag: u8, time: Time, room: &mut BytesMut) {
    let time = timestamp(time);
    room.put_u8(tag);
    put_varint(time.encoded_len() as u64, room);
    time.encode_raw(room);
}

/// An entry of a map: a message of a name and a value, of which an empty one is left out.
fn put_attribute(name: &str, value: &str, room: &mut BytesMut) {
    let parts = [(1 << 3 | 2, name), (2 << 3 | 2, value)];
    let parts = || parts.iter().filter(|(_, text)| !text.is_empty());
    let bytes = |text: &str| 1 + prost::length_delimiter_len(text.len()) + text.len();
    room.put_u8(ATTRIBUTES);
    put_varint(parts().map(|(_, text)| bytes(text) as u64).sum(), room);
    for (tag, text) in parts() {
        put_sized(*tag, text.as_bytes(), room);
    }
}

/// In base 128, low digits first.
fn put_varint(mut value: u64, room: &mut BytesMut) {
    while value >= 0x80 {
        room.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    room.put_u8(value as u8);
}

/// An event out of its stored bytes, as a wire message.
///
/// # Errors
/// CORRUPT.
pub fn decode_stored(bytes: Bytes) -> Result<pb::Event, Refusal> {
    pb::Event::decode(bytes).map_err(|error| {
        Refusal::new(Reason::Corrupt, format!("a stored event cannot be read: {error}"))
    })
}

/// The same event with its payload in another form.
pub fn in_form(mut event: pb::Event, form: DataForm) -> pb::Event {
    use pb::event::Data;
    event.data = match (form, event.data.take()) {
        (DataForm::Json, Some(Data::JsonText(text))) => {
            let object = serde_json::from_str(&text).ok().and_then(|value| match value {
                serde_json::Value::Object(fields) => exact_struct(&fields),
                _ => None,
            });
            Some(object.map_or(Data::JsonText(text), Data::Json))
        }
        (DataForm::Binary, Some(Data::JsonText(text))) => Some(Data::Binary(Bytes::from(text))),
        (_, data) => data,
    };
    event
}

/// An event out of its stored bytes, its fingerprint computed anew and compared. Its texts and
/// its payload are slices of them.
///
/// # Errors
/// CORRUPT: they are not what a publisher stores.
pub fn replayed(bytes: Bytes) -> Result<Event, Refusal> {
    let corrupt = |what: &str| Refusal::new(Reason::Corrupt, format!("an event {what}"));
    let event = stored::Event::decode(bytes)
        .map_err(|error| corrupt(&format!("cannot be read: {error}")))?;
    let sequence = event.sequence.ok_or_else(|| corrupt("has no sequence"))?;
    let corrupt = |what: &str| corrupt(what).with("sequence", sequence);
    let text = |bytes: Bytes, field: &str| {
        ByteString::try_from(bytes).map_err(|_| corrupt(&format!("has a {field} that is no text")))
    };
    let (kind, data) = match event.data {
        Some(stored::Data::JsonText(json)) => {
            (DataKind::Json, text(json, "json_text")?.into_bytes())
        }
        Some(stored::Data::Binary(bytes)) => (DataKind::Binary, bytes),
        Some(stored::Data::Json(_)) => {
            return Err(corrupt("came as Struct, which is not byte for byte"));
        }
        None => (DataKind::Binary, Bytes::new()),
    };
    let content_type = match text(event.content_type, "content_type")? {
        empty if empty.is_empty() => ByteString::from_static(kind.default_content_type()),
        stated => stated,
    };
    let time = |time: Option<prost_types::Timestamp>, field: &str| {
        time.map(|time| checked_time(time, field)).transpose()
    };
    let stated: Fingerprint = event
        .fingerprint
        .as_ref()
        .try_into()
        .map_err(|_| corrupt("has no fingerprint of 32 bytes"))?;
    let intent = Intent {
        content_type,
        key: text(event.key, "key")?,
        event_type: text(event.event_type, "type")?,
        subject: text(event.subject, "subject")?,
        kind,
        data,
        attributes: event.attributes.into_iter().collect(),
        expected_version: event.expected_version,
        first_attempt_time: time(event.first_attempt_time, "first_attempt_time")?,
        time: time(event.time, "time")?,
        fingerprint: stated,
    };
    if fingerprint(&intent.content()) != stated {
        return Err(corrupt("has content that is not its fingerprint's"));
    }
    Ok(Event {
        sequence,
        subject_version: event.subject_version.ok_or_else(|| corrupt("has no subject_version"))?,
        accept_time: time(event.accept_time, "accept_time")?
            .ok_or_else(|| corrupt("has no accept_time"))?,
        intent,
    })
}

/// A receipt, as [`put_receipt`] writes it.
#[derive(Debug, Clone, Copy)]
pub struct Receipted<'a> {
    /// The log's incarnation.
    pub log_id: Uuid,
    /// The key.
    pub key: &'a [u8],
    /// Where the event stands.
    pub sequence: Sequence,
    /// Number of its subject's events up to it.
    pub subject_version: i64,
    /// Of its content.
    pub fingerprint: &'a Fingerprint,
    /// When it was accepted.
    pub accept_time: Time,
    /// Until when the receipt is kept; none: for ever.
    pub expire_time: Option<Time>,
    /// Whether an earlier attempt was accepted.
    pub duplicate: bool,
}

/// Encodes a [`pb::Receipt`] as one of the `receipts` of an answer, by hand: under load
/// there are very many of them, and each would be taken apart and put together again.
pub fn put_receipt(receipt: &Receipted<'_>, room: &mut BytesMut) {
    const RECEIPTS: u8 = 1 << 3 | 2;
    const LOG_ID: u8 = 1 << 3 | 2;
    const SEQUENCE: u8 = 2 << 3;
    const KEY: u8 = 3 << 3 | 2;
    const SUBJECT_VERSION: u8 = 4 << 3;
    const FINGERPRINT: u8 = 5 << 3 | 2;
    const ACCEPT_TIME: u8 = 6 << 3 | 2;
    const EXPIRE_TIME: u8 = 7 << 3 | 2;
    const OUTCOME: u8 = 8 << 3;
    let log_id = &mut [0; uuid::fmt::Hyphenated::LENGTH];
    let log_id = receipt.log_id.hyphenated().encode_lower(log_id);
    let outcome = publish_outcome(receipt.duplicate);
    let sized = |length: usize| 1 + prost::length_delimiter_len(length) + length;
    let number = |value: i64| 1 + prost::length_delimiter_len(value as usize);
    let time = |time: Time| sized(timestamp(time).encoded_len());
    let length = sized(log_id.len())
        + number(receipt.sequence)
        + sized(receipt.key.len())
        + number(receipt.subject_version)
        + sized(receipt.fingerprint.len())
        + time(receipt.accept_time)
        + receipt.expire_time.map_or(0, time)
        + number(outcome as i64);
    room.reserve(sized(length));
    room.put_u8(RECEIPTS);
    put_varint(length as u64, room);
    put_sized(LOG_ID, log_id.as_bytes(), room);
    room.put_u8(SEQUENCE);
    put_varint(receipt.sequence as u64, room);
    put_sized(KEY, receipt.key, room);
    room.put_u8(SUBJECT_VERSION);
    put_varint(receipt.subject_version as u64, room);
    put_sized(FINGERPRINT, receipt.fingerprint, room);
    put_time(ACCEPT_TIME, receipt.accept_time, room);
    if let Some(time) = receipt.expire_time {
        put_time(EXPIRE_TIME, time, room);
    }
    room.put_u8(OUTCOME);
    put_varint(outcome as u64, room);
}

/// The same as a message.
pub fn receipt(receipt: &Receipted<'_>) -> pb::Receipt {
    pb::Receipt {
        log_id: receipt.log_id.to_string(),
        sequence: Some(receipt.sequence),
        key: String::from_utf8_lossy(receipt.key).into_owned(),
        subject_version: Some(receipt.subject_version),
        fingerprint: Bytes::copy_from_slice(receipt.fingerprint),
        accept_time: Some(timestamp(receipt.accept_time)),
        expire_time: receipt.expire_time.map(timestamp),
        outcome: publish_outcome(receipt.duplicate).into(),
    }
}

fn publish_outcome(duplicate: bool) -> pb::PublishOutcome {
    if duplicate { pb::PublishOutcome::Duplicate } else { pb::PublishOutcome::Appended }
}

/// A cursor as callers state it; without a sequence, or with -1, it says that
/// nothing has been applied, and its other fields may be left out.
///
/// # Errors
/// INVALID_FIELD.
pub fn cursor(cursor: &pb::Cursor, field: &str) -> Result<Option<Cursor>, Refusal> {
    let sequence: Sequence = match cursor.sequence {
        None | Some(-1) => return Ok(None),
        Some(sequence) if sequence < -1 => {
            return Err(Refusal::field(
                format!("{field}.sequence"),
                format!("is {sequence}; it must be -1 or more"),
            ));
        }
        Some(sequence) => sequence,
    };
    let log_id = Uuid::parse_str(&cursor.log_id).map_err(|_| {
        Refusal::field(format!("{field}.log_id"), format!("is {:?}, not a UUID", cursor.log_id))
    })?;
    let chain: Chain = cursor.chain.as_ref().try_into().map_err(|_| {
        Refusal::field(
            format!("{field}.chain"),
            format!("has {} bytes, it must have 32", cursor.chain.len()),
        )
    })?;
    Ok(Some(Cursor { log_id, sequence, chain }))
}

/// A cursor for the wire, all fields set.
pub fn cursor_message(cursor: &Cursor) -> pb::Cursor {
    pb::Cursor {
        log_id: cursor.log_id.to_string(),
        sequence: Some(cursor.sequence),
        chain: Bytes::copy_from_slice(if cursor.sequence < 0 {
            &EMPTY_CHAIN
        } else {
            &cursor.chain
        }),
    }
}

/// What an Ack reports, checked; none where its receiver does not report.
/// `committed` is the sequence of the Ack's cursor.
///
/// # Errors
/// INVALID_FIELD with the index of the outcome.
pub fn report(
    outcomes: Vec<pb::AckOutcome>,
    reported_sequence: Option<Sequence>,
    committed: Sequence,
) -> Result<Option<Report>, Refusal> {
    let Some(through) = reported_sequence else {
        return match outcomes.is_empty() {
            true => Ok(None),
            false => Err(Refusal::field("reported_sequence", "is missing beside outcomes")),
        };
    };
    if !(-1..=committed).contains(&through) {
        let wrong = format!("is {through}; it must be -1 to {committed}, the cursor's sequence");
        return Err(Refusal::field("reported_sequence", wrong));
    }
    if outcomes.len() > MAX_ACK_OUTCOMES {
        let count = outcomes.len();
        let wrong = format!("has {count} outcomes, at most {MAX_ACK_OUTCOMES} are allowed");
        return Err(Refusal::field("outcomes", wrong));
    }
    let bytes: usize = outcomes.iter().map(|told| told.reason.len() + told.result.len()).sum();
    if bytes > MAX_ACK_OUTCOME_BYTES {
        let wrong = format!("has {bytes} bytes, at most {MAX_ACK_OUTCOME_BYTES} are allowed");
        return Err(Refusal::field("outcomes", wrong));
    }
    let mut last = -1;
    let mut checked = Vec::with_capacity(outcomes.len());
    for (index, told) in outcomes.into_iter().enumerate() {
        let told = reported(told, last, through, &format!("outcomes[{index}]"))?;
        last = told.sequence;
        checked.push(told);
    }
    Ok(Some(Report { after: None, through, outcomes: checked }))
}

fn reported(
    told: pb::AckOutcome,
    last: Sequence,
    through: Sequence,
    field: &str,
) -> Result<Reported, Refusal> {
    let pb::AckOutcome { sequence, outcome, reason, result } = told;
    if sequence <= last || sequence > through {
        let wrong = format!(
            "is {sequence}; outcomes come in rising order, here above {last} and up to {through}"
        );
        return Err(Refusal::field(format!("{field}.sequence"), wrong));
    }
    for (name, text, most) in
        [("reason", &reason, MAX_REASON_BYTES), ("result", &result, MAX_RESULT_BYTES)]
    {
        if text.len() > most {
            let wrong = format!("has {} bytes, at most {most} are allowed", text.len());
            return Err(Refusal::field(format!("{field}.{name}"), wrong));
        }
    }
    let outcome = Outcome::ALL
        .into_iter()
        .find(|&known| outcome_number(known) == outcome)
        .ok_or_else(|| unknown_enum(&format!("{field}.outcome"), outcome))?;
    Ok(Reported { sequence, outcome, reason, result })
}

/// What a receiver reports of one event.
pub fn ack_outcome(told: Reported) -> pb::AckOutcome {
    let Reported { sequence, outcome, reason, result } = told;
    pb::AckOutcome { sequence, outcome: outcome_number(outcome), reason, result }
}

/// What one receiver has reported of an event that a caller asks about.
pub fn receiver_outcome(receiver: String, told: Reported) -> pb::ReceiverOutcome {
    let Reported { outcome, reason, result, .. } = told;
    pb::ReceiverOutcome { receiver, outcome: outcome_number(outcome), reason, result }
}

/// The wire's number of an outcome.
pub fn outcome_number(outcome: Outcome) -> i32 {
    let outcome = match outcome {
        Outcome::Applied => pb::Outcome::Applied,
        Outcome::Ignored => pb::Outcome::Ignored,
        Outcome::Rejected => pb::Outcome::Rejected,
        Outcome::Duplicate => pb::Outcome::Duplicate,
        Outcome::Skipped => pb::Outcome::Skipped,
    };
    outcome.into()
}

/// A data form as callers state it.
///
/// # Errors
/// INVALID_FIELD for a number that is none.
pub fn data_form(number: i32) -> Result<DataForm, Refusal> {
    match pb::DataForm::try_from(number) {
        Ok(pb::DataForm::Unspecified) => Ok(DataForm::Stored),
        Ok(pb::DataForm::Json) => Ok(DataForm::Json),
        Ok(pb::DataForm::Binary) => Ok(DataForm::Binary),
        Err(_) => Err(unknown_enum("data_form", number)),
    }
}

/// INVALID_FIELD for an enum number that this version does not know.
pub fn unknown_enum(field: &str, number: i32) -> Refusal {
    Refusal::field(field, format!("is {number}, which is no value of this enum"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time { seconds: 1_796_000_000, nanos: 0 };

    fn new_event() -> pb::NewEvent {
        pb::NewEvent {
            key: "k1".into(),
            r#type: "stock.adjusted".into(),
            subject: "camera".into(),
            data: Some(pb::new_event::Data::JsonText(r#"{"delta": 3}"#.into())),
            ..Default::default()
        }
    }

    fn number(value: f64) -> pb::NewEvent {
        let value = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(value)) };
        let object = prost_types::Struct { fields: [("n".to_owned(), value)].into() };
        pb::NewEvent { data: Some(pb::new_event::Data::Json(object)), ..new_event() }
    }

    #[test]
    fn bad_input_names_its_field() {
        let far = prost_types::Timestamp { seconds: NOW.seconds + 301, nanos: 0 };
        let odd = prost_types::Timestamp { seconds: 0, nanos: 1_000_000_000 };
        let text = |text: &str| Some(pb::new_event::Data::JsonText(text.into()));
        let cases = [
            ("events[0].key", pb::NewEvent { key: String::new(), ..new_event() }),
            ("events[0].key", pb::NewEvent { key: "k".repeat(257), ..new_event() }),
            ("events[0].key", pb::NewEvent { key: "a\0b".into(), ..new_event() }),
            ("events[0].type", pb::NewEvent { r#type: String::new(), ..new_event() }),
            ("events[0].type", pb::NewEvent { r#type: "1a".into(), ..new_event() }),
            ("events[0].type", pb::NewEvent { r#type: "a b".into(), ..new_event() }),
            ("events[0].subject", pb::NewEvent { subject: "a\n".into(), ..new_event() }),
            (
                "events[0].expected_version",
                pb::NewEvent { expected_version: Some(-1), ..new_event() },
            ),
            (
                "events[0].first_attempt_time",
                pb::NewEvent { first_attempt_time: Some(far), ..new_event() },
            ),
            (
                "events[0].key",
                pb::NewEvent {
                    key: "ffffffff-ffff-7000-8000-000000000000".into(),
                    first_attempt_time: Some(timestamp(NOW)),
                    ..new_event()
                },
            ),
            ("events[0].time", pb::NewEvent { time: Some(odd), ..new_event() }),
            ("events[0].json_text", pb::NewEvent { data: text("{"), ..new_event() }),
            (
                "events[0].json_text",
                pb::NewEvent { data: text(r#"{"a":"\ud800"}"#), ..new_event() },
            ),
            ("events[0].json.n", number(9_007_199_254_740_992.0)),
            ("events[0].json.n", number(f64::NAN)),
        ];
        for (field, event) in cases {
            let refusal = intent(event.clone(), format_args!("events[0]"), NOW).expect_err(field);
            assert_eq!(refusal.reason, Reason::InvalidField, "{event:?}");
            assert_eq!(refusal.fields[0].0, field, "{event:?}");
        }
        let large = pb::NewEvent {
            data: Some(pb::new_event::Data::Binary(vec![0; MAX_DATA_BYTES + 1].into())),
            ..new_event()
        };
        let refusal = intent(large, format_args!("events[0]"), NOW).expect_err("too large");
        assert_eq!(refusal.reason, Reason::EventTooLarge);
    }

    #[test]
    fn a_refusal_shows_where_in_a_struct_and_not_much_of_a_long_name() {
        use prost_types::{ListValue, Struct, Value, value::Kind};
        let value = |kind| Value { kind: Some(kind) };
        let inner =
            Struct { fields: [("n".repeat(64), value(Kind::NumberValue(f64::NAN)))].into() };
        let list = ListValue { values: vec![Value::default(), value(Kind::StructValue(inner))] };
        let fields = [("é".repeat(1 << 20), value(Kind::ListValue(list)))].into();
        let data = Some(pb::new_event::Data::Json(Struct { fields }));
        let refusal = intent(pb::NewEvent { data, ..new_event() }, format_args!("events[0]"), NOW)
            .expect_err("not a number");
        let field = format!("events[0].json.{}…[1].{}", "é".repeat(64), "n".repeat(64));
        assert_eq!(refusal.message, format!("{field}: is not a finite number"));
        assert_eq!(refusal.fields, [(field, "is not a finite number".to_owned())]);
    }

    #[test]
    fn json_text_is_kept_and_json_is_made_canonical() {
        let kept = intent(new_event(), format_args!("events[0]"), NOW).expect("valid");
        assert_eq!(&kept.data[..], br#"{"delta": 3}"#);
        let canonical = intent(number(3.0), format_args!("events[0]"), NOW).expect("valid");
        assert_eq!(&canonical.data[..], br#"{"n":3}"#);
    }

    #[test]
    fn an_event_survives_storage_and_wire() {
        let mut new_event = new_event();
        new_event.attributes = [("shop".to_owned(), "7".to_owned())].into();
        new_event.expected_version = Some(0);
        let intent = intent(new_event, format_args!("events[0]"), NOW).expect("valid");
        let event = Event { sequence: 0, subject_version: 1, accept_time: NOW, intent };
        let back = replayed(stored(&event)).expect("valid");
        assert_eq!(back, event);
        let late = Event {
            sequence: i64::MAX,
            subject_version: i64::MAX,
            accept_time: Time { seconds: -62_135_596_800, nanos: 999_999_999 },
            ..event
        };
        let content = content(&late.intent.stated(), &mut BytesMut::new());
        assert_eq!(stored(&late).len(), content.bytes.len() + PLACE_BYTES);
        assert!(content.bytes.capacity() >= content.bytes.len() + PLACE_BYTES);
        assert_eq!(&content.bytes[content.key], late.intent.key.as_bytes());
        assert_eq!(&content.bytes[content.subject], late.intent.subject.as_bytes());
    }

    #[test]
    fn an_event_is_stored_as_the_generated_message_has_it() {
        let plain = intent(new_event(), format_args!("events[0]"), NOW).expect("valid");
        let full = Intent {
            attributes: [("shop", "7"), ("till", ""), ("x", &"v".repeat(300))]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            first_attempt_time: Some(Time { seconds: -1, nanos: 5 }),
            expected_version: Some(i64::MAX),
            time: Some(NOW),
            ..plain.clone()
        };
        let bare = Intent {
            subject: String::new().into(),
            expected_version: Some(0),
            kind: DataKind::Binary,
            data: Bytes::new(),
            ..plain.clone()
        };
        let long = Intent { data: Bytes::from(vec![b' '; 70_000]), ..plain.clone() };
        for intent in [plain, full, bare, long] {
            let value = Event { sequence: 300, subject_version: 1 << 40, accept_time: NOW, intent };
            let message = event(&value);
            let whole = decode_stored(stored(&value)).expect("just encoded");
            assert_eq!(whole, message);
            // The place comes last, all else is byte for byte the same.
            let placeless =
                pb::Event { sequence: None, subject_version: None, accept_time: None, ..message };
            let content = content(&value.intent.stated(), &mut BytesMut::new());
            assert_eq!(content.bytes, placeless.encode_to_vec());
        }
    }

    #[test]
    fn events_that_share_a_room_are_completed_where_they_stand() {
        let intents = ["a", "b", "c"].map(|key| {
            let event = pb::NewEvent { key: key.into(), ..new_event() };
            intent(event, format_args!("events[0]"), NOW).expect("valid")
        });
        let mut room = BytesMut::with_capacity(64 * 1024);
        let contents = intents.each_ref().map(|intent| content(&intent.stated(), &mut room));
        let cloned = contents[1].bytes.clone(); // without room
        let starts = contents.each_ref().map(|content| content.bytes.as_ptr());
        let [a, b, c] = contents.map(|content| content.bytes);
        // The longest places, and not in the order in which they stand.
        let of = |content, sequence| place(content, sequence, i64::MAX, NOW);
        let (c, a, b) = (of(c, i64::MAX - 2), of(a, i64::MAX), of(b, i64::MAX - 1));
        assert_eq!([&a, &b, &c].map(|event| event.as_ptr()), starts, "nothing was copied");
        assert_eq!(of(cloned, i64::MAX - 1), b);
        for (n, (intent, bytes)) in (0..).zip(intents.into_iter().zip([a, b, c])) {
            let (sequence, subject_version) = (i64::MAX - n, i64::MAX);
            let event = Event { sequence, subject_version, accept_time: NOW, intent };
            assert_eq!(replayed(bytes), Ok(event));
        }
    }

    #[test]
    fn receipts_are_written_as_the_generated_message_has_them() {
        for (duplicate, expire_time, number) in
            [(false, None, 0), (true, Some(Time::from_unix_millis(i64::MAX)), i64::MAX)]
        {
            let receipted = Receipted {
                log_id: Uuid::from_u128(7),
                key: &[b'k'; 200],
                sequence: number,
                subject_version: number,
                fingerprint: &[9; 32],
                accept_time: NOW,
                expire_time,
                duplicate,
            };
            let mut room = BytesMut::new();
            put_receipt(&receipted, &mut room);
            put_receipt(&receipted, &mut room);
            let message = receipt(&receipted);
            let answer =
                pb::PublishStreamResponse { receipts: vec![message.clone(), message], error: None };
            assert_eq!(room, answer.encode_to_vec());
        }
    }

    #[test]
    fn changed_content_is_noticed() {
        let intent = intent(new_event(), format_args!("events[0]"), NOW).expect("valid");
        let mut message =
            event(&Event { sequence: 5, subject_version: 1, accept_time: NOW, intent });
        let refused = |message: &pb::Event| {
            let refusal = replayed(message.encode_to_vec().into()).expect_err("changed");
            assert_eq!(refusal.reason, Reason::Corrupt);
            refusal.message
        };
        message.subject = "lens".into();
        assert_eq!(refused(&message), "an event has content that is not its fingerprint's");
        message.data = Some(pb::event::Data::Json(prost_types::Struct::default()));
        assert!(refused(&message).contains("as Struct"));
        message.fingerprint = Bytes::from_static(b"short");
        message.data = None;
        assert!(refused(&message).contains("no fingerprint of 32 bytes"));
        message.sequence = None;
        assert_eq!(refused(&message), "an event has no sequence");
    }

    #[test]
    fn texts_that_are_none_are_noticed() {
        let intent = intent(new_event(), format_args!("events[0]"), NOW).expect("valid");
        let whole = stored(&Event { sequence: 5, subject_version: 1, accept_time: NOW, intent });
        let whole = stored::Event::decode(whole).expect("just encoded");
        assert_eq!(replayed(whole.encode_to_vec().into()).expect("whole").sequence, 5);
        type Field = fn(&mut stored::Event) -> &mut Bytes;
        let fields: [(&str, Field); 5] = [
            ("key", |event| &mut event.key),
            ("type", |event| &mut event.event_type),
            ("subject", |event| &mut event.subject),
            ("content_type", |event| &mut event.content_type),
            ("json_text", |event| match &mut event.data {
                Some(stored::Data::JsonText(text)) => text,
                other => panic!("{other:?}"),
            }),
        ];
        for (name, field) in fields {
            let mut event = whole.clone();
            *field(&mut event) = Bytes::from_static(&[b'a', 0xff]);
            let refusal = replayed(event.encode_to_vec().into()).expect_err(name);
            assert_eq!(refusal.reason, Reason::Corrupt);
            assert_eq!(refusal.message, format!("an event has a {name} that is no text"));
        }
        let refusal = replayed(Bytes::from_static(b"no message")).expect_err("no message");
        assert_eq!(refusal.reason, Reason::Corrupt);
    }

    #[test]
    fn a_struct_shows_only_what_it_can_hold() {
        let event = |text: &str| pb::Event {
            data: Some(pb::event::Data::JsonText(text.into())),
            ..Default::default()
        };
        let form = |text| in_form(event(text), DataForm::Json).data;
        assert!(matches!(form(r#"{"n":1}"#), Some(pb::event::Data::Json(_))));
        for kept in [r#"{"n":9007199254740993}"#, "[1]", "7"] {
            assert!(matches!(form(kept), Some(pb::event::Data::JsonText(text)) if text == kept));
        }
    }

    fn told(sequence: Sequence) -> pb::AckOutcome {
        pb::AckOutcome { sequence, outcome: 3, reason: "no_stock".into(), result: "{}".into() }
    }

    #[test]
    fn a_report_is_checked_as_a_whole_and_row_by_row() {
        let whole = report(vec![told(2), told(5)], Some(7), 9).expect("valid").expect("a report");
        assert_eq!(whole.through, 7);
        let back: Vec<_> = whole.outcomes.into_iter().map(ack_outcome).collect();
        assert_eq!(back, [told(2), told(5)]);
        assert_eq!(report(Vec::new(), None, 9), Ok(None), "a receiver that does not report");

        let wide = |count: usize, text: usize| {
            let told = |n| pb::AckOutcome { result: "x".repeat(text), ..told(n as i64) };
            (0..count).map(told).collect::<Vec<_>>()
        };
        let cases = [
            ("reported_sequence", report(vec![told(1)], None, 9)),
            ("reported_sequence", report(Vec::new(), Some(10), 9)),
            ("reported_sequence", report(Vec::new(), Some(-2), 9)),
            ("reported_sequence", report(Vec::new(), Some(0), -1)),
            ("outcomes", report(wide(MAX_ACK_OUTCOMES + 1, 0), Some(9_999), 9_999)),
            ("outcomes", report(wide(66, MAX_RESULT_BYTES), Some(99), 99)),
            ("outcomes[0].sequence", report(vec![told(-1)], Some(7), 9)),
            ("outcomes[0].sequence", report(vec![told(8)], Some(7), 9)),
            ("outcomes[1].sequence", report(vec![told(2), told(2)], Some(7), 9)),
            (
                "outcomes[1].sequence",
                report(vec![told(i64::MAX), told(i64::MAX)], Some(i64::MAX), i64::MAX),
            ),
            ("outcomes[0].result", report(wide(1, MAX_RESULT_BYTES + 1), Some(7), 9)),
            (
                "outcomes[1].outcome",
                report(vec![told(1), pb::AckOutcome { outcome: 0, ..told(2) }], Some(7), 9),
            ),
            (
                "outcomes[0].reason",
                report(vec![pb::AckOutcome { reason: "r".repeat(257), ..told(2) }], Some(7), 9),
            ),
        ];
        for (field, checked) in cases {
            let refusal = checked.expect_err(field);
            assert_eq!((refusal.reason, &*refusal.fields[0].0), (Reason::InvalidField, field));
        }
    }
}
