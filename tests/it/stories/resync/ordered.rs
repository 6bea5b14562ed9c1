//! What only a person may say: that what a database has is to be given up.

use std::{fs, path::Path};

use counterfoil::proto::{pb::ReceiverState, refusal::Reason};

use super::{EARLY, Scene, same};
use crate::harness::{
    events::{adjusted, adjustments},
    files::below,
    ledger::Ledger,
    pair::Pair,
    put_back::PutBack,
    receiver::Receiver,
    refusal::refused,
    tools::counterfoil,
};

/// With `resync = "ask"` nothing is replaced before the name has been typed.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_asks_waits_for_its_name() {
    let scene = Scene::after(40).await;
    let (setup, _) = scene.early("receiver");
    let receiver = setup.arg("--resync").arg("ask").start();
    let status = receiver.waits_for_state(ReceiverState::Resyncing).await;
    assert!(status.state_detail.contains("counterfoil resync"), "{}", status.state_detail);
    assert_eq!(status.failure.expect("why").reason, "CURSOR_EXPIRED");
    let wrong = refused(receiver.resync("maker").await, Reason::InvalidField);
    assert_eq!(wrong.fields, ["confirm"]);
    assert!(wrong.message.contains("receiver"), "the right one is named: {wrong:?}");
    refused(receiver.resync("").await, Reason::InvalidField);
    refused(receiver.snapshot().await, Reason::WrongState);
    let shown = counterfoil(["status", "--publisher", &scene.publisher.url()])
        .args(["--receiver", &receiver.url()])
        .run();
    assert_eq!(shown.code(), Some(1), "{shown:?}");
    assert!(shown.stdout.contains("RESYNCING"), "{shown:?}");
    assert_eq!(receiver.ledger().cursor, EARLY as i64 - 1, "nothing has changed");

    receiver.resync("receiver").await.expect("it waits for that");
    receiver.waits_for_state(ReceiverState::Live).await;
    same(&receiver.ledger(), &scene.maker.ledger());
    refused(receiver.resync("receiver").await, Reason::WrongState);
}

/// What was given up is beside the database.
pub(super) fn kept(dir: &Path) -> Ledger {
    let files = below(dir);
    let kept: Vec<_> = files
        .iter()
        .filter(|path| path.to_string_lossy().contains("receiver.db.before-resync-"))
        .collect();
    assert_eq!(kept.len(), 1, "{files:?}");
    Ledger::read(kept[0])
}

/// A publisher that was put back to before what the receiver has: on order the receiver
/// follows it, from the beginning, since there is no snapshot and none is needed.
#[tokio::test(flavor = "multi_thread")]
async fn on_order_a_receiver_follows_a_restored_publisher() {
    let PutBack { receiver, publisher, dir } = PutBack::to_five_of_ten().await;
    let publisher = publisher.start();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "CURSOR_AHEAD");
    assert!(status.state_detail.contains("counterfoil resync"), "{}", status.state_detail);
    refused(receiver.resync("other").await, Reason::InvalidField);
    assert_eq!(receiver.ledger().total, 10, "nothing has changed");
    let url = receiver.url();
    let ended = counterfoil(["resync", "--receiver", &url, "--confirm", "receiver"]).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    receiver.waits_for_state(ReceiverState::Live).await;
    let ledger = receiver.ledger();
    assert_eq!((ledger.cursor, ledger.total), (4, 5));
    publisher.publish(adjustments("m", 3)).await.expect("accepted");
    receiver.applies(7).await;
    publisher.waits_for_ack("receiver", 7).await;
    publisher.tells_what_was_done("receiver", &receiver.ledger()).await;
    let kept = kept(dir.path());
    assert_eq!((kept.cursor, kept.total), (9, 10));
    let status = receiver.status().await;
    assert!(status.failure.is_none() && status.resyncs == Some(1), "{status:?}");
}

/// A publisher that was replaced, and has dropped its first events: on order the receiver
/// goes on from the snapshot of another one, although that is another history.
#[tokio::test(flavor = "multi_thread")]
async fn on_order_a_receiver_follows_another_log_from_its_snapshot() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 30)).await;
    let again = pair.publisher.successor().config("[logs.main]\nmax_events = 5\n");
    let data = pair.publisher.dir().to_owned();
    assert_eq!(pair.publisher.terminate().code(), Some(0));
    fs::remove_dir_all(&data).expect("removed");
    let publisher = again.start();
    let status = pair.receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "LOG_MISMATCH");
    let maker = Receiver::at(pair.dir.path(), &publisher.url()).named("maker").start();
    for n in 0..12 {
        publisher.accepts(adjusted(&format!("other-{n}"), "a", 2)).await;
        maker.applies(n).await;
    }
    maker.snapshot().await.expect("stored");
    pair.receiver.resync("receiver").await.expect("ordered");
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    same(&pair.receiver.ledger(), &maker.ledger());
    assert_eq!(kept(pair.dir.path()).total, 30);
}
