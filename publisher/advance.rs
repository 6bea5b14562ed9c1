//! What becomes of a receiver's position at a Replay and at an Ack. Pure but for the look-up
//! of one chain that it is handed; where the position is kept is no matter here.

use super::{
    log::{Extent, ReadError},
    positions::Position,
    resume,
};
use crate::proto::{
    chain::{Ancestor, Chain, Cursor},
    event::Sequence,
    refusal::{Reason, Refusal},
};

/// A receiver's position as a Replay opens after a cursor, of a process whose `last` session
/// is known. A database that was put back does its work again, and reports it again.
/// `removed` is the last session of receivers that are not known any more.
///
/// # Errors
/// RECEIVER_FENCED.
pub fn open(
    known: Option<&Position>,
    removed: i64,
    name: &str,
    cursor: Cursor,
    last: Option<i64>,
) -> Result<Position, Refusal> {
    not_fenced(known, name, last)?;
    let (session, reported, seen_ms) =
        known.map_or((removed, -1, 0), |known| (known.session, known.reported, known.seen_ms));
    Ok(Position {
        name: name.to_owned(),
        session: session + 1,
        acked: cursor,
        reported: reported.min(cursor.sequence),
        seen_ms,
    })
}

/// Nobody has taken over since the `last` session of a process, if it is sure of one.
///
/// # Errors
/// RECEIVER_FENCED.
pub fn not_fenced(known: Option<&Position>, name: &str, last: Option<i64>) -> Result<(), Refusal> {
    match (known, last) {
        // A session above the newest is of a log that was put back: nobody took over.
        (Some(Position { session, .. }), Some(last)) if last < *session => {
            Err(fenced(name, last, *session))
        }
        _ => Ok(()),
    }
}

/// RECEIVER_FENCED.
pub fn fenced(name: &str, session: i64, newest: i64) -> Refusal {
    Refusal::new(
        Reason::ReceiverFenced,
        format!(
            "session {session} of receiver {name:?} has ended: session {newest} has taken over; \
             run one process for each receiver name"
        ),
    )
    .with("session", newest)
}

/// NOT_FOUND.
pub fn unknown(name: &str) -> Refusal {
    Refusal::new(
        Reason::NotFound,
        format!("no receiver {name:?} is known; a Replay under that name makes it known"),
    )
}

/// WRONG_STATE.
pub fn connected(name: &str) -> Refusal {
    Refusal::new(
        Reason::WrongState,
        format!("receiver {name:?} is connected: stop it first, then remove it"),
    )
}

/// What a receiver has acknowledged after an Ack. `chain_at` looks up the chain at a
/// retained sequence, or at `floor - 1`.
///
/// # Errors
/// RECEIVER_FENCED, INVALID_FIELD, LOG_MISMATCH, CURSOR_AHEAD, DIVERGED, CORRUPT,
/// whichever comes first.
pub fn advance(
    known: &Position,
    session: i64,
    cursor: Option<Cursor>,
    extent: &Extent,
    ancestors: &[Ancestor],
    chain_at: impl FnOnce(Sequence) -> Result<Chain, ReadError>,
) -> Result<Cursor, Refusal> {
    if session < known.session {
        return Err(fenced(&known.name, session, known.session));
    }
    if session > known.session {
        return Err(Refusal::field(
            "session",
            format!("is {session}; the newest session of {:?} is {}", known.name, known.session),
        ));
    }
    let Some(cursor) = cursor else { return Ok(known.acked) };
    let cursor = resume::as_ours(cursor, extent, ancestors)?;
    resume::same_log(&cursor, extent)?;
    resume::not_ahead(&cursor, extent)?;
    match chain_at(cursor.sequence) {
        Ok(chain) => resume::same_history(&cursor, &chain)?,
        // A slow receiver was overtaken while it applied: what it has, it has.
        Err(ReadError::Truncated { .. }) => {}
        Err(error) => return Err(resume::failed(&error)),
    }
    Ok(if cursor.sequence > known.acked.sequence { cursor } else { known.acked })
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    const LOG: Uuid = Uuid::from_u128(1);
    const PARENT: Uuid = Uuid::from_u128(7);

    fn chain(sequence: Sequence) -> Chain {
        [sequence as u8 + 1; 32]
    }

    fn at(sequence: Sequence) -> Cursor {
        Cursor { log_id: LOG, sequence, chain: chain(sequence) }
    }

    fn known() -> Position {
        Position { name: "r".to_owned(), session: 3, acked: at(6), reported: 2, seen_ms: 9 }
    }

    #[test]
    fn the_order_of_checks() {
        let extent = Extent { log_id: LOG, floor: 5, next: 10, head_chain: chain(9), bytes: 0 };
        let foreign = Cursor { log_id: Uuid::from_u128(2), ..at(50) };
        let forked = Cursor { chain: [99; 32], ..at(5) };
        let parents = |sequence| Cursor { log_id: PARENT, ..at(sequence) };
        let cases = [
            ("fenced, whatever else", 2, Some(foreign), Err(Reason::ReceiverFenced)),
            ("a session to come", 4, Some(foreign), Err(Reason::InvalidField)),
            ("another log", 3, Some(foreign), Err(Reason::LogMismatch)),
            ("ahead", 3, Some(at(10)), Err(Reason::CursorAhead)),
            ("a fork, though lower", 3, Some(forked), Err(Reason::Diverged)),
            ("an ancestor's, within what is common", 3, Some(parents(8)), Ok(at(8))),
            ("an ancestor's, beyond that", 3, Some(parents(9)), Err(Reason::LogMismatch)),
            ("higher", 3, Some(at(9)), Ok(at(9))),
            ("the same again", 3, Some(at(6)), Ok(at(6))),
            ("lower", 3, Some(at(5)), Ok(at(6))),
            ("lower, and truncated", 3, Some(at(1)), Ok(at(6))),
            ("nothing applied yet", 3, None, Ok(at(6))),
        ];
        for (case, session, cursor, expected) in cases {
            let chain_at = |sequence| match sequence {
                4..10 => Ok(chain(sequence)),
                _ => Err(ReadError::Truncated { asked: sequence, floor: 5 }),
            };
            let ancestors = [Ancestor { log_id: PARENT, last: 8 }];
            let acked = advance(&known(), session, cursor, &extent, &ancestors, chain_at);
            assert_eq!(acked.map_err(|refusal| refusal.reason), expected, "{case}");
        }
    }

    #[test]
    fn a_session_is_above_all_that_were_before() {
        let opened = |known: Option<&Position>, removed, cursor, last| {
            let opened = open(known, removed, "r", cursor, last);
            opened
                .map(|Position { session, acked, reported, .. }| {
                    (session, acked.sequence, reported)
                })
                .map_err(|refusal| refusal.reason)
        };
        let known = known();
        let known = Some(&known);
        assert_eq!(opened(known, 8, at(4), None), Ok((4, 4, 2)));
        assert_eq!(opened(known, 8, at(1), None), Ok((4, 1, 1)), "it reports again");
        assert_eq!(opened(known, 8, at(4), Some(3)), Ok((4, 4, 2)), "its own stream had broken");
        assert_eq!(opened(known, 8, at(4), Some(9)), Ok((4, 4, 2)), "of a log put back since");
        assert_eq!(opened(known, 8, at(4), Some(2)), Err(Reason::ReceiverFenced));
        assert_eq!(opened(None, 0, at(4), None), Ok((1, 4, -1)));
        assert_eq!(opened(None, 8, at(4), Some(3)), Ok((9, 4, -1)), "whoever had the name before");
    }
}
