//! Acks out: tells the publisher the committed cursor, one call at a time,
//! always the newest, and what came of the events up to it. It follows the commit
//! and never holds it up; it is repeated at every connect and while it is
//! unconfirmed. What is reported starts where the publisher says that it lacks it, and
//! is what the last commits have handed over; of what was committed before them, by a
//! process that was killed or while reports did not get through, it is read from the
//! ledger: nothing is lost that a kill could take along.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Status, transport::Channel};

use super::{
    apply::STORE_FAILED,
    readers::Readers,
    retry::{self, Verdict, judge},
    status::{Board, Failure},
    store::ledger,
};
use crate::proto::{
    backoff, chain::Cursor, crash, event::Sequence, outcome::Report, pb, refusal::Reason,
    served::publisher_service_client::PublisherServiceClient, wire,
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
    /// Which of this process's streams it is. Fencing numbers may come twice, from
    /// a publisher whose directory has been put back.
    pub stream: u64,
    /// Its fencing number.
    pub number: i64,
    /// Up to where the publisher has outcomes; none: it keeps none.
    pub reported: Option<Sequence>,
}

/// What acknowledging takes.
pub struct Acks {
    /// The log.
    pub log: String,
    /// This receiver's name.
    pub name: String,
    /// Where the ledger is read, as far as that is needed.
    pub readers: Readers,
    /// Where the committed cursor and what it brought is read, and the confirmed one written.
    pub board: Arc<Board>,
    /// The open Replay, if any.
    pub session: watch::Receiver<Option<Session>>,
    /// Told to end.
    pub ending: CancellationToken,
}

/// What the publisher has confirmed on one stream.
#[derive(Debug, Clone, Copy)]
struct Confirmed {
    stream: u64,
    /// None: nothing.
    acked: Option<Sequence>,
    /// Up to where it has outcomes; none: it keeps none.
    reported: Option<Sequence>,
    /// Reports in a row that have not moved `reported`.
    stalled: u32,
    /// The next report waits until then; acks do not.
    report_from: Instant,
}

impl Confirmed {
    /// Nothing, on a stream that has just been opened.
    fn none(stream: u64, reported: Option<Sequence>) -> Self {
        Confirmed { stream, acked: None, reported, stalled: 0, report_from: Instant::now() }
    }

    /// Whether outcomes up to here are still to be reported.
    fn lacks_outcomes(&self, committed: Sequence) -> bool {
        self.reported.is_some_and(|reported| reported < committed)
    }

    /// After where outcomes are to be reported now.
    fn report_after(&self, committed: Sequence) -> Option<Sequence> {
        let due = self.lacks_outcomes(committed) && self.report_from <= Instant::now();
        self.reported.filter(|_| due)
    }

    /// Takes note of an answer. Without progress the next report waits longer
    /// each time.
    fn answered(&mut self, acked: Sequence, reported: Option<Sequence>, after: Option<Sequence>) {
        self.acked = Some(acked);
        self.reported = reported;
        match after {
            Some(after) if reported.is_some_and(|reported| reported <= after) => {
                self.stalled = self.stalled.saturating_add(1);
                let delay = backoff::backoff(self.stalled, backoff::CALL_BASE, rand::random());
                self.report_from = Instant::now() + delay.max(SPACING);
            }
            Some(_) => self.stalled = 0,
            None => {}
        }
    }
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
        let mut confirmed = Confirmed::none(0, None);
        let mut attempt = 0;
        while self.board.halted_for() != Some(STORE_FAILED) {
            let open = session.borrow_and_update().clone();
            let newest = *committed.borrow_and_update();
            if let Some(Session { stream, reported, .. }) = open
                && stream != confirmed.stream
            {
                confirmed = Confirmed::none(stream, reported);
            }
            let lacks = newest.is_some_and(|cursor| confirmed.lacks_outcomes(cursor.sequence));
            let news = |cursor: Cursor| {
                let after = confirmed.report_after(cursor.sequence);
                (after.is_some() || confirmed.acked != Some(cursor.sequence))
                    .then_some((cursor, after))
            };
            let (open, (cursor, after)) = match (open, newest.and_then(news)) {
                (Some(open), Some(news)) => (open, news),
                (open, _) => {
                    tokio::select! {
                        Ok(()) = session.changed() => {}
                        Ok(()) = committed.changed() => {}
                        () = sleep_until(confirmed.report_from), if open.is_some() && lacks => {}
                        else => return,
                    }
                    continue;
                }
            };
            let answer = self.tell(&open, &cursor, after).await;
            let current = session.borrow().as_ref().map(|now| now.stream);
            if current != Some(open.stream) {
                continue; // of a connection that is no more: says nothing about this one
            }
            let status = match answer {
                Ok(answer) => {
                    crash::point(crash::RECEIVER_AFTER_ACK);
                    attempt = 0;
                    confirmed.answered(cursor.sequence, answer.reported_sequence, after);
                    self.confirmed(&open, &answer, cursor, confirmed.stalled);
                    if confirmed.report_after(cursor.sequence).is_none() {
                        sleep(SPACING).await;
                    }
                    continue;
                }
                Err(status) => status,
            };
            attempt += 1;
            let delay = match judge(&status, attempt, None, rand::random()) {
                Verdict::Retry(delay) => delay,
                Verdict::Stop { reason, message } if reason == Reason::ReceiverFenced.as_str() => {
                    self.board.halt(Failure { reason, message, ..Failure::default() });
                    // Where it had halted before, an order may still open another session.
                    if session.changed().await.is_err() {
                        return;
                    }
                    continue;
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

    /// One Ack, with as many outcomes as it can carry. What cannot be read of
    /// the ledger holds up no ack.
    async fn tell(
        &self,
        open: &Session,
        cursor: &Cursor,
        after: Option<Sequence>,
    ) -> Result<pb::AckResponse, Status> {
        let report = match after {
            Some(after) => self.report(after, cursor.sequence).await,
            None => None,
        };
        self.call(open, cursor, report).await
    }

    async fn report(&self, after: Sequence, until: Sequence) -> Option<Report> {
        if let Some(report) = self.board.recent().report(after, until) {
            return Some(report);
        }
        let log = self.log.clone();
        let read = self.readers.read(move |tables| ledger::report(tables, &log, after, until));
        read.await.ok() // why not has been logged
    }

    async fn call(
        &self,
        open: &Session,
        cursor: &Cursor,
        report: Option<Report>,
    ) -> Result<pb::AckResponse, Status> {
        let reported_after = report.as_ref().and_then(|report| report.after);
        let reported_sequence = report.as_ref().map(|report| report.through);
        let outcomes = report.into_iter().flat_map(|report| report.outcomes).map(wire::ack_outcome);
        let mut request = Request::new(pb::AckRequest {
            log: self.log.clone(),
            receiver: self.name.clone(),
            session: open.number,
            cursor: Some(wire::cursor_message(cursor)),
            outcomes: outcomes.collect(),
            reported_sequence,
            reported_after,
        });
        request.set_timeout(DEADLINE);
        let mut client = open.client.clone();
        // The deadline that is sent binds the publisher; this one binds us.
        match timeout(DEADLINE, client.ack(request)).await {
            Ok(answer) => answer.map(tonic::Response::into_inner),
            Err(_) => Err(Status::deadline_exceeded("the ack was not answered")),
        }
    }

    /// Shows what the publisher has answered.
    fn confirmed(&self, open: &Session, answer: &pb::AckResponse, sent: Cursor, stalled: u32) {
        let acked = answer.acked.as_ref().and_then(|acked| wire::cursor(acked, "acked").ok());
        {
            let mut heard = self.board.heard();
            heard.floor(open.stream, answer.floor_sequence.unwrap_or(0));
            let acked = acked.flatten().map_or(-1, |acked| acked.sequence);
            heard.answered(open.stream, acked, answer.reported_sequence);
        }
        let stuck = (stalled > 0).then_some(answer.reported_sequence).flatten();
        self.board.note(|status| {
            status.acked = acked.flatten().or(Some(sent));
            status.next_sequence = status.next_sequence.max(answer.next_sequence);
            status.snapshot_due(answer.snapshot_due_below);
            status.ack_refused = None;
            status.reports_stuck_at = stuck;
        });
    }
}
