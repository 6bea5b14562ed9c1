//! What the files of receipts hold, into memory. A start waits for it, so all
//! processors read, then all add: each a part of the files, each a part of the tables.

use std::{num::NonZero, path::Path, thread};

use super::{
    Receipts, file,
    fold::Hash,
    index::{Index, Sorted},
    is_live,
    manifest::{Manifest, Part},
};
use crate::publisher::log::OpenError;

/// More threads wait for memory.
const MAX_THREADS: usize = 4;
/// Files that a thread reads before it adds: about 3 MiB of entries.
const FILES: usize = 8;

/// Takes note of what the files hold that the manifest names.
///
/// # Errors
/// [`OpenError`]: one is missing or damaged.
pub fn load(receipts: &mut Receipts) -> Result<(), OpenError> {
    let Receipts { dir, manifest, index, subjects, untimed, .. } = receipts;
    index.reserve(manifest.parts.iter().map(|part| part.rows).sum());
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MAX_THREADS);
    let mut shares = Vec::new();
    shares.resize_with(threads, Share::default);
    for parts in manifest.parts.chunks(threads * FILES) {
        let (dir, manifest) = (&*dir, &*manifest);
        thread::scope(|scope| {
            let reading: Vec<_> = shares
                .iter_mut()
                .zip(parts.chunks(FILES))
                .map(|(share, parts)| scope.spawn(move || share.read(dir, manifest, parts)))
                .collect();
            // The first of the files that cannot be used is told.
            reading.into_iter().try_for_each(|read| read.join().expect("reading does not panic"))
        })?;
        add(&mut shares, index);
        for share in &mut shares {
            share
                .subjects
                .drain(..)
                .for_each(|(subject, version)| subjects.raise(subject, version));
            *untimed += std::mem::take(&mut share.untimed);
        }
    }
    Ok(())
}

fn add(shares: &mut [Share], index: &mut Index) {
    let keys: Vec<&Sorted> = shares.iter().map(|share| &share.keys).collect();
    index.insert_all(&keys);
    shares.iter_mut().for_each(|share| share.keys.clear());
}

/// What one thread has read.
#[derive(Default)]
struct Share {
    keys: Sorted,
    subjects: Vec<(Hash, i64)>,
    untimed: u64,
}

impl Share {
    fn read(&mut self, dir: &Path, manifest: &Manifest, parts: &[Part]) -> Result<(), OpenError> {
        for part in parts {
            let path = file::path(dir, part.first, part.generation);
            let (header, sections) = file::read_sections(&path)?;
            file::is_saved(&path, &header, part, manifest)?;
            self.subjects.extend(sections.subjects);
            let live =
                sections.keys.iter().filter(|key| is_live(key.time_ms, manifest.key_floor_ms));
            for key in live {
                self.keys.push(&key.hash, key.sequence);
                self.untimed += u64::from(key.time_ms.is_none());
            }
        }
        Ok(())
    }
}
