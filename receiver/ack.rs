//! Acks out: tells the publisher the committed cursor, one call at a time,
//! always the newest. It follows the commit and never holds it up; it is
//! repeated at every connect and while it is unconfirmed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, transport::Channel};

use super::{
    apply::STORE_FAILED,
    retry::{self, Verdict, judge},
    status::{Board, Failure},
};
use crate::proto::{
    backoff,
    chain::Cursor,
    crash,
    event::Sequence,
    pb::{self, publisher_service_client::PublisherServiceClient},
    refusal::Reason,
    wire,
};

/// One call's own deadline.
const DEADLINE: Duration = Duration::from_secs(5);
/// Under load acks are at least this far apart: each costs the publisher a sync.
const SPACING: Duration = Duration::from_millis(10);

/// An open Replay, as acks need it.
#[derive(Debug, Clone)]
pub struct Session {
    /// The connection it runs on.
    pub client: PublisherServiceClient<Channel>,
    /// Its fencing number.
    pub number: i64,
}

/// What acknowledging takes.
pub struct Acks {
    /// The log.
    pub log: String,
    /// This receiver's name.
    pub name: String,
    /// Where the committed cursor is read and the confirmed one written.
    pub board: Arc<Board>,
    /// The open Replay, if any.
    pub session: watch::Receiver<Option<Session>>,
    /// Told to end.
    pub ending: CancellationToken,
}

impl Acks {
    /// Acknowledges until the receiver ends, or its store is broken.
    pub async fn keep(self) {
        tokio::select! {
            () = self.acknowledge() => {}
            () = self.ending.cancelled() => {}
        }
    }

    async fn acknowledge(&self) {
        let mut session = self.session.clone();
        let mut committed = self.board.committed();
        let mut confirmed: Option<(i64, Sequence)> = None;
        let mut attempt = 0;
        while self.board.halted_for() != Some(STORE_FAILED) {
            let open = session.borrow_and_update().clone();
            let newest = *committed.borrow_and_update();
            let (open, cursor) = match (open, newest) {
                (Some(open), Some(cursor)) if confirmed != Some((open.number, cursor.sequence)) => {
                    (open, cursor)
                }
                _ => {
                    tokio::select! {
                        Ok(()) = session.changed() => {}
                        Ok(()) = committed.changed() => {}
                        else => return,
                    }
                    continue;
                }
            };
            let status = match self.call(&open, &cursor).await {
                Ok(answer) => {
                    crash::point(crash::RECEIVER_AFTER_ACK);
                    confirmed = Some((open.number, cursor.sequence));
                    attempt = 0;
                    self.confirmed(&answer, cursor);
                    sleep(SPACING).await;
                    continue;
                }
                Err(status) => status,
            };
            let current = session.borrow().as_ref().map(|now| now.number);
            if current != Some(open.number) {
                continue; // of a connection that is no more: says nothing about this one
            }
            attempt += 1;
            let delay = match judge(&status, attempt, None, rand::random()) {
                Verdict::Retry(delay) => delay,
                Verdict::Stop { reason, message } if reason == Reason::ReceiverFenced.as_str() => {
                    self.board.halt(Failure { reason, message, ..Failure::default() });
                    return;
                }
                // Applying goes on; whether acks work is another matter.
                Verdict::Stop { .. } => {
                    let why = retry::said(&status);
                    tracing::warn!("the publisher refuses acks: {why}");
                    self.board.note(|status| status.ack_refused = Some(why));
                    backoff::CAP
                }
            };
            tracing::debug!(%status, ?delay, "an ack failed");
            tokio::select! {
                () = sleep(delay) => {}
                Ok(()) = session.changed() => {}
            }
        }
    }

    async fn call(&self, open: &Session, cursor: &Cursor) -> Result<pb::AckResponse, Status> {
        let mut request = Request::new(pb::AckRequest {
            log: self.log.clone(),
            receiver: self.name.clone(),
            session: open.number,
            cursor: Some(wire::cursor_message(cursor)),
            ..Default::default()
        });
        request.set_timeout(DEADLINE);
        let mut client = open.client.clone();
        // The deadline that is sent binds the publisher; this one binds us.
        match timeout(DEADLINE, client.ack(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("the ack was not answered")),
        }
    }

    fn confirmed(&self, answer: &pb::AckResponse, sent: Cursor) {
        let acked = answer.acked.as_ref().and_then(|acked| wire::cursor(acked, "acked").ok());
        self.board.note(|status| {
            status.acked = acked.flatten().or(Some(sent));
            status.next_sequence = status.next_sequence.max(answer.next_sequence);
            status.ack_refused = None;
        });
    }
}
