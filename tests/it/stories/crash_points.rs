//! A process death at every named place, on both sides. The places come from the
//! one list, so a new one is covered by itself.

use counterfoil::proto::{
    crash,
    pb::{PublishOutcome, ReceiptState},
    refusal::{Reason, reason_of},
};
use uuid::Uuid;

use crate::harness::{
    events::adjusted,
    pair::{Pair, directory},
    producer::{Producer, stop_all},
    publisher::Publisher,
    receiver::Receiver,
    wait::wait_until,
};

/// Small segments and few retained events, so that every place is passed soon; a
/// log that rejects keeps what the receiver has not got yet. The key floor moves with
/// every group; the producers' keys have no time.
const SMALL: &str = "\
[logs.main]
max_events = 60
when_full = \"reject\"
segment_bytes = 4096
key_window = \"1s\"
";

/// The publisher dies at a place, comes back, and everything is where it was.
async fn publisher_dies_at(point: &str, after: u32) {
    println!("{point}, after {after} passes");
    let dir = directory();
    let dying = Publisher::at(dir.path()).config(SMALL).dies_at(point, after);
    let mut publisher = match dying.clone().try_start() {
        Ok(publisher) => publisher,
        // Some places are passed while a new directory is made.
        Err(ended) => {
            assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
            dying.sound().start()
        }
    };
    let receiver = Receiver::start(dir.path(), &publisher.url());
    let producers: Vec<_> =
        (0..3).map(|n| Producer::start(publisher.client.clone(), &format!("p{n}"), 4)).collect();
    if publisher.dying() {
        let status = publisher.process.wait_for_end();
        assert!(!status.success(), "it died: {status}");
        assert!(publisher.process.said().contains(point), "elsewhere than at {point}");
        publisher = publisher.restart();
    }
    let answered: usize = producers.iter().map(Producer::answered).sum();
    wait_until("the producers go on", async || {
        let now: usize = producers.iter().map(Producer::answered).sum();
        (now >= answered + 60).then_some(())
    })
    .await;
    let accepted = stop_all(producers).await;
    let next = publisher.log().await.next_sequence.expect("always set");
    // Each intent was answered with one number, and no number is anybody's else.
    let numbers: Vec<_> = accepted.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (0..next).collect::<Vec<_>>());
    publisher.waits_for_ack("receiver", next - 1).await;
    let ledger = receiver.ledger();
    assert_eq!(ledger.rows.len() as i64, next);
    ledger.check(&accepted, Some(next - 1));
    publisher.tells_what_was_done("receiver", &ledger).await;
}

/// Places that are passed when receipts expire; the others come with every event.
const EXPIRING: [&str; 2] = [crash::PUBLISHER_AFTER_KEY_FLOOR, crash::PUBLISHER_AFTER_FORGET];

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_every_place_and_loses_nothing() {
    for point in crash::PUBLISHER.into_iter().filter(|point| !EXPIRING.contains(point)) {
        publisher_dies_at(point, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_every_place_later_on_and_loses_nothing() {
    for point in crash::PUBLISHER.into_iter().filter(|point| !EXPIRING.contains(point)) {
        publisher_dies_at(point, 3).await;
    }
}

/// Every event has a segment of its own, so that receipts are saved soon.
const EXPIRES: &str = "\
[logs.main]
max_events = 1
segment_bytes = 1
key_window = \"1h\"
";
/// More than the key window, in milliseconds.
const STEP: &str = "7200000";

/// The clock is stepped over the window, the publisher dies at a place, and comes back
/// with the clock as it was: what has expired stays so.
async fn publisher_dies_at_while_receipts_expire(point: &str, after: u32) {
    println!("{point}, after {after} passes");
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config(EXPIRES).start();
    let (mut timed, mut kept) = (Vec::new(), Vec::new());
    for n in 1..=3 {
        for _ in 0..5 {
            let key = Uuid::now_v7().to_string();
            publisher.accepts(adjusted(&key, "camera", 1)).await;
            timed.push(key);
        }
        kept.push(publisher.accepts(adjusted(&format!("kept-{n}"), "lens", 1)).await);
        wait_until("their receipts are in a file", async || {
            let files = std::fs::read_dir(publisher.dir().join("logs/main")).ok()?;
            let names = files.map_while(|file| file.ok()?.file_name().into_string().ok());
            (names.filter(|name| name.ends_with(".receipts")).count() >= n).then_some(())
        })
        .await;
    }
    let successor = publisher.successor();
    drop(publisher);
    let clock = dir.path().join("clock");
    std::fs::write(&clock, STEP).expect("the clock can be stepped");
    let dying = successor.clone().env("COUNTERFOIL_CLOCK_STEP_FILE", &clock);
    match dying.dies_at(point, after).try_start() {
        Ok(mut publisher) => {
            let status = publisher.process.wait_for_end();
            assert!(!status.success(), "it died: {status}");
            assert!(publisher.process.said().contains(point), "elsewhere than at {point}");
        }
        Err(ended) => assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}"),
    }

    let publisher = successor.start();
    let next = publisher.log().await.next_sequence;
    for key in &timed {
        let late = publisher.publish(vec![adjusted(key, "camera", 1)]).await;
        assert_eq!(reason_of(&late.expect_err("too late")), Some(Reason::KeyExpired));
        assert_eq!(publisher.receipt(key).await.state(), ReceiptState::Expired);
    }
    for first in &kept {
        let repeat = publisher.accepts(adjusted(&first.key, "lens", 1)).await;
        assert_eq!(repeat.outcome(), PublishOutcome::Duplicate);
        assert_eq!(repeat.sequence, first.sequence);
    }
    assert_eq!(publisher.log().await.next_sequence, next, "the head has not moved");
    wait_until("what has expired is forgotten", async || {
        (publisher.log().await.keys == Some(kept.len() as i64)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_while_receipts_expire_and_none_comes_back() {
    for (point, after) in EXPIRING.into_iter().zip([0, 0]).chain([(EXPIRING[1], 1)]) {
        publisher_dies_at_while_receipts_expire(point, after).await;
    }
}

/// The receiver dies at a place, comes back, and does nothing twice.
async fn receiver_dies_at(point: &str, after: u32) {
    println!("{point}, after {after} passes");
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let dying = Receiver::at(dir.path(), &publisher.url()).dies_at(point, after);
    let producer = Producer::start(publisher.client.clone(), "p", 3);
    let receiver = match dying.clone().try_start() {
        Ok(mut receiver) => {
            let status = receiver.process.wait_for_end();
            assert!(!status.success(), "it died: {status}");
            assert!(receiver.process.said().contains(point), "elsewhere than at {point}");
            let acked = publisher.acked("receiver").await.and_then(|cursor| cursor.sequence);
            receiver.ledger().check(&publisher.accepted().await, acked);
            receiver.restart()
        }
        // The checkpoint after an open is passed before it listens.
        Err(ended) => {
            assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
            dying.sound().start()
        }
    };
    let pair = Pair { receiver, publisher, dir };
    let accepted = producer.stop().await;
    let ledger = pair.settles().await;
    ledger.check(&accepted, None);
    assert_eq!(ledger.rows.len(), accepted.len());
    pair.publisher.tells_what_was_done("receiver", &ledger).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_dies_at_every_place_and_does_nothing_twice() {
    for point in crash::RECEIVER {
        receiver_dies_at(point, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_receiver_dies_at_every_place_later_on_and_does_nothing_twice() {
    for point in crash::RECEIVER {
        receiver_dies_at(point, 1).await;
    }
}
