//! SQLite's functions that do not give the same each time, by name: a replay has to give the
//! same rows.
//!
//! Most are refused when a statement with them is prepared. SQLite asks nobody about a
//! column's DEFAULT, though, and whether a function of date and time looks at the clock
//! depends on what it is called with. Hence each has a stand-in on the connection, which
//! refuses when it is run and otherwise gives what SQLite's own gives.

use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{
    Connection, Error,
    functions::{Context, FunctionFlags},
    types::{ToSqlOutput, Value, ValueRef},
};

use super::{Mode, State};

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

/// Those of them that may stand in a DEFAULT and mean something there, with the number of
/// their arguments.
const IN_DEFAULTS: [(&str, i32); 10] = [
    ("changes", 0),
    ("current_date", 0),
    ("current_time", 0),
    ("current_timestamp", 0),
    ("last_insert_rowid", 0),
    ("random", 0),
    ("randomblob", 1),
    ("sqlite_source_id", 0),
    ("sqlite_version", 0),
    ("total_changes", 0),
];

/// Not even in queries: they do something.
const WITH_EFFECTS: [&str; 3] = ["fts3_tokenizer", "load_extension", "sqlite_log"];

/// Functions of date and time: how many arguments they take (-1: any number), which of them
/// are times, and from where on modifiers follow.
const OF_TIME: [(&str, i32, std::ops::Range<usize>); 7] = [
    ("date", -1, 0..1),
    ("datetime", -1, 0..1),
    ("julianday", -1, 0..1),
    ("strftime", -1, 1..2),
    ("time", -1, 0..1),
    ("timediff", 2, 0..2),
    ("unixepoch", -1, 0..1),
];

/// Whether a function may be used where the same event has to give the same rows. The
/// functions of date and time are judged when they are run, by their arguments.
pub fn is_deterministic(name: &str) -> bool {
    !NOT_DETERMINISTIC.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Whether a function does something.
pub fn has_effects(name: &str) -> bool {
    WITH_EFFECTS.iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Puts the stand-ins on a connection.
pub(super) fn stand_in(connection: &Connection, guard: &Arc<State>) -> rusqlite::Result<()> {
    let own = Arc::new(Own::default());
    let plain = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    for (name, arguments) in IN_DEFAULTS {
        let (own, guard) = (own.clone(), guard.clone());
        connection.create_scalar_function(name, arguments, plain, move |context| {
            if guard.repeats() {
                return Err(guard.refuse(format!("the function {name}()")));
            }
            own.call(name, &arguments_of(context))
        })?;
    }
    // SQLite allows its own where they give the same each time, such as in an index, and
    // finds out when they are run; so do these.
    let same_each_time = plain | FunctionFlags::SQLITE_DETERMINISTIC;
    for (name, arguments, times) in OF_TIME {
        let (own, guard) = (own.clone(), guard.clone());
        connection.create_scalar_function(name, arguments, same_each_time, move |context| {
            let arguments = arguments_of(context);
            match clock(&arguments, times.clone()) {
                Some(what) if guard.repeats() => {
                    Err(guard.refuse(format!("{what} in the function {name}()")))
                }
                _ => own.call(name, &arguments),
            }
        })?;
    }
    Ok(())
}

fn arguments_of<'c>(context: &'c Context<'_>) -> Vec<ValueRef<'c>> {
    (0..context.len()).map(|place| context.get_raw(place)).collect()
}

/// What makes a function of date and time look at the clock or at the machine's time zone.
/// None: it gives the same each time. Pure.
fn clock(arguments: &[ValueRef<'_>], times: std::ops::Range<usize>) -> Option<&'static str> {
    let is = |argument: &ValueRef<'_>, word: &str| match argument {
        // Read as text by SQLite, up to the first NUL.
        ValueRef::Text(text) | ValueRef::Blob(text) => text
            .split(|byte| *byte == 0)
            .next()
            .is_some_and(|text| text.eq_ignore_ascii_case(word.as_bytes())),
        _ => false,
    };
    if arguments.len() < times.end {
        return Some("the time that is meant where none is given");
    }
    let (times, modifiers) = (&arguments[times.clone()], &arguments[times.end..]);
    let in_times = [("now", "'now'"), ("subsec", "'subsec'"), ("subsecond", "'subsecond'")];
    let in_modifiers = [("localtime", "'localtime'"), ("utc", "'utc'")];
    let any = |arguments: &[ValueRef<'_>], words: &[(&'static str, &'static str)]| {
        let found =
            words.iter().find(|(word, _)| arguments.iter().any(|argument| is(argument, word)));
        found.map(|(_, shown)| *shown)
    };
    any(times, &in_times).or_else(|| any(modifiers, &in_modifiers))
}

/// SQLite's own functions, on a connection of their own: one cannot be called on a
/// connection where another one has its name.
#[derive(Default)]
struct Own(Mutex<Option<Connection>>);

impl Own {
    fn call(&self, name: &str, arguments: &[ValueRef<'_>]) -> rusqlite::Result<Value> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connection = match &mut *own {
            Some(connection) => connection,
            none => none.insert(Connection::open_in_memory()?),
        };
        let marks = vec!["?"; arguments.len()].join(", ");
        // In quotes, since some are words of SQL that take no parentheses.
        let mut call = connection.prepare_cached(&format!("SELECT \"{name}\"({marks})"))?;
        for (place, argument) in arguments.iter().enumerate() {
            call.raw_bind_parameter(place + 1, ToSqlOutput::Borrowed(*argument))?;
        }
        let mut rows = call.raw_query();
        match rows.next()? {
            Some(row) => row.get(0),
            None => Err(Error::QueryReturnedNoRows),
        }
    }
}

impl State {
    /// Whether what is run now has to give the same each time.
    fn repeats(&self) -> bool {
        matches!(self.mode(), Mode::Migration | Mode::Handler)
    }

    fn refuse(&self, what: String) -> Error {
        let said = format!("may not use {what}");
        self.note(what);
        Error::UserFunctionError(said.into())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::types::ValueRef::{Blob, Integer, Null, Real, Text};

    use super::*;

    #[test]
    fn what_looks_at_the_clock() {
        let text = |text: &'static str| Text(text.as_bytes());
        let day = text("2026-11-30");
        let cases: [(&[ValueRef<'_>], std::ops::Range<usize>, bool); 20] = [
            (&[], 0..1, true),
            (&[text("now")], 0..1, true),
            (&[text("NOW"), text("+1 day")], 0..1, true),
            (&[Blob(b"now")], 0..1, true),
            (&[text("now\0")], 0..1, true),
            (&[text("subsec")], 0..1, true),
            (&[text("SubSecond")], 0..1, true),
            (&[day, text("localtime")], 0..1, true),
            (&[day, text("+1 day"), text("UTC")], 0..1, true),
            (&[text("%Y")], 1..2, true),
            (&[text("%Y"), text("now")], 1..2, true),
            (&[day, text("now")], 0..2, true),
            (&[day], 0..1, false),
            (&[text("now")], 1..1, false),
            (&[text(" now")], 0..1, false),
            (&[Null], 0..1, false),
            (&[Real(2_460_000.5), text("subsec")], 0..1, false),
            (&[Integer(0), text("unixepoch"), text("start of month")], 0..1, false),
            (&[text("now"), day], 1..2, false),
            (&[day, day], 0..2, false),
        ];
        for (arguments, times, looks) in cases {
            assert_eq!(clock(arguments, times).is_some(), looks, "{arguments:?}");
        }
    }
}
