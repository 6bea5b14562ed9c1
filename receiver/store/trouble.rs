//! What an SQLite error means for the store. Pure.

use rusqlite::{ErrorCode, ffi};

/// What is to be done about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// No space. Nothing is lost; try again until there is some.
    Full,
    /// Another process holds the database, or it cannot be reached; try again.
    Busy,
    /// A read, a write or a sync failed, or the file is damaged: latch.
    Broken,
    /// A statement of the projection's, a constraint: the store is well.
    Statement,
}

/// Judges an error.
pub fn judge(error: &rusqlite::Error) -> Trouble {
    // SqlInputError has a code too, but comes only from the text of a statement.
    let Some(error) = error.sqlite_error() else { return Trouble::Statement };
    match error.code {
        ErrorCode::DiskFull => Trouble::Full,
        // Cannot open: out of descriptors, or the directory is gone. Nothing was written.
        // Out of memory: what one value may take is bounded, so it is the machine that has
        // none, and not the statement that asks for too much.
        ErrorCode::CannotOpen
        | ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OutOfMemory => Trouble::Busy,
        ErrorCode::SystemIoFailure => match error.extended_code {
            // The index of the write-ahead log is scratch memory in a file. It is made
            // anew at each open, so nothing is lost with it; a full disk shows here first.
            ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMMAP => {
                Trouble::Full
            }
            ffi::SQLITE_IOERR_NOMEM => Trouble::Busy,
            _ => Trouble::Broken,
        },
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Trouble::Broken,
        _ => Trouble::Statement,
    }
}

/// Whether a statement that failed this way while an event was applied is at fault itself.
/// That the database cannot be written to is nobody's event: where the receiver may not
/// write, the first event would be blamed, and the next one.
pub fn is_of_statement(error: &rusqlite::Error) -> bool {
    judge(error) == Trouble::Statement
        && !matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied)
        )
}

/// The error without SQL text, names or values, for people who are not on this machine.
pub fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(error, message) => {
            let said = match words(error.extended_code, message.as_deref()) {
                Some(words) => words.to_owned(),
                // "Error code 13: database or disk is full"; the number comes behind it.
                None => {
                    let said = error.to_string();
                    let said = said.split_once(": ").map_or(said.as_str(), |(_, said)| said);
                    said.trim_end_matches('.').to_owned()
                }
            };
            format!("{said} (SQLite code {})", error.extended_code)
        }
        rusqlite::Error::SqlInputError { error, .. } => {
            format!("a statement is malformed (SQLite code {})", error.extended_code)
        }
        _ => "a value did not have the type that was expected".to_owned(),
    }
}

/// What a statement has come to, where SQLite's own words name tables and columns or say
/// nothing.
fn words(extended_code: i32, message: Option<&str>) -> Option<&'static str> {
    Some(match extended_code {
        ffi::SQLITE_CONSTRAINT_CHECK => "a CHECK constraint failed",
        ffi::SQLITE_CONSTRAINT_NOTNULL => "a NOT NULL constraint failed",
        ffi::SQLITE_CONSTRAINT_UNIQUE => "a UNIQUE constraint failed",
        ffi::SQLITE_CONSTRAINT_PRIMARYKEY => "a PRIMARY KEY constraint failed",
        ffi::SQLITE_CONSTRAINT_ROWID => "a row of that number is there already",
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => "a FOREIGN KEY constraint failed",
        ffi::SQLITE_CONSTRAINT_DATATYPE => {
            "a column got a value of another type, or a number that 64 bits do not hold"
        }
        ffi::SQLITE_CONSTRAINT_TRIGGER => "a trigger refused it",
        ffi::SQLITE_MISMATCH => "a row's number, or a LIMIT, is no integer",
        ffi::SQLITE_TOOBIG => "a text, a blob or a row is too long",
        ffi::SQLITE_ERROR => match message {
            Some("integer overflow") => "a sum is beyond what 64 bits hold",
            Some("malformed JSON") => "a text is no JSON",
            Some(path) if path.starts_with("bad JSON path") => "a JSON path is malformed",
            _ => "a statement, or a function in it, failed",
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_what_they_mean() {
        let cases = [
            (ffi::SQLITE_FULL, Trouble::Full),
            (ffi::SQLITE_BUSY, Trouble::Busy),
            (ffi::SQLITE_BUSY_SNAPSHOT, Trouble::Busy),
            (ffi::SQLITE_LOCKED, Trouble::Busy),
            (ffi::SQLITE_CANTOPEN, Trouble::Busy),
            (ffi::SQLITE_IOERR, Trouble::Broken),
            (ffi::SQLITE_IOERR_READ, Trouble::Broken),
            (ffi::SQLITE_IOERR_WRITE, Trouble::Broken),
            (ffi::SQLITE_IOERR_FSYNC, Trouble::Broken),
            (ffi::SQLITE_IOERR_DIR_FSYNC, Trouble::Broken),
            (ffi::SQLITE_IOERR_TRUNCATE, Trouble::Broken),
            (ffi::SQLITE_IOERR_SHMSIZE, Trouble::Full),
            (ffi::SQLITE_CORRUPT, Trouble::Broken),
            (ffi::SQLITE_NOTADB, Trouble::Broken),
            (ffi::SQLITE_CONSTRAINT_CHECK, Trouble::Statement),
            (ffi::SQLITE_AUTH, Trouble::Statement),
            (ffi::SQLITE_TOOBIG, Trouble::Statement),
            (ffi::SQLITE_READONLY, Trouble::Statement),
            (ffi::SQLITE_NOMEM, Trouble::Busy),
            (ffi::SQLITE_IOERR_NOMEM, Trouble::Busy),
        ];
        for (code, expected) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(judge(&error), expected, "{code}");
        }
        assert_eq!(judge(&rusqlite::Error::QueryReturnedNoRows), Trouble::Statement);
    }

    #[test]
    fn what_no_event_is_to_blame_for() {
        let cases = [
            (ffi::SQLITE_CONSTRAINT_CHECK, true),
            (ffi::SQLITE_ERROR, true),
            (ffi::SQLITE_TOOBIG, true),
            (ffi::SQLITE_READONLY, false),
            (ffi::SQLITE_READONLY_DBMOVED, false),
            (ffi::SQLITE_PERM, false),
            (ffi::SQLITE_NOMEM, false),
            (ffi::SQLITE_FULL, false),
            (ffi::SQLITE_IOERR_WRITE, false),
        ];
        for (code, expected) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(is_of_statement(&error), expected, "{code}");
        }
    }

    /// What SQLite really says to statements, in words for people far away.
    #[test]
    fn what_is_said_names_the_kind_and_nothing_of_the_tables() {
        let tables = rusqlite::Connection::open_in_memory().expect("memory");
        tables
            .execute_batch(
                "PRAGMA foreign_keys = ON;
                 CREATE TABLE secret (id INTEGER PRIMARY KEY, a TEXT NOT NULL UNIQUE,
                     n INTEGER CHECK (n > 0), of INTEGER REFERENCES secret (id)) STRICT;
                 CREATE TABLE named (secret TEXT NOT NULL PRIMARY KEY) STRICT;
                 CREATE TRIGGER t BEFORE INSERT ON named WHEN new.secret = 'bad'
                 BEGIN SELECT RAISE(ABORT, 'secret'); END;
                 INSERT INTO secret VALUES (1, 'a', 1, NULL); INSERT INTO named VALUES ('a');",
            )
            .expect("plain SQL");
        let datatype = "a column got a value of another type, or a number that 64 bits do not hold \
                        (SQLite code 3091)";
        let cases = [
            ("UPDATE secret SET n = 0", "a CHECK constraint failed (SQLite code 275)"),
            ("UPDATE secret SET a = NULL", "a NOT NULL constraint failed (SQLite code 1299)"),
            (
                "INSERT INTO secret (a) VALUES ('a')",
                "a UNIQUE constraint failed (SQLite code 2067)",
            ),
            (
                "INSERT INTO named VALUES ('a')",
                "a PRIMARY KEY constraint failed (SQLite code 1555)",
            ),
            (
                "CREATE TABLE rows (a); INSERT INTO rows (rowid) VALUES (1); \
                 INSERT INTO rows (rowid) VALUES (1)",
                "a row of that number is there already (SQLite code 2579)",
            ),
            ("UPDATE secret SET of = 7", "a FOREIGN KEY constraint failed (SQLite code 787)"),
            ("UPDATE secret SET n = 'x'", datatype),
            ("UPDATE secret SET n = 9223372036854775807 + n", datatype),
            ("INSERT INTO named VALUES ('bad')", "a trigger refused it (SQLite code 1811)"),
            (
                "INSERT INTO secret VALUES ('x', 'b', 1, 1)",
                "a row's number, or a LIMIT, is no integer (SQLite code 20)",
            ),
            (
                "INSERT INTO named VALUES (zeroblob(2000000000))",
                "a text, a blob or a row is too long (SQLite code 18)",
            ),
            (
                "SELECT sum(n) FROM (SELECT 9223372036854775807 AS n UNION ALL SELECT 1)",
                "a sum is beyond what 64 bits hold (SQLite code 1)",
            ),
            ("SELECT 'secret' ->> 'a'", "a text is no JSON (SQLite code 1)"),
            ("SELECT '{}' ->> '$x'", "a JSON path is malformed (SQLite code 1)"),
            (
                "SELECT printf(1, 2), abs(-9223372036854775807 - 1)",
                "a sum is beyond what 64 bits hold (SQLite code 1)",
            ),
            ("SELECT zeroblob()", "a statement is malformed (SQLite code 1)"),
            (
                "SELECT 'a' LIKE 'b' ESCAPE 'secret'",
                "a statement, or a function in it, failed (SQLite code 1)",
            ),
        ];
        for (sql, expected) in cases {
            let run = || {
                for sql in sql.split("; ") {
                    let mut statement = tables.prepare(sql)?;
                    let mut rows = statement.raw_query();
                    while rows.next()?.is_some() {}
                }
                Ok(())
            };
            let error: rusqlite::Error = run().expect_err(sql);
            assert_eq!(said(&error), expected, "{error:?}");
        }
        let full = rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_FULL), None);
        assert_eq!(said(&full), "database or disk is full (SQLite code 13)");
    }
}
