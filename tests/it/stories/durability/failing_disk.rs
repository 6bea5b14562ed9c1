//! EIO at the N-th write or sync, for every N of a short run: the store latches,
//! the process stays up and says HALTED, a restart refuses, `recover` brings it
//! back, and nothing acknowledged is missing.

use std::path::Path;

use counterfoil::proto::{
    pb::{
        LogState, Outcome, Receipt, ReceiverState, ReplayRequest, StartAt, replay_request::Start,
    },
    refusal::Reason,
};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::harness::{
    events::{adjusted, adjustments, cursors, rejected},
    fake_publisher::{FakePublisher, History, after},
    ledger::Accepted,
    pair::directory,
    process::Ended,
    publisher::{Publisher, channel},
    receiver::Receiver,
    refusal::refused,
    tools::{has, skip, strace},
    wait::wait_until,
};

/// What strace did to the process: the lines with an injected error.
fn injected(trace: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(trace).unwrap_or_default();
    text.lines().filter(|line| line.contains("(INJECTED)")).map(str::to_owned).collect()
}

/// A start that was refused because of a failed disk names the way back.
fn names_the_way_back(ended: &Ended, command: &str) {
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains(command), "{command:?} is missing: {ended:?}");
}

const EVENTS: i64 = 8;

/// Segments and receipts files come and go with every publish.
const RESTLESS: &str = "[logs.main]\nmax_events = 3\nsegment_bytes = 1\n";

/// What was answered before the disk failed.
struct Answered {
    receipts: Vec<Receipt>,
    /// The highest sequence of which an ack was answered.
    acked: i64,
    /// The highest of which a report was.
    reported: i64,
}

impl Answered {
    /// Publishes and acknowledges. From the first refusal on there are only refusals.
    async fn collect(&mut self, publisher: &Publisher) {
        let mut halted = false;
        for k in 0..EVENTS {
            match publisher.publish(vec![adjusted(&format!("k{k}"), "a", 1)]).await {
                Ok(receipts) => {
                    assert!(!halted, "a latched log takes nothing more");
                    self.receipts.extend(receipts);
                }
                Err(status) => {
                    refused(Err::<(), _>(status), Reason::LogHalted);
                    halted = true;
                }
            }
        }
        let oldest = Some(Start::StartAt(StartAt::Oldest.into()));
        let replay = ReplayRequest {
            receiver: "r".into(),
            follow: true,
            start: oldest,
            ..Default::default()
        };
        let mut frames = match publisher.replay(replay).await {
            Ok(frames) => frames,
            Err(status) => return drop(refused(Err::<(), _>(status), Reason::LogHalted)),
        };
        let session = frames.started.session.expect("always set");
        frames.until_caught_up().await.expect("reads go on");
        for (sequence, cursor) in (0..).zip(cursors(&self.receipts)) {
            let told = vec![rejected(sequence)];
            match publisher.reports("r", session, &cursor, told).await {
                Ok(answer) => {
                    let acked = answer.acked.and_then(|cursor| cursor.sequence);
                    self.acked = acked.expect("a sequence");
                    self.reported = answer.reported_sequence.expect("always set");
                }
                Err(status) => drop(refused(Err::<(), _>(status), Reason::LogHalted)),
            }
        }
    }

    /// All of it is still known.
    async fn check(&self, publisher: &Publisher) {
        for receipt in &self.receipts {
            let found = publisher.receipt(&receipt.key).await.receipt;
            let found = found.expect("an acknowledged event is missing");
            assert_eq!(found.sequence, receipt.sequence);
            assert_eq!(found.fingerprint, receipt.fingerprint);
            if receipt.sequence <= Some(self.reported) {
                let told = publisher.outcomes(&receipt.key).await;
                assert_eq!(told, [("r".to_owned(), Outcome::Rejected)], "{}", receipt.key);
            }
        }
        let acked = publisher.acked("r").await.and_then(|cursor| cursor.sequence);
        assert!(acked.unwrap_or(-1) >= self.acked, "{acked:?}, and {} was answered", self.acked);
    }
}

/// A publisher whose disk has failed says so, stays up, and shows what it has.
async fn says_halted(publisher: &mut Publisher, answered: &Answered) {
    let log = wait_until("the log says HALTED", async || {
        let log = publisher.log().await;
        (log.state() == LogState::Halted).then_some(log)
    })
    .await;
    assert!(log.state_detail.contains("recover"), "{log:?}");
    assert!(publisher.process.runs(), "the process stays up");
    let read = publisher.everything().await;
    let last = read.last().and_then(|event| event.sequence);
    let expected = answered.receipts.last().and_then(|receipt| receipt.sequence);
    assert_eq!(last, expected, "what was answered can be read, and only that");
    let request = HealthCheckRequest { service: "counterfoil.v1.PublisherService".into() };
    let health = HealthClient::new(channel(publisher.address)).check(request).await;
    assert_eq!(health.expect("an answer").into_inner().status(), ServingStatus::NotServing);
}

/// One run with an error at the n-th call. Says whether there was such a call.
async fn publisher_fails_at(config: &str, calls: &str, n: usize) -> bool {
    println!("{calls}, number {n}");
    let dir = directory();
    // Made by a sound run, so that the run which fails has little to do before it serves.
    let sound = Publisher::at(dir.path()).config(config).start();
    let first = sound.accepts(adjusted("first", "a", 1)).await;
    let (data, again) = (sound.dir().join("logs/main"), sound.successor());
    assert_eq!(sound.terminate().code(), Some(0));

    let trace = dir.path().join("strace");
    let (only, inject) = (format!("trace={calls}"), format!("inject={calls}:error=EIO:when={n}"));
    let mut options = vec!["-e", &only, "-e", &inject];
    // Writes go to sockets and pipes, too: only those to these files are counted.
    let first_files = ["00000000000000000000.seg", "00000000000000000000.outcomes", "positions"];
    let files = first_files.map(|name| data.join(name));
    if calls.contains("write") {
        let files = files.iter().map(|file| file.to_str().expect("a path of ours"));
        options.extend(files.flat_map(|file| ["-P", file]));
    }
    let mut answered = Answered { receipts: vec![first], acked: -1, reported: -1 };
    match again.clone().wrapped(strace(&trace, &options)).try_start() {
        Err(ended) => assert!(matches!(ended.code(), Some(1 | 3)), "{ended:?}"),
        Ok(mut publisher) => {
            answered.collect(&publisher).await;
            if !injected(&trace).is_empty() {
                says_halted(&mut publisher, &answered).await;
            }
            publisher.terminate();
        }
    }
    let hits = injected(&trace);
    println!("{hits:?}");
    if !hits.is_empty() {
        names_the_way_back(&again.clone().refuses(), "publisher recover");
        let recovered = Publisher::recover(dir.path());
        assert_eq!(recovered.code(), Some(0), "{recovered:?}");
    }
    let publisher = again.start();
    answered.check(&publisher).await;
    for k in 0..EVENTS {
        publisher.accepts(adjusted(&format!("k{k}"), "a", 1)).await;
    }
    assert_eq!(publisher.log().await.next_sequence, Some(EVENTS + 1), "each intent once");
    !hits.is_empty()
}

/// Runs for N = 1, 2, … until the run has no N-th call any more.
async fn for_every_call(mut run: impl AsyncFnMut(usize) -> bool) {
    let mut n = 1;
    while run(n).await {
        n += 1;
        assert!(n < 200, "a short run");
    }
    assert!(n > 3, "the disk was never touched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_of_the_publisher_latches_the_log() {
    if !has("strace") {
        skip!("strace is missing");
    }
    for_every_call(async |n| publisher_fails_at("", "write,pwrite64,writev,pwritev", n).await)
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_of_the_publisher_latches_the_log() {
    if !has("strace") {
        skip!("strace is missing");
    }
    for_every_call(async |n| publisher_fails_at("", "fsync,fdatasync", n).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_while_segments_come_and_go_latches_the_log() {
    if !has("strace") {
        skip!("strace is missing");
    }
    for_every_call(async |n| publisher_fails_at(RESTLESS, "fsync,fdatasync", n).await).await;
}

/// One run with an error at the n-th call. Says whether there was such a call.
async fn receiver_fails_at(calls: &str, n: usize) -> bool {
    println!("{calls}, number {n}");
    let dir = directory();
    let mut history = History::of(vec![adjusted("first", "a", 1)]);
    let short = history.clone();
    let fake =
        FakePublisher::start(move |n, request| short.honestly(n as i64 + 1, after(request))).await;
    let sound = Receiver::start(dir.path(), &fake.url());
    sound.applies(0).await;
    let again = sound.successor();
    assert_eq!(sound.terminate().code(), Some(0));

    for event in adjustments("k", 4) {
        history.push(event);
    }
    let told = history.clone();
    // Each event comes in a frame of its own.
    let fake = FakePublisher::start(move |n, request| {
        let rest = (after(request) + 1) as usize..5;
        let frames = rest.map(|sequence| told.batch(&[sequence]));
        [told.started(n as i64 + 1)].into_iter().chain(frames).chain([told.caught_up()]).collect()
    })
    .await;
    let trace = dir.path().join("strace");
    let (only, inject) = (format!("trace={calls}"), format!("inject={calls}:error=EIO:when={n}"));
    let options = ["-e", &only, "-e", &inject];
    let again = again.publisher(&fake.url());
    match again.clone().wrapped(strace(&trace, &options)).try_start() {
        Err(ended) => assert!(matches!(ended.code(), Some(1 | 3)), "{ended:?}"),
        Ok(mut receiver) => {
            let status = wait_until("it has applied all, or has stopped", async || {
                let status = receiver.status().await;
                let done = status.acked.as_ref().and_then(|cursor| cursor.sequence) == Some(4);
                (done || status.state() == ReceiverState::Halted).then_some(status)
            })
            .await;
            assert!(receiver.process.runs(), "the process stays up");
            if status.state() == ReceiverState::Halted {
                assert_eq!(
                    status.failure.as_ref().expect("why").reason,
                    "STORE_FAILED",
                    "{status:?}"
                );
                assert!(status.state_detail.contains("recover"), "{status:?}");
                receiver.query("total").await.expect("reads go on");
            }
            receiver.terminate();
        }
    }
    let hits = injected(&trace);
    let highest =
        fake.acks().into_iter().filter_map(|ack| ack.cursor?.sequence).max().unwrap_or(-1);
    // The index of the write-ahead log is scratch memory, and SQLite does not look at
    // what its own sync of the directory gave (the receiver has done one before):
    // there it may go on. Everything else latches.
    let latches = |line: &String| line.contains("/receiver.db") && !line.contains("-shm>");
    match again.clone().try_start() {
        Err(ended) => {
            names_the_way_back(&ended, "receiver recover");
            let recovered = Receiver::recover(dir.path());
            assert_eq!(recovered.code(), Some(0), "{recovered:?}");
        }
        Ok(_) => assert!(!hits.iter().any(latches), "started again after {hits:?}"),
    }
    let receiver = again.start();
    assert!(receiver.ledger().cursor >= highest, "acknowledged {highest}, and it is gone");
    receiver.applies(4).await;
    let accepted: Vec<_> = (0..5).map(|n| Accepted::from(&history.event(n))).collect();
    let ledger = receiver.ledger();
    ledger.check(&accepted, None);
    assert_eq!(ledger.total, 5);
    !hits.is_empty()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_write_of_the_receiver_latches_the_store() {
    if !has("strace") {
        skip!("strace is missing");
    }
    for_every_call(async |n| receiver_fails_at("pwrite64,ftruncate", n).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_sync_of_the_receiver_latches_the_store() {
    if !has("strace") {
        skip!("strace is missing");
    }
    for_every_call(async |n| receiver_fails_at("fsync,fdatasync", n).await).await;
}
