//! Groups of events against a database in a file.

use rusqlite::ffi;

use super::*;
use crate::receiver::{
    decide::place,
    inventory::Inventory,
    projection::{DeclaredQuery, Migration},
    store::{self, ledger::BLOCK},
    testing::{adjustments, cursor_after, event},
};

/// Gives each event a row, the second one the last number that there is.
struct Numbering([Migration; 1]);

impl Projection for Numbering {
    fn name(&self) -> &str {
        "numbering"
    }

    fn version(&self) -> i64 {
        1
    }

    fn migrations(&self) -> &[Migration] {
        &self.0
    }

    fn apply<'t>(&'t self, tables: &Tables<'t>, event: &Event) -> Result<Applied, Fault> {
        if event.sequence == 1 {
            tables.execute("INSERT INTO row (id) VALUES (?1)", [i64::MAX])?;
        }
        tables.execute("INSERT INTO row DEFAULT VALUES", [])?;
        Ok(Applied::Done(None))
    }

    fn queries(&self) -> &[DeclaredQuery] {
        &[]
    }
}

/// A table with AUTOINCREMENT then takes no more, and SQLite's word for it is the one for
/// a full disk, for which one would wait without an end.
#[test]
fn the_last_number_of_a_row_is_the_events_fault() {
    for id in ["INTEGER PRIMARY KEY AUTOINCREMENT", "INTEGER PRIMARY KEY"] {
        let sql = format!("CREATE TABLE row (id {id}) STRICT");
        let numbering = Numbering([Migration { sql: sql.into() }]);
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let store = store::open(&db, "main", &numbering).expect("opened");
        let events = adjustments(0, 3);
        let after = cursor_after(&events);
        let (steps, _) = place(cursor_after(&[]), events, &after).expect("fits");
        match commit(&store, &numbering, None, &steps).expect_err(id) {
            Failed::Event(Faulty { at: Some(1), why }) => {
                assert_eq!(why.class(), Some("OVERFLOW"), "{id}");
                assert!(why.said().starts_with("a row got the number 2^63-1"), "{why:?}");
            }
            other => panic!("{id}: {other:?}"),
        }
    }
}

#[test]
fn an_event_is_not_blamed_for_the_store() {
    let cases = [
        (ffi::SQLITE_CONSTRAINT_CHECK, true),
        (ffi::SQLITE_NOMEM, false),
        (ffi::SQLITE_READONLY, false),
        (ffi::SQLITE_FULL, false),
    ];
    for (code, blamed) in cases {
        let error = || rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
        for why in [EventFault::Statement(error()), EventFault::Projection(error().into())] {
            let failed = failed(0, why);
            assert_eq!(matches!(failed, Failed::Event(_)), blamed, "{failed:?}");
        }
    }
}

/// A group that turns out to be there already, and one step of it alone:
/// neither has an effect, and the cursor stays.
#[test]
fn the_cursor_never_goes_back() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let store = store::open(&directory.path().join("test.db"), "main", &Inventory).expect("opened");
    let events = adjustments(0, 3);
    let after = cursor_after(&events);
    let (steps, _) = place(cursor_after(&[]), events, &after).expect("fits");
    let group = commit(&store, &Inventory, None, &steps).expect("committed");
    assert_eq!(group.cursor, Some(after));
    for again in [&steps[..], &steps[1..2]] {
        let group = commit(&store, &Inventory, Some(&after), again).expect("nothing to do");
        assert_eq!((group.cursor, group.outcomes), (None, [0; Outcome::ALL.len()]));
        assert_eq!(cursor::read(&store.connection, "main").expect("readable"), Some(after));
    }
}

/// A database of [`Inventory`]'s.
struct Bench {
    _directory: tempfile::TempDir,
    store: Store,
    at: Option<Cursor>,
}

impl Bench {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let store =
            store::open(&directory.path().join("test.db"), "main", &Inventory).expect("opened");
        Bench { _directory: directory, store, at: None }
    }

    fn commit(&mut self, steps: &[Step]) -> Committed {
        let committed = commit(&self.store, &Inventory, self.at.as_ref(), steps).expect("applied");
        self.at = committed.cursor.or(self.at);
        committed
    }

    /// What is in the ledger, and what the effects add up to.
    fn contents(&self) -> (Vec<String>, i64) {
        let tables = &self.store.connection;
        let mut rows = tables
            .prepare(
                "SELECT concat_ws(' ', log, sequence, key, hex(fingerprint), outcome, reason)
                 FROM counterfoil_ledger ORDER BY sequence",
            )
            .expect("valid");
        let rows = rows.query_map([], |row| row.get(0)).expect("readable");
        let total = tables.query_row("SELECT total FROM total", [], |row| row.get(0));
        (rows.collect::<Result<_, _>>().expect("readable"), total.expect("one number"))
    }
}

/// Two blocks, and a few more.
const EVENTS: usize = 2 * BLOCK + 5;

/// Where a key comes again: the place of the event, that of the one that has the key, and
/// whether it has other content.
type Again = (usize, usize, bool);

/// Events in their places, of which some have the key of another one.
fn steps_with(again: &[Again]) -> Vec<Step> {
    let mut events = adjustments(0, EVENTS as i64);
    for &(at, of, other) in again {
        let json = if other { r#"{"delta":2}"# } else { r#"{"delta":1}"# };
        events[at] = event(at as i64, &format!("k{of}"), "stock.adjusted", "camera", json);
    }
    let after = cursor_after(&events);
    place(cursor_after(&[]), events, &after).expect("fits").0
}

/// Rows are claimed many at once where that goes. What comes of the events is what comes of
/// each by itself.
#[test]
fn a_group_brings_what_its_events_bring_one_by_one() {
    let all_one: Vec<Again> = (1..EVENTS).map(|at| (at, 0, at % 3 == 0)).collect();
    let cases: [&[Again]; 7] = [
        &[],
        &[(3, 1, false)],
        &[(3, 1, true), (4, 1, false)],
        &[(BLOCK, BLOCK - 1, false)],
        &[(BLOCK - 1, 0, true), (2 * BLOCK - 1, BLOCK + 1, false)],
        &[(EVENTS - 1, 0, true), (EVENTS - 2, EVENTS - 3, false)],
        &all_one,
    ];
    for (case, again) in cases.into_iter().enumerate() {
        let steps = steps_with(again);
        let mut alone = Bench::new();
        let each: Vec<_> =
            steps.iter().map(|step| alone.commit(std::slice::from_ref(step))).collect();
        // The later part meets keys that have been committed.
        for parts in [0, 7, BLOCK, EVENTS - 1] {
            let mut together = Bench::new();
            let (first, second) = steps.split_at(parts);
            let committed = [first, second].map(|part| together.commit(part));
            assert_eq!(together.contents(), alone.contents(), "case {case}, in {parts} and more");
            let told = |committed: &[Committed]| {
                committed.iter().flat_map(|part| part.told.clone()).collect::<Vec<_>>()
            };
            assert_eq!(told(&committed), told(&each), "case {case}, in {parts} and more");
            let applied = |committed: &[Committed]| {
                committed.iter().map(|part| part.outcomes[0]).sum::<i64>()
            };
            assert_eq!(applied(&committed), applied(&each), "case {case}, in {parts} and more");
        }
    }
}

#[test]
fn what_comes_again_between_new_events_changes_nothing() {
    let steps = steps_with(&[]);
    let mut plain = Bench::new();
    plain.commit(&steps);
    for at in [1, BLOCK - 1, BLOCK, BLOCK + 1, EVENTS] {
        let mut mixed = steps.clone();
        mixed.insert(at, Step::Earlier(steps[0].event().clone()));
        let mut bench = Bench::new();
        assert_eq!(bench.commit(&mixed).outcomes[0], EVENTS as i64);
        assert_eq!(bench.contents(), plain.contents(), "again at {at}");
    }
}

/// Those before it are applied without it, and it alone is tried again.
#[test]
fn an_event_that_fails_is_named_by_its_place() {
    for place_of_it in [0, 5, BLOCK - 1, BLOCK, BLOCK + 4, EVENTS - 1] {
        let too_much = |bench: &Bench| {
            let mut steps = steps_with(&[]);
            let Step::Next { event, .. } = &mut steps[place_of_it] else { unreachable!("all are") };
            event.intent.data = br#"{"delta":1001}"#[..].into();
            commit(&bench.store, &Inventory, None, &steps)
        };
        let row_is_there = |bench: &Bench| {
            let steps = steps_with(&[]);
            let foreign = "INSERT INTO counterfoil_ledger
                VALUES ('main', ?1, 'foreign', zeroblob(32), 'APPLIED', NULL, NULL, 0)";
            bench.store.connection.execute(foreign, [place_of_it as i64]).expect("inserted");
            commit(&bench.store, &Inventory, None, &steps)
        };
        let cases: [&dyn Fn(&Bench) -> _; 2] = [&too_much, &row_is_there];
        for (foreign, fails) in cases.into_iter().enumerate() {
            let bench = Bench::new();
            match fails(&bench).expect_err("cannot be applied") {
                Failed::Event(Faulty { at, .. }) => assert_eq!(at, Some(place_of_it)),
                other => panic!("{other:?}"),
            }
            let (rows, total) = bench.contents();
            assert_eq!((rows.len(), total), (foreign, 0), "nothing of the group is there");
        }
    }
}
