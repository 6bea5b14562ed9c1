//! Connections to the services, with the settings that a client should have:
//! keepalive, a bound on connecting, deadlines on calls that answer once.

use std::time::Duration;

use counterfoil::proto::{
    limits::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, MAX_MESSAGE_BYTES},
    pb::{
        publisher_service_client::PublisherServiceClient,
        receiver_service_client::ReceiverServiceClient,
    },
};
use tonic::{
    Request,
    transport::{Channel, Endpoint},
};

use crate::failure::Failure;

/// Longest time for a connection to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// Deadline of a call that answers once.
const CALL: Duration = Duration::from_secs(10);

/// A client of the publisher at `url`. Connects with the first call, and again
/// whenever the connection was lost.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn publisher(url: &str) -> Result<PublisherServiceClient<Channel>, Failure> {
    Ok(PublisherServiceClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A client of the receiver at `url`, likewise.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn receiver(url: &str) -> Result<ReceiverServiceClient<Channel>, Failure> {
    Ok(ReceiverServiceClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A channel to `url`.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn channel(url: &str) -> Result<Channel, Failure> {
    let wrong = || Failure::Usage(format!("{url:?} is not a URL such as http://127.0.0.1:7601"));
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| wrong())?;
    if endpoint.uri().scheme_str() != Some("http") || endpoint.uri().host().is_none() {
        return Err(wrong());
    }
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

/// A request that is given up after [`CALL`].
pub fn call<T>(message: T) -> Request<T> {
    within(message, CALL)
}

/// A request that is given up after `limit`.
pub fn within<T>(message: T, limit: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_http_urls_are_taken() {
        assert!(channel("http://localhost:7601").is_ok());
        for wrong in ["", "localhost:7601", "https://localhost:7601", "http://", "a b"] {
            let error = channel(wrong).expect_err(wrong);
            assert!(matches!(error, Failure::Usage(_)), "{wrong}");
        }
    }
}
