//! Keeps a projection inside the receiver's transaction: while it runs, the
//! connection refuses transaction control, ATTACH, PRAGMA, and any touch of
//! `counterfoil_*`. Guards against mistakes, not against malice.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use rusqlite::{
    Connection,
    hooks::{AuthAction, AuthContext, Authorization},
};

/// Whether a projection is running. The authorizer is set once and asks this:
/// setting it anew would throw away every prepared statement.
#[derive(Debug, Clone)]
pub struct Guard(Arc<AtomicBool>);

impl Guard {
    /// Puts the authorizer on a connection.
    pub(super) fn on(connection: &mut Connection) -> rusqlite::Result<Self> {
        let guard = Guard(Arc::default());
        let asked = guard.0.clone();
        connection.authorizer(Some(move |context: AuthContext<'_>| {
            if asked.load(Ordering::Relaxed) && !allowed(&context.action) {
                Authorization::Deny
            } else {
                Authorization::Allow
            }
        }))?;
        Ok(guard)
    }

    /// Runs a projection's code, unwinding included.
    pub fn during<T>(&self, projection: impl FnOnce() -> T) -> T {
        struct Running<'a>(&'a AtomicBool);
        impl Drop for Running<'_> {
            fn drop(&mut self) {
                self.0.store(false, Ordering::Relaxed);
            }
        }
        self.0.store(true, Ordering::Relaxed);
        let _running = Running(&self.0);
        projection()
    }
}

/// What a projection may do. Pure.
fn allowed(action: &AuthAction<'_>) -> bool {
    match action {
        AuthAction::Transaction { .. }
        | AuthAction::Savepoint { .. }
        | AuthAction::Attach { .. }
        | AuthAction::Detach { .. }
        | AuthAction::Pragma { .. }
        | AuthAction::Unknown { .. } => false,
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::Read { table_name, .. }
        | AuthAction::CreateTable { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::CreateTempTrigger { table_name, .. } => {
            !table_name.starts_with("counterfoil_")
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projection_keeps_to_its_own_tables() {
        let mut tables = Connection::open_in_memory().expect("memory");
        tables
            .execute_batch("CREATE TABLE counterfoil_meta (a); CREATE TABLE mine (a); BEGIN")
            .expect("plain SQL");
        let guard = Guard::on(&mut tables).expect("authorizer");
        let refused = [
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT s",
            "ATTACH ':memory:' AS other",
            "PRAGMA synchronous = OFF",
            "INSERT INTO counterfoil_meta VALUES (1)",
            "UPDATE counterfoil_meta SET a = 2",
            "DELETE FROM counterfoil_meta",
            "INSERT INTO mine SELECT a FROM counterfoil_meta",
            "DROP TABLE counterfoil_meta",
        ];
        for sql in refused {
            guard.during(|| tables.execute_batch(sql)).expect_err(sql);
        }
        guard.during(|| tables.execute_batch("INSERT INTO mine VALUES (1)")).expect("its own");
        tables
            .execute_batch("INSERT INTO counterfoil_meta VALUES (1); COMMIT")
            .expect("ours again");
    }
}
