//! A stream that a task fills, as it goes out to a caller: all that the task sends, and
//! then its last word.

use futures_util::{Stream, StreamExt as _, stream};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::proto::refusal::Refusal;

/// Why a task ends before its time.
pub enum End {
    /// The caller has gone.
    Gone,
    /// The caller is told why.
    Refused(Refusal),
}

impl From<Refusal> for End {
    fn from(refusal: Refusal) -> Self {
        End::Refused(refusal)
    }
}

/// What a task sends, then why it has ended, if that was before its time. The last word
/// comes after all else, also when a slow caller has left no room for it among the rest.
pub fn outgoing<T: Send + 'static>(
    sent: mpsc::Receiver<T>,
    task: JoinHandle<Result<(), End>>,
) -> impl Stream<Item = Result<T, Status>> + Send + use<T> {
    let last_word = stream::once(task).filter_map(|ended| async {
        match ended {
            Ok(Ok(()) | Err(End::Gone)) => None,
            Ok(Err(End::Refused(refusal))) => Some(Err(Status::from(refusal))),
            Err(_) => Some(Err(Status::internal("the stream has failed"))),
        }
    });
    ReceiverStream::new(sent).map(Ok).chain(last_word)
}
