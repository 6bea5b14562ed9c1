//! What is held of a log's snapshots, as it stands in memory. Changes nothing on the disk.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    files::Files,
    offer::{self, Held, Standing},
    part::Part,
    place::standing,
};
use crate::{
    proto::{
        limits::SNAPSHOT_REST,
        snapshot::{Snapshot, SnapshotId},
    },
    publisher::log::LogReader,
};

/// All of it.
#[derive(Debug, Default)]
pub struct State {
    /// Those that are whole.
    pub whole: BTreeMap<SnapshotId, Snapshot>,
    /// Those that are not.
    pub coming: BTreeMap<SnapshotId, Coming>,
    /// Files without a name of their own any more, to be removed once nobody holds the lock.
    pub gone: Vec<PathBuf>,
}

/// One that is offered, or of which a process before this one has left bytes.
#[derive(Debug)]
pub struct Coming {
    /// What was announced of it.
    pub announced: Option<Snapshot>,
    /// What has come of it.
    pub part: Arc<Mutex<Part>>,
    /// Whether its upload has begun since it was offered.
    pub begun: bool,
}

impl Coming {
    /// One of which nobody has announced anything yet.
    pub fn of(files: &Files, id: SnapshotId) -> Self {
        let part = Arc::new(Mutex::new(Part::at(files.part(id))));
        Coming { announced: None, part, begun: false }
    }

    /// Bytes that are set aside for it: what was announced, once some have come or may.
    fn set_aside(&self) -> u64 {
        let announced = self.announced.as_ref().map(|snapshot| snapshot.size_bytes);
        match (announced, self.begun) {
            (Some(size), true) => size, // its part may be locked for long
            _ => match (announced, locked(&self.part).length().unwrap_or(0)) {
                (Some(size), 1..) => size,
                (_, length) => length,
            },
        }
    }

    /// How long it has stood still. One that is being written right now is not waited for.
    pub fn rest(&self) -> Duration {
        self.part.try_lock().map_or(Duration::ZERO, |part| part.rest())
    }
}

impl State {
    /// All of it, as far as deciding goes.
    pub fn held(&self, reader: &dyn LogReader) -> Vec<Held<'_>> {
        let whole = self.whole.values().map(|snapshot| Held {
            id: snapshot.id,
            announced: Some(snapshot),
            bytes: snapshot.size_bytes,
            state: offer::State::Whole,
            standing: standing(&snapshot.cursor, reader),
        });
        let coming = self.coming.iter().map(|(id, coming)| {
            let announced = coming.announced.as_ref();
            Held {
                id: *id,
                announced,
                bytes: coming.set_aside(),
                state: match coming.rest() < SNAPSHOT_REST {
                    true => offer::State::Coming,
                    false => offer::State::Resting,
                },
                standing: announced
                    .map_or(Standing::Elsewhere, |snapshot| standing(&snapshot.cursor, reader)),
            }
        });
        whole.chain(coming).collect()
    }
}

/// One part, for a short step.
pub fn locked(part: &Mutex<Part>) -> MutexGuard<'_, Part> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}
