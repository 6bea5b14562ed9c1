//! SQLite's functions that do not give the same each time, by name: a replay has to give the
//! same rows.

/// Not in handlers and migrations. A test goes through all functions of the SQLite that is
/// built in.
const NOT_DETERMINISTIC: [&str; 16] = [
    "changes",
    "current_date",
    "current_time",
    "current_timestamp",
    "fts3_tokenizer",
    "last_insert_rowid",
    "load_extension",
    "random",
    "randomblob",
    "sqlite_compileoption_get",
    "sqlite_compileoption_used",
    "sqlite_log",
    "sqlite_offset",
    "sqlite_source_id",
    "sqlite_version",
    "total_changes",
];

/// Not even in queries: they do something.
const WITH_EFFECTS: [&str; 3] = ["fts3_tokenizer", "load_extension", "sqlite_log"];

/// Whether a function may be used where the same event has to give the same rows. The
/// functions of date and time are judged when they are run, by their arguments.
pub fn is_deterministic(name: &str) -> bool {
    !NOT_DETERMINISTIC.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether a function does something.
pub fn has_effects(name: &str) -> bool {
    WITH_EFFECTS.iter().any(|known| name.eq_ignore_ascii_case(known))
}
