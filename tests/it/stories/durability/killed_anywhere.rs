//! SIGKILL at the N-th system call, for all N of a short run, from an empty
//! directory on: what was answered is there, and repeating completes the rest.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
};

use counterfoil::proto::pb::{
    AckOutcome, AckRequest, Outcome, ReplayRequest, StartAt, replay_request::Start,
};

use crate::harness::{
    events::{adjusted, adjustments, cursors, event, rejected, sequences},
    fake_publisher::{FakePublisher, History, after},
    ledger::Accepted,
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
    tools::{has, skip, strace},
    wait::wait_until,
};

/// What changes files, what answers, and what opens them.
const CALLS: &str =
    "write,writev,pwrite64,fsync,fdatasync,ftruncate,rename,unlink,mkdir,flock,sendto";

fn killing(trace: &Path, n: usize) -> Vec<std::ffi::OsString> {
    let (only, inject) =
        (format!("trace={CALLS}"), format!("inject={CALLS}:signal=SIGKILL:when={n}"));
    strace(trace, &["-e", &only, "-e", &inject])
}

/// Segments and receipts files come and go with every publish.
const RESTLESS: &str = "[logs.main]\nmax_events = 2\nsegment_bytes = 1\n";
const EVENTS: i64 = 6;

/// What a receiver has to say of an event, if it was not simply applied.
fn fate(sequence: i64) -> Option<AckOutcome> {
    (sequence % 2 == 0).then(|| rejected(sequence))
}

/// Says whether the run came to its end before the n-th call.
async fn publisher_is_killed_at(config: &str, n: usize) -> bool {
    println!("call number {n}");
    let dir = directory();
    let setup = Publisher::at(dir.path()).config(config);
    let mut receipts = Vec::new();
    let (mut acked, mut reported) = (-1, -1);
    let survived = match setup.clone().wrapped(killing(&dir.path().join("strace"), n)).try_start() {
        Err(ended) => {
            assert!(ended.by_signal(), "{ended:?}");
            false
        }
        Ok(mut publisher) => {
            for k in 0..EVENTS {
                if let Ok(one) = publisher.publish(vec![adjusted(&format!("k{k}"), "a", 1)]).await {
                    receipts.extend(one);
                }
            }
            let start = Some(Start::StartAt(StartAt::Oldest.into()));
            let replay = ReplayRequest { receiver: "r".into(), start, ..Default::default() };
            if receipts.len() == EVENTS as usize
                && let Ok(frames) = publisher.replay(replay).await
            {
                let session = frames.started.session.expect("always set");
                for (sequence, cursor) in (0..).zip(cursors(&receipts)) {
                    let told = fate(sequence).into_iter().collect();
                    if let Ok(answer) = publisher.reports("r", session, &cursor, told).await {
                        acked = answer.acked.and_then(|cursor| cursor.sequence).expect("a place");
                        reported = answer.reported_sequence.expect("always set");
                    }
                }
            }
            publisher.process.runs()
        }
    };
    let publisher = setup.start();
    let log = publisher.log().await;
    let next = log.next_sequence.expect("always set");
    assert!(next >= receipts.len() as i64 && next <= EVENTS, "{next} events");
    let retained = sequences(&publisher.everything().await);
    assert_eq!(retained, (log.floor_sequence.expect("always set")..next).collect::<Vec<_>>());
    let known = publisher.acked("r").await.and_then(|cursor| cursor.sequence).unwrap_or(-1);
    assert!(known >= acked, "an acknowledged position went back: {known} < {acked}");
    for sequence in 0..=reported {
        let told = publisher.outcomes(&format!("k{sequence}")).await;
        let fate = fate(sequence).map_or(Outcome::Applied, |told| told.outcome());
        assert_eq!(told, [("r".to_owned(), fate)], "what was reported of {sequence}");
    }
    let answered: BTreeMap<_, _> =
        receipts.into_iter().map(|receipt| (receipt.key.clone(), receipt)).collect();
    for k in 0..EVENTS {
        let repeat = publisher.accepts(adjusted(&format!("k{k}"), "a", 1)).await;
        if let Some(first) = answered.get(&repeat.key) {
            assert_eq!(repeat.sequence, first.sequence);
            assert_eq!(repeat.accept_time, first.accept_time);
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(EVENTS), "each intent once");
    survived
}

/// Runs for N = 1, 2, … until a run comes to its end.
async fn until_it_survives(mut run: impl AsyncFnMut(usize) -> bool) {
    let mut n = 1;
    while !run(n).await {
        n += 1;
        assert!(n < 500, "a short run");
    }
    assert!(n > 10, "nothing was done in {n} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_is_killed_at_every_call() {
    if !has("strace") {
        skip!("strace is missing");
    }
    until_it_survives(async |n| publisher_is_killed_at("", n).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_is_killed_at_every_call_while_segments_come_and_go() {
    if !has("strace") {
        skip!("strace is missing");
    }
    until_it_survives(async |n| publisher_is_killed_at(RESTLESS, n).await).await;
}

/// What a publisher keeps of reports.
struct Kept {
    reported: i64,
    outcomes: Vec<i64>,
}

impl Kept {
    fn keep(&mut self, ack: &AckRequest) {
        let news = ack.outcomes.iter().map(|told| told.sequence);
        self.outcomes.extend(news.filter(|&sequence| sequence > self.reported));
        // Absent where there is nothing left to report.
        self.reported = self.reported.max(ack.reported_sequence.unwrap_or(-1));
    }
}

/// Says whether the run came to its end before the n-th call.
async fn receiver_is_killed_at(n: usize) -> bool {
    println!("call number {n}");
    let dir = directory();
    let mut events = adjustments("k", 4);
    events[1] = event("k-1", "stock.counted", "item-1", "{}");
    events[3] = event("k-3", "stock.counted", "item-3", "{}");
    let history = History::of(events);
    let told = history.clone();
    let kept = Arc::new(Mutex::new(Kept { reported: -1, outcomes: Vec::new() }));
    let (known, keeping) = (kept.clone(), kept.clone());
    let fake = FakePublisher::start(move |n, request| {
        let frames = ((after(request) + 1) as usize..4).map(|sequence| told.batch(&[sequence]));
        let reported = known.lock().expect("no holder panics").reported;
        let started = told.started_keeping(n as i64 + 1, reported);
        [started].into_iter().chain(frames).chain([told.caught_up()]).collect()
    })
    .await;
    fake.answers_acks(move |_, ack| {
        keeping.lock().expect("no holder panics").keep(ack);
        Ok(())
    });
    let setup = Receiver::at(dir.path(), &fake.url());
    let survived = match setup.clone().wrapped(killing(&dir.path().join("strace"), n)).try_start() {
        Err(ended) => {
            assert!(ended.by_signal(), "{ended:?}");
            false
        }
        Ok(mut receiver) => {
            wait_until("it has acknowledged all, or is gone", async || {
                let done = fake
                    .acks()
                    .iter()
                    .any(|ack| ack.cursor.as_ref().and_then(|cursor| cursor.sequence) == Some(3));
                (done || !receiver.process.runs()).then_some(())
            })
            .await;
            receiver.process.runs()
        }
    };
    let highest = fake.acks().into_iter().filter_map(|ack| ack.cursor?.sequence).max();
    let receiver = setup.start();
    assert!(
        receiver.ledger().cursor >= highest.unwrap_or(-1),
        "acknowledged {highest:?}, and it is gone"
    );
    receiver.applies(3).await;
    let accepted: Vec<_> = (0..4).map(|n| Accepted::from(&history.event(n))).collect();
    let ledger = receiver.ledger();
    ledger.check(&accepted, None);
    assert_eq!(ledger.total, 2);
    wait_until("all is reported", async || {
        (kept.lock().expect("no holder panics").reported == 3).then_some(())
    })
    .await;
    assert_eq!(kept.lock().expect("no holder panics").outcomes, [1, 3], "each once");
    survived
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_is_killed_at_every_call() {
    if !has("strace") {
        skip!("strace is missing");
    }
    until_it_survives(receiver_is_killed_at).await;
}
