//! Frames of a Replay whose events are the bytes under which they are stored: what
//! the publisher sends, so that an event is decoded and encoded again by nobody on its
//! way. On the wire an embedded message and its bytes are the same, so these are
//! `counterfoil.v1.ReplayResponse` and its parts, tag by tag.

use bytes::Bytes;

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

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    /// Decodes as the generated message what is sent as this one.
    fn received(frame: Frame) -> pb::replay_response::Frame {
        let sent = ReplayResponse { frame: Some(frame) };
        let received =
            pb::ReplayResponse::decode(&*sent.encode_to_vec()).expect("the same message");
        received.frame.expect("the same frame")
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
