//! The tool for people, against real services.

use std::fmt::Write as _;

use serde_json::Value;

use crate::harness::{
    pair::{Pair, directory},
    process::Ended,
    publisher::Publisher,
    tools::counterfoil,
};

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:?}"))
}

fn lines(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, n| {
        let _ = writeln!(
            text,
            r#"{{"key":"k{n}","type":"stock.adjusted","subject":"item-{}","json":{{"delta":2}}}}"#,
            n % 3
        );
        text
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn publish_counts_what_was_appended_known_and_refused() {
    let pair = Pair::start();
    let url = pair.publisher.url();
    let publish =
        |input: &str| counterfoil(["publish", "--publisher", &url, "-"]).run_with_input(input);
    let first = publish(&lines(2500));
    assert_eq!(first.code(), Some(0), "{first:?}");
    assert!(first.stdout.contains("2,500 appended, 0 duplicate, 0 refused"), "{first:?}");
    let again = publish(&lines(2500));
    assert_eq!(again.code(), Some(0), "{again:?}");
    assert!(again.stdout.contains("0 appended, 2,500 duplicate, 0 refused"), "{again:?}");

    // Refused ones are found, the others are published, in order.
    let mixed = lines(2503).replace(r#""key":"k2501","#, r#""key":"k1","expectedVersion":"7","#);
    let mixed = publish(&mixed);
    assert_eq!(mixed.code(), Some(1), "{mixed:?}");
    assert!(mixed.stdout.contains("2 appended, 2,500 duplicate, 1 refused"), "{mixed:?}");
    assert!(
        mixed.stdout.contains("line 2502") && mixed.stdout.contains("KEY_CONFLICT"),
        "{mixed:?}"
    );
    let malformed =
        publish("{\"key\":\"z0\",\"type\":\"t\"}\n{\"key\":\n{\"key\":\"z2\",\"type\":\"t\"}\n");
    assert_eq!(malformed.code(), Some(2), "{malformed:?}");
    assert!(
        malformed.stderr.contains("line 2") || malformed.stderr.contains(":2"),
        "{malformed:?}"
    );
    let ledger = pair.settles().await;
    assert_eq!(ledger.total, 2 * 2502);
}

/// A log that takes nothing more ends the publishing; lines that were under way by then
/// count for what they got.
#[tokio::test(flavor = "multi_thread")]
async fn publish_stops_at_a_log_that_is_full() {
    for in_flight in ["1", "1024"] {
        let dir = directory();
        let config = "[logs.main]\nmax_events = 100\nwhen_full = \"reject\"\n";
        let publisher = Publisher::at(dir.path()).config(config).start();
        let stopped =
            counterfoil(["publish", "--publisher", &publisher.url(), "--in-flight", in_flight])
                .run_with_input(&lines(2_000));
        assert_eq!(stopped.code(), Some(1), "{stopped:?}");
        assert!(stopped.stdout.contains("100 appended, 0 duplicate, 0 refused"), "{stopped:?}");
        assert!(stopped.stderr.contains("stopped at line 101: LOG_FULL"), "{stopped:?}");
        let under_way = stopped.stderr.contains("under way after it, none was accepted");
        assert_eq!(under_way, in_flight != "1", "{stopped:?}");
        assert_eq!(publisher.log().await.next_sequence, Some(100));
    }
}

/// Each stage of the product on real processes, and each limit, on few events.
#[test]
fn bench_measures_every_stage_and_leaves_nothing_behind() {
    let made = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let (within, beside) = (made(), made());
    let plot = beside.path().join("plot.svg");
    let ended = counterfoil(["bench", "--quick", "--rounds", "1", "--events", "2000", "--json"])
        .args(["--dir".as_ref(), within.path().as_os_str()])
        .args(["--svg".as_ref(), plot.as_os_str()])
        .run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let plot = std::fs::read_to_string(&plot).expect("a plot");
    assert!(plot.contains("live: PublishStream"), "{plot}");
    let table = json(&ended);
    let stages = table["stages"].as_array().expect("a list");
    for group in ["limits", "publish", "replay", "catch-up", "live", "paced"] {
        assert!(stages.iter().any(|stage| stage["group"] == group), "{group}: {table}");
    }
    for stage in stages {
        assert!(stage["eventsPerSecond"]["median"].as_f64() > Some(0.0), "{stage}");
        assert_eq!(stage["ratioTo"].is_null(), stage["ratio"].is_null(), "{stage}");
    }
    assert_eq!(std::fs::read_dir(within.path()).expect("readable").count(), 0);
}

/// Two logs, one with ten times the events of the other.
#[test]
fn bench_tells_what_growth_costs() {
    let within = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let ended =
        counterfoil(["bench", "--growth", "--rounds", "1", "--events", "5000", "--json", "--dir"])
            .arg(within.path())
            .run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let told = json(&ended);
    assert_eq!(told["retainedEvents"], serde_json::json!([500, 5_000]), "{told}");
    for line in told["growth"].as_array().expect("a list") {
        // Processor time is counted in ticks of 10 ms: so few events may take none.
        let least = if line["name"].to_string().contains("CPU") { 0.0 } else { f64::MIN_POSITIVE };
        assert!(line["many"]["median"].as_f64() >= Some(least), "{line}");
    }
    assert_eq!(std::fs::read_dir(within.path()).expect("readable").count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_receipt_tail_and_health_show_what_is() {
    let pair = Pair::start();
    let (publisher, receiver) = (pair.publisher.url(), pair.receiver.url());
    let ended = counterfoil(["publish", "--publisher", &publisher]).run_with_input(&lines(10));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    pair.settles().await;

    let both = ["--publisher", &publisher, "--receiver", &receiver];
    let status = counterfoil(["status", "--json"]).args(both).run();
    assert_eq!(status.code(), Some(0), "{status:?}");
    let status = json(&status);
    assert_eq!(status["publisher"]["log"]["nextSequence"], 10);
    assert_eq!(status["receiver"]["status"]["cursor"]["sequence"], 9);
    let screen = counterfoil(["status"]).args(both).run();
    assert_eq!(screen.code(), Some(0), "{screen:?}");
    assert!(screen.stdout.contains("main") && screen.stdout.contains("receiver"), "{screen:?}");

    let receipt = counterfoil(["receipt", "--json", "--publisher", &publisher, "k3"]).run();
    assert_eq!(json(&receipt)["receipt"]["sequence"], 3, "{receipt:?}");
    let receipt = counterfoil(["receipt", "--publisher", &publisher, "never"]).run();
    assert_eq!(receipt.code(), Some(1), "{receipt:?}");
    assert!(receipt.stdout.contains("NEVER_ACCEPTED"), "{receipt:?}");

    let tail = counterfoil(["tail", "--publisher", &publisher, "--from", "7"]).run();
    let keys: Vec<_> = tail
        .stdout
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["key"].clone())
        .collect();
    assert_eq!(keys, ["k7", "k8", "k9"], "{tail:?}");
    let beyond = counterfoil(["tail", "--publisher", &publisher, "--from", "70"]).run();
    assert_eq!(beyond.code(), Some(1), "{beyond:?}");
    assert!(beyond.stderr.contains("10"), "{beyond:?}");

    for url in [&publisher, &receiver] {
        assert_eq!(counterfoil(["health", url]).run().code(), Some(0));
    }
    let (down, dead) = (pair.receiver, receiver);
    drop(down);
    assert_eq!(counterfoil(["health", &dead]).run().code(), Some(1));
    let status = counterfoil(["status", "--publisher", &publisher, "--receiver", &dead]).run();
    assert_eq!(status.code(), Some(1), "one end is down: {status:?}");
    assert!(status.stdout.contains("main"), "the other is shown all the same: {status:?}");
}

/// What `tail` prints `publish` can read.
#[tokio::test(flavor = "multi_thread")]
async fn tail_into_publish_copies_a_log() {
    let (from, to) = (directory(), directory());
    let (from, to) = (Publisher::start(from.path()), Publisher::start(to.path()));
    let ended = counterfoil(["publish", "--publisher", &from.url()]).run_with_input(&lines(50));
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let printed = counterfoil(["tail", "--publisher", &from.url()]).run().stdout;
    let copied = counterfoil(["publish", "--publisher", &to.url()]).run_with_input(&printed);
    assert!(copied.stdout.contains("50 appended"), "{copied:?}");
    let chain = async |publisher: &Publisher| publisher.log().await.head.expect("a head").chain;
    assert_eq!(chain(&from).await, chain(&to).await, "the same history");
}
