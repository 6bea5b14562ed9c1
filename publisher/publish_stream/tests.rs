//! Streams of requests on the engine in memory, through the real threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Code;

use super::*;
use crate::{
    proto::{
        limits::{MAX_BATCH_EVENTS, MAX_DATA_BYTES, MAX_STREAM_REQUESTS},
        pb::{NewEvent, PublishOutcome, PublishRequest, PublishStreamResponse, new_event::Data},
        publishing,
        refusal::{Reason, reason_of, status_of},
    },
    publisher::testing::{Running, start, wide},
};

/// No test waits longer for what has to come.
const SOON: Duration = Duration::from_secs(20);

/// The answers to requests as they were stated, decoded.
fn open(
    hub: Hub,
    ending: CancellationToken,
    place: OwnedSemaphorePermit,
    requests: impl Stream<Item = Result<PublishRequest, Status>> + Send,
) -> impl Stream<Item = Result<PublishStreamResponse, Status>> + Send {
    let requests = requests.map(|item| item.map(publishing::PublishRequest::from));
    super::open(hub, ending, place, requests)
        .map(|item| item.map(|answer| PublishStreamResponse::decode(answer).expect("an answer")))
}

/// A stream of requests, and what its caller holds of it.
struct Caller {
    /// Dropped: the caller has ended its requests.
    requests: Option<mpsc::UnboundedSender<Result<PublishRequest, Status>>>,
    answers: Pin<Box<dyn Stream<Item = Result<PublishStreamResponse, Status>> + Send>>,
}

fn caller(running: &Running) -> Caller {
    let (requests, arriving) = mpsc::unbounded_channel();
    let hub = Hub::of([running.log.clone()]);
    let arriving = UnboundedReceiverStream::new(arriving);
    let answers = Box::pin(open(hub, running.log.ending.clone(), any_place(), arriving));
    Caller { requests: Some(requests), answers }
}

fn any_place() -> OwnedSemaphorePermit {
    place(&Arc::new(Semaphore::new(1))).expect("free")
}

fn event(key: &str) -> NewEvent {
    NewEvent { key: key.into(), r#type: "stock.adjusted".into(), ..Default::default() }
}

fn request(events: Vec<NewEvent>) -> PublishRequest {
    PublishRequest { log: String::new(), events }
}

/// An answer in short: sequences, or the reason.
type Said = Result<Vec<i64>, Option<Reason>>;

fn short(answer: &PublishStreamResponse) -> Said {
    match &answer.error {
        None => Ok(answer.receipts.iter().map(pb::Receipt::sequence).collect()),
        Some(error) => Err(reason_of(&status_of(error))),
    }
}

impl Caller {
    fn sends(&self, request: PublishRequest) {
        self.says(Ok(request));
    }

    fn says(&self, item: Result<PublishRequest, Status>) {
        let requests = self.requests.as_ref().expect("not ended");
        requests.send(item).expect("the stream is open");
    }

    async fn answer(&mut self) -> Option<Result<PublishStreamResponse, Status>> {
        timeout(SOON, self.answers.next()).await.expect("an answer, or the end")
    }

    async fn said(&mut self) -> Said {
        short(&self.answer().await.expect("an answer").expect("no end"))
    }

    /// The rest of the answers, and how the stream ended.
    async fn rest(&mut self) -> (Vec<Said>, Result<(), Status>) {
        let mut said = Vec::new();
        loop {
            match self.answer().await {
                Some(Ok(answer)) => said.push(short(&answer)),
                Some(Err(status)) => return (said, Err(status)),
                None => return (said, Ok(())),
            }
        }
    }
}

#[tokio::test]
async fn answers_come_in_the_order_of_the_requests_and_a_refusal_ends_nothing() {
    let running = start(wide());
    let mut caller = caller(&running);
    caller.sends(request(vec![event("a")]));
    caller.sends(request(Vec::new()));
    caller.sends(request(vec![event("b"), event("c")]));
    caller.sends(PublishRequest { log: "elsewhere".into(), events: vec![event("d")] });
    caller.sends(request(vec![event("c"), event("e")]));
    caller.sends(request(vec![NewEvent { subject: "other".into(), ..event("a") }]));
    caller.sends(request((0..=MAX_BATCH_EVENTS).map(|n| event(&n.to_string())).collect()));
    caller.sends(request(vec![NewEvent { expected_version: Some(9), ..event("f") }]));
    caller.sends(request(vec![event("a")]));
    caller.sends(request(vec![event("g")]));
    caller.requests = None;
    let (said, ended) = caller.rest().await;
    let expected = [
        Ok(vec![0]),
        Err(Some(Reason::InvalidField)),
        Ok(vec![1, 2]),
        Err(Some(Reason::LogNotFound)),
        Err(Some(Reason::PartialDuplicate)),
        Err(Some(Reason::KeyConflict)),
        Err(Some(Reason::BatchTooLarge)),
        Err(Some(Reason::StaleVersion)),
        Ok(vec![0]),
        Ok(vec![3]),
    ];
    assert_eq!(said, expected);
    ended.expect("half-closed: the rest is answered, then OK");
}

#[tokio::test]
async fn an_error_on_the_stream_is_the_one_that_publish_would_have_answered() {
    let running = start(wide());
    let mut caller = caller(&running);
    caller.sends(request(vec![event("a")]));
    caller.sends(request(vec![NewEvent { subject: "other".into(), ..event("a") }]));
    caller.said().await.expect("accepted");
    let answer = caller.answer().await.expect("an answer").expect("no end");
    let status = status_of(&answer.error.expect("a conflict"));
    let hub = Hub::of([running.log.clone()]);
    let other = request(vec![NewEvent { subject: "other".into(), ..event("a") }]);
    let refusal = intake::publish(&hub, other.into()).await.expect_err("a conflict");
    let unary = Status::from(refusal);
    assert_eq!((status.code(), status.message()), (unary.code(), unary.message()));
    use tonic_types::StatusExt as _;
    let info = |status: &Status| {
        let info = status.get_details_error_info().expect("always there");
        (info.reason, info.domain, info.metadata)
    };
    assert_eq!(info(&status), info(&unary));
}

#[tokio::test]
async fn a_request_need_not_wait_for_the_answer_to_the_one_before() {
    let running = start(wide());
    let mut caller = caller(&running);
    for n in 0..100 {
        caller.sends(request(vec![event(&format!("k{n}"))]));
    }
    // One answer is taken; all the others are in the log without being asked for.
    assert_eq!(caller.said().await, Ok(vec![0]));
    let mut extent = running.log.extent.clone();
    extent.wait_for(|extent| extent.next == 100).await.expect("committed");
}

#[tokio::test]
async fn pub_04_attempts_at_one_key_on_two_streams_get_one_append_and_one_receipt() {
    let running = start(wide());
    let mut callers = [caller(&running), caller(&running)];
    for caller in &mut callers {
        for _ in 0..50 {
            caller.sends(request(vec![event("k")]));
        }
        caller.requests = None;
    }
    let [one, other] = &mut callers;
    let drain = async |caller: &mut Caller| {
        let mut appended = 0;
        while let Some(answer) = caller.answer().await {
            let receipt = answer.expect("no end").receipts.remove(0);
            assert_eq!(receipt.sequence, Some(0));
            appended += usize::from(receipt.outcome() == PublishOutcome::Appended);
        }
        appended
    };
    let (one, other) = tokio::join!(drain(one), drain(other));
    assert_eq!(one + other, 1);
    assert_eq!(running.extent().next, 1);
}

/// Requests without end, each of so many events with so many bytes, and their count.
fn endless(
    events: usize,
    bytes: usize,
) -> (impl Stream<Item = Result<PublishRequest, Status>>, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let next = move || {
        let n = counted.fetch_add(1, Relaxed);
        let data = Some(Data::Binary(vec![0; bytes].into()));
        let event = |m| NewEvent { data: data.clone(), ..event(&format!("{bytes}-{n}-{m}")) };
        Ok(request((0..events).map(event).collect()))
    };
    (stream::repeat_with(next), count)
}

#[test]
fn whoever_reads_no_answers_is_soon_read_no_more_and_holds_nobody_up() {
    let runtime = tokio::runtime::Runtime::new().expect("there are threads");
    let running = runtime.block_on(async { start(wide()) });
    let large = MAX_DATA_BYTES - 1024;
    let mut silent = Vec::new();
    {
        // Under this lock the appender answers nobody.
        let _held = running.log.receipts.write().expect("no thread has failed");
        let mut cx = Context::from_waker(futures_util::task::noop_waker_ref());
        let _runtime = runtime.enter();
        // The large ones fill the queue, and those that wait then would fill it again.
        let streams = std::iter::once((1, 1)).chain(std::iter::repeat_n((2, large), 24));
        for (events, bytes) in streams {
            let (requests, count) = endless(events, bytes);
            let hub = Hub::of([running.log.clone()]);
            let mut answers =
                Box::pin(open(hub, running.log.ending.clone(), any_place(), requests));
            for _ in 0..8 {
                assert!(answers.as_mut().poll_next(&mut cx).is_pending());
            }
            let most = MAX_STREAM_WEIGHT / (events * (bytes + ANSWER_BYTES)) + 1;
            assert!((1..=most).contains(&count.load(Relaxed)), "{bytes}: {count:?}");
            silent.push(answers);
        }
    }
    // From here on their answers are ready, and nobody takes them.
    let mut caller = caller(&running);
    for n in 0..40 {
        let data = Some(Data::Binary(vec![0; large].into()));
        caller.sends(request(vec![NewEvent { data, ..event(&format!("k{n}")) }]));
    }
    caller.requests = None;
    let (said, ended) = runtime.block_on(caller.rest());
    ended.expect("half-closed");
    assert!(said.len() == 40 && said.iter().all(Result::is_ok), "{said:?}");
}

#[tokio::test]
async fn refusals_that_nobody_reads_weigh_something_too() {
    let running = start(wide());
    let hub = Hub::of([running.log.clone()]);
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let empty = move || {
        // The first is accepted, and its answer keeps those of the others waiting.
        let events = Vec::from_iter((counted.fetch_add(1, Relaxed) == 0).then(|| event("k")));
        Ok(request(events))
    };
    let requests = stream::repeat_with(empty);
    let mut answers = Box::pin(open(hub, running.log.ending.clone(), any_place(), requests));
    let first = answers.next().await.expect("an answer").expect("no end");
    assert_eq!(short(&first), Ok(vec![0]));
    let taken = count.load(Relaxed);
    assert!((1..MAX_STREAM_REQUESTS).contains(&taken), "{taken} refusals wait");
}

#[tokio::test]
async fn a_stream_too_many_is_refused_until_one_has_ended() {
    let running = start(wide());
    let free = Arc::new(Semaphore::new(1));
    let hub = Hub::of([running.log.clone()]);
    let (_requests, arriving) = mpsc::unbounded_channel();
    let arriving = UnboundedReceiverStream::new(arriving);
    let one = place(&free).expect("the first");
    let answers = open(hub, running.log.ending.clone(), one, arriving);
    assert_eq!(place(&free).expect_err("the second").reason, Reason::StreamsFull);
    drop(answers);
    assert!(place(&free).is_ok(), "the first has ended");
}

#[tokio::test]
async fn told_to_end_it_answers_what_had_arrived_and_says_so() {
    let running = start(wide());
    let mut caller = caller(&running);
    for n in 0..10 {
        caller.sends(request(vec![event(&format!("k{n}"))]));
    }
    assert_eq!(caller.said().await, Ok(vec![0]));
    running.log.ending.cancel();
    caller.sends(request(vec![event("late")]));
    let (said, ended) = caller.rest().await;
    assert_eq!(said, (1..10).map(|n| Ok(vec![n])).collect::<Vec<_>>());
    let status = ended.expect_err("the process ends");
    assert_eq!(reason_of(&status), Some(Reason::ShuttingDown));
}

#[tokio::test]
async fn requests_that_break_off_end_this_stream_alone_after_its_answers() {
    let running = start(wide());
    let (mut one, mut other) = (caller(&running), caller(&running));
    one.sends(request(vec![event("a")]));
    one.says(Err(Status::out_of_range("a message of 9 MiB")));
    let (said, ended) = one.rest().await;
    assert_eq!(
        (said, ended.map_err(|status| status.code())),
        (vec![Ok(vec![0])], Err(Code::OutOfRange))
    );
    other.sends(request(vec![event("b")]));
    assert_eq!(other.said().await, Ok(vec![1]));
}

#[tokio::test]
async fn a_caller_that_hangs_up_changes_nothing_about_what_was_taken_in() {
    let running = start(wide());
    let mut caller = caller(&running);
    for n in 0..10 {
        caller.sends(request(vec![event(&format!("k{n}"))]));
    }
    assert_eq!(caller.said().await, Ok(vec![0]));
    drop(caller);
    let mut extent = running.log.extent.clone();
    extent.wait_for(|extent| extent.next == 10).await.expect("committed");
}
