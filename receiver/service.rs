//! The RPC edge: decode, look, encode. Changes nothing.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::stream;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, service::RoutesBuilder};

use super::{
    current::Current,
    projection::{DeclaredQuery, Projection},
    query::Asked,
    readers::Readers,
    status::{self, Board, State},
    store::{baseline, contents, ledger},
};
use crate::{
    process,
    proto::{
        chain::Cursor,
        event::{Sequence, Time},
        limits::MAX_MESSAGE_BYTES,
        outcome::Outcome,
        pb::{
            self,
            get_ledger_entry_request::By,
            receiver_service_server::{ReceiverService, ReceiverServiceServer},
        },
        refusal::{Reason, Refusal},
        wire,
    },
};

/// A watcher is told at most once in this time.
const WATCH_SPACING: Duration = Duration::from_millis(100);
/// How long a Query waits for its `min_sequence`, unless the caller gives up sooner.
const QUERY_PATIENCE: Duration = Duration::from_secs(5);

/// What this process serves; its admin service is added by whoever owns what that changes.
pub fn routes(
    board: &Arc<Board>,
    log: &str,
    name: &str,
    readers: Readers,
    current: &Current,
    ending: CancellationToken,
) -> process::Service {
    let service = Service {
        board: board.clone(),
        readers,
        log: log.to_owned(),
        name: name.to_owned(),
        current: current.clone(),
        ending: ending.clone(),
    };
    let mut routes = RoutesBuilder::default();
    routes.add_service(
        ReceiverServiceServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES),
    );
    let names = &["counterfoil.v1.ReceiverService", "counterfoil.v1.ReceiverAdminService"];
    process::Service { routes, names, healthy: board.healthy(), ending }
}

#[derive(Clone)]
struct Service {
    board: Arc<Board>,
    readers: Readers,
    log: String,
    name: String,
    current: Current,
    ending: CancellationToken,
}

#[tonic::async_trait]
impl ReceiverService for Service {
    async fn get_status(
        &self,
        _: Request<pb::GetStatusRequest>,
    ) -> Result<Response<pb::GetStatusResponse>, Status> {
        Ok(Response::new(self.status(&self.board.status().borrow())))
    }

    type WatchStatusStream =
        Pin<Box<dyn Stream<Item = Result<pb::WatchStatusResponse, Status>> + Send>>;

    async fn watch_status(
        &self,
        _: Request<pb::WatchStatusRequest>,
    ) -> Result<Response<Self::WatchStatusStream>, Status> {
        let mut changes = self.board.status();
        changes.mark_changed(); // the first one comes now
        let service = self.clone();
        let frames = stream::unfold(Some(changes), move |changes| {
            let service = service.clone();
            async move {
                let mut changes = changes?;
                tokio::select! {
                    changed = changes.changed() => changed.ok()?,
                    () = service.ending.cancelled() => return Some((Err(ending()), None)),
                }
                let status = Some(service.status(&changes.borrow_and_update()));
                Some((Ok(pb::WatchStatusResponse { status }), Some(changes)))
            }
        });
        // What changes meanwhile is told in one.
        let spaced = stream::unfold((Box::pin(frames), false), |(mut frames, waits)| async move {
            if waits {
                sleep(WATCH_SPACING).await;
            }
            let frame = tokio_stream::StreamExt::next(&mut frames).await?;
            Some((frame, (frames, true)))
        });
        Ok(Response::new(Box::pin(spaced)))
    }

    async fn get_ledger_entry(
        &self,
        request: Request<pb::GetLedgerEntryRequest>,
    ) -> Result<Response<pb::GetLedgerEntryResponse>, Status> {
        let by = request
            .into_inner()
            .by
            .ok_or_else(|| Refusal::field("by", "is missing; sequence or key was expected"))?;
        let asked = match &by {
            By::Sequence(sequence) if *sequence < 0 => {
                let wrong = format!("is {sequence}; it must be 0 or more");
                return Err(Refusal::field("sequence", wrong).into());
            }
            By::Sequence(sequence) => format!("sequence {sequence}"),
            By::Key(key) => format!("key {:?}", wire::key(key)?),
        };
        let asked_sequence = match &by {
            By::Sequence(sequence) => Some(*sequence),
            By::Key(_) => None,
        };
        let log = self.log.clone();
        let (found, from) = self
            .readers
            .read(move |tables| {
                let found = match &by {
                    By::Sequence(sequence) => ledger::by_sequence(tables, &log, *sequence),
                    By::Key(key) => ledger::by_key(tables, &log, key),
                };
                // In this order: a row that goes between the two was pruned.
                Ok((found?, baseline::from(tables)?))
            })
            .await?;
        let entry = found.ok_or_else(|| {
            let committed = self.board.status().borrow().committed();
            let message = match asked_sequence {
                Some(sequence) if sequence < from => format!(
                    "the row of {asked} was pruned: it is applied, and the ledger begins at {from}"
                ),
                None if from > 0 => format!(
                    "no row has {asked}; the ledger begins at sequence {from}, what came before \
                     was pruned; applied up to {committed}"
                ),
                _ => format!("nothing was done with {asked}; applied up to sequence {committed}"),
            };
            Refusal::new(Reason::NotFound, message).with("ledger_from", from)
        })?;
        let entry = Some(ledger_entry(&self.log, entry));
        Ok(Response::new(pb::GetLedgerEntryResponse { entry }))
    }

    async fn query(
        &self,
        request: Request<pb::QueryRequest>,
    ) -> Result<Response<pb::QueryResponse>, Status> {
        let pb::QueryRequest { name, parameters, min_sequence, page_size, page_token } =
            request.into_inner();
        let asks = |projection: &dyn Projection| {
            let query = declared(projection, &name)?;
            Asked::of(query, parameters.clone(), page_size, &page_token)
        };
        asks(&*self.current.projection())?;
        if let Some(sequence) = min_sequence {
            match timeout(QUERY_PATIENCE, self.applied(sequence)).await {
                Ok(applied) => drop(applied?),
                Err(_) => {
                    return Err(self.not_applied(Reason::NotCaughtUp, sequence, "yet").into());
                }
            }
        }
        let found = loop {
            let mut serving = self.current.watch();
            let projection = serving.borrow_and_update().projection.clone();
            let asked = asks(&*projection)?;
            let (log, version) = (self.log.clone(), projection.version().to_string());
            let found = self.readers.read(move |tables| {
                let found = asked.run(tables, &log);
                // Versions only rise, so none has taken over before this was read either.
                if contents::version(tables)? == version { found.map(Some) } else { Ok(None) }
            });
            match found.await? {
                Some(found) => break found?,
                // A later version of the projection has just taken over: its query counts.
                None => tokio::select! {
                    _ = serving.changed() => {}
                    () = self.ending.cancelled() => return Err(ending()),
                },
            }
        };
        Ok(Response::new(pb::QueryResponse {
            rows: found.rows,
            sequence: Some(found.sequence),
            truncated: found.truncated,
            next_page_token: found.next,
            columns: found.columns,
        }))
    }

    async fn list_queries(
        &self,
        _: Request<pb::ListQueriesRequest>,
    ) -> Result<Response<pb::ListQueriesResponse>, Status> {
        let projection = self.current.projection();
        let owned = |names: &[std::borrow::Cow<'static, str>]| {
            names.iter().map(|name| name.to_string()).collect()
        };
        let queries = projection.queries().iter().map(|query| pb::DeclaredQuery {
            name: query.name.to_string(),
            description: query.description.to_string(),
            parameters: owned(&query.parameters),
            page_by: owned(&query.page_by),
        });
        Ok(Response::new(pb::ListQueriesResponse { queries: queries.collect() }))
    }

    async fn wait_applied(
        &self,
        request: Request<pb::WaitAppliedRequest>,
    ) -> Result<Response<pb::WaitAppliedResponse>, Status> {
        let cursor = self.applied(request.into_inner().sequence).await?;
        let cursor = cursor.as_ref().map(wire::cursor_message);
        Ok(Response::new(pb::WaitAppliedResponse { cursor }))
    }
}

impl Service {
    /// Waits until a sequence is committed.
    async fn applied(&self, sequence: Sequence) -> Result<Option<Cursor>, Status> {
        let mut status: watch::Receiver<status::Status> = self.board.status();
        let there = status.wait_for(|now| now.committed() >= sequence || now.halted.is_some());
        let now = tokio::select! {
            now = there => now.map_err(|_| ending())?,
            () = self.ending.cancelled() => return Err(ending()),
        };
        if now.committed() < sequence {
            let how = "and will not be by itself: the receiver has halted";
            return Err(self.not_applied(Reason::ReceiverHalted, sequence, how).into());
        }
        Ok(now.cursor)
    }

    fn not_applied(&self, reason: Reason, sequence: Sequence, how: &str) -> Refusal {
        let committed = self.board.status().borrow().committed();
        let message =
            format!("sequence {sequence} is not applied {how}; applied up to {committed}");
        Refusal::new(reason, message).with("sequence", committed)
    }

    fn status(&self, now: &status::Status) -> pb::GetStatusResponse {
        let state = match now.state() {
            State::Connecting => pb::ReceiverState::Connecting,
            State::CatchingUp => pb::ReceiverState::CatchingUp,
            State::Live => pb::ReceiverState::Live,
            State::Retrying => pb::ReceiverState::Retrying,
            State::Halted => pb::ReceiverState::Halted,
            State::Resyncing => pb::ReceiverState::Resyncing,
        };
        let outcomes = Outcome::ALL.iter().zip(now.outcomes);
        let projection = self.current.projection();
        pb::GetStatusResponse {
            receiver: self.name.clone(),
            log: self.log.clone(),
            state: state.into(),
            state_detail: now.detail(),
            cursor: now.cursor.as_ref().map(wire::cursor_message),
            acked: now.acked.as_ref().map(wire::cursor_message),
            next_sequence: now.next_sequence,
            lag_events: now.lag_events(),
            lag_seconds: now.lag_seconds,
            failure: now.failure().map(failure),
            projection: projection.name().to_owned(),
            projection_version: Some(projection.version()),
            connect_attempts: Some(now.connect_attempts.into()),
            commits: Some(now.commits),
            outcomes: outcomes.map(|(outcome, n)| (outcome.as_str().to_owned(), n)).collect(),
            ledger_from_sequence: Some(now.ledger_from),
            snapshot_sequence: now.snapshot_sequence,
            resyncs: Some(now.resyncs),
            headroom_events: now.headroom_events,
            skipped_events: Some(now.skipped),
            outbox_pending: Some(now.outbox_pending),
            forward_failure: now
                .forwarding
                .as_ref()
                .map(|stuck| pb::Failure { follow_up: stuck.number, ..failure(&stuck.failure) }),
            rebuild: now.rebuilding.as_ref().map(|rebuilding| pb::Rebuild {
                from_version: Some(rebuilding.from_version),
                to_version: Some(rebuilding.to_version),
                sequence: Some(rebuilding.sequence),
                next_sequence: now.next_sequence,
                step: rebuilding.step.clone(),
            }),
        }
    }
}

/// The query of a name.
fn declared<'p>(projection: &'p dyn Projection, name: &str) -> Result<&'p DeclaredQuery, Refusal> {
    let queries = projection.queries();
    queries.iter().find(|query| query.name == name).ok_or_else(|| {
        let declared: Vec<_> = queries.iter().map(|query| &*query.name).collect();
        let declared = declared.join(", ");
        Refusal::new(
            Reason::NotFound,
            format!("there is no query {name:?}; the projection declares: {declared}"),
        )
    })
}

fn failure(failure: &status::Failure) -> pb::Failure {
    let event = failure.event.as_ref();
    let text =
        |part: fn(&status::EventName) -> &String| event.map(part).cloned().unwrap_or_default();
    pb::Failure {
        reason: failure.reason.to_owned(),
        message: failure.message.clone(),
        sequence: event.map(|event| event.sequence),
        key: text(|event| &event.key),
        r#type: text(|event| &event.event_type),
        subject: text(|event| &event.subject),
        attempts: failure.attempts.map(i64::from),
        next_attempt_time: failure.next_attempt.map(wire::timestamp),
        statement: failure.statement.clone().unwrap_or_default(),
        class: failure.class.unwrap_or_default().to_owned(),
        follow_up: None,
    }
}

pub(super) fn ledger_entry(log: &str, entry: ledger::Entry) -> pb::LedgerEntry {
    pb::LedgerEntry {
        log: log.to_owned(),
        sequence: Some(entry.sequence),
        key: entry.key,
        fingerprint: entry.fingerprint.to_vec().into(),
        outcome: wire::outcome_number(entry.outcome),
        reason: entry.reason.unwrap_or_default(),
        result: entry.result.unwrap_or_default(),
        applied_at: Some(wire::timestamp(Time::from_unix_millis(entry.applied_at_ms))),
    }
}

fn ending() -> Status {
    Refusal::new(Reason::ShuttingDown, "the receiver is ending")
        .retry_after(Duration::from_secs(1))
        .into()
}
