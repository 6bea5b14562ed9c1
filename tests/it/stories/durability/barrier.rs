//! A killed predecessor may have left bytes in the page cache only. After every
//! open they are synced before anything of them is served or acknowledged.

use std::path::Path;

use crate::harness::{
    events::{adjusted, adjustments, cursors},
    fake_publisher::{FakePublisher, History, after},
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
    snapshot::{Content, Snapshots},
    tools::{has, skip, strace},
};

const OPTIONS: [&str; 2] = ["-e", "trace=fsync,fdatasync,write,writev,sendto,sendmsg"];

/// The first line of a trace in which all of these words stand.
fn first(trace: &Path, words: &[&str]) -> Option<usize> {
    let text = std::fs::read_to_string(trace).expect("strace has written");
    text.lines().position(|line| words.iter().all(|word| line.contains(word)))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_syncs_what_it_finds_before_it_serves() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let dir = directory();
    let mut publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 20)).await.expect("accepted");
    publisher.process.kill();
    let trace = dir.path().join("strace");
    let publisher = publisher.successor().wrapped(strace(&trace, &OPTIONS)).start();
    publisher.accepts(adjusted("k-0", "item-0", 1)).await;
    assert_eq!(publisher.terminate().code(), Some(0));

    let served = first(&trace, &["write(1<", "listening on"]).expect("it listened");
    let file = first(&trace, &["sync(", ".seg>"]).expect("the segment was synced");
    let names = first(&trace, &["sync(", "/main>"]).expect("its directory was synced");
    assert!(file < served && names < served, "synced at {file} and {names}, served at {served}");
}

/// Bytes, what is known of them, and their name, each before the next; then the answer.
#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_syncs_a_snapshot_before_it_has_a_name_and_its_name_before_it_answers() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 1)).await.expect("accepted");
    let trace = dir.path().join("strace");
    let successor = publisher.successor().wrapped(strace(&trace, &["-e", "trace=fsync,rename"]));
    drop(publisher);
    let publisher = successor.start();
    let content = Content::new(1, 100_000);
    let snapshot = content.at(&cursors(&receipts)[0]);
    Snapshots::of(&publisher).store(&snapshot, &content).await.expect("stored");
    let text = std::fs::read_to_string(&trace).expect("strace has written");
    let steps = [
        ["fsync(", ".part>"],
        ["fsync(", ".meta.tmp>"],
        ["rename(", ".meta.tmp\""],
        ["fsync(", "/snapshots>"],
        ["rename(", ".part\""],
        ["fsync(", "/snapshots>"],
    ];
    let mut lines = text.lines();
    for step in steps {
        let found = lines.any(|line| step.iter().all(|word| line.contains(word)));
        assert!(found, "{step:?} does not come in its order:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_checkpoints_what_it_finds_before_it_serves_or_acknowledges() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let dir = directory();
    let history = History::of(adjustments("k", 20));
    let fake =
        FakePublisher::start(move |n, request| history.honestly(n as i64 + 1, after(request)))
            .await;
    let mut receiver = Receiver::start(dir.path(), &fake.url());
    receiver.applies(19).await;
    receiver.process.kill();
    let acks = fake.acks().len();
    let trace = dir.path().join("strace");
    let receiver = receiver.successor().wrapped(strace(&trace, &OPTIONS)).start();
    crate::harness::wait::wait_until("it acknowledges anew", async || {
        (fake.acks().len() > acks).then_some(())
    })
    .await;
    assert_eq!(receiver.terminate().code(), Some(0));

    let served = first(&trace, &["write(1<", "listening on"]).expect("it listened");
    let said = first(&trace, &["socket:["]).expect("it said something");
    let synced = first(&trace, &["sync(", "/receiver.db>"]).expect("the checkpoint was synced");
    assert!(
        synced < served && synced < said,
        "synced at {synced}, served at {served}, spoke at {said}"
    );
}
