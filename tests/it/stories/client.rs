//! What callers of the client module may rely on: each call has one receipt, whatever
//! happens to streams, links and publishers meanwhile.

use std::collections::BTreeSet;

use counterfoil::{
    client::{PublishError, Publisher as Caller, Settings},
    proto::{
        pb::{PublishOutcome, Receipt},
        refusal::Reason,
    },
};
use tokio::task::JoinSet;

use crate::harness::{
    chance::Chance,
    events::{adjusted, at_version, sequences},
    pair::directory,
    proxy::{Link, Proxy},
    publisher::Publisher,
    wait::wait_until,
};

const CALLERS: usize = 128;

/// A client that does not give up.
fn caller(url: &str) -> Caller {
    Caller::connect(Settings { attempts: None, ..Settings::new(url) }).expect("a URL")
}

/// Callers that publish one event after another, so many each.
fn callers(caller: &Caller, events: usize) -> JoinSet<Vec<Receipt>> {
    let mut callers = JoinSet::new();
    for n in 0..CALLERS {
        let caller = caller.clone();
        callers.spawn(async move {
            let mut receipts = Vec::new();
            for m in 0..events {
                let event = adjusted(&format!("{n}-{m}"), "x", 1);
                receipts.push(caller.publish(event).await.expect("a receipt"));
            }
            receipts
        });
    }
    callers
}

/// Each caller has its receipts, and the log has their events, once and in each
/// caller's order.
async fn each_event_once(publisher: &Publisher, receipts: Vec<Vec<Receipt>>) {
    for of_caller in &receipts {
        let places: Vec<_> = of_caller.iter().map(|receipt| receipt.sequence).collect();
        assert!(places.is_sorted(), "{places:?}");
    }
    let receipts: Vec<_> = receipts.into_iter().flatten().collect();
    let events = publisher.everything().await;
    assert_eq!(sequences(&events), (0..receipts.len() as i64).collect::<Vec<_>>());
    let places: BTreeSet<_> = receipts.iter().map(|receipt| receipt.sequence).collect();
    assert_eq!(places.len(), receipts.len(), "two receipts at one place");
    for receipt in receipts {
        let event = &events[receipt.sequence.expect("always set") as usize];
        assert_eq!((&event.key, &event.fingerprint), (&receipt.key, &receipt.fingerprint));
    }
}

/// Until the log has so many more events.
async fn goes_on(publisher: &Publisher, more: i64) {
    let from = publisher.log().await.next_sequence.expect("always set");
    wait_until("callers go on", async || {
        let next = publisher.try_log().await.ok()?.next_sequence?;
        (next >= from + more).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_and_twenty_eight_callers_outlive_kills_of_the_publisher() {
    let dir = directory();
    let mut chance = Chance::new();
    let mut publisher = Publisher::start(dir.path());
    let caller = caller(&publisher.url());
    let callers = callers(&caller, 100);
    for _ in 0..4 {
        goes_on(&publisher, 1_000).await;
        chance.moment(20).await;
        publisher.process.kill();
        publisher = publisher.restart();
    }
    each_event_once(&publisher, callers.join_all().await).await;
    assert!(caller.repeated() > 0, "no kill has hit a request in flight");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_outlive_an_ending_and_its_restart() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let caller = caller(&publisher.url());
    let callers = callers(&caller, 40);
    for _ in 0..2 {
        goes_on(&publisher, 1_000).await;
        let successor = publisher.successor();
        assert_eq!(publisher.terminate().code(), Some(0));
        publisher = successor.start();
    }
    each_event_once(&publisher, callers.join_all().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_outlive_a_link_that_breaks_again_and_again() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let caller = caller(&proxy.url());
    let callers = callers(&caller, 60);
    for _ in 0..6 {
        goes_on(&publisher, 500).await;
        proxy.cut();
    }
    each_event_once(&publisher, callers.join_all().await).await;
    assert!(caller.repeated() > 0, "no cut has hit a request in flight");
}

/// The event is in, the answer is lost: the repeat brings the receipt.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_is_found_again() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let proxy = Proxy::to(publisher.address).await;
    let caller = caller(&proxy.url());
    caller.publish(adjusted("before", "x", 1)).await.expect("a receipt");
    proxy.set(Link::DeafClient);
    let lost = caller.submit(vec![adjusted("lost", "x", 1)]).await.expect("there is room");
    wait_until("the event is in", async || {
        (publisher.log().await.next_sequence == Some(2)).then_some(())
    })
    .await;
    proxy.set(Link::Open);
    proxy.cut();
    let receipt = lost.await.expect("a receipt").remove(0);
    assert_eq!((receipt.sequence, receipt.outcome()), (Some(1), PublishOutcome::Duplicate));
    assert_eq!(publisher.log().await.next_sequence, Some(2));
}

/// One caller's refusal is its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_goes_to_its_caller_alone() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let caller = caller(&publisher.url());
    let cases = [
        (vec![adjusted("a", "x", 1)], None),
        (vec![adjusted("a", "x", 2)], Some(Reason::KeyConflict)),
        (vec![at_version(adjusted("b", "x", 1), 7)], Some(Reason::StaleVersion)),
        (vec![adjusted("", "x", 1)], Some(Reason::InvalidField)),
        (Vec::new(), Some(Reason::InvalidField)),
        (vec![adjusted("a", "x", 1), adjusted("b", "x", 1)], Some(Reason::PartialDuplicate)),
        (vec![adjusted("b", "x", 1), adjusted("c", "x", 1)], None),
    ];
    let mut submitted = Vec::new();
    for (events, expected) in cases {
        let count = events.len();
        submitted.push((caller.submit(events).await.expect("there is room"), count, expected));
    }
    for (submitted, count, expected) in submitted {
        match (submitted.await, expected) {
            (Ok(receipts), None) => assert_eq!(receipts.len(), count),
            (Err(PublishError::Refused(status)), Some(reason)) => {
                let error = PublishError::Refused(status);
                assert_eq!(error.reason(), Some(reason), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(publisher.log().await.next_sequence, Some(3));
}

/// Where attempts are bounded the caller is told what is known; the same call later
/// settles it.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_whose_publisher_stays_away_is_told_so() {
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    let settings = Settings { attempts: Some(2), ..Settings::new(publisher.url()) };
    let caller = Caller::connect(settings).expect("a URL");
    caller.publish(adjusted("before", "x", 1)).await.expect("a receipt");
    publisher.process.kill();
    let error = caller.publish(adjusted("k", "x", 1)).await.expect_err("nobody is there");
    let told = matches!(error, PublishError::NotSent { .. } | PublishError::Unanswered { .. });
    assert!(told, "{error:?}");
    let publisher = publisher.restart();
    let receipt = caller.publish(adjusted("k", "x", 1)).await.expect("a receipt");
    assert_eq!(receipt.sequence, Some(1));
    assert_eq!(publisher.log().await.next_sequence, Some(2));
}
