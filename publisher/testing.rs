//! What the unit tests of the publisher share: intents in one line.

use bytes::Bytes;

use crate::proto::event::{DataKind, Intent, fingerprint};

/// A small intent. Equal arguments give equal content; the key is no content.
pub fn intent(key: &str, subject: &str) -> Intent {
    with_data(key, subject, "{\"delta\":1}")
}

/// The same with this payload.
pub fn with_data(key: &str, subject: &str, data: &str) -> Intent {
    let mut intent = Intent {
        key: key.to_owned(),
        event_type: "stock.adjusted".to_owned(),
        subject: subject.to_owned(),
        content_type: DataKind::Json.default_content_type().to_owned(),
        kind: DataKind::Json,
        data: Bytes::from(data.to_owned()),
        attributes: Vec::new(),
        expected_version: None,
        first_attempt_time: None,
        time: None,
        fingerprint: [0; 32],
    };
    intent.fingerprint = fingerprint(&intent.content());
    intent
}
