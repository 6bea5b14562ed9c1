//! Foreign keys that a file declares are kept.

use super::Declared;
use crate::harness::events::event;

/// Children that name their parent, at once or with the commit at the latest.
fn families(deferred: &str) -> String {
    format!(
        r#"
[projection]
name = "families"
version = 1
[[migration]]
sql = '''
CREATE TABLE parent (name TEXT NOT NULL PRIMARY KEY) STRICT;
CREATE TABLE child (name TEXT NOT NULL PRIMARY KEY,
    parent TEXT NOT NULL REFERENCES parent (name) {deferred}) STRICT;
CREATE INDEX child_parent ON child (parent);
'''
[[on]]
type = "parent.born"
sql = "INSERT INTO parent VALUES (:subject)"
[[on]]
type = "child.born"
sql = "INSERT INTO child VALUES (:subject, :data ->> 'parent')"
[[on]]
type = "child.adopted"
sql = '''
INSERT INTO child VALUES (:subject, :data ->> 'parent');
INSERT INTO parent VALUES (:data ->> 'parent');
'''
[[on]]
type = "parent.died"
sql = "DELETE FROM parent WHERE name = :subject"
expect_rows = 1
"#
    )
}

/// SQL-13: no event leaves an orphan behind, one that is found with the commit included; it
/// is the event's fault, and not its neighbours'.
#[tokio::test(flavor = "multi_thread")]
async fn sql_13_no_event_leaves_an_orphan() {
    let adopted = event("adopted", "child.adopted", "cy", r#"{"parent":"ben"}"#);
    let orphan = event("orphan", "child.born", "dee", r#"{"parent":"nobody"}"#);
    let orphaned = event("orphaned", "parent.died", "ada", "{}");
    for deferred in ["", "DEFERRABLE INITIALLY DEFERRED"] {
        for bad in [&orphan, &orphaned] {
            let pair = Declared::with(&families(deferred), |setup| setup.arg("--apply-attempts=1"));
            pair.carries([
                event("ada", "parent.born", "ada", "{}"),
                event("bo", "child.born", "bo", r#"{"parent":"ada"}"#),
            ])
            .await;
            if !deferred.is_empty() {
                pair.carries([adopted.clone()]).await;
            }
            let last = event("eve", "parent.born", "eve", "{}");
            pair.publisher.publish(vec![bad.clone(), last]).await.expect("accepted");
            let failure = pair.halts().await;
            assert_eq!((&failure.key, failure.class.as_str()), (&bad.key, "CONSTRAINT"));
            let orphans = "SELECT count(*) FROM pragma_foreign_key_check";
            assert_eq!(pair.value::<i64>(orphans), 0, "{deferred}");
            let rows =
                "SELECT (SELECT count(*) FROM parent) || ' ' || (SELECT count(*) FROM child)";
            let expected = if deferred.is_empty() { "1 1" } else { "2 2" };
            assert_eq!(pair.value::<String>(rows), expected);
        }
    }
}
