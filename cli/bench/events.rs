//! What is published: adjustments of stock, so that a receiver has work with them.

use std::sync::Arc;

use bytes::Bytes;
use counterfoil::proto::pb::{NewEvent, PublishRequest, new_event::Data};
use prost::Message as _;

/// Items that the events speak of, one after the other.
const ITEMS: usize = 1_000;
const BEFORE_NOTE: &str = r#"{"delta":3,"note":""#;
const AFTER_NOTE: &str = r#""}"#;

/// Events with payloads of one size.
#[derive(Debug, Clone)]
pub struct Events {
    payload: Arc<str>,
}

impl Events {
    /// With so many bytes of JSON each, and no less than the adjustment itself needs.
    pub fn of(bytes: usize) -> Self {
        let note = bytes.saturating_sub(BEFORE_NOTE.len() + AFTER_NOTE.len());
        let words = "counted by hand on a quiet afternoon ".chars().cycle().take(note);
        let payload: String = BEFORE_NOTE.chars().chain(words).chain(AFTER_NOTE.chars()).collect();
        Events { payload: payload.into() }
    }

    /// The payload of each.
    pub fn payload(&self) -> Bytes {
        Bytes::copy_from_slice(self.payload.as_bytes())
    }

    /// Bytes of a request with one of them, as it is sent.
    pub fn request_bytes(&self) -> usize {
        self.request(0, 1).encoded_len()
    }

    /// A new intent, on the item whose turn it is.
    pub fn make(&self, turn: usize) -> NewEvent {
        NewEvent {
            key: uuid::Uuid::now_v7().to_string(),
            r#type: "stock.adjusted".to_owned(),
            subject: item(turn),
            data: Some(Data::JsonText(self.payload.to_string())),
            ..NewEvent::default()
        }
    }

    /// So many of them in one request.
    pub fn request(&self, turn: usize, count: usize) -> PublishRequest {
        let events = (turn..turn + count).map(|turn| self.make(turn)).collect();
        PublishRequest { log: String::new(), events }
    }
}

/// The item whose turn it is.
pub fn item(turn: usize) -> String {
    format!("item-{}", turn % ITEMS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_is_kept_and_every_event_is_an_adjustment() {
        for bytes in [100, 1_024] {
            let events = Events::of(bytes);
            let payload: serde_json::Value = serde_json::from_str(&events.payload).expect("JSON");
            assert_eq!((events.payload.len(), &payload["delta"]), (bytes, &3.into()));
            assert!(events.request_bytes() > bytes);
        }
        assert_eq!((item(7), item(1_007)), ("item-7".to_owned(), "item-7".to_owned()));
    }
}
