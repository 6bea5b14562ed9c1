//! Whether a receiver could go on from a snapshot's place in the log: whether a Replay
//! would start there.

use super::offer::Standing;
use crate::{
    proto::{
        chain::Cursor,
        refusal::{Reason, Refusal},
    },
    publisher::{
        log::LogReader,
        resume::{Start, start_in},
    },
};

/// Checks that a receiver could go on from a place: that a Replay would start there.
///
/// # Errors
/// Those of a Replay from there.
pub fn check(cursor: &Cursor, reader: &dyn LogReader) -> Result<(), Refusal> {
    start_in(reader, Start::After(*cursor)).map(drop)
}

/// Whether a receiver could go on from a place now.
pub fn standing(cursor: &Cursor, reader: &dyn LogReader) -> Standing {
    match check(cursor, reader) {
        Ok(()) => Standing::Usable,
        Err(refusal) => match refusal.reason {
            Reason::CursorExpired => Standing::Expired,
            Reason::LogUnreadable => Standing::Unknown,
            _ => Standing::Elsewhere,
        },
    }
}

/// What a Replay says of a place, said of a snapshot.
pub fn of_no_use(refusal: Refusal) -> Refusal {
    if refusal.reason != Reason::CursorExpired {
        return refusal;
    }
    let message = "what follows this snapshot is no longer retained, so nobody could go on from it: \
                   make another one";
    Refusal { message: message.to_owned(), ..refusal }
}
