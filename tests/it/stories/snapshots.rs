//! Snapshots at the publisher: uploaded, listed, downloaded, byte for byte.

mod failing_disk;
mod kept;
mod killed;
mod large;
mod refused;
mod resumed;

use counterfoil::proto::pb::Cursor;

use crate::harness::{
    events::{adjustments, cursors},
    pair::directory,
    publisher::Publisher,
    snapshot::{Content, Snapshots, files},
    tools::{counterfoil, grpcurl, has, skip},
};

/// A place in the log after each of its first events.
async fn places(publisher: &Publisher, events: usize) -> Vec<Cursor> {
    cursors(&publisher.publish(adjustments("k", events)).await.expect("accepted"))
}

#[tokio::test(flavor = "multi_thread")]
async fn one_is_uploaded_in_pieces_listed_and_downloaded() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let places = places(&publisher, 3).await;
    assert_eq!(publisher.log().await.snapshot, None);
    let snapshots = Snapshots::of(&publisher);
    assert!(snapshots.list().await.is_empty());

    let content = Content::new(1, 2_500_003);
    let snapshot = content.at(&places[1]);
    assert_eq!(snapshots.offset(&snapshot).await, 0);
    assert!(snapshots.list().await.is_empty(), "an offer is no snapshot");
    let stored = snapshots.upload(&snapshot, &content, 0, 99_991).await.expect("stored");
    assert_eq!(stored.snapshot.as_ref(), Some(&snapshot));
    assert_eq!(snapshots.list().await, std::slice::from_ref(&snapshot));
    assert_eq!(publisher.log().await.snapshot.as_ref(), Some(&places[1]));
    for from in [0, 1, 262_143, 262_145, content.size - 1, content.size] {
        snapshots.downloads(&snapshot, &content, from).await.expect("whole");
    }

    // Once more: there is nothing to do, and it is done.
    let again = snapshots.offer(&snapshot).await.expect("an offer");
    assert_eq!((again.stored, again.offset), (true, snapshot.size_bytes));
    let again = snapshots.upload(&snapshot, &content, 0, 99_991).await.expect("stored");
    assert_eq!(again.snapshot.as_ref(), Some(&snapshot));

    let publisher = publisher.restart();
    let snapshots = Snapshots::of(&publisher);
    assert_eq!(snapshots.places().await, [1]);
    assert!(snapshots.offer(&snapshot).await.expect("an offer").stored);
    snapshots.downloads(&snapshot, &content, 0).await.expect("whole");
    let (part, whole) = files(&publisher, &snapshot);
    assert!(!part.exists() && whole.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_comes_first_and_the_tool_shows_them() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let places = places(&publisher, 4).await;
    let tool = |more: &[&str]| {
        let ended = counterfoil(["snapshots", "--publisher", &publisher.url()]).args(more.to_vec());
        let ended = ended.run();
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        ended.stdout
    };
    assert!(tool(&[]).contains("main has no snapshot"));
    let snapshots = Snapshots::of(&publisher);
    for (seed, place) in [(1, 2), (2, 1)] {
        let content = Content::new(seed, 5_000);
        snapshots.store(&content.at(&places[place]), &content).await.expect("stored");
    }
    assert_eq!(snapshots.places().await, [2, 1]);
    let table = tool(&[]);
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("SEQUENCE"), "{table}");
    assert!(lines[1].starts_with('2') && lines[2].starts_with('1'), "{table}");
    assert!(lines[1].contains("inventory 1") && lines[1].contains("shop"), "{table}");
    let told: serde_json::Value = serde_json::from_str(&tool(&["--json"])).expect("JSON");
    assert_eq!(told["snapshots"][0]["cursor"]["sequence"], 2);
    assert_eq!(told["snapshots"][1]["sizeBytes"], 5_000);
    let other = tool(&["--json", "--projection", "other"]);
    let other: serde_json::Value = serde_json::from_str(&other).expect("JSON");
    assert_eq!(other["snapshots"], serde_json::json!([]));
}

/// The lines of docs/snapshots.md.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_lists_and_downloads_with_grpcurl() {
    const SERVICE: &str = "counterfoil.v1.SnapshotService";
    if !has("grpcurl") {
        skip!("grpcurl is missing");
    }
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let place = places(&publisher, 1).await.remove(0);
    let content = Content::new(1, 300_000);
    Snapshots::of(&publisher).store(&content.at(&place), &content).await.expect("stored");
    let address = publisher.address.to_string();
    let described = grpcurl([address.as_str(), "describe", SERVICE]);
    assert!(described.stdout.contains("rpc UploadSnapshot ( stream"), "{described:?}");
    let listed = grpcurl([&address, &format!("{SERVICE}/ListSnapshots")]);
    assert_eq!(listed.code(), Some(0), "{listed:?}");
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).expect("JSON");
    let snapshot = &listed["snapshots"][0];
    assert_eq!(snapshot["sizeBytes"], "300000");
    let request = format!(r#"{{"sha256":{},"offset":"0"}}"#, snapshot["sha256"]);
    let sent = grpcurl(["-d", &request, &address, &format!("{SERVICE}/DownloadSnapshot")]);
    assert_eq!(sent.code(), Some(0), "{sent:?}");
    let parts: Vec<serde_json::Value> = serde_json::Deserializer::from_str(&sent.stdout)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("JSON");
    assert_eq!(parts.last().expect("an end")["end"]["sha256"], snapshot["sha256"]);
}
