//! Streams in and acks out against a publisher that follows a script.

use std::{
    collections::VecDeque,
    path::PathBuf,
    pin::Pin,
    sync::{Mutex, atomic::AtomicI64},
};

use tokio::net::TcpListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::TcpListenerStream};
use tonic::{Request, Response, Streaming};

use super::*;
use crate::{
    proto::{
        event::Event,
        pb::{
            publisher_service_server::{PublisherService, PublisherServiceServer},
            replay_response::Frame,
        },
    },
    receiver::{
        ack::Acks,
        apply::{Apply, Rules},
        config::OnError,
        decide::place,
        inventory::Inventory,
        pruning::Keep,
        readers::Readers,
        status::{State, Status as Shown},
        store::{self, gate::Gate},
        testing::{adjustments, cursor_after, event, log_id},
        writer::Writer,
    },
};

/// What one Replay answers: frames, then an end, or none and the stream stays open.
type Script = (Vec<Frame>, Option<Status>);

/// A publisher that answers as it is told and notes what it is asked.
#[derive(Default)]
struct Fake {
    replays: Mutex<VecDeque<Script>>,
    asked: Mutex<Vec<i64>>,
    /// The last session that each Replay named.
    lasts: Mutex<Vec<Option<i64>>>,
    acks: Mutex<VecDeque<Status>>,
    acked: Mutex<Vec<(i64, i64)>>,
    /// Up to where it takes outcomes, Ack by Ack; then all that is reported.
    takes: Mutex<VecDeque<i64>>,
    /// What was reported: the first outcome of an Ack, and up to where it spoke.
    reports: Mutex<Vec<(Option<i64>, Option<i64>)>>,
    sessions: AtomicI64,
}

type Frames = Pin<Box<dyn Stream<Item = Result<pb::ReplayResponse, Status>> + Send>>;

#[tonic::async_trait]
impl PublisherService for Arc<Fake> {
    type ReplayStream = Frames;

    async fn replay(
        &self,
        request: Request<pb::ReplayRequest>,
    ) -> Result<Response<Frames>, Status> {
        let request = request.into_inner();
        self.lasts.lock().expect("whole").push(request.session);
        let from = match request.start {
            Some(Start::After(cursor)) => cursor.sequence.unwrap_or(-1),
            _ => -1,
        };
        self.asked.lock().expect("whole").push(from);
        let script = self.replays.lock().expect("whole").pop_front();
        let (frames, end) = script.unwrap_or((vec![], None));
        let session = Some(self.sessions.fetch_add(1, Ordering::Relaxed) + 1);
        let all = frames.into_iter().map(|frame| {
            let frame = match frame {
                Frame::Started(started) => Frame::Started(pb::ReplayStarted { session, ..started }),
                frame => frame,
            };
            Ok(pb::ReplayResponse { frame: Some(frame) })
        });
        let all: Vec<_> = all.collect();
        let said = tokio_stream::iter(all);
        Ok(Response::new(match end {
            Some(end) => Box::pin(said.chain(tokio_stream::once(Err(end)))),
            None => Box::pin(said.chain(futures_util::stream::pending())),
        }))
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckResponse>, Status> {
        if let Some(status) = self.acks.lock().expect("whole").pop_front() {
            return Err(status);
        }
        let request = request.into_inner();
        let sequence = request.cursor.as_ref().and_then(|cursor| cursor.sequence);
        self.acked.lock().expect("whole").push((request.session, sequence.unwrap_or(-1)));
        let first = request.outcomes.first().map(|outcome| outcome.sequence);
        self.reports.lock().expect("whole").push((first, request.reported_sequence));
        let takes = self.takes.lock().expect("whole").pop_front();
        Ok(Response::new(pb::AckResponse {
            acked: request.cursor,
            reported_sequence: takes.or(request.reported_sequence),
            ..Default::default()
        }))
    }

    async fn publish(
        &self,
        _: Request<pb::PublishRequest>,
    ) -> Result<Response<pb::PublishResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    type PublishStreamStream =
        Pin<Box<dyn Stream<Item = Result<pb::PublishStreamResponse, Status>> + Send>>;

    async fn publish_stream(
        &self,
        _: Request<Streaming<pb::PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_receipt(
        &self,
        _: Request<pb::GetReceiptRequest>,
    ) -> Result<Response<pb::GetReceiptResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_log(
        &self,
        _: Request<pb::GetLogRequest>,
    ) -> Result<Response<pb::GetLogResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn list_logs(
        &self,
        _: Request<pb::ListLogsRequest>,
    ) -> Result<Response<pb::ListLogsResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }
}

fn started() -> Frame {
    Frame::Started(pb::ReplayStarted { log_id: log_id().to_string(), ..Default::default() })
}

/// Of a publisher that keeps outcomes, and has none.
fn started_keeping() -> Frame {
    let log_id = log_id().to_string();
    let reported_sequence = Some(-1);
    Frame::Started(pb::ReplayStarted { log_id, reported_sequence, ..Default::default() })
}

/// Events that there is no handler for, which is reported.
fn unknown_events(count: i64) -> Vec<Event> {
    (0..count).map(|n| event(n, &format!("k{n}"), "note", "camera", "{}")).collect()
}

fn batch(events: &[Event], range: std::ops::Range<usize>) -> Frame {
    let cursor = Some(wire::cursor_message(&cursor_after(&events[..range.end])));
    Frame::Batch(pb::ReplayBatch {
        events: events[range].iter().map(wire::event).collect(),
        cursor,
    })
}

fn caught_up(events: &[Event]) -> Frame {
    let cursor = Some(wire::cursor_message(&cursor_after(events)));
    Frame::CaughtUp(pb::ReplayCaughtUp { cursor })
}

/// A receiver without a service, and the publisher it talks to.
struct Pair {
    _directory: tempfile::TempDir,
    fake: Arc<Fake>,
    board: Arc<Board>,
    ending: CancellationToken,
}

impl Pair {
    async fn new(replays: Vec<Script>, acks: Vec<Status>, attempts: Option<u32>) -> Self {
        let fake = Fake { acks: Mutex::new(acks.into()), ..Fake::default() };
        Pair::with(fake, replays, attempts, &[], |db| db).await
    }

    /// Of a receiver that had committed these events before it was started. Acks read the
    /// ledger where `ledger` says.
    async fn with(
        fake: Fake,
        replays: Vec<Script>,
        attempts: Option<u32>,
        before: &[Event],
        ledger: fn(PathBuf) -> PathBuf,
    ) -> Self {
        let fake = Arc::new(fake);
        fake.replays.lock().expect("whole").extend(replays);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let address = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder()
            .add_service(PublisherServiceServer::new(fake.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        Pair::at(&format!("http://{address}"), fake, attempts, before, ledger)
    }

    fn at(
        url: &str,
        fake: Arc<Fake>,
        attempts: Option<u32>,
        before: &[Event],
        ledger: fn(PathBuf) -> PathBuf,
    ) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let opened = store::open(&db, "main", &Inventory);
        let mut writer = Writer::new(opened.expect("opened"), None, Arc::new(Inventory));
        let start = Cursor::beginning(log_id());
        let (steps, _) = place(start, before.to_vec(), &cursor_after(before)).expect("fits");
        writer.attempt(&steps).expect("committed");
        let board = Arc::new(Board::new(writer.committed()));
        let current = writer.current().clone();
        let streams = Arc::new(Streams::default());
        let ending = CancellationToken::new();
        let rules = Rules { attempts: 2, on_error: OnError::Halt, keep: Keep::All };
        let (_, orders) = mpsc::channel(1);
        let apply =
            Apply::new(writer, board.clone(), streams.clone(), rules, orders, ending.clone());
        let (work, queue) = mpsc::channel(8);
        std::thread::spawn(move || apply.run(queue));
        let (session, open_session) = watch::channel(None);
        let (log, name) = ("main".to_owned(), "receiver".to_owned());
        let replay = Replay {
            publisher: Endpoint::from_shared(url.to_owned()).expect("a URL"),
            log: log.clone(),
            name: name.clone(),
            attempts,
            board: board.clone(),
            work,
            current,
            streams,
            session,
            ending: ending.clone(),
        };
        tokio::spawn(async move { replay.keep(&mut None).await });
        let acks = Acks {
            log,
            name,
            readers: Readers::new(ledger(db), Gate::default()),
            board: board.clone(),
            session: open_session,
            ending: ending.clone(),
        };
        tokio::spawn(acks.keep());
        Pair { _directory: directory, fake, board, ending }
    }

    async fn until(&self, what: &str, there: impl FnMut(&Shown) -> bool) -> Shown {
        let mut status = self.board.status();
        let wait = status.wait_for(there);
        match timeout(Duration::from_secs(10), wait).await {
            Ok(now) => now.expect("the board lives").clone(),
            Err(_) => panic!("not {what}: {:?}", self.board.status().borrow()),
        }
    }

    async fn acked(&self, sequence: i64) {
        self.until("acked", |now| now.acked.is_some_and(|at| at.sequence == sequence)).await;
    }

    async fn halted(&self) -> Failure {
        self.until("halted", |now| now.halted.is_some()).await.halted.expect("just seen")
    }

    fn asked(&self) -> Vec<i64> {
        self.fake.asked.lock().expect("whole").clone()
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

/// NET-09, NET-10: whatever ends a stream, the next one starts from what is
/// committed, and the ack is repeated under the new session.
#[tokio::test]
async fn a_cut_stream_is_taken_up_at_the_cursor() {
    let events = adjustments(0, 6);
    let cut = |code| Some(Status::new(code, "cut"));
    let pair = Pair::new(
        vec![
            (vec![started(), batch(&events, 0..2)], cut(tonic::Code::Internal)),
            (vec![started(), batch(&events, 2..4)], cut(tonic::Code::Unknown)),
            (vec![started()], cut(tonic::Code::Cancelled)),
            (vec![started(), batch(&events, 4..6), caught_up(&events)], None),
        ],
        vec![],
        None,
    )
    .await;
    pair.acked(5).await;
    let status = pair.until("live", |now| now.state() == State::Live).await;
    assert_eq!((status.committed(), status.next_sequence), (5, Some(6)));
    assert_eq!(pair.asked(), [-1, 1, 3, 3]);
    assert_eq!(pair.fake.acked.lock().expect("whole").last(), Some(&(4, 5)));
}

/// A Replay that was not answered may have begun a session, and must not be taken for
/// somebody else's.
#[tokio::test]
async fn a_replay_names_the_session_before_it_where_it_is_sure_of_it() {
    let cut = || Some(Status::unavailable("cut"));
    let replays = vec![
        (vec![started()], cut()),
        (vec![started()], cut()),
        (vec![], cut()),
        (vec![started()], cut()),
        (vec![started(), caught_up(&adjustments(0, 1))], None),
    ];
    let pair = Pair::new(replays, vec![], None).await;
    pair.until("up", |now| matches!(now.link, Link::Up(Some(0)))).await;
    let lasts = pair.fake.lasts.lock().expect("whole").clone();
    assert_eq!(lasts, [None, Some(1), Some(2), None, Some(4)]);
}

/// A Replay that was refused has begun no session: the one before is still the last.
#[tokio::test]
async fn a_refusal_leaves_the_session_before_it() {
    let ending = Refusal::new(Reason::ShuttingDown, "the publisher is ending");
    let replays = vec![
        (vec![started()], Some(Status::unavailable("cut"))),
        (vec![], Some(ending.into())),
        (vec![started(), caught_up(&adjustments(0, 1))], None),
    ];
    let pair = Pair::new(replays, vec![], None).await;
    pair.until("up", |now| matches!(now.link, Link::Up(Some(0)))).await;
    let lasts = pair.fake.lasts.lock().expect("whole").clone();
    assert_eq!(lasts, [None, Some(1), Some(1)]);
}

/// ACK-04: failing acks hold up nothing, and the newest one gets through.
#[tokio::test]
async fn failing_acks_do_not_stop_applying() {
    let events = adjustments(0, 4);
    let frames = vec![started(), batch(&events, 0..2), batch(&events, 2..4), caught_up(&events)];
    let down = vec![Status::unavailable("down"); 4];
    let pair = Pair::new(vec![(frames, None)], down, None).await;
    pair.until("live", |now| now.state() == State::Live && now.committed() == 3).await;
    pair.acked(3).await;
    assert!(pair.fake.acked.lock().expect("whole").iter().all(|&(_, sequence)| sequence == 3));
}

/// ACK-04: an ack that is refused for good is shown; applying goes on.
#[tokio::test]
async fn refused_acks_are_shown() {
    let events = adjustments(0, 4);
    let frames = vec![started(), batch(&events, 0..4), caught_up(&events)];
    let refused = vec![Status::permission_denied("not you"); 9];
    let pair = Pair::new(vec![(frames, None)], refused, None).await;
    let status =
        pair.until("refused", |now| now.ack_refused.is_some() && now.state() == State::Live).await;
    assert!(status.detail().contains("not you"), "{}", status.detail());
    assert_eq!((status.committed(), status.acked), (3, None));
}

#[tokio::test]
async fn what_the_publisher_has_not_taken_is_reported_again() {
    let events = unknown_events(4);
    let frames = vec![started_keeping(), batch(&events, 0..4), caught_up(&events)];
    let fake = Fake { takes: Mutex::new([-1, 1].into()), ..Fake::default() };
    let pair = Pair::with(fake, vec![(frames, None)], None, &[], |db| db).await;
    let reports = || pair.fake.reports.lock().expect("whole").clone();
    pair.until("reported", |_| reports().len() == 3).await;
    let all = (Some(0), Some(3));
    assert_eq!(reports(), [all, all, (Some(2), Some(3))]);
}

/// A report needs the ledger only for what this process has not committed itself.
#[tokio::test]
async fn what_has_just_been_committed_is_reported_without_the_ledger() {
    let events = unknown_events(4);
    let frames = vec![started_keeping(), batch(&events, 0..4), caught_up(&events)];
    let gone = |db: PathBuf| db.with_extension("gone");
    let pair = Pair::with(Fake::default(), vec![(frames, None)], None, &[], gone).await;
    pair.acked(3).await;
    assert_eq!(*pair.fake.reports.lock().expect("whole"), [(Some(0), Some(3))]);
}

#[tokio::test]
async fn what_was_committed_before_the_start_is_reported_from_the_ledger() {
    let events = unknown_events(4);
    let frames = vec![started_keeping(), batch(&events, 2..4), caught_up(&events)];
    let pair = Pair::with(Fake::default(), vec![(frames, None)], None, &events[..2], |db| db).await;
    let reports = || pair.fake.reports.lock().expect("whole").clone();
    let all = |told: &(_, Option<i64>)| told.1 == Some(3);
    pair.until("reported", |_| reports().last().is_some_and(all)).await;
    assert_eq!(pair.asked(), [1]);
    assert_eq!(reports()[0].0, Some(0));
}

#[tokio::test]
async fn acks_do_not_wait_for_what_cannot_be_read_of_the_ledger() {
    let events = unknown_events(4);
    let frames = vec![started_keeping(), caught_up(&events)];
    let takes = Mutex::new(VecDeque::from(vec![-1; 99]));
    let fake = Fake { takes, ..Fake::default() };
    let gone = |db: PathBuf| db.with_extension("gone");
    let pair = Pair::with(fake, vec![(frames, None)], None, &events, gone).await;
    pair.acked(3).await;
    let status = pair.until("stuck", |now| now.reports_stuck_at == Some(-1)).await;
    assert!(status.detail().contains("cannot be reported"), "{}", status.detail());
    assert_eq!(pair.fake.reports.lock().expect("whole")[0], (None, None));
}

/// What is committed is acknowledged, also when the event after it halts the receiver.
#[tokio::test]
async fn a_halted_receiver_still_acknowledges() {
    let mut events = adjustments(0, 3);
    events[2] = event(2, "bad", "stock.adjusted", "camera", r#"{"delta":"x"}"#);
    let frames = vec![started(), batch(&events, 0..3)];
    let down = vec![Status::unavailable("down"); 4];
    let pair = Pair::new(vec![(frames, None)], down, None).await;
    assert_eq!(pair.halted().await.reason, "EVENT_FAILED");
    pair.acked(1).await;
}

#[tokio::test]
async fn a_fenced_receiver_does_not_fight() {
    let fenced = || Status::from(Refusal::new(Reason::ReceiverFenced, "another took over"));
    let events = adjustments(0, 2);
    let frames = vec![started(), batch(&events, 0..2)];
    let by_stream = Pair::new(vec![(frames.clone(), Some(fenced()))], vec![], None).await;
    assert_eq!(by_stream.halted().await.reason, "RECEIVER_FENCED");
    let by_ack = Pair::new(vec![(frames, None)], vec![fenced()], None).await;
    assert_eq!(by_ack.halted().await.reason, "RECEIVER_FENCED");
    assert_eq!(by_ack.asked().len(), 1);
}

/// What is about to be evicted is said, until the head has been reached.
#[tokio::test]
async fn a_warning_stands_until_the_head_is_reached() {
    let events = adjustments(0, 4);
    let headroom_events = Some(7);
    let warning = Frame::Warning(pb::ReplayWarning { headroom_events, ..Default::default() });
    let first = vec![started(), batch(&events, 0..2), warning];
    let pair = Pair::new(vec![(first.clone(), None)], vec![], None).await;
    let status = pair.until("warned", |now| now.headroom_events == Some(7)).await;
    assert!(status.detail().contains("7 more events"), "{}", status.detail());
    let rest = [first, vec![batch(&events, 2..4), caught_up(&events)]].concat();
    let pair = Pair::new(vec![(rest, None)], vec![], None).await;
    let status = pair.until("live", |now| now.state() == State::Live).await;
    assert_eq!(status.headroom_events, None);
}

#[tokio::test]
async fn another_log_is_not_followed() {
    let events = adjustments(0, 2);
    let other = uuid::Uuid::from_u128(2).to_string();
    let swapped = Frame::Started(pb::ReplayStarted { log_id: other, ..Default::default() });
    let first = vec![started(), batch(&events, 0..2)];
    let cut = Some(Status::unavailable("restarted"));
    let pair = Pair::new(vec![(first, cut), (vec![swapped], None)], vec![], None).await;
    assert_eq!(pair.halted().await.reason, "LOG_MISMATCH");
    assert_eq!(pair.board.status().borrow().committed(), 1);
}

#[tokio::test]
async fn a_gap_is_asked_again_once() {
    let events = adjustments(0, 4);
    let holed = vec![started(), batch(&events, 0..1), batch(&events, 2..4)];
    let whole = vec![started(), batch(&events, 1..4)];
    let pair = Pair::new(vec![(holed.clone(), None), (whole, None)], vec![], None).await;
    pair.acked(3).await;
    assert_eq!(pair.asked(), [-1, 0]);

    let again = vec![started(), batch(&events, 2..4)];
    let pair = Pair::new(vec![(holed, None), (again, None)], vec![], None).await;
    assert_eq!(pair.halted().await.reason, "GAP");
    assert_eq!(pair.board.status().borrow().committed(), 0);
}

#[tokio::test]
async fn what_is_changed_or_proves_nothing_is_not_applied() {
    let events = adjustments(0, 2);
    let mut frame = batch(&events, 0..2);
    if let Frame::Batch(batch) = &mut frame {
        batch.events[1].subject = "lens".to_owned();
    }
    let mut without_cursor = batch(&events, 0..2);
    if let Frame::Batch(batch) = &mut without_cursor {
        batch.cursor = None;
    }
    for frame in [frame, without_cursor] {
        let pair = Pair::new(vec![(vec![started(), frame], None)], vec![], None).await;
        assert_eq!(pair.halted().await.reason, "CORRUPT");
        assert_eq!(pair.board.status().borrow().committed(), -1);
    }
}

#[tokio::test]
async fn attempts_to_connect_may_be_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let pair = Pair::at(&format!("http://{address}"), Arc::default(), Some(2), &[], |db| db);
    let failure = pair.halted().await;
    assert_eq!(failure.reason, "UNREACHABLE");
    assert!(failure.message.contains("refused"), "{}", failure.message);
}
