//! A later version that goes on with the rows of the one before.

use counterfoil::proto::crash;

use super::{COMMON, file, flag, rows, version};
use crate::harness::{
    events::{adjusted, adjustments},
    pair::directory,
    publisher::Publisher,
    receiver::Receiver,
};

const ADDED: &str = r#"
[[migration]]
sql = '''
ALTER TABLE count ADD COLUMN last INTEGER;
CREATE TABLE seen (sequence INTEGER NOT NULL PRIMARY KEY) STRICT;
'''

[[on]]
type = "stock.counted"
sql = "INSERT INTO seen VALUES (:sequence)"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_later_version_adds_steps_and_keeps_the_rows() {
    let dir = directory();
    let publisher = Publisher::start(dir.path());
    publisher.publish(adjustments("k", 7)).await.expect("accepted");
    let first = file(dir.path(), 1, "migrate", COMMON);
    let setup = Receiver::at(dir.path(), &publisher.url());
    let receiver = setup.clone().arg(flag(&first)).start();
    receiver.applies(6).await;
    let db = receiver.db().to_owned();
    assert_eq!(receiver.terminate().code(), Some(0));

    // The same version with other content, and no version that was before.
    let changed = COMMON.replace("n + 1", "n + 2");
    let ended = setup.clone().arg(flag(&file(dir.path(), 1, "migrate", &changed))).refuses();
    assert_eq!(ended.code(), Some(3), "{ended:?}");
    assert!(ended.stderr.contains("on[0] was "), "{ended:?}");
    assert!(ended.stderr.contains("needs a higher version"), "{ended:?}");

    // A step that has run is not changed afterwards.
    let rewritten = COMMON.replace("n INTEGER NOT NULL", "n INTEGER");
    let ended = setup.clone().arg(flag(&file(dir.path(), 2, "migrate", &rewritten))).refuses();
    assert!(ended.stderr.contains("migration[0] was "), "{ended:?}");

    // One that fails half-way leaves everything as it was.
    let failing = format!("{COMMON}\n[[migration]]\nsql = '''\n{}\n'''", {
        "CREATE TABLE half (a TEXT) STRICT; INSERT INTO count (item, n) SELECT item, n FROM count;"
    });
    let ended = setup.clone().arg(flag(&file(dir.path(), 2, "migrate", &failing))).refuses();
    assert_eq!(ended.code(), Some(1), "{ended:?}");
    assert!(ended.stderr.contains("migration[1] failed: UNIQUE constraint failed"), "{ended:?}");
    assert_eq!(version(&db), "1");
    assert!(rows(&db, "SELECT name FROM sqlite_schema WHERE name = 'half'").is_empty());

    // Killed before or after the commit: it is the one or the other, and goes on.
    let second = file(dir.path(), 3, "migrate", &format!("{COMMON}{ADDED}"));
    let later = setup.arg(flag(&second));
    for (point, found) in crash::RECEIVER_MIGRATION.into_iter().zip(["1", "3"]) {
        let ended = later.clone().dies_at(point, 0).dies();
        assert!(ended.stderr.contains(point), "{ended:?}");
        assert_eq!(version(&db), found, "{point}");
    }
    let receiver = later.start();
    publisher.accepts(adjusted("more", "item-0", 1)).await;
    receiver.applies(7).await;
    let counts =
        rows(&db, "SELECT item || ' ' || n || coalesce(last, '') FROM count ORDER BY item");
    assert_eq!(counts[..2], ["item-0 2", "item-1 1"]);
    let ended = {
        let setup = receiver.successor();
        assert_eq!(receiver.terminate().code(), Some(0));
        setup.arg("--apply-attempts=1").start().terminate()
    };
    assert_eq!(ended.code(), Some(0), "{ended:?}");

    // Back to an earlier one: never.
    let ended = Receiver::at(dir.path(), &publisher.url()).arg(flag(&first)).refuses();
    assert!(ended.stderr.contains("does not go back"), "{ended:?}");
}
