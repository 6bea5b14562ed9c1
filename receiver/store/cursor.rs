//! The committed cursor: one row for a log. It moves only from where the
//! mover believes it to be.

use rusqlite::{Connection, OptionalExtension as _, params};
use uuid::Uuid;

use crate::proto::chain::Cursor;

/// Moves a cursor from where it is believed to be; the six values as [`advance`] binds them.
pub const ADVANCE: &str = "UPDATE counterfoil_cursor SET sequence = ?3, chain = ?4
 WHERE log = ?1 AND log_id = ?2 AND sequence = ?5 AND chain = ?6";

/// Reads the cursor; none: nothing applied yet.
///
/// # Errors
/// Whatever SQLite says, an unreadable `log_id` included.
pub fn read(tables: &Connection, log: &str) -> rusqlite::Result<Option<Cursor>> {
    tables
        .prepare_cached("SELECT log_id, sequence, chain FROM counterfoil_cursor WHERE log = ?1")?
        .query_row([log], |row| {
            let log_id = row.get_ref(0)?.as_str()?;
            let log_id = Uuid::parse_str(log_id).map_err(|error| {
                rusqlite::Error::FromSqlConversionFailure(
                    0,
                    rusqlite::types::Type::Text,
                    Box::new(error),
                )
            })?;
            Ok(Cursor { log_id, sequence: row.get(1)?, chain: row.get(2)? })
        })
        .optional()
}

/// Moves the cursor from `old` to `new`. `false`: it is not at `old`, and
/// nothing was changed.
///
/// # Errors
/// Whatever SQLite says.
pub fn advance(
    tables: &Connection,
    log: &str,
    old: Option<&Cursor>,
    new: &Cursor,
) -> rusqlite::Result<bool> {
    let changed = match old {
        None => tables
            .prepare_cached(
                "INSERT INTO counterfoil_cursor (log, log_id, sequence, chain)
                 VALUES (?1, ?2, ?3, ?4) ON CONFLICT (log) DO NOTHING",
            )?
            .execute(params![log, new.log_id.to_string(), new.sequence, new.chain])?,
        Some(old) => tables.prepare_cached(ADVANCE)?.execute(params![
            log,
            new.log_id.to_string(),
            new.sequence,
            new.chain,
            old.sequence,
            old.chain
        ])?,
    };
    Ok(changed == 1)
}

/// Gives the cursor the `log_id` of an incarnation that has the same history up to it; all
/// else stays. `false`: it is not at `old`, and nothing was changed.
///
/// # Errors
/// Whatever SQLite says.
pub fn adopt(tables: &Connection, log: &str, old: &Cursor, log_id: Uuid) -> rusqlite::Result<bool> {
    let changed = tables.execute(
        "UPDATE counterfoil_cursor SET log_id = ?3
         WHERE log = ?1 AND log_id = ?2 AND sequence = ?4 AND chain = ?5",
        params![log, old.log_id.to_string(), log_id.to_string(), old.sequence, old.chain],
    )?;
    Ok(changed == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// APP-04: a mover that believes in an old place changes nothing.
    #[test]
    fn it_moves_only_from_where_it_is() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        let at = |sequence| Cursor { log_id: Uuid::from_u128(1), sequence, chain: [7; 32] };
        let advance = |old: Option<&Cursor>, new| {
            super::advance(&tables, "main", old, &new).expect("no SQL error")
        };
        assert!(advance(None, at(3)));
        assert!(!advance(None, at(5)), "a second first");
        assert!(!advance(Some(&at(2)), at(4)), "an old place");
        assert!(advance(Some(&at(3)), at(9)));
        assert!(!advance(Some(&at(3)), at(4)), "a lower one after a higher one");
        assert!(!advance(Some(&Cursor { chain: [8; 32], ..at(9) }), at(10)), "another history");
        assert_eq!(read(&tables, "main").expect("readable"), Some(at(9)));
    }
    #[test]
    fn it_is_adopted_only_where_it_is() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        let at = Cursor { log_id: Uuid::from_u128(1), sequence: 3, chain: [7; 32] };
        assert!(advance(&tables, "main", None, &at).expect("no SQL error"));
        let adopt = |old: &Cursor| {
            super::adopt(&tables, "main", old, Uuid::from_u128(2)).expect("no SQL error")
        };
        assert!(!adopt(&Cursor { sequence: 2, ..at }), "an old place");
        assert!(!adopt(&Cursor { chain: [8; 32], ..at }), "another history");
        assert!(adopt(&at));
        assert!(!adopt(&at), "a second time");
        let adopted = Cursor { log_id: Uuid::from_u128(2), ..at };
        assert_eq!(read(&tables, "main").expect("readable"), Some(adopted));
    }
}
