//! What a producer may rely on who keeps many requests in flight on one stream: the
//! same as with Publish, request by request.

mod broken;
mod slow;

use counterfoil::proto::{
    limits::{MAX_CALLS, MAX_PUBLISH_STREAMS},
    pb::{NewEvent, PublishOutcome, Receipt},
    refusal::Reason,
};
use serde_json::Value as Json;
use tokio::task::JoinSet;

use crate::harness::{
    events::{adjusted, at_version, blob, event, without_outcome},
    pair::directory,
    process::Launch,
    publish_stream::{Answer, PublishStream},
    publisher::{Publisher, client, publish},
    refusal::refused,
    tools::{has, skip},
    wait::wait_until,
};

/// A stream to a publisher.
async fn stream(publisher: &Publisher) -> PublishStream {
    PublishStream::open(&client(publisher.address)).await.expect("a stream")
}

/// Requests of one to three events each; no two have the same.
fn requests(prefix: &str, count: usize) -> Vec<Vec<NewEvent>> {
    let request = |n: usize| {
        let event = |m| adjusted(&format!("{prefix}-{n}-{m}"), &format!("item-{}", n % 5), 1);
        (0..n % 3 + 1).map(event).collect()
    };
    (0..count).map(request).collect()
}

fn without_outcomes(receipts: &[Receipt]) -> Vec<Receipt> {
    receipts.iter().map(without_outcome).collect()
}

/// Where the events of one request stand: together.
fn place(receipts: &[Receipt]) -> i64 {
    let first = receipts[0].sequence.expect("always set");
    for (sequence, receipt) in (first..).zip(receipts) {
        assert_eq!(receipt.sequence, Some(sequence), "torn apart: {receipts:?}");
        assert_eq!(receipt.outcome, receipts[0].outcome, "accepted in part: {receipts:?}");
    }
    first
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_come_in_order_and_a_refusal_ends_nothing() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut stream = stream(&publisher).await;
    stream.send(vec![adjusted("a", "x", 1), adjusted("b", "x", 1)]);
    stream.send(vec![adjusted("", "x", 1)]);
    stream.send(Vec::new());
    stream.send(vec![adjusted("twice", "x", 1), adjusted("twice", "x", 1)]);
    stream.send_to("elsewhere", vec![adjusted("c", "x", 1)]);
    stream.send(vec![adjusted("a", "x", 2)]);
    stream.send(vec![adjusted("b", "x", 1), adjusted("c", "x", 1)]);
    stream.send(vec![at_version(adjusted("c", "x", 1), 9)]);
    stream.send(vec![blob("c", vec![0; 600 << 10])]);
    stream.send(vec![at_version(adjusted("c", "x", 1), 2)]);
    stream.send(vec![adjusted("a", "x", 1), adjusted("b", "x", 1)]);
    stream.half_close();

    let first = stream.answer().await.expect("accepted");
    assert_eq!(place(&first), 0);
    for field in ["events[0].key", "events", "events[1].key"] {
        assert_eq!(refused(stream.answer().await, Reason::InvalidField).fields, [field]);
    }
    refused(stream.answer().await, Reason::LogNotFound);
    assert_eq!(refused(stream.answer().await, Reason::KeyConflict).number("sequence"), 0);
    refused(stream.answer().await, Reason::PartialDuplicate);
    assert_eq!(refused(stream.answer().await, Reason::StaleVersion).number("version"), 2);
    refused(stream.answer().await, Reason::EventTooLarge);
    let third = stream.answer().await.expect("its key is free, its version is right");
    assert_eq!(third[0].sequence, Some(2));
    let again = stream.answer().await.expect("known");
    assert!(again.iter().all(|receipt| receipt.outcome() == PublishOutcome::Duplicate));
    assert_eq!(without_outcomes(&again), without_outcomes(&first));
    let end = stream.next().await.expect("it ends OK after the last answer");
    assert!(end.is_none(), "{end:?}");
    assert_eq!(publisher.log().await.next_sequence, Some(3));
}

/// A refusal reads the same on both ways.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_on_a_stream_is_the_one_of_a_call() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("a", "x", 1)).await;
    let mut stream = stream(&publisher).await;
    for (event, reason) in [
        (adjusted("a", "x", 2), Reason::KeyConflict),
        (at_version(adjusted("b", "x", 1), 5), Reason::StaleVersion),
        (adjusted("b", "x", 1_001), Reason::InvalidField),
        (event("b", "stock.adjusted", "x", "{"), Reason::InvalidField),
    ] {
        let call = publisher.publish(vec![event.clone()]).await;
        let answer = stream.publish(vec![event]).await;
        assert_eq!(refused(answer, reason), refused(call, reason));
    }
}

/// PUB-02, with everything in flight at once.
#[tokio::test(flavor = "multi_thread")]
async fn pub_02_an_honest_retry_gets_its_receipt_and_no_stale_version() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let intent = at_version(adjusted("k", "x", 5), 0);
    let mut held = stream(&publisher).await;
    held.send(vec![intent.clone()]);
    held.send(vec![intent.clone()]);
    for n in 0..5 {
        held.send(vec![adjusted(&format!("other-{n}"), "x", 1)]);
    }
    held.send(vec![intent.clone()]);
    let first = held.answer().await.expect("accepted").remove(0);
    assert_eq!(first.outcome(), PublishOutcome::Appended);
    let second = held.answer().await.expect("known").remove(0);
    for _ in 0..5 {
        held.answer().await.expect("accepted");
    }
    let third = held.answer().await.expect("known").remove(0);
    let publisher = publisher.restart();
    let fourth = stream(&publisher).await.publish(vec![intent]).await.expect("known").remove(0);
    for retry in [second, third, fourth] {
        assert_eq!(retry.outcome(), PublishOutcome::Duplicate);
        assert_eq!(without_outcome(&retry), without_outcome(&first));
    }
    assert_eq!(publisher.log().await.next_sequence, Some(6));
}

/// PUB-04: attempts at one key on many streams at once, twice on each.
#[tokio::test(flavor = "multi_thread")]
async fn pub_04_attempts_at_one_key_on_many_streams_make_one_event() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(stream(&publisher).await);
    }
    for round in 0..20 {
        // Half of the streams state other content under the same key.
        let intent = |n: usize| adjusted(&format!("k{round}"), "x", 1 + (n % 2) as i64);
        for (n, stream) in streams.iter().enumerate() {
            stream.send(vec![intent(n)]);
            stream.send(vec![intent(n)]);
        }
        let mut answers: Vec<(usize, Answer)> = Vec::new();
        for (n, stream) in streams.iter_mut().enumerate() {
            answers.push((n % 2, stream.answer().await));
            answers.push((n % 2, stream.answer().await));
        }
        let is_appended =
            |receipts: &Vec<Receipt>| receipts[0].outcome() == PublishOutcome::Appended;
        let appended = |(_, answer): &&(usize, Answer)| answer.as_ref().is_ok_and(is_appended);
        let winners: Vec<_> =
            answers.iter().filter(appended).map(|(content, _)| *content).collect();
        assert_eq!(winners.len(), 1, "{answers:?}");
        for (content, answer) in answers {
            if content == winners[0] {
                assert_eq!(answer.expect("the winning content")[0].sequence, Some(round));
            } else {
                assert_eq!(refused(answer, Reason::KeyConflict).number("sequence"), round);
            }
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(20));
}

/// PUB-13: compare and append are one step, over streams too.
#[tokio::test(flavor = "multi_thread")]
async fn pub_13_of_sixteen_streams_at_one_version_exactly_one_wins() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut streams = Vec::new();
    for _ in 0..16 {
        streams.push(stream(&publisher).await);
    }
    for round in 0..100 {
        for (n, stream) in streams.iter().enumerate() {
            stream.send(vec![at_version(adjusted(&format!("{round}-{n}"), "x", 1), round)]);
        }
        let mut winners = Vec::new();
        for stream in &mut streams {
            match stream.answer().await {
                Ok(receipts) => winners.push(receipts[0].sequence),
                loser => {
                    assert_eq!(refused(loser, Reason::StaleVersion).number("version"), round + 1);
                }
            }
        }
        assert_eq!(winners, [Some(round)], "round {round}");
    }
    assert_eq!(publisher.log().await.next_sequence, Some(100));
}

/// Twice in one request, in two requests, on two streams, on a stream and by a call,
/// and across a restart.
#[tokio::test(flavor = "multi_thread")]
async fn duplicates_in_flight_make_one_append_and_one_receipt() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let (mut one, mut two) = (stream(&publisher).await, stream(&publisher).await);
    let k = |n: usize| adjusted(&format!("k{n}"), "x", 1);
    one.send(vec![k(0), k(0)]);
    refused(one.answer().await, Reason::InvalidField);
    assert_eq!(publisher.log().await.next_sequence, Some(0));

    for round in 0..30 {
        let batch = vec![k(2 * round), k(2 * round + 1)];
        one.send(batch.clone());
        two.send(batch.clone());
        one.send(batch.clone());
        let call = publisher.publish(batch.clone());
        let answers = [call.await, one.answer().await, one.answer().await, two.answer().await];
        let receipts = answers.map(|answer| answer.expect("accepted once, known from then on"));
        let appended = |receipts: &&Vec<Receipt>| receipts[0].outcome() == PublishOutcome::Appended;
        assert_eq!(receipts.iter().filter(appended).count(), 1, "{receipts:?}");
        let [first, others @ ..] = receipts.each_ref().map(|all| without_outcomes(all));
        assert_eq!(first[0].sequence, Some(2 * round as i64));
        assert!(others.iter().all(|other| *other == first), "{receipts:?}");
    }

    let publisher = publisher.restart();
    let mut one = stream(&publisher).await;
    for n in 0..60 {
        one.send(vec![k(n)]);
    }
    for n in 0..60 {
        let receipt = one.answer().await.expect("known").remove(0);
        assert_eq!((receipt.sequence, receipt.outcome()), (Some(n), PublishOutcome::Duplicate));
    }
    assert_eq!(publisher.log().await.next_sequence, Some(60));
}

/// As many open streams as there may be, and no fewer than calls that are worked on at a
/// time: calls go on, and one stream more is told so.
#[tokio::test(flavor = "multi_thread")]
async fn open_streams_are_bounded_and_take_no_place_from_calls() {
    const { assert!(MAX_PUBLISH_STREAMS >= MAX_CALLS) };
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let client = client(publisher.address);
    let mut streams = Vec::new();
    for n in 0..MAX_PUBLISH_STREAMS {
        let mut stream = PublishStream::open(&client).await.expect("a stream");
        stream.publish(vec![adjusted(&format!("k{n}"), "x", 1)]).await.expect("accepted");
        streams.push(stream);
    }
    publisher.accepts(adjusted("call", "x", 1)).await;
    let more = PublishStream::open(&client).await.map(drop);
    let refusal = refused(more, Reason::StreamsFull);
    assert_eq!(refusal.number("limit"), MAX_PUBLISH_STREAMS as i64);
    drop(streams.pop());
    wait_until("the place of the one that has gone is free", async || {
        PublishStream::open(&client).await.ok()
    })
    .await;
}

/// By hand: a stream needs no program of one's own.
#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_publishes_on_a_stream() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let event = |key: &str, delta: i64| {
        format!(
            r#"{{"events":[{{"key":"{key}","type":"stock.adjusted","subject":"camera","json":{{"delta":{delta}}}}}]}}"#
        )
    };
    let input = [event("k1", 3), event("k1", 4), event("k2", 5), event("k1", 3)].join("\n");
    let ended = Launch::new("grpcurl")
        .args(["-plaintext", "-d", "@", &publisher.address.to_string()])
        .arg("counterfoil.v1.PublisherService/PublishStream")
        .run_with_input(&input);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let answers = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Json>();
    let answers: Vec<_> = answers.map(|answer| answer.expect("JSON")).collect();
    assert_eq!(answers.len(), 4, "{ended:?}");
    assert_eq!(answers[0]["receipts"][0]["sequence"], "0");
    let detail = &answers[1]["error"]["details"][0];
    assert_eq!(detail["reason"], "KEY_CONFLICT", "readable: {}", answers[1]);
    assert_eq!(detail["metadata"]["sequence"], "0");
    assert!(answers[1]["error"]["message"].as_str().is_some_and(|text| text.contains("k1")));
    assert_eq!(answers[2]["receipts"][0]["sequence"], "1");
    assert_eq!(answers[3]["receipts"][0]["outcome"], "PUBLISH_OUTCOME_DUPLICATE");
}

/// Calls and streams meet in one log: what each was answered stands, once.
#[tokio::test(flavor = "multi_thread")]
async fn streams_and_calls_together_leave_no_hole() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let mut producers = JoinSet::new();
    for producer in 0..8 {
        let client = client(publisher.address);
        producers.spawn(async move {
            let requests = requests(&format!("p{producer}"), 200);
            let mut places = Vec::new();
            if producer % 2 == 0 {
                let mut stream = PublishStream::open(&client).await.expect("a stream");
                requests.iter().for_each(|request| stream.send(request.clone()));
                for _ in &requests {
                    places.push(stream.answer().await.expect("accepted"));
                }
            } else {
                for request in requests {
                    places.push(publish(&client, "", request).await.expect("accepted"));
                }
            }
            // One producer's requests stand in its order.
            assert!(places.windows(2).all(|two| place(&two[0]) < place(&two[1])));
            places.into_iter().flatten().map(|receipt| receipt.sequence).collect::<Vec<_>>()
        });
    }
    let mut taken: Vec<_> = producers.join_all().await.into_iter().flatten().flatten().collect();
    taken.sort_unstable();
    assert_eq!(taken, (0..taken.len() as i64).collect::<Vec<_>>());
    assert_eq!(publisher.log().await.next_sequence, Some(taken.len() as i64));
}
