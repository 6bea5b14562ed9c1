//! Keeps what is not the receiver's own code to what it may do with the connection: a
//! projection's handlers, its migrations, its queries. Guards against mistakes, not against
//! malice.

pub mod functions;
mod rules;
mod steps;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use rusqlite::{
    Connection,
    hooks::{Action, AuthContext, Authorization},
    limits::Limit,
};

use crate::proto::limits::MAX_VALUE_BYTES;

/// Whose statements are prepared and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The receiver's own: everything is allowed.
    Own,
    /// A step that makes or changes the projection's tables.
    Migration,
    /// What is done with an event: rows of the projection's tables are read and written, and
    /// the same event gives the same rows each time.
    Handler,
    /// What callers may ask: nothing is written.
    Query,
}

/// Who is running. The authorizer is set once and asks this: setting it anew would throw
/// away every prepared statement.
#[derive(Debug, Clone)]
pub struct Guard(Arc<State>);

#[derive(Debug)]
struct State {
    /// A [`Mode`].
    mode: AtomicU8,
    /// What was refused last, in words.
    refused: Mutex<Option<String>>,
    /// Whether there is something: asked for each event.
    any_refused: AtomicBool,
    /// How often SQLite has looked up from its work since [`Guard::during`], see `steps`.
    looks: AtomicU64,
    /// Whether a row was given the last number that there is.
    any_last_row: AtomicBool,
}

impl Guard {
    /// Puts it on a connection, which is the receiver's own until [`Guard::during`].
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn on(connection: &mut Connection) -> rusqlite::Result<Self> {
        connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)?;
        // SQLite declares these like tables when they are first used, which no mode but the
        // receiver's own may do.
        for module in rules::READABLE_MODULES {
            connection.prepare(&format!("SELECT 1 FROM {module}('[]')"))?;
        }
        let state = Arc::new(State {
            mode: AtomicU8::new(Mode::Own as u8),
            refused: Mutex::default(),
            any_refused: AtomicBool::default(),
            looks: AtomicU64::default(),
            any_last_row: AtomicBool::default(),
        });
        let told = state.clone();
        connection.update_hook(Some(move |action, _: &str, _: &str, row: i64| {
            if row == i64::MAX && action != Action::SQLITE_DELETE {
                told.note_last_row();
            }
        }))?;
        functions::stand_in(connection, &state)?;
        let asked = state.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            match rules::refusal(asked.mode(), &context) {
                None => Authorization::Allow,
                Some(what) => {
                    asked.note(what);
                    Authorization::Deny
                }
            }
        }))?;
        Ok(Guard(state))
    }

    /// Runs what is not the receiver's own code, unwinding included.
    pub fn during<T>(&self, mode: Mode, run: impl FnOnce() -> T) -> T {
        struct Running<'a>(&'a State);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.mode.store(Mode::Own as u8, Ordering::Relaxed);
            }
        }
        if self.0.any_refused.load(Ordering::Relaxed) {
            self.take_refused();
        }
        self.0.any_last_row.store(false, Ordering::Relaxed);
        self.0.looks.store(0, Ordering::Relaxed);
        self.0.mode.store(mode as u8, Ordering::Relaxed);
        let _running = Running(&self.0);
        run()
    }

    /// What was refused in the last [`Guard::during`], if anything, in words that go after
    /// "may not use": `ATTACH`, `the function random()`, `a write to counterfoil_ledger`.
    pub fn take_refused(&self) -> Option<String> {
        self.0.any_refused.store(false, Ordering::Relaxed);
        self.0.refused.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// What is wrong if a handler or a migration has given a row the last number that there
    /// is in the last [`Guard::during`]. From then on SQLite picks the numbers of new rows by
    /// chance, so that a replay would come to others; and a table with AUTOINCREMENT takes no
    /// more, for which SQLite has the word that it has for a full disk.
    pub fn took_last_row(&self) -> Option<&'static str> {
        self.0
            .any_last_row
            .swap(false, Ordering::Relaxed)
            .then_some("a row got the number 2^63-1, after which SQLite picks numbers by chance")
    }
}

impl State {
    fn mode(&self) -> Mode {
        [Mode::Own, Mode::Migration, Mode::Handler, Mode::Query]
            .into_iter()
            .find(|mode| *mode as u8 == self.mode.load(Ordering::Relaxed))
            .unwrap_or(Mode::Query)
    }

    fn note_last_row(&self) {
        if matches!(self.mode(), Mode::Handler | Mode::Migration) {
            self.any_last_row.store(true, Ordering::Relaxed);
        }
    }

    fn note(&self, what: String) {
        self.any_refused.store(true, Ordering::Relaxed);
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }
}

#[cfg(test)]
mod tests;
