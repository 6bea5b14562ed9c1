//! Where a Replay starts: a function of what the caller states and of the log's
//! extent. Pure but for the look-up of one chain that it is handed. Never a
//! silent jump, never a silent wait.

use std::time::Duration;

use super::log::{Extent, LogReader, ReadError};
use crate::proto::{
    chain::{Ancestor, Chain, Cursor},
    event::Sequence,
    refusal::{Reason, Refusal},
};

/// Where the caller wants to start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After the last event applied.
    After(Cursor),
    /// At sequence 0.
    Beginning,
    /// At the oldest retained event.
    Oldest,
    /// At what comes from now on.
    Head,
}

/// Where a stream of a log starts, and what the log holds then; a cursor of an ancestor
/// counts as one of this log as far as both are the same.
///
/// # Errors
/// Those of [`as_ours`] and [`start_after`].
pub fn start_in(log: &dyn LogReader, start: Start) -> Result<(Extent, Cursor), Refusal> {
    let extent = log.extent();
    let start = match start {
        Start::After(cursor) => Start::After(as_ours(cursor, &extent, log.ancestors())?),
        named => named,
    };
    let cursor = start_after(start, &extent, |sequence| log.chain_at(sequence))?;
    Ok((extent, cursor))
}

/// The cursor that the stream starts after. `chain_at` looks up the chain at a
/// retained sequence, or at `floor - 1`.
///
/// # Errors
/// LOG_MISMATCH, CURSOR_AHEAD, CURSOR_EXPIRED or DIVERGED with the numbers;
/// CORRUPT where the chain cannot be read.
pub fn start_after(
    start: Start,
    extent: &Extent,
    chain_at: impl FnOnce(Sequence) -> Result<Chain, ReadError>,
) -> Result<Cursor, Refusal> {
    match start {
        Start::After(cursor) => check(&cursor, extent, chain_at).map(|()| cursor),
        Start::Beginning if extent.floor > 0 => Err(expired(-1, extent)),
        Start::Beginning => Ok(Cursor::beginning(extent.log_id)),
        Start::Oldest => {
            let sequence = extent.floor - 1;
            let chain = chain_at(sequence).map_err(|error| unreadable(error, sequence, extent))?;
            Ok(Cursor { log_id: extent.log_id, sequence, chain })
        }
        Start::Head => Ok(extent.head()),
    }
}

/// The cursor as one of this log, where it is of an ancestor and lies in what both have in
/// common. Any other is given back as it is, for [`start_after`] and [`same_log`] to judge.
///
/// # Errors
/// LOG_MISMATCH: it lies beyond that.
pub fn as_ours(cursor: Cursor, extent: &Extent, ancestors: &[Ancestor]) -> Result<Cursor, Refusal> {
    let Cursor { log_id, sequence, .. } = cursor;
    match ancestors.iter().find(|ancestor| ancestor.log_id == log_id) {
        Some(ancestor) if sequence > ancestor.last => Err(mismatch(
            format!(
                "the cursor is of log {log_id} at sequence {sequence}, and this log, {}, goes on \
                 from that one after {}: the events in between are lost here",
                extent.log_id, ancestor.last
            ),
            extent,
        )
        .with("sequence", sequence)
        .with("last_sequence", ancestor.last)),
        Some(_) => Ok(Cursor { log_id: extent.log_id, ..cursor }),
        None => Ok(cursor),
    }
}

fn check(
    cursor: &Cursor,
    extent: &Extent,
    chain_at: impl FnOnce(Sequence) -> Result<Chain, ReadError>,
) -> Result<(), Refusal> {
    same_log(cursor, extent)?;
    not_ahead(cursor, extent)?;
    if cursor.sequence < extent.floor - 1 {
        return Err(expired(cursor.sequence, extent));
    }
    let chain =
        chain_at(cursor.sequence).map_err(|error| unreadable(error, cursor.sequence, extent))?;
    same_history(cursor, &chain)
}

/// The cursor is of this incarnation.
///
/// # Errors
/// LOG_MISMATCH.
pub fn same_log(cursor: &Cursor, extent: &Extent) -> Result<(), Refusal> {
    if cursor.log_id == extent.log_id {
        return Ok(());
    }
    Err(mismatch(
        format!(
            "the cursor is of log {}, this is {}: another incarnation under the same name, whose \
             sequences mean other events",
            cursor.log_id, extent.log_id
        ),
        extent,
    ))
}

fn mismatch(message: String, extent: &Extent) -> Refusal {
    Refusal::new(Reason::LogMismatch, message)
        .with("log_id", extent.log_id)
        .with("floor", extent.floor)
        .with("next", extent.next)
}

/// The cursor's event has been accepted here.
///
/// # Errors
/// CURSOR_AHEAD.
pub fn not_ahead(cursor: &Cursor, extent: &Extent) -> Result<(), Refusal> {
    if cursor.sequence < extent.next {
        return Ok(());
    }
    Err(numbers(
        Refusal::new(
            Reason::CursorAhead,
            format!(
                "the cursor is at sequence {}, this log ends before {}: it has lost history that \
                 was seen, or is another one",
                cursor.sequence, extent.next
            ),
        ),
        cursor.sequence,
        extent,
    ))
}

/// The cursor's history is this one's.
///
/// # Errors
/// DIVERGED.
pub fn same_history(cursor: &Cursor, chain: &Chain) -> Result<(), Refusal> {
    if cursor.chain == *chain {
        return Ok(());
    }
    Err(Refusal::new(
        Reason::Diverged,
        format!(
            "the chain at sequence {} is not the cursor's: the same numbers, another history",
            cursor.sequence
        ),
    )
    .with("sequence", cursor.sequence))
}

/// CURSOR_EXPIRED: what follows this sequence is no longer retained.
pub fn expired(sequence: Sequence, extent: &Extent) -> Refusal {
    let missing = if sequence + 1 == extent.floor - 1 {
        format!("sequence {} is", sequence + 1)
    } else {
        format!("sequences {} to {} are", sequence + 1, extent.floor - 1)
    };
    numbers(
        Refusal::new(
            Reason::CursorExpired,
            format!(
                "{missing} no longer retained; the oldest is {}. To skip them knowingly, start at \
                 START_AT_OLDEST or START_AT_HEAD",
                extent.floor
            ),
        ),
        sequence,
        extent,
    )
}

/// A read that failed for a passing reason is tried again after this time.
const RETRY_READ: Duration = Duration::from_secs(1);

/// What a failed read means to the one who reads after a sequence.
pub fn unreadable(error: ReadError, after: Sequence, extent: &Extent) -> Refusal {
    match error {
        // The floor has moved on since the extent was taken, or since the read.
        ReadError::Truncated { floor, .. } => {
            let floor = floor.max(extent.floor);
            expired(after, &Extent { floor, next: extent.next.max(floor), ..*extent })
        }
        other => failed(&other),
    }
}

/// CORRUPT, or LOG_UNREADABLE for what may pass; without anything that is not for
/// callers: the logging has the rest.
pub fn failed(error: &ReadError) -> Refusal {
    tracing::error!(%error, "stored events cannot be read");
    match error {
        ReadError::Corrupt { sequence, .. } => {
            Refusal::new(Reason::Corrupt, format!("the log is damaged at sequence {sequence}"))
                .with("sequence", sequence)
        }
        _ => Refusal::new(Reason::LogUnreadable, "the log cannot be read now; try again")
            .retry_after(RETRY_READ),
    }
}

fn numbers(refusal: Refusal, sequence: Sequence, extent: &Extent) -> Refusal {
    refusal.with("floor", extent.floor).with("next", extent.next).with("sequence", sequence)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::proto::chain::EMPTY_CHAIN;

    const LOG: Uuid = Uuid::from_u128(1);

    fn extent(floor: Sequence, next: Sequence) -> Extent {
        Extent { log_id: LOG, floor, next, head_chain: chain(next - 1), bytes: 0 }
    }

    fn chain(sequence: Sequence) -> Chain {
        if sequence < 0 { EMPTY_CHAIN } else { [sequence as u8 + 1; 32] }
    }

    fn at(sequence: Sequence) -> Cursor {
        Cursor { log_id: LOG, sequence, chain: chain(sequence) }
    }

    #[test]
    fn every_row_of_the_table() {
        let foreign = Cursor { log_id: Uuid::from_u128(2), ..at(8) };
        let forked = Cursor { chain: [99; 32], ..at(8) };
        let forked_at_floor = Cursor { chain: [99; 32], ..at(4) };
        // (floor, next, start, the sequence started after, or why not)
        let cases = [
            (5, 10, Start::After(foreign), Err(Reason::LogMismatch)),
            (5, 10, Start::After(at(10)), Err(Reason::CursorAhead)),
            (5, 10, Start::After(at(50)), Err(Reason::CursorAhead)), // LOG-06
            (0, 0, Start::After(at(0)), Err(Reason::CursorAhead)),
            (10, 10, Start::After(at(10)), Err(Reason::CursorAhead)),
            (5, 10, Start::After(at(3)), Err(Reason::CursorExpired)),
            (10, 10, Start::After(at(8)), Err(Reason::CursorExpired)),
            (5, 10, Start::After(forked), Err(Reason::Diverged)),
            (5, 10, Start::After(forked_at_floor), Err(Reason::Diverged)),
            (5, 10, Start::After(at(4)), Ok(4)),
            (5, 10, Start::After(at(7)), Ok(7)),
            (5, 10, Start::After(at(9)), Ok(9)),
            (10, 10, Start::After(at(9)), Ok(9)),
            (0, 10, Start::Beginning, Ok(-1)),
            (0, 0, Start::Beginning, Ok(-1)),
            (5, 10, Start::Beginning, Err(Reason::CursorExpired)),
            (10, 10, Start::Beginning, Err(Reason::CursorExpired)),
            (5, 10, Start::Oldest, Ok(4)),
            (10, 10, Start::Oldest, Ok(9)),
            (0, 0, Start::Oldest, Ok(-1)),
            (5, 10, Start::Head, Ok(9)),
            (10, 10, Start::Head, Ok(9)),
            (0, 0, Start::Head, Ok(-1)),
        ];
        for (floor, next, start, expected) in cases {
            let decided = start_after(start, &extent(floor, next), |sequence| Ok(chain(sequence)));
            let decided = decided.map_err(|refusal| refusal.reason);
            assert_eq!(decided, expected.map(at), "{start:?} in {floor}..{next}");
        }
    }

    #[test]
    fn an_ancestors_cursor_counts_as_far_as_the_histories_are_one() {
        let id = Uuid::from_u128;
        let of = |n, sequence| Cursor { log_id: id(n), ..at(sequence) };
        let ancestors = [Ancestor { log_id: id(7), last: 8 }, Ancestor { log_id: id(6), last: 5 }];
        let diverged = |cursor| Cursor { chain: [99; 32], ..cursor };
        // (cursor, the sequence started after, or why not)
        let cases = [
            (of(1, 9), Ok(9)),
            (of(7, 8), Ok(8)),
            (of(7, 4), Ok(4)),
            (of(7, 9), Err(Reason::LogMismatch)),
            (of(7, 3), Err(Reason::CursorExpired)),
            (diverged(of(7, 8)), Err(Reason::Diverged)),
            (of(6, 5), Ok(5)),
            (of(6, 6), Err(Reason::LogMismatch)),
            (of(5, 5), Err(Reason::LogMismatch)),
        ];
        let extent = extent(5, 10);
        for (cursor, expected) in cases {
            let decided = as_ours(cursor, &extent, &ancestors).and_then(|cursor| {
                start_after(Start::After(cursor), &extent, |sequence| Ok(chain(sequence)))
            });
            let decided = decided.map_err(|refusal| refusal.reason);
            assert_eq!(decided, expected.map(at), "{cursor:?}");
        }
    }

    #[test]
    fn refusals_carry_the_numbers_and_say_what_to_do() {
        let refusal =
            start_after(Start::Beginning, &extent(5, 10), |_| unreachable!()).expect_err("expired");
        for pair in [("floor", "5"), ("next", "10"), ("sequence", "-1")] {
            assert!(refusal.metadata.contains(&(pair.0, pair.1.to_owned())), "{pair:?}");
        }
        assert!(refusal.message.contains("START_AT_OLDEST"));
    }

    #[test]
    fn a_floor_that_has_moved_meanwhile_is_an_expired_cursor() {
        let moved = |_| Err(ReadError::Truncated { asked: 7, floor: 9 });
        let refusal = start_after(Start::After(at(7)), &extent(5, 10), moved).expect_err("moved");
        assert_eq!(refusal.reason, Reason::CursorExpired);
        assert!(refusal.metadata.contains(&("floor", "9".to_owned())));
    }
}
