//! The tables as a projection reaches them: the connection, and the statements that its
//! events have in common, prepared once for a group of them.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

use rusqlite::{CachedStatement, Connection};

/// A connection inside the receiver's transaction.
pub struct Tables<'c> {
    connection: &'c Connection,
    /// Those that are not in use, each with its text.
    ready: RefCell<Vec<(&'static str, CachedStatement<'c>)>>,
}

impl<'c> Tables<'c> {
    /// The tables behind a connection.
    pub fn of(connection: &'c Connection) -> Self {
        Tables { connection, ready: RefCell::default() }
    }

    /// A prepared statement. Found by where its text stands and not by what it says, since
    /// the connection's own look-up (`prepare_cached`) takes a noticeable part of a small
    /// statement's time; hence `sql` is best a constant.
    ///
    /// # Errors
    /// Whatever SQLite says to its text.
    pub fn statement(&self, sql: &'static str) -> rusqlite::Result<Statement<'_, 'c>> {
        let mut ready = self.ready.borrow_mut();
        let known = ready.iter().position(|(text, _)| std::ptr::eq(*text, sql));
        let statement = match known {
            Some(place) => ready.swap_remove(place).1,
            None => self.connection.prepare_cached(sql)?,
        };
        Ok(Statement { tables: self, sql, statement: Some(statement) })
    }
}

impl Deref for Tables<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection
    }
}

/// A statement in use; dropped, it is ready for the next event.
pub struct Statement<'t, 'c> {
    tables: &'t Tables<'c>,
    sql: &'static str,
    /// Always there until it is dropped.
    statement: Option<CachedStatement<'c>>,
}

impl<'c> Deref for Statement<'_, 'c> {
    type Target = rusqlite::Statement<'c>;

    fn deref(&self) -> &Self::Target {
        self.statement.as_deref().expect("there until it is dropped")
    }
}

impl DerefMut for Statement<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.statement.as_deref_mut().expect("there until it is dropped")
    }
}

impl Drop for Statement<'_, '_> {
    fn drop(&mut self) {
        if let Some(mut statement) = self.statement.take() {
            // What an event has bound is none of the next one's.
            statement.clear_bindings();
            self.tables.ready.borrow_mut().push((self.sql, statement));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD: &str = "INSERT INTO mine VALUES (?1)";
    const SUM: &str = "SELECT sum(a) FROM mine";

    #[test]
    fn statements_are_kept_and_may_be_used_within_each_other() {
        let connection = Connection::open_in_memory().expect("memory");
        connection.execute_batch("CREATE TABLE mine (a)").expect("plain SQL");
        let tables = Tables::of(&connection);
        for n in 1..=3 {
            let mut outer = tables.statement(ADD).expect("valid");
            outer.execute([n]).expect("added");
            tables.statement(ADD).expect("a second one").execute([10 * n]).expect("added");
        }
        let sum: i64 = tables
            .statement(SUM)
            .expect("valid")
            .query_row([], |row| row.get(0))
            .expect("one number");
        assert_eq!(sum, 66);
        let bound: Option<i64> = tables
            .statement(ADD)
            .and_then(|mut add| {
                add.raw_execute()?;
                connection.query_row("SELECT a FROM mine ORDER BY rowid DESC", [], |row| row.get(0))
            })
            .expect("added");
        assert_eq!(bound, None, "nothing is left bound");
        assert_eq!(tables.ready.borrow().len(), 3);
        tables.statement("INSERT INTO yours VALUES (1)").err().expect("no such table");
    }
}
