//! A -> B -> C: what follows from an event in one service is an event of the next one, each
//! exactly once and in order, whatever dies between them.

mod put_back;

use counterfoil::proto::{
    crash,
    pb::ReceiverState,
    refusal::{Reason, reason_of},
};

use crate::harness::{
    chain::{Chain, projection},
    chance::Chance,
    events::{adjusted, event},
    pair::directory,
    process::{Ended, Launch},
    producer::{Producer, stop_all},
    proxy::{Link, Proxy},
    publisher::Publisher,
    receiver::Receiver,
    tools::counterfoil,
    wait::wait_until,
};

/// The one in the middle dies at a place, comes back, and what follows is there once.
async fn dies_at(point: &str, after: u32) {
    println!("{point}, after {after} passes");
    let chain = Chain::start();
    let dying = chain.warehouse(&chain.second.url()).dies_at(point, after);
    let producer = Producer::start(chain.first.client.clone(), "p", 3);
    let receiver = match dying.clone().try_start() {
        Ok(mut receiver) => {
            let status = receiver.process.wait_for_end();
            assert!(!status.success(), "it died: {status}");
            assert!(receiver.process.said().contains(point), "elsewhere than at {point}");
            receiver.restart()
        }
        // The checkpoint after an open is passed before it listens.
        Err(ended) => {
            assert!(ended.by_signal() && ended.stderr.contains(point), "{ended:?}");
            dying.sound().start()
        }
    };
    producer.stop().await;
    chain.settles(&receiver).await;
    chain.check(receiver.db()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_dies_at_every_place_and_each_follow_up_is_there_once() {
    for point in crash::RECEIVER_FORWARDING.into_iter().chain(crash::RECEIVER) {
        dies_at(point, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_dies_at_every_place_later_on_and_each_follow_up_is_there_once() {
    for point in crash::RECEIVER_FORWARDING {
        for after in [1, 4] {
            dies_at(point, after).await;
        }
    }
}

const KILLS: usize = 24;

/// Any of those behind the first publisher is killed, and replies on the way between them
/// are lost.
#[tokio::test(flavor = "multi_thread")]
async fn killed_anywhere_each_follow_up_is_there_once() {
    let mut chance = Chance::new();
    let mut chain = Chain::start();
    let way = Proxy::to(chain.second.address).await;
    let mut warehouse = chain.warehouse(&way.url()).start();
    let producers: Vec<_> =
        (0..3).map(|n| Producer::start(chain.first.client.clone(), &format!("p{n}"), 3)).collect();
    for kill in 0..KILLS {
        let before = chain.second.log().await.next_sequence;
        wait_until("follow-ups come through", async || {
            (chain.second.try_log().await.ok()?.next_sequence > before).then_some(())
        })
        .await;
        let what = chance.below(4);
        println!(
            "{kill}: {}",
            ["warehouse", "second publisher", "purchasing", "way"][what as usize]
        );
        match what {
            0 => {
                chance.moment(40).await;
                warehouse.process.kill();
                warehouse = warehouse.restart();
            }
            1 => {
                chance.moment(40).await;
                chain.second.process.kill();
                chain.second = chain.second.restart();
            }
            2 => {
                chance.moment(40).await;
                chain.buyer.process.kill();
                chain.buyer = chain.buyer.restart();
            }
            // Requests arrive, receipts do not; then the connection breaks.
            _ => {
                way.set(Link::DeafClient);
                chance.moment(40).await;
                way.cut();
                way.set(Link::Open);
            }
        }
    }
    let accepted = stop_all(producers).await;
    chain.settles(&warehouse).await;
    chain.check(warehouse.db()).await;
    println!("{} events", accepted.len());
}

/// The other publisher is down: events are applied all the same, the status says what waits
/// and why, and once it is there again all comes through.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_forwarded_waits_and_holds_nothing_up() {
    let mut chain = Chain::start();
    let warehouse = chain.warehouse(&chain.second.url()).start();
    chain.second.process.kill();
    let events = (0..2_500).map(|n| adjusted(&format!("k{n}"), "camera", 1));
    for batch in events.collect::<Vec<_>>().chunks(500) {
        chain.first.publish(batch.to_vec()).await.expect("accepted");
    }
    warehouse.applies(2_499).await;
    let status = wait_until("it says that they wait", async || {
        let status = warehouse.status().await;
        status.forward_failure.is_some().then_some(status)
    })
    .await;
    assert_eq!((status.state(), status.outbox_pending), (ReceiverState::Live, Some(2_500)));
    let failure = status.forward_failure.expect("there");
    assert_eq!((failure.reason.as_str(), failure.sequence), ("FORWARD_UNREACHABLE", Some(0)));
    assert_eq!(failure.key, "k0/warehouse/moved/0");
    assert!(failure.next_attempt_time.is_some() && failure.attempts >= Some(1), "{failure:?}");
    let detail = &status.state_detail;
    assert!(
        detail.contains("2500 follow-up events wait") && detail.contains("by itself"),
        "{detail}"
    );
    chain.second = chain.second.restart();
    chain.settles(&warehouse).await;
    chain.check(warehouse.db()).await;
    assert_eq!(warehouse.status().await.forward_failure, None);
}

/// One that the other publisher will never take: those before it are there, those after it
/// wait until a person has given it up.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_for_good_waits_for_a_person() {
    let chain = Chain::start();
    // Somebody else has used that key.
    let taken = "k2/warehouse/moved/0";
    chain.second.accepts(event(taken, "other.type", "x", "{}")).await;
    let events: Vec<_> = (0..5).map(|n| adjusted(&format!("k{n}"), "camera", 1)).collect();
    chain.first.publish(events).await.expect("accepted");
    let warehouse = chain.warehouse(&chain.second.url()).start();
    let stopped = async |receiver: &Receiver| {
        wait_until("forwarding has stopped", async || {
            let status = receiver.try_status().await.ok()?;
            let failure = status.forward_failure.clone()?;
            (failure.reason == "KEY_CONFLICT").then_some((status, failure))
        })
        .await
    };
    stopped(&warehouse).await;
    // A restart changes nothing.
    let warehouse = warehouse.restart();
    let (status, failure) = stopped(&warehouse).await;
    assert_eq!((failure.sequence, failure.follow_up), (Some(2), Some(0)));
    assert_eq!((failure.key.as_str(), failure.next_attempt_time), (taken, None));
    assert_eq!((status.cursor.expect("one").sequence, status.outbox_pending), (Some(4), Some(3)));
    let detail = &status.state_detail;
    assert!(detail.contains("skip-follow-up --receiver URL 2 0 --reason"), "{detail}");

    let skip = |args: &[&str]| -> Ended {
        let url = warehouse.url();
        counterfoil(["skip-follow-up", "--receiver", &url].into_iter().chain(args.iter().copied()))
            .run()
    };
    let shown =
        counterfoil(["status", "--publisher", &chain.first.url(), "--receiver", &warehouse.url()]);
    let shown = shown.run();
    assert_eq!(shown.code(), Some(1), "it waits for a person: {shown:?}");
    assert!(shown.stdout.contains("KEY_CONFLICT"), "{shown:?}");
    for wrong in [["3", "0"], ["2", "1"]] {
        let refused = skip(&[wrong[0], wrong[1], "--reason", "no use"]);
        assert_eq!(refused.code(), Some(1), "{refused:?}");
        assert!(refused.stderr.contains("has stopped at follow-up 0 of event 2"), "{refused:?}");
    }
    let done = skip(&["2", "0", "--reason", "already told by hand"]);
    assert_eq!(done.code(), Some(0), "{done:?}");
    chain.settles(&warehouse).await;
    let keys: Vec<_> = chain.second.everything().await.into_iter().map(|event| event.key).collect();
    assert_eq!(keys[1..], [0, 1, 3, 4].map(|n| format!("k{n}/warehouse/moved/0")));
    let again = warehouse.skip_follow_up(2, 0, "again").await.expect_err("nothing is in the way");
    assert_eq!(reason_of(&again), Some(Reason::WrongState));
    let rows = crate::harness::ledger::open(warehouse.db());
    let why = "SELECT given_up FROM counterfoil_outbox WHERE sequence = 2";
    let why: String = rows.query_row(why, [], |row| row.get(0)).expect("there");
    assert_eq!(why, "already told by hand");
}

/// Where forwarding has stopped, another follow-up event has come into the place of the one
/// that was refused, as when a rebuilt database takes over: it is not waited for a person.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_has_become_another_one() {
    let chain = Chain::start();
    chain.second.accepts(event("k1/warehouse/moved/0", "other.type", "x", "{}")).await;
    let warehouse = chain.warehouse(&chain.second.url()).start();
    let events: Vec<_> = (0..3).map(|n| adjusted(&format!("k{n}"), "camera", 1)).collect();
    chain.first.publish(events).await.expect("accepted");
    wait_until("forwarding has stopped", async || {
        let failure = warehouse.try_status().await.ok()?.forward_failure?;
        (failure.reason == "KEY_CONFLICT" && failure.next_attempt_time.is_none()).then_some(())
    })
    .await;
    let tables = rusqlite::Connection::open(warehouse.db()).expect("opened");
    tables.busy_timeout(std::time::Duration::from_secs(10)).expect("set");
    let other = "UPDATE counterfoil_outbox SET key = 'another' WHERE sequence = 1";
    assert_eq!(tables.execute(other, []).expect("changed"), 1);
    drop(tables);
    // It looks again when there is more.
    chain.first.accepts(adjusted("k3", "camera", 1)).await;
    chain.settles(&warehouse).await;
    let keys: Vec<_> = chain.second.everything().await.into_iter().map(|event| event.key).collect();
    let [after, last] = [2, 3].map(|n| format!("k{n}/warehouse/moved/0"));
    assert_eq!(keys[1..], ["k0/warehouse/moved/0".to_owned(), "another".to_owned(), after, last]);
}

/// Follow-ups that nothing is told to forward are no setting to begin with.
#[tokio::test(flavor = "multi_thread")]
async fn a_projection_that_emits_needs_somewhere_to_send_it() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let setup =
        Receiver::at(dir.path(), &publisher.url()).arg("--projection").arg(projection("warehouse"));
    let ended = setup.refuses();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("--forward-to"), "{ended:?}");
}

/// The database of the one in the middle is put back to an earlier moment: what follows is
/// sent again, and is there already.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_put_back_sends_nothing_twice() {
    let chain = Chain::start();
    let warehouse = chain.warehouse(&chain.second.url()).start();
    let first: Vec<_> = (0..20).map(|n| adjusted(&format!("a{n}"), "camera", 1)).collect();
    chain.first.publish(first).await.expect("accepted");
    warehouse.applies(19).await;
    let (setup, db) = (warehouse.successor(), warehouse.db().to_owned());
    warehouse.terminate();
    let copy = db.with_extension("copy");
    std::fs::copy(&db, &copy).expect("copied");
    let warehouse = setup.clone().start();
    let more: Vec<_> = (0..20).map(|n| adjusted(&format!("b{n}"), "camera", -2)).collect();
    chain.first.publish(more).await.expect("accepted");
    chain.settles(&warehouse).await;
    warehouse.terminate();
    std::fs::copy(&copy, &db).expect("put back");
    let warehouse = setup.start();
    chain.settles(&warehouse).await;
    chain.check(warehouse.db()).await;
    // And from nothing at all.
    let setup = warehouse.successor();
    warehouse.terminate();
    std::fs::remove_file(&db).expect("removed");
    let warehouse = setup.start();
    chain.settles(&warehouse).await;
    chain.check(warehouse.db()).await;
}

/// The commands of docs/chains.md, as they stand there.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_documentation_do_what_they_say() {
    let docs = include_str!("../../../docs/chains.md");
    let (_, commands) = docs.split_once("```sh\n").expect("commands");
    let (commands, _) = commands.split_once("```").expect("their end");
    let dir = directory();
    let commands = commands
        .replace("/tmp/chain", dir.path().to_str().expect("UTF-8"))
        .replace("127.0.0.1", &crate::harness::loopback::address().to_string())
        // Typed by a person, that comes a while after the services were started.
        .replace("counterfoil query", "patiently counterfoil query");
    let script = format!(
        "cd '{root}'
         trap 'kill $(jobs -p)' EXIT
         patiently() {{ for n in $(seq 200); do \"$@\" 2>/dev/null && return; sleep 0.1; done; }}
         {commands}",
        root = env!("CARGO_MANIFEST_DIR"),
    );
    let programs = std::path::Path::new(env!("CARGO_BIN_EXE_counterfoil")).parent();
    let programs = programs.expect("a directory").to_str().expect("UTF-8");
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let ended = Launch::new("bash").args(["-euc", &script]).env("PATH", path).run();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    for expected in ["2 appended", "d2/warehouse/low/0", "d1/warehouse/moved/0", "stock.low"] {
        assert!(ended.stdout.contains(expected), "{expected:?} is missing in {ended:?}");
    }
}
