//! Events as the stories tell of them.

use counterfoil::proto::pb::{NewEvent, new_event::Data};

/// Some JSON text under a key.
pub fn event(key: &str, kind: &str, subject: &str, json: &str) -> NewEvent {
    NewEvent {
        key: key.into(),
        r#type: kind.into(),
        subject: subject.into(),
        data: Some(Data::JsonText(json.into())),
        ..Default::default()
    }
}

/// `stock.adjusted` by an amount.
pub fn adjusted(key: &str, item: &str, delta: i64) -> NewEvent {
    event(key, "stock.adjusted", item, &format!(r#"{{"delta":{delta}}}"#))
}

/// `stock.reserved` against a version of the item.
pub fn reserved(key: &str, item: &str, task: &str, quantity: i64, version: i64) -> NewEvent {
    let json = format!(r#"{{"task":"{task}","quantity":{quantity},"expected_version":{version}}}"#);
    event(key, "stock.reserved", item, &json)
}

/// Many adjustments by one, keys `PREFIX-0` and so on.
pub fn adjustments(prefix: &str, count: usize) -> Vec<NewEvent> {
    (0..count).map(|n| adjusted(&format!("{prefix}-{n}"), &format!("item-{}", n % 7), 1)).collect()
}

/// The same, only if the subject has exactly this version.
pub fn at_version(event: NewEvent, version: i64) -> NewEvent {
    NewEvent { expected_version: Some(version), ..event }
}
