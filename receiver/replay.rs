//! Events in: keeps one Replay open from the committed cursor, checks what
//! comes against fingerprints and chain, and hands it to the apply thread, which
//! has nothing but the database to wait for. Whatever ends a stream, the next one
//! starts from what is committed by then.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt as _;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};
use tonic_types::StatusExt as _;

use super::{
    ack::Session,
    apply::{Streams, Work},
    current::Current,
    decide::{Misfit, Placing, Step},
    judged::Judged,
    projection::Projection,
    retry::{self, Verdict, judge},
    status::{Board, Failure, Link},
};
use crate::proto::{
    chain::Cursor,
    event::Event,
    limits::{HEARTBEAT, MAX_MESSAGE_BYTES},
    pb::{self, replay_request::Start},
    refusal::{Reason, Refusal, reason_of},
    served::publisher_service_client::PublisherServiceClient,
    stored::Frame,
    wire,
};

/// A publisher that says nothing for this long is gone, whatever its connection says.
pub(super) const SILENCE: Duration = Duration::from_secs(3 * HEARTBEAT.as_secs());

/// What keeping a Replay open takes.
pub struct Replay {
    /// Where the publisher is: how to connect is set already.
    pub publisher: Endpoint,
    /// The log.
    pub log: String,
    /// This receiver's name.
    pub name: String,
    /// Attempts in a row after which the receiver halts; none: it never does.
    pub attempts: Option<u32>,
    /// Where the state is written to.
    pub board: Arc<Board>,
    /// The apply thread.
    pub work: mpsc::Sender<Work>,
    /// Which stream counts.
    pub streams: Arc<Streams>,
    /// What fills the database: it looks at each event on the way in.
    pub current: Current,
    /// The session for acks, while a stream is open.
    pub session: watch::Sender<Option<Session>>,
    /// Told to end.
    pub ending: CancellationToken,
}

/// Why there is no Replay any more.
#[derive(Debug)]
pub enum Left {
    /// Told to end.
    Over,
    /// The receiver has halted.
    Halted,
    /// What comes next is no longer retained.
    Expired(Failure),
}

/// Why a stream is over.
enum Ended {
    /// The publisher, or the way to it.
    Failed(Status),
    /// Something was left out: ask again from the cursor.
    Gap,
    /// The apply thread is gone.
    Over,
}

impl Replay {
    /// Keeps a Replay open until the receiver ends or halts, or until what comes next is no
    /// longer retained. `last`: this process's session before, as long as it is sure of it.
    pub async fn keep(&self, last: &mut Option<i64>) -> Left {
        let left = self.follow(last).await;
        // The session stays after a halt: what is committed is still to be acknowledged.
        self.board.note(|status| status.link = Link::Down("the stream is closed".to_owned()));
        left
    }

    /// Nothing is acknowledged any more until the next Replay is open.
    pub fn end_session(&self) {
        self.session.send_replace(None);
    }

    async fn follow(&self, last: &mut Option<i64>) -> Left {
        let mut attempt = 0;
        loop {
            let ended = tokio::select! {
                ended = self.stream(&mut attempt, last) => ended,
                () = self.board.halted() => return Left::Halted,
                () = self.ending.cancelled() => return Left::Over,
            };
            self.session.send_replace(None);
            let status = match ended {
                Ended::Over => return Left::Over,
                Ended::Gap => continue,
                Ended::Failed(status) => status,
            };
            attempt += 1;
            match judge(&status, attempt, self.attempts, rand::random()) {
                Verdict::Stop { reason, message } if reason == Reason::CursorExpired.as_str() => {
                    let message = self.expired(&status).unwrap_or(message);
                    return Left::Expired(Failure { reason, message, ..Failure::default() });
                }
                Verdict::Stop { reason, message } => {
                    self.board.halt(Failure { reason, message, ..Failure::default() });
                    return Left::Halted;
                }
                Verdict::Retry(delay) => {
                    let why = retry::said(&status);
                    tracing::info!(attempt, ?delay, "not connected: {why}");
                    self.board.note(|status| {
                        status.link = Link::Down(why);
                        status.connect_attempts = attempt;
                        status.resyncing = None; // that is not what it waits for
                    });
                    tokio::select! {
                        () = tokio::time::sleep(delay) => {}
                        () = self.board.halted() => return Left::Halted,
                        () = self.ending.cancelled() => return Left::Over,
                    }
                }
            }
        }
    }

    /// CURSOR_EXPIRED in the words of one who has to have every event.
    fn expired(&self, status: &Status) -> Option<String> {
        let info = status.get_details_error_info()?;
        let (floor, committed) =
            (info.metadata.get("floor")?, self.board.status().borrow().committed());
        Some(match committed {
            -1 => format!("The log's first events are no longer retained; its oldest is {floor}."),
            _ => format!(
                "What comes after sequence {committed} is no longer retained; the log's oldest \
                 event is {floor}."
            ),
        })
    }

    /// One stream from its opening to its end. `last`: the session before it.
    async fn stream(&self, attempt: &mut u32, last: &mut Option<i64>) -> Ended {
        let sure_of = *last;
        match self.try_stream(attempt, last).await {
            Ok(ended) => ended,
            Err(status) => {
                // A refusal is an answer, and has begun no session.
                if last.is_none() && reason_of(&status).is_some() {
                    *last = sure_of;
                }
                Ended::Failed(status)
            }
        }
    }

    async fn try_stream(&self, attempt: &mut u32, last: &mut Option<i64>) -> Result<Ended, Status> {
        let channel = self.publisher.connect().await.map_err(|error| unreachable(&error))?;
        let mut client = client(channel);
        if last.is_some() {
            self.answers(&mut client).await?;
        }
        // From here on frames of an older stream are dropped; what the apply
        // thread had taken of them is committed before it answers.
        let stream = self.streams.newest.fetch_add(1, Ordering::AcqRel) + 1;
        let (asked, answer) = oneshot::channel();
        if self.work.send(Work::Resume(asked)).await.is_err() {
            return Ok(Ended::Over);
        }
        let Ok(committed) = answer.await else { return Ok(Ended::Over) };
        // What was asked for until then was another stream than those before.
        let _ = self.streams.reopen.notified().now_or_never();
        let mut tail = committed; // once everything handed over is committed
        let start = match &committed {
            Some(cursor) => Start::After(wire::cursor_message(cursor)),
            None => Start::StartAt(pb::StartAt::Beginning.into()),
        };
        let request = pb::ReplayRequest {
            log: self.log.clone(),
            receiver: self.name.clone(),
            start: Some(start),
            follow: true,
            // Without an answer, it may have begun a session or not: the next one cannot tell
            // then who has.
            session: last.take(),
            ..Default::default()
        };
        let mut frames = within(SILENCE, client.replay(request)).await?.into_inner();
        loop {
            let frame = tokio::select! {
                frame = within(SILENCE, frames.message()) => frame?,
                () = self.streams.reopen.notified() => return Ok(Ended::Gap),
            };
            let Some(frame) = frame else {
                return Err(Status::unavailable("the publisher ended the stream"));
            };
            let (events, cursor) = match frame.frame {
                Some(Frame::Started(started)) => {
                    if let Some(adopted) = self.adopts(&started, committed.as_ref()).await? {
                        tail = Some(adopted);
                    }
                    self.started(stream, &started, client.clone());
                    *last = started.session;
                    continue;
                }
                Some(Frame::Heartbeat(heartbeat)) => {
                    *attempt = 0;
                    self.board.heard().floor(stream, heartbeat.floor_sequence.unwrap_or(0));
                    self.board.note(|status| {
                        status.next_sequence = status.next_sequence.max(heartbeat.next_sequence);
                        status.snapshot_due(heartbeat.snapshot_due_below);
                    });
                    continue;
                }
                Some(Frame::Batch(batch)) => (batch.events, stated(batch.cursor)?),
                Some(Frame::CaughtUp(caught_up)) => {
                    let cursor = stated(caught_up.cursor)?;
                    let head = cursor.map_or(-1, |cursor| cursor.sequence);
                    self.board.note(|status| {
                        status.link = Link::Up(Some(head));
                        status.next_sequence = status.next_sequence.max(Some(head + 1));
                        (status.resync_attempts, status.headroom_events) = (0, None);
                    });
                    (Vec::new(), cursor)
                }
                Some(Frame::Warning(warning)) => {
                    self.board.note(|status| status.headroom_events = warning.headroom_events);
                    continue;
                }
                // A frame of a later version's says nothing that this one has to know.
                None => continue,
            };
            *attempt = 0;
            let Some(cursor) = cursor else {
                if events.is_empty() {
                    continue; // at the beginning of an empty log, nothing to hold against ours
                }
                let wrong = "a frame has events, and no cursor after them";
                return Err(Refusal::new(Reason::Corrupt, wrong).into());
            };
            let from = tail.unwrap_or_else(|| Cursor::beginning(cursor.log_id));
            let placed = self.placed(from, events, &cursor)?.map(|(steps, after)| {
                if after.sequence > from.sequence {
                    tail = Some(after);
                }
                steps
            });
            if self.work.send(Work::Frame { stream, placed }).await.is_err() {
                return Ok(Ended::Over);
            }
        }
    }

    /// A frame's events, checked, looked at and put in their places, and the cursor after them.
    /// What does not fit is for the apply thread to hear of; what is refused ends the stream.
    fn placed(
        &self,
        from: Cursor,
        events: Vec<Bytes>,
        stated: &Cursor,
    ) -> Result<Result<(Vec<Step>, Cursor), Misfit>, Refusal> {
        let projection = self.current.projection();
        let mut placing = Placing::after(from, events.len());
        for bytes in events {
            let event = wire::replayed(bytes)?;
            if let Err(misfit) = placing.put(event, |event| looked_at(&*projection, event)) {
                return Ok(Err(misfit));
            }
        }
        Ok(placing.finish(stated))
    }

    /// Whether anybody is there: so that a Replay is not sent where nobody answers, and this
    /// process stays sure of its last session.
    async fn answers(&self, client: &mut PublisherServiceClient<Channel>) -> Result<(), Status> {
        let request = pb::GetLogRequest { log: self.log.clone() };
        match within(SILENCE, client.get_log(request)).await {
            Err(status) if reason_of(&status).is_none() && status.code() != Code::Unimplemented => {
                Err(status)
            }
            _ => Ok(()),
        }
    }

    /// The stream is of the incarnation that we know, or of one that has been forked from it
    /// and is the same up to what we have: then the database takes its name over.
    async fn adopts(
        &self,
        started: &pb::ReplayStarted,
        committed: Option<&Cursor>,
    ) -> Result<Option<Cursor>, Status> {
        let Some(ours) = committed.filter(|ours| started.log_id != ours.log_id.to_string()) else {
            return Ok(None);
        };
        let theirs = stated(started.cursor.clone())?;
        let same = |theirs: &Cursor| {
            theirs.log_id.to_string() == started.log_id
                && (theirs.sequence, theirs.chain) == (ours.sequence, ours.chain)
        };
        let Some(theirs) = theirs.filter(same) else {
            return Err(Refusal::new(
                Reason::LogMismatch,
                format!(
                    "this is log {}, the database holds events of {}",
                    started.log_id, ours.log_id
                ),
            )
            .into());
        };
        let gone = || Status::unavailable("the receiver is ending");
        let (asked, answer) = oneshot::channel();
        self.work.send(Work::Adopt(theirs, asked)).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?.map_err(Status::unavailable)?;
        Ok(Some(theirs))
    }

    /// The Replay is admitted: acks may go out.
    fn started(
        &self,
        stream: u64,
        started: &pb::ReplayStarted,
        client: PublisherServiceClient<Channel>,
    ) {
        tracing::info!(log_id = started.log_id, session = started.session, "connected");
        self.board.heard().started(stream, started.floor_sequence.unwrap_or(0));
        self.board.note(|status| {
            status.link = Link::Up(None);
            status.next_sequence = started.next_sequence;
            status.connect_attempts = 0;
            status.ack_refused = None;
            status.reports_stuck_at = None;
            status.resyncing = None;
            status.snapshot_due(started.snapshot_due_below);
        });
        let number = started.session.unwrap_or_default();
        let reported = started.reported_sequence;
        self.session.send_replace(Some(Session { stream, client, number, reported }));
    }
}

/// What a projection finds out about an event before its turn. Who panics at it has found
/// nothing, and may panic again in its turn, where that is said.
fn looked_at(projection: &dyn Projection, event: &Event) -> Option<Judged> {
    catch_unwind(AssertUnwindSafe(|| projection.judge(event))).ok().flatten()
}

/// A cursor that the publisher states; none: nothing applied.
///
/// # Errors
/// CORRUPT where it makes no sense.
pub(super) fn stated(cursor: Option<pb::Cursor>) -> Result<Option<Cursor>, Refusal> {
    let cursor = cursor.unwrap_or_default();
    wire::cursor(&cursor, "cursor")
        .map_err(|wrong| Refusal::new(Reason::Corrupt, format!("a frame's {}", wrong.message)))
}

/// A client of the publisher on a channel.
pub(super) fn client(channel: Channel) -> PublisherServiceClient<Channel> {
    PublisherServiceClient::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES)
}

/// Awaits an answer for so long.
///
/// # Errors
/// The call's; UNAVAILABLE where none has come.
pub(super) async fn within<T>(
    bound: Duration,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    timeout(bound, call).await.unwrap_or_else(|_| {
        Err(Status::unavailable(format!("the publisher said nothing for {bound:?}")))
    })
}

/// tonic says only "transport error"; what happened stands below it.
pub(super) fn unreachable(error: &tonic::transport::Error) -> Status {
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    Status::unavailable(cause.to_string())
}

#[cfg(test)]
mod tests;
