//! Streams that end before their requests do: by the link, by a death, by the
//! publisher's ending. Each request has its receipt, or has left no trace.

use std::net::SocketAddr;

use counterfoil::proto::{
    limits::MAX_BATCH_EVENTS,
    pb::{NewEvent, PublishOutcome, Receipt},
    refusal::{Reason, reason_of},
};
use tonic::Status;

use super::{place, requests, stream, without_outcomes};
use crate::harness::{
    events::{adjusted, adjustments, sequences},
    pair::directory,
    proxy::Proxy,
    publish_stream::PublishStream,
    publisher::{Publisher, small_windows},
};

/// A stream whose answers have to be read before many more can come: however slow this
/// test is, not all requests are answered before something happens.
async fn narrow(address: SocketAddr) -> PublishStream {
    PublishStream::open(&small_windows(address)).await.expect("a stream")
}

/// Repeats every request on a new stream: each has one place, and what was answered
/// before is answered so again.
async fn repeats(publisher: &Publisher, requests: &[Vec<NewEvent>], before: &[Vec<Receipt>]) {
    let mut stream = stream(publisher).await;
    for request in requests {
        stream.send(request.clone());
    }
    let mut next = 0;
    for (n, request) in requests.iter().enumerate() {
        let receipts = stream.answer().await.expect("accepted, now or before");
        assert_eq!(receipts.len(), request.len());
        assert_eq!(place(&receipts), next, "in the order of the requests, without a hole");
        next += request.len() as i64;
        if let Some(first) = before.get(n) {
            assert_eq!(receipts[0].outcome(), PublishOutcome::Duplicate);
            assert_eq!(without_outcomes(&receipts), without_outcomes(first));
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(next), "each event once");
    assert_eq!(sequences(&publisher.everything().await), (0..next).collect::<Vec<_>>());
}

/// Sends requests and reads answers until so many have come, then lets something happen
/// and reads on to the break.
async fn interrupted(
    mut stream: PublishStream,
    requests: &[Vec<NewEvent>],
    after: usize,
    interrupt: impl FnOnce(),
) -> (Vec<Vec<Receipt>>, Status) {
    for request in requests {
        stream.send(request.clone());
    }
    let mut answered = Vec::new();
    while answered.len() < after {
        answered.push(stream.answer().await.expect("accepted"));
    }
    interrupt();
    loop {
        match stream.next().await {
            Ok(Some(answer)) => answered.push(answer.expect("accepted")),
            Ok(None) => panic!("the stream has ended OK after {} answers", answered.len()),
            Err(status) => return (answered, status),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_leaves_each_request_with_its_receipt_or_without_a_trace() {
    for after in [0, 1, 700] {
        let dir = directory();
        let publisher = Publisher::start(dir.path());
        let proxy = Proxy::to(publisher.address).await;
        let stream = narrow(proxy.address).await;
        let requests = requests("k", 8_000);
        let (answered, _) = interrupted(stream, &requests, after, || proxy.cut()).await;
        assert!(answered.len() < requests.len(), "it was cut amid the requests");
        // What was taken in may still be on its way: the repeats meet it there.
        repeats(&publisher, &requests, &answered).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_publisher_leaves_each_request_with_its_receipt_or_without_a_trace() {
    for after in [0, 300, 1_500] {
        let dir = directory();
        let mut publisher = Publisher::start(dir.path());
        let stream = narrow(publisher.address).await;
        let requests = requests("k", 10_000);
        let kill = || publisher.process.kill();
        let (answered, _) = interrupted(stream, &requests, after, kill).await;
        assert!(answered.len() < requests.len(), "it was killed amid the requests");
        let publisher = publisher.restart();
        let next = publisher.log().await.next_sequence.expect("always set") as usize;
        let ends = requests.iter().scan(0, |end, request| {
            *end += request.len();
            Some(*end)
        });
        let ends: Vec<_> = [0].into_iter().chain(ends).collect();
        assert!(ends[answered.len()..].contains(&next), "{next} events: a part of a request");
        repeats(&publisher, &requests, &answered).await;
    }
}

/// Told to end, a publisher answers what it has taken in.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_an_ending_publisher_is_answered_and_ends_shutting_down() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let stream = narrow(publisher.address).await;
    let requests = requests("k", 10_000);
    let tell = || publisher.process.tell_to_end();
    let (answered, status) = interrupted(stream, &requests, 200, tell).await;
    assert_eq!(reason_of(&status), Some(Reason::ShuttingDown), "{status:?}");
    assert_eq!(publisher.process.ended().code(), Some(0));
    let publisher = publisher.restart();
    let events: usize = answered.iter().map(Vec::len).sum();
    assert_eq!(
        publisher.log().await.next_sequence,
        Some(events as i64),
        "everything that was taken in has been answered"
    );
    repeats(&publisher, &requests, &answered).await;
}

/// A quiet stream does not keep the process from ending.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_stream_ends_shutting_down() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let mut stream = stream(&publisher).await;
    stream.publish(vec![adjusted("k", "x", 1)]).await.expect("accepted");
    publisher.process.tell_to_end();
    let end = stream.next().await.expect_err("no more answers");
    assert_eq!(reason_of(&end), Some(Reason::ShuttingDown), "{end:?}");
    assert_eq!(publisher.process.ended().code(), Some(0));
}

/// Enough events that receipts are saved on the way, in large requests.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_that_is_killed_while_receipts_are_saved_keeps_them() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let stream = narrow(publisher.address).await;
    let requests: Vec<_> =
        (0..75).map(|n| adjustments(&format!("b{n}"), MAX_BATCH_EVENTS)).collect();
    let kill = || publisher.process.kill();
    let (answered, _) = interrupted(stream, &requests, 30, kill).await;
    let publisher = publisher.restart();
    repeats(&publisher, &requests, &answered).await;
    let publisher = publisher.restart();
    repeats(&publisher, &requests, &answered).await;
}
