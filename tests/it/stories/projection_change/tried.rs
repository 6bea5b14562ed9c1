//! `receiver check FILE --db DB --publisher URL`: real events, on a copy.

use std::{fs, path::Path};

use super::{COMMON, SUMS, file, flag};
use crate::harness::{
    events::{adjusted, adjustments, event},
    pair::directory,
    process::{Ended, Launch},
    publisher::Publisher,
    receiver::Receiver,
};

const RULES: &str = r#"
[[migration]]
sql = "CREATE TABLE sum (item TEXT NOT NULL PRIMARY KEY, total INTEGER NOT NULL CHECK (total < 50)) STRICT"

[[on]]
type = "stock.adjusted"
reject_unless = [{ row = "SELECT 1 WHERE :data ->> 'delta' <> 13", reason = "unlucky" }]
sql = '''
INSERT INTO sum VALUES (:subject, :data ->> 'delta')
    ON CONFLICT (item) DO UPDATE SET total = total + excluded.total
'''
"#;

fn check(file: &Path, args: &[&str]) -> Ended {
    let launch = Launch::new(env!("CARGO_BIN_EXE_receiver")).arg("check").arg(file);
    launch.args(args).run()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_events_of_the_log_are_tried_and_nothing_is_touched() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    let url = publisher.url();
    publisher.publish(adjustments("k", 14)).await.expect("accepted");
    let first = file(dir.path(), 1, "migrate", COMMON);
    let receiver = Receiver::at(dir.path(), &url).arg(flag(&first)).start();
    receiver.applies(13).await;
    let db = receiver.db().to_owned();
    let shown = db.to_str().expect("UTF-8");

    // While the receiver runs: what is applied already is not run again.
    let ended = check(&first, &["--publisher", &url, "--db", shown]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("no events to run against a copy of"), "{ended:?}");
    assert_eq!(receiver.terminate().code(), Some(0));

    publisher.accepts(adjusted("fits", "item-1", 2)).await;
    publisher.accepts(adjusted("unlucky", "item-1", 13)).await;
    publisher.accepts(adjusted("large", "item-1", 900)).await;
    publisher.accepts(event("other", "stock.counted", "item-1", "{}")).await;
    publisher.accepts(adjusted("fits, too", "item-1", 2)).await;
    let before = fs::read(&db).expect("readable");
    let rules = file(dir.path(), 2, "rebuild", RULES);
    let ended = check(&rules, &["--publisher", &url, "--db", shown]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    for words in [
        "events 0 to 18 against an empty database (",
        "19 events: 16 would be applied, 1 ignored, 1 rejected (1 unlucky), 1 would fail",
        "event 16 (stock.adjusted, subject \"item-1\"): CONSTRAINT: on[0].sql[0]: ",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {ended:?}");
    }
    let ended = check(&rules, &["--publisher", &url, "--from", "14", "--limit", "2"]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let words = "events 14 to 15 against an empty database\n2 events: 1 would be applied, 0 \
                 ignored, 1 rejected (1 unlucky), 0 would fail";
    assert!(ended.stdout.contains(words), "{ended:?}");

    // A migration, and the events after what the copy has; or some of them once more.
    let migrated = file(
        dir.path(),
        2,
        "migrate",
        &format!("{COMMON}{}", {
            "[[migration]]\nsql = \"ALTER TABLE count ADD COLUMN last INTEGER\"\n"
        }),
    );
    let ended = check(&migrated, &["--publisher", &url, "--db", shown]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let words = "migrated from version 1\n5 events: 4 would be applied, 1 ignored";
    assert!(ended.stdout.contains(words), "{ended:?}");
    let ended = check(&first, &["--publisher", &url, "--db", shown, "--from", "3"]);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(ended.stdout.contains("16 events: 15 would be applied, 1 ignored"), "{ended:?}");

    // A file that would be refused at a start is refused here.
    let changed = file(dir.path(), 1, "migrate", &COMMON.replace("n + 1", "n + 2"));
    let ended = check(&changed, &["--publisher", &url, "--db", shown]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("on[0] was "), "{ended:?}");
    assert_eq!(fs::read(&db).expect("readable"), before, "untouched");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_tried_is_said() {
    let dir = directory();
    let publisher = Publisher::at(dir.path()).config("[logs.main]\nmax_events = 5\n").start();
    let url = publisher.url();
    for n in 0..4 {
        publisher.publish(adjustments(&format!("k{n}"), 3)).await.expect("accepted");
    }
    let second = file(dir.path(), 2, "rebuild", SUMS);
    let ended = check(&second, &["--publisher", &url]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("event 0 is no longer retained"), "{ended:?}");
    let ended = check(&second, &["--publisher", &url, "--from", "7"]);
    assert!(ended.stdout.contains("5 events: 5 would be applied"), "{ended:?}");
    let ended = check(&second, &["--publisher", "http://127.0.0.1:1"]);
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    let ended = check(&second, &["--db", "x.db"]);
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    let other = dir.path().join("other.db");
    fs::write(&other, "not a database, but long enough to be looked at as one, it seems")
        .expect("written");
    let shown = other.to_str().expect("UTF-8");
    let ended = check(&second, &["--publisher", &url, "--db", shown]);
    assert!(matches!(ended.code(), Some(1 | 2)), "{ended:?}");
}
