//! `kill -9` at random moments under load, both sides, again and again.

use crate::harness::{
    chance::Chance,
    pair::Pair,
    producer::{Producer, stop_all},
    wait::wait_until,
};

const KILLS: usize = 36;

#[tokio::test(flavor = "multi_thread")]
async fn thirty_six_kills_change_nothing() {
    let mut chance = Chance::new();
    let mut pair = Pair::start();
    let producers: Vec<_> = (0..4)
        .map(|n| Producer::start(pair.publisher.client.clone(), &format!("p{n}"), 3))
        .collect();
    for kill in 0..KILLS {
        let answered = producers.iter().map(Producer::answered).sum::<usize>();
        wait_until("load goes on", async || {
            let now: usize = producers.iter().map(Producer::answered).sum();
            (now > answered + 10).then_some(())
        })
        .await;
        chance.moment(60).await;
        let victim = chance.below(3);
        println!("kill {kill}: {}", ["the receiver", "the publisher", "both"][victim as usize]);
        if victim != 1 {
            pair.receiver.process.kill();
        }
        if victim != 0 {
            pair.publisher.process.kill();
            pair.publisher = pair.publisher.restart();
        }
        // The order matters: what is acknowledged is read before what is
        // committed, and that before what is accepted.
        let acked = pair.publisher.acked("receiver").await.and_then(|cursor| cursor.sequence);
        let ledger = pair.receiver.ledger();
        ledger.check(&pair.publisher.accepted().await, acked);
        if victim != 1 {
            pair.receiver = pair.receiver.restart();
        }
    }
    let accepted = stop_all(producers).await;
    let ledger = pair.settles().await;
    ledger.check(&accepted, None);
    assert_eq!(ledger.rows.len(), accepted.len(), "each intent has one place in the log");
    println!("{} events", accepted.len());
}
