//! The RPC edge for what a person changes: judges whether it may be now, and hands it to
//! the task that does it.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};
use tonic::{Request, Response, Status};

use super::{
    apply::{Done, Order},
    forward::shown::Stuck,
    offer, resync,
    service::ledger_entry,
    status::{self, Board, Link, State},
    store::ledger::KEY_CONFLICT,
};
use crate::proto::{
    event::Sequence,
    limits::MAX_MESSAGE_BYTES,
    pb::{
        self,
        receiver_admin_service_server::{ReceiverAdminService, ReceiverAdminServiceServer},
    },
    refusal::{Reason, Refusal},
    wire,
};

/// The reasons to halt that giving up what the database has can end.
const ENDED_BY_RESYNC: [&str; 4] = ["LOG_MISMATCH", "CURSOR_AHEAD", "DIVERGED", "CONFLICT"];

/// What a person may order.
#[derive(Debug)]
pub struct Admin {
    /// The receiver's name.
    pub name: String,
    /// What the receiver is doing.
    pub board: Arc<Board>,
    /// The log that it follows.
    pub log: String,
    /// To the thread that applies.
    pub order: mpsc::Sender<Order>,
    /// To the task that goes on from other content.
    pub order_resync: mpsc::Sender<resync::Order>,
    /// To the task that offers snapshots.
    pub order_snapshot: mpsc::Sender<offer::Order>,
}

impl Admin {
    /// As it is served.
    pub fn service(self) -> ReceiverAdminServiceServer<Self> {
        ReceiverAdminServiceServer::new(self).max_decoding_message_size(MAX_MESSAGE_BYTES)
    }
}

#[tonic::async_trait]
impl ReceiverAdminService for Admin {
    async fn resync(
        &self,
        request: Request<pb::ResyncRequest>,
    ) -> Result<Response<pb::ResyncResponse>, Status> {
        let confirm = request.into_inner().confirm;
        if confirm != self.name {
            let wrong = format!(
                "is {confirm:?}; the receiver's name, {:?}, was expected: what its database has \
                 will be replaced",
                self.name
            );
            return Err(Refusal::field("confirm", wrong).into());
        }
        let meant = {
            let status = self.board.status();
            let status = status.borrow();
            may_resync(&status)?;
            resync::Meant::of(&status)
        };
        let (taken, answer) = oneshot::channel();
        let wrong = |message: &str| Refusal::new(Reason::WrongState, message);
        let order = resync::Order { meant, taken };
        let busy = |_| wrong("a resync is being ordered already");
        self.order_resync.try_send(order).map_err(busy)?;
        let passed = |_| wrong("it does not wait for that any more; its status says what it does");
        answer.await.map_err(passed)?;
        Ok(Response::new(pb::ResyncResponse {}))
    }

    async fn create_snapshot(
        &self,
        _: Request<pb::CreateSnapshotRequest>,
    ) -> Result<Response<pb::CreateSnapshotResponse>, Status> {
        may_make_snapshot(&self.board.status().borrow())?;
        let ending = || Refusal::new(Reason::ShuttingDown, "the receiver is ending");
        let (order, stored) = oneshot::channel();
        self.order_snapshot.send(order).await.map_err(|_| ending())?;
        let stored = stored.await.map_err(|_| ending())?;
        // Without what belonged to another call's answer.
        let snapshot = stored.map_err(|status| {
            let details = bytes::Bytes::copy_from_slice(status.details());
            Status::with_details(status.code(), status.message(), details)
        })?;
        Ok(Response::new(pb::CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn skip_event(
        &self,
        request: Request<pb::SkipEventRequest>,
    ) -> Result<Response<pb::SkipEventResponse>, Status> {
        let request = request.into_inner();
        let sequence = sequence(request.sequence)?;
        let reason = wire::reason(&request.reason)?.to_owned();
        if reason == KEY_CONFLICT {
            return Err(Refusal::field("reason", "is a word that the ledger itself uses").into());
        }
        let entry = self.order(|done| Order::Skip { sequence, reason, done }).await?;
        let entry = Some(ledger_entry(&self.log, entry));
        Ok(Response::new(pb::SkipEventResponse { entry }))
    }

    async fn apply_skipped(
        &self,
        request: Request<pb::ApplySkippedRequest>,
    ) -> Result<Response<pb::ApplySkippedResponse>, Status> {
        let sequence = sequence(request.into_inner().sequence)?;
        let late = self.order(|done| Order::ApplyLate { sequence, done }).await?;
        let entry = Some(ledger_entry(&self.log, late.entry));
        let applied_after = Some(late.after);
        Ok(Response::new(pb::ApplySkippedResponse { entry, applied_after }))
    }

    async fn skip_follow_up(
        &self,
        request: Request<pb::SkipFollowUpRequest>,
    ) -> Result<Response<pb::SkipFollowUpResponse>, Status> {
        let request = request.into_inner();
        let sequence = sequence(request.sequence)?;
        let number = request.number.ok_or_else(|| Refusal::field("number", "is missing"))?;
        let reason = wire::reason(&request.reason)?.to_owned();
        may_give_up(&self.board.status().borrow(), (sequence, number))?;
        self.order(|done| Order::GiveUp { sequence, number, reason, done }).await?;
        Ok(Response::new(pb::SkipFollowUpResponse {}))
    }
}

impl Admin {
    /// Has the thread that applies do something.
    async fn order<T>(&self, order: impl FnOnce(Done<T>) -> Order) -> Result<T, Refusal> {
        let ending = |_| Refusal::new(Reason::ShuttingDown, "the receiver is ending");
        let (done, answer) = oneshot::channel();
        self.order.send(order(done)).await.map_err(|_| ending(()))?;
        answer.await.map_err(|_| ending(()))?
    }
}

/// The sequence that a request names.
fn sequence(stated: Option<Sequence>) -> Result<Sequence, Refusal> {
    match stated {
        Some(sequence) if sequence >= 0 => Ok(sequence),
        Some(sequence) => {
            Err(Refusal::field("sequence", format!("is {sequence}; it must be 0 or more")))
        }
        None => Err(Refusal::field("sequence", "is missing")),
    }
}

/// Whether a follow-up event may be given up now. Pure.
fn may_give_up(status: &status::Status, asked: (i64, i64)) -> Result<(), Refusal> {
    let wrong = |message: String| Err(Refusal::new(Reason::WrongState, message));
    match status.forwarding.as_ref().and_then(Stuck::refused) {
        Some(refused) if refused == asked => Ok(()),
        Some((sequence, number)) => wrong(format!(
            "forwarding has stopped at follow-up {number} of event {sequence}, not at that one"
        )),
        None => wrong(
            "forwarding has not stopped: only a follow-up event that the other publisher refuses \
             for good is given up"
                .to_owned(),
        ),
    }
}

/// Whether what the database has may be given up now. Pure.
fn may_resync(status: &status::Status) -> Result<(), Refusal> {
    let wrong = |message: String| Err(Refusal::new(Reason::WrongState, message));
    match (status.state(), &status.resyncing, &status.halted) {
        (_, Some(resyncing), _) if resyncing.waits => Ok(()),
        (_, Some(_), _) => wrong("it is resyncing already; its status says how far".to_owned()),
        (_, _, Some(failure)) if ENDED_BY_RESYNC.contains(&failure.reason) => Ok(()),
        (_, _, Some(failure)) => wrong(format!(
            "it has halted for {}, which a resync does not end; its status says what does",
            failure.reason
        )),
        (state, ..) => wrong(format!(
            "it is {}; only one that waits for it (RESYNCING), or that has HALTED because the \
             publisher's history is another one, is resynced",
            state.as_str()
        )),
    }
}

/// Whether a snapshot can be made and offered now. Pure.
fn may_make_snapshot(status: &status::Status) -> Result<(), Refusal> {
    let wrong = |message: &str| Err(Refusal::new(Reason::WrongState, message));
    match (&status.link, status.state()) {
        (_, State::Halted | State::Resyncing) | (Link::Down(_), _) => {
            wrong("it is not connected to the publisher; its status says why")
        }
        _ if status.cursor.is_none() => wrong("nothing is applied yet"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::{chain::Cursor, event::Time},
        receiver::{
            status::{EventName, Failure, Resyncing},
            testing::log_id,
        },
    };

    fn after(change: impl FnOnce(&mut status::Status)) -> status::Status {
        let board = Board::new(None);
        board.note(change);
        board.status().borrow().clone()
    }

    #[test]
    fn only_what_a_resync_ends_may_be_resynced() {
        let halted = |reason| after(|s| s.halted = Some(Failure { reason, ..Failure::default() }));
        let resyncing = |waits| {
            let (failure, step) = (Failure::default(), String::new());
            after(|s| s.resyncing = Some(Resyncing { failure, step, waits }))
        };
        for reason in ENDED_BY_RESYNC {
            may_resync(&halted(reason)).expect(reason);
        }
        may_resync(&resyncing(true)).expect("it waits for it");
        let refused = [
            (halted("STORE_FAILED"), "STORE_FAILED"),
            (halted("RECEIVER_FENCED"), "RECEIVER_FENCED"),
            (resyncing(false), "already"),
            (after(|_| {}), "CONNECTING"),
            (after(|s| s.link = Link::Up(Some(-1))), "LIVE"),
        ];
        for (status, words) in refused {
            let refusal = may_resync(&status).expect_err(words);
            assert_eq!(refusal.reason, Reason::WrongState);
            assert!(refusal.message.contains(words), "{:?} lacks {words:?}", refusal.message);
        }
    }

    #[test]
    fn only_the_follow_up_in_the_way_is_given_up() {
        let at = |sequence, next_attempt| {
            let event = EventName {
                sequence,
                key: String::new(),
                event_type: String::new(),
                subject: String::new(),
            };
            let failure = Failure { event: Some(event), next_attempt, ..Failure::default() };
            after(|s| s.forwarding = Some(Stuck { failure, number: Some(1) }))
        };
        may_give_up(&at(7, None), (7, 1)).expect("it is in the way");
        let passes = Some(Time::from_unix_millis(0));
        for (status, words) in [
            (at(8, None), "follow-up 1 of event 8"),
            (at(7, passes), "has not stopped"),
            (after(|_| {}), "has not stopped"),
        ] {
            let refusal = may_give_up(&status, (7, 1)).expect_err(words);
            assert_eq!(refusal.reason, Reason::WrongState);
            assert!(refusal.message.contains(words), "{:?} lacks {words:?}", refusal.message);
        }
    }

    #[test]
    fn a_snapshot_needs_a_connection_and_something_in_it() {
        let up = |s: &mut status::Status| s.link = Link::Up(None);
        let filled = |s: &mut status::Status| s.cursor = Some(Cursor::beginning(log_id()));
        may_make_snapshot(&after(|s| {
            up(s);
            filled(s);
        }))
        .expect("connected");
        may_make_snapshot(&after(up)).expect_err("nothing is applied");
        may_make_snapshot(&after(filled)).expect_err("not connected");
        may_make_snapshot(&after(|s| {
            up(s);
            filled(s);
            s.halted = Some(Failure::default());
        }))
        .expect_err("halted");
    }
}
