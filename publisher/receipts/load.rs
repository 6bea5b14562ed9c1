//! What the files of receipts hold, into memory. A start waits for it, so all
//! processors read, each its share of the files, and put tables in order.

use std::{num::NonZero, path::Path, thread};

use super::{
    Receipts, file,
    fold::Hash,
    index::{ByTable, Filling},
    is_live,
    manifest::{Manifest, Part},
};
use crate::publisher::log::OpenError;

/// More threads wait for memory.
const MAX_THREADS: usize = 4;
/// Files that a thread reads before what it has read is added: about 3 MiB of entries.
const FILES: usize = 8;

/// Takes note of what the files hold that the manifest names.
///
/// # Errors
/// [`OpenError`]: one is missing or damaged.
pub fn load(receipts: &mut Receipts) -> Result<(), OpenError> {
    let Receipts { dir, manifest, index, subjects, untimed, .. } = receipts;
    let (dir, manifest) = (&*dir, &*manifest);
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let mut filling = Filling::with_room(manifest.parts.iter().map(|part| part.rows).sum());
    let mut shares = Vec::new();
    shares.resize_with(threads, Share::default);
    for parts in manifest.parts.chunks(threads * FILES) {
        thread::scope(|scope| {
            let reading: Vec<_> = shares
                .iter_mut()
                .zip(parts.chunks(FILES))
                .map(|(share, parts)| scope.spawn(move || share.read(dir, manifest, parts)))
                .collect();
            // The first of the files that cannot be used is told.
            reading.into_iter().try_for_each(|read| read.join().expect("reading does not panic"))
        })?;
        for share in &mut shares {
            filling.add(&mut share.keys);
            for (subject, version) in share.subjects.drain(..) {
                subjects.raise(subject, version);
            }
        }
    }
    *untimed = shares.iter().map(|share| share.untimed).sum();
    *index = filling.finish(threads);
    Ok(())
}

/// What one thread has read.
#[derive(Default)]
struct Share {
    keys: ByTable,
    subjects: Vec<(Hash, i64)>,
    /// Of all that it has ever read.
    untimed: u64,
}

impl Share {
    fn read(&mut self, dir: &Path, manifest: &Manifest, parts: &[Part]) -> Result<(), OpenError> {
        for part in parts {
            let path = file::path(dir, part.first, part.generation);
            let (header, sections) = file::read_sections(&path)?;
            file::is_saved(&path, &header, part, manifest)?;
            self.subjects.extend(sections.subjects);
            let live = |time_ms| is_live(time_ms, manifest.key_floor_ms);
            for key in sections.keys.iter().filter(|key| live(key.time_ms)) {
                self.keys.push(&key.hash, key.sequence);
                self.untimed += u64::from(key.time_ms.is_none());
            }
        }
        Ok(())
    }
}
