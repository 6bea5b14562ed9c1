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
        ErrorCode::CannotOpen
        | ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed => Trouble::Busy,
        ErrorCode::SystemIoFailure => match error.extended_code {
            // The index of the write-ahead log is scratch memory in a file. It is made
            // anew at each open, so nothing is lost with it; a full disk shows here first.
            ffi::SQLITE_IOERR_SHMOPEN | ffi::SQLITE_IOERR_SHMSIZE | ffi::SQLITE_IOERR_SHMMAP => {
                Trouble::Full
            }
            _ => Trouble::Broken,
        },
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Trouble::Broken,
        _ => Trouble::Statement,
    }
}

/// The error without SQL text, for people who are not on this machine.
pub fn said(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(error, _) => {
            format!(
                "{} (SQLite code {})",
                error.to_string().trim_end_matches('.'),
                error.extended_code
            )
        }
        rusqlite::Error::SqlInputError { error, .. } => {
            format!("a statement is malformed (SQLite code {})", error.extended_code)
        }
        _ => "a value did not have the type that was expected".to_owned(),
    }
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
        ];
        for (code, expected) in cases {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(judge(&error), expected, "{code}");
        }
        assert_eq!(judge(&rusqlite::Error::QueryReturnedNoRows), Trouble::Statement);
    }
}
