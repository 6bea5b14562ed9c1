//! The database in memory that statements are prepared on, and what SQLite says to them in
//! words that say what to write instead.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rusqlite::{Connection, Error, ErrorCode, Statement, config::DbConfig};

use crate::receiver::{
    declared::{
        flaw::{Flaws, listed, meant},
        rules::{self, Context},
        statements::Piece,
        text::Text,
    },
    store::{
        SCHEMA,
        guard::{Guard, Mode},
    },
};

/// Most steps of SQLite's that all migrations together may take on an empty database: a second
/// or so.
const MAX_STEPS: i64 = 100_000_000;
/// Steps between two looks at how many there were, and at the clock: one step may take long.
const STEPS_A_LOOK: i32 = 100;
/// Longest that all migrations together may take on an empty database.
const LONGEST: Duration = Duration::from_secs(10);
/// Most that they may put into it, in pages of 4,096 bytes: 64 MiB.
const MAX_PAGES: i64 = 16_384;

/// An empty database of a receiver.
pub(super) struct Sandbox {
    connection: Connection,
    guard: Guard,
    /// Whether a migration failed, so that a table may be missing for that reason alone.
    incomplete: Cell<bool>,
    since: Instant,
    /// Whether a migration is running, which may take only so long.
    running: Arc<AtomicBool>,
}

/// A statement that SQLite has taken.
pub(super) struct Prepared<'s> {
    pub(super) statement: Statement<'s>,
    /// Whether its words are right, so that whatever SQLite says to it is news.
    pub(super) clean: bool,
}

impl Sandbox {
    pub(super) fn new() -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.execute_batch(&format!("PRAGMA max_page_count = {MAX_PAGES}"))?;
        // A name in double quotes that there is not would be taken for text.
        for setting in [DbConfig::SQLITE_DBCONFIG_DQS_DML, DbConfig::SQLITE_DBCONFIG_DQS_DDL] {
            connection.set_db_config(setting, false)?;
        }
        let guard = Guard::on(&mut connection)?;
        // A migration that has no end must not keep whoever asks for its flaws.
        let (mut looks, since) = (0, Instant::now());
        let running = Arc::new(AtomicBool::default());
        let asked = running.clone();
        let too_long = move || {
            if !asked.load(Ordering::Relaxed) {
                return false;
            }
            looks += 1;
            looks > MAX_STEPS / i64::from(STEPS_A_LOOK) || since.elapsed() > LONGEST
        };
        connection.progress_handler(STEPS_A_LOOK, Some(too_long))?;
        Ok(Sandbox { connection, guard, incomplete: Cell::default(), since, running })
    }

    /// Whether the migrations have taken so long that no more of them are looked at; why.
    pub(super) fn is_late(&self) -> Option<String> {
        (self.since.elapsed() > LONGEST).then(|| {
            format!(
                "the migrations take longer than {} s on an empty database; leave out what takes \
                 so long",
                LONGEST.as_secs()
            )
        })
    }

    /// The connection, as the receiver's own.
    pub(super) fn own(&self) -> &Connection {
        &self.connection
    }

    /// A migration has failed: what is not there from now on is not told.
    pub(super) fn give_up_tables(&self) {
        self.incomplete.set(true);
    }

    /// Looks at the words of a statement, and prepares it. Notes what is wrong.
    pub(super) fn prepare(
        &self,
        (text, piece): (&Text, &Piece<'_>),
        context: Context,
        place: &str,
        flaws: &mut Flaws,
    ) -> Option<Prepared<'_>> {
        let findings = rules::findings(piece, context);
        for finding in &findings {
            flaws.add(text.line_at(piece.at + finding.at), place, finding.message.clone());
        }
        if findings.iter().any(|finding| finding.fatal) {
            return None;
        }
        match self.guarded(context, || self.connection.prepare(piece.text)) {
            Ok(statement) => Some(Prepared { statement, clean: findings.is_empty() }),
            // What the words have told is not told again by what the guard makes of them.
            Err(Refusal { by_guard: true, .. }) if !findings.is_empty() => None,
            Err(Refusal { missing: Some(_), .. }) if self.incomplete.get() => None,
            Err(refusal) => {
                let at = refusal.within(piece);
                flaws.add(text.line_at(piece.at + at), place, refusal.message);
                None
            }
        }
    }

    /// Runs a statement to its end.
    pub(super) fn run(&self, prepared: &mut Prepared<'_>, context: Context) -> Result<(), Refusal> {
        self.running.store(true, Ordering::Relaxed);
        let run = self.guarded(context, || {
            let mut rows = prepared.statement.raw_query();
            while rows.next()?.is_some() {}
            Ok(())
        });
        self.running.store(false, Ordering::Relaxed);
        run
    }

    /// Runs something as a projection may.
    pub(super) fn guarded<T>(
        &self,
        context: Context,
        run: impl FnOnce() -> rusqlite::Result<T>,
    ) -> Result<T, Refusal> {
        let mode = match context {
            Context::Migration => Mode::Migration,
            Context::Effect | Context::Asked => Mode::Handler,
            Context::Query => Mode::Query,
        };
        self.guard.take_refused();
        self.guard.during(mode, run).map_err(|error| self.refusal(&error, context))
    }

    fn refusal(&self, error: &Error, context: Context) -> Refusal {
        let at = match error {
            Error::SqlInputError { offset, .. } => usize::try_from(*offset).unwrap_or_default(),
            _ => 0,
        };
        if let Some(what) = self.guard.take_refused() {
            let message = refused(&what, context);
            return Refusal { at, message, by_guard: true, missing: None };
        }
        let too_much = match error.sqlite_error_code() {
            Some(ErrorCode::OperationInterrupted) => self.is_late().or_else(|| {
                Some(format!(
                    "takes more than {MAX_STEPS} steps of SQLite's on an empty database; a \
                     recursive query needs a WHERE that ends it"
                ))
            }),
            Some(ErrorCode::DiskFull) => Some(format!(
                "puts more than {} MiB into an empty database; leave most of it to the handlers",
                MAX_PAGES * 4_096 / (1 << 20)
            )),
            _ => None,
        };
        if let Some(message) = too_much {
            return Refusal { at, message, by_guard: false, missing: None };
        }
        // The schema goes without saying: there is only one.
        let said = said(error).replace(": main.", ": ");
        let missing = said
            .strip_prefix("no such ")
            .and_then(|rest| rest.split_once(": "))
            .map(|(kind, name)| (kind.to_owned(), name.to_owned()));
        let message = match &missing {
            Some((kind, name)) if kind == "table" => {
                let names = self.names(
                    "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view') AND name",
                );
                let near = meant(name, names.iter().map(String::as_str));
                format!("{said}; there are: {}{near}", listed(&names))
            }
            Some((kind, name)) if kind == "column" => {
                let names = self.names(
                    "SELECT columns.name FROM sqlite_schema AS tables
                     JOIN pragma_table_info(tables.name) AS columns
                     WHERE tables.type = 'table' AND tables.name",
                );
                let bare = name.rsplit('.').next().unwrap_or_default();
                format!("{said}{}", meant(bare, names.iter().map(String::as_str)))
            }
            _ => said,
        };
        // SQLite guards its own tables itself.
        let by_guard = message.ends_with("may not be modified");
        Refusal { at, message, by_guard, missing: missing.map(|(_, name)| name) }
    }

    /// Names out of what the migrations have made.
    fn names(&self, of: &str) -> Vec<String> {
        let own = format!("{of} NOT LIKE 'counterfoil\\_%' ESCAPE '\\'");
        let names = self.connection.prepare(&own).and_then(|mut select| {
            select.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()
        });
        names.unwrap_or_default()
    }
}

/// What is wrong with a statement.
pub(super) struct Refusal {
    /// Where in it, in bytes.
    pub(super) at: usize,
    pub(super) message: String,
    /// Whether it could be done and may not.
    by_guard: bool,
    /// What it names and there is not.
    missing: Option<String>,
}

impl Refusal {
    /// Where in the statement: SQLite does not always say, and then it is where the name is.
    fn within(&self, piece: &Piece<'_>) -> usize {
        let named = self.missing.as_deref().filter(|_| self.at == 0).and_then(|name| {
            let mut tokens = piece.tokens.iter();
            tokens.find(|token| token.name().is_some_and(|it| it.eq_ignore_ascii_case(name)))
        });
        named.map_or(self.at, |token| token.at)
    }
}

/// What SQLite says, without the statement, which stands in the file.
fn said(error: &Error) -> String {
    match error {
        Error::SqlInputError { msg, .. } => msg.clone(),
        Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    }
}

/// What the guard has refused, and why.
fn refused(what: &str, context: Context) -> String {
    let why = if what.contains("counterfoil_") {
        "the receiver's tables are its own; keep to the ones that the migrations make"
    } else if what.starts_with("the function") {
        "applying the same events again has to give the same rows; take :accept_time or the payload"
    } else if what.contains("sqlite_") || what.contains("pragma_") {
        "it shows SQLite's own state and not what events have done; leave it out"
    } else if context == Context::Migration {
        "a migration makes and changes tables, indexes, views and triggers, and their rows"
    } else if context == Context::Effect {
        "a handler reads and writes rows of the tables that the migrations make"
    } else {
        "only sql of [[on]] writes"
    };
    format!("{what} is not allowed: {why}")
}
