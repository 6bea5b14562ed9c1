//! docs/when-it-stops.md: each of its commands, as it is printed there, does what it says.

use std::{fs, path::Path};

use counterfoil::proto::pb::{LogState, ReceiverState};

use crate::harness::{
    chain::Chain,
    events::{adjusted, adjustments, event},
    pair::{Pair, directory},
    process::{Ended, Launch},
    publisher::Publisher,
    put_back::PutBack,
    wait::wait_until,
};

fn page() -> String {
    fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/when-it-stops.md"))
        .expect("there")
}

/// Every state that there is has its row.
#[test]
fn every_state_stands_there() {
    let page = page();
    let named = |state: &str| page.lines().any(|line| line.starts_with(&format!("| {state} |")));
    let receiver = (1..).map_while(|number| ReceiverState::try_from(number).ok());
    let receiver = receiver.map(|state| state.as_str_name().replace("RECEIVER_STATE_", ""));
    let publisher = (1..).map_while(|number| LogState::try_from(number).ok());
    let publisher = publisher.map(|state| state.as_str_name().replace("LOG_STATE_", ""));
    let all: Vec<_> = receiver.chain(publisher).collect();
    assert_eq!(all.len(), 6 + 3);
    for state in all {
        assert!(named(&state), "docs/when-it-stops.md lacks {state}");
    }
}

/// The lines of its code blocks.
fn commands(page: &str) -> Vec<&str> {
    let blocks = page.split("```sh\n").skip(1);
    blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines()).collect()
}

/// What stands for something in a command, and what that is here.
type Places<'a> = &'a [(&'a str, &'a str)];

/// Runs a command as it is printed, but for what it stands for.
fn types(command: &str, places: Places<'_>) -> Ended {
    let word = |word: &str| {
        let here = places.iter().find(|(name, _)| *name == word);
        format!("'{}'", here.map_or(word, |(_, here)| *here))
    };
    let command = command.split(' ').map(word).collect::<Vec<_>>().join(" ");
    let programs = Path::new(env!("CARGO_BIN_EXE_publisher")).parent().expect("a directory");
    Launch::new("sh").args(["-c", &command]).env("PATH", path_with(programs)).run()
}

fn path_with(programs: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = [programs.to_owned()].into_iter().chain(std::env::split_paths(&path));
    std::env::join_paths(all).expect("no colon in it")
}

fn works(command: &str, places: Places<'_>) -> Ended {
    let ended = types(command, places);
    assert_eq!(ended.code(), Some(0), "{command}: {ended:?}");
    ended
}

const PUBLISHER: &str = "http://127.0.0.1:7601";
const RECEIVER: &str = "http://127.0.0.1:7602";

#[tokio::test(flavor = "multi_thread")]
async fn each_command_does_what_is_said_of_it() {
    let page = page();
    let commands = commands(&page);
    for command in &commands {
        println!("{command}");
        let words: Vec<_> = command.split(' ').take(2).collect();
        match words[..] {
            ["publisher", "recover"] => recovers_a_publisher(command).await,
            ["receiver", "recover"] => recovers_a_receiver(command).await,
            ["publisher", "fork"] => forks(command).await,
            ["counterfoil", "skip"] => sets_aside(command).await,
            ["counterfoil", "apply-skipped"] => applies_later(command).await,
            ["counterfoil", "skip-follow-up"] => gives_up(command).await,
            ["counterfoil", "resync"] => resyncs(command).await,
            ["counterfoil", "snapshot"] => makes_a_snapshot(command, &commands).await,
            ["counterfoil", "snapshots"] => {} // beside the one before
            ["counterfoil", "remove-receiver"] => removes(command).await,
            ["counterfoil", "status"] | ["counterfoil", "verify"] => looks(command).await,
            _ => panic!("nothing tells what this does: {command}"),
        }
    }
    // What the tables name is a command of the blocks, or its beginning.
    let named = page.split('`').skip(1).step_by(2).filter(|text| {
        ["publisher ", "receiver ", "counterfoil "].iter().any(|program| text.starts_with(program))
    });
    for name in named {
        assert!(commands.iter().any(|command| command.starts_with(name)), "{name} is not shown");
    }
}

async fn looks(command: &str) {
    let pair = Pair::start();
    pair.carries(adjustments("k", 5)).await;
    pair.receiver.waits_for_state(ReceiverState::Live).await;
    let (publisher, receiver) = (pair.publisher.url(), pair.receiver.url());
    let db = pair.receiver.db().to_str().expect("UTF-8");
    works(command, &[(PUBLISHER, &publisher), (RECEIVER, &receiver), ("FILE", db)]);
}

async fn recovers_a_publisher(command: &str) {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 5)).await.expect("accepted");
    let (again, data) = (publisher.successor(), publisher.dir().to_owned());
    assert_eq!(publisher.terminate().code(), Some(0));
    fs::write(data.join("logs/main/HALTED"), "a sync failed\n").expect("marked");
    let refused = again.clone().refuses();
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("publisher recover"), "{refused:?}");
    works(command, &[("DIR", data.to_str().expect("UTF-8"))]);
    assert_eq!(again.start().everything().await.len(), 5);
}

async fn recovers_a_receiver(command: &str) {
    let mut pair = Pair::start();
    pair.carries(adjustments("k", 5)).await;
    let (again, db) = (pair.receiver.successor(), pair.receiver.db().to_owned());
    let db = db.to_str().expect("UTF-8");
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    fs::write(format!("{db}.halted"), "a sync failed\n").expect("marked");
    let refused = again.clone().refuses();
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("receiver recover --db"), "{refused:?}");
    works(command, &[("FILE", db)]);
    pair.receiver = again.start();
    pair.carries(vec![adjusted("l", "a", 5)]).await;
    assert_eq!(pair.settles().await.total, 10);
}

/// A publisher whose directory was put back to 5 events, with a receiver that has 10.
async fn put_back() -> Pair {
    let PutBack { receiver, publisher, dir } = PutBack::to_five_of_ten().await;
    let publisher = publisher.start();
    let status = receiver.waits_for_state(ReceiverState::Halted).await;
    assert_eq!(status.failure.expect("why").reason, "CURSOR_AHEAD");
    wait_until("the publisher says so, too", async || {
        (publisher.log().await.state() == LogState::Suspect).then_some(())
    })
    .await;
    Pair { receiver, publisher, dir }
}

async fn is_well_again(pair: &Pair) {
    wait_until("both ends are well", async || {
        let live = pair.receiver.try_status().await.ok()?.state() == ReceiverState::Live;
        (live && pair.publisher.log().await.state() == LogState::Active).then_some(())
    })
    .await;
}

async fn forks(command: &str) {
    let mut pair = put_back().await;
    let (again, data) = (pair.publisher.successor(), pair.publisher.dir().to_owned());
    assert_eq!(pair.publisher.terminate().code(), Some(0));
    works(command, &[("DIR", data.to_str().expect("UTF-8"))]);
    pair.publisher = again.start();
    let next = pair.publisher.accepts(adjusted("m", "a", 1)).await.sequence;
    assert!(next >= Some(10), "{next:?}: above everything that was seen");
}

async fn resyncs(command: &str) {
    let pair = put_back().await;
    works(command, &[(RECEIVER, &pair.receiver.url()), ("NAME", "receiver")]);
    is_well_again(&pair).await;
    pair.publisher.accepts(adjusted("m", "a", 1)).await;
    pair.receiver.applies(5).await;
    assert_eq!(pair.settles().await.total, 6, "the history that is there now");
}

/// A receiver that is stuck at its event 1: there can be no tripod.
async fn stuck() -> Pair {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k0", "camera", 5)]).await;
    let beside = rusqlite::Connection::open(pair.receiver.db()).expect("opened");
    beside.busy_timeout(crate::harness::wait::DEADLINE).expect("set");
    let obstacle = "CREATE TRIGGER no BEFORE INSERT ON stock WHEN NEW.item = 'tripod'
                    BEGIN SELECT RAISE(ABORT, 'no'); END";
    beside.execute_batch(obstacle).expect("made");
    pair.publisher.accepts(adjusted("t1", "tripod", 1)).await;
    pair.publisher.accepts(adjusted("k2", "camera", 1)).await;
    wait_until("it is stuck", async || {
        let failure = pair.receiver.status().await.failure?;
        (failure.reason == "EVENT_FAILED" && failure.sequence == Some(1)).then_some(())
    })
    .await;
    pair
}

async fn sets_aside(command: &str) {
    let pair = stuck().await;
    let url = pair.receiver.url();
    works(command, &[(RECEIVER, &url), ("SEQUENCE", "1"), ("TEXT", "no tripods here")]);
    is_well_again(&pair).await;
    let ledger = pair.settles().await;
    assert_eq!(ledger.rows[1].reason.as_deref(), Some("no tripods here"));
    assert_eq!(ledger.total, 6);
}

/// Of two follow-ups the first is never taken, since its key is.
async fn gives_up(command: &str) {
    let chain = Chain::start();
    chain.second.accepts(event("k0/warehouse/moved/0", "other.type", "x", "{}")).await;
    for key in ["k0", "k1"] {
        chain.first.accepts(adjusted(key, "camera", 9)).await;
    }
    let warehouse = chain.warehouse(&chain.second.url()).start();
    wait_until("forwarding has stopped", async || {
        let failure = warehouse.try_status().await.ok()?.forward_failure?;
        (failure.reason == "KEY_CONFLICT").then_some(())
    })
    .await;
    let url = warehouse.url();
    works(command, &[(RECEIVER, &url), ("SEQUENCE", "0"), ("NUMBER", "0"), ("TEXT", "by hand")]);
    chain.settles(&warehouse).await;
    let keys: Vec<_> = chain.second.everything().await.into_iter().map(|event| event.key).collect();
    assert_eq!(keys[1..], ["k1/warehouse/moved/0"]);
}

async fn applies_later(command: &str) {
    let pair = stuck().await;
    pair.receiver.skip(1, "no tripods here").await.expect("set aside");
    pair.receiver.applies(2).await;
    let url = pair.receiver.url();
    let places = [(RECEIVER, &*url), ("SEQUENCE", "1")];
    let early = types(command, &places);
    assert_eq!(early.code(), Some(1), "{early:?}");
    assert!(early.stderr.contains("EVENT_FAILED"), "{early:?}");
    let beside = rusqlite::Connection::open(pair.receiver.db()).expect("opened");
    beside.busy_timeout(crate::harness::wait::DEADLINE).expect("set");
    beside.execute_batch("DROP TRIGGER no").expect("mended");
    works(command, &places);
    assert_eq!(pair.settles().await.total, 7);
}

async fn removes(command: &str) {
    let pair = put_back().await;
    let places = [(PUBLISHER, &*pair.publisher.url()), ("NAME", "receiver")];
    assert_eq!(pair.receiver.terminate().code(), Some(0));
    wait_until("it is not connected any more", async || {
        (types(command, &places).code() == Some(0)).then_some(())
    })
    .await;
    let log = pair.publisher.log().await;
    assert_eq!((log.receivers.len(), log.state()), (0, LogState::Active));
}

async fn makes_a_snapshot(command: &str, all: &[&str]) {
    let pair = Pair::start();
    pair.carries(adjustments("k", 5)).await;
    let (publisher, receiver) = (pair.publisher.url(), pair.receiver.url());
    works(command, &[(RECEIVER, &receiver)]);
    let list = all.iter().find(|command| command.starts_with("counterfoil snapshots "));
    let listed = works(list.expect("shown beside it"), &[(PUBLISHER, &publisher)]);
    assert!(listed.stdout.contains("inventory"), "{listed:?}");
}
