//! Receipts files that are damaged or lost: said at the start, and made anew by one
//! command, as far as that is possible.

use std::{
    fs,
    path::{Path, PathBuf},
};

use counterfoil::proto::pb::{PublishOutcome, Receipt, ReceiptState};

use crate::harness::{
    events::adjusted,
    pair::directory,
    publisher::{Publisher, Setup},
    wait::wait_until,
};

/// Every event has a segment of its own, and all but the last are truncated.
const RESTLESS: &str = "[logs.main]\nmax_events = 1\nsegment_bytes = 1\n";

fn files(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir.join("publisher/logs/main")).expect("the log's directory");
    let paths = files.map(|file| file.expect("listed").path());
    let mut receipts: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|name| name == "receipts")).collect();
    receipts.sort_unstable();
    receipts
}

/// Publishes events whose receipts, but the last one's, are then in one file only.
async fn truncated(dir: &Path) -> (Setup, Vec<Receipt>) {
    let publisher = Publisher::at(dir).config(RESTLESS).start();
    let mut receipts = Vec::new();
    for n in 0..4 {
        receipts.push(publisher.accepts(adjusted(&format!("k{n}"), "camera", n)).await);
    }
    wait_until("the segments of truncated events are gone", async || {
        let files = fs::read_dir(dir.join("publisher/logs/main")).ok()?;
        let names = files.map_while(|file| file.ok()?.file_name().into_string().ok());
        (names.filter(|name| name.ends_with(".seg")).count() == 1).then_some(())
    })
    .await;
    let successor = publisher.successor();
    publisher.terminate();
    (successor, receipts)
}

/// A start is refused, and names the command.
fn refuses(successor: &Setup) {
    let refused = successor.clone().refuses();
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains("publisher rebuild-receipts --data-dir"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_list_of_receipts_is_made_anew_and_every_retry_gets_its_receipt() {
    let dir = directory();
    let (successor, receipts) = truncated(dir.path()).await;
    fs::remove_file(dir.path().join("publisher/logs/main/receipts")).expect("removed");
    refuses(&successor);
    let rebuilt = Publisher::rebuild_receipts(dir.path(), &[]);
    assert_eq!(rebuilt.code(), Some(0), "{rebuilt:?}");
    assert!(rebuilt.stdout.contains("4 receipts are held"), "{rebuilt:?}");

    let publisher = successor.start();
    for (n, first) in (0..).zip(&receipts) {
        let repeat = publisher.accepts(adjusted(&first.key, "camera", n)).await;
        let duplicate = Receipt { outcome: PublishOutcome::Duplicate.into(), ..first.clone() };
        assert_eq!(repeat, duplicate);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_that_are_lost_are_given_up_only_when_told_so() {
    let dir = directory();
    let (successor, receipts) = truncated(dir.path()).await;
    for file in files(dir.path()) {
        fs::write(file, "damaged").expect("written");
    }
    refuses(&successor);
    let refused = Publisher::rebuild_receipts(dir.path(), &["--log", "main"]);
    assert_eq!(refused.code(), Some(3), "{refused:?}");
    assert!(refused.stderr.contains("--forget-truncated"), "{refused:?}");
    refuses(&successor);
    let rebuilt = Publisher::rebuild_receipts(dir.path(), &["--forget-truncated"]);
    assert_eq!(rebuilt.code(), Some(0), "{rebuilt:?}");
    assert!(rebuilt.stdout.contains("forgot the receipts of 0 to "), "{rebuilt:?}");

    let publisher = successor.start();
    let last = &receipts[3];
    let kept = publisher.receipt(&last.key).await.receipt.expect("its event is in the log");
    assert_eq!(kept.sequence, last.sequence);
    assert_eq!(publisher.receipt("k0").await.state(), ReceiptState::Expired);
    let next = publisher.accepts(adjusted("k4", "camera", 1)).await;
    assert_eq!(next.subject_version, Some(5), "a later event has told the version");
}
