//! Dropping what is too old, events and receipts, and giving back the storage of
//! what was dropped: on the appender's thread, between groups.

use std::time::Duration;

use super::{
    log::{CommitError, LogReader},
    oldest::Oldest,
    publish::Parts,
    resume,
    retention::{Held, NoRoom, make_room},
};

/// Expired events are looked for this often.
pub const TICK: Duration = Duration::from_millis(500);

/// Raises the floor over what is too old, or over the bounds because those have
/// been lowered. Readers see it once it is on stable storage.
pub fn expire(parts: &mut Parts, log: &dyn LogReader, oldest: &mut Oldest, now_ms: i64) {
    let extent = log.extent();
    let held = Held { floor: extent.floor, next: extent.next, bytes: extent.bytes };
    let hold = parts.receivers.hold(&parts.limits, extent.floor, now_ms);
    let size = |sequence| oldest.at(sequence, log);
    match make_room(&parts.limits, held, (0, 0), &hold, now_ms, size) {
        Ok(Held { floor, .. }) if floor > extent.floor => match parts.engine.commit(&[], floor) {
            Ok(()) => {
                parts.receivers.tell_overtaken(extent.floor..floor);
                parts.extent.send_replace(log.extent());
            }
            Err(error) => drop(parts.halt.judge(&error)),
        },
        Ok(_) | Err(NoRoom::Full(_)) => {}
        Err(NoRoom::Unreadable(error)) => drop(resume::failed(&error)),
    }
}

/// Forgets receipts whose key window has passed. What cannot be stored now is tried
/// again later: receipts live longer for it.
pub fn forget(parts: &mut Parts, now_ms: i64) {
    let Parts { store, receipts, limits, halt, .. } = parts;
    if halt.is_closed() {
        return;
    }
    let forgotten =
        store.advance(receipts, now_ms, limits.key_window).and_then(|()| store.forget(receipts));
    if let Err(error) = forgotten {
        halt.judge(&error);
    }
}

/// Gives back the oldest storage below the floor, if there is any, after the
/// receipts of its events have been saved. Says whether it did.
pub fn release(parts: &mut Parts) -> bool {
    if parts.halt.is_closed() {
        return false;
    }
    let Some(range) = parts.engine.releasable() else { return false };
    let saved = parts.store.save_below(range.end, &parts.receipts);
    match saved.and_then(|()| parts.engine.release(range)) {
        Ok(()) => true,
        // The storage stands, and is tried again later.
        Err(CommitError::DiskFull) => false,
        Err(error) => {
            parts.halt.judge(&error);
            false
        }
    }
}
