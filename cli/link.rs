//! Clients of the services, with deadlines on calls that answer once.

use std::time::Duration;

use counterfoil::{
    client,
    proto::{
        limits::MAX_MESSAGE_BYTES,
        pb::{
            publisher_admin_service_client::PublisherAdminServiceClient,
            publisher_service_client::PublisherServiceClient,
            receiver_admin_service_client::ReceiverAdminServiceClient,
            receiver_service_client::ReceiverServiceClient,
            snapshot_service_client::SnapshotServiceClient,
        },
        served::publisher_service_client::PublisherServiceClient as StoredEventsClient,
    },
};
use tonic::{Request, transport::Channel};

use crate::failure::Failure;

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

/// The same, whose Replays bring events as they are stored.
///
/// # Errors
/// As [`publisher`].
pub fn stored_events(url: &str) -> Result<StoredEventsClient<Channel>, Failure> {
    Ok(StoredEventsClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A client of what a person changes at the publisher at `url`, likewise.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn publisher_admin(url: &str) -> Result<PublisherAdminServiceClient<Channel>, Failure> {
    Ok(PublisherAdminServiceClient::new(channel(url)?))
}

/// A client of the receiver at `url`, likewise.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn receiver(url: &str) -> Result<ReceiverServiceClient<Channel>, Failure> {
    Ok(ReceiverServiceClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A client of the snapshots of the publisher at `url`, likewise.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn snapshots(url: &str) -> Result<SnapshotServiceClient<Channel>, Failure> {
    Ok(SnapshotServiceClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A client that changes the receiver at `url`, likewise.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn receiver_admin(url: &str) -> Result<ReceiverAdminServiceClient<Channel>, Failure> {
    Ok(ReceiverAdminServiceClient::new(channel(url)?).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// A channel to `url`.
///
/// # Errors
/// [`Failure::Usage`] for text that is no URL.
pub fn channel(url: &str) -> Result<Channel, Failure> {
    client::channel(url).map_err(|error| Failure::Usage(error.to_string()))
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
