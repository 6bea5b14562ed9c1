//! The payloads of the built-in projection `inventory`, read out of an intent.
//! The publisher refuses an intent that cannot be read, so that no such event
//! stops a receiver; the receiver applies what is read here. Pure.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;

use super::event::{DataKind, Intent, Stated};

/// How far one adjustment goes, either way.
const DELTA: RangeInclusive<i64> = -1_000..=1_000;
/// How much one reservation takes.
const QUANTITY: RangeInclusive<i64> = 1..=1_000;
/// Most bytes of a task's name.
const MAX_TASK_BYTES: usize = 256;
/// Characters of a wrong value that are repeated to the caller.
const SHOWN_CHARS: usize = 40;

/// What an intent says about stock. The item is the intent's subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Movement {
    /// `stock.adjusted`: so much was added or found missing.
    Adjusted {
        /// How much.
        delta: i64,
    },
    /// `stock.reserved`: a task wants some of it.
    Reserved {
        /// Who wants it.
        task: String,
        /// How much.
        quantity: i64,
        /// The version of the stock that the task has seen.
        expected_version: i64,
    },
}

/// Why an intent cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {wrong}")]
pub struct Unreadable {
    /// The field at fault: `subject`, `data`, or a field of the payload.
    pub field: &'static str,
    /// What was found and what was expected.
    pub wrong: String,
}

impl Unreadable {
    fn new(field: &'static str, wrong: impl Into<String>) -> Self {
        Unreadable { field, wrong: wrong.into() }
    }
}

/// Reads an intent. None: its type is none of this projection's.
///
/// # Errors
/// [`Unreadable`].
pub fn read(intent: &Intent) -> Result<Option<Movement>, Unreadable> {
    read_stated(&intent.stated())
}

/// The same of one that is borrowed.
///
/// # Errors
/// [`Unreadable`].
pub fn read_stated(intent: &Stated<'_>) -> Result<Option<Movement>, Unreadable> {
    match intent.content.event_type {
        "stock.adjusted" => adjusted(intent).map(Some),
        "stock.reserved" => reserved(intent).map(Some),
        _ => Ok(None),
    }
}

fn adjusted(intent: &Stated<'_>) -> Result<Movement, Unreadable> {
    #[derive(Deserialize)]
    struct Payload {
        delta: Option<Value>,
    }
    let Payload { delta } = payload(intent)?;
    Ok(Movement::Adjusted { delta: integer(delta, "delta", DELTA)? })
}

fn reserved(intent: &Stated<'_>) -> Result<Movement, Unreadable> {
    #[derive(Deserialize)]
    struct Payload {
        task: Option<Value>,
        quantity: Option<Value>,
        expected_version: Option<Value>,
    }
    let Payload { task, quantity, expected_version } = payload(intent)?;
    Ok(Movement::Reserved {
        task: text(task, "task")?,
        quantity: integer(quantity, "quantity", QUANTITY)?,
        expected_version: integer(expected_version, "expected_version", 0..=i64::MAX)?,
    })
}

fn payload<'a, T: Deserialize<'a>>(intent: &Stated<'a>) -> Result<T, Unreadable> {
    if intent.content.subject.is_empty() {
        return Err(Unreadable::new("subject", "is empty, an item was expected"));
    }
    let wrong = |what: &str| Unreadable::new("data", format!("is {what}, which was expected"));
    if intent.kind != DataKind::Json {
        return Err(wrong("no JSON object"));
    }
    // Looked at here, because a list would do for a structure too.
    if intent.content.data.trim_ascii_start().first() != Some(&b'{') {
        return Err(wrong("not a JSON object"));
    }
    serde_json::from_slice(intent.content.data).map_err(|error| {
        Unreadable::new("data", format!("is not the JSON object expected: {error}"))
    })
}

fn integer(
    value: Option<Value>,
    field: &'static str,
    allowed: RangeInclusive<i64>,
) -> Result<i64, Unreadable> {
    let found = match &value {
        None => "is missing".to_owned(),
        Some(value) => match value.as_i64() {
            Some(number) if allowed.contains(&number) => return Ok(number),
            _ => format!("is {}", shortened(value)),
        },
    };
    let (least, most) = (allowed.start(), allowed.end());
    Err(Unreadable::new(field, format!("{found}, an integer from {least} to {most} was expected")))
}

fn text(value: Option<Value>, field: &'static str) -> Result<String, Unreadable> {
    let found = match value {
        Some(Value::String(text)) if !text.is_empty() && text.len() <= MAX_TASK_BYTES => {
            return Ok(text);
        }
        None => "is missing".to_owned(),
        Some(other) => format!("is {}", shortened(&other)),
    };
    Err(Unreadable::new(
        field,
        format!("{found}, text of 1 to {MAX_TASK_BYTES} bytes was expected"),
    ))
}

fn shortened(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn intent(event_type: &str, subject: &str, data: &str) -> Intent {
        Intent {
            key: "k".into(),
            event_type: event_type.into(),
            subject: subject.into(),
            content_type: "application/json".into(),
            kind: DataKind::Json,
            data: Bytes::copy_from_slice(data.as_bytes()),
            attributes: Vec::new(),
            expected_version: None,
            first_attempt_time: None,
            time: None,
            fingerprint: [0; 32],
        }
    }

    #[test]
    fn payloads_within_their_bounds_are_read() {
        let reserved = |quantity, expected_version| Movement::Reserved {
            task: "t".into(),
            quantity,
            expected_version,
        };
        let cases = [
            ("stock.adjusted", r#"{"delta":-1000}"#, Some(Movement::Adjusted { delta: -1_000 })),
            (
                "stock.adjusted",
                r#" {"delta":1000,"note":1}"#,
                Some(Movement::Adjusted { delta: 1_000 }),
            ),
            (
                "stock.reserved",
                r#"{"task":"t","quantity":1,"expected_version":0}"#,
                Some(reserved(1, 0)),
            ),
            ("price.changed", "[]", None),
        ];
        for (event_type, data, expected) in cases {
            assert_eq!(read(&intent(event_type, "camera", data)), Ok(expected), "{data}");
        }
    }

    #[test]
    fn what_cannot_be_read_names_field_and_limit() {
        let cases = [
            ("stock.adjusted", "", r#"{"delta":1}"#, "subject", "item"),
            ("stock.adjusted", "a", "{}", "delta", "missing"),
            (
                "stock.adjusted",
                "a",
                r#"{"delta":1001}"#,
                "delta",
                "is 1001, an integer from -1000 to 1000",
            ),
            ("stock.adjusted", "a", r#"{"delta":-1001}"#, "delta", "-1000 to 1000"),
            ("stock.adjusted", "a", r#"{"delta":"3"}"#, "delta", "is \"3\""),
            ("stock.adjusted", "a", r#"{"delta":1.5}"#, "delta", "integer"),
            ("stock.adjusted", "a", r#"{"delta":1,"delta":2}"#, "data", "duplicate"),
            ("stock.adjusted", "a", "[1]", "data", "object"),
            (
                "stock.reserved",
                "a",
                r#"{"task":"t","quantity":0,"expected_version":1}"#,
                "quantity",
                "1 to 1000",
            ),
            (
                "stock.reserved",
                "a",
                r#"{"task":"","quantity":1,"expected_version":1}"#,
                "task",
                "1 to 256",
            ),
            ("stock.reserved", "a", r#"{"task":"t","quantity":1}"#, "expected_version", "missing"),
        ];
        for (event_type, subject, data, field, part) in cases {
            let unreadable = read(&intent(event_type, subject, data)).expect_err(data);
            assert_eq!(unreadable.field, field, "{data}");
            assert!(unreadable.wrong.contains(part), "{part:?} is missing in: {unreadable}");
        }
    }
}
