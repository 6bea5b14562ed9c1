//! Reading a file may take its time: not on the runtime's threads.

use super::halt::shutting_down;
use crate::proto::refusal::Refusal;

/// Reads on a thread that may wait.
///
/// # Errors
/// Those of `read`; SHUTTING_DOWN when the runtime ends first.
pub async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(read).await.unwrap_or_else(|ended| {
        tracing::debug!(%ended, "a read was given up");
        Err(shutting_down())
    })
}
