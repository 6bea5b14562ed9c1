//! The snapshots of one log: those that are whole, and those that are coming. Blocking.

use std::{
    cmp::Reverse,
    fs::File,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    files::{self, Files, Found},
    offer::{self, Bounds, Standing},
    part::PartError,
    place::{self, standing},
    state::{Coming, State, locked},
    upload::{Upload, not_stored},
};
use crate::{
    proto::{
        crash,
        limits::{MAX_SNAPSHOT_OFFERS, SNAPSHOT_OFFER_LIFE},
        refusal::{Reason, Refusal},
        snapshot::{Snapshot, SnapshotId},
    },
    publisher::log::{LogReader, OpenError},
};

/// The snapshots of one log. A clone is the same.
///
/// The lock of all is taken before that of one part, never after.
#[derive(Debug, Clone)]
pub struct Snapshots(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    files: Files,
    bounds: Bounds,
    state: Mutex<State>,
}

/// What is here of an offered snapshot.
#[derive(Debug, PartialEq, Eq)]
pub enum Offer {
    /// All of it.
    Stored,
    /// So many bytes; the upload goes on behind them.
    From(u64),
}

/// How an upload starts.
#[derive(Debug)]
pub enum Begin {
    /// There is nothing to do: it is whole.
    Stored(Snapshot),
    /// Bytes may come.
    Upload(Upload),
}

impl Snapshots {
    /// Those in a log's directory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(log_dir: &Path, bounds: Bounds) -> Result<Self, OpenError> {
        let files = Files::of(log_dir);
        let Found { whole, parts } = files.sweep()?;
        let state = State {
            whole: whole.into_iter().map(|snapshot| (snapshot.id, snapshot)).collect(),
            coming: parts.into_iter().map(|id| (id, Coming::of(&files, id))).collect(),
            gone: Vec::new(),
        };
        Ok(Snapshots(Arc::new(Inner { files, bounds, state: Mutex::new(state) })))
    }

    /// How much is kept.
    pub fn bounds(&self) -> &Bounds {
        &self.0.bounds
    }

    /// Removes what nothing can follow any more, and uploads that stand still.
    pub fn tidy(&self, reader: &dyn LogReader) {
        self.with(|state| self.expire(state, reader));
    }

    /// Those that a receiver may resume from, the newest first. Changes nothing.
    pub fn list(&self, reader: &dyn LogReader) -> Vec<Snapshot> {
        let mut usable: Vec<_> = self.lock().whole.values().cloned().collect();
        usable.retain(|snapshot| standing(&snapshot.cursor, reader) == Standing::Usable);
        usable.sort_by_key(|snapshot| Reverse(snapshot.age_order()));
        usable
    }

    /// The newest of [`Snapshots::list`].
    pub fn newest(&self, reader: &dyn LogReader) -> Option<Snapshot> {
        self.list(reader).into_iter().next()
    }

    /// The same refusal; CURSOR_EXPIRED with the newest snapshot, if there is one: its
    /// name as `snapshot`, its place as `snapshot_sequence`.
    pub fn told_of(&self, refusal: Refusal, reader: &dyn LogReader) -> Refusal {
        if refusal.reason != Reason::CursorExpired {
            return refusal;
        }
        match self.newest(reader) {
            Some(Snapshot { id, cursor, .. }) => {
                refusal.with("snapshot", id).with("snapshot_sequence", cursor.sequence)
            }
            None => refusal,
        }
    }

    /// Takes note that a snapshot will be uploaded, and says what is here of it. Ends an
    /// upload of it that is under way, and gives up what else its receiver has offered
    /// of the same projection and not completed.
    ///
    /// # Errors
    /// LOG_MISMATCH, CURSOR_AHEAD, DIVERGED, CURSOR_EXPIRED, CORRUPT, LOG_UNREADABLE,
    /// SNAPSHOT_TOO_LARGE, WRONG_STATE, SNAPSHOT_NOT_STORED.
    pub fn offer(&self, snapshot: Snapshot, reader: &dyn LogReader) -> Result<Offer, Refusal> {
        place::check(&snapshot.cursor, reader).map_err(place::of_no_use)?;
        self.with(|state| self.offer_in(state, snapshot, reader))
    }

    fn offer_in(
        &self,
        state: &mut State,
        snapshot: Snapshot,
        reader: &dyn LogReader,
    ) -> Result<Offer, Refusal> {
        self.expire(state, reader);
        if state.whole.contains_key(&snapshot.id) {
            return Ok(Offer::Stored);
        }
        self.admit(state, &snapshot, reader)?;
        self.give_up_for(state, &snapshot);
        let (id, size) = (snapshot.id, snapshot.size_bytes);
        let here = state.coming.get(&id).map_or(Ok(0), |coming| {
            let mut part = locked(&coming.part);
            part.end_turns();
            part.length()
        });
        let mut here = here.map_err(|error| {
            self.drop_one(state, id);
            not_stored(&error)
        })?;
        if here > size {
            // Bytes that were announced with another size.
            self.drop_one(state, id);
            here = 0;
        }
        let coming = state.coming.entry(id).or_insert_with(|| Coming::of(&self.0.files, id));
        coming.announced = Some(snapshot);
        coming.begun = false;
        Ok(Offer::From(here))
    }

    /// Starts the upload of an offered snapshot: makes room for it, and ends another
    /// upload of it.
    ///
    /// # Errors
    /// NOT_FOUND, SNAPSHOT_TOO_LARGE, WRONG_STATE, LOG_FULL, SNAPSHOT_NOT_STORED.
    pub fn begin(&self, id: SnapshotId, reader: &dyn LogReader) -> Result<Begin, Refusal> {
        self.with(|state| self.begin_in(state, id, reader))
    }

    fn begin_in(
        &self,
        state: &mut State,
        id: SnapshotId,
        reader: &dyn LogReader,
    ) -> Result<Begin, Refusal> {
        if let Some(snapshot) = state.whole.get(&id) {
            return Ok(Begin::Stored(snapshot.clone()));
        }
        let offered = state.coming.get(&id).and_then(|coming| coming.announced.clone());
        let snapshot = offered.ok_or_else(not_offered)?;
        for other in self.admit(state, &snapshot, reader)? {
            self.drop_one(state, other);
            crash::point(crash::PUBLISHER_AFTER_SNAPSHOT_DROP);
        }
        let Some(coming) = state.coming.get_mut(&id) else { return Err(not_offered()) };
        self.0.files.make().map_err(|error| PartError::before(error).refusal(&snapshot))?;
        coming.begun = true;
        let part = Arc::clone(&coming.part);
        let turn = locked(&part).end_turns();
        Ok(Begin::Upload(Upload { snapshots: self.clone(), snapshot, part, turn }))
    }

    /// Gives the bytes of a complete upload their name, durably. Those of the same
    /// projection that are too many then go.
    ///
    /// # Errors
    /// [`PartError::Ended`], [`PartError::Full`], [`PartError::Io`].
    pub(super) fn name(&self, upload: &Upload, reader: &dyn LogReader) -> Result<(), PartError> {
        let Upload { snapshot, part, turn, .. } = upload;
        let (files, id) = (&self.0.files, snapshot.id);
        // Its bytes were complete before another upload of it began.
        if self.lock().whole.contains_key(&id) {
            return Ok(());
        }
        {
            let part = locked(part);
            part.is_turn(*turn)?;
            files.write_meta(snapshot).map_err(PartError::before)?;
            crash::point(crash::PUBLISHER_BEFORE_SNAPSHOT_RENAME);
            files.rename(id)?;
            crash::point(crash::PUBLISHER_AFTER_SNAPSHOT_RENAME);
            files.sync()?;
        }
        self.with(|state| {
            // It may have been given up meanwhile, and its files with it.
            state.coming.remove(&id).ok_or(PartError::Ended)?;
            state.whole.insert(id, snapshot.clone());
            let surplus = offer::surplus(&self.0.bounds, snapshot, &state.held(reader));
            for other in surplus {
                self.drop_one(state, other);
                crash::point(crash::PUBLISHER_AFTER_SNAPSHOT_DROP);
            }
            Ok(())
        })
    }

    /// Removes what an upload has written, unless another one has taken its place.
    pub(super) fn discard(&self, upload: &Upload) {
        self.with(|state| {
            if locked(&upload.part).is_turn(upload.turn).is_ok() {
                self.drop_one(state, upload.snapshot.id);
            }
        });
    }

    /// Removes one whose bytes are found to be others.
    pub(super) fn remove(&self, id: SnapshotId) {
        self.with(|state| self.drop_one(state, id));
    }

    /// A whole one, and its bytes: they can be read to their end even when it is
    /// removed meanwhile.
    ///
    /// # Errors
    /// The operating system's.
    pub fn get(&self, id: SnapshotId) -> io::Result<Option<(Snapshot, File)>> {
        let state = self.lock();
        let Some(snapshot) = state.whole.get(&id) else { return Ok(None) };
        Ok(Some((snapshot.clone(), File::open(self.0.files.whole(id))?)))
    }

    /// Does something under the lock of all; what goes by it is removed from the disk after
    /// that, and before this returns.
    fn with<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let (done, gone) = {
            let mut state = self.lock();
            (step(&mut state), std::mem::take(&mut state.gone))
        };
        files::unlink(&gone);
        done
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(
        &self,
        state: &State,
        snapshot: &Snapshot,
        reader: &dyn LogReader,
    ) -> Result<Vec<SnapshotId>, Refusal> {
        offer::admit(&self.0.bounds, snapshot, &state.held(reader))
    }

    /// Removes what nothing can follow any more, and uploads that stand still.
    fn expire(&self, state: &mut State, reader: &dyn LogReader) {
        let expired = |snapshot: &Snapshot| standing(&snapshot.cursor, reader) == Standing::Expired;
        let whole = state.whole.values().filter(|snapshot| expired(snapshot));
        let coming = state.coming.iter().filter(|(_, coming)| {
            coming.rest() >= SNAPSHOT_OFFER_LIFE || coming.announced.as_ref().is_some_and(expired)
        });
        let gone: Vec<_> =
            whole.map(|snapshot| snapshot.id).chain(coming.map(|(id, _)| *id)).collect();
        for id in gone {
            tracing::info!(snapshot = %id, "removed: nothing that is retained follows it, or its upload stands still");
            self.drop_one(state, id);
        }
    }

    /// What an offer gives up goes, and since the number of offers is bounded, those that
    /// were not touched for longest.
    fn give_up_for(&self, state: &mut State, offered: &Snapshot) {
        let replaced = |other: &Snapshot| offer::gives_up(offered, other);
        let mut others: Vec<_> = state.coming.iter().filter(|(id, _)| **id != offered.id).collect();
        others.sort_by_key(|(_, coming)| Reverse(coming.rest()));
        let over = (others.len() + 1).saturating_sub(MAX_SNAPSHOT_OFFERS);
        let gone: Vec<_> = others
            .iter()
            .enumerate()
            .filter(|(at, (_, coming))| {
                *at < over || coming.announced.as_ref().is_some_and(replaced)
            })
            .map(|(_, (id, _))| **id)
            .collect();
        for id in gone {
            self.drop_one(state, id);
        }
    }

    fn drop_one(&self, state: &mut State, id: SnapshotId) {
        state.whole.remove(&id);
        if let Some(coming) = state.coming.remove(&id) {
            locked(&coming.part).end_turns();
        }
        state.gone.extend(self.0.files.retire(id));
    }
}

fn not_offered() -> Refusal {
    Refusal::new(
        Reason::NotFound,
        "this snapshot is not offered: OfferSnapshot comes first, also after the publisher was \
         started again",
    )
}
