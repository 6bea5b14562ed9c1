//! A connection with the settings that every client should have: keepalive, and
//! a bound on connecting.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use super::error::ConnectError;
use crate::proto::limits::{
    CONNECTION_WINDOW_BYTES, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, STREAM_WINDOW_BYTES,
};

/// Longest time for a connection to come about.
const CONNECT: Duration = Duration::from_secs(5);

/// A channel to a service. Connects with the first call, and again whenever the
/// connection was lost.
///
/// # Errors
/// [`ConnectError::InvalidUrl`].
pub fn channel(url: &str) -> Result<Channel, ConnectError> {
    let invalid = || ConnectError::InvalidUrl(url.to_owned());
    let endpoint = Endpoint::from_shared(url.to_owned()).map_err(|_| invalid())?;
    if endpoint.uri().scheme_str() != Some("http") || endpoint.uri().host().is_none() {
        return Err(invalid());
    }
    Ok(endpoint
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .connect_lazy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_http_urls_are_taken() {
        assert!(channel("http://localhost:7601").is_ok());
        for wrong in ["", "localhost:7601", "https://localhost:7601", "http://", "a b"] {
            let error = channel(wrong).expect_err(wrong);
            assert_eq!(error, ConnectError::InvalidUrl(wrong.to_owned()));
        }
    }
}
