//! The database in memory that statements are prepared on, and what SQLite says to them in
//! words that say what to write instead.

use rusqlite::{Connection, Error, Statement, config::DbConfig};

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

/// An empty database of a receiver.
pub(super) struct Sandbox {
    connection: Connection,
    guard: Guard,
    /// What its migrations have made.
    pub(super) tables: Tables,
}

/// What migrations have made.
#[derive(Debug, Default)]
pub(super) struct Tables {
    /// The names of tables and views.
    pub(super) names: Vec<String>,
    /// Whether a migration failed, so that some may be missing for that reason alone.
    pub(super) incomplete: bool,
}

/// A statement that SQLite has taken.
pub(super) struct Prepared<'s> {
    pub(super) statement: Statement<'s>,
}

impl Sandbox {
    pub(super) fn new() -> rusqlite::Result<Self> {
        let mut connection = Connection::open_in_memory()?;
        connection.execute_batch(SCHEMA)?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        // A name in double quotes that there is not would be taken for text.
        for setting in [DbConfig::SQLITE_DBCONFIG_DQS_DML, DbConfig::SQLITE_DBCONFIG_DQS_DDL] {
            connection.set_db_config(setting, false)?;
        }
        let guard = Guard::on(&mut connection)?;
        Ok(Sandbox { connection, guard, tables: Tables::default() })
    }

    /// The connection, as the receiver's own.
    pub(super) fn own(&self) -> &Connection {
        &self.connection
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
            Ok(statement) => Some(Prepared { statement }),
            // What the words have told is not told again by what the guard makes of them.
            Err(Refusal { by_guard: true, .. }) if !findings.is_empty() => None,
            Err(Refusal { missing: true, .. }) if self.tables.incomplete => None,
            Err(refusal) => {
                flaws.add(text.line_at(piece.at + refusal.at), place, refusal.message);
                None
            }
        }
    }

    /// Runs a statement to its end.
    pub(super) fn run(&self, prepared: &mut Prepared<'_>, context: Context) -> Result<(), Refusal> {
        self.guarded(context, || {
            let mut rows = prepared.statement.raw_query();
            while rows.next()?.is_some() {}
            Ok(())
        })
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
            return Refusal { at, message, by_guard: true, missing: false };
        }
        let said = said(error);
        let missing = said.starts_with("no such ");
        let message = match said.strip_prefix("no such table: ") {
            Some(name) => {
                let names = self.tables.names.iter().map(String::as_str);
                let near = meant(name, names.clone());
                format!("{said}; there are: {}{near}", listed(names))
            }
            None => said,
        };
        Refusal { at, message, by_guard: false, missing }
    }
}

/// What is wrong with a statement.
pub(super) struct Refusal {
    /// Where in it, in bytes.
    pub(super) at: usize,
    pub(super) message: String,
    /// Whether SQLite could do it and may not.
    by_guard: bool,
    /// Whether something that it names is not there.
    missing: bool,
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
