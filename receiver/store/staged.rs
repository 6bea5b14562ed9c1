//! A file that may take the place of the database: opened as it stands, and looked at
//! before anything is touched. Never opened for writing, and with nothing that lies beside
//! it: a stale write-ahead log there would be applied to it.

use std::{fmt, os::unix::ffi::OsStrExt as _, path::Path};

use rusqlite::{Connection, ErrorCode, OpenFlags, config::DbConfig};

use super::{
    Kind, SCHEMA_VERSION, contents, cursor,
    descent::{self, Descent},
    open::{self, OpenError},
    trouble,
};
use crate::proto::chain::Cursor;

/// Opens it. SQLite takes it for a file that nobody changes.
///
/// # Errors
/// Whatever SQLite says.
pub fn open_staged(file: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_URI
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri(file), flags)?;
    // Others have written it: nothing in it is run, and each page is looked at.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    Ok(connection)
}

fn uri(file: &Path) -> String {
    let mut uri = "file:".to_owned();
    for &byte in file.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => {
                uri.push(char::from(byte));
            }
            other => uri.push_str(&format!("%{other:02X}")),
        }
    }
    uri + "?immutable=1"
}

/// The cursor in it; none: nothing is applied.
///
/// # Errors
/// Whatever SQLite says.
pub fn cursor_in(file: &Path, log: &str) -> rusqlite::Result<Option<Cursor>> {
    cursor::read(&open_staged(file)?, log)
}

/// What its ledger says of what a database has applied.
///
/// # Errors
/// Whatever SQLite says.
pub fn descent(file: &Path, log: &str, ours: &Cursor) -> rusqlite::Result<Descent> {
    descent::of(&open_staged(file)?, log, ours)
}

/// Why a file may not take the place of the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unfit {
    /// What is in it is wrong, and stays so.
    Content(String),
    /// It could not be looked at; another time it may be.
    Unread(String),
}

impl std::error::Error for Unfit {}

impl fmt::Display for Unfit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unfit::Content(why) | Unfit::Unread(why)) = self;
        out.write_str(why)
    }
}

/// Whether it may take the place of the database: whole, of the same kind, with a ledger
/// that leads to its cursor, and where it was announced to be.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check(file: &Path, kind: &Kind, announced: Option<&Cursor>) -> Result<(), Unfit> {
    match examine(file, kind, announced) {
        Ok(examined) => examined.map_err(Unfit::Content),
        Err(error) if passes(&error) => {
            Err(Unfit::Unread(format!("it cannot be read: {}", trouble::said(&error))))
        }
        Err(error) => Err(Unfit::Content(format!("it is no database: {}", trouble::said(&error)))),
    }
}

/// Whether an error says nothing of the content.
fn passes(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::CannotOpen
                | ErrorCode::OutOfMemory
                | ErrorCode::SystemIoFailure
                | ErrorCode::DiskFull
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::OperationInterrupted
                | ErrorCode::PermissionDenied
        )
    )
}

fn examine(
    file: &Path,
    kind: &Kind,
    announced: Option<&Cursor>,
) -> rusqlite::Result<Result<(), String>> {
    let database = open_staged(file)?;
    match open::examine(&database) {
        Ok(false) => {}
        Ok(true) => return Ok(Err("it is empty".to_owned())),
        Err(OpenError::Sql(error)) => return Err(error),
        Err(error) => return Ok(Err(error.to_string())),
    }
    let page_bytes: i64 = database.pragma_query_value(None, "page_size", |row| row.get(0))?;
    if page_bytes != open::PAGE_BYTES {
        return Ok(Err(format!("its pages have {page_bytes} bytes, not {}", open::PAGE_BYTES)));
    }
    let version: i32 = database.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version != SCHEMA_VERSION {
        return Ok(Err(format!("it has format {version}, this version has {SCHEMA_VERSION}")));
    }
    if !kind.stands_in(&database)? {
        return Ok(Err("its tables are not those of this version".to_owned()));
    }
    if let Some(foreign) = kind.foreign_in(&database)? {
        return Ok(Err(format!("it has a {foreign} that this version does not declare")));
    }
    if let Some(unlike) = contents::unlike(&database, kind)? {
        return Ok(Err(unlike));
    }
    let found = cursor::read(&database, &kind.log)?;
    if found.as_ref() != announced {
        let place = |cursor: Option<&Cursor>| cursor.map_or(-1, |cursor| cursor.sequence);
        let (found, announced) = (place(found.as_ref()), place(announced));
        return Ok(Err(format!("it is at sequence {found}, announced was {announced}")));
    }
    let sound: String = database.pragma_query_value(None, "quick_check", |row| row.get(0))?;
    if sound != "ok" {
        return Ok(Err(format!("it is damaged: {sound}")));
    }
    Ok(match found {
        Some(cursor) if !descent::leads_to(&database, &kind.log, &cursor)? => Err(format!(
            "its ledger does not lead to sequence {}: rows are missing, too many, or of another \
             history",
            cursor.sequence
        )),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::receiver::{
        decide::place,
        inventory::Inventory,
        store,
        testing::{adjustments, cursor_after},
        transaction,
    };

    /// A database with three events in it, and its copy as a snapshot is made.
    fn snapshot(directory: &Path) -> (std::path::PathBuf, Cursor) {
        let db = directory.join("a db?.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        let events = adjustments(0, 3);
        let after = cursor_after(&events);
        let (steps, _) = place(cursor_after(&[]), events, &after).expect("fits");
        transaction::commit(&store, &Inventory, None, &steps).expect("committed");
        let copy = directory.join("a copy%20?.db");
        let target = copy.to_str().expect("UTF-8");
        store.connection.execute("VACUUM INTO ?1", [target]).expect("copied");
        (copy, after)
    }

    #[test]
    fn what_fits_is_let_through_and_all_else_is_named() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (copy, cursor) = snapshot(directory.path());
        let kind = Kind::of("main", &Inventory).expect("declared");
        assert_eq!(check(&copy, &kind, Some(&cursor)), Ok(()));
        assert_eq!(cursor_in(&copy, "main"), Ok(Some(cursor)));
        let wrong = |kind: &Kind, cursor: Option<&Cursor>, words: &str| {
            let said = check(&copy, kind, cursor).expect_err(words).to_string();
            assert!(said.contains(words), "{said:?} lacks {words:?}");
        };
        let elsewhere = Cursor { sequence: 9, ..cursor };
        wrong(&kind, Some(&elsewhere), "at sequence 2, announced was 9");
        wrong(&kind, None, "announced was -1");
        let forged = Cursor { chain: [9; 32], ..cursor };
        wrong(&kind, Some(&forged), "at sequence 2");
        wrong(&Kind { log: "orders".into(), ..kind.clone() }, Some(&cursor), "log main");
        let newer = Kind { projection_version: 2, ..kind.clone() };
        wrong(&newer, Some(&cursor), "projection_version 1");
    }

    #[test]
    fn damage_and_other_files_are_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (copy, cursor) = snapshot(directory.path());
        let kind = Kind::of("main", &Inventory).expect("declared");
        let bytes = fs::read(&copy).expect("readable");
        let mut cases = vec![
            ("nothing", Vec::new()),
            ("text", b"not a database, but long enough to look like one, somewhat".repeat(200)),
            ("half", bytes[..bytes.len() / 2].to_vec()),
        ];
        for page in 1..bytes.len() / 4096 {
            let mut torn = bytes.clone();
            torn[page * 4096..page * 4096 + 64].fill(0xff);
            cases.push(("a torn page", torn));
        }
        for (what, content) in cases {
            fs::write(&copy, content).expect("written");
            check(&copy, &kind, Some(&cursor)).expect_err(what);
        }
    }

    /// Whoever wrote it may have put in what would run here later, or a ledger that proves
    /// nothing.
    #[test]
    fn what_is_not_declared_and_a_ledger_that_leads_nowhere_are_refused() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (copy, cursor) = snapshot(directory.path());
        let kind = Kind::of("main", &Inventory).expect("declared");
        let sound = fs::read(&copy).expect("readable");
        let cases = [
            ("CREATE TRIGGER t AFTER INSERT ON stock BEGIN DELETE FROM stock; END", "trigger t"),
            ("CREATE VIEW v AS SELECT 1", "view v"),
            ("DELETE FROM counterfoil_ledger WHERE sequence = 0", "does not lead to sequence 2"),
            ("DELETE FROM counterfoil_ledger WHERE sequence = 2", "does not lead to sequence 2"),
            ("UPDATE counterfoil_ledger SET fingerprint = zeroblob(32)", "does not lead"),
            (
                "INSERT INTO counterfoil_ledger (log, sequence, key, fingerprint, outcome, applied_at)
                 VALUES ('main', 3, 'more', zeroblob(32), 'APPLIED', 0)",
                "does not lead to sequence 2",
            ),
            ("CREATE TABLE yours (a)", ""),
        ];
        for (change, words) in cases {
            fs::write(&copy, &sound).expect("as it was");
            let tables = Connection::open(&copy).expect("opened");
            tables.execute_batch(change).expect(change);
            drop(tables);
            match check(&copy, &kind, Some(&cursor)) {
                Ok(()) => assert_eq!(words, "", "{change}"),
                Err(Unfit::Content(said)) if !words.is_empty() => {
                    assert!(said.contains(words), "{said:?} lacks {words:?}");
                }
                other => panic!("{change}: {other:?}"),
            }
        }
    }

    /// What says nothing of the content does not condemn it.
    #[test]
    fn a_file_that_cannot_be_opened_is_not_condemned() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let kind = Kind::of("main", &Inventory).expect("declared");
        let found = check(&directory.path().join("none.db"), &kind, None);
        assert!(matches!(found, Err(Unfit::Unread(_))), "{found:?}");
    }

    /// SQL-07: a write-ahead log that happens to lie beside it is not its own.
    #[test]
    fn what_lies_beside_it_is_not_applied_to_it() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let (copy, cursor) = snapshot(directory.path());
        let db = directory.path().join("a db?.db");
        let store = store::open(&db, "main", &Inventory).expect("opened");
        store.connection.execute_batch("DELETE FROM counterfoil_cursor").expect("written");
        fs::copy(store::lock::beside(&db, "-wal"), store::lock::beside(&copy, "-wal"))
            .expect("a stale one");
        let kind = Kind::of("main", &Inventory).expect("declared");
        assert_eq!(check(&copy, &kind, Some(&cursor)), Ok(()));
    }
}
