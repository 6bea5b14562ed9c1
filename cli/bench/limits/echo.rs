//! The publisher's service with canned answers: what tonic does with the same
//! bytes and nothing behind them. Events are bytes here, too: nobody encodes them.

use std::{io::Write as _, pin::Pin};

use counterfoil::proto::{
    limits::{
        CONNECTION_WINDOW_BYTES, FRAME_BYTES, FRAME_EVENTS, MAX_MESSAGE_BYTES, STREAM_WINDOW_BYTES,
    },
    pb::*,
    served::publisher_service_server::{PublisherService, PublisherServiceServer},
    stored,
};
use futures_util::stream;
use prost::Message as _;
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming, transport::Server};

use crate::{bench::events::Events, failure::Failure};

/// Serves on a free port until it is told to end.
///
/// # Errors
/// [`Failure::Runtime`] when the port cannot be had.
pub async fn serve(payload: usize) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Runtime(format!("stand-in: {error}"));
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| failed(&error))?;
    let address = listener.local_addr().map_err(|error| failed(&error))?;
    let service = PublisherServiceServer::new(Canned::of(payload))
        .max_decoding_message_size(MAX_MESSAGE_BYTES);
    println!("listening on {address}");
    std::io::stdout().flush().map_err(Failure::output)?;
    let incoming = TcpListenerStream::new(listener).map(|connection| {
        connection.inspect(|connection| {
            let _ = connection.set_nodelay(true); // slower without, and no less right
        })
    });
    let serving = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .add_service(service)
        .serve_with_incoming(incoming);
    tokio::select! {
        served = serving => served.map_err(|error| failed(&error)),
        _ = crate::process::told_to_end() => Ok(()),
    }
}

/// Answers that are as long as the real ones.
struct Canned {
    receipt: Receipt,
    frame: stored::ReplayBatch,
}

impl Canned {
    fn of(payload: usize) -> Self {
        let events = Events::of(payload);
        let log_id = uuid::Uuid::new_v4().to_string();
        let now = Some(prost_types::Timestamp { seconds: 1_800_000_000, nanos: 123_456_789 });
        let hash = bytes::Bytes::from_static(&[7; 32]);
        let receipt = Receipt {
            log_id: log_id.clone(),
            sequence: Some(1_000_000),
            subject_version: Some(1_000),
            fingerprint: hash.clone(),
            accept_time: now,
            expire_time: now,
            outcome: PublishOutcome::Appended.into(),
            ..Receipt::default()
        };
        let made = |turn| {
            let NewEvent { key, r#type, subject, .. } = events.make(turn);
            Event {
                sequence: Some(1_000_000),
                key,
                r#type,
                subject,
                subject_version: Some(1_000),
                accept_time: now,
                fingerprint: hash.clone(),
                content_type: "application/json".to_owned(),
                data: events.make(turn).data.map(|data| match data {
                    new_event::Data::Json(json) => event::Data::Json(json),
                    new_event::Data::JsonText(text) => event::Data::JsonText(text),
                    new_event::Data::Binary(bytes) => event::Data::Binary(bytes),
                }),
                ..Event::default()
            }
        };
        let event = |turn| bytes::Bytes::from(made(turn).encode_to_vec());
        let fitting = (FRAME_BYTES / event(0).len()).clamp(1, FRAME_EVENTS);
        let cursor = Cursor { log_id, sequence: Some(1_000_000), chain: hash.clone() };
        let frame =
            stored::ReplayBatch { events: (0..fitting).map(event).collect(), cursor: Some(cursor) };
        Canned { receipt, frame }
    }
}

fn receipts(receipt: &Receipt, request: PublishRequest) -> Vec<Receipt> {
    let keys = request.events.into_iter().map(|event| event.key);
    keys.map(|key| Receipt { key, ..receipt.clone() }).collect()
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl PublisherService for Canned {
    async fn publish(
        &self,
        request: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        let receipts = receipts(&self.receipt, request.into_inner());
        Ok(Response::new(PublishResponse { receipts }))
    }

    type PublishStreamStream = Answers<PublishStreamResponse>;

    async fn publish_stream(
        &self,
        requests: Request<Streaming<PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        let receipt = self.receipt.clone();
        let answers = requests.into_inner().map(move |request| {
            let receipts = receipts(&receipt, request?);
            Ok(PublishStreamResponse { receipts, error: None })
        });
        Ok(Response::new(Box::pin(answers)))
    }

    type ReplayStream = Answers<stored::ReplayResponse>;

    /// As many events as `limit` says, in whole frames.
    async fn replay(
        &self,
        request: Request<ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let events = usize::try_from(request.into_inner().limit).unwrap_or_default();
        let frames = events.div_ceil(self.frame.events.len());
        let frame = stored::Frame::Batch(self.frame.clone());
        let frames =
            (0..frames).map(move |_| Ok(stored::ReplayResponse { frame: Some(frame.clone()) }));
        Ok(Response::new(Box::pin(stream::iter(frames))))
    }

    async fn get_receipt(
        &self,
        _: Request<GetReceiptRequest>,
    ) -> Result<Response<GetReceiptResponse>, Status> {
        Err(nothing_behind())
    }

    async fn ack(&self, _: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        Err(nothing_behind())
    }

    async fn get_log(&self, _: Request<GetLogRequest>) -> Result<Response<GetLogResponse>, Status> {
        Err(nothing_behind())
    }

    async fn list_logs(
        &self,
        _: Request<ListLogsRequest>,
    ) -> Result<Response<ListLogsResponse>, Status> {
        Err(nothing_behind())
    }
}

fn nothing_behind() -> Status {
    Status::unimplemented("a stand-in has nothing behind it")
}
