//! Constraints of a projection in Rust that SQLite checks with the commit. A file may not
//! have any: which events share a commit is chance.

use super::*;

/// Children that have to have a parent by the time of the commit.
struct Families;

impl Projection for Families {
    fn name(&self) -> &str {
        "families"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        const TABLES: &str = "CREATE TABLE parent (name TEXT NOT NULL PRIMARY KEY) STRICT;
            CREATE TABLE child (name TEXT NOT NULL PRIMARY KEY, parent TEXT NOT NULL
                REFERENCES parent (name) DEFERRABLE INITIALLY DEFERRED) STRICT;
            CREATE INDEX child_parent ON child (parent)";
        &[Migration { sql: Cow::Borrowed(TABLES) }]
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        let (key, subject) = (&*event.intent.key, &*event.intent.subject);
        let child = || tables.execute("INSERT INTO child VALUES (?1, ?2)", [key, subject]);
        let parent = || tables.execute("INSERT INTO parent VALUES (?1)", [subject]);
        match &*event.intent.event_type {
            "parent.born" => parent()?,
            "child.born" => child()?,
            "child.adopted" => child().and_then(|_| parent())?,
            "parent.died" => tables.execute("DELETE FROM parent WHERE name = ?1", [subject])?,
            _ => return Ok(Applied::Ignored),
        };
        Ok(Applied::Done(None))
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }
}

/// SQL-13: it is the event's fault, and not its neighbours', wherever it stands in a group.
#[test]
fn an_orphan_that_shows_with_the_commit_is_its_events_fault() {
    let born = |n: i64, name: &str| event(n, &format!("k{n}"), "parent.born", name, "{}");
    for (bad_type, subject) in [("child.born", "nobody"), ("parent.died", "ada")] {
        for at in [2, 3, 9] {
            let bench = Bench::new(Families);
            let mut events = vec![
                event(0, "bo", "child.adopted", "ada", "{}"),
                event(1, "cy", "child.born", "ada", "{}"),
            ];
            events.extend((2..10).map(|n| match n {
                n if n == at => event(n, "bad", bad_type, subject, "{}"),
                n => born(n, &format!("p{n}")),
            }));
            bench.send(0, &events, cursor_after(&events));
            let failure = bench.halted();
            assert_eq!((failure.reason, failure.class), ("EVENT_FAILED", Some("CONSTRAINT")));
            let said = "a FOREIGN KEY constraint failed (SQLite code 787)";
            assert!(failure.message.contains(said), "{}", failure.message);
            assert_eq!(failure.event.expect("named").key, "bad");
            assert_eq!(bench.resume(), at - 1, "{bad_type} at {at}");
            assert_eq!(bench.number("SELECT count(*) FROM pragma_foreign_key_check"), 0);
            assert_eq!(bench.number("SELECT count(*) FROM child"), 2);
            assert_eq!(bench.number("SELECT count(*) FROM parent"), at - 1);
        }
    }
}
