//! A process death at every named place, on both sides. The places come from the
//! one list, so a new one is covered by itself.

use counterfoil::proto::crash;

use crate::harness::{
    pair::{Pair, directory},
    producer::{Producer, stop_all},
    publisher::Publisher,
    receiver::Receiver,
    wait::wait_until,
};

/// Small segments and few retained events, so that every place is passed soon; a
/// log that rejects keeps what the receiver has not got yet.
const SMALL: &str = "\
[logs.main]
max_events = 60
when_full = \"reject\"
segment_bytes = 4096
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
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_every_place_and_loses_nothing() {
    for point in crash::PUBLISHER {
        publisher_dies_at(point, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_publisher_dies_at_every_place_later_on_and_loses_nothing() {
    for point in crash::PUBLISHER {
        publisher_dies_at(point, 3).await;
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
