//! The ledger: one row for every sequence, saying what was done with it.

use std::sync::LazyLock;

use rusqlite::{
    CachedStatement, Connection, OptionalExtension as _, Params, Row, Statement, ffi, params,
};

use crate::proto::{
    event::{Event, Fingerprint, Sequence},
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

/// Rows that one statement claims at most. To begin and end a statement is a tenth of what a
/// small event costs; sixteen share that out, and more of them gain hardly anything.
pub const BLOCK: usize = 16;

static INSERT_ONE: LazyLock<String> = LazyLock::new(|| insert(1));
static INSERT_BLOCK: LazyLock<String> = LazyLock::new(|| insert(BLOCK));

/// What the rows of a statement have in common, by the number of its parameter.
const LOG: usize = 1;
const OUTCOME: usize = 2;
const REASON: usize = 3;
const APPLIED_AT: usize = 4;
/// The first parameter that is of one row alone: its sequence, its key and its fingerprint.
const FIRST_OF_ROW: usize = 5;
const PARAMETERS_OF_ROW: usize = 3;

/// A statement that writes so many rows, up to the first one that cannot be written (FAIL).
/// To take back those before it, SQLite would keep a copy of each page that they change,
/// which costs more than is gained where the keys are in no order.
fn insert(rows: usize) -> String {
    let row = |row| {
        let sequence = FIRST_OF_ROW + row * PARAMETERS_OF_ROW;
        format!("(?1, ?2, ?3, ?4, ?{sequence}, ?{}, ?{})", sequence + 1, sequence + 2)
    };
    let rows: Vec<_> = (0..rows).map(row).collect();
    format!(
        "INSERT OR FAIL INTO counterfoil_ledger
           (log, outcome, reason, applied_at, sequence, key, fingerprint)
         VALUES {}",
        rows.join(", ")
    )
}

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

/// Writes the rows of one group. What they have in common is bound once.
pub struct Rows<'c> {
    tables: &'c Connection,
    log: &'c str,
    now_ms: i64,
    one: CachedStatement<'c>,
    /// Prepared for the first block: most groups of live traffic have none.
    block: Option<CachedStatement<'c>>,
}

impl<'c> Rows<'c> {
    /// Of a group that is applied at `now_ms`, milliseconds since the Unix epoch.
    ///
    /// # Errors
    /// Whatever SQLite says.
    pub fn of(tables: &'c Connection, log: &'c str, now_ms: i64) -> rusqlite::Result<Self> {
        let one = prepare(tables, &INSERT_ONE, log, now_ms)?;
        Ok(Rows { tables, log, now_ms, one, block: None })
    }

    /// Writes the event's row as APPLIED, before its effect is made: of two
    /// attempts at one key only one gets past this. Answers with the fingerprint
    /// under which the key is known already, and has written nothing then.
    ///
    /// # Errors
    /// Whatever else SQLite says.
    pub fn claim(&mut self, event: &Event) -> rusqlite::Result<Option<Fingerprint>> {
        match self.write(event) {
            Ok(()) => Ok(None),
            // Which row it is that stands in the way decides: the key's, or (an error) the
            // sequence's.
            Err(error) if violates_uniqueness(&error) => {
                match by_key(self.tables, self.log, &event.intent.key)? {
                    Some(known) => Ok(Some(known.fingerprint)),
                    None => Err(error),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Claims the rows of [`BLOCK`] events, before any of their effects is made, up to the
    /// first one whose key or sequence is known already. Answers with how many that are: the
    /// others, and all where they are more or fewer, are to be claimed one by one.
    ///
    /// # Errors
    /// Whatever else SQLite says.
    pub fn claim_block<'e>(
        &mut self,
        events: impl ExactSizeIterator<Item = &'e Event>,
    ) -> rusqlite::Result<usize> {
        if events.len() != BLOCK {
            return Ok(0);
        }
        let block = match &mut self.block {
            Some(block) => block,
            none => none.insert(prepare(self.tables, &INSERT_BLOCK, self.log, self.now_ms)?),
        };
        for (row, event) in events.enumerate() {
            bind_row(block, row, event)?;
        }
        match execute(block, BLOCK) {
            Ok(()) => Ok(BLOCK),
            Err(error) if violates_uniqueness(&error) => Ok(self.tables.changes() as usize),
            Err(error) => Err(error),
        }
    }

    /// Writes the row of an event without an effect.
    ///
    /// # Errors
    /// Whatever SQLite says, a row at this sequence included;
    /// [`rusqlite::Error::StatementChangedRows`] where it wrote nothing.
    pub fn insert(
        &mut self,
        event: &Event,
        outcome: Outcome,
        reason: Option<&str>,
    ) -> rusqlite::Result<()> {
        bind_outcome(&mut self.one, outcome, reason)?;
        let written = self.write(event);
        bind_outcome(&mut self.one, Outcome::Applied, None)?;
        written
    }

    fn write(&mut self, event: &Event) -> rusqlite::Result<()> {
        bind_row(&mut self.one, 0, event)?;
        execute(&mut self.one, 1)
    }
}

/// A statement whose rows are APPLIED until something else is bound.
fn prepare<'c>(
    tables: &'c Connection,
    sql: &str,
    log: &str,
    now_ms: i64,
) -> rusqlite::Result<CachedStatement<'c>> {
    let mut insert = tables.prepare_cached(sql)?;
    insert.raw_bind_parameter(LOG, log)?;
    insert.raw_bind_parameter(APPLIED_AT, now_ms)?;
    bind_outcome(&mut insert, Outcome::Applied, None)?;
    Ok(insert)
}

fn bind_outcome(
    insert: &mut Statement<'_>,
    outcome: Outcome,
    reason: Option<&str>,
) -> rusqlite::Result<()> {
    insert.raw_bind_parameter(OUTCOME, outcome.as_str())?;
    insert.raw_bind_parameter(REASON, reason)
}

fn bind_row(insert: &mut Statement<'_>, row: usize, event: &Event) -> rusqlite::Result<()> {
    let sequence = FIRST_OF_ROW + row * PARAMETERS_OF_ROW;
    insert.raw_bind_parameter(sequence, event.sequence)?;
    insert.raw_bind_parameter(sequence + 1, event.intent.key.as_str())?;
    insert.raw_bind_parameter(sequence + 2, event.intent.fingerprint)
}

fn execute(insert: &mut Statement<'_>, rows: usize) -> rusqlite::Result<()> {
    let inserted = insert.raw_execute()?;
    if inserted == rows { Ok(()) } else { Err(rusqlite::Error::StatementChangedRows(inserted)) }
}

fn violates_uniqueness(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_extended_error_code(),
        Some(ffi::SQLITE_CONSTRAINT_UNIQUE | ffi::SQLITE_CONSTRAINT_PRIMARYKEY)
    )
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
    use super::*;
    use crate::receiver::testing::adjustments;

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
            |event| event.intent.key = "k3".to_owned(),
            |event| event.intent.key = format!("k{}", BLOCK + 2),
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
                    key: intent.key.clone(),
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
            events[0].intent.key = "k".repeat(5_000);
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
