//! Frames of a Replay whose events are the bytes under which they are stored: what
//! the publisher sends, so that an event is decoded and encoded again by nobody on its
//! way, and what a receiver reads, where an event's texts stay slices of the bytes that came.
//! On the wire an embedded message, a text and its bytes are the same, so these are
//! `counterfoil.v1.ReplayResponse` and its parts, tag by tag.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost_types::{Struct, Timestamp};

use super::pb;

/// See [`pb::ReplayResponse`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReplayResponse {
    /// What the frame says.
    #[prost(oneof = "Frame", tags = "1, 2, 3, 4, 5")]
    pub frame: Option<Frame>,
}

/// See [`pb::replay_response::Frame`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Frame {
    /// The first frame.
    #[prost(message, tag = "1")]
    Started(pb::ReplayStarted),
    /// Events in order.
    #[prost(message, tag = "2")]
    Batch(ReplayBatch),
    /// All stored events have been sent.
    #[prost(message, tag = "3")]
    CaughtUp(pb::ReplayCaughtUp),
    /// The stream is alive.
    #[prost(message, tag = "4")]
    Heartbeat(pb::ReplayHeartbeat),
    /// What this receiver still has to read is about to be evicted.
    #[prost(message, tag = "5")]
    Warning(pb::ReplayWarning),
}

/// See [`pb::ReplayBatch`].
#[derive(Clone, PartialEq, prost::Message)]
pub struct ReplayBatch {
    /// Each an encoded [`pb::Event`].
    #[prost(bytes = "bytes", repeated, tag = "1")]
    pub events: Vec<Bytes>,
    /// The cursor after the last event looked at.
    #[prost(message, optional, tag = "2")]
    pub cursor: Option<pb::Cursor>,
}

/// See [`pb::Event`]. Whether its texts are UTF-8 is still to be looked at.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Event {
    /// Place in the log.
    #[prost(int64, optional, tag = "1")]
    pub sequence: Option<i64>,
    /// Idempotency key.
    #[prost(bytes = "bytes", tag = "2")]
    pub key: Bytes,
    /// What happened.
    #[prost(bytes = "bytes", tag = "3")]
    pub event_type: Bytes,
    /// What it happened to.
    #[prost(bytes = "bytes", tag = "4")]
    pub subject: Bytes,
    /// Number of the subject's accepted events, this one included.
    #[prost(int64, optional, tag = "5")]
    pub subject_version: Option<i64>,
    /// The publisher's clock at acceptance.
    #[prost(message, optional, tag = "6")]
    pub accept_time: Option<Timestamp>,
    /// SHA-256 of the content.
    #[prost(bytes = "bytes", tag = "7")]
    pub fingerprint: Bytes,
    /// When the first attempt was made.
    #[prost(message, optional, tag = "8")]
    pub first_attempt_time: Option<Timestamp>,
    /// Accepted only at this version of the subject.
    #[prost(int64, optional, tag = "9")]
    pub expected_version: Option<i64>,
    /// When it happened.
    #[prost(message, optional, tag = "10")]
    pub time: Option<Timestamp>,
    /// Free names and values.
    #[prost(btree_map = "string, string", tag = "11")]
    pub attributes: BTreeMap<String, String>,
    /// Media type.
    #[prost(bytes = "bytes", tag = "12")]
    pub content_type: Bytes,
    /// The payload.
    #[prost(oneof = "Data", tags = "13, 14, 15")]
    pub data: Option<Data>,
}

/// See [`pb::event::Data`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Data {
    /// A JSON object.
    #[prost(message, tag = "13")]
    Json(Struct),
    /// JSON text.
    #[prost(bytes = "bytes", tag = "14")]
    JsonText(Bytes),
    /// Any bytes.
    #[prost(bytes = "bytes", tag = "15")]
    Binary(Bytes),
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Decodes as the generated message what is sent as this one, and the other way round.
    fn received(frame: Frame) -> pb::replay_response::Frame {
        use pb::replay_response::Frame as Received;
        let sent = ReplayResponse { frame: Some(frame) };
        let received =
            pb::ReplayResponse::decode(&*sent.encode_to_vec()).expect("the same message");
        let back = ReplayResponse::decode(&*received.encode_to_vec()).expect("the same message");
        assert_eq!(back, sent);
        match received.frame.expect("the same frame") {
            // Each there is: another one would be none to who reads these.
            frame @ (Received::Started(_)
            | Received::Batch(_)
            | Received::CaughtUp(_)
            | Received::Heartbeat(_)
            | Received::Warning(_)) => frame,
        }
    }

    #[test]
    fn an_event_is_read_as_the_generated_message_says() {
        use pb::event::Data::{Binary, Json, JsonText};
        let time = |seconds| Some(Timestamp { seconds, nanos: 5 });
        for data in [
            None,
            Some(Json(Struct::default())),
            Some(JsonText("{}".into())),
            Some(Binary(vec![0xff].into())),
        ] {
            let said = pb::Event {
                sequence: Some(7),
                key: "k".into(),
                r#type: "stock.adjusted".into(),
                subject: "camera".into(),
                subject_version: Some(3),
                accept_time: time(1),
                fingerprint: vec![9; 32].into(),
                first_attempt_time: time(2),
                expected_version: Some(2),
                time: time(3),
                attributes: [("shop".to_owned(), "7".to_owned())].into(),
                content_type: "text/plain".into(),
                data,
            };
            let bytes = Bytes::from(said.encode_to_vec());
            let read = Event::decode(bytes.clone()).expect("the same message");
            assert!(bytes.as_ptr_range().contains(&read.key.as_ptr()), "a slice of them");
            assert_eq!(generated(read), said);
        }
    }

    /// The same event, field by field.
    fn generated(event: Event) -> pb::Event {
        let text = |bytes: Bytes| String::from_utf8(bytes.into()).expect("a text");
        pb::Event {
            sequence: event.sequence,
            key: text(event.key),
            r#type: text(event.event_type),
            subject: text(event.subject),
            subject_version: event.subject_version,
            accept_time: event.accept_time,
            fingerprint: event.fingerprint,
            first_attempt_time: event.first_attempt_time,
            expected_version: event.expected_version,
            time: event.time,
            attributes: event.attributes,
            content_type: text(event.content_type),
            data: event.data.map(|data| match data {
                Data::Json(object) => pb::event::Data::Json(object),
                Data::JsonText(json) => pb::event::Data::JsonText(text(json)),
                Data::Binary(bytes) => pb::event::Data::Binary(bytes),
            }),
        }
    }

    #[test]
    fn every_frame_is_received_as_the_contract_has_it() {
        use pb::replay_response::Frame as Received;
        let cursor = Some(pb::Cursor { sequence: Some(7), ..pb::Cursor::default() });
        let event = |sequence| pb::Event { sequence: Some(sequence), ..pb::Event::default() };
        let bytes = |sequence| Bytes::from(event(sequence).encode_to_vec());

        let started = pb::ReplayStarted { session: Some(3), ..Default::default() };
        assert_eq!(received(Frame::Started(started.clone())), Received::Started(started));
        let batch = ReplayBatch { events: vec![bytes(6), bytes(7)], cursor: cursor.clone() };
        let expected = pb::ReplayBatch { events: vec![event(6), event(7)], cursor: cursor.clone() };
        assert_eq!(received(Frame::Batch(batch)), Received::Batch(expected));
        let caught_up = pb::ReplayCaughtUp { cursor };
        assert_eq!(received(Frame::CaughtUp(caught_up.clone())), Received::CaughtUp(caught_up));
        let heartbeat = pb::ReplayHeartbeat { next_sequence: Some(8), ..Default::default() };
        assert_eq!(received(Frame::Heartbeat(heartbeat)), Received::Heartbeat(heartbeat));
        let warning = pb::ReplayWarning { headroom_events: Some(9), ..Default::default() };
        assert_eq!(received(Frame::Warning(warning)), Received::Warning(warning));
    }
}
