//! The tables as a projection reaches them: the connection, the statements that its
//! events have in common, prepared once for a group of them, and what it emits.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
};

use bytes::Bytes;
use rusqlite::{CachedStatement, Connection};

use crate::proto::event::{DataKind, Time};

/// A connection inside the receiver's transaction.
pub struct Tables<'c> {
    connection: &'c Connection,
    /// Those that are not in use, each with its text.
    ready: RefCell<Vec<(&'c str, CachedStatement<'c>)>>,
    emitted: RefCell<Vec<FollowUp>>,
}

/// An event that follows from the one that is applied. Written to `counterfoil_outbox` in
/// its transaction, and forwarded from there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowUp {
    /// Names this kind of follow-up within the projection; part of the key that is derived
    /// for it, so it stays the same from one version to the next.
    pub name: String,
    /// What happened.
    pub event_type: String,
    /// What it happened to.
    pub subject: String,
    /// Media type; empty: the one of `kind`.
    pub content_type: String,
    /// How to read `data`.
    pub kind: DataKind,
    /// The payload.
    pub data: Bytes,
    /// When it happened, for people.
    pub time: Option<Time>,
    /// Lets the other publisher forget the key one day.
    pub first_attempt_time: Option<Time>,
    /// Accept only at this version of the subject.
    pub expected_version: Option<i64>,
}

impl<'c> Tables<'c> {
    /// The tables behind a connection.
    pub fn of(connection: &'c Connection) -> Self {
        Tables { connection, ready: RefCell::default(), emitted: RefCell::default() }
    }

    /// A prepared statement. Found by where its text stands and not by what it says, since
    /// the connection's own look-up (`prepare_cached`) takes a noticeable part of a small
    /// statement's time; hence `sql` is best a constant, or a field of the projection.
    ///
    /// # Errors
    /// Whatever SQLite says to its text.
    pub fn statement(&self, sql: &'c str) -> rusqlite::Result<Statement<'_, 'c>> {
        let mut ready = self.ready.borrow_mut();
        let known = ready.iter().position(|(text, _)| std::ptr::eq(*text, sql));
        let statement = match known {
            Some(place) => ready.swap_remove(place).1,
            None => self.connection.prepare_cached(sql)?,
        };
        Ok(Statement { tables: self, sql, statement: Some(statement) })
    }

    /// Lets an event follow from the one that is applied. Several of one name are told apart
    /// by their order.
    pub fn emit(&self, follow_up: FollowUp) {
        self.emitted.borrow_mut().push(follow_up);
    }

    /// What the last event has emitted, in its order.
    pub(super) fn take_emitted(&self) -> Vec<FollowUp> {
        self.emitted.take()
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
    sql: &'c str,
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
