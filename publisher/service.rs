//! The RPC edge: decode, call, encode. Decides nothing.

use std::{
    pin::Pin,
    sync::{Arc, RwLock},
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    blocking::blocking,
    frame::Shape,
    group::Receipt,
    halt::Halt,
    headroom::snapshot_due_below,
    hub::{Hub, Log},
    intake,
    log::{Extent, ReadError},
    positions::Position,
    publish_stream,
    receipts::{self, Accepted, Receipts, Unknown},
    replay,
    resume::{Start, failed},
    show::show,
};
use crate::proto::{
    event::Sequence,
    limits::*,
    outcome::Report,
    pb::{self, replay_request},
    publishing::PublishRequest,
    refusal::Refusal,
    served::publisher_service_server::PublisherService,
    stored, wire,
};

/// `counterfoil.v1.PublisherService` over the logs of this process.
#[derive(Clone)]
pub struct Service {
    hub: Hub,
    /// PublishStreams that may still be opened.
    publish_streams: Arc<Semaphore>,
    /// Cancelled when the process ends.
    ending: CancellationToken,
}

impl Service {
    /// Serves these logs until `ending` is cancelled.
    pub fn new(hub: Hub, ending: CancellationToken) -> Self {
        let publish_streams = Arc::new(Semaphore::new(MAX_PUBLISH_STREAMS));
        Service { hub, publish_streams, ending }
    }

    fn log(&self, name: &str) -> Result<&Log, Refusal> {
        intake::log(&self.hub, name)
    }

    /// The answers to a stream of requests, encoded.
    ///
    /// # Errors
    /// STREAMS_FULL.
    pub fn open_publish_stream<S: Stream<Item = Result<PublishRequest, Status>> + Send>(
        &self,
        requests: S,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send + use<S>, Refusal> {
        let place = publish_stream::place(&self.publish_streams)?;
        let (hub, ending) = (self.hub.clone(), self.ending.clone());
        Ok(publish_stream::open(hub, ending, place, requests))
    }
}

#[tonic::async_trait]
impl PublisherService for Service {
    async fn publish(
        &self,
        request: Request<pb::PublishRequest>,
    ) -> Result<Response<pb::PublishResponse>, Status> {
        let receipts = intake::publish(&self.hub, request.into_inner().into()).await?;
        Ok(Response::new(pb::PublishResponse { receipts }))
    }

    type PublishStreamStream =
        Pin<Box<dyn Stream<Item = Result<pb::PublishStreamResponse, Status>> + Send>>;

    /// [`super::edge`] serves it, with messages of its own.
    async fn publish_stream(
        &self,
        _: Request<Streaming<pb::PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        Err(Status::unimplemented("PublishStream is served elsewhere"))
    }

    async fn get_receipt(
        &self,
        request: Request<pb::GetReceiptRequest>,
    ) -> Result<Response<pb::GetReceiptResponse>, Status> {
        let pb::GetReceiptRequest { log, key, first_attempt_time } = request.into_inner();
        let log = self.log(&log)?;
        wire::key(&key)?;
        let stated = first_attempt_time
            .map(|time| wire::checked_time(time, "first_attempt_time"))
            .transpose()?;
        let Extent { log_id, next, .. } = log.reader.extent();
        let (receipts, halt) = (log.receipts.clone(), log.halt.clone());
        let receivers = log.receivers.clone();
        let found = blocking(move || {
            let found = find(&receipts, &key, next, &halt).map_err(|error| failed(&error))?;
            let Some(accepted) = found else {
                return Ok(Err(receipts::look(&receipts).unknown(&key, stated)));
            };
            let told = receivers.outcomes(accepted.sequence).map_err(|error| failed(&error))?;
            let key = Bytes::from(key);
            Ok(Ok((Receipt { log_id, key, accepted, duplicate: false }, told)))
        })
        .await?;
        let state = match &found {
            Ok(_) => pb::ReceiptState::Accepted,
            Err(Unknown::NeverAccepted) => pb::ReceiptState::NeverAccepted,
            Err(Unknown::Expired) => pb::ReceiptState::Expired,
        };
        let (receipt, told) = found.ok().unzip();
        let told = told.into_iter().flatten();
        Ok(Response::new(pb::GetReceiptResponse {
            state: state.into(),
            receipt: receipt.map(|receipt| intake::message(&receipt, log.limits.key_window)),
            outcomes: told.map(|(name, told)| wire::receiver_outcome(name, told)).collect(),
        }))
    }

    type ReplayStream = Pin<Box<dyn Stream<Item = Result<stored::ReplayResponse, Status>> + Send>>;

    async fn replay(
        &self,
        request: Request<pb::ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let request = request.into_inner();
        let log = self.log(&request.log)?;
        let frames = replay::open(log, replay_request(request)?).await?;
        Ok(Response::new(Box::pin(frames)))
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckResponse>, Status> {
        let pb::AckRequest {
            log,
            receiver,
            session,
            cursor,
            outcomes,
            reported_sequence,
            reported_after,
        } = request.into_inner();
        wire::name(&receiver, "receiver")?;
        let log = self.log(&log)?;
        let cursor = wire::cursor(&cursor.unwrap_or_default(), "cursor")?;
        let committed = cursor.map_or(-1, |cursor| cursor.sequence);
        let report = wire::report(outcomes, reported_sequence, committed)?
            .map(|report| Report { after: reported_after, ..report });
        let Position { acked, reported, .. } =
            log.receivers.ack(&receiver, session, cursor, report).await?;
        let extent = log.reader.extent();
        Ok(Response::new(pb::AckResponse {
            acked: Some(wire::cursor_message(&acked)),
            floor_sequence: Some(extent.floor),
            next_sequence: Some(extent.next),
            reported_sequence: Some(reported),
            snapshot_due_below: Some(snapshot_due_below(
                &log.limits,
                &extent,
                log.aging.half_below(),
            )),
        }))
    }

    async fn get_log(
        &self,
        request: Request<pb::GetLogRequest>,
    ) -> Result<Response<pb::GetLogResponse>, Status> {
        let log = self.log(&request.into_inner().log)?.clone();
        let log = blocking(move || Ok(show(&log))).await?;
        Ok(Response::new(pb::GetLogResponse { log: Some(log) }))
    }

    async fn list_logs(
        &self,
        _: Request<pb::ListLogsRequest>,
    ) -> Result<Response<pb::ListLogsResponse>, Status> {
        let hub = self.hub.clone();
        let logs = blocking(move || Ok(hub.all().map(show).collect())).await?;
        Ok(Response::new(pb::ListLogsResponse { logs }))
    }
}

/// The receipt of a key, also of one that stands right below `next` and whose
/// receipt is just being put in its place: whoever has seen an event finds it.
fn find(
    receipts: &RwLock<Receipts>,
    key: &str,
    next: Sequence,
    halt: &Halt,
) -> Result<Option<Accepted>, ReadError> {
    let key = receipts::hash(key);
    loop {
        let receipts = receipts::look(receipts);
        match receipts.find(&key)? {
            None if receipts.next() < next && !halt.is_closed() => {}
            found => return Ok(found),
        }
        drop(receipts);
        std::thread::yield_now();
    }
}

fn replay_request(request: pb::ReplayRequest) -> Result<replay::Request, Refusal> {
    let receiver = Some(request.receiver).filter(|name| !name.is_empty());
    if let Some(name) = &receiver {
        wire::name(name, "receiver")?;
    }
    if request.types.len() > MAX_FILTER_TYPES {
        let count = request.types.len();
        return Err(Refusal::field(
            "types",
            format!("has {count} types, at most {MAX_FILTER_TYPES} are allowed"),
        ));
    }
    let limit = u64::try_from(request.limit).map_err(|_| {
        Refusal::field("limit", format!("is {}; it must be 0 or more", request.limit))
    })?;
    Ok(replay::Request {
        receiver,
        session: request.session,
        start: start(request.start)?,
        follow: request.follow,
        limit: Some(limit).filter(|&limit| limit > 0),
        shape: Shape { types: request.types, form: wire::data_form(request.data_form)? },
    })
}

fn start(start: Option<replay_request::Start>) -> Result<Start, Refusal> {
    let number = match start {
        None => return Ok(Start::Beginning),
        Some(replay_request::Start::After(cursor)) => {
            let cursor = wire::cursor(&cursor, "after")?;
            return Ok(cursor.map_or(Start::Beginning, Start::After));
        }
        Some(replay_request::Start::StartAt(number)) => number,
    };
    match pb::StartAt::try_from(number) {
        Ok(pb::StartAt::Unspecified | pb::StartAt::Beginning) => Ok(Start::Beginning),
        Ok(pb::StartAt::Oldest) => Ok(Start::Oldest),
        Ok(pb::StartAt::Head) => Ok(Start::Head),
        Err(_) => Err(wire::unknown_enum("start_at", number)),
    }
}
