//! A snapshot of the same log that does not go on from what a receiver has: the publisher
//! was put back to an older copy, and its floor has moved past the place since. Or nothing
//! shows whether it was.

use std::fs;

use counterfoil::proto::{pb::ReceiverState, refusal::Reason};

use super::{EARLY, RETAINS, Scene, ordered::kept};
use crate::harness::{
    events::adjusted, put_back::PutBack, receiver::Receiver, refusal::refused, wait::wait_until,
};

/// Only a snapshot is left of the history in which the receiver's events are others: it
/// halts, and nothing is replaced before a person says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_noticed_after_the_floor_has_passed_it() {
    let PutBack { receiver, publisher, dir } = PutBack::to_five_of_ten().await;
    let setup = receiver.successor();
    assert_eq!(receiver.terminate().code(), Some(0));

    let publisher = publisher.config(RETAINS).start();
    let maker = Receiver::at(dir.path(), &publisher.url()).named("maker").start();
    for n in 5..40 {
        publisher.accepts(adjusted(&format!("other-{n}"), "a", 2)).await;
        maker.applies(n).await;
    }
    maker.snapshot().await.expect("stored");
    let receiver = setup.start();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    let failure = status.failure.expect("why");
    assert_eq!(failure.reason, "DIVERGED", "{failure:?}");
    assert!(failure.message.contains("another one at sequence 9"), "{failure:?}");
    assert!(status.state_detail.contains("counterfoil resync"), "{}", status.state_detail);
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total, status.resyncs), (9, 10, Some(0)));

    receiver.resync("receiver").await.expect("ordered");
    receiver.waits_for_state(ReceiverState::Live).await;
    super::same(&receiver.ledger(), &maker.ledger());
    assert_eq!(kept(dir.path()).total, 10);
}

/// The snapshot's ledger was pruned beyond what the receiver has: it asks, although it may
/// resync by itself, and keeps what it had. One that has nothing has nothing to lose.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_snapshot_cannot_show_is_asked_for() {
    let scene = Scene::after(40).await;
    let pruned = scene.empty("pruned").arg("--keep-ledger").arg("retained").start();
    wait_until("its ledger is pruned", async || {
        let first = pruned.ledger().rows.first().map_or(0, |row| row.sequence);
        (first > EARLY as i64).then_some(())
    })
    .await;
    pruned.snapshot().await.expect("stored");
    let (setup, _) = scene.early("receiver");
    let receiver = setup.start();
    let said = wait_until("it asks", async || {
        let detail = receiver.try_status().await.ok()?.state_detail;
        detail.contains("--confirm NAME").then_some(detail)
    })
    .await;
    assert!(said.contains("does not show whether its history"), "{said}");
    assert_eq!(receiver.ledger().cursor, EARLY as i64 - 1, "nothing has changed");
    refused(receiver.resync("pruned").await, Reason::InvalidField);
    receiver.resync("receiver").await.expect("it waits for that");
    receiver.waits_for_state(ReceiverState::Live).await;
    let (ours, theirs) = (receiver.ledger(), scene.maker.ledger());
    assert_eq!((ours.cursor, ours.total, &ours.stock), (40, 41, &theirs.stock));
    assert!(ours.rows[0].sequence > EARLY as i64, "its ledger begins where the snapshot's does");
    assert_eq!(kept(scene.dir.path()).cursor, EARLY as i64 - 1);

    let empty = scene.empty("empty").start();
    empty.waits_for_state(ReceiverState::Live).await;
    assert_eq!(empty.ledger().total, 41);
    // What comes after it is applied and acknowledged, whatever the ledger lacks before it.
    scene.publisher.accepts(adjusted("after", "a", 1)).await;
    empty.applies(41).await;
    scene.publisher.waits_for_ack("empty", 41).await;
    // Nothing half made is beside any of them.
    for entry in fs::read_dir(scene.dir.path()).expect("readable") {
        let name = entry.expect("readable").file_name();
        assert!(!name.to_string_lossy().ends_with(".part"), "{name:?}");
    }
}
