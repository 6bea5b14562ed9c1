//! Lets both services live made-up histories, killed all the while.

use std::collections::BTreeMap;

use counterfoil::proto::crash;

use super::{
    compare::{Told, compare, model},
    history::Maker,
    pages,
};
use crate::harness::{
    chance::Chance,
    pair::directory,
    publisher::{Publisher, publish},
    receiver::{Receiver, Setup},
    tools::{counterfoil, has, skip},
};

/// Events of one history.
const EVENTS: usize = 240;
/// Histories of one projection in a test run.
const HISTORIES: u64 = 3;

/// A number from the environment.
fn told(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_are_what_the_model_says() {
    const NEVER_MISSING: [&str; 4] = ["APPLIED", "IGNORED", "REJECTED", "SKIPPED"];
    histories_of("orders", &NEVER_MISSING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounts_are_what_the_model_says() {
    const NEVER_MISSING: [&str; 4] = ["APPLIED", "IGNORED", "REJECTED", "SKIPPED"];
    histories_of("accounts", &NEVER_MISSING).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn daily_counters_are_what_the_model_says() {
    histories_of("daily", &["APPLIED", "IGNORED", "SKIPPED"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inventory_is_what_the_model_says() {
    const NEVER_MISSING: [&str; 4] = ["APPLIED", "IGNORED", "REJECTED", "SKIPPED"];
    histories_of("inventory", &NEVER_MISSING).await;
}

/// Several histories from seeds that are printed, each outcome of `never_missing` among
/// what they come to.
async fn histories_of(projection: &str, never_missing: &[&str]) {
    if !has("python3") {
        skip!("python3 is missing");
    }
    let again = told("COUNTERFOIL_PROJECTION_SEED");
    let first = again.unwrap_or_else(|| Chance::new().below(1 << 48));
    let count = told("COUNTERFOIL_PROJECTION_HISTORIES").unwrap_or(HISTORIES);
    let mut outcomes = BTreeMap::<String, usize>::new();
    for seed in (first..).take(if again.is_some() { 1 } else { count as usize }) {
        println!("{projection}: COUNTERFOIL_PROJECTION_SEED={seed}");
        for row in history(projection, seed).await.ledger {
            *outcomes.entry(row.outcome).or_default() += 1;
        }
    }
    println!("{projection}: {outcomes:?}");
    for outcome in never_missing {
        assert!(again.is_some() || outcomes.contains_key(*outcome), "{outcome}: never");
    }
}

/// One history, and what its model says to it.
async fn history(projection: &str, seed: u64) -> Told {
    let dir = directory();
    let mut chance = Chance::seeded(!seed);
    let mut maker = Maker::new(seed);
    let setup = Publisher::at(dir.path()).config("[logs.main]\npayloads = \"any\"\n");
    let mut publisher = setup.start();
    let file = format!("{}/projections/{projection}/projection.toml", env!("CARGO_MANIFEST_DIR"));
    let setup = Receiver::at(dir.path(), &publisher.url())
        .projection(file)
        .arg("--on-error=skip")
        .arg("--apply-attempts=1");
    let mut receiver = setup.start();
    let mut published = 0;
    while published < EVENTS {
        let events: Vec<_> = (0..=chance.below(40)).map(|_| maker.next(projection)).collect();
        published += events.len();
        // The second time is a repetition: it gets the same receipts, and no more events.
        for _ in 0..=chance.below(2) {
            publish(&publisher.client, "", events.clone()).await.expect("accepted");
        }
        chance.moment(40).await;
        match chance.below(6) {
            0 | 1 => {
                receiver.process.kill();
                receiver = receiver.restart();
            }
            2 | 3 => {
                let points = [&crash::RECEIVER[..], &crash::RECEIVER_SKIPPING[..2]].concat();
                let point = *chance.one_of(&points);
                let after = chance.below(5) as u32;
                receiver = dying(receiver, |setup| setup.dies_at(point, after));
            }
            4 => {
                publisher.process.kill();
                publisher = publisher.restart();
            }
            _ => {}
        }
        if !receiver.process.runs() {
            receiver = receiver.restart();
        }
    }
    // One that is still to die at a crash point would do so now.
    receiver = receiver.restart();
    receiver.applies(publisher.log().await.next_sequence.expect("always set") - 1).await;
    let tail = ["tail", "--publisher", &publisher.url(), "--from", "0"];
    let history = counterfoil(tail).run();
    assert_eq!(history.code(), Some(0), "{history:?}");
    let told = model(projection, &history.stdout);
    compare(receiver.db(), &told, &history.stdout);
    let verified = counterfoil(["verify", "--publisher", &publisher.url(), "--db"]);
    let verified = verified.arg(receiver.db()).run();
    assert_eq!(verified.code(), Some(0), "both ends are equal: {verified:?}");
    pages::make_up_the_table(projection, &receiver).await;
    told
}

/// The receiver's successor, which may die before it listens: then the one after that.
fn dying(receiver: Receiver, armed: impl FnOnce(Setup) -> Setup) -> Receiver {
    let setup = receiver.successor();
    drop(receiver);
    armed(setup.clone()).try_start().unwrap_or_else(|ended| {
        assert!(ended.by_signal(), "{ended:?}");
        setup.start()
    })
}
