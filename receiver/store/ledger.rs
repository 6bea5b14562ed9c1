//! The ledger: one row for every sequence, saying what was done with it.

mod rows;

pub use rows::{BLOCK, Rows};

use rusqlite::{Connection, OptionalExtension as _, Params, Row, params};

use crate::proto::{
    event::{Fingerprint, Sequence},
    limits::{MAX_ACK_OUTCOME_BYTES, MAX_ACK_OUTCOMES, MAX_REASON_BYTES, MAX_RESULT_BYTES},
    outcome::{Outcome, Report, Reported},
};

/// The reason of a row whose key had been seen with other content.
pub const KEY_CONFLICT: &str = "key_conflict";

/// Which of a key's rows has the say over it. The unique index has the same
/// condition, word for word, or SQLite would not use it.
const HAS_THE_SAY: &str = "outcome <> 'DUPLICATE' AND reason IS NOT 'key_conflict'";

/// Sequences that one report speaks of at most. Every row is looked at, also to
/// find where there is none, so a report takes tens of milliseconds at most; an
/// index of those that are to be told would cost every commit more than it saves.
const MAX_REPORT_SEQUENCES: Sequence = 65_536;

/// One row as it is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The event's sequence.
    pub sequence: Sequence,
    /// Its key.
    pub key: String,
    /// Its content's hash.
    pub fingerprint: Fingerprint,
    /// What was done.
    pub outcome: Outcome,
    /// Why, for REJECTED.
    pub reason: Option<String>,
    /// JSON that the projection gave.
    pub result: Option<String>,
    /// Milliseconds since the Unix epoch.
    pub applied_at_ms: i64,
}

/// Notes on a claimed row what came of the event, where that is not a plain APPLIED.
///
/// # Errors
/// Whatever SQLite says; [`rusqlite::Error::StatementChangedRows`] without the row.
pub fn conclude(
    tables: &Connection,
    log: &str,
    sequence: Sequence,
    outcome: Outcome,
    reason: Option<&str>,
    result: Option<&str>,
) -> rusqlite::Result<()> {
    let changed = tables
        .prepare_cached(
            "UPDATE counterfoil_ledger SET outcome = ?3, reason = ?4, result = ?5
             WHERE log = ?1 AND sequence = ?2",
        )?
        .execute(params![log, sequence, outcome.as_str(), reason, result])?;
    if changed == 1 { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(changed)) }
}

/// The row of a sequence.
///
/// # Errors
/// Whatever SQLite says.
pub fn by_sequence(
    tables: &Connection,
    log: &str,
    sequence: Sequence,
) -> rusqlite::Result<Option<Entry>> {
    find(tables, "sequence = ?2", params![log, sequence])
}

/// The row that had the say over a key.
///
/// # Errors
/// Whatever SQLite says.
pub fn by_key(tables: &Connection, log: &str, key: &str) -> rusqlite::Result<Option<Entry>> {
    find(tables, &format!("key = ?2 AND {HAS_THE_SAY}"), params![log, key])
}

/// What there is to report of the sequences above `after`, up to `until`, the
/// first one without a row, or as far as one Ack reaches: every row but the plain
/// APPLIED. A result that is too long for an Ack is left out, of a reason its
/// beginning is said.
///
/// # Errors
/// Whatever SQLite says.
pub fn report(
    tables: &Connection,
    log: &str,
    after: Sequence,
    until: Sequence,
) -> rusqlite::Result<Report> {
    let until = until.min(after + MAX_REPORT_SEQUENCES);
    let mut select = tables.prepare_cached(
        "SELECT sequence, outcome,
                CASE WHEN octet_length(reason) > ?4 THEN substr(reason, 1, ?4 / 4) ELSE reason END,
                CASE WHEN octet_length(result) > ?5 THEN NULL ELSE result END
         FROM counterfoil_ledger
         WHERE log = ?1 AND sequence > ?2 AND sequence <= ?3
         ORDER BY sequence",
    )?;
    let (reason, result) = (MAX_REASON_BYTES as i64, MAX_RESULT_BYTES as i64);
    let mut rows = select.query(params![log, after, until, reason, result])?;
    let mut report = Report { after: Some(after), through: after, outcomes: Vec::new() };
    let mut bytes = 0;
    while let Some(row) = rows.next()? {
        let row = Reported {
            sequence: row.get(0)?,
            outcome: outcome(row.get_ref(1)?.as_str()?)?,
            reason: row.get::<_, Option<String>>(2)?.unwrap_or_default(),
            result: row.get::<_, Option<String>>(3)?.unwrap_or_default(),
        };
        if row.sequence != report.through + 1 {
            break; // of what has no row nothing is known
        }
        if row.outcome != Outcome::Applied || !row.result.is_empty() {
            bytes += row.reason.len() + row.result.len();
            if report.outcomes.len() == MAX_ACK_OUTCOMES || bytes > MAX_ACK_OUTCOME_BYTES {
                break;
            }
            report.outcomes.push(row);
        }
        report.through += 1;
    }
    Ok(report)
}

/// What [`report`] would say of a row. None: it is a plain APPLIED, or there is none.
pub fn told(
    sequence: Sequence,
    outcome: Outcome,
    reason: Option<&str>,
    result: Option<String>,
) -> Option<Reported> {
    let reason = match reason.unwrap_or_default() {
        long if long.len() > MAX_REASON_BYTES => long.chars().take(MAX_REASON_BYTES / 4).collect(),
        reason => reason.to_owned(),
    };
    let result = result.filter(|result| result.len() <= MAX_RESULT_BYTES).unwrap_or_default();
    let plain = outcome == Outcome::Applied && result.is_empty();
    (!plain).then_some(Reported { sequence, outcome, reason, result })
}

fn find(tables: &Connection, which: &str, values: impl Params) -> rusqlite::Result<Option<Entry>> {
    let columns = "sequence, key, fingerprint, outcome, reason, result, applied_at";
    let select = format!("SELECT {columns} FROM counterfoil_ledger WHERE log = ?1 AND {which}");
    tables.prepare_cached(&select)?.query_row(values, entry).optional()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        sequence: row.get(0)?,
        key: row.get(1)?,
        fingerprint: row.get(2)?,
        outcome: outcome(row.get_ref(3)?.as_str()?)?,
        reason: row.get(4)?,
        result: row.get(5)?,
        applied_at_ms: row.get(6)?,
    })
}

fn outcome(word: &str) -> rusqlite::Result<Outcome> {
    Outcome::named(word).ok_or(rusqlite::Error::InvalidQuery) // the table's CHECK knows no other word
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;
    use crate::{proto::event::Event, receiver::testing::adjustments};

    /// A ledger with these rows: sequence, outcome, reason, result.
    fn ledger<'a>(
        rows: impl IntoIterator<Item = (Sequence, &'a str, Option<String>, Option<String>)>,
    ) -> Connection {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        tables.execute_batch("BEGIN").expect("begun");
        for (sequence, outcome, reason, result) in rows {
            let insert = "INSERT INTO counterfoil_ledger
                VALUES ('main', ?1, 'k' || ?1, zeroblob(32), ?2, ?3, ?4, 0)";
            tables.execute(insert, params![sequence, outcome, reason, result]).expect("inserted");
        }
        tables.execute_batch("COMMIT").expect("committed");
        tables
    }

    /// The sequences that a report names, and up to where it speaks.
    fn reported(
        tables: &Connection,
        after: Sequence,
        until: Sequence,
    ) -> (Vec<Sequence>, Sequence) {
        let report = report(tables, "main", after, until).expect("readable");
        (report.outcomes.iter().map(|row| row.sequence).collect(), report.through)
    }

    #[test]
    fn all_but_plain_effects_are_reported() {
        let some = |text: &str| Some(text.to_owned());
        let tables = ledger([
            (0, "APPLIED", None, None),
            (1, "APPLIED", None, some("{\"available\":1}")),
            (2, "IGNORED", None, None),
            (3, "REJECTED", some("unknown_item"), None),
            (4, "DUPLICATE", None, None),
            (5, "APPLIED", None, None),
            (6, "REJECTED", some("unknown_item"), None),
        ]);
        assert_eq!(reported(&tables, -1, 5), (vec![1, 2, 3, 4], 5));
        assert_eq!(reported(&tables, 2, 6), (vec![3, 4, 6], 6));
        assert_eq!(reported(&tables, 6, 6), (vec![], 6));
        let whole = report(&tables, "main", 0, 3).expect("readable").outcomes;
        assert_eq!((whole[0].outcome, &*whole[0].result), (Outcome::Applied, "{\"available\":1}"));
        assert_eq!((whole[2].outcome, &*whole[2].reason), (Outcome::Rejected, "unknown_item"));
    }

    #[test]
    fn what_does_not_fit_one_ack_is_left_for_the_next() {
        let most = MAX_ACK_OUTCOMES as Sequence;
        let tables = ledger(
            (0..3 * most)
                .map(|n| (n, if n < 2 * most { "IGNORED" } else { "APPLIED" }, None, None)),
        );
        let all = |from, to| (from..to).collect::<Vec<_>>();
        let until = 3 * most - 1;
        assert_eq!(reported(&tables, -1, until), (all(0, most), most - 1));
        assert_eq!(reported(&tables, most - 1, until), (all(most, 2 * most), until));

        let full = || Some("x".repeat(MAX_RESULT_BYTES));
        let fitting = (MAX_ACK_OUTCOME_BYTES / MAX_RESULT_BYTES) as Sequence;
        let tables = ledger((0..200).map(|n| (n, "APPLIED", None, full())));
        assert_eq!(reported(&tables, -1, 199), (all(0, fitting), fitting - 1));

        let far = MAX_REPORT_SEQUENCES;
        let outcome = |n| if n < far - 1 { "APPLIED" } else { "IGNORED" };
        let tables = ledger((0..=far).map(|n| (n, outcome(n), None, None)));
        assert_eq!(reported(&tables, -1, 9 * far), (vec![far - 1], far - 1));
    }

    #[test]
    fn of_what_has_no_row_nothing_is_reported() {
        let rows = [0, 1, 3, 4].map(|n| (n, "IGNORED", None, None));
        let tables = ledger(rows);
        assert_eq!(reported(&tables, -1, 9), (vec![0, 1], 1));
        assert_eq!(reported(&tables, 1, 9), (vec![], 1), "what came of 2 is not known");
        assert_eq!(reported(&tables, 2, 9), (vec![3, 4], 4));
    }

    #[test]
    fn what_is_too_long_is_not_said_in_full() {
        let long = |bytes: usize| Some("é".repeat(bytes / 2));
        let tables = ledger([
            (0, "REJECTED", long(MAX_REASON_BYTES), long(MAX_RESULT_BYTES)),
            (1, "REJECTED", long(MAX_REASON_BYTES + 2), long(MAX_RESULT_BYTES + 2)),
        ]);
        let rows = report(&tables, "main", -1, 1).expect("readable").outcomes;
        let lengths: Vec<_> = rows.iter().map(|row| (row.reason.len(), row.result.len())).collect();
        assert_eq!(lengths, [(MAX_REASON_BYTES, MAX_RESULT_BYTES), (MAX_REASON_BYTES / 2, 0)]);
    }

    /// What is handed over after a commit is what would have been read.
    #[test]
    fn what_is_told_of_a_row_is_what_its_report_says() {
        let long = |bytes: usize| Some("é".repeat(bytes / 2));
        let rows = [
            (Outcome::Applied, None, None),
            (Outcome::Applied, None, long(MAX_RESULT_BYTES)),
            (Outcome::Applied, None, long(MAX_RESULT_BYTES + 2)),
            (Outcome::Ignored, None, None),
            (Outcome::Duplicate, None, None),
            (Outcome::Rejected, long(MAX_REASON_BYTES), None),
            (Outcome::Rejected, long(MAX_REASON_BYTES + 2), long(2)),
        ];
        let numbered = || (0..).zip(rows.clone());
        let told = numbered().filter_map(|(n, (outcome, reason, result))| {
            told(n, outcome, reason.as_deref(), result)
        });
        let tables = ledger(
            numbered().map(|(n, (outcome, reason, result))| (n, outcome.as_str(), reason, result)),
        );
        let read = report(&tables, "main", -1, 9).expect("readable").outcomes;
        assert_eq!(told.collect::<Vec<_>>(), read);
    }

    fn count(tables: &Connection) -> usize {
        let count = "SELECT count(*) FROM counterfoil_ledger";
        tables.query_row(count, [], |row| row.get(0).map(|n: i64| n as usize)).expect("one number")
    }

    #[test]
    fn a_block_is_claimed_up_to_what_is_known() {
        let events = adjustments(0, 3 * BLOCK as i64);
        let second = BLOCK + 1..2 * BLOCK + 1;
        let at = second.start + 9;
        // The key of an event that is there, the key of another one of the block, a sequence.
        let known: [fn(&mut Event); 3] = [
            |event| event.intent.key = "k3".into(),
            |event| event.intent.key = format!("k{}", BLOCK + 2).into(),
            |event| event.sequence = 3,
        ];
        for spoil in known {
            let tables = ledger([]);
            let mut rows = Rows::of(&tables, "main", 7).expect("valid");
            assert_eq!((rows.claim_block(events[1..BLOCK].iter()), count(&tables)), (Ok(0), 0));
            assert_eq!(rows.claim_block(events[..BLOCK].iter()), Ok(BLOCK));
            assert_eq!(rows.claim(&events[BLOCK]), Ok(None));
            assert_eq!(count(&tables), BLOCK + 1);
            let mut spoilt = events.clone();
            spoil(&mut spoilt[at]);
            assert_eq!(rows.claim_block(spoilt[second.clone()].iter()), Ok(9));
            assert_eq!(count(&tables), BLOCK + 1 + 9);
            assert_eq!(rows.claim_block(spoilt[second.clone()].iter()), Ok(0), "once more");
            for event in &events[at..second.end] {
                assert_eq!(rows.claim(event), Ok(None));
            }
            for event in &events[..second.end] {
                let Event { sequence, intent, .. } = event;
                let expected = Entry {
                    sequence: *sequence,
                    key: intent.key.clone().into(),
                    fingerprint: intent.fingerprint,
                    outcome: Outcome::Applied,
                    reason: None,
                    result: None,
                    applied_at_ms: 7,
                };
                assert_eq!(by_sequence(&tables, "main", *sequence), Ok(Some(expected)));
            }
        }
    }

    /// Then the transaction may be over, and nothing is to be written any more.
    #[test]
    fn a_block_that_fails_for_anything_else_is_an_error() {
        let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON counterfoil_ledger
            WHEN new.sequence = 9 BEGIN SELECT RAISE(ABORT, 'no'); END";
        for (obstacle, code) in [
            (refuse, ffi::SQLITE_CONSTRAINT_TRIGGER),
            ("PRAGMA max_page_count = 1", ffi::SQLITE_FULL),
        ] {
            let tables = ledger([]);
            tables.execute_batch(obstacle).expect("plain SQL");
            let mut events = adjustments(0, BLOCK as i64);
            events[0].intent.key = "k".repeat(5_000).into();
            let mut rows = Rows::of(&tables, "main", 0).expect("valid");
            let error = rows.claim_block(events.iter()).expect_err("cannot be written");
            assert_eq!(error.sqlite_extended_error_code(), Some(code));
        }
    }

    /// Otherwise each look for a key would read the whole ledger.
    #[test]
    fn a_key_is_found_by_its_index() {
        let tables = Connection::open_in_memory().expect("memory");
        tables.execute_batch(crate::receiver::store::SCHEMA).expect("schema");
        let plan = format!(
            "EXPLAIN QUERY PLAN SELECT * FROM counterfoil_ledger
             WHERE log = ?1 AND key = ?2 AND {HAS_THE_SAY}"
        );
        let plan: String =
            tables.query_row(&plan, ["main", "k"], |row| row.get(3)).expect("a plan");
        assert!(plan.contains("USING INDEX counterfoil_ledger_key"), "{plan}");
        assert!(HAS_THE_SAY.contains(KEY_CONFLICT));
        assert!(HAS_THE_SAY.contains(Outcome::Duplicate.as_str()));
    }
}
