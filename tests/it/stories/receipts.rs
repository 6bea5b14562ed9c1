//! Receipts files that are damaged or lost: said at the start, and made anew by one
//! command, as far as that is possible.

use std::{
    fs,
    path::{Path, PathBuf},
};

use counterfoil::proto::{
    pb::{PublishOutcome, Receipt, ReceiptState},
    refusal::Reason,
};

use crate::harness::{
    clock::{HOUR_MS, SteppedClock},
    events::{adjusted, adjustments, uuid_v7, without_outcome},
    files::segments,
    pair::directory,
    publisher::{Publisher, Setup},
    refusal::refused,
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

/// Where nothing has been truncated, the log tells it all.
#[tokio::test(flavor = "multi_thread")]
async fn a_whole_log_makes_lost_receipts_anew_by_itself() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let receipts = publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let successor = publisher.successor();
    publisher.terminate();
    for file in files(dir.path()) {
        fs::remove_file(file).expect("removed");
    }
    fs::remove_file(dir.path().join("publisher/logs/main/receipts")).expect("removed");
    let publisher = successor.start();
    let repeats = publisher.publish(adjustments("k", 5)).await.expect("known");
    for (repeat, first) in repeats.iter().zip(&receipts) {
        assert_eq!(repeat.outcome(), PublishOutcome::Duplicate);
        assert_eq!(without_outcome(repeat), without_outcome(first));
    }
    assert_eq!(publisher.log().await.next_sequence, Some(5));
}

/// The way back may forget, but executes nothing twice that has a time.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_given_up_is_no_new_intent() {
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let publisher = Publisher::at(dir.path()).clock(&clock).config(RESTLESS).start();
    let given_up = adjusted(&uuid_v7(clock.now_ms(), 1), "camera", 1);
    publisher.accepts(given_up.clone()).await;
    clock.stands_ahead(HOUR_MS);
    let kept = publisher.accepts(adjusted("k", "camera", 1)).await;
    wait_until("the first segment is gone", async || {
        (segments(publisher.dir()).len() == 1).then_some(())
    })
    .await;
    let successor = publisher.successor();
    publisher.terminate();
    for file in files(dir.path()) {
        fs::remove_file(file).expect("removed");
    }
    refuses(&successor);
    let rebuilt = Publisher::rebuild_receipts(dir.path(), &["--forget-truncated"]);
    assert_eq!(rebuilt.code(), Some(0), "{rebuilt:?}");

    let publisher = successor.start();
    refused(publisher.publish(vec![given_up.clone()]).await, Reason::KeyExpired);
    assert_eq!(publisher.receipt(&given_up.key).await.state(), ReceiptState::Expired);
    let repeat = publisher.accepts(adjusted("k", "camera", 1)).await;
    assert_eq!(without_outcome(&repeat), without_outcome(&kept));
    assert_eq!(publisher.log().await.next_sequence, Some(2));
}

/// Truncation leaves many small files, and expiry fewer receipts in them: they are
/// made few again, and none of what is held is lost on the way.
#[tokio::test(flavor = "multi_thread")]
async fn many_small_files_become_few_and_keep_what_is_held() {
    const ROUNDS: u16 = 40;
    let dir = directory();
    let clock = SteppedClock::new(dir.path());
    let config = format!("{RESTLESS}key_window = \"10h\"\n");
    let mut publisher = Publisher::at(dir.path()).clock(&clock).config(&config).start();
    let mut first = Vec::new();
    let mut last_ms = 0;
    for round in 0..ROUNDS {
        clock.stands_ahead(i64::from(round) * HOUR_MS);
        last_ms = clock.now_ms();
        for key in [format!("order-{round}"), uuid_v7(last_ms, round)] {
            first.push(publisher.accepts(adjusted(&key, "camera", 1)).await);
        }
        // Each start looks at once for what may go.
        publisher.process.kill();
        publisher = publisher.restart();
    }
    wait_until("the files are few", async || (files(dir.path()).len() < 20).then_some(())).await;
    wait_until("what has expired is forgotten", async || {
        let keys = publisher.log().await.keys.expect("always set");
        (keys <= i64::from(ROUNDS) + 11).then_some(())
    })
    .await;
    publisher = publisher.restart();
    for (n, receipt) in first.iter().enumerate() {
        let repeat = publisher.publish(vec![adjusted(&receipt.key, "camera", 1)]).await;
        let is_untimed = n % 2 == 0;
        if is_untimed || n / 2 > usize::from(ROUNDS) - 10 {
            let repeat = repeat.expect("held").remove(0);
            assert_eq!(without_outcome(&repeat), without_outcome(receipt));
        } else if n / 2 < usize::from(ROUNDS) - 12 {
            refused(repeat, Reason::KeyExpired);
        }
    }
    let next = adjusted(&uuid_v7(last_ms, 99), "camera", 1);
    let receipt = publisher.accepts(next).await;
    assert_eq!(receipt.subject_version, Some(2 * i64::from(ROUNDS) + 1));
}
