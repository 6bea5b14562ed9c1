//! Looking up what has been said of an event, while it is being added to.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, BufReader, Read},
    ops::Range,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use super::block::{FORMAT, Said, first_of, path};
use crate::{
    proto::{event::Sequence, outcome::Reported},
    publisher::log::{OpenError, ReadError},
};

/// The reading side: any thread, any number. Blocking, short.
#[derive(Debug, Clone)]
pub struct Reader {
    dir: Arc<Path>,
    /// Blocks that have a file, each with the bytes of it that are on stable
    /// storage; none: it is not being written.
    files: Arc<RwLock<BTreeMap<Sequence, Option<u64>>>>,
}

impl Reader {
    /// Of a directory with the files of these blocks.
    pub(super) fn of_files(dir: &Path, firsts: Vec<Sequence>) -> Self {
        let files = firsts.into_iter().map(|first| (first, None)).collect();
        Reader { dir: dir.into(), files: Arc::new(RwLock::new(files)) }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What has been said of an event, by receiver. Of a receiver that is not
    /// among them and has reported that far, it was applied and gave no result.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`], [`ReadError::Io`].
    pub fn of(&self, sequence: Sequence) -> Result<BTreeMap<String, Reported>, ReadError> {
        let mut rows = BTreeMap::new();
        let see = |said: Said<'_>| {
            if said.is_of(sequence) {
                match said.row(sequence).ok()? {
                    Some(row) => drop(rows.insert(said.receiver.to_owned(), row)),
                    None => drop(rows.remove(said.receiver)),
                }
            }
            Some(())
        };
        match self.read(first_of(sequence), see) {
            Ok(()) => Ok(rows),
            Err(OpenError::Io { source, .. }) => Err(ReadError::Io(source)),
            Err(other) => Err(ReadError::Corrupt { sequence, what: other.to_string() }),
        }
    }

    /// Shows all that has been said in the file of a block, if it has one.
    ///
    /// # Errors
    /// Those of [`Format::read`](crate::publisher::journal::Format::read).
    pub(super) fn read(
        &self,
        first: Sequence,
        mut see: impl FnMut(Said<'_>) -> Option<()>,
    ) -> Result<(), OpenError> {
        let path = path(&self.dir, first);
        let file = self.open(first, &path).map_err(|error| OpenError::io("open", &path, error))?;
        let Some(file) = file else { return Ok(()) };
        FORMAT.read(&path, file, |_, body| Said::each(body, &mut see))?;
        Ok(())
    }

    /// The bytes that count of a block's file, if it has one.
    fn open(&self, first: Sequence, path: &Path) -> io::Result<Option<impl Read + use<>>> {
        // Held while opening: the file is neither written to nor removed meanwhile.
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        let Some(&written) = files.get(&first) else { return Ok(None) };
        let file = File::open(path)?;
        let counts = written.map_or_else(|| file.metadata().map(|found| found.len()), Ok)?;
        Ok(Some(BufReader::new(file).take(counts)))
    }

    /// Whether a block has a file.
    pub(super) fn has(&self, first: Sequence) -> bool {
        self.files.read().unwrap_or_else(PoisonError::into_inner).contains_key(&first)
    }

    /// Blocks that have a file, of those that start in this range.
    pub(super) fn blocks(&self, range: Range<Sequence>) -> Vec<Sequence> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.range(range).map(|(&first, _)| first).collect()
    }

    /// A block has a file, of which so many bytes count; none: all.
    pub(super) fn note(&self, first: Sequence, written: Option<u64>) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(first, written);
    }

    /// A block has no file any more.
    pub(super) fn forget(&self, first: Sequence) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&first);
    }
}
