//! A Publish as it arrives: its texts are slices of the bytes that came, and are copied
//! once, into the bytes under which an event is stored. On the wire texts and bytes are
//! the same, so these are `counterfoil.v1.PublishRequest` and its parts, tag by tag.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost_types::{Struct, Timestamp};

use super::pb;

/// See [`pb::PublishRequest`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct PublishRequest {
    /// Name of the log.
    #[prost(bytes = "bytes", tag = "1")]
    pub log: Bytes,
    /// All or none of them are accepted.
    #[prost(message, repeated, tag = "2")]
    pub events: Vec<NewEvent>,
}

/// See [`pb::NewEvent`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct NewEvent {
    /// Idempotency key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// What happened.
    #[prost(bytes = "bytes", tag = "2")]
    pub event_type: Bytes,
    /// What it happened to.
    #[prost(bytes = "bytes", tag = "3")]
    pub subject: Bytes,
    /// When the first attempt was made.
    #[prost(message, optional, tag = "4")]
    pub first_attempt_time: Option<Timestamp>,
    /// Accept only at this version of the subject.
    #[prost(int64, optional, tag = "5")]
    pub expected_version: Option<i64>,
    /// When it happened.
    #[prost(message, optional, tag = "6")]
    pub time: Option<Timestamp>,
    /// Free names and values.
    #[prost(btree_map = "string, string", tag = "7")]
    pub attributes: BTreeMap<String, String>,
    /// Media type.
    #[prost(bytes = "bytes", tag = "8")]
    pub content_type: Bytes,
    /// The payload.
    #[prost(oneof = "Data", tags = "9, 10, 11")]
    pub data: Option<Data>,
}

/// See [`pb::new_event::Data`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Data {
    /// A JSON object.
    #[prost(message, tag = "9")]
    Json(Struct),
    /// JSON text.
    #[prost(bytes = "bytes", tag = "10")]
    JsonText(Bytes),
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "11")]
    Binary(Bytes),
}

impl PublishRequest {
    /// Whether all texts are UTF-8, which a message with one that is not cannot be.
    pub fn is_text(&self) -> bool {
        let is_text = |bytes: &Bytes| std::str::from_utf8(bytes).is_ok();
        is_text(&self.log)
            && self.events.iter().all(|event| {
                let NewEvent { key, event_type, subject, content_type, data, .. } = event;
                let text = match data {
                    Some(Data::JsonText(text)) => is_text(text),
                    _ => true,
                };
                text && [key, event_type, subject, content_type].into_iter().all(is_text)
            })
    }
}

impl From<pb::PublishRequest> for PublishRequest {
    fn from(request: pb::PublishRequest) -> Self {
        let pb::PublishRequest { log, events } = request;
        let events = events.into_iter().map(NewEvent::from).collect();
        PublishRequest { log: log.into(), events }
    }
}

impl From<pb::NewEvent> for NewEvent {
    fn from(event: pb::NewEvent) -> Self {
        NewEvent {
            key: event.key.into(),
            event_type: event.r#type.into(),
            subject: event.subject.into(),
            first_attempt_time: event.first_attempt_time,
            expected_version: event.expected_version,
            time: event.time,
            attributes: event.attributes,
            content_type: event.content_type.into(),
            data: event.data.map(|data| match data {
                pb::new_event::Data::Json(object) => Data::Json(object),
                pb::new_event::Data::JsonText(text) => Data::JsonText(text.into()),
                pb::new_event::Data::Binary(bytes) => Data::Binary(bytes),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn request(data: Option<pb::new_event::Data>) -> pb::PublishRequest {
        let time = |seconds| Some(Timestamp { seconds, nanos: 5 });
        let event = pb::NewEvent {
            key: "k".into(),
            r#type: "stock.adjusted".into(),
            subject: "camera".into(),
            first_attempt_time: time(1),
            expected_version: Some(0),
            time: time(2),
            attributes: [("shop".to_owned(), "7".to_owned())].into(),
            content_type: "text/plain".into(),
            data,
        };
        pb::PublishRequest { log: "main".into(), events: vec![event, pb::NewEvent::default()] }
    }

    #[test]
    fn it_reads_what_the_generated_message_says() {
        use pb::new_event::Data::{Binary, Json, JsonText};
        let payloads = [
            None,
            Some(Json(Struct::default())),
            Some(JsonText("{}".into())),
            Some(Binary(vec![0xff].into())),
        ];
        for data in payloads {
            let said = request(data);
            let arrived = PublishRequest::decode(Bytes::from(said.encode_to_vec()));
            let arrived = arrived.expect("the same message");
            assert!(arrived.is_text());
            assert_eq!(arrived, said.into());
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_noticed_in_every_text() {
        let no_text = || Bytes::from_static(b"\xff");
        let whole = PublishRequest::from(request(None));
        let of = |event: NewEvent| PublishRequest { events: vec![event], ..Default::default() };
        let wrong = [
            PublishRequest { log: no_text(), ..whole },
            of(NewEvent { key: no_text(), ..Default::default() }),
            of(NewEvent { event_type: no_text(), ..Default::default() }),
            of(NewEvent { subject: no_text(), ..Default::default() }),
            of(NewEvent { content_type: no_text(), ..Default::default() }),
            of(NewEvent { data: Some(Data::JsonText(no_text())), ..Default::default() }),
        ];
        for request in wrong {
            assert!(!request.is_text(), "{request:?}");
            let bytes = request.encode_to_vec();
            assert!(pb::PublishRequest::decode(&*bytes).is_err(), "{request:?}");
        }
    }
}
