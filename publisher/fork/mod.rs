//! Makes a log another incarnation that goes on above everything any receiver has seen,
//! after it was restored from an older copy: otherwise new events would get numbers under
//! which somebody has already seen others. Offline.
//!
//! ```text
//!                      last   next = last + 1        from
//!   [ . . . . . . . . . .  ][ counterfoil.lost * n  ][ new events …
//!     same in both            what was lost
//! ```
//! First what is to be done is written down ([`intent`]), then the events that stand for
//! lost ones are appended ([`lost`]), then the log gets its new identity and remembers the
//! old one, then who has seen more stands in nobody's way any more, then the intent goes. A
//! run that died anywhere is completed by the next one, and nothing is served before.

mod intent;
mod lost;

use std::path::Path;

use uuid::Uuid;

use self::intent::Intent;
pub use self::intent::{check, copy};
use super::{
    clock::Clock,
    durable::{Latch, has_run_out},
    log::{
        EventLog as _, Extent, LogReader, OpenError,
        segment::{self, Identity, Options, SegmentLog},
    },
    positions, suspects,
};
use crate::{
    process::Failure,
    proto::{
        chain::{Ancestor, Cursor},
        crash,
        event::Sequence,
        limits::MAX_LOST_EVENTS,
    },
};

/// What a fork did.
#[derive(Debug, PartialEq, Eq)]
pub struct Report {
    /// The new incarnation.
    pub log_id: Uuid,
    /// The old one.
    pub parent: Uuid,
    /// The last sequence that is the same in both; -1: none.
    pub last: Sequence,
    /// Number of the next event.
    pub from: Sequence,
}

/// Whether a fork has begun that is not complete.
///
/// # Errors
/// [`OpenError::Io`]: it cannot be told.
pub fn is_unfinished(log_dir: &Path) -> Result<bool, OpenError> {
    let path = intent::path(log_dir);
    path.try_exists().map_err(|error| OpenError::io("find", &path, error))
}

/// Forks one log, so that its next event gets the number `from`; none: one above
/// everything any receiver is known to have seen. Completes a fork that has begun. The
/// caller holds the data directory. None: there is no log, and nothing was done.
///
/// # Errors
/// [`Failure::Usage`] for a number that is too low or too high: nothing was done. Else
/// [`OpenError`]'s.
pub fn fork(log_dir: &Path, from: Option<Sequence>) -> Result<Option<Report>, Failure> {
    let mut latch = Latch::open(log_dir)?;
    let Some(identity) = segment::identity(log_dir)? else { return Ok(None) };
    let intent = match begun(log_dir, &latch, &identity, from)? {
        Some(begun) if from.is_some_and(|from| from != begun.from) => {
            return Err(Failure::Usage(format!(
                "--from: a fork to {} has begun and is not complete; run it again without --from",
                begun.from
            )));
        }
        Some(begun) => {
            // It may have come out of the page cache only.
            durably(&mut latch, begun.write(log_dir))?;
            begun
        }
        None => {
            let log = SegmentLog::open(log_dir, Options::default(), latch.clone())?;
            let planned = plan(log_dir, &*log.reader(), from)?;
            has_room(log_dir, &planned)?;
            durably(&mut latch, planned.write(log_dir))?;
            planned
        }
    };
    let Intent { log_id, parent, last, from, .. } = intent;
    if identity.log_id != log_id {
        crash::point(crash::PUBLISHER_AFTER_FORK_INTENT);
        let mut log = SegmentLog::open(log_dir, Options::default(), latch.clone())?;
        lost::stand_in(&mut log, &intent).map_err(|error| Failure::Runtime(error.to_string()))?;
        drop(log);
        durably(&mut latch, segment::succeed(log_dir, log_id, last))?;
        crash::point(crash::PUBLISHER_AFTER_FORK_IDENTITY);
    }
    durably(&mut latch, suspects::settle(log_dir))?;
    crash::point(crash::PUBLISHER_AFTER_FORK_SETTLED);
    durably(&mut latch, Intent::remove(log_dir))?;
    Ok(Some(Report { log_id, parent, last, from }))
}

/// The fork that has begun and is to be completed. One that has appended nothing yet may be
/// planned anew, to start at another number.
fn begun(
    log_dir: &Path,
    latch: &Latch,
    identity: &Identity,
    from: Option<Sequence>,
) -> Result<Option<Intent>, Failure> {
    let Some(begun) = Intent::read(log_dir)? else { return Ok(None) };
    if from.is_none_or(|from| from == begun.from) || identity.log_id == begun.log_id {
        return Ok(Some(begun));
    }
    let log = SegmentLog::open(log_dir, Options::default(), latch.clone())?;
    let has_appended = log.reader().extent().next > begun.last + 1;
    Ok(has_appended.then_some(begun))
}

/// What stands for lost events has to fit on the disk: a fork that has begun is in the way of
/// everything else.
fn has_room(log_dir: &Path, planned: &Intent) -> Result<(), Failure> {
    let needed = room_for(planned.from - planned.last - 1);
    let disk = rustix::fs::statvfs(log_dir)
        .map_err(|error| OpenError::io("look at the disk of", log_dir, error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if needed <= free {
        return Ok(());
    }
    Err(Failure::Runtime(format!(
        "the fork would take some {needed} bytes on the disk, and {free} are free; nothing was done: \
         make room, then run it again"
    )))
}

/// Bytes that so many events take which stand for lost ones, with their receipts, at most.
fn room_for(lost: i64) -> u64 {
    const LOST_EVENT_BYTES: u64 = 512;
    lost.max(0).unsigned_abs().saturating_mul(LOST_EVENT_BYTES)
}

/// After a step that may be half on the disk nothing more is written.
fn durably(latch: &mut Latch, step: Result<(), OpenError>) -> Result<(), OpenError> {
    step.inspect_err(|error| {
        if let OpenError::Io { source, .. } = error
            && !has_run_out(source)
        {
            latch.close("forking the log", source);
        }
    })
}

fn plan(log_dir: &Path, log: &dyn LogReader, from: Option<Sequence>) -> Result<Intent, Failure> {
    let extent = log.extent();
    let positions = positions::read(log_dir)?;
    let suspects = suspects::read_whole(log_dir)?;
    let seen = positions
        .iter()
        .map(|position| (position.name.as_str(), position.acked))
        .chain(suspects.iter().map(|suspect| (suspect.name.as_str(), suspect.seen)));
    let from = first_new(&extent, log.ancestors(), seen, from).map_err(Failure::Usage)?;
    let newest = match extent.count() {
        0 => None,
        _ => log.read(extent.next - 1, 1, 0).ok().and_then(|entries| entries.into_iter().next()),
    };
    Ok(Intent {
        log_id: Uuid::new_v4(),
        parent: extent.log_id,
        last: extent.next - 1,
        from,
        at_ms: Clock::after(newest.map_or(0, |entry| entry.accepted_at_ms)).now_ms(),
    })
}

/// Number of the first new event, or why not that which is asked for. `seen`: up to where
/// each receiver has seen. One that has seen another log decides nothing: its numbers are
/// none of these. Pure.
fn first_new<'a>(
    extent: &Extent,
    ancestors: &[Ancestor],
    seen: impl Iterator<Item = (&'a str, Cursor)>,
    from: Option<Sequence>,
) -> Result<Sequence, String> {
    let next = extent.next;
    let is_ours = |id| id == extent.log_id || ancestors.iter().any(|one| one.log_id == id);
    let furthest = seen
        .filter(|(_, cursor)| is_ours(cursor.log_id))
        .map(|(name, cursor)| (name, cursor.sequence))
        .max_by_key(|&(_, sequence)| sequence)
        .filter(|&(_, seen)| seen >= next);
    let lowest = furthest.map_or(next, |(_, sequence)| sequence.saturating_add(1));
    let why = match furthest {
        Some((name, sequence)) => format!(
            "receiver {name} has seen events up to {sequence} (one that is gone for good can be \
             removed: `counterfoil remove-receiver`)"
        ),
        None => format!("the log has events up to {}", next - 1),
    };
    let first = from.unwrap_or(lowest);
    if first < lowest {
        return Err(format!("--from {first}: it must be {lowest} or more, since {why}"));
    }
    if first - next > MAX_LOST_EVENTS {
        return Err(format!(
            "a fork to {first} would stand in for {} lost events, at most {MAX_LOST_EVENTS} are \
             allowed; {why}, and the log ends before {next}",
            first - next
        ));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        proto::{chain::link, refusal::Reason, wire},
        publisher::{
            durable,
            fork::lost::TYPE,
            hub::Storage,
            log::CommitError,
            positions::{Position, Positions},
            suspects::{Suspect, Suspects},
            testing::BOUNDS,
        },
    };

    #[test]
    fn new_events_start_above_what_anybody_has_seen() {
        let extent =
            |next| Extent { log_id: Uuid::nil(), floor: 0, next, head_chain: [0; 32], bytes: 0 };
        let most = MAX_LOST_EVENTS;
        let ancestors = [Ancestor { log_id: Uuid::from_u128(7), last: 2 }];
        // (next, seen, asked for, expectation or a part of the sentence)
        let cases: [(_, &[(&str, i64)], _, _); 12] = [
            (5, &[], None, Ok(5)),
            (5, &[("a", 3)], None, Ok(5)),
            (5, &[("a", 3), ("b", 9), ("c", 7)], None, Ok(10)),
            (5, &[("b", 9)], Some(10), Ok(10)),
            (5, &[("b", 9)], Some(12), Ok(12)),
            (5, &[("b", 9)], Some(9), Err("must be 10 or more, since receiver b has seen")),
            (5, &[], Some(4), Err("must be 5 or more, since the log has events up to 4")),
            (5, &[], Some(5 + most), Ok(5 + most)),
            (5, &[("b", i64::MAX)], None, Err("receiver b has seen")),
            (5, &[("parent's", 9)], None, Ok(10)),
            (5, &[("foreign", i64::MAX)], None, Ok(5)),
            (5, &[("foreign", 99), ("b", 6)], None, Ok(7)),
        ];
        for (next, seen, from, expected) in cases {
            let cursor = |&(name, sequence)| {
                let log_id = match name {
                    "parent's" => Uuid::from_u128(7),
                    "foreign" => Uuid::from_u128(8),
                    _ => Uuid::nil(),
                };
                (name, Cursor { log_id, sequence, chain: [0; 32] })
            };
            let first = first_new(&extent(next), &ancestors, seen.iter().map(cursor), from);
            match (&first, expected) {
                (Ok(first), Ok(expected)) => assert_eq!(*first, expected),
                (Err(said), Err(part)) => assert!(said.contains(part), "{said}"),
                _ => panic!("{next} {seen:?} {from:?}: {first:?}"),
            }
        }
    }

    /// A log of 3 events, whose receiver has seen 6.
    fn restored() -> (tempfile::TempDir, Uuid) {
        let dir = durable::scratch();
        let latch = Latch::open(dir.path()).expect("open");
        let intent =
            Intent { log_id: Uuid::nil(), parent: Uuid::from_u128(9), last: -1, from: 3, at_ms: 1 };
        let mut log =
            SegmentLog::open(dir.path(), Options::default(), latch.clone()).expect("opens");
        lost::stand_in(&mut log, &intent).expect("any events will do");
        let Extent { log_id, .. } = log.reader().extent();
        let cursor = |sequence| Cursor { log_id, sequence, chain: [7; 32] };
        let position = Position {
            name: "behind".into(),
            session: 1,
            acked: cursor(1),
            reported: -1,
            seen_ms: 0,
        };
        let mut positions = Positions::open(dir.path(), latch.clone()).expect("opens");
        positions.record(&[position]).expect("recorded");
        let suspect = Suspect {
            name: "ahead".into(),
            reason: Reason::CursorAhead,
            seen: cursor(6),
            at_ms: 0,
            settled: false,
        };
        Suspects::open(dir.path(), latch).expect("opens").note(suspect).expect("noted");
        (dir, log_id)
    }

    #[test]
    fn a_forked_log_has_no_hole_and_remembers_where_it_comes_from() {
        let (dir, parent) = restored();
        assert!(matches!(fork(dir.path(), Some(5)), Err(Failure::Usage(_))));
        assert!(!is_unfinished(dir.path()).expect("known"), "nothing was done");
        let report = fork(dir.path(), None).expect("forked").expect("a log");
        let Report { log_id, last, from, .. } = report;
        assert_eq!((report.parent, last, from), (parent, 2, 7));
        assert!(log_id != parent && !is_unfinished(dir.path()).expect("known"));
        assert!(suspects::read(dir.path()).expect("readable").iter().all(|one| one.settled));

        let storage = Storage::open(dir.path(), Options::default(), BOUNDS).expect("opens");
        let reader = storage.engine.reader();
        let extent = reader.extent();
        assert_eq!((extent.log_id, extent.floor, extent.next), (log_id, 0, 7));
        assert_eq!(reader.ancestors(), [Ancestor { log_id: parent, last: 2 }]);
        let mut chain = reader.chain_at(2).expect("retained");
        for (sequence, entry) in (3..).zip(reader.read(3, 9, 9_999).expect("readable")) {
            let event = wire::replayed(entry.body).expect("whole");
            assert_eq!((event.sequence, event.subject_version), (sequence, sequence - 2));
            assert_eq!(event.intent.event_type, TYPE);
            assert_eq!(event.intent.key, format!("{TYPE}/{parent}/{sequence}"));
            chain = link(&chain, sequence, &event.intent.fingerprint, &event.intent.key);
            assert_eq!(chain, entry.chain);
        }
        let receipts = super::super::receipts::look(&storage.receipts);
        assert_eq!((receipts.next(), receipts.untimed()), (7, 0), "they expire as others do");
        drop(receipts);
        drop(storage);

        let again = fork(dir.path(), None).expect("forked").expect("a log");
        assert_eq!((again.parent, again.last, again.from), (log_id, 6, 7), "nothing is lost");
    }

    #[test]
    fn what_has_begun_is_completed_whatever_was_done_of_it() {
        for done in 0..5 {
            let (dir, parent) = restored();
            let latch = Latch::open(dir.path()).expect("open");
            let open =
                || SegmentLog::open(dir.path(), Options::default(), latch.clone()).expect("opens");
            let planned = plan(dir.path(), &*open().reader(), None).expect("planned");
            planned.write(dir.path()).expect("written");
            assert!(is_unfinished(dir.path()).expect("known"));
            if done > 0 {
                let half = Intent { from: planned.from - 1, ..planned.clone() };
                lost::stand_in(&mut open(), &half).expect("appended");
            }
            if done > 1 {
                lost::stand_in(&mut open(), &planned).expect("appended");
            }
            if done > 2 {
                segment::succeed(dir.path(), planned.log_id, planned.last).expect("renamed");
            }
            if done > 3 {
                suspects::settle(dir.path()).expect("settled");
            }
            if done == 0 {
                // Nothing is appended: it may still start elsewhere.
                let (other, _) = restored();
                planned.write(other.path()).expect("written");
                let report = fork(other.path(), Some(8)).expect("forked").expect("a log");
                assert_eq!((report.last, report.from), (2, 8));
                assert!(matches!(fork(dir.path(), Some(6)), Err(Failure::Usage(_))), "too low");
            } else {
                assert!(matches!(fork(dir.path(), Some(8)), Err(Failure::Usage(_))), "begun");
            }
            let report = fork(dir.path(), None).expect("completed").expect("a log");
            let expected = Report { log_id: planned.log_id, parent, last: 2, from: 7 };
            assert_eq!(report, expected, "{done}");
            assert!(suspects::read(dir.path()).expect("readable").iter().all(|one| one.settled));
            assert!(!is_unfinished(dir.path()).expect("known"));
            let reader = open().reader();
            assert_eq!(reader.extent().next, 7);
            assert_eq!(reader.ancestors(), [Ancestor { log_id: parent, last: 2 }]);
        }
    }

    #[test]
    fn what_is_lost_has_to_fit_on_the_disk() {
        let intent =
            |from| Intent { log_id: Uuid::nil(), parent: Uuid::nil(), last: 4, from, at_ms: 0 };
        let dir = durable::scratch();
        has_room(dir.path(), &intent(5)).expect("nothing is lost");
        has_room(dir.path(), &intent(6)).expect("it fits");
        let refused = has_room(dir.path(), &intent(i64::MAX / 512)).expect_err("never");
        assert!(refused.to_string().contains("nothing was done"), "{refused}");
        assert_eq!((room_for(0), room_for(2)), (0, 1_024));
    }

    #[test]
    fn where_there_is_no_log_or_a_halted_one_nothing_is_done() {
        let dir = durable::scratch();
        assert_eq!(fork(dir.path(), None).expect("nothing to do"), None);
        assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
        let (dir, _) = restored();
        let error = std::io::Error::from_raw_os_error(5);
        let closed = Latch::open(dir.path()).expect("open").close("a sync", &error);
        assert!(matches!(closed, CommitError::Halted(_)));
        let refused = fork(dir.path(), None).expect_err("halted").to_string();
        assert!(refused.contains("publisher recover"), "{refused}");
    }
}
