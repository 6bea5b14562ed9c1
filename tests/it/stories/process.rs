//! The two programs as processes: how they start, refuse to, and end.

use std::{fs, io::Write as _};

use counterfoil::proto::{
    pb::{ReplayRequest, WatchStatusRequest},
    refusal::Reason,
};

use crate::harness::{
    events::{adjusted, adjustments},
    files::{contents, segments},
    loopback,
    pair::{Pair, directory},
    process::Launch,
    publisher::Publisher,
    receiver::Receiver,
    refusal::refused,
    wait::wait_until,
};

/// OPS-01: told to end, both do, with streams open and under load.
#[tokio::test(flavor = "multi_thread")]
async fn ops_01_sigterm_ends_both_with_code_0() {
    let pair = Pair::start();
    pair.carries(adjustments("k", 50)).await;
    let looks = [
        pair.publisher
            .replay(ReplayRequest { follow: true, ..Default::default() })
            .await
            .expect("admitted"),
        pair.publisher
            .replay(ReplayRequest { follow: true, ..Default::default() })
            .await
            .expect("admitted"),
    ];
    let mut client = pair.receiver.client.clone();
    let watch = client.watch_status(WatchStatusRequest {}).await.expect("a watch");
    let Pair { receiver, publisher, dir } = pair;
    let (publisher_again, receiver_again) = (publisher.successor(), receiver.successor());
    let ended = publisher.terminate();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let ended = receiver.terminate();
    assert_eq!(ended.code(), Some(0), "without a publisher too: {ended:?}");
    drop((looks, watch));
    let pair = Pair { publisher: publisher_again.start(), receiver: receiver_again.start(), dir };
    assert_eq!(pair.settles().await.rows.len(), 50, "data complete");
    let ended = pair.receiver.terminate();
    assert_eq!(ended.code(), Some(0), "connected: {ended:?}");
}

/// A line on standard output, and logging on standard error only.
#[tokio::test(flavor = "multi_thread")]
async fn standard_output_has_one_line() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let address = publisher.address;
    let receiver = Receiver::start(dir.path(), &publisher.url());
    let at = receiver.address;
    assert_eq!(receiver.terminate().stdout, format!("listening on {at}\n"));
    assert_eq!(publisher.terminate().stdout, format!("listening on {address}\n"));
}

fn publisher(args: &[&str]) -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_publisher")).args(args)
}

fn receiver(args: &[&str]) -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_receiver")).args(args)
}

#[test]
fn wrong_usage_is_said_with_code_2() {
    let dir = directory();
    let db = dir.path().join("r.db").to_string_lossy().into_owned();
    let data = dir.path().join("data").to_string_lossy().into_owned();
    let cases = [
        (publisher(&["--listen", "nowhere", "--data-dir", &data]), "nowhere"),
        (publisher(&["--no-such-flag"]), "--no-such-flag"),
        (publisher(&["--config", "/does/not/exist.toml"]), "/does/not/exist.toml"),
        (receiver(&["--publisher", "not a url", "--db", &db]), "not a url"),
        (receiver(&["--connect-attempts", "many", "--db", &db]), "many"),
        (receiver(&["--projection", "unheard-of", "--db", &db]), "unheard-of"),
        (receiver(&["--name", "a/b", "--db", &db]), "name"),
        (receiver(&["--no-such-flag"]), "--no-such-flag"),
    ];
    for (launch, said) in cases {
        let ended = launch.run();
        assert_eq!(ended.code(), Some(2), "{launch:?}: {ended:?}");
        assert!(ended.stderr.contains(said), "{said:?} is missing: {ended:?}");
        assert!(ended.stdout.is_empty(), "{ended:?}");
    }
}

/// A broken configuration: the line, the key, what was expected.
#[test]
fn a_broken_configuration_names_line_key_and_what_was_expected() {
    let cases = [
        ("[logs.main]\nmax_evnts = 3\n", "2", "max_evnts", "max_events"),
        ("listen = 7\n", "1", "listen", "string"),
        ("[logs.main]\n\nmax_events = \"three\"\n", "3", "max_events", "expected"),
        ("[logs.main]\nmax_events = 0\n", "", "max_events", "1"),
        ("[logs.main]\nmax_events = -5\n", "2", "max_events", ""),
        ("[logs.main]\nmax_age = \"7\"\n", "2", "max_age", "7d"),
        ("[logs.main]\nmax_bytes = \"4 parsecs\"\n", "2", "max_bytes", ""),
        ("[logs.main]\nwhen_full = \"panic\"\n", "2", "when_full", "drop_oldest"),
        ("[logs.\"a/b\"]\nmax_events = 1\n", "", "a/b", ""),
        ("[logs.main\n", "1", "", ""),
    ];
    for (toml, line, key, expected) in cases {
        let dir = directory();
        let ended = Publisher::at(dir.path()).config(toml).refuses();
        assert_eq!(ended.code(), Some(2), "{toml:?}: {ended:?}");
        let line = if line.is_empty() { String::new() } else { format!("line {line}") };
        for part in [line.as_str(), key, expected] {
            assert!(ended.stderr.contains(part), "{part:?} is missing for {toml:?}: {ended:?}");
        }
        assert!(!dir.path().join("publisher").join("logs").exists(), "nothing half-written");
    }
    let dir = directory();
    let config = dir.path().join("receiver.toml");
    fs::write(&config, "name = \"r\"\napply_attempts = \"many\"\n").expect("written");
    let ended = receiver(&["--db", "/nowhere/x.db", "--config"]).arg(config).run();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    for part in ["line 2", "apply_attempts"] {
        assert!(ended.stderr.contains(part), "{part:?} is missing: {ended:?}");
    }
}

/// Flags override the environment, which overrides the file.
#[tokio::test(flavor = "multi_thread")]
async fn flags_over_environment_over_file() {
    let dir = directory();
    let (file, environment) = (loopback::address(), loopback::address());
    let config = dir.path().join("p.toml");
    let data = dir.path().join("from-file");
    fs::write(&config, format!("listen = \"{file}:0\"\ndata_dir = {data:?}\n")).expect("written");
    let from_file = publisher(&["--config"]).arg(config.clone());
    let (process, address) = from_file.try_start().expect("starts");
    assert_eq!(address.ip(), file);
    assert!(data.join("LOCK").exists(), "the file's directory");
    drop(process);
    let over = from_file.env("COUNTERFOIL_LISTEN", format!("{environment}:0"));
    let (process, address) = over.try_start().expect("starts");
    assert_eq!(address.ip(), environment);
    drop(process);
    let flag = loopback::address();
    let over = over.arg("--listen").arg(format!("{flag}:0"));
    let (_process, address) = over.try_start().expect("starts");
    assert_eq!(address.ip(), flag);
    let from_environment = Launch::new(env!("CARGO_BIN_EXE_publisher"))
        .arg("--listen")
        .arg(format!("{}:0", loopback::address()))
        .env("COUNTERFOIL_CONFIG", config.clone());
    let ended = from_environment.run();
    assert_eq!(ended.code(), Some(3), "its data directory is in use by the other: {ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_in_use_is_refused_with_code_3() {
    let pair = Pair::start();
    pair.carries(vec![adjusted("k", "a", 1)]).await;
    let second = Publisher::at(pair.dir.path()).refuses();
    assert_eq!(second.code(), Some(3), "{second:?}");
    assert!(second.stderr.contains("in use"), "{second:?}");
    let second = Receiver::at(pair.dir.path(), &pair.publisher.url()).refuses();
    assert_eq!(second.code(), Some(3), "{second:?}");
    assert!(
        second.stderr.contains("in use") || second.stderr.contains("another process"),
        "{second:?}"
    );
    let recover = Publisher::recover(pair.dir.path());
    assert_eq!(recover.code(), Some(3), "recover takes the same lock: {recover:?}");
    let recover = Receiver::recover(pair.dir.path());
    assert_eq!(recover.code(), Some(3), "recover takes the same lock: {recover:?}");
    pair.carries(vec![adjusted("l", "a", 1)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused_with_code_3_and_left_alone() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.accepts(adjusted("k", "a", 1)).await;
    let (data, again) = (publisher.dir().to_owned(), publisher.successor());
    publisher.terminate();
    let format = data.join("FORMAT");
    let original = fs::read_to_string(&format).expect("a format version");
    fs::write(&format, original.replace('1', "999")).expect("written");
    let before = contents(&data);
    let ended = again.clone().refuses();
    assert_eq!(ended.code(), Some(3), "{ended:?}");
    assert!(ended.stderr.contains("999"), "{ended:?}");
    assert_eq!(contents(&data), before);
    fs::write(&format, original).expect("written");
    assert_eq!(again.start().log().await.next_sequence, Some(1));

    let receiver = Receiver::start(dir.path(), "http://127.0.0.1:9");
    let (db, again) = (receiver.db().to_owned(), receiver.successor());
    receiver.terminate();
    let connection = rusqlite::Connection::open(&db).expect("it is stopped");
    connection.pragma_update(None, "user_version", 999).expect("set");
    drop(connection);
    let ended = again.refuses();
    assert_eq!(ended.code(), Some(3), "{ended:?}");
    assert!(ended.stderr.contains("999"), "{ended:?}");
}

/// Another's database, or no database at all, is not touched.
#[test]
fn a_foreign_file_is_refused_and_left_alone() {
    for foreign in ["text", "database"] {
        let dir = directory();
        let db = dir.path().join("receiver.db");
        if foreign == "text" {
            fs::write(&db, "these are the minutes of our last meeting, all four pages of them")
                .expect("written");
        } else {
            let connection = rusqlite::Connection::open(&db).expect("a database");
            connection
                .execute_batch("CREATE TABLE mine (a); INSERT INTO mine VALUES (1)")
                .expect("a table");
        }
        let before = fs::read(&db).expect("readable");
        let ended = Receiver::at(dir.path(), "http://127.0.0.1:9").refuses();
        assert_eq!(ended.code(), Some(3), "{foreign}: {ended:?}");
        assert_eq!(fs::read(&db).expect("readable"), before, "{foreign}");
    }
}

/// Damage inside the log: named with its sequence, nothing dropped.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_corrupt_with_its_sequence_and_left_alone() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for n in 0..10 {
        publisher.accepts(adjusted(&format!("k{n}"), "a", n)).await;
    }
    let (data, again) = (publisher.dir().to_owned(), publisher.successor());
    publisher.terminate();
    let segment = segments(&data).pop().expect("a segment");
    let mut bytes = fs::read(&segment).expect("readable");
    let intact = bytes.clone();
    // Inside the sixth record: its key stands in the bytes as it was given.
    let place = bytes.windows(2).position(|two| two == b"k5").expect("stored as it was sent");
    bytes[place] ^= 0x20;
    fs::write(&segment, &bytes).expect("written");
    let before = contents(&data);
    let ended = again.clone().refuses();
    assert_eq!(ended.code(), Some(3), "{ended:?}");
    assert!(ended.stderr.contains("sequence 5"), "{ended:?}");
    assert_eq!(contents(&data), before, "nothing is dropped, nothing is mended in silence");
    fs::write(&segment, intact).expect("written");
    assert_eq!(again.start().log().await.next_sequence, Some(10));
}

/// A tail that was being written when the power went is cut, and that is all.
#[tokio::test(flavor = "multi_thread")]
async fn a_torn_tail_is_cut_at_the_start() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    for n in 0..5 {
        publisher.accepts(adjusted(&format!("k{n}"), "a", 1)).await;
    }
    let (data, again) = (publisher.dir().to_owned(), publisher.successor());
    publisher.terminate();
    let segment = segments(&data).pop().expect("a segment");
    let mut file = fs::OpenOptions::new().append(true).open(&segment).expect("writable");
    file.write_all(&[7; 100]).expect("written");
    drop(file);
    let publisher = again.start();
    assert_eq!(publisher.log().await.next_sequence, Some(5));
    assert_eq!(publisher.accepts(adjusted("k5", "a", 1)).await.sequence, Some(5));
    let publisher = publisher.restart();
    assert_eq!(publisher.everything().await.len(), 6);
}

/// A directory that is not there or not ours to write: one sentence.
#[test]
fn a_place_that_cannot_be_used_is_said() {
    let dir = directory();
    let file = dir.path().join("publisher");
    fs::write(&file, "a file where a directory should be").expect("written");
    let ended = Publisher::at(dir.path()).refuses();
    assert!(matches!(ended.code(), Some(1..=3)), "{ended:?}");
    assert!(
        ended.stderr.lines().filter(|line| line.starts_with("error:")).count() == 1,
        "{ended:?}"
    );
    let elsewhere = dir.path().join("no-such-directory");
    let ended = Receiver::at(&elsewhere, "http://127.0.0.1:9").refuses();
    assert!(matches!(ended.code(), Some(1..=3)), "{ended:?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// A database belongs to one log and one projection.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_of_another_log_is_refused() {
    let dir = directory();
    let receiver = Receiver::start(dir.path(), "http://127.0.0.1:9");
    let again = receiver.successor();
    receiver.terminate();
    let ended = again.arg("--log").arg("audit").refuses();
    assert_eq!(ended.code(), Some(3), "{ended:?}");
    assert!(ended.stderr.contains("audit") && ended.stderr.contains("main"), "{ended:?}");
}

/// Both are killed while they make their files for the first time.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_was_interrupted_is_repeated() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let again = publisher.successor();
    drop(publisher);
    fs::write(dir.path().join("publisher/FORMAT.tmp"), "left over").expect("written");
    let publisher = again.start();
    publisher.accepts(adjusted("k", "a", 1)).await;
    refused(publisher.publish(vec![adjusted("k", "a", 2)]).await, Reason::KeyConflict);
    wait_until("it serves", async || publisher.try_log().await.ok()).await;
}
