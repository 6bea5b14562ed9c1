//! Names that are the receiver's own, found where they have come to stand: SQLite asks nobody
//! about the new name of a table that is renamed, and about the names of columns.

use std::collections::BTreeSet;

use rusqlite::Connection;

/// Of tables, views, indexes and triggers, and of columns of tables that are not the
/// receiver's.
const NAMES: &str = "
SELECT name FROM sqlite_schema WHERE name LIKE 'counterfoil\\_%' ESCAPE '\\'
UNION ALL
SELECT tables.name || '.' || columns.name
FROM sqlite_schema AS tables JOIN pragma_table_xinfo(tables.name) AS columns
WHERE tables.type = 'table' AND tables.name NOT LIKE 'counterfoil\\_%' ESCAPE '\\'
    AND columns.name LIKE 'counterfoil\\_%' ESCAPE '\\'";

/// All there are at a time.
#[derive(Debug, Clone, Default)]
pub struct Reserved(BTreeSet<String>);

impl Reserved {
    /// Those of a database now.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn of(database: &Connection) -> rusqlite::Result<Self> {
        let mut select = database.prepare_cached(NAMES)?;
        let names = select.query_map([], |row| row.get(0))?;
        Ok(Reserved(names.collect::<rusqlite::Result<_>>()?))
    }

    /// One that was not there before.
    pub fn new_since(&self, before: &Reserved) -> Option<&str> {
        self.0.iter().find(|name| !before.0.contains(*name)).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::store::SCHEMA;

    #[test]
    fn a_name_that_was_taken_is_found() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(SCHEMA).expect("ours");
        let before = Reserved::of(&tables).expect("readable");
        let cases = [
            ("CREATE TABLE mine (a INTEGER PRIMARY KEY, b TEXT) STRICT", None),
            ("ALTER TABLE mine RENAME b TO 'Counterfoil_b'", Some("mine.Counterfoil_b")),
            ("ALTER TABLE mine RENAME \"Counterfoil_b\" TO 'counterfoil'", None),
            ("ALTER TABLE mine RENAME TO 'counterfoil_mine'", Some("counterfoil_mine")),
        ];
        for (sql, expected) in cases {
            tables.execute_batch(sql).expect(sql);
            let now = Reserved::of(&tables).expect("readable");
            assert_eq!(now.new_since(&before), expected, "{sql}");
        }
    }
}
