//! Reading what a receiver's projection has made: one's own writes, page by page, and beside
//! a receiver that is busy, which nobody who reads holds up.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use counterfoil::proto::{
    pb::{ListQueriesRequest, QueryRequest, QueryResponse},
    refusal::Reason,
};
use prost_types::value::Kind;
use serde_json::Value as Json;
use tonic::Status;

use crate::harness::{
    events::{adjusted, reserved},
    files::length,
    pair::{Pair, directory},
    publisher::Publisher,
    receiver::{Client, Receiver},
    refusal::refused,
    tools::counterfoil,
    wait::within,
};

async fn asks(client: &Client, request: QueryRequest) -> Result<QueryResponse, Status> {
    let answer = within("Query", client.clone().query(request)).await?;
    Ok(answer.into_inner())
}

fn stock(page_size: i32, page_token: &str) -> QueryRequest {
    QueryRequest {
        name: "stock".into(),
        page_size,
        page_token: page_token.into(),
        ..QueryRequest::default()
    }
}

fn json_lines(text: &str) -> Vec<Json> {
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

/// As a person does it: publish, take the sequence of the receipt, ask with it.
#[tokio::test(flavor = "multi_thread")]
async fn one_reads_ones_own_write() {
    let pair = Pair::start();
    let (publisher, receiver) = (pair.publisher.url(), pair.receiver.url());
    for n in 1..=10 {
        let line = format!(
            r#"{{"key":"k{n}","type":"stock.adjusted","subject":"camera","json":{{"delta":2}}}}"#
        );
        let published =
            counterfoil(["publish", "--publisher", &publisher, "-"]).run_with_input(&line);
        assert_eq!(published.code(), Some(0), "{published:?}");
        let key = format!("k{n}");
        let receipt = counterfoil(["receipt", "--publisher", &publisher, &key, "--json"]).run();
        let receipt: Json = serde_json::from_str(&receipt.stdout).expect("JSON");
        let sequence = receipt["receipt"]["sequence"].to_string();
        let asked = ["query", "--receiver", &receiver, "stock", "item=camera", "--min-sequence"];
        let answer = counterfoil(asked).arg(&sequence).arg("--json").run();
        assert_eq!(answer.code(), Some(0), "{answer:?}");
        let expected = serde_json::json!({"available": 2 * n, "item": "camera", "version": n});
        assert_eq!(json_lines(&answer.stdout), [expected]);
    }
}

/// A newcomer sees what there is to ask, as text and over gRPC.
#[tokio::test(flavor = "multi_thread")]
async fn the_declared_queries_are_listed() {
    let pair = Pair::start();
    let mut client = pair.receiver.client.clone();
    let listed = client.list_queries(ListQueriesRequest {}).await.expect("answered").into_inner();
    let names: Vec<_> = listed.queries.iter().map(|query| query.name.as_str()).collect();
    assert_eq!(names, ["stock", "reservations", "total"]);
    assert_eq!(listed.queries[0].parameters, ["item"]);
    assert_eq!(listed.queries[1].page_by, ["key"]);
    for flag in [None, Some("--list")] {
        let shown = counterfoil(["query", "--receiver", &pair.receiver.url()]).args(flag).run();
        assert!(shown.stdout.contains("stock item=…\n"), "{shown:?}");
    }
    pair.carries(vec![adjusted("k", "camera", 5), reserved("r", "camera", "t", 2, 1)]).await;
    let table = counterfoil(["query", "--receiver", &pair.receiver.url(), "reservations"]).run();
    assert_eq!(table.stdout, "key  task  item    quantity\nr    t     camera         2\n");
    let wrong = counterfoil(["query", "--receiver", &pair.receiver.url(), "stock", "camera"]).run();
    assert_eq!(wrong.code(), Some(2), "{wrong:?}");
}

/// API-06, and every row once: page by page, also while the rows change.
#[tokio::test(flavor = "multi_thread")]
async fn pages_have_every_row_once() {
    let pair = Pair::start();
    let events = (0..2_500).map(|n| adjusted(&format!("k{n}"), &format!("item-{n:04}"), 1));
    for batch in events.collect::<Vec<_>>().chunks(1_000) {
        pair.carries(batch.to_vec()).await;
    }
    let client = &pair.receiver.client;
    let (mut items, mut token, mut sequence) = (Vec::new(), String::new(), 0);
    for page in 0.. {
        let answer = asks(client, stock(700, &token)).await.expect("a page");
        assert_eq!(answer.columns, ["item", "available", "version"]);
        assert!(answer.sequence >= Some(sequence), "each page says how far it is");
        sequence = answer.sequence.expect("always set");
        items.extend(answer.rows.into_iter().map(|row| match &row.fields["item"].kind {
            Some(Kind::StringValue(item)) => item.clone(),
            other => panic!("{other:?}"),
        }));
        token = answer.next_page_token;
        assert_eq!(answer.truncated, !token.is_empty());
        if token.is_empty() {
            break;
        }
        // Behind the page, and before it: what is there all the time comes once.
        let [behind, before] = [format!("x-{page}"), format!("a-{page}")];
        pair.carries(vec![adjusted(&behind, "item-1300x", 1), adjusted(&before, "a", 1)]).await;
    }
    let expected = (0..2_500).map(|n| format!("item-{n:04}"));
    let mut expected: Vec<_> = expected.chain(["item-1300x".to_owned()]).collect();
    expected.sort();
    assert_eq!(items, expected);

    // All of it by the tool; without --all it says that there is more.
    let url = pair.receiver.url();
    let all = counterfoil(["query", "--receiver", &url, "stock", "--all", "--json"]).run();
    assert_eq!(json_lines(&all.stdout).len(), 2_502);
    assert_eq!(all.stderr, "");
    let some = counterfoil(["query", "--receiver", &url, "stock", "--json"]).run();
    assert_eq!(json_lines(&some.stdout).len(), 1_000);
    assert!(some.stderr.contains("--all"), "{some:?}");

    // A token holds for what it was given for.
    let page = asks(client, stock(1, "")).await.expect("a page");
    let token = page.next_page_token.as_str();
    let other = |name: &str| QueryRequest { name: name.into(), ..stock(1, token) };
    for request in [other("total"), other("reservations"), stock(1, "x"), stock(-1, "")] {
        refused(asks(client, request).await, Reason::InvalidField);
    }
    let again = asks(client, stock(1_000_000, token)).await.expect("another size is no matter");
    assert_eq!(again.rows.len(), 1_000);
}

const EVENTS: usize = 200_000;
const CLIENTS: usize = 4;
/// The file grows to 16 MiB before readers are asked to wait, and a little while they end.
const MOST: u64 = 48 << 20;

/// Readers that overlap without a pause hold up neither the writer nor the write-ahead log,
/// and each gets its answer.
#[tokio::test(flavor = "multi_thread")]
async fn readers_without_a_pause_keep_the_write_ahead_log_bounded() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for batch in 0..EVENTS / 1_000 {
        let event = |n: usize| {
            let n = batch * 1_000 + n;
            adjusted(&format!("k{n}-{}", "x".repeat(100)), &format!("item-{}", n % 1_000), 1)
        };
        publisher.publish((0..1_000).map(event).collect()).await.expect("accepted");
    }
    let receiver = Receiver::start(dir.path(), &publisher.url());
    let mut wal = receiver.db().as_os_str().to_owned();
    wal.push("-wal");
    let wal = std::path::PathBuf::from(wal);
    let over = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = receiver.client.clone();
            let (over, answered) = (over.clone(), answered.clone());
            tokio::spawn(async move {
                let mut last = -1;
                while !over.load(Ordering::Relaxed) {
                    let answer = asks(&client, stock(0, "")).await.expect("each is answered");
                    let sequence = answer.sequence.expect("always set");
                    assert!(sequence >= last, "reads never go back");
                    last = sequence;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let applied = async { receiver.applies(EVENTS as i64 - 1).await };
    let mut applied = std::pin::pin!(applied);
    let mut peak = 0;
    loop {
        tokio::select! {
            () = &mut applied => break,
            () = tokio::time::sleep(std::time::Duration::from_millis(5)) => {
                peak = peak.max(length(&wal));
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.expect("every query was answered");
    }
    let answered = answered.load(Ordering::Relaxed);
    println!("{answered} queries; the write-ahead log had up to {peak} bytes");
    assert!(answered >= CLIENTS as u64, "{answered}");
    assert!(peak < MOST, "{peak} bytes, {answered} queries");
    assert_eq!(receiver.ledger().total, EVENTS as i64);
}
