//! A publisher that does what no publisher may: repeats, leaves out, changes,
//! falls silent, errs. Serves scripted frames and notes what it was asked.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex},
};

use counterfoil::proto::{
    chain,
    event::{self, Time},
    pb::{
        self, AckRequest, AckResponse, Cursor, GetLogRequest, GetLogResponse, GetReceiptRequest,
        GetReceiptResponse, ListLogsRequest, ListLogsResponse, NewEvent, PublishRequest,
        PublishResponse, ReplayBatch, ReplayCaughtUp, ReplayRequest, ReplayResponse, ReplayStarted,
        publisher_service_server::{PublisherService, PublisherServiceServer},
        replay_response::Frame,
    },
    refusal::{Reason, Refusal},
    wire,
};
use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};
use uuid::Uuid;

use super::{loopback, shelf::Shelf, wait::wait_until};

/// One log's true history, out of which a fake may tell what it likes.
#[derive(Clone)]
pub struct History {
    pub log_id: Uuid,
    events: Vec<pb::Event>,
    cursors: Vec<chain::Cursor>,
}

impl History {
    pub fn new() -> Self {
        History { log_id: Uuid::new_v4(), events: Vec::new(), cursors: Vec::new() }
    }

    /// Every subject's version counts the events before it, as a publisher does.
    pub fn of(events: Vec<NewEvent>) -> Self {
        let mut history = Self::new();
        for event in events {
            history.push(event);
        }
        history
    }

    /// Accepts one more event.
    pub fn push(&mut self, event: NewEvent) {
        let now = Time { seconds: 1_796_000_000, nanos: 0 };
        let intent = wire::intent(event, format_args!("events[0]"), now).expect("a valid event");
        let before = self.events.iter().filter(|event| event.subject == *intent.subject).count();
        let last = self.head();
        self.cursors.push(last.advance(&intent.fingerprint, &intent.key));
        self.events.push(wire::event(&event::Event {
            sequence: last.sequence + 1,
            subject_version: before as i64 + 1,
            accept_time: now,
            intent,
        }));
    }

    /// The same history under another `log_id`.
    pub fn forked(&self) -> Self {
        let log_id = Uuid::new_v4();
        let cursors = self.cursors.iter().map(|cursor| chain::Cursor { log_id, ..*cursor });
        History { log_id, events: self.events.clone(), cursors: cursors.collect() }
    }

    fn head(&self) -> chain::Cursor {
        let beginning = chain::Cursor::beginning(self.log_id);
        self.cursors.last().copied().unwrap_or(beginning)
    }

    /// The event at a sequence.
    pub fn event(&self, sequence: usize) -> pb::Event {
        self.events[sequence].clone()
    }

    /// The cursor at a sequence; -1 for the beginning.
    pub fn cursor(&self, sequence: i64) -> Cursor {
        let beginning = chain::Cursor::beginning(self.log_id);
        let at = usize::try_from(sequence).map_or(beginning, |at| self.cursors[at]);
        wire::cursor_message(&at)
    }

    /// `started` as an honest publisher says it.
    pub fn started(&self, session: i64) -> Step {
        frame(Frame::Started(ReplayStarted {
            reported_sequence: None,
            snapshot_due_below: None,
            log_id: self.log_id.to_string(),
            session: Some(session),
            floor_sequence: Some(0),
            next_sequence: Some(self.events.len() as i64),
            cursor: None,
        }))
    }

    /// `started` of a publisher that keeps outcomes, and has them up to a sequence.
    pub fn started_keeping(&self, session: i64, reported: i64) -> Step {
        let mut step = self.started(session);
        if let Step::Send(ReplayResponse { frame: Some(Frame::Started(started)) }) = &mut step {
            started.reported_sequence = Some(reported);
        }
        step
    }

    /// A batch with these sequences, whatever their order; its cursor is that of
    /// the last one.
    pub fn batch(&self, sequences: &[usize]) -> Step {
        let events = sequences.iter().map(|&sequence| self.event(sequence)).collect();
        let last = *sequences.last().expect("a batch has events");
        self.batch_of(events, last as i64)
    }

    /// A batch with any events.
    pub fn batch_of(&self, events: Vec<pb::Event>, cursor: i64) -> Step {
        frame(Frame::Batch(ReplayBatch { events, cursor: Some(self.cursor(cursor)) }))
    }

    /// A heartbeat that says below where a snapshot is due.
    pub fn snapshot_due_below(&self, sequence: i64) -> Step {
        frame(Frame::Heartbeat(pb::ReplayHeartbeat {
            floor_sequence: Some(0),
            next_sequence: Some(self.events.len() as i64),
            snapshot_due_below: Some(sequence),
            ..Default::default()
        }))
    }

    /// `caught_up` at the head.
    pub fn caught_up(&self) -> Step {
        let cursor = Some(wire::cursor_message(&self.head()));
        frame(Frame::CaughtUp(ReplayCaughtUp { cursor }))
    }

    /// As GetLog shows it, where only what comes from `floor` on is retained.
    pub fn shown(&self, floor: i64) -> pb::Log {
        pb::Log {
            name: "main".into(),
            log_id: self.log_id.to_string(),
            floor_sequence: Some(floor),
            next_sequence: Some(self.events.len() as i64),
            ..Default::default()
        }
    }

    /// What an honest publisher that retains what comes from `floor` on sends after a cursor.
    pub fn retained(&self, session: i64, after: i64, floor: i64) -> Vec<Step> {
        if after >= floor - 1 {
            return self.honestly(session, after);
        }
        let what = format!("sequences {} to {} are no longer retained", after + 1, floor - 1);
        let refusal = Refusal::new(Reason::CursorExpired, what).with("floor", floor);
        vec![Step::Fail(refusal.into())]
    }

    /// What an honest publisher sends after a cursor.
    pub fn honestly(&self, session: i64, after: i64) -> Vec<Step> {
        let rest: Vec<_> = ((after + 1) as usize..self.events.len()).collect();
        let mut started = self.started(session);
        if let Step::Send(ReplayResponse { frame: Some(Frame::Started(started)) }) = &mut started {
            started.cursor = Some(self.cursor(after));
        }
        let mut steps = vec![started];
        steps.extend(rest.chunks(100).map(|chunk| self.batch(chunk)));
        steps.push(self.caught_up());
        steps
    }
}

fn frame(frame: Frame) -> Step {
    Step::Send(ReplayResponse { frame: Some(frame) })
}

/// What happens next on a scripted stream. After the last step it stays open, silent.
#[derive(Debug, Clone)]
pub enum Step {
    /// A frame goes out.
    Send(ReplayResponse),
    /// The stream ends with an error.
    Fail(Status),
    /// The stream ends, OK.
    End,
}

/// Makes the script of the n-th Replay (from 0) out of its request.
type Script = Box<dyn FnMut(usize, &ReplayRequest) -> Vec<Step> + Send>;
/// Answers the n-th Ack (from 0).
type Acks = Box<dyn FnMut(usize, &AckRequest) -> Result<(), Status> + Send>;

struct Told {
    script: Script,
    acks: Acks,
    replays: Vec<ReplayRequest>,
    acked: VecDeque<AckRequest>,
    /// What GetLog shows.
    log: Option<pb::Log>,
}

/// A running fake.
#[derive(Clone)]
pub struct FakePublisher {
    pub address: SocketAddr,
    told: Arc<Mutex<Told>>,
}

impl FakePublisher {
    /// Serves a script; acks are answered OK.
    pub async fn start(
        script: impl FnMut(usize, &ReplayRequest) -> Vec<Step> + Send + 'static,
    ) -> FakePublisher {
        Self::start_beside(&Shelf::default(), script).await
    }

    /// The same, with snapshots.
    pub async fn start_beside(
        shelf: &Shelf,
        script: impl FnMut(usize, &ReplayRequest) -> Vec<Step> + Send + 'static,
    ) -> FakePublisher {
        let listener = TcpListener::bind((loopback::address(), 0)).await.expect("a loopback port");
        let address = listener.local_addr().expect("it is bound");
        let told = Told {
            script: Box::new(script),
            acks: Box::new(|_, _| Ok(())),
            replays: Vec::new(),
            acked: VecDeque::new(),
            log: None,
        };
        let fake = FakePublisher { address, told: Arc::new(Mutex::new(told)) };
        let service = PublisherServiceServer::new(fake.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        let server = server.add_service(shelf.service());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        fake
    }

    /// What GetLog answers.
    pub fn shows_log(&self, log: pb::Log) {
        self.told.lock().expect("no holder panics").log = Some(log);
    }

    /// Answers acks in another way.
    pub fn answers_acks(
        &self,
        acks: impl FnMut(usize, &AckRequest) -> Result<(), Status> + Send + 'static,
    ) {
        self.told.lock().expect("no holder panics").acks = Box::new(acks);
    }

    /// Shows a log with this history.
    pub fn shows(&self, history: &History) {
        let log = pb::Log {
            log_id: history.log_id.to_string(),
            next_sequence: Some(history.events.len() as i64),
            ..Default::default()
        };
        self.told.lock().expect("no holder panics").log = Some(log);
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The Replays it was asked for.
    pub fn replays(&self) -> Vec<ReplayRequest> {
        self.told.lock().expect("no holder panics").replays.clone()
    }

    /// The acks it was sent.
    pub fn acks(&self) -> Vec<AckRequest> {
        self.told.lock().expect("no holder panics").acked.iter().cloned().collect()
    }

    /// Waits for an ack of a sequence.
    pub async fn waits_for_ack(&self, sequence: i64) -> AckRequest {
        wait_until(&format!("an ack of {sequence} arrives"), async || {
            self.acks().into_iter().find(|ack| {
                ack.cursor.as_ref().and_then(|cursor| cursor.sequence) == Some(sequence)
            })
        })
        .await
    }

    /// Waits for the n-th Replay, counted from 1.
    pub async fn waits_for_replay(&self, number: usize) -> ReplayRequest {
        wait_until(&format!("Replay number {number} is asked for"), async || {
            self.replays().into_iter().nth(number - 1)
        })
        .await
    }
}

/// Where a Replay asks to start: the sequence it says it has.
pub fn after(request: &ReplayRequest) -> i64 {
    match &request.start {
        Some(pb::replay_request::Start::After(cursor)) => cursor.sequence.unwrap_or(-1),
        _ => -1,
    }
}

#[tonic::async_trait]
impl PublisherService for FakePublisher {
    type ReplayStream = Pin<Box<dyn Stream<Item = Result<ReplayResponse, Status>> + Send>>;

    async fn replay(
        &self,
        request: Request<ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        let request = request.into_inner();
        let steps = {
            let mut told = self.told.lock().expect("no holder panics");
            let number = told.replays.len();
            told.replays.push(request.clone());
            (told.script)(number, &request)
        };
        if let Some(Step::Fail(status)) = steps.first() {
            return Err(status.clone());
        }
        let ends = matches!(steps.last(), Some(Step::End | Step::Fail(_)));
        let frames = tokio_stream::iter(steps).filter_map(|step| match step {
            Step::Send(frame) => Some(Ok(frame)),
            Step::Fail(status) => Some(Err(status)),
            Step::End => None,
        });
        Ok(Response::new(if ends {
            Box::pin(frames)
        } else {
            Box::pin(frames.chain(tokio_stream::pending()))
        }))
    }

    async fn ack(&self, request: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        let request = request.into_inner();
        let mut told = self.told.lock().expect("no holder panics");
        let number = told.acked.len();
        told.acked.push_back(request.clone());
        (told.acks)(number, &request)?;
        // Once it has been told outcomes, it says in each answer up to where.
        let reported = told.acked.iter().filter_map(|ack| ack.reported_sequence).max();
        Ok(Response::new(AckResponse {
            next_sequence: request.cursor.as_ref().and_then(|cursor| Some(cursor.sequence? + 1)),
            floor_sequence: Some(0),
            acked: request.cursor,
            reported_sequence: reported,
            snapshot_due_below: None,
        }))
    }

    async fn publish(
        &self,
        _: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        Err(Status::unimplemented("this publisher only replays"))
    }

    type PublishStreamStream = Pin<
        Box<
            dyn Stream<Item = Result<counterfoil::proto::pb::PublishStreamResponse, Status>> + Send,
        >,
    >;

    async fn publish_stream(
        &self,
        _: Request<Streaming<counterfoil::proto::pb::PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        Err(Status::unimplemented("this publisher only replays"))
    }

    async fn get_receipt(
        &self,
        _: Request<GetReceiptRequest>,
    ) -> Result<Response<GetReceiptResponse>, Status> {
        Err(Status::unimplemented("this publisher only replays"))
    }

    async fn get_log(&self, _: Request<GetLogRequest>) -> Result<Response<GetLogResponse>, Status> {
        let log = self.told.lock().expect("no holder panics").log.clone();
        match log {
            Some(log) => Ok(Response::new(GetLogResponse { log: Some(log) })),
            None => Err(Status::unimplemented("this publisher only replays")),
        }
    }

    async fn list_logs(
        &self,
        _: Request<ListLogsRequest>,
    ) -> Result<Response<ListLogsResponse>, Status> {
        Err(Status::unimplemented("this publisher only replays"))
    }
}
