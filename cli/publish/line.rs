//! One line of input as a NewEvent. Pure. Takes the JSON that protobuf defines
//! for the message, in camelCase or snake_case, and says what it had expected.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::GeneralPurpose};
use counterfoil::proto::{
    pb::{NewEvent, new_event::Data},
    wire,
};
use prost_types::Timestamp;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

/// Objects nested deeper than this do not fit the recursion limit of protobuf
/// decoders (100 messages) once they are a Struct.
const DEEPEST_JSON: usize = 30;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Line {
    key: Option<String>,
    r#type: Option<String>,
    subject: Option<String>,
    #[serde(alias = "first_attempt_time")]
    first_attempt_time: Option<String>,
    #[serde(alias = "expected_version")]
    expected_version: Option<Int64>,
    time: Option<String>,
    attributes: Option<BTreeMap<String, String>>,
    #[serde(alias = "content_type")]
    content_type: Option<String>,
    json: Option<Map<String, Value>>,
    #[serde(alias = "json_text")]
    json_text: Option<String>,
    binary: Option<String>,
    // What a publisher adds, and `tail` prints. Another one will add its own.
    #[serde(rename = "sequence")]
    _sequence: Option<IgnoredAny>,
    #[serde(rename = "subjectVersion", alias = "subject_version")]
    _subject_version: Option<IgnoredAny>,
    #[serde(rename = "acceptTime", alias = "accept_time")]
    _accept_time: Option<IgnoredAny>,
    #[serde(rename = "fingerprint")]
    _fingerprint: Option<IgnoredAny>,
}

/// Protobuf's JSON writes 64-bit integers as text and reads both.
#[derive(Deserialize)]
#[serde(untagged)]
enum Int64 {
    Number(i64),
    Text(String),
}

/// Where the key of an event came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyFrom {
    /// The line, or the payload.
    Input,
    /// Made here: another run will make another one.
    Made,
}

/// Reads one line. `key_field` is a name or a JSON pointer into the payload,
/// for lines without a key; without it such lines get a UUIDv7.
///
/// # Errors
/// What was expected, as the end of a sentence that starts with the line's number.
pub fn parse(text: &[u8], key_field: Option<&str>) -> Result<(NewEvent, KeyFrom), String> {
    let line: Line = serde_json::from_slice(text).map_err(|error| {
        format!("expected one NewEvent as a JSON object: {}", wrong_json(&error))
    })?;
    let (key, key_from) = match (line.key, key_field) {
        (Some(key), _) => (key, KeyFrom::Input),
        (None, Some(field)) => {
            (key_at(field, line.json.as_ref(), line.json_text.as_deref())?, KeyFrom::Input)
        }
        (None, None) => (uuid::Uuid::now_v7().to_string(), KeyFrom::Made),
    };
    let event = NewEvent {
        key,
        r#type: line.r#type.ok_or("expected a \"type\" such as \"stock.adjusted\"")?,
        subject: line.subject.unwrap_or_default(),
        first_attempt_time: time("firstAttemptTime", line.first_attempt_time)?,
        expected_version: line.expected_version.map(int64).transpose()?,
        time: time("time", line.time)?,
        attributes: line.attributes.unwrap_or_default(),
        content_type: line.content_type.unwrap_or_default(),
        data: data(line.json, line.json_text, line.binary)?,
    };
    Ok((event, key_from))
}

/// The error's own "line 1" would be read as the input's first line.
fn wrong_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let at = format!(" at line {} column {}", error.line(), error.column());
    match text.strip_suffix(&at) {
        Some(what) => format!("{what} (column {})", error.column()),
        None => text,
    }
}

fn key_at(
    field: &str,
    json: Option<&Map<String, Value>>,
    text: Option<&str>,
) -> Result<String, String> {
    let payload = match (json, text) {
        (Some(object), _) => Value::Object(object.clone()),
        (None, Some(text)) => serde_json::from_str(text)
            .map_err(|error| format!("expected JSON in \"jsonText\": {error}"))?,
        (None, None) => Value::Null,
    };
    let found = if field.starts_with('/') { payload.pointer(field) } else { payload.get(field) };
    match found {
        Some(Value::String(key)) => Ok(key.clone()),
        Some(Value::Number(number)) if !number.is_f64() => Ok(number.to_string()),
        Some(_) => Err(format!("expected a text or an integer at {field:?}, to be the key")),
        None => Err(format!("expected the payload to have a field {field:?}, to be the key")),
    }
}

fn time(name: &str, text: Option<String>) -> Result<Option<Timestamp>, String> {
    text.map(|text| {
        text.parse().map_err(|_| {
            format!("{name}: expected a time such as \"2026-01-31T12:00:00Z\", found {text:?}")
        })
    })
    .transpose()
}

fn int64(value: Int64) -> Result<i64, String> {
    match value {
        Int64::Number(number) => Ok(number),
        Int64::Text(text) => text
            .parse()
            .map_err(|_| format!("expectedVersion: expected an integer, found {text:?}")),
    }
}

fn data(
    json: Option<Map<String, Value>>,
    json_text: Option<String>,
    binary: Option<String>,
) -> Result<Option<Data>, String> {
    match (json, json_text, binary) {
        (None, None, None) => Ok(None),
        (Some(object), None, None) => {
            if !object.values().all(|value| is_shallow(value, DEEPEST_JSON)) {
                return Err(format!(
                    "json: nested deeper than {DEEPEST_JSON} levels; send it as \"jsonText\""
                ));
            }
            wire::exact_struct(&object).map(|object| Some(Data::Json(object))).ok_or_else(|| {
                "json: holds an integer beyond 2^53, which is not exact there; send the payload as \"jsonText\"".to_owned()
            })
        }
        (None, Some(text), None) => Ok(Some(Data::JsonText(text))),
        (None, None, Some(text)) => Ok(Some(Data::Binary(decode_base64(&text)?.into()))),
        _ => Err("expected at most one of \"json\", \"jsonText\" and \"binary\"".to_owned()),
    }
}

fn is_shallow(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(values) => {
            levels > 1 && values.iter().all(|value| is_shallow(value, levels - 1))
        }
        Value::Object(fields) => {
            levels > 1 && fields.values().all(|value| is_shallow(value, levels - 1))
        }
        _ => true,
    }
}

/// Both alphabets, with or without padding, as protobuf's JSON allows.
fn decode_base64(text: &str) -> Result<Vec<u8>, String> {
    use base64::{alphabet, engine::DecodePaddingMode, engine::GeneralPurposeConfig};
    let alphabet = if text.contains(['-', '_']) { alphabet::URL_SAFE } else { alphabet::STANDARD };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&alphabet, config)
        .decode(text)
        .map_err(|error| format!("binary: expected base64: {error}"))
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn read(text: &str) -> Result<NewEvent, String> {
        parse(text.as_bytes(), None).map(|(event, _)| event)
    }

    #[test]
    fn both_spellings_of_names_are_taken() {
        let camel = r#"{"key":"k","type":"t","firstAttemptTime":"2026-01-31T12:00:00.5Z","expectedVersion":"3","contentType":"application/json","jsonText":"{}"}"#;
        let snake = r#"{"key":"k","type":"t","first_attempt_time":"2026-01-31T12:00:00.5Z","expected_version":3,"content_type":"application/json","json_text":"{}"}"#;
        let event = read(camel).expect("valid");
        assert_eq!(event, read(snake).expect("valid"));
        assert_eq!(event.expected_version, Some(3));
        let time = event.first_attempt_time.expect("given");
        assert_eq!((time.seconds, time.nanos), (1_769_860_800, 500_000_000));
    }

    #[test]
    fn a_key_comes_from_the_line_the_payload_or_here() {
        let with = |text: &str, field| parse(text.as_bytes(), field);
        let order = r#"{"type":"t","json":{"order":{"id":"o7"},"number":12}}"#;
        let text = r#"{"type":"t","jsonText":"{\"number\":12}"}"#;
        let keyed = r#"{"key":"k","type":"t","json":{"number":12}}"#;
        let cases = [
            (order, Some("/order/id"), "o7"),
            (order, Some("number"), "12"),
            (text, Some("number"), "12"),
            (keyed, Some("number"), "k"),
        ];
        for (line, field, key) in cases {
            let (event, from) = with(line, field).expect(line);
            assert_eq!((event.key.as_str(), from), (key, KeyFrom::Input), "{line}");
        }
        let (event, from) = with(order, None).expect("valid");
        assert_eq!(from, KeyFrom::Made);
        assert_eq!(uuid::Uuid::parse_str(&event.key).expect("a UUID").get_version_num(), 7);
    }

    #[test]
    fn a_line_that_is_no_event_says_what_was_expected() {
        let deep =
            format!(r#"{{"type":"t","json":{{"a":{}0{}}}}}"#, "[".repeat(40), "]".repeat(40));
        let cases = [
            ("", "JSON object"),
            ("7", "JSON object"),
            (r#"{"type":"t""#, "EOF while parsing an object (column 11)"),
            (r#"{"key":"k"}"#, "\"type\""),
            (r#"{"type":"t","delta":3}"#, "unknown field `delta`, expected one of"),
            (r#"{"type":"t","time":"noon"}"#, "such as \"2026-"),
            (r#"{"type":"t","expectedVersion":"x"}"#, "an integer"),
            (r#"{"type":"t","json":3}"#, "expected a map"),
            (r#"{"type":"t","json":{"n":9007199254740993}}"#, "jsonText"),
            (deep.as_str(), "nested deeper than 30"),
            (r#"{"type":"t","json":{},"binary":""}"#, "at most one of"),
            (r#"{"type":"t","binary":"*"}"#, "base64"),
        ];
        for (line, expected) in cases {
            let wrong = read(line).expect_err(line);
            assert!(wrong.contains(expected), "{expected:?} is missing in: {wrong}");
        }
        let wrong = parse(br#"{"type":"t","json":{}}"#, Some("id")).expect_err("no such field");
        assert!(wrong.contains("a field \"id\""), "{wrong}");
    }

    #[test]
    fn base64_is_taken_in_all_its_forms() {
        for text in ["+/8=", "+/8", "-_8=", "-_8"] {
            assert_eq!(decode_base64(text).expect(text), [0xfb, 0xff], "{text}");
        }
    }

    #[test]
    fn the_deepest_json_can_be_decoded_again() {
        let objects = |levels: usize| {
            format!(
                r#"{{"type":"t","json":{}{}}}"#,
                r#"{"a":"#.repeat(levels),
                "1".to_owned() + &"}".repeat(levels)
            )
        };
        let event = read(&objects(DEEPEST_JSON)).expect("just shallow enough");
        let request =
            counterfoil::proto::pb::PublishRequest { events: vec![event], ..Default::default() };
        let bytes = request.encode_to_vec();
        counterfoil::proto::pb::PublishRequest::decode(&bytes[..]).expect("within the limit");
        assert!(read(&objects(DEEPEST_JSON + 1)).is_err());
    }
}
