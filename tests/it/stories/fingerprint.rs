//! Fingerprint and chain are what docs/fingerprint.md says, in two languages (PUB-11).

use counterfoil::proto::{
    chain::{EMPTY_CHAIN, link},
    event::{Time, fingerprint, hex},
    pb::{NewEvent, new_event::Data},
    wire,
};
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::Value as Json;

use crate::harness::{
    pair::directory,
    process::Launch,
    publish_stream::PublishStream,
    publisher::Publisher,
    tools::{has, skip},
};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/vectors.json");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/fingerprint_vectors.py");

/// The event that a case of the file describes.
fn event(case: &Json) -> NewEvent {
    let text = |name: &str| case[name].as_str().unwrap_or_default().to_owned();
    let data = if let Some(object) = case["json"].as_object() {
        Some(Data::Json(structure(object)))
    } else if let Some(text) = case["json_text"].as_str() {
        Some(Data::JsonText(text.to_owned()))
    } else {
        case["binary_hex"].as_str().map(|digits| Data::Binary(unhex(digits).into()))
    };
    let attributes = case["attributes"].as_object().into_iter().flatten();
    NewEvent {
        key: text("key"),
        r#type: text("type"),
        subject: text("subject"),
        content_type: text("content_type"),
        expected_version: case["expected_version"].as_i64(),
        first_attempt_time: case["first_attempt_time"].as_object().map(|time| {
            prost_types::Timestamp {
                seconds: time["seconds"].as_i64().expect("seconds"),
                nanos: time["nanos"].as_i64().expect("nanos") as i32,
            }
        }),
        attributes: attributes
            .map(|(name, value)| (name.clone(), value.as_str().expect("text").to_owned()))
            .collect(),
        data,
        time: None,
    }
}

fn structure(object: &serde_json::Map<String, Json>) -> Struct {
    Struct { fields: object.iter().map(|(name, json)| (name.clone(), value(json))).collect() }
}

fn value(json: &Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(truth) => Kind::BoolValue(*truth),
        Json::Number(number) => Kind::NumberValue(number.as_f64().expect("a double")),
        Json::String(text) => Kind::StringValue(text.clone()),
        Json::Array(values) => {
            Kind::ListValue(ListValue { values: values.iter().map(value).collect() })
        }
        Json::Object(object) => Kind::StructValue(structure(object)),
    };
    Value { kind: Some(kind) }
}

fn unhex(digits: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal");
    (0..digits.len()).step_by(2).map(pair).collect()
}

#[test]
fn pub_11_the_vectors_are_what_the_services_compute() {
    let text = std::fs::read_to_string(VECTORS).expect("the vectors are there");
    let vectors: Json = serde_json::from_str(&text).expect("they are JSON");
    let cases = vectors["cases"].as_array().expect("cases");
    assert!(cases.len() >= 8);
    let now = Time { seconds: 1_796_000_000, nanos: 0 };
    let mut chain = EMPTY_CHAIN;
    for (sequence, case) in (0..).zip(cases) {
        let name = case["name"].as_str().expect("a name");
        let intent = wire::intent(event(case), format_args!("events[0]"), now).expect(name);
        let print = fingerprint(&intent.content());
        assert_eq!(print, intent.fingerprint, "{name}");
        assert_eq!(case["fingerprint"], hex(&print), "{name}");
        chain = link(&chain, sequence, &print, &intent.key);
        assert_eq!(case["chain"], hex(&chain), "{name}");
    }
}

/// A repeat is known by its content, whichever way it comes and however it is packed.
#[tokio::test(flavor = "multi_thread")]
async fn pub_11_a_stream_and_a_call_mean_the_same() {
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config("[logs.main]\npayloads = \"any\"\n").start();
    let text = std::fs::read_to_string(VECTORS).expect("the vectors are there");
    let vectors: Json = serde_json::from_str(&text).expect("they are JSON");
    // Versions would have to be reached first, and times of long ago have expired.
    let timeless =
        |case: &&Json| case["expected_version"].is_null() && case["first_attempt_time"].is_null();
    let cases = vectors["cases"].as_array().expect("cases").iter().filter(timeless);
    let mut stream = PublishStream::open(&publisher.client).await.expect("a stream");
    let mut sequence = 0;
    for case in cases {
        let event = event(case);
        let first = stream.publish(vec![event.clone()]).await.expect("accepted").remove(0);
        assert_eq!(first.sequence, Some(sequence));
        assert_eq!(case["fingerprint"], hex(&first.fingerprint), "{}", case["name"]);
        let traced = [("traceparent".to_owned(), format!("00-{sequence}"))];
        let attributes = event.attributes.clone().into_iter().chain(traced).collect();
        let again = publisher.accepts(NewEvent { attributes, ..event }).await;
        assert_eq!((again.sequence, again.fingerprint), (first.sequence, first.fingerprint));
        sequence += 1;
    }
    assert!(sequence >= 8, "{sequence} cases");
}

#[test]
fn pub_11_another_language_computes_the_same() {
    if !has("python3") {
        skip!("python3 is missing");
    }
    let ended = Launch::new("python3").args([SCRIPT, VECTORS]).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains(" 0 wrong"), "{ended:?}");
}
