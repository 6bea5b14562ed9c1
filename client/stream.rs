//! Keeps a PublishStream open for as long as there is something to send, and
//! opens another one after a delay when it breaks.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};

use super::{
    codec::Encoded,
    flight::{Flight, StreamNumber},
    judge::delay,
};
use crate::proto::limits::MAX_MESSAGE_BYTES;

const PUBLISH_STREAM: PathAndQuery =
    PathAndQuery::from_static("/counterfoil.v1.PublisherService/PublishStream");

/// Carries requests until there will be no more.
pub async fn run(channel: Channel, flight: Arc<Flight>, attempts: Option<u32>, patience: Duration) {
    // Streams in a row that broke before an answer.
    let mut failed = 0;
    while poll_fn(|cx| flight.poll_work(cx)).await {
        let answered = flight.answered();
        let ended = tokio::select! {
            biased;
            ended = carry(&channel, &flight) => ended,
            () = stuck(&flight, patience) => {
                Status::deadline_exceeded(format!("no answer for {patience:?}"))
            }
        };
        let progress = flight.answered() > answered;
        flight.broke(&ended, attempts);
        if flight.oldest().is_none() {
            failed = 0;
            continue;
        }
        failed = if progress { 1 } else { failed + 1 };
        tokio::time::sleep(delay(failed + 1, rand::random())).await;
    }
}

/// One stream: sends whatever there is, hands out the answers. Returns why it ended.
async fn carry(channel: &Channel, flight: &Arc<Flight>) -> Status {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    if let Err(error) = client.ready().await {
        return Status::from_error(error.into());
    }
    let requests = Requests { flight: Arc::clone(flight), stream: flight.open() };
    let mut answers = match client.streaming(Request::new(requests), PUBLISH_STREAM, Encoded).await
    {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    loop {
        match answers.message().await {
            Ok(Some(answer)) => {
                if let Err(status) = flight.answer(answer) {
                    return status;
                }
            }
            Ok(None) => return Status::unavailable("the publisher has ended the stream"),
            Err(status) => return status,
        }
    }
}

/// Returns once the same request has been the oldest without an answer for `patience`.
async fn stuck(flight: &Flight, patience: Duration) {
    let mut before = None;
    loop {
        tokio::time::sleep(patience).await;
        let now = flight.oldest();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

/// What goes out on one stream.
struct Requests {
    flight: Arc<Flight>,
    stream: StreamNumber,
}

impl Stream for Requests {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.flight.poll_send(self.stream, cx)
    }
}
