//! The services as a stranger meets them, with grpcurl and reflection alone.

use counterfoil::proto::{
    pb::{QueryRequest, ReceiverState, WaitAppliedRequest, WatchStatusRequest},
    refusal::Reason,
};
use prost_types::{Struct, Value, value::Kind};
use serde_json::Value as Json;
use tonic::Request;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{v1, v1alpha};

use crate::harness::{
    events::{adjusted, adjustments, cursors},
    pair::{Pair, directory},
    process::{Ended, Launch},
    publisher::{Publisher, channel},
    receiver::Receiver,
    refusal::refused,
    tools::{grpcurl, has, skip},
    wait::within,
};

const PUBLISHER: &str = "counterfoil.v1.PublisherService";
const RECEIVER: &str = "counterfoil.v1.ReceiverService";

/// grpcurl's answer as JSON.
fn asks(address: impl ToString, method: &str, request: &str) -> Json {
    let ended = grpcurl(["-d", request, &address.to_string(), method]);
    assert_eq!(ended.code(), Some(0), "{method} {request}: {ended:?}");
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

/// API-01: by reflection only, old release included.
#[tokio::test(flavor = "multi_thread")]
async fn api_01_a_stranger_finds_every_service() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let pair = Pair::start();
    for (address, service) in
        [(pair.publisher.address, PUBLISHER), (pair.receiver.address, RECEIVER)]
    {
        let address = address.to_string();
        let listed = grpcurl([address.as_str(), "list"]);
        for name in [service, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"] {
            assert!(listed.stdout.contains(name), "{name} is missing: {listed:?}");
        }
        let described = grpcurl([address.as_str(), "describe", service]);
        assert_eq!(described.code(), Some(0), "{described:?}");
        assert!(described.stdout.contains("rpc "), "{described:?}");
        let health = asks(&address, "grpc.health.v1.Health/Check", "{}");
        assert_eq!(health["status"], "SERVING");
        let request = format!(r#"{{"service":"{service}"}}"#);
        assert_eq!(asks(&address, "grpc.health.v1.Health/Check", &request)["status"], "SERVING");
    }
    let described = grpcurl([
        pair.publisher.address.to_string().as_str(),
        "describe",
        "counterfoil.v1.NewEvent",
    ]);
    assert!(described.stdout.contains("Idempotency key"), "comments come along: {described:?}");
}

/// API-01: both versions of reflection.
#[tokio::test(flavor = "multi_thread")]
async fn api_01_reflection_speaks_v1_and_v1alpha() {
    let pair = Pair::start();
    for (address, service) in
        [(pair.publisher.address, PUBLISHER), (pair.receiver.address, RECEIVER)]
    {
        let ask = v1::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
                String::new(),
            )),
        };
        let mut client =
            v1::server_reflection_client::ServerReflectionClient::new(channel(address));
        let answer = client.server_reflection_info(tokio_stream::once(ask)).await.expect("v1");
        let answer = answer.into_inner().message().await.expect("an answer").expect("one");
        assert!(format!("{answer:?}").contains(service), "{answer:?}");

        let ask = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(
                v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
            ),
        };
        let mut client =
            v1alpha::server_reflection_client::ServerReflectionClient::new(channel(address));
        let answer = client.server_reflection_info(tokio_stream::once(ask)).await.expect("v1alpha");
        let answer = answer.into_inner().message().await.expect("an answer").expect("one");
        assert!(format!("{answer:?}").contains(service), "{answer:?}");
    }
}

/// API-02: every example of the README, verbatim but for the port. Those on a projection of
/// one's own, on port 7603, are in `newcomer`.
#[tokio::test(flavor = "multi_thread")]
async fn api_02_the_examples_work_as_printed() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let pair = Pair::start();
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"))
        .expect("README.md");
    let mut ran = 0;
    let (before, after) = readme.split_once("\n## Tables of your own").expect("its section");
    let after = after.split_once("\n## ").map_or("", |(_, after)| after);
    let lines = before.lines().chain(after.lines());
    for line in lines.filter(|line| line.starts_with("grpcurl ")) {
        let here = line
            .replace("localhost:7601", &pair.publisher.address.to_string())
            .replace("localhost:7602", &pair.receiver.address.to_string());
        let ended: Ended = Launch::new("sh").args(["-c", &here]).run();
        // One example shows a refusal.
        let shown = ended.code() == Some(0) || ended.stderr.contains("KEY_CONFLICT");
        assert!(shown, "{line}\n{ended:?}");
        // A stream's answers stand one after the other.
        let answers = serde_json::Deserializer::from_str(&ended.stdout).into_iter::<Json>();
        let answers: Result<Vec<_>, _> = answers.collect();
        let answers = answers.unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(answers.is_empty(), ended.code() != Some(0), "{line}\n{ended:?}");
        ran += 1;
    }
    assert!(ran >= 5, "the README has examples");
}

/// API-02: numbers and bytes as protobuf's JSON has them, zeros shown.
#[tokio::test(flavor = "multi_thread")]
async fn api_02_zeros_that_mean_something_are_shown() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let pair = Pair::start();
    let address = pair.publisher.address;
    let log = asks(address, &format!("{PUBLISHER}/GetLog"), "{}");
    assert_eq!(
        (&log["log"]["floorSequence"], &log["log"]["nextSequence"]),
        (&"0".into(), &"0".into())
    );
    let event = r#"{"events":[{"key":"k1","type":"stock.adjusted","subject":"camera","json":{"delta":3}}]}"#;
    let answer = asks(address, &format!("{PUBLISHER}/Publish"), event);
    let receipt = &answer["receipts"][0];
    assert_eq!(
        (&receipt["sequence"], &receipt["outcome"]),
        (&"0".into(), &"PUBLISH_OUTCOME_APPENDED".into())
    );
    let again = asks(address, &format!("{PUBLISHER}/Publish"), event);
    assert_eq!(again["receipts"][0]["outcome"], "PUBLISH_OUTCOME_DUPLICATE");
    let shown = asks(address, &format!("{PUBLISHER}/GetReceipt"), r#"{"key":"k1"}"#);
    assert_eq!(shown["state"], "RECEIPT_STATE_ACCEPTED");
    pair.receiver.applies(0).await;
    let receiver = pair.receiver.address;
    let entry = asks(receiver, &format!("{RECEIVER}/GetLedgerEntry"), r#"{"sequence":"0"}"#);
    assert_eq!(
        (&entry["entry"]["sequence"], &entry["entry"]["outcome"]),
        (&"0".into(), &"OUTCOME_APPLIED".into())
    );
    let query = r#"{"name":"stock","parameters":{"item":"camera"}}"#;
    let rows = asks(receiver, &format!("{RECEIVER}/Query"), query);
    assert_eq!(
        rows["rows"][0],
        serde_json::json!({"item": "camera", "available": 3, "version": 1})
    );
}

/// API-09: reasons and numbers in clear text, for a client that knows nothing.
#[tokio::test(flavor = "multi_thread")]
async fn api_09_errors_can_be_read_with_reflection_alone() {
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config("[logs.main]\nmax_events = 5\n").start();
    let mut receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    receipts.extend(publisher.publish(adjustments("l", 3)).await.expect("accepted"));
    assert_eq!(cursors(&receipts).len(), 8);
    let new_event = |key: &str, extra: &str| {
        format!(
            r#"{{"events":[{{"key":"{key}","type":"stock.adjusted","subject":"item-0","json":{{"delta":9}}{extra}}}]}}"#
        )
    };
    let cases = [
        (
            "Publish",
            new_event("k-0", ""),
            6,
            vec!["KEY_CONFLICT", "\"sequence\":\"0\"", "fingerprint"],
        ),
        (
            "Publish",
            new_event("n", r#","expectedVersion":"9""#),
            10,
            vec!["STALE_VERSION", "\"version\":\"2\""],
        ),
        ("Publish", new_event("", ""), 3, vec!["INVALID_FIELD", "events[0].key"]),
        (
            "Replay",
            "{}".to_owned(),
            11,
            vec!["CURSOR_EXPIRED", "\"floor\":\"3\"", "\"next\":\"8\""],
        ),
        ("Replay", r#"{"start_at":99}"#.to_owned(), 3, vec!["INVALID_FIELD", "start_at"]),
        ("GetLog", r#"{"log":"other"}"#.to_owned(), 5, vec!["LOG_NOT_FOUND"]),
    ];
    for (method, request, code, told) in cases {
        let ended = grpcurl([
            "-d",
            &request,
            &publisher.address.to_string(),
            &format!("{PUBLISHER}/{method}"),
        ]);
        assert_eq!(ended.code(), Some(64 + code), "{request}: {ended:?}");
        for part in told.into_iter().chain(["counterfoil"]) {
            assert!(ended.stderr.contains(part), "{part} is missing: {ended:?}");
        }
    }
}

/// API-08: a receiver's refusals, and what they do not say.
#[tokio::test(flavor = "multi_thread")]
async fn api_08_a_receivers_refusals_name_what_would_be_right() {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "a", 1)]).await;
    let query = async |request: QueryRequest| pair.receiver.client.clone().query(request).await;
    let unknown = QueryRequest { name: "secrets".into(), ..Default::default() };
    let refusal = refused(query(unknown).await, Reason::NotFound);
    for declared in ["stock", "reservations", "total"] {
        assert!(refusal.message.contains(declared), "{refusal:?}");
    }
    let odd = Value { kind: Some(Kind::StringValue("x'; DROP TABLE stock; --".into())) };
    let parameters = |name: &str| Some(Struct { fields: [(name.to_owned(), odd.clone())].into() });
    let request =
        QueryRequest { name: "stock".into(), parameters: parameters("iten"), ..Default::default() };
    refused(query(request).await, Reason::InvalidField);
    let request =
        QueryRequest { name: "stock".into(), parameters: parameters("item"), ..Default::default() };
    assert!(query(request).await.expect("a value is only a value").into_inner().rows.is_empty());
    let mut later = Request::new(QueryRequest {
        name: "total".into(),
        min_sequence: Some(7),
        ..Default::default()
    });
    later.set_timeout(std::time::Duration::from_secs(1));
    let status = within("a query that waits", pair.receiver.client.clone().query(later))
        .await
        .expect_err("not there yet");
    assert!(
        matches!(
            status.code(),
            tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::DeadlineExceeded
        ),
        "{status:?}"
    );
    let neither = counterfoil::proto::pb::GetLedgerEntryRequest { by: None };
    refused(pair.receiver.client.clone().get_ledger_entry(neither).await, Reason::InvalidField);
    let rows = pair.receiver.query("total").await.expect("a row").rows;
    assert_eq!(rows[0].fields["total"].kind, Some(Kind::NumberValue(1.0)));
}

/// One's own write is read back: publish, then ask with its sequence.
#[tokio::test(flavor = "multi_thread")]
async fn a_query_waits_for_the_sequence_it_is_given() {
    let pair = Pair::start();
    for n in 0..20 {
        let receipt = pair.publisher.accepts(adjusted(&format!("k{n}"), "a", 1)).await;
        let request = QueryRequest {
            name: "total".into(),
            min_sequence: receipt.sequence,
            ..Default::default()
        };
        let answer =
            pair.receiver.client.clone().query(request).await.expect("in time").into_inner();
        assert!(answer.sequence >= receipt.sequence, "{answer:?}");
        assert_eq!(answer.rows[0].fields["total"].kind, Some(Kind::NumberValue(f64::from(n + 1))));
    }
}

/// Who watches is told now, and of changes.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_tells_of_changes_and_health_follows_the_state() {
    let pair = Pair::with(|publisher| publisher.config("[logs.main]\npayloads = \"any\""));
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    let mut client = pair.receiver.client.clone();
    let mut watch = client.watch_status(WatchStatusRequest {}).await.expect("a watch").into_inner();
    let first = within("the status now", watch.message()).await.expect("told").expect("now");
    assert_eq!(first.status.expect("a status").receiver, "receiver");
    pair.publisher.accepts(adjusted("k0", "a", 1)).await;
    within("the status after the commit", async {
        while let Some(told) = watch.message().await.expect("told") {
            let cursor = told.status.and_then(|status| status.cursor);
            if cursor.and_then(|cursor| cursor.sequence) == Some(0) {
                return;
            }
        }
    })
    .await;
    // An event that cannot be applied: HALTED, and not healthy.
    pair.publisher.accepts(adjusted("bad", "a", 5000)).await;
    let mut health = HealthClient::new(channel(pair.receiver.address));
    let request = HealthCheckRequest { service: RECEIVER.into() };
    let mut watch = health.watch(request).await.expect("health can be watched").into_inner();
    within("health turns", async {
        while watch.message().await.expect("told").expect("open").status()
            != ServingStatus::NotServing
        {}
    })
    .await;
    let waiting =
        pair.receiver.client.clone().wait_applied(WaitAppliedRequest { sequence: 1 }).await;
    refused(waiting, Reason::ReceiverHalted);
    let restarted: Receiver = pair.receiver.restart();
    assert_eq!(
        restarted.waits_for_state(ReceiverState::Halted).await.failure.expect("why").sequence,
        Some(1)
    );
}
