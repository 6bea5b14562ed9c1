//! What a reader may rely on: where it may start, and never a silent jump.

use std::time::Duration;

use counterfoil::proto::{
    limits::MAX_FRAME_BYTES,
    pb::{
        Cursor, DataForm, NewEvent, Receipt, ReplayRequest, StartAt, event, replay_request::Start,
        replay_response::Frame,
    },
    refusal::{Reason, reason_of},
};
use prost::Message as _;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use crate::harness::{
    events::{adjusted, adjustments, blob, cursors, event as new, sequences},
    pair::{Pair, directory},
    proxy::{Link, Proxy},
    publisher::{Client, Publisher, client, open_replay},
    refusal::refused,
    tools::{grpcurl, has, skip},
    wait::wait_until,
};

fn after(cursor: &Cursor) -> ReplayRequest {
    ReplayRequest { start: Some(Start::After(cursor.clone())), ..Default::default() }
}

fn from(place: StartAt) -> ReplayRequest {
    ReplayRequest { start: Some(Start::StartAt(place.into())), ..Default::default() }
}

fn following(receiver: &str) -> ReplayRequest {
    ReplayRequest { receiver: receiver.into(), follow: true, ..Default::default() }
}

/// A log whose floor is 5 and whose next is 10, and all ten receipts.
async fn half_truncated(dir: &std::path::Path) -> (Publisher, Vec<Receipt>) {
    let publisher = Publisher::at(dir).config("[logs.main]\nmax_events = 5\n").start();
    let mut receipts = publisher.publish(adjustments("a", 5)).await.expect("accepted");
    receipts.extend(publisher.publish(adjustments("b", 5)).await.expect("accepted"));
    (publisher, receipts)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_starts_where_the_table_says_and_nowhere_else() {
    let dir = directory();
    let (publisher, receipts) = half_truncated(dir.path()).await;
    let cursors = cursors(&receipts);
    let first = async |request: ReplayRequest| -> Vec<i64> {
        let mut frames = publisher.replay(request).await.expect("admitted");
        assert_eq!(
            (frames.started.floor_sequence, frames.started.next_sequence),
            (Some(5), Some(10))
        );
        assert_eq!(frames.started.log_id, receipts[0].log_id);
        assert_eq!(frames.started.session, Some(0), "an anonymous look has no session");
        sequences(&frames.rest().await.expect("ends OK at the head"))
    };
    // floor - 1 … next - 1, chain equal: the one after it.
    for at in 4..10_i64 {
        assert_eq!(first(after(&cursors[at as usize])).await, (at + 1..10).collect::<Vec<_>>());
    }
    assert_eq!(first(from(StartAt::Oldest)).await, [5, 6, 7, 8, 9]);
    assert_eq!(first(from(StartAt::Head)).await, [0_i64; 0]);

    let refusal = async |request: ReplayRequest, reason| {
        refused(publisher.replay(request).await.map(|frames| frames.started), reason)
    };
    let other_log = Cursor { log_id: uuid::Uuid::new_v4().to_string(), ..cursors[7].clone() };
    refusal(after(&other_log), Reason::LogMismatch).await;
    let other_history = Cursor { chain: vec![9; 32].into(), ..cursors[7].clone() };
    refusal(after(&other_history), Reason::Diverged).await;
    let at_the_edge = Cursor { chain: vec![9; 32].into(), ..cursors[4].clone() };
    refusal(after(&at_the_edge), Reason::Diverged).await;
    let expired = [
        after(&cursors[3]),
        after(&cursors[0]),
        after(&Cursor { sequence: Some(-1), ..Default::default() }),
        ReplayRequest::default(),
        from(StartAt::Beginning),
    ];
    for request in expired {
        let told = refusal(request, Reason::CursorExpired).await;
        assert_eq!((told.number("floor"), told.number("next")), (5, 10));
        assert!(
            told.message.contains("OLDEST") || told.message.contains("HEAD"),
            "says what to do: {told:?}"
        );
    }
    // LOG-06: beyond the end is told at once, not waited for.
    for sequence in [10, 11, 50] {
        let ahead = Cursor { sequence: Some(sequence), ..cursors[9].clone() };
        let told =
            refusal(ReplayRequest { follow: true, ..after(&ahead) }, Reason::CursorAhead).await;
        assert_eq!((told.number("floor"), told.number("next")), (5, 10));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_was_never_truncated_starts_at_its_beginning() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut frames = publisher
        .replay(ReplayRequest { follow: true, ..Default::default() })
        .await
        .expect("an empty log");
    let (events, head) = frames.until_caught_up().await.expect("caught up with nothing");
    assert_eq!((events.len(), head.sequence), (0, Some(-1)));
    let receipts = publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let (events, head) = frames.until_caught_up().await.expect("caught up again");
    assert_eq!(sequences(&events), [0, 1, 2]);
    assert_eq!(head, cursors(&receipts)[2]);
    // LOG-06 on a log that has lost its history: told, not reset to 0.
    let ahead = Cursor { sequence: Some(30), ..head };
    refused(
        publisher.replay(after(&ahead)).await.map(|frames| frames.started),
        Reason::CursorAhead,
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_request_for_a_replay_names_its_field() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 1)).await.expect("accepted");
    let cursor = &cursors(&receipts)[0];
    let cases = [
        ("after.log_id", after(&Cursor { log_id: "no".into(), ..cursor.clone() })),
        ("after.chain", after(&Cursor { chain: vec![1; 31].into(), ..cursor.clone() })),
        ("after.sequence", after(&Cursor { sequence: Some(-2), ..cursor.clone() })),
        // API-05: an enum number of a newer client is no default.
        ("start_at", ReplayRequest { start: Some(Start::StartAt(99)), ..Default::default() }),
        ("data_form", ReplayRequest { data_form: 99, ..Default::default() }),
        ("limit", ReplayRequest { limit: -1, ..Default::default() }),
        ("receiver", ReplayRequest { receiver: "a/b".into(), ..Default::default() }),
        ("log", ReplayRequest { log: "a b".into(), ..Default::default() }),
    ];
    for (field, request) in cases {
        let refusal = refused(
            publisher.replay(request).await.map(|frames| frames.started),
            Reason::InvalidField,
        );
        assert_eq!(refusal.fields, [field], "{refusal:?}");
    }
    let elsewhere = ReplayRequest { log: "elsewhere".into(), ..Default::default() };
    refused(publisher.replay(elsewhere).await.map(|frames| frames.started), Reason::LogNotFound);
    let log = publisher.log().await;
    assert!(log.receivers.is_empty(), "a refused Replay leaves no receiver behind: {log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_ends_the_stream_and_types_leave_out_the_rest() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mixed: Vec<_> = (0..40)
        .map(|n| {
            let kind = if n % 4 == 0 { "door.opened" } else { "door.closed" };
            new(&format!("k{n}"), kind, "x", "{}")
        })
        .collect();
    let receipts = publisher.publish(mixed).await.expect("accepted");
    let cursors = cursors(&receipts);

    let mut limited = publisher
        .replay(ReplayRequest { limit: 7, follow: true, ..Default::default() })
        .await
        .expect("admitted");
    assert_eq!(sequences(&limited.rest().await.expect("ends OK")), (0..7).collect::<Vec<_>>());
    let request = ReplayRequest { limit: 3, ..after(&cursors[6]) };
    let mut limited = publisher.replay(request).await.expect("admitted");
    assert_eq!(sequences(&limited.rest().await.expect("ends OK")), [7, 8, 9]);

    let doors =
        ReplayRequest { types: vec!["door.opened".into()], follow: true, ..Default::default() };
    let mut filtered = publisher.replay(doors.clone()).await.expect("admitted");
    let (events, head) = filtered.until_caught_up().await.expect("caught up");
    assert_eq!(sequences(&events), (0..40).step_by(4).collect::<Vec<_>>());
    assert_eq!(head, cursors[39], "the cursor moves over what was left out");
    let mut filtered =
        publisher.replay(ReplayRequest { limit: 2, ..doors }).await.expect("admitted");
    assert_eq!(sequences(&filtered.rest().await.expect("ends OK")), [0, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_come_in_the_form_asked_for() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let large = "{\"n\":9007199254740993}";
    let binary = blob("k2", vec![1, 2]);
    publisher
        .publish(vec![adjusted("k0", "x", 1), new("k1", "t", "x", large), binary])
        .await
        .expect("accepted");
    let payloads = async |form: DataForm| -> Vec<event::Data> {
        let request = ReplayRequest { data_form: form.into(), ..Default::default() };
        let mut frames = publisher.replay(request).await.expect("admitted");
        frames
            .rest()
            .await
            .expect("ends OK")
            .into_iter()
            .map(|event| event.data.expect("a payload"))
            .collect()
    };
    use event::Data::{Binary, Json, JsonText};
    let [first, second, third] = &payloads(DataForm::Unspecified).await[..] else {
        panic!("three")
    };
    assert_eq!((first, second), (&JsonText("{\"delta\":1}".into()), &JsonText(large.into())));
    assert_eq!(third, &Binary(vec![1, 2].into()));
    let shown = payloads(DataForm::Json).await;
    assert!(matches!(&shown[0], Json(object) if object.fields.contains_key("delta")), "{shown:?}");
    assert_eq!(shown[1], JsonText(large.into()), "a double cannot hold it");
    assert_eq!(shown[2], *third);
    let bytes = payloads(DataForm::Binary).await;
    assert_eq!(bytes[1], Binary(large.as_bytes().to_vec().into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_replay_of_one_name_fences_the_first() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 10)).await.expect("accepted");
    let cursors = cursors(&receipts);
    let mut first = publisher.replay(following("r")).await.expect("admitted");
    first.until_caught_up().await.expect("caught up");
    let old = first.started.session.expect("always set");
    publisher.ack("r", old, &cursors[8]).await.expect("acknowledged");

    // Its database was restored from a copy: it asks from further back.
    let request = ReplayRequest { receiver: "r".into(), follow: true, ..after(&cursors[3]) };
    let mut second = publisher.replay(request).await.expect("admitted");
    let new = second.started.session.expect("always set");
    assert!(new > old, "{new} > {old}");
    let status = first.until_broken().await;
    assert_eq!(reason_of(&status), Some(Reason::ReceiverFenced), "{status:?}");
    refused(publisher.ack("r", old, &cursors[9]).await, Reason::ReceiverFenced);
    assert_eq!(
        publisher.acked("r").await,
        Some(cursors[3].clone()),
        "the position follows, backwards too"
    );
    let (events, _) = second.until_caught_up().await.expect("caught up");
    assert_eq!(sequences(&events), (4..10).collect::<Vec<_>>());

    let publisher = publisher.restart();
    assert_eq!(publisher.acked("r").await, Some(cursors[3].clone()), "durable before `started`");
    let third = publisher.replay(following("r")).await.expect("admitted");
    assert!(third.started.session > Some(new), "sessions outlive a restart");
}

/// A client that reads slowly and lets the publisher feel it.
fn slow(publisher: &Publisher) -> Client {
    let endpoint = Endpoint::from_shared(publisher.url()).expect("a URL");
    let channel = endpoint
        .initial_stream_window_size(65_535)
        .initial_connection_window_size(65_535)
        .connect_lazy();
    Client::new(channel)
}

fn large(key: &str) -> NewEvent {
    blob(key, vec![7; 16 * 1024])
}

/// RPL-02: wake-ups are hints; whatever happens, events are read from the log.
#[tokio::test(flavor = "multi_thread")]
async fn rpl_02_a_stalled_reader_misses_nothing_and_holds_nobody() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(large("k0")).await;
    let mut stalled = open_replay(&slow(&publisher), following("stalled")).await.expect("admitted");
    stalled.batch().await.expect("the first");
    let mut quick = publisher.replay(following("quick")).await.expect("admitted");
    let before = publisher.process.memory_kib();
    for batch in 0..40 {
        let events = (0..25).map(|n| large(&format!("k{batch}-{n}"))).collect();
        publisher.publish(events).await.expect("a stalled reader stops no producer");
    }
    assert_eq!(quick.events(1001).await.expect("nor another reader").len(), 1001);
    let grown = publisher.process.memory_kib().saturating_sub(before);
    assert!(grown < 64 * 1024, "a stalled reader costs bounded memory, not {grown} KiB");
    let events = stalled.events(1000).await.expect("all of it, late");
    assert_eq!(sequences(&events), (1..1001).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_overtaken_by_truncation_is_told_and_gets_no_hole() {
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config("[logs.main]\nmax_events = 20\n").start();
    publisher.accepts(large("k0")).await;
    let mut stalled = open_replay(&slow(&publisher), following("stalled")).await.expect("admitted");
    let mut seen = sequences(&stalled.batch().await.expect("the first").events);
    for batch in 0..50 {
        let events = (0..20).map(|n| large(&format!("k{batch}-{n}"))).collect();
        publisher.publish(events).await.expect("accepted");
    }
    let status = loop {
        match stalled.batch().await {
            Ok(batch) => seen.extend(sequences(&batch.events)),
            Err(status) => break status,
        }
    };
    assert_eq!(seen, (0..seen.len() as i64).collect::<Vec<_>>(), "a hole");
    let refusal = refused(Err::<(), _>(status), Reason::CursorExpired);
    let floor = refusal.number("floor");
    assert!(floor > seen.len() as i64, "what came next is gone: {refusal:?}");
    assert_eq!(refusal.number("next"), floor + 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_stay_under_a_mebibyte() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let half = blob("h0", vec![7; 500 * 1024]);
    for n in 0..4 {
        publisher.accepts(NewEvent { key: format!("h{n}"), ..half.clone() }).await;
        publisher.publish(adjustments(&format!("s{n}"), 600)).await.expect("accepted");
    }
    let mut frames = publisher.replay(ReplayRequest::default()).await.expect("admitted");
    let mut count = 0;
    while let Some(frame) = frames.next().await.expect("ends OK") {
        if let Frame::Batch(batch) = frame {
            assert!(batch.encoded_len() < MAX_FRAME_BYTES, "{} bytes", batch.encoded_len());
            count += batch.events.len();
        }
    }
    assert_eq!(count, 4 * 601);
}

/// RPL-07: readers that go away leave nothing, on a log where nothing happens.
#[tokio::test(flavor = "multi_thread")]
async fn rpl_07_five_hundred_abandoned_readers_leave_no_descriptor() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("k", "x", 1)).await;
    let before = publisher.process.open_files();
    for round in 0..5 {
        let mut readers = JoinSet::new();
        for n in 0..100 {
            let client = client(publisher.address);
            readers.spawn(async move {
                let name = format!("r-{round}-{n}");
                let mut frames = open_replay(&client, following(&name)).await.expect("admitted");
                frames.until_caught_up().await.expect("caught up");
                (frames, client)
            });
        }
        drop(readers.join_all().await);
    }
    wait_until("the descriptors are back at their start", async || {
        (publisher.process.open_files() <= before).then_some(())
    })
    .await;
    wait_until("no receiver counts as connected", async || {
        let log = publisher.log().await;
        assert_eq!(log.receivers.len(), 500);
        log.receivers.iter().all(|receiver| !receiver.connected).then_some(())
    })
    .await;
}

/// RPL-07, the harder half: a peer whose host has vanished says no goodbye. The
/// keepalive finds out.
#[tokio::test(flavor = "multi_thread")]
async fn rpl_07_a_reader_that_vanished_is_noticed_by_keepalive() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let before = publisher.process.open_files();
    let mut frames = open_replay(&client(proxy.address), following("r")).await.expect("admitted");
    frames.until_caught_up().await.expect("caught up");
    proxy.set(Link::DeafServer);
    wait_until("the vanished reader's descriptor is closed", async || {
        (publisher.process.open_files() <= before + 1).then_some(())
    })
    .await;
    wait_until("it no longer counts as connected", async || {
        (!publisher.log().await.receivers[0].connected).then_some(())
    })
    .await;
}

/// RPL-09: a Replay has no deadline of its own; a quiet one says that it is alive.
#[tokio::test(flavor = "multi_thread")]
async fn rpl_09_a_quiet_replay_outlives_every_unary_deadline() {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "x", 1)]).await;
    let session = |log: counterfoil::proto::pb::Log| log.receivers[0].session;
    let before = session(pair.publisher.log().await);
    let mut look = pair
        .publisher
        .replay(ReplayRequest { follow: true, ..Default::default() })
        .await
        .expect("admitted");
    // Heartbeats come every ten seconds, Ack's deadline is five.
    loop {
        if let Some(Frame::Heartbeat(beat)) = look.next().await.expect("alive") {
            assert_eq!((beat.floor_sequence, beat.next_sequence), (Some(0), Some(1)));
            assert!(beat.time.is_some());
            break;
        }
    }
    pair.carries(vec![adjusted("k1", "x", 1)]).await;
    assert_eq!(session(pair.publisher.log().await), before, "the same Replay all the time");
}

/// RPL-10: driven from a shell, many times, with a deadline.
#[tokio::test(flavor = "multi_thread")]
async fn rpl_10_grpcurl_with_a_deadline_prints_what_came_and_leaves_nothing() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 3)).await.expect("accepted");
    let before = publisher.process.open_files();
    let address = publisher.address.to_string();
    for _ in 0..5 {
        let mut calls = JoinSet::new();
        for _ in 0..4 {
            let address = address.clone();
            calls.spawn_blocking(move || {
                grpcurl([
                    "-max-time",
                    "2",
                    "-d",
                    r#"{"follow":true}"#,
                    &address,
                    "counterfoil.v1.PublisherService/Replay",
                ])
            });
        }
        for ended in calls.join_all().await {
            assert_eq!(ended.code(), Some(64 + 4), "DEADLINE_EXCEEDED: {ended:?}");
            assert!(ended.stderr.contains("DeadlineExceeded"), "{ended:?}");
            for key in ["k-0", "k-1", "k-2", "caughtUp"] {
                assert!(ended.stdout.contains(key), "{key} was not printed: {ended:?}");
            }
        }
    }
    wait_until("the descriptors are back at their start", async || {
        (publisher.process.open_files() <= before).then_some(())
    })
    .await;
    let log = publisher.log().await;
    assert!(log.receivers.is_empty(), "an anonymous look leaves no trace: {log:?}");
}

/// Two readers at different places do not meet.
#[tokio::test(flavor = "multi_thread")]
async fn readers_join_while_events_come_in_and_see_the_same() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut readers = JoinSet::new();
    for n in 0..10 {
        for batch in 0..5 {
            publisher.publish(adjustments(&format!("k{n}-{batch}"), 20)).await.expect("accepted");
        }
        let client = client(publisher.address);
        readers.spawn(async move {
            let mut frames =
                open_replay(&client, ReplayRequest { follow: true, ..Default::default() })
                    .await
                    .expect("admitted");
            let events = frames.events(1000).await.expect("all of them");
            events
                .into_iter()
                .map(|event| (event.sequence, event.key, event.fingerprint))
                .collect::<Vec<_>>()
        });
    }
    let seen = tokio::time::timeout(Duration::from_secs(60), readers.join_all())
        .await
        .expect("all arrive");
    assert!(seen.windows(2).all(|two| two[0] == two[1]), "they saw different logs");
}
