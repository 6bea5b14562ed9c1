//! Foreign keys that a file declares are kept.

use super::{Declared, file};
use crate::harness::{events::event, pair::directory, receiver::Receiver};

/// Children that name their parent, who has to be there.
const FAMILIES: &str = r#"
[projection]
name = "families"
version = 1
[[migration]]
sql = '''
CREATE TABLE parent (name TEXT NOT NULL PRIMARY KEY) STRICT;
CREATE TABLE child (name TEXT NOT NULL PRIMARY KEY,
    parent TEXT NOT NULL REFERENCES parent (name)) STRICT;
CREATE INDEX child_parent ON child (parent);
'''
[[on]]
type = "parent.born"
sql = "INSERT INTO parent VALUES (:subject)"
[[on]]
type = "child.born"
sql = "INSERT INTO child VALUES (:subject, :data ->> 'parent')"
[[on]]
type = "parent.died"
sql = "DELETE FROM parent WHERE name = :subject"
expect_rows = 1
"#;

/// SQL-13: no event leaves an orphan behind; it is the event's fault, and not its
/// neighbours'.
#[tokio::test(flavor = "multi_thread")]
async fn sql_13_no_event_leaves_an_orphan() {
    let orphan = event("orphan", "child.born", "dee", r#"{"parent":"nobody"}"#);
    let orphaned = event("orphaned", "parent.died", "ada", "{}");
    for bad in [&orphan, &orphaned] {
        let pair = Declared::with(FAMILIES, |setup| setup.arg("--apply-attempts=1"));
        pair.carries([
            event("ada", "parent.born", "ada", "{}"),
            event("bo", "child.born", "bo", r#"{"parent":"ada"}"#),
        ])
        .await;
        let last = event("eve", "parent.born", "eve", "{}");
        pair.publisher.publish(vec![bad.clone(), last]).await.expect("accepted");
        let failure = pair.halts().await;
        assert_eq!((&failure.key, failure.class.as_str()), (&bad.key, "CONSTRAINT"));
        let place = if bad == &orphan { "on[1].sql[0]" } else { "on[2].sql[0]" };
        assert_eq!(failure.statement, place);
        assert_eq!(pair.value::<i64>("SELECT count(*) FROM pragma_foreign_key_check"), 0);
        let rows = "SELECT (SELECT count(*) FROM parent) || ' ' || (SELECT count(*) FROM child)";
        assert_eq!(pair.value::<String>(rows), "1 1");
    }
}

/// SQL-13: with a constraint that is checked at COMMIT, what becomes of an event would depend
/// on the ones that happen to share its commit. A receiver does not start with one.
#[tokio::test(flavor = "multi_thread")]
async fn sql_13_no_constraint_waits_for_the_commit() {
    let dir = directory();
    let deferred = "REFERENCES parent (name) DEFERRABLE INITIALLY DEFERRED";
    let file = file(dir.path(), &FAMILIES.replace("REFERENCES parent (name)", deferred));
    let started = Receiver::at(dir.path(), "http://127.0.0.1:1").projection(&file).refuses();
    for ended in [Receiver::check(&file), started] {
        assert!(matches!(ended.code(), Some(1 | 2)), "{ended:?}");
        let said = format!("{}{}", ended.stdout, ended.stderr);
        for part in ["projection.toml:9: migration[0]: DEFERRABLE is not allowed", "COMMIT"] {
            assert!(said.contains(part), "{part:?} is missing in: {said}");
        }
    }
}
