//! Snapshots that a receiver makes and uploads: when they are due, by the clock, on order,
//! and through broken uploads.

use counterfoil::proto::{pb::ReceiverState, refusal::Reason};
use sha2::{Digest as _, Sha256};

use crate::harness::{
    events::{adjusted, adjustments},
    fake_publisher::{FakePublisher, History, after},
    pair::{Pair, directory},
    receiver::Receiver,
    refusal::refused,
    shelf::Shelf,
    tools::counterfoil,
    wait::wait_until,
};

/// The publisher says that one is due: it comes by itself, once, however often the upload
/// breaks, and from where it broke.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_due_is_made_and_uploaded_through_broken_connections() {
    let dir = directory();
    let history = History::of(adjustments("k", 1_000));
    let shelf = Shelf::default();
    shelf.breaks_uploads(&[10_000, 20_000, 0]);
    let told = history.clone();
    let fake = FakePublisher::start_beside(&shelf, move |n, request| {
        let mut steps = told.honestly(n as i64 + 1, after(request));
        steps.push(told.snapshot_due_below(500));
        steps
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    shelf.waits_for(1).await;
    assert_eq!(shelf.offers(), [0, 10_000, 30_000, 30_000]);
    let snapshot = &shelf.snapshots()[0];
    assert_eq!(snapshot.cursor, Some(history.cursor(999)));
    assert_eq!((&*snapshot.projection, &*snapshot.receiver), ("inventory", "receiver"));
    wait_until("the receiver knows", async || {
        (receiver.try_status().await.ok()?.snapshot_sequence == Some(999)).then_some(())
    })
    .await;
}

/// Bytes on the shelf have the hash that names them.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_place_makes_snapshots_that_are_what_they_say() {
    let dir = directory();
    let history = History::of(adjustments("k", 10));
    let shelf = Shelf::default();
    let told = history.clone();
    let fake = FakePublisher::start_beside(&shelf, move |n, request| {
        told.honestly(n as i64 + 1, after(request))
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.waits_for_state(ReceiverState::Live).await;
    let made = receiver.snapshot().await.expect("stored");
    assert_eq!(shelf.snapshots()[0].sha256, made.sha256);
    assert_eq!(Sha256::digest(shelf.bytes(0))[..], made.sha256[..]);
}

/// By the clock: one, and another once there is something new.
#[tokio::test(flavor = "multi_thread")]
async fn by_the_clock_what_is_new_is_offered() {
    let pair = Pair::start();
    let again = pair.receiver.successor();
    drop(pair.receiver);
    let receiver = again.arg("--snapshot-every").arg("1s").start();
    for n in 0..2 {
        pair.publisher.accepts(adjusted(&format!("k{n}"), "a", 1)).await;
        wait_until("the publisher has a snapshot of it", async || {
            let newest = pair.publisher.try_log().await.ok()?.snapshot?;
            (newest.sequence == Some(n)).then_some(())
        })
        .await;
    }
    assert_eq!(receiver.status().await.snapshot_sequence, Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_order_it_is_there_when_the_answer_comes() {
    let pair = Pair::start();
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    let nothing = refused(pair.receiver.snapshot().await, Reason::WrongState);
    assert!(nothing.message.contains("nothing is applied"), "{nothing:?}");
    pair.carries(adjustments("k", 5)).await;
    let ended = counterfoil(["snapshot", "--receiver", &pair.receiver.url()]).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("at sequence 4"), "{ended:?}");
    let newest = pair.publisher.log().await.snapshot.expect("the newest one");
    assert_eq!(newest.sequence, Some(4));
}

/// A receiver goes on applying while its publisher takes no snapshots.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_fails_holds_up_nothing() {
    let dir = directory();
    let history = History::of(adjustments("k", 10));
    let shelf = Shelf::default();
    shelf.breaks_uploads(&[0; 1_000]);
    let told = history.clone();
    let fake = FakePublisher::start_beside(&shelf, move |n, request| {
        let mut steps = vec![told.started(n as i64 + 1), told.batch(&[0, 1, 2, 3, 4])];
        if after(request) < 4 {
            steps.extend([told.snapshot_due_below(3), told.batch(&[5, 6, 7, 8, 9])]);
        }
        steps.push(told.caught_up());
        steps
    })
    .await;
    let receiver = Receiver::start(dir.path(), &fake.url());
    receiver.waits_for_state(ReceiverState::Live).await;
    wait_until("it is tried again and again", async || (shelf.offers().len() > 3).then_some(()))
        .await;
    let status = receiver.status().await;
    assert_eq!((status.state(), receiver.ledger().total), (ReceiverState::Live, 10));
}
