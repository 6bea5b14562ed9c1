//! A replayed event as one line of JSON, under the names of its .proto, so that
//! what `tail` prints `publish` can read. Pure.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use counterfoil::proto::{
    event::hex,
    pb::{Event, event::Data},
};
use prost_types::Timestamp;
use serde::Serialize;
use serde_json::Value;

/// Field order is print order. Sequence and version are numbers, as people and
/// `jq` like them; the fingerprint is hexadecimal.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    sequence: i64,
    key: String,
    r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    subject: String,
    subject_version: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    accept_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_attempt_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<String, String>,
    content_type: String,
    #[serde(flatten)]
    data: Option<Payload>,
    fingerprint: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Payload {
    Json(Value),
    JsonText(String),
    Binary(String),
}

/// The event as JSON, without a newline.
pub fn line(event: Event) -> String {
    let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
    let line = Line {
        sequence: event.sequence.unwrap_or(-1),
        key: event.key,
        r#type: event.r#type,
        subject: event.subject,
        subject_version: event.subject_version.unwrap_or(-1),
        accept_time: time(event.accept_time),
        first_attempt_time: time(event.first_attempt_time),
        expected_version: event.expected_version,
        time: time(event.time),
        attributes: event.attributes,
        content_type: event.content_type,
        data: event.data.and_then(payload),
        fingerprint: hex(&event.fingerprint),
    };
    serde_json::to_string(&line).expect("texts and numbers under text names are always JSON")
}

/// JSON text is shown as JSON only where it is an object in canonical form:
/// then nothing is lost, and publishing the line again gives the same content.
fn payload(data: Data) -> Option<Payload> {
    Some(match data {
        Data::JsonText(text) => match serde_json::from_str::<Value>(&text) {
            Ok(value) if value.is_object() && is_canonical(&value, &text) => Payload::Json(value),
            _ => Payload::JsonText(text),
        },
        Data::Binary(bytes) if bytes.is_empty() => return None,
        Data::Binary(bytes) => Payload::Binary(BASE64_STANDARD.encode(bytes)),
        // Asked for by nobody here.
        Data::Json(_) => return None,
    })
}

fn is_canonical(value: &Value, text: &str) -> bool {
    serde_json_canonicalizer::to_string(value).is_ok_and(|canonical| canonical == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(data: Data) -> Event {
        Event {
            sequence: Some(7),
            key: "k".into(),
            r#type: "t".into(),
            subject: "camera".into(),
            subject_version: Some(1),
            accept_time: Some(Timestamp { seconds: 0, nanos: 0 }),
            content_type: "application/json".into(),
            fingerprint: vec![0xab; 2].into(),
            data: Some(data),
            ..Default::default()
        }
    }

    #[test]
    fn a_line_reads_well_and_has_all_fields() {
        assert_eq!(
            line(event(Data::JsonText(r#"{"delta":3}"#.into()))),
            r#"{"sequence":7,"key":"k","type":"t","subject":"camera","subjectVersion":1,"acceptTime":"1970-01-01T00:00:00Z","contentType":"application/json","json":{"delta":3},"fingerprint":"abab"}"#
        );
    }

    #[test]
    fn a_payload_is_shown_without_losing_anything() {
        let cases = [
            (Data::JsonText(r#"{"a":1}"#.into()), r#""json":{"a":1}"#),
            (Data::JsonText("{ \"a\":\n1}".into()), r#""jsonText":"{ \"a\":\n1}""#),
            (
                Data::JsonText(r#"{"a":9007199254740993}"#.into()),
                r#""jsonText":"{\"a\":9007199254740993}""#,
            ),
            (Data::JsonText("[1]".into()), r#""jsonText":"[1]""#),
            (Data::Binary(vec![0xfb, 0xff].into()), r#""binary":"+/8=""#),
        ];
        for (data, shown) in cases {
            let text = line(event(data));
            assert!(text.contains(shown), "{shown} is missing in: {text}");
        }
    }
}
