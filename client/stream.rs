//! Keeps a PublishStream open for as long as there is something to send, and
//! opens another one after a delay when it breaks.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Weak},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::time::{Instant, sleep};
use tonic::{Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Channel};

use super::{
    codec::Encoded,
    flight::{Flight, StreamNumber},
    judge::delay,
};
use crate::proto::limits::MAX_MESSAGE_BYTES;

const PUBLISH_STREAM: PathAndQuery =
    PathAndQuery::from_static("/counterfoil.v1.PublisherService/PublishStream");

/// A stream that gives no answer is looked at so many times within the patience.
const LOOKS: u32 = 4;

/// Carries requests until there will be no more.
pub async fn run(channel: Channel, flight: Flight, attempts: Option<u32>, patience: Duration) {
    // Nobody else keeps it: what ends this task, a panic too, ends all waiting.
    let flight = Arc::new(flight);
    // Streams in a row that broke before an answer.
    let mut failed = 0;
    while poll_fn(|cx| flight.poll_work(cx)).await {
        let ended = tokio::select! {
            biased;
            ended = carry(&channel, &flight) => ended,
            () = stuck(&flight, patience) => {
                Status::deadline_exceeded(format!("no answer for {patience:?}"))
            }
        };
        let progress = flight.broke(&ended, attempts);
        if flight.oldest().is_none() {
            failed = 0;
            continue;
        }
        failed = if progress { 1 } else { failed + 1 };
        sleep(delay(failed + 1, rand::random())).await;
    }
}

/// One stream: sends whatever there is, hands out the answers. Returns why it ended.
async fn carry(channel: &Channel, flight: &Arc<Flight>) -> Status {
    let mut client = Grpc::new(channel.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
    if let Err(error) = client.ready().await {
        return Status::from_error(error.into());
    }
    let requests = Requests { flight: Arc::downgrade(flight), stream: flight.open() };
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

/// Returns once the same request has been the oldest without an answer for
/// `patience`, or up to one look longer.
async fn stuck(flight: &Flight, patience: Duration) {
    let mut seen = (flight.oldest(), Instant::now());
    while seen.0.is_none() || seen.1.elapsed() < patience {
        sleep(patience / LOOKS).await;
        let oldest = flight.oldest();
        if oldest != seen.0 {
            seen = (oldest, Instant::now());
        }
    }
}

/// What goes out on one stream.
struct Requests {
    /// Gone with the task that carries it; the connection may stay longer.
    flight: Weak<Flight>,
    stream: StreamNumber,
}

impl Stream for Requests {
    type Item = Bytes;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        match self.flight.upgrade() {
            Some(flight) => flight.poll_send(self.stream, cx),
            None => Poll::Ready(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::flight::tests::callers, *};

    const PATIENCE: Duration = Duration::from_secs(4);

    /// The clock is the test's: it goes on only while all wait.
    #[tokio::test(start_paused = true)]
    async fn patience_begins_with_the_oldest_request_and_ends_within_a_quarter_more() {
        let callers = callers();
        let _answers = ["a", "b"].map(|request| callers.submit(request));
        let stream = callers.flight.open();
        assert_eq!(callers.sent(stream), ["a", "b"]);
        let from = Instant::now();
        stuck(&callers.flight, PATIENCE).await;
        assert_eq!(from.elapsed().as_secs(), 4);

        let answered = async {
            sleep(Duration::from_millis(1_100)).await;
            callers.answers().expect("a was asked");
            Instant::now()
        };
        let (from, ()) = tokio::join!(answered, stuck(&callers.flight, PATIENCE));
        assert!((4..=5).contains(&from.elapsed().as_secs()), "{:?}", from.elapsed());
    }
}
