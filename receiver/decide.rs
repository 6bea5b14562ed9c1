//! What to do with an event, given what is committed. Pure: knows nothing of
//! SQLite, sockets or clocks.

use super::judged::Judged;
use crate::proto::{
    chain::Cursor,
    event::{Event, Fingerprint, Sequence},
};

/// What is to be done with one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Effect, ledger row and cursor in one commit.
    Apply,
    /// A ledger row DUPLICATE and the cursor; no effect.
    Duplicate,
    /// A ledger row REJECTED (key_conflict) and the cursor; no effect.
    KeyConflict,
    /// Nothing is written; the cursor is acknowledged again.
    AlreadyDone,
    /// Another event stands at this sequence: stop, nothing is written.
    Conflict,
    /// The ledger has lost its row: stop, nothing is written.
    Lost,
    /// Something is missing before it: nothing is written.
    Gap,
}

/// What the ledger says, as far as it was asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known {
    /// The fingerprint under which the event's key was first seen.
    pub by_key: Option<Fingerprint>,
    /// The fingerprint in the row of the event's sequence.
    pub by_sequence: Option<Fingerprint>,
    /// Below this sequence, rows were pruned.
    pub ledger_from: Sequence,
}

/// Judges one event. `last` is the committed sequence, -1 for none.
pub fn decide(
    last: Sequence,
    sequence: Sequence,
    fingerprint: &Fingerprint,
    known: &Known,
) -> Decision {
    if sequence > last + 1 {
        return Decision::Gap;
    }
    if sequence <= last {
        return match known.by_sequence {
            Some(other) if other != *fingerprint => Decision::Conflict,
            Some(_) => Decision::AlreadyDone,
            // Done so long ago that its row was pruned.
            None if sequence < known.ledger_from => Decision::AlreadyDone,
            None => Decision::Lost,
        };
    }
    match known.by_key {
        None => Decision::Apply,
        Some(same) if same == *fingerprint => Decision::Duplicate,
        Some(_) => Decision::KeyConflict,
    }
}

/// One event of a frame, put in its place.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// It follows what came before it.
    Next {
        /// The event.
        event: Event,
        /// The cursor once it is committed.
        after: Cursor,
        /// What the projection has found out about it already, if anything.
        judged: Option<Judged>,
    },
    /// It came before: the ledger has to say whether it is the same one.
    Earlier(Event),
}

impl Step {
    /// The event.
    pub fn event(&self) -> &Event {
        match self {
            Step::Next { event, .. } | Step::Earlier(event) => event,
        }
    }

    /// What was found out about it before its turn.
    pub fn judged(&self) -> Option<&Judged> {
        match self {
            Step::Next { judged, .. } => judged.as_ref(),
            Step::Earlier(_) => None,
        }
    }
}

/// Why a frame cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misfit {
    /// A sequence is missing.
    Gap {
        /// The sequence that should have come.
        expected: Sequence,
        /// The one that came.
        found: Sequence,
    },
    /// The publisher's chain is not ours at this sequence.
    Diverged(Sequence),
}

/// A frame while its events are put in their places. Where one does not fit, nothing of the
/// frame may be applied.
#[derive(Debug)]
pub struct Placing {
    cursor: Cursor,
    steps: Vec<Step>,
}

impl Placing {
    /// A frame of so many events, after `from`.
    pub fn after(from: Cursor, events: usize) -> Self {
        Placing { cursor: from, steps: Vec::with_capacity(events) }
    }

    /// Puts an event behind those before. `judge` looks at one that is new.
    ///
    /// # Errors
    /// [`Misfit`].
    pub fn put(
        &mut self,
        event: Event,
        judge: impl FnOnce(&Event) -> Option<Judged>,
    ) -> Result<(), Misfit> {
        let (expected, found) = (self.cursor.sequence + 1, event.sequence);
        if found > expected {
            return Err(Misfit::Gap { expected, found });
        }
        self.steps.push(if found < expected {
            Step::Earlier(event)
        } else {
            self.cursor = self.cursor.advance(&event.intent.fingerprint, &event.intent.key);
            let judged = judge(&event);
            Step::Next { event, after: self.cursor, judged }
        });
        Ok(())
    }

    /// All of them, and the cursor after them; that which the publisher states is held against
    /// the chain computed here.
    ///
    /// # Errors
    /// [`Misfit`].
    pub fn finish(self, stated: &Cursor) -> Result<(Vec<Step>, Cursor), Misfit> {
        let Placing { cursor, steps } = self;
        if stated.sequence > cursor.sequence {
            return Err(Misfit::Gap { expected: cursor.sequence + 1, found: stated.sequence });
        }
        if stated.sequence == cursor.sequence && *stated != cursor {
            return Err(Misfit::Diverged(cursor.sequence));
        }
        Ok((steps, cursor))
    }
}

/// Puts all of a frame's events in their places, unjudged.
#[cfg(test)]
pub fn place(
    from: Cursor,
    events: Vec<Event>,
    stated: &Cursor,
) -> Result<(Vec<Step>, Cursor), Misfit> {
    let mut placing = Placing::after(from, events.len());
    events.into_iter().try_for_each(|event| placing.put(event, |_| None))?;
    placing.finish(stated)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::receiver::{
        testing::{cursor_after, event, log_id},
        values::Values,
    };

    #[test]
    fn every_row_of_the_table() {
        let [a, b] = [[1; 32], [2; 32]];
        let nothing = Known::default();
        let key = |print| Known { by_key: Some(print), ..nothing };
        let row = |print| Known { by_sequence: Some(print), ..nothing };
        let pruned = |ledger_from| Known { ledger_from, ..nothing };
        let cases = [
            (-1, 0, nothing, Decision::Apply),
            (4, 5, nothing, Decision::Apply),
            (4, 5, key(a), Decision::Duplicate),
            (4, 5, key(b), Decision::KeyConflict),
            (4, 4, row(a), Decision::AlreadyDone),
            (4, 0, row(a), Decision::AlreadyDone),
            (4, 0, pruned(1), Decision::AlreadyDone),
            (4, 4, pruned(5), Decision::AlreadyDone),
            (4, 1, pruned(1), Decision::Lost),
            (4, 0, nothing, Decision::Lost),
            (4, 4, row(b), Decision::Conflict),
            (4, 0, row(b), Decision::Conflict),
            (4, 6, nothing, Decision::Gap),
            (4, 6, key(a), Decision::Gap),
            (-1, 1, nothing, Decision::Gap),
        ];
        for (last, sequence, known, expected) in cases {
            let decided = decide(last, sequence, &a, &known);
            assert_eq!(decided, expected, "last {last}, sequence {sequence}, {known:?}");
        }
    }

    #[test]
    fn frames_are_put_in_their_places() {
        let events: Vec<_> = (0..4).map(|n| event(n, &format!("k{n}"), "a", "x", "{}")).collect();
        let at = |n: usize| cursor_after(&events[..n]);
        let frame = |range: std::ops::Range<usize>| events[range].to_vec();
        let start = Cursor::beginning(log_id());

        let (steps, cursor) = place(start, frame(0..3), &at(3)).expect("fits");
        assert_eq!((steps.len(), cursor), (3, at(3)));
        // Repeats are told apart from what is new, also within one frame.
        let repeated = vec![events[1].clone(), events[2].clone(), events[1].clone()];
        let (steps, cursor) = place(at(2), repeated, &at(2)).expect("fits");
        let earlier: Vec<_> = steps.iter().map(|s| matches!(s, Step::Earlier(_))).collect();
        assert_eq!((earlier, cursor), (vec![true, false, true], at(3)));
        // Only what is new is looked at.
        let mut looked_at = Vec::new();
        let mut placing = Placing::after(at(2), 3);
        for event in [&events[1], &events[2], &events[1]] {
            let judge = |event: &Event| {
                looked_at.push(event.sequence);
                Some(Judged { by: 7, place: None, values: Values::default() })
            };
            placing.put(event.clone(), judge).expect("fits");
        }
        let (steps, _) = placing.finish(&at(3)).expect("fits");
        let judged: Vec<_> = steps.iter().map(|step| step.judged().is_some()).collect();
        assert_eq!((looked_at, judged), (vec![2], vec![false, true, false]));
        // An empty frame proves a place.
        assert_eq!(place(at(2), vec![], &at(2)), Ok((vec![], at(2))));

        let gap = |expected, found| Err(Misfit::Gap { expected, found });
        assert_eq!(place(at(1), frame(2..4), &at(4)), gap(1, 2));
        assert_eq!(place(at(1), vec![], &at(3)), gap(1, 2));
        let forged = Cursor { chain: [9; 32], ..at(3) };
        assert_eq!(place(at(1), frame(1..3), &forged), Err(Misfit::Diverged(2)));
        let other_log = Cursor { log_id: uuid::Uuid::from_u128(2), ..at(3) };
        assert_eq!(place(at(1), frame(1..3), &other_log), Err(Misfit::Diverged(2)));
    }
}
