//! What a producer may rely on: one key, one receipt; versions; nothing half-done.

use std::collections::BTreeMap;

use counterfoil::proto::{
    limits::{MAX_BATCH_EVENTS, MAX_DATA_BYTES, MAX_KEY_BYTES},
    pb::{
        Event, GetReceiptRequest, NewEvent, PublishOutcome, Receipt, ReceiptState, event, new_event,
    },
    refusal::Reason,
};
use prost_types::{Struct, Timestamp, Value, value::Kind};
use tokio::task::JoinSet;
use tonic::{Code, Request};

use crate::harness::{
    events::{
        adjusted, adjustments, at_version, blob, event as new, reserved, sequences, without_outcome,
    },
    pair::directory,
    publisher::{Publisher, client, publish},
    refusal::refused,
    wait::wait_until,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_says_where_the_event_stands() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    assert_eq!(publisher.receipt("k1").await.state(), ReceiptState::NeverAccepted);
    let log = publisher.log().await;
    assert_eq!((log.floor_sequence, log.next_sequence), (Some(0), Some(0)));

    let receipts = publisher.publish(vec![adjusted("k1", "a", 3), adjusted("k2", "a", 4)]).await;
    let receipts = receipts.expect("accepted");
    assert_eq!(receipts.len(), 2);
    for (n, receipt) in (0..).zip(&receipts) {
        assert_eq!(receipt.sequence, Some(n));
        assert_eq!(receipt.subject_version, Some(n + 1));
        assert_eq!(receipt.outcome(), PublishOutcome::Appended);
        assert_eq!(receipt.log_id, log.log_id);
        assert_eq!(receipt.fingerprint.len(), 32);
        assert!(receipt.accept_time.is_some());
    }
    let found = publisher.receipt("k2").await;
    assert_eq!(found.state(), ReceiptState::Accepted);
    assert_eq!(without_outcome(&found.receipt.expect("a receipt")), without_outcome(&receipts[1]));
}

/// PUB-02: version is only checked for keys that are not known.
#[tokio::test(flavor = "multi_thread")]
async fn pub_02_an_honest_retry_gets_its_receipt_and_no_stale_version() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher
        .publish(vec![adjusted("a", "x", 1), adjusted("b", "x", 1), adjusted("c", "x", 1)])
        .await
        .expect("accepted");
    let intent = at_version(adjusted("k", "x", 5), 3);
    let first = publisher.accepts(intent.clone()).await;
    assert_eq!(first.subject_version, Some(4));
    let second = publisher.accepts(intent.clone()).await;
    for n in 0..5 {
        publisher.accepts(adjusted(&format!("other-{n}"), "x", 1)).await;
    }
    let third = publisher.accepts(intent.clone()).await;
    let publisher = publisher.restart();
    let fourth = publisher.accepts(intent).await;
    for retry in [second, third, fourth] {
        assert_eq!(retry.outcome(), PublishOutcome::Duplicate);
        assert_eq!(without_outcome(&retry), without_outcome(&first));
    }
    assert_eq!(publisher.log().await.next_sequence, Some(9));
}

/// PUB-04: attempts in flight at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn pub_04_attempts_at_one_key_in_flight_together_make_one_event() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for round in 0..20 {
        let key = format!("k{round}");
        let mut attempts = JoinSet::new();
        for n in 0..16 {
            // Half of them state other content under the same key.
            let intent = adjusted(&key, "x", if n % 2 == 0 { 1 } else { 2 });
            let client = client(publisher.address);
            attempts.spawn(async move { (n % 2, publish(&client, "", vec![intent]).await) });
        }
        let answers = attempts.join_all().await;
        let appended: Vec<_> = answers
            .iter()
            .filter_map(|(content, answer)| {
                answer.as_ref().ok().map(|receipts| (*content, &receipts[0]))
            })
            .collect();
        let winners =
            appended.iter().filter(|(_, receipt)| receipt.outcome() == PublishOutcome::Appended);
        assert_eq!(winners.count(), 1, "{answers:?}");
        let winner = appended[0].0;
        assert_eq!(appended.len(), 8, "all attempts with the winning content get the receipt");
        for (content, answer) in answers {
            if content == winner {
                assert_eq!(answer.expect("counted above")[0].sequence, Some(round));
            } else {
                let refusal = refused(answer, Reason::KeyConflict);
                assert_eq!(refusal.number("sequence"), round);
            }
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(20));
}

/// PUB-13: compare and append are one step.
#[tokio::test(flavor = "multi_thread")]
async fn pub_13_of_sixteen_writers_at_one_version_exactly_one_wins() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let clients: Vec<_> = (0..16).map(|_| client(publisher.address)).collect();
    for round in 0..100 {
        let mut attempts = JoinSet::new();
        for (n, client) in clients.iter().cloned().enumerate() {
            let intent = at_version(adjusted(&format!("{round}-{n}"), "x", 1), round);
            attempts.spawn(async move { publish(&client, "", vec![intent]).await });
        }
        let (winners, losers): (Vec<_>, Vec<_>) =
            attempts.join_all().await.into_iter().partition(Result::is_ok);
        assert_eq!(winners.len(), 1, "round {round}: {winners:?}");
        assert_eq!(winners[0].as_ref().expect("a winner")[0].sequence, Some(round));
        for loser in losers {
            assert_eq!(refused(loser, Reason::StaleVersion).number("version"), round + 1);
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(100));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_accepted_whole_or_not_at_all() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("known", "x", 1)).await;

    let partly = publisher.publish(vec![adjusted("new", "x", 1), adjusted("known", "x", 1)]).await;
    refused(partly, Reason::PartialDuplicate);
    let conflict =
        publisher.publish(vec![adjusted("new", "x", 1), adjusted("known", "x", 2)]).await;
    let refusal = refused(conflict, Reason::KeyConflict);
    assert_eq!(refusal.number("sequence"), 0);
    assert!(refusal.numbers.contains_key("fingerprint"), "{refusal:?}");
    let twice = publisher.publish(vec![adjusted("new", "x", 1), adjusted("new", "x", 1)]).await;
    refused(twice, Reason::InvalidField);
    let stale = vec![adjusted("n1", "y", 1), at_version(adjusted("n2", "y", 1), 0)];
    let refusal = refused(publisher.publish(stale).await, Reason::StaleVersion);
    assert_eq!(refusal.number("version"), 1, "versions count within the batch");
    let bad = vec![adjusted("n1", "y", 1), adjusted("", "y", 1)];
    let refusal = refused(publisher.publish(bad).await, Reason::InvalidField);
    assert_eq!(refusal.fields, ["events[1].key"]);

    for key in ["new", "n1", "n2"] {
        assert_eq!(publisher.receipt(key).await.state(), ReceiptState::NeverAccepted);
    }
    let good = vec![at_version(adjusted("n1", "y", 1), 0), at_version(adjusted("n2", "y", 1), 1)];
    let receipts = publisher.publish(good.clone()).await.expect("versions follow each other");
    let again = publisher.publish(good).await.expect("known as a whole");
    assert_eq!(
        again.iter().map(without_outcome).collect::<Vec<_>>(),
        receipts.iter().map(without_outcome).collect::<Vec<_>>()
    );
    assert!(again.iter().all(|receipt| receipt.outcome() == PublishOutcome::Duplicate));
}

/// LOG-12: refusals use no number.
#[tokio::test(flavor = "multi_thread")]
async fn log_12_refused_attempts_leave_no_hole() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("k0", "x", 1)).await;
    for n in 0..5 {
        let stale = at_version(adjusted(&format!("stale-{n}"), "x", 1), 9);
        refused(publisher.publish(vec![stale]).await, Reason::StaleVersion);
    }
    for wrong in ["", "a\0b"] {
        refused(publisher.publish(vec![adjusted(wrong, "x", 1)]).await, Reason::InvalidField);
    }
    let receipt = publisher.accepts(adjusted("k1", "x", 1)).await;
    assert_eq!(receipt.sequence, Some(1));
    // The key of a refused attempt is free.
    let receipt = publisher.accepts(adjusted("stale-0", "x", 1)).await;
    assert_eq!(receipt.outcome(), PublishOutcome::Appended);
}

/// A call that the caller gives up is carried out all the same, or not at all; the
/// repeat finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_hangs_up_changes_nothing() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for round in 0..40_u64 {
        let intent = adjusted(&format!("k{round}"), "x", 1);
        let mut impatient = Request::new(counterfoil::proto::pb::PublishRequest {
            events: vec![intent.clone()],
            ..Default::default()
        });
        impatient.set_timeout(std::time::Duration::from_micros(round * 40));
        let mut client = publisher.client.clone();
        let _ = client.publish(impatient).await;
        publisher.accepts(intent).await;
    }
    let events = publisher.everything().await;
    assert_eq!(sequences(&events), (0..40).collect::<Vec<_>>());
}

/// API-06: a payload is bytes, for everybody on its way.
#[tokio::test(flavor = "multi_thread")]
async fn api_06_payloads_come_back_byte_for_byte() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    // A protobuf message with field numbers that nobody knows, and JSON as only its author writes it.
    let unknown = [0x08_u8, 0x96, 0x01, 0xfa, 0xff, 0xff, 0xff, 0x0f, 0x02, 0xff, 0x00];
    let odd = "{ \"b\": 1.0,\n\t\"a\":9007199254740993, \"a\": [ ] }";
    let text = NewEvent {
        attributes: [("ü".into(), "\u{0}\u{7f}".into()), ("traceparent".into(), "00-1".into())]
            .into(),
        time: Some(Timestamp { seconds: -1, nanos: 999_999_999 }),
        ..new("k2", "sample.made", "", odd)
    };
    let binary = blob("k1", unknown.to_vec());
    publisher.publish(vec![binary, text.clone()]).await.expect("accepted");
    let publisher = publisher.restart();
    let events = publisher.everything().await;
    assert_eq!(events[0].data, Some(event::Data::Binary(unknown.to_vec().into())));
    assert_eq!(events[0].content_type, "application/octet-stream");
    assert_eq!(events[1].data, Some(event::Data::JsonText(odd.into())));
    assert_eq!(events[1].attributes, text.attributes);
    assert_eq!(events[1].time, text.time);
}

fn number(value: f64) -> Option<new_event::Data> {
    let value = Value { kind: Some(Kind::NumberValue(value)) };
    Some(new_event::Data::Json(Struct { fields: [("n".to_owned(), value)].into() }))
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_with_its_field_and_its_limit() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let good = || adjusted("k", "x", 1);
    let far = Timestamp { seconds: 4_102_444_800, nanos: 0 };
    let many: BTreeMap<_, _> = (0..65).map(|n| (format!("a{n}"), String::new())).collect();
    let text = |text: &str| Some(new_event::Data::JsonText(text.into()));
    let cases = [
        ("key", "256", NewEvent { key: String::new(), ..good() }),
        ("key", "256", NewEvent { key: "k".repeat(MAX_KEY_BYTES + 1), ..good() }),
        ("key", "control", NewEvent { key: "a\0b".into(), ..good() }),
        ("type", "128", NewEvent { r#type: String::new(), ..good() }),
        ("type", "letter", NewEvent { r#type: "9lives".into(), ..good() }),
        ("type", "", NewEvent { r#type: "stock adjusted".into(), ..good() }),
        ("type", "128", NewEvent { r#type: "t".repeat(129), ..good() }),
        ("subject", "256", NewEvent { subject: "s".repeat(257), ..good() }),
        ("content_type", "128", NewEvent { content_type: "c".repeat(129), ..good() }),
        ("attributes", "64", NewEvent { attributes: many, ..good() }),
        (
            "attributes",
            "1",
            NewEvent { attributes: [(String::new(), String::new())].into(), ..good() },
        ),
        ("expected_version", "0", at_version(good(), -1)),
        ("first_attempt_time", "300", NewEvent { first_attempt_time: Some(far), ..good() }),
        ("time", "", NewEvent { time: Some(Timestamp { seconds: 0, nanos: -1 }), ..good() }),
        ("json_text", "JSON", NewEvent { data: text("{\"delta\":"), ..good() }),
        ("json.n", "json_text", NewEvent { data: number(9_007_199_254_740_992.0), ..good() }),
        ("json.n", "json_text", NewEvent { data: number(-1e300), ..good() }),
        ("json.n", "finite", NewEvent { data: number(f64::INFINITY), ..good() }),
        ("data.delta", "-1000 to 1000", adjusted("k2", "x", 1_001)),
        ("data.delta", "-1000 to 1000", adjusted("k2", "x", -1_001)),
        (
            "data.delta",
            "integer",
            NewEvent { data: text("{\"delta\":0.5}"), ..adjusted("k2", "x", 1) },
        ),
        ("data", "object", NewEvent { data: text("[1]"), ..adjusted("k2", "x", 1) }),
        ("subject", "item", adjusted("k2", "", 1)),
        ("data.quantity", "1 to 1000", reserved("k2", "x", "t", 1_001, 1)),
    ];
    for (field, limit, event) in cases {
        let refusal =
            refused(publisher.publish(vec![good(), event.clone()]).await, Reason::InvalidField);
        assert_eq!(refusal.fields[0], format!("events[1].{field}"), "{event:?}");
        assert!(refusal.message.contains(&format!("events[1].{field}")), "{refusal:?}");
        assert!(refusal.message.contains(limit), "{limit:?} is missing in {refusal:?}");
    }
    let large = vec![b'x'; MAX_DATA_BYTES + 1];
    let large = blob("k", large);
    let refusal = refused(publisher.publish(vec![large]).await, Reason::EventTooLarge);
    assert_eq!(refusal.number("limit"), MAX_DATA_BYTES as i64);
    let refusal = refused(publisher.publish(Vec::new()).await, Reason::InvalidField);
    assert_eq!(refusal.fields, ["events"]);
    let refusal = refused(
        publisher.publish(adjustments("m", MAX_BATCH_EVENTS + 1)).await,
        Reason::BatchTooLarge,
    );
    assert_eq!(refusal.number("limit"), MAX_BATCH_EVENTS as i64);
    let half = vec![b'x'; MAX_DATA_BYTES];
    let halves = ["h1", "h2", "h3"].map(|key| blob(key, half.clone()));
    refused(publisher.publish(halves.to_vec()).await, Reason::BatchTooLarge);
    refused(publish(&publisher.client, "elsewhere", vec![good()]).await, Reason::LogNotFound);
    refused(publish(&publisher.client, "../main", vec![good()]).await, Reason::InvalidField);
    let mut client = publisher.client.clone();
    let nothing = client.get_receipt(GetReceiptRequest::default()).await;
    assert_eq!(refused(nothing, Reason::InvalidField).fields, ["key"]);

    // Nothing of all this was kept, and the publisher is none the worse for it.
    assert_eq!(publisher.log().await.next_sequence, Some(0));
    assert_eq!(publisher.accepts(good()).await.sequence, Some(0));
}

/// A message over the transport's own limit ends the call, not the service.
#[tokio::test(flavor = "multi_thread")]
async fn an_oversized_message_is_refused_by_the_transport() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let huge = blob("k", vec![0; 8 << 20]);
    let status = publisher.publish(vec![huge]).await.expect_err("8 MiB in one message");
    assert!(
        matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted | Code::InvalidArgument),
        "{status:?}"
    );
    publisher.accepts(adjusted("k", "x", 1)).await;
}

/// The largest batch fits, and comes back in frames that fit too.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_batch_goes_there_and_back() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("m", MAX_BATCH_EVENTS)).await.expect("the most events");
    let half = vec![b'x'; MAX_DATA_BYTES - 1024];
    let halves = ["h1", "h2"].map(|key| blob(key, half.clone()));
    publisher.publish(halves.to_vec()).await.expect("the most bytes");
    let events: Vec<Event> = publisher.everything().await;
    assert_eq!(sequences(&events), (0..1002).collect::<Vec<_>>());
}

/// Kill -9 amid publishes of many clients: what was answered is there, once.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_outlives_a_kill() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let mut producers = JoinSet::new();
    for producer in 0..8 {
        let client = client(publisher.address);
        producers.spawn(async move {
            let mut answered = Vec::new();
            for n in 0.. {
                let intent = adjusted(&format!("{producer}-{n}"), "x", 1);
                match publish(&client, "", vec![intent]).await {
                    Ok(receipts) => answered.extend(receipts),
                    Err(_) => break,
                }
            }
            answered
        });
    }
    wait_until("some hundred events are in", async || {
        (publisher.log().await.next_sequence >= Some(300)).then_some(())
    })
    .await;
    publisher.process.kill();
    let answered: Vec<Receipt> = producers.join_all().await.into_iter().flatten().collect();
    let publisher = publisher.restart();
    let events = publisher.everything().await;
    assert_eq!(sequences(&events), (0..events.len() as i64).collect::<Vec<_>>());
    for receipt in answered {
        let event = &events[receipt.sequence.expect("always set") as usize];
        assert_eq!((&event.key, &event.fingerprint), (&receipt.key, &receipt.fingerprint));
        let repeat = publisher.accepts(adjusted(&receipt.key, "x", 1)).await;
        assert_eq!(without_outcome(&repeat), without_outcome(&receipt));
        assert_eq!(repeat.outcome(), PublishOutcome::Duplicate);
    }
}
