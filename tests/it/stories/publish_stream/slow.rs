//! A producer that sends and never reads.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use counterfoil::proto::{
    limits::MAX_STREAM_REQUESTS,
    pb::{PublishRequest, PublishStreamResponse},
};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::harness::{
    events::{adjusted, blob, sequences},
    pair::directory,
    publisher::{Publisher, small_windows},
    wait::wait_until,
};

/// Payload of a request that nobody waits for, in bytes.
const BULK: usize = 10 << 10;
/// More of them than may ever wait.
const MANY: usize = 60_000;

/// A producer that sends as much as is taken, and reads nothing.
struct Lazy {
    sent: Arc<AtomicUsize>,
    sending: JoinHandle<()>,
    answers: Streaming<PublishStreamResponse>,
}

impl Lazy {
    async fn start(publisher: &Publisher) -> Lazy {
        let (sender, requests) = mpsc::channel(1);
        let sent = Arc::new(AtomicUsize::new(0));
        let count = sent.clone();
        let sending = tokio::spawn(async move {
            for n in 0..MANY {
                let events = vec![blob(&format!("bulk-{n}"), vec![7; BULK])];
                if sender.send(PublishRequest { events, ..Default::default() }).await.is_err() {
                    return;
                }
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut client = small_windows(publisher.address);
        let opened = client.publish_stream(ReceiverStream::new(requests)).await;
        Lazy { sent, sending, answers: opened.expect("a stream").into_inner() }
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    /// Until nothing more is taken from it, while others are served.
    async fn is_slowed_down(&self, publisher: &Publisher) {
        let (mut others, mut last) = (0, 0);
        wait_until("nothing more is taken", async || {
            for _ in 0..50 {
                publisher.accepts(adjusted(&format!("other-{others}"), "x", 1)).await;
                others += 1;
            }
            let now = self.sent();
            (std::mem::replace(&mut last, now) == now && now > 0).then_some(())
        })
        .await;
    }
}

/// A producer that never reads its answers is not read for long, costs bounded memory,
/// and holds up nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_reads_no_answers_is_slowed_down() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("first", "x", 1)).await;
    let before_kib = publisher.process.memory_kib();
    let mut lazy = Lazy::start(&publisher).await;
    lazy.is_slowed_down(&publisher).await;
    let taken = lazy.sent();
    let grown_kib = publisher.process.memory_kib().saturating_sub(before_kib);
    println!("{taken} requests of {BULK} bytes, {grown_kib} KiB");
    assert!(taken < 4 * MAX_STREAM_REQUESTS, "{taken} unanswered requests");
    assert!(grown_kib < 96 << 10, "{grown_kib} KiB for a producer that does not read");

    // It changes its mind: everything is answered in order.
    lazy.sending.abort();
    let mut place = 0;
    for n in 0..taken {
        let answer = lazy.answers.message().await.expect("the stream stands").expect("an answer");
        assert_eq!(answer.receipts[0].key, format!("bulk-{n}"));
        assert!(answer.receipts[0].sequence > Some(place));
        place = answer.receipts[0].sequence.expect("always set");
    }
}

/// Nor does it keep the process from ending.
#[tokio::test(flavor = "multi_thread")]
async fn a_publisher_ends_although_a_producer_reads_no_answers() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let lazy = Lazy::start(&publisher).await;
    lazy.is_slowed_down(&publisher).await;
    let successor = publisher.successor();
    assert_eq!(publisher.terminate().code(), Some(0));
    let publisher = successor.start();
    let next = publisher.log().await.next_sequence.expect("always set");
    assert_eq!(sequences(&publisher.everything().await), (0..next).collect::<Vec<_>>());
}
