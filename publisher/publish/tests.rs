//! Publishing on the engine in memory, through the real threads.

use std::time::Duration;

use futures_util::future::join_all;

use super::*;
use crate::{
    proto::{
        event::Intent,
        refusal::{Reason, Refusal},
    },
    publisher::{
        group::Receipt,
        log::CommitError,
        retention::WhenFull,
        testing::{intent, start, wide, with_data},
    },
};

fn reasons<T>(result: Result<T, Refusal>) -> Result<T, Reason> {
    result.map_err(|refusal| refusal.reason)
}

fn metadata<'a>(refusal: &'a Refusal, name: &str) -> &'a str {
    refusal.metadata.iter().find(|(n, _)| *n == name).map_or("", |(_, value)| value)
}

#[tokio::test]
async fn pub_02_a_repeat_gets_the_first_receipt_though_its_version_is_stale() {
    let running = start(wide());
    let expecting = || Intent { expected_version: Some(0), ..intent("k", "camera") };
    let first = running.publish(expecting()).await.expect("accepted");
    running.fill(5).await;
    let again = running.publish(expecting()).await.expect("accepted before");
    assert_eq!(again, Receipt { duplicate: true, ..first });
    assert_eq!(running.extent().next, 6);
}

#[tokio::test]
async fn pub_04_attempts_at_one_key_in_flight_get_one_append_and_one_receipt() {
    let running = start(wide());
    let attempts = (0..64).map(|_| running.publish(intent("k", "camera")));
    let receipts: Vec<Receipt> =
        join_all(attempts).await.into_iter().collect::<Result<_, _>>().expect("accepted");
    assert_eq!(receipts.iter().filter(|receipt| !receipt.duplicate).count(), 1);
    assert!(receipts.iter().all(|receipt| receipt.accepted == receipts[0].accepted));
    assert_eq!(running.extent().next, 1);
}

#[tokio::test]
async fn pub_13_one_of_many_writers_at_a_version_wins() {
    let running = start(wide());
    for version in 0..20 {
        let writers = (0..16).map(|writer| {
            let intent = intent(&format!("{version}-{writer}"), "camera");
            running.publish(Intent { expected_version: Some(version), ..intent })
        });
        let (won, lost): (Vec<_>, Vec<_>) =
            join_all(writers).await.into_iter().partition(Result::is_ok);
        assert_eq!((won.len(), lost.len()), (1, 15));
        for refusal in lost.into_iter().filter_map(Result::err) {
            assert_eq!(refusal.reason, Reason::StaleVersion);
            assert_eq!(metadata(&refusal, "version"), (version + 1).to_string());
        }
        assert_eq!(running.extent().next, version + 1);
    }
}

#[tokio::test]
async fn log_12_refused_attempts_use_no_number_and_leave_no_receipt() {
    let running = start(wide());
    running.fill(1).await;
    for n in 0..5 {
        let stale = Intent { expected_version: Some(9), ..intent(&format!("s{n}"), "camera") };
        assert_eq!(reasons(running.publish(stale).await), Err(Reason::StaleVersion));
    }
    running.engine.fail_next(CommitError::DiskFull);
    let full = running.publish(intent("k", "camera")).await.expect_err("full");
    assert_eq!((full.reason, metadata(&full, "limit")), (Reason::LogFull, "disk"));
    assert!(*running.healthy.borrow(), "a full disk heals by itself");
    let accepted = running.publish(intent("k", "camera")).await.expect("there is room again");
    assert_eq!((accepted.accepted.sequence, accepted.duplicate), (1, false));
    assert_eq!(accepted.accepted.subject_version, 2);
}

#[tokio::test]
async fn a_batch_is_accepted_whole_or_not_at_all() {
    let running = start(wide());
    let batch = |keys: [&str; 3]| keys.map(|key| intent(key, "camera")).to_vec();
    let receipts = running.publish_all(batch(["a", "b", "c"])).await.expect("accepted");
    let places: Vec<_> = receipts
        .iter()
        .map(|receipt| (&receipt.key[..], receipt.accepted.sequence, receipt.duplicate))
        .collect();
    assert_eq!(places, [(&b"a"[..], 0, false), (b"b", 1, false), (b"c", 2, false)]);
    let again = running.publish_all(batch(["c", "a", "b"])).await.expect("known");
    let places: Vec<_> = again
        .iter()
        .map(|receipt| (&receipt.key[..], receipt.accepted.sequence, receipt.duplicate))
        .collect();
    assert_eq!(places, [(&b"c"[..], 2, true), (b"a", 0, true), (b"b", 1, true)]);
    let partly = running.publish_all(batch(["a", "x", "y"])).await;
    assert_eq!(reasons(partly), Err(Reason::PartialDuplicate));
    assert_eq!(running.extent().next, 3);
}

#[tokio::test]
async fn a_caller_that_hangs_up_changes_nothing() {
    let running = start(wide());
    {
        let mut publish = std::pin::pin!(running.publish(intent("k", "camera")));
        // Once: the request is in the queue. It may even have been answered already.
        let _ = futures_util::poll!(publish.as_mut());
    }
    let mut extent = running.log.extent.clone();
    extent.wait_for(|extent| extent.next == 1).await.expect("committed");
    assert!(running.publish(intent("k", "camera")).await.expect("known").duplicate);
}

#[tokio::test]
async fn after_a_lost_write_nothing_is_written_and_reads_go_on() {
    let mut running = start(wide());
    running.fill(2).await;
    running.engine.fail_next(CommitError::Halted("an injected failure at /secret".to_owned()));
    let lost = running.publish(intent("lost", "camera")).await.expect_err("halted");
    assert_eq!(lost.reason, Reason::LogHalted);
    assert!(!lost.message.contains("secret"), "API-08: {lost}");
    for key in ["lost", "other"] {
        let refused = running.publish(intent(key, "camera")).await;
        assert_eq!(reasons(refused), Err(Reason::LogHalted), "{key}");
    }
    assert!(running.publish(intent("k0", "camera")).await.expect("durable").duplicate);
    assert!(!*running.healthy.borrow_and_update());
    assert_eq!(running.log.reader.read(0, 9, 9999).expect("readable").len(), 2);
}

#[tokio::test]
async fn log_09_bounds_are_exact_and_receipts_outlive_events() {
    let stored = {
        let running = start(wide());
        running.fill(1).await;
        running.extent().bytes
    };
    // A thousand keys k0 … k999 differ in length by two bytes at most.
    let limits = Limits { max_events: 3, max_bytes: 2 * stored + 60, ..wide() };
    let running = start(limits.clone());
    let publish = (0..200).map(|n| running.publish(intent(&format!("k{n}"), "camera")));
    let (receipts, ()) = tokio::join!(join_all(publish), async {
        let mut extents = running.log.extent.clone();
        while extents.borrow_and_update().next < 200 {
            let extent = running.extent();
            assert!(extent.count() <= 3 && extent.bytes <= limits.max_bytes, "{extent:?}");
            extents.changed().await.expect("the appender runs");
        }
    });
    for (n, receipt) in receipts.into_iter().enumerate() {
        let receipt = receipt.expect("accepted");
        let again = running.publish(intent(&format!("k{n}"), "camera")).await;
        assert_eq!(again, Ok(Receipt { duplicate: true, ..receipt }));
    }
    let extent = running.extent();
    assert_eq!((extent.next, extent.count()), (200, 2), "by bytes, two fit");
    let large = with_data("large", "camera", &format!("\"{}\"", "x".repeat(1_000)));
    assert_eq!(reasons(running.publish(large).await), Err(Reason::EventTooLarge));
    let batch = (0..4).map(|n| intent(&format!("b{n}"), "lens")).collect();
    assert_eq!(reasons(running.publish_all(batch).await), Err(Reason::BatchTooLarge));
    assert_eq!(running.extent(), extent);
}

#[tokio::test]
async fn a_full_log_that_rejects_drops_only_what_every_receiver_has() {
    let running = start(Limits { max_events: 3, when_full: WhenFull::Reject, ..wide() });
    running.fill(3).await;
    let refused = running.publish(intent("new", "camera")).await.expect_err("full");
    assert_eq!((refused.reason, metadata(&refused, "limit")), (Reason::LogFull, "max_events"));
    let again = running.publish(intent("k0", "camera")).await.expect("answered though full");
    assert!(again.duplicate);

    let receivers = &running.log.receivers;
    let fast = receivers.open("fast", running.cursor(-1), None).await.expect("opened");
    let slow = receivers.open("slow", running.cursor(-1), None).await.expect("opened");
    receivers
        .ack("fast", fast.number(), Some(running.cursor(2)), None)
        .await
        .expect("acknowledged");
    let refused = running.publish(intent("new", "camera")).await.expect_err("held");
    assert_eq!(metadata(&refused, "receivers"), "slow");
    receivers
        .ack("slow", slow.number(), Some(running.cursor(1)), None)
        .await
        .expect("acknowledged");
    assert_eq!(running.publish(intent("new", "camera")).await.expect("room").accepted.sequence, 3);
    assert_eq!(running.extent().floor, 1, "no more than had to go");
}

#[tokio::test]
async fn log_02_what_is_too_old_goes_and_its_numbers_are_not_used_again() {
    let age = Duration::from_millis(1);
    let running = start(Limits { max_age: Some(age), ..wide() });
    running.fill(3).await;
    let mut extent = running.log.extent.clone();
    extent.wait_for(|extent| extent.floor == 3).await.expect("the appender runs");
    assert_eq!(running.extent().count(), 0);
    let next = running.publish(intent("later", "camera")).await.expect("accepted");
    assert_eq!(next.accepted.sequence, 3);
    assert_eq!(next.accepted.subject_version, 4);
}
