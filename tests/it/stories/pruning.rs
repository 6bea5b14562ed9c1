//! A ledger that does not grow for ever: what goes, what stays, and that the rest proves
//! as much as before.

use std::path::Path;

use counterfoil::proto::{
    chain, crash,
    event::hex,
    pb::{Event, get_ledger_entry_request::By},
    refusal::Reason,
};

use crate::harness::{
    events::{adjusted, adjustments, reserved},
    ledger,
    pair::{Pair, directory},
    publisher::{Publisher, Setup},
    receiver::Receiver,
    refusal::refused,
    tools::counterfoil,
    wait::wait_until,
};

const RETAINED: i64 = 50;

fn small(publisher: Setup) -> Setup {
    publisher.config(&format!("[logs.main]\nmax_events = {RETAINED}\nsegment_bytes = 4096\n"))
}

/// Where the ledger begins, its rows, and what is kept of those before.
#[derive(Debug)]
struct Ledger {
    from: i64,
    chain: String,
    counts: serde_json::Value,
    rows: Vec<i64>,
}

fn read(db: &Path) -> Ledger {
    let db = ledger::open(db);
    let db = db.unchecked_transaction().expect("one moment");
    let meta = |name: &str| {
        let value = "SELECT value FROM counterfoil_meta WHERE name = ?1";
        db.query_row(value, [name], |row| row.get::<_, String>(0)).ok()
    };
    let rows = "SELECT sequence FROM counterfoil_ledger ORDER BY sequence";
    let mut rows = db.prepare(rows).expect("valid");
    let rows = rows.query_map([], |row| row.get(0)).expect("readable");
    Ledger {
        from: meta("ledger_from").map_or(0, |from| from.parse().expect("a number")),
        chain: meta("ledger_chain").unwrap_or_else(|| "00".repeat(32)),
        counts: meta("ledger_counts")
            .map_or_else(|| serde_json::json!({}), |counts| counts.parse().expect("JSON")),
        rows: rows.collect::<Result<_, _>>().expect("readable"),
    }
}

/// What is left proves what has gone: `events` are all that the log ever had.
fn is_proven(ledger: &Ledger, events: &[Event], cursor: i64) {
    let from = ledger.from;
    assert_eq!(ledger.rows, (from..=cursor).collect::<Vec<_>>(), "no hole, from the first on");
    let mut at = chain::EMPTY_CHAIN;
    for event in &events[..from as usize] {
        let fingerprint = event.fingerprint.as_ref().try_into().expect("32 bytes");
        at = chain::link(&at, event.sequence.expect("always set"), &fingerprint, &event.key);
    }
    assert_eq!(ledger.chain, hex(&at), "the chain up to {from}");
    let counts = ledger.counts.as_object().expect("an object").values();
    assert_eq!(counts.filter_map(serde_json::Value::as_i64).sum::<i64>(), from);
}

/// Publishes one by one, and keeps the events before they are dropped. Fewer than are
/// retained, so that a receiver that has all before them is not overtaken.
async fn publishes(publisher: &Publisher, all: &mut Vec<Event>, count: usize) {
    assert!((count as i64) < RETAINED);
    let name = all.len();
    for (n, event) in adjustments(&format!("k{name}"), count).into_iter().enumerate() {
        let event = match n % 10 {
            9 => reserved(&event.key, "no such item", "t", 1, 1),
            _ => event,
        };
        publisher.accepts(event).await;
        let last = publisher.everything().await.pop().expect("readable at once");
        all.push(last);
    }
}

async fn begins_at(receiver: &Receiver, from: i64) {
    wait_until(&format!("the ledger begins at {from}"), async || {
        (receiver.try_status().await.ok()?.ledger_from_sequence == Some(from)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_events_that_are_gone_go_and_the_rest_is_proven() {
    let dir = directory();
    let publisher = small(Publisher::at(dir.path())).start();
    let keeping = |keep: &str| {
        Receiver::at(dir.path(), &publisher.url()).arg(format!("--keep-ledger={keep}"))
    };
    let receiver = keeping("all").start();
    let mut events = Vec::new();
    for last in [39, 79, 119] {
        publishes(&publisher, &mut events, 40).await;
        publisher.waits_for_ack("receiver", last).await;
    }
    assert_eq!(receiver.status().await.ledger_from_sequence, Some(0), "all is the default");
    assert_eq!(read(receiver.db()).rows.len(), 120);
    assert_eq!(receiver.terminate().code(), Some(0));

    // What is young stays, what is not retained and old goes.
    let receiver = keeping("1h").start();
    publishes(&publisher, &mut events, 5).await;
    publisher.waits_for_ack("receiver", 124).await;
    assert_eq!(receiver.status().await.ledger_from_sequence, Some(0));
    assert_eq!(receiver.terminate().code(), Some(0));
    let receiver = keeping("1ms").start();
    begins_at(&receiver, 125 - RETAINED).await;
    is_proven(&read(receiver.db()), &events, 124);
    assert_eq!(receiver.terminate().code(), Some(0));

    let receiver = keeping("retained").start();
    publishes(&publisher, &mut events, 30).await;
    begins_at(&receiver, 155 - RETAINED).await;
    let left = read(receiver.db());
    is_proven(&left, &events, 154);
    assert_eq!(left.counts, serde_json::json!({"APPLIED": 95, "REJECTED": 10}));

    // What has gone is said to have gone, and what stands is shown.
    let gone = refused(receiver.entry(By::Sequence(104)).await, Reason::NotFound);
    assert!(gone.message.contains("pruned"), "{gone:?}");
    assert_eq!(gone.number("ledger_from"), 105);
    let gone = refused(receiver.entry(By::Key(events[0].key.clone())).await, Reason::NotFound);
    assert!(gone.message.contains("pruned"), "{gone:?}");
    assert_eq!(receiver.entry(By::Sequence(105)).await.expect("there").key, events[105].key);
    let never = refused(receiver.entry(By::Sequence(155)).await, Reason::NotFound);
    assert!(!never.message.contains("pruned"), "{never:?}");
    // The publisher still tells of each key what was done with it.
    assert_eq!(publisher.outcomes(&events[9].key).await[0].1.as_str_name(), "OUTCOME_REJECTED");

    // It goes on from there, and over a restart.
    let receiver = receiver.restart();
    assert_eq!(receiver.status().await.ledger_from_sequence, Some(105));
    publishes(&publisher, &mut events, 3).await;
    receiver.applies(157).await;
    let total = ledger::Ledger::read(receiver.db()).total;
    assert_eq!(total, 158 - 15);
}

/// What is not acknowledged stays, though it is not retained any more.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_goes_while_the_publisher_is_away() {
    let mut pair = Pair::with(small);
    let setup = pair.receiver.successor().arg("--keep-ledger=1ms");
    for round in ["k", "l", "m"] {
        pair.carries(adjustments(round, 40)).await;
    }
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    let again = pair.publisher.successor();
    drop(pair.publisher);
    let alone = setup.clone().start();
    wait_until("it has tried to connect", async || {
        (alone.status().await.connect_attempts >= Some(3)).then_some(())
    })
    .await;
    assert_eq!(read(alone.db()).rows.len(), 120);
    assert_eq!(alone.terminate().code(), Some(0));
    pair.publisher = again.start();
    pair.receiver = setup.start();
    pair.carries(vec![adjusted("n", "x", 1)]).await;
    begins_at(&pair.receiver, 121 - RETAINED).await;
}

/// Killed around the commit that prunes: all of it, or nothing of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_while_it_prunes_leaves_a_ledger_that_is_proven() {
    for (point, after) in
        crash::RECEIVER_PRUNING.into_iter().flat_map(|point| [(point, 0), (point, 1)])
    {
        println!("{point}, after {after} passes");
        let dir = directory();
        let publisher = small(Publisher::at(dir.path())).start();
        let mut events = Vec::new();
        let setup = Receiver::at(dir.path(), &publisher.url()).arg("--keep-ledger=retained");
        let mut receiver = setup.clone().dies_at(point, after).start();
        let db = receiver.db().to_owned();
        // Each time it falls quiet it prunes what has gone since.
        while receiver.process.runs() {
            publishes(&publisher, &mut events, 30).await;
            let last = events.len() as i64 - 1;
            wait_until("it has pruned, or died of it", async || {
                let Ok(status) = receiver.try_status().await else { return Some(()) };
                let pruned = (last + 1 - RETAINED).max(0);
                let acked = status.acked.and_then(|acked| acked.sequence);
                (acked == Some(last) && status.ledger_from_sequence == Some(pruned)).then_some(())
            })
            .await;
        }
        let status = receiver.process.wait_for_end();
        assert!(!status.success(), "it died: {status}");
        assert!(receiver.process.said().contains(point), "elsewhere than at {point}");
        let ledger = read(&db);
        is_proven(&ledger, &events, *ledger.rows.last().expect("rows"));

        let receiver = receiver.restart();
        publishes(&publisher, &mut events, 1).await;
        let last = events.len() as i64 - 1;
        begins_at(&receiver, last + 1 - RETAINED).await;
        is_proven(&read(&db), &events, last);
        let rejected =
            events.iter().filter(|event| event.r#type == "stock.reserved").count() as i64;
        assert_eq!(ledger::Ledger::read(&db).total, last + 1 - rejected, "each effect once");
        // The tables can be made again only from a snapshot.
        receiver.snapshot().await.expect("stored");
        let ended = counterfoil(["verify", "--publisher", &publisher.url(), "--db"]).arg(&db).run();
        assert_eq!(ended.code(), Some(0), "{ended:?}");
    }
}
