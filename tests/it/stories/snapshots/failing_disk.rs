//! EIO at every call that writes a snapshot: what was here of it is thrown away, the log
//! goes on, and a later upload is whole.

use std::path::Path;

use counterfoil::proto::{pb::LogState, refusal::Reason};

use super::places;
use crate::harness::{
    events::adjusted,
    pair::directory,
    publisher::Publisher,
    refusal::refused,
    snapshot::{Content, Snapshots, files},
    tools::{has, skip, strace},
};

/// What an upload does to files.
#[derive(Debug, Clone, Copy)]
enum File {
    /// Its bytes.
    Part,
    /// What is known of it, before it has its name.
    Meta,
    /// The directory, for names.
    Directory,
}

/// One upload with an error at the n-th such call of any thread.
async fn fails_at(file: File, call: &str, n: u32) {
    println!("{file:?}, {call}, number {n}");
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let places = places(&publisher, 2).await;
    let content = Content::new(1, 100_000);
    let snapshot = content.at(&places[1]);
    let (part, whole) = files(&publisher, &snapshot);
    let meta = whole.with_extension("meta");
    let path = match file {
        File::Part => part.clone(),
        File::Meta => whole.with_extension("meta.tmp"),
        File::Directory => part.parent().expect("a directory").to_owned(),
    };
    let successor = publisher.successor();
    drop(publisher);

    let trace = dir.path().join("strace");
    let (only, inject) = (format!("trace={call}"), format!("inject={call}:error=EIO:when={n}"));
    let path = path.to_str().expect("a path of ours");
    let options = ["-e", &only, "-e", &inject, "-P", path];
    let publisher = successor.wrapped(strace(&trace, &options)).start();
    let snapshots = Snapshots::of(&publisher);
    let mut failed = 0;
    // Each thread that writes fails once.
    while let Err(status) = snapshots.store(&snapshot, &content).await {
        assert!(refused(Err::<(), _>(status), Reason::SnapshotNotStored).retry);
        failed += 1;
        assert_eq!(injected(&trace), failed);
        assert!(snapshots.list().await.is_empty());
        assert!(!part.exists() && !whole.exists() && !meta.exists(), "nothing stays of it");
        assert_eq!(publisher.log().await.state(), LogState::Active);
        publisher.accepts(adjusted(&format!("after-{failed}"), "a", 1)).await;
    }
    assert!(failed > 0, "nothing was injected");
    assert_eq!(snapshots.places().await, [1]);
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
}

/// Errors that were injected so far.
fn injected(trace: &Path) -> usize {
    let text = std::fs::read_to_string(trace).unwrap_or_default();
    text.lines().filter(|line| line.contains("(INJECTED)")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_a_snapshot_costs_that_snapshot_only() {
    if !has("strace") {
        skip!("strace is missing");
    }
    let calls = [
        (File::Part, "pwrite64", 1),
        (File::Part, "fsync", 1),
        (File::Meta, "pwrite64", 1),
        (File::Meta, "fsync", 1),
        (File::Meta, "rename", 1),
        (File::Directory, "fsync", 1),
        (File::Part, "rename", 1),
        (File::Directory, "fsync", 2),
    ];
    for (file, call, n) in calls {
        fails_at(file, call, n).await;
    }
}
