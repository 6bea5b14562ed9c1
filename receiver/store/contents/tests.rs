//! Databases that an earlier version of a projection has filled.

use std::path::{Path, PathBuf};

use super::*;
use crate::receiver::{
    inventory::Inventory,
    projection::Upgrade,
    projections,
    store::{self, Store, staged},
    testing::Steps,
};

const FIRST: &str = "CREATE TABLE item (name TEXT NOT NULL PRIMARY KEY, n INTEGER) STRICT;
                     CREATE TABLE line (item TEXT REFERENCES item (name)) STRICT;
                     INSERT INTO item VALUES ('a', 1);";
/// Each changes what SQLite keeps of a table's text in a way of its own.
const LATER: [&str; 3] = [
    "ALTER TABLE item ADD COLUMN place TEXT; CREATE INDEX item_place ON item (place);",
    "ALTER TABLE item RENAME COLUMN n TO number;",
    "ALTER TABLE item RENAME TO article; CREATE TABLE item (name TEXT) STRICT;
     UPDATE article SET number = number + 1;",
];

/// Leaves what a database of before says of its projection: name and version.
const FORGET: &str = "DELETE FROM counterfoil_meta WHERE name IN
                      ('projection_parts', 'projection_migrations', 'projection_source')";

fn directory() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let db = directory.path().join("test.db");
    (directory, db)
}

fn open(db: &Path, projection: &dyn Projection) -> Result<Store, OpenError> {
    store::open(db, "main", projection)
}

fn refusal(db: &Path, projection: &dyn Projection) -> String {
    match open(db, projection) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("opened"),
    }
}

/// Everything in it, as text.
fn all(db: &Path) -> Vec<String> {
    let tables = Connection::open(db).expect("opened");
    let rows = "SELECT type || name || coalesce(sql, '') FROM sqlite_schema
                UNION ALL SELECT name || '=' || value FROM counterfoil_meta";
    let mut rows = tables.prepare(rows).expect("ours");
    let rows = rows.query_map([], |row| row.get(0)).expect("readable");
    rows.collect::<Result<_, _>>().expect("texts")
}

/// A database that went through versions and one that begins with the last may stand in
/// for each other: the same steps leave the same texts.
#[test]
fn what_is_migrated_is_as_if_made_anew() {
    let (_directory, db) = directory();
    let steps = [FIRST, LATER[0], LATER[1], LATER[2]];
    for version in 1..=4 {
        drop(open(&db, &Steps::new(version, &steps[..version as usize])).expect("migrated"));
    }
    let last = Steps::new(4, &steps);
    let store = open(&db, &last).expect("nothing to do");
    let contents = Contents::read(&store.connection).expect("noted");
    assert_eq!((contents.version, contents.migrations), (4, 4));
    let number: i64 = store
        .connection
        .query_row("SELECT number FROM article WHERE name = 'a'", [], |row| row.get(0))
        .expect("its row");
    assert_eq!(number, 2, "each step ran once");
    let copy = db.with_extension("copy");
    let target = copy.to_str().expect("UTF-8");
    store.connection.execute("VACUUM INTO ?1", [target]).expect("copied");
    let kind = Kind::of("main", &last).expect("declared");
    assert_eq!(staged::check(&copy, &kind, None), Ok(()));
    let fresh = db.with_extension("fresh");
    drop(open(&fresh, &last).expect("made"));
    let (mut migrated, mut fresh) = (all(&db), all(&fresh));
    migrated.sort();
    fresh.sort();
    assert_eq!(migrated, fresh);
}

#[test]
fn several_versions_at_once() {
    let (_directory, db) = directory();
    drop(open(&db, &Steps::new(1, &[FIRST])).expect("made"));
    drop(open(&db, &Steps::new(9, &[FIRST, LATER[0], LATER[1]])).expect("migrated"));
    let said = refusal(&db, &Steps::new(8, &[FIRST]));
    assert!(said.contains("does not go back"), "{said}");
}

#[test]
fn a_step_that_fails_leaves_the_database_as_it_was() {
    let late = "CREATE TABLE more (a INTEGER REFERENCES item (name) DEFERRABLE INITIALLY DEFERRED)
                STRICT; INSERT INTO more VALUES (7);";
    let cases = [
        ("ALTER TABLE item DROP COLUMN weight", "migration[2] failed: no such column: \"weight\""),
        ("INSERT INTO item VALUES ('a', 1)", "migration[2] failed: UNIQUE constraint failed"),
        ("UPDATE counterfoil_meta SET value = 'mine'", "migration[2] failed: it may not use "),
        ("ALTER TABLE line RENAME TO 'counterfoil_line'", "the name counterfoil_line"),
        ("COMMIT", "migration[2] failed: it may not use "),
        (
            "CREATE TABLE n (a INTEGER PRIMARY KEY) STRICT; INSERT INTO n VALUES (9223372036854775807)",
            "migration[2] failed: a row got the number 2^63-1, after which SQLite",
        ),
        (late, "the end of migration[2] failed: FOREIGN KEY constraint failed"),
    ];
    for (step, words) in cases {
        let (_directory, db) = directory();
        drop(open(&db, &Steps::new(1, &[FIRST])).expect("made"));
        let before = all(&db);
        let said =
            refusal(&db, &Steps::new(2, &[FIRST, "CREATE TABLE half (a TEXT) STRICT", step]));
        assert!(said.contains(words), "{said:?} lacks {words:?}");
        assert!(said.ends_with("the database is as it was"), "{said}");
        assert_eq!(all(&db), before);
        drop(open(&db, &Steps::new(1, &[FIRST])).expect("goes on"));
    }
}

#[test]
fn what_is_changed_needs_a_higher_version() {
    let (_directory, db) = directory();
    drop(open(&db, &Steps::new(1, &[FIRST])).expect("made"));
    let said = refusal(&db, &Steps::new(1, &[FIRST, LATER[0]]));
    assert!(said.contains("migration[1] is new; what is changed needs a higher version"), "{said}");
    let rebuilt =
        Steps { upgrade: Upgrade::Rebuild, ..Steps::new(2, &["CREATE TABLE b (c TEXT) STRICT"]) };
    assert!(matches!(open(&db, &rebuilt), Err(OpenError::Earlier(_))));
}

/// What the program brings along has had other content: in Rust, and in a file whose
/// statements took fields out of the payload themselves.
#[test]
fn inventory_goes_on_with_what_was_filled_before() {
    let first = include_str!("../../../projections/inventory/projection.toml")
        .replace("version = 2", "version = 1")
        .replace(", as = \"delta\"", "")
        .replace(":delta", "(:data ->> 'delta')");
    let first = projections::of_source(&first).expect("no flaws");
    let now = projections::inventory();
    let fillers: [(&dyn Projection, &str); 2] = [(&Inventory, FORGET), (first.as_ref(), "")];
    for (filler, forget) in fillers {
        let (_directory, db) = directory();
        let store = open(&db, filler).expect("made");
        let fill = "INSERT INTO stock VALUES ('camera', 7, 2); UPDATE total SET total = 7;";
        store.connection.execute_batch(&format!("{fill} {forget}")).expect("filled");
        drop(store);
        let store = open(&db, &now).expect("taken over");
        let contents = Contents::read(&store.connection).expect("noted");
        assert_eq!((contents.version, contents.migrations), (2, 1));
        assert_eq!(contents.parts, Some(fit::digests(&now.parts())));
        let kept = "SELECT item || available || version || total FROM stock, total";
        let kept: String =
            store.connection.query_row(kept, [], |row| row.get(0)).expect("its rows");
        assert_eq!(kept, "camera727");
    }
}

/// One that says no more than name and version takes the parts over, if its tables fit.
#[test]
fn a_database_of_before_takes_over_what_fits() {
    let (_directory, db) = directory();
    let store = open(&db, &Inventory).expect("made");
    store.connection.execute_batch(FORGET).expect("as before");
    drop(store);
    let store = open(&db, &Inventory).expect("taken over");
    let contents = Contents::read(&store.connection).expect("noted");
    assert_eq!((contents.parts.map(|parts| parts.len()), contents.migrations), (Some(1), 1));

    let (_directory, db) = directory();
    let store = open(&db, &Steps::new(1, &[FIRST])).expect("made");
    store.connection.execute_batch(FORGET).expect("as before");
    drop(store);
    let said = refusal(&db, &Steps::new(1, &["CREATE TABLE other (a TEXT) STRICT"]));
    assert!(said.contains("its tables are not those"), "{said}");
    drop(open(&db, &Steps::new(2, &[FIRST, LATER[0]])).expect("taken over and migrated"));
}
