//! How long a key is known, and what is said afterwards: a receipt outlives its event,
//! a late retry is refused and never executed twice, and time decides by one clock
//! that never goes back.

use std::collections::HashSet;

use counterfoil::proto::{
    pb::{GetReceiptRequest, NewEvent, PublishOutcome, Receipt, ReceiptState},
    refusal::Reason,
    wire::checked_time,
};
use prost_types::Timestamp;
use tokio::{sync::watch, task::JoinSet};

use crate::harness::{
    chance::Chance,
    clock::{HOUR_MS, SteppedClock},
    events::{adjusted, at_version, first_attempted, uuid_v7, without_outcome},
    files,
    pair::directory,
    publish_stream::PublishStream,
    publisher::{Client, Publisher, Setup, publish},
    refusal::refused,
    wait::wait_until,
};

/// Everything that is older than an hour is truncated, and each event has a file of
/// its own, so that it really goes.
fn config(key_window: &str) -> String {
    format!(
        "[logs.main]\nmax_age = \"1h\"\nsegment_bytes = 1\nkey_window = \"{key_window}\"\n\
         max_untimed_keys = 3\n"
    )
}

/// A publisher that goes by a stepped clock.
fn setup(dir: &std::path::Path, key_window: &str) -> (SteppedClock, Setup) {
    let clock = SteppedClock::new(dir);
    let setup = Publisher::at(dir).clock(&clock).config(&config(key_window));
    (clock, setup)
}

fn millis(time: &Option<Timestamp>) -> i64 {
    let time = time.as_ref().expect("a time");
    checked_time(*time, "a time").expect("well-formed").unix_millis()
}

/// Until all events have been dropped, and their storage given back.
async fn truncated(publisher: &Publisher) {
    wait_until("all events have been truncated", async || {
        let log = publisher.log().await;
        let gone =
            log.floor_sequence == log.next_sequence && files::segments(publisher.dir()).len() <= 1;
        gone.then_some(())
    })
    .await;
    assert!(publisher.everything().await.is_empty());
}

/// Until the key floor lies above a time.
async fn floor_passes(publisher: &Publisher, time_ms: i64) {
    wait_until("the key floor has passed", async || {
        (millis(&publisher.log().await.key_floor_time) > time_ms).then_some(())
    })
    .await;
}

/// What GetReceipt says of a key, with or without its time.
async fn state(publisher: &Publisher, key: &str, time_ms: Option<i64>) -> ReceiptState {
    let stated = time_ms.and_then(|at| first_attempted(NewEvent::default(), at).first_attempt_time);
    let request =
        GetReceiptRequest { key: key.into(), first_attempt_time: stated, ..Default::default() };
    let answer = publisher.client.clone().get_receipt(request).await.expect("GetReceipt");
    answer.get_ref().state()
}

/// The original receipt, to a retry.
fn is_known(first: &Receipt, retry: &Receipt) {
    assert_eq!(retry.outcome(), PublishOutcome::Duplicate, "{retry:?}");
    assert_eq!(without_outcome(retry), without_outcome(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_outlives_its_event_and_the_process() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let publisher = setup.start();
    let now_ms = clock.now_ms();
    let intents = [
        adjusted("order-1", "x", 1),
        adjusted(&uuid_v7(now_ms, 1), "x", 2),
        at_version(first_attempted(adjusted("order-2", "x", 3), now_ms), 2),
    ];
    let mut receipts = Vec::new();
    for intent in &intents {
        receipts.push(publisher.accepts(intent.clone()).await);
    }
    assert_eq!(receipts[0].expire_time, None, "no time: kept for ever");
    for receipt in &receipts[1..] {
        assert_eq!(millis(&receipt.expire_time), now_ms + 24 * HOUR_MS);
    }

    clock.stands_ahead(2 * HOUR_MS);
    truncated(&publisher).await;
    let mut publisher = publisher;
    for kill in [false, true] {
        for (intent, first) in intents.iter().zip(&receipts) {
            is_known(first, &publisher.accepts(intent.clone()).await);
            let found = publisher.receipt(&intent.key).await;
            assert_eq!(found.state(), ReceiptState::Accepted);
            assert_eq!(without_outcome(&found.receipt.expect("found")), without_outcome(first));
            let other = NewEvent { subject: "y".into(), ..intent.clone() };
            let refusal = refused(publisher.publish(vec![other]).await, Reason::KeyConflict);
            assert_eq!(Some(refusal.number("sequence")), first.sequence);
        }
        assert_eq!(publisher.log().await.next_sequence, Some(3));
        if kill {
            publisher.process.kill();
        }
        publisher = publisher.restart();
    }
    let next = publisher.accepts(at_version(adjusted("order-3", "x", 1), 3)).await;
    assert_eq!((next.sequence, next.subject_version), (Some(3), Some(4)));
}

/// The same after the key floor has passed: nothing is executed twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_retry_is_refused_and_leaves_nothing() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let mut publisher = setup.start();
    let now_ms = clock.now_ms();
    let uuid = uuid_v7(now_ms, 1);
    let timed = [adjusted(&uuid, "x", 1), first_attempted(adjusted("order-2", "x", 2), now_ms)];
    let untimed = adjusted("order-1", "x", 3);
    let first = publisher.accepts(untimed.clone()).await;
    publisher.publish(timed.to_vec()).await.expect("accepted");
    assert_eq!(state(&publisher, "order-9", None).await, ReceiptState::NeverAccepted);

    clock.stands_ahead(25 * HOUR_MS);
    floor_passes(&publisher, now_ms).await;
    truncated(&publisher).await;
    let head = publisher.log().await.head;
    for kill in [false, true] {
        for intent in &timed {
            let refusal =
                refused(publisher.publish(vec![intent.clone()]).await, Reason::KeyExpired);
            assert_eq!(refusal.numbers["key"], intent.key);
            assert!(refusal.numbers.contains_key("key_floor"), "{refusal:?}");
            let other = NewEvent { subject: "y".into(), ..intent.clone() };
            refused(publisher.publish(vec![other]).await, Reason::KeyExpired);
        }
        let mixed = vec![untimed.clone(), timed[0].clone()];
        refused(publisher.publish(mixed).await, Reason::KeyExpired);
        let mut stream = PublishStream::open(&publisher.client).await.expect("a stream");
        for intent in &timed {
            refused(stream.publish(vec![intent.clone()]).await, Reason::KeyExpired);
        }
        is_known(&first, &publisher.accepts(untimed.clone()).await);
        assert_eq!(publisher.log().await.head, head, "the head has not moved");

        assert_eq!(state(&publisher, &uuid, None).await, ReceiptState::Expired);
        assert_eq!(state(&publisher, "order-2", Some(now_ms)).await, ReceiptState::Expired);
        // By such a key alone it cannot be told any more.
        assert_eq!(state(&publisher, "order-2", None).await, ReceiptState::Expired);
        assert_eq!(state(&publisher, "order-1", None).await, ReceiptState::Accepted);
        let fresh = uuid_v7(clock.now_ms(), 7);
        assert_eq!(state(&publisher, &fresh, None).await, ReceiptState::NeverAccepted);
        if kill {
            publisher.process.kill();
        }
        publisher = publisher.restart();
    }
    clock.stands_ahead(20 * 365 * 24 * HOUR_MS);
    floor_passes(&publisher, now_ms + 365 * 24 * HOUR_MS).await;
    is_known(&first, &publisher.accepts(untimed).await);
}

/// A time under a key that has expired is another intent's under another time: no
/// second append for the same content, whatever the order.
#[tokio::test(flavor = "multi_thread")]
async fn an_intent_from_before_the_floor_is_refused_though_nobody_knows_it() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let publisher = setup.start();
    let old_ms = clock.now_ms() - 25 * HOUR_MS;
    floor_passes(&publisher, old_ms).await;
    let never = uuid_v7(old_ms, 1);
    assert_eq!(state(&publisher, &never, None).await, ReceiptState::Expired);
    refused(publisher.publish(vec![adjusted(&never, "x", 1)]).await, Reason::KeyExpired);
    let stated = first_attempted(adjusted("order-1", "x", 1), old_ms);
    refused(publisher.publish(vec![stated]).await, Reason::KeyExpired);
    // Of the stated time and the one in the key the later counts.
    let restated = first_attempted(adjusted(&never, "x", 1), clock.now_ms());
    assert_eq!(publisher.accepts(restated).await.sequence, Some(0));
    assert_eq!(publisher.accepts(adjusted("order-1", "x", 1)).await.sequence, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_full_of_untimed_keys_refuses_new_ones_and_drops_none() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let publisher = setup.clone().start();
    let intents: Vec<_> = (0..3).map(|n| adjusted(&format!("order-{n}"), "x", 1)).collect();
    let receipts = publisher.publish(intents.clone()).await.expect("room for three");
    let timed = |n| adjusted(&uuid_v7(clock.now_ms(), n), "x", 1);

    let one_more = || vec![adjusted("order-3", "x", 1)];
    let is_full = async |publisher: &Publisher| {
        let head = publisher.log().await.head;
        for batch in [one_more(), vec![timed(900), adjusted("order-4", "x", 1)]] {
            let refusal = refused(publisher.publish(batch).await, Reason::KeysFull);
            assert_eq!(refusal.numbers["limit"], "max_untimed_keys");
            assert_eq!(
                (refusal.number("max_untimed_keys"), refusal.number("untimed_keys")),
                (3, 3)
            );
        }
        // A stale version is said before, a conflict too.
        let stale = vec![at_version(adjusted("order-3", "x", 1), 77)];
        refused(publisher.publish(stale).await, Reason::StaleVersion);
        refused(publisher.publish(vec![adjusted("order-0", "x", 2)]).await, Reason::KeyConflict);
        let log = publisher.log().await;
        assert_eq!((log.head, log.untimed_keys), (head, Some(3)));
        for (intent, first) in intents.iter().zip(&receipts) {
            is_known(first, &publisher.accepts(intent.clone()).await);
        }
        assert_eq!(state(publisher, "order-3", None).await, ReceiptState::NeverAccepted);
    };
    is_full(&publisher).await;
    // Keys with a time are bounded by the window, not by this.
    for n in 0..5 {
        publisher.accepts(timed(n)).await;
    }
    clock.stands_ahead(3 * HOUR_MS);
    truncated(&publisher).await;
    is_full(&publisher).await;
    let publisher = publisher.restart();
    is_full(&publisher).await;
    clock.stands_ahead(99 * HOUR_MS);
    floor_passes(&publisher, clock.now_ms() - 25 * HOUR_MS).await;
    is_full(&publisher).await;

    let address = publisher.address;
    drop(publisher);
    let larger = config("24h").replace("max_untimed_keys = 3", "max_untimed_keys = 4");
    let publisher = setup.listen(address).config(&larger).start();
    publisher.publish(one_more()).await.expect("room for one more");
    refused(publisher.publish(vec![adjusted("order-4", "x", 1)]).await, Reason::KeysFull);
}

/// A producer of PUB-09: retries old keys, by calls or on a stream.
async fn retries(
    client: Client,
    intents: Vec<NewEvent>,
    mut chance: Chance,
    stop: watch::Receiver<bool>,
    streaming: bool,
) -> HashSet<usize> {
    let mut stream = PublishStream::open(&client).await.expect("a stream");
    let mut expired = HashSet::new();
    while !*stop.borrow() {
        let n = chance.below(intents.len() as u64) as usize;
        let retry = vec![intents[n].clone()];
        let answer =
            if streaming { stream.publish(retry).await } else { publish(&client, "", retry).await };
        match answer {
            Ok(receipts) => {
                assert!(!expired.contains(&n), "{n} was expired, and has come back");
                assert_eq!(receipts[0].sequence, Some(n as i64), "a second sequence");
                assert_eq!(receipts[0].outcome(), PublishOutcome::Duplicate);
            }
            expiry => {
                refused(expiry, Reason::KeyExpired);
                expired.insert(n);
            }
        }
    }
    expired
}

/// PUB-09: receipts are forgotten by a stated horizon while their keys are retried.
#[tokio::test(flavor = "multi_thread")]
async fn pub_09_forgetting_beside_retries_makes_none_of_them_new() {
    const INTENTS: usize = 600;
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = "[logs.main]\nmax_events = 20\nsegment_bytes = 2048\nkey_window = \"24h\"\n";
    let publisher = Publisher::at(dir.path()).clock(&clock).config(config).start();
    let began_ms = clock.now_ms();
    // Intents of the last 20 hours, two minutes after one another.
    let time_ms = |n: usize| began_ms - 20 * HOUR_MS + n as i64 * (HOUR_MS / 30);
    let intents: Vec<_> =
        (0..INTENTS).map(|n| adjusted(&uuid_v7(time_ms(n), n as u16), "x", 1)).collect();
    for batch in intents.chunks(10) {
        publisher.publish(batch.to_vec()).await.expect("accepted");
    }
    let head = publisher.log().await.head;

    let (stop, stopped) = watch::channel(false);
    let mut producers = JoinSet::new();
    for n in 0..4 {
        producers.spawn(retries(
            publisher.client.clone(),
            intents.clone(),
            Chance::new(),
            stopped.clone(),
            n % 2 == 0,
        ));
    }
    for hours in [5, 8, 11, 14, 17, 20] {
        clock.stands_ahead(hours * HOUR_MS);
        let floor_ms = clock.now_ms() - 24 * HOUR_MS;
        floor_passes(&publisher, floor_ms - 60_000).await;
        // Below the floor all are expired, well above it all are known.
        for (n, intent) in intents.iter().enumerate() {
            let expected = match time_ms(n) - floor_ms {
                ..-120_000 => ReceiptState::Expired,
                120_000.. => ReceiptState::Accepted,
                _ => continue,
            };
            assert_eq!(state(&publisher, &intent.key, None).await, expected, "{n}");
        }
    }
    clock.stands_ahead(26 * HOUR_MS);
    wait_until("nothing is held of what has expired", async || {
        (publisher.log().await.keys == Some(0)).then_some(())
    })
    .await;
    stop.send_replace(true);
    let expired = producers.join_all().await;
    assert!(expired.iter().any(|seen| !seen.is_empty()), "no retry came too late");
    assert_eq!(publisher.log().await.head, head, "no retry was executed");
    for intent in &intents {
        refused(publisher.publish(vec![intent.clone()]).await, Reason::KeyExpired);
    }
    let publisher = publisher.restart();
    refused(publisher.publish(intents).await, Reason::KeyExpired);
    assert_eq!(publisher.log().await.head, head);
}

/// Whatever clocks and settings do, what was expired stays so.
#[tokio::test(flavor = "multi_thread")]
async fn the_key_floor_never_goes_back() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let mut publisher = setup.clone().start();
    let now_ms = clock.now_ms();
    let intent = adjusted(&uuid_v7(now_ms, 1), "x", 1);
    publisher.accepts(intent.clone()).await;
    clock.stands_ahead(30 * HOUR_MS);
    floor_passes(&publisher, now_ms).await;
    let floor_ms = millis(&publisher.log().await.key_floor_time);

    let stays = async |publisher: &Publisher| {
        let log = publisher.log().await;
        assert!(millis(&log.key_floor_time) >= floor_ms, "{log:?}");
        refused(publisher.publish(vec![intent.clone()]).await, Reason::KeyExpired);
        assert_eq!(publisher.log().await.head, log.head, "nothing was executed");
        assert_eq!(state(publisher, &intent.key, None).await, ReceiptState::Expired);
    };
    stays(&publisher).await;
    clock.stands_ahead(-100 * HOUR_MS);
    stays(&publisher).await;
    publisher = publisher.restart();
    stays(&publisher).await;
    publisher.process.kill();
    publisher = publisher.restart();
    stays(&publisher).await;
    // A later window that is larger brings nothing back.
    let address = publisher.address;
    drop(publisher);
    let publisher = setup.listen(address).config(&config("1000h")).start();
    stays(&publisher).await;
    // What is accepted from now on has the larger window. Its clock still stands ahead.
    let log = publisher.log().await;
    let later_ms = millis(&log.key_floor_time) + 20 * HOUR_MS;
    let receipt = publisher.accepts(adjusted(&uuid_v7(later_ms, 2), "x", 1)).await;
    assert_eq!(millis(&receipt.expire_time), later_ms + 1_000 * HOUR_MS);
    assert!(millis(&receipt.accept_time) >= now_ms + 30 * HOUR_MS, "its clock went back");
    clock.stands_ahead(500 * HOUR_MS);
    stays(&publisher).await;
    let publisher = publisher.restart();
    is_known(&receipt, &publisher.accepts(adjusted(&receipt.key, "x", 1)).await);
}

/// A clock that was wrong by far for a moment: what it has decided stays decided, and
/// is said; nothing is executed twice for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_was_far_ahead_expires_keys_and_says_so() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let publisher = setup.start();
    let now_ms = clock.now_ms();
    let intent = adjusted(&uuid_v7(now_ms, 1), "x", 1);
    publisher.accepts(intent.clone()).await;
    clock.stands_ahead(1_000 * HOUR_MS);
    floor_passes(&publisher, now_ms).await;
    clock.stands_ahead(0);
    let publisher = publisher.restart();
    for late in [intent, adjusted(&uuid_v7(now_ms, 2), "x", 1)] {
        let refusal = refused(publisher.publish(vec![late]).await, Reason::KeyExpired);
        assert!(refusal.message.contains("key floor"), "{refusal:?}");
    }
    assert_eq!(publisher.log().await.next_sequence, Some(1));
    // Times ahead of the system's clock are taken by the publisher's, which stands there.
    let floor_ms = millis(&publisher.log().await.key_floor_time);
    publisher.accepts(adjusted(&uuid_v7(floor_ms + HOUR_MS, 3), "x", 1)).await;
    publisher.accepts(adjusted("order-1", "x", 1)).await;
}

/// Intents from the future would keep their receipts too long, or for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_time_from_the_future_is_refused() {
    let dir = directory();
    let (clock, setup) = setup(dir.path(), "24h");
    let publisher = setup.start();
    let ahead_ms = clock.now_ms() + HOUR_MS;
    let uuid = vec![adjusted(&uuid_v7(ahead_ms, 1), "x", 1)];
    let stated = vec![first_attempted(adjusted("order-1", "x", 1), ahead_ms)];
    for (request, field) in [(uuid, "events[0].key"), (stated, "events[0].first_attempt_time")] {
        let refusal = refused(publisher.publish(request.clone()).await, Reason::InvalidField);
        assert_eq!(refusal.fields, [field]);
        let mut stream = PublishStream::open(&publisher.client).await.expect("a stream");
        refused(stream.publish(request).await, Reason::InvalidField);
    }
    assert_eq!(publisher.log().await.next_sequence, Some(0));
}
