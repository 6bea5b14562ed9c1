//! Steps on stable storage that the log, the positions and the receipts share,
//! and the latch that closes when one of them fails. Knows nothing of what the
//! bytes mean.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::log::{CommitError, OpenError};

/// The file that says that a directory needs recovery.
pub const MARKER: &str = "HALTED";
/// Ends the name of a file that is not whole yet. Such a file is never read.
pub const UNFINISHED: &str = ".tmp";

/// Makes the names in a directory durable.
///
/// # Errors
/// The operating system's.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Puts a whole file under a name, durably: afterwards there is the old content
/// or the new, never a part. The file stays open for more.
///
/// # Errors
/// The operating system's. Where it says that something has run out, nothing has
/// changed; otherwise the name may have the new content, not durably.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<File> {
    // Whatever may run out is taken before the name changes.
    let dir = File::open(path.parent().unwrap_or(Path::new(".")))?;
    let unfinished = unfinished(path);
    let written = || -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&unfinished)?;
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)?;
        Ok(file)
    };
    let file = written().inspect_err(|_| {
        // What could not be written may hold the space that is missing.
        let _ = fs::remove_file(&unfinished);
    })?;
    dir.sync_all().map_err(|error| io::Error::other(error.to_string()))?;
    Ok(file)
}

fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(UNFINISHED);
    name.into()
}

/// Removes what a process left unfinished that died within [`replace`].
///
/// # Errors
/// The operating system's.
pub fn remove_unfinished(dir: &Path) -> io::Result<()> {
    for file in fs::read_dir(dir)? {
        let file = file?;
        if file.file_name().to_string_lossy().ends_with(UNFINISHED) {
            fs::remove_file(file.path())?;
        }
    }
    Ok(())
}

/// Whether an error says that there is no room, which may change.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Whether an error says that something has run out, which may change: room on
/// the disk, or file descriptors.
pub fn has_run_out(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    is_full(error) || matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Copies the end of a file, from `from` on, to a new file beside it, durably:
/// nothing is cut off that has not been kept.
///
/// # Errors
/// The operating system's.
pub fn keep_tail(path: &Path, from: u64, tail: &[u8]) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for attempt in 0.. {
        let kept = path.with_file_name(format!("torn-{name}-at-{from}-{attempt}"));
        if kept.exists() {
            continue;
        }
        replace(&kept, tail)?;
        return Ok(kept);
    }
    unreachable!("one of 2^31 names is free")
}

/// Gives a damaged file, durably, a name that says so. Returns that.
///
/// # Errors
/// The operating system's.
pub fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    for attempt in 0.. {
        let aside = path.with_file_name(format!("damaged-{name}-{attempt}"));
        if aside.try_exists()? {
            continue;
        }
        fs::rename(path, &aside)?;
        sync_dir(path.parent().unwrap_or(Path::new(".")))?;
        return Ok(aside);
    }
    unreachable!("one of 2^31 names is free")
}

/// Closed after the first I/O error that leaves the disk's content unknown, for
/// good: a marker keeps the directory closed across restarts, too. A clone is the
/// same latch: what one of its holders fails to write, no other writes after.
#[derive(Debug, Clone)]
pub struct Latch {
    dir: Arc<Path>,
    why: Arc<OnceLock<String>>,
}

impl Latch {
    /// An open latch over a directory.
    ///
    /// # Errors
    /// [`OpenError::Halted`] where the marker stands.
    pub fn open(dir: &Path) -> Result<Self, OpenError> {
        let marker = dir.join(MARKER);
        match fs::read_to_string(&marker) {
            Ok(why) => {
                let data_dir = dir.ancestors().nth(2).unwrap_or(dir).display();
                Err(OpenError::Halted(format!(
                    "{} takes no part in service: {}; run `publisher recover --data-dir {data_dir}`, which copies what can be read into new files",
                    dir.display(),
                    why.trim_end(),
                )))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Latch { dir: dir.into(), why: Arc::default() })
            }
            Err(error) => Err(OpenError::io("read", &marker, error)),
        }
    }

    /// Whether writing is still allowed.
    ///
    /// # Errors
    /// [`CommitError::Halted`].
    pub fn check(&self) -> Result<(), CommitError> {
        match self.why.get() {
            None => Ok(()),
            Some(why) => Err(CommitError::Halted(why.clone())),
        }
    }

    /// Closes it and leaves the marker, as well as the disk still allows.
    pub fn close(&mut self, doing: &str, error: &io::Error) -> CommitError {
        let why = format!("{doing} failed ({error}), so what is on the disk is unknown");
        tracing::error!(directory = %self.dir.display(), "{why}; no more writes");
        if let Err(error) = replace(&self.dir.join(MARKER), format!("{why}\n").as_bytes()) {
            tracing::error!(%error, "the marker {MARKER} could not be written");
        }
        CommitError::Halted(self.why.get_or_init(|| why).clone())
    }

    /// Syncs what an open has found, before anything of it is served: it may have
    /// come out of the page cache only. After a failed one another would succeed
    /// and prove nothing, so the latch closes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn barrier(&mut self, found: &File) -> io::Result<()> {
        found.sync_all().inspect_err(|error| drop(self.close("the sync after opening", error)))
    }

    /// Whether the marker stands in a directory.
    ///
    /// # Errors
    /// [`OpenError::Io`]: it cannot be told.
    pub fn is_closed(dir: &Path) -> Result<bool, OpenError> {
        let marker = dir.join(MARKER);
        marker.try_exists().map_err(|error| OpenError::io("find", &marker, error))
    }

    /// Judges an error of [`replace`]: what has run out may come back, anything
    /// else closes.
    pub fn judge(&mut self, doing: &str, error: &io::Error) -> CommitError {
        if has_run_out(error) { CommitError::DiskFull } else { self.close(doing, error) }
    }
}

/// Zeros that are written ahead in one piece.
const ZEROS: &[u8] = &[0; 256 * 1024];
/// Writes up to this size are worth zeros ahead: eight of them, or more, go over one piece.
const SMALL_WRITE_BYTES: usize = ZEROS.len() / 8;

/// A file that grows at its end, in two steps: what has been written counts only
/// once it has been synced.
#[derive(Debug)]
pub struct AppendFile {
    file: Arc<File>,
    /// Everything before is on stable storage.
    length: u64,
    /// Where the zeros end that have been written behind that; as large at least.
    filled: u64,
    /// Whether zeros are written ahead.
    zeros_ahead: bool,
}

impl AppendFile {
    /// A file that is open for reading and writing, of which the first `length`
    /// bytes count.
    pub fn new(file: File, length: u64) -> Self {
        AppendFile { file: Arc::new(file), length, filled: length, zeros_ahead: false }
    }

    /// The same, with zeros behind the bytes that count while little is written at a time: over
    /// them, the next bytes change neither the file's length nor what is allocated to it, and
    /// their sync has nothing of the file system's own to write. Whoever reads the file has to
    /// expect them.
    pub fn with_zeros_ahead(file: File, length: u64) -> Self {
        AppendFile { zeros_ahead: true, ..AppendFile::new(file, length) }
    }

    /// The same file, for reading what counts.
    pub fn reading(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Bytes that are on stable storage.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Writes behind the bytes that count.
    ///
    /// # Errors
    /// [`CommitError::DiskFull`]: the file is as before, but for zeros. [`CommitError::Halted`].
    pub fn write(&mut self, bytes: &[u8], latch: &mut Latch) -> Result<(), CommitError> {
        latch.check()?;
        match self.file.write_all_at(bytes, self.length) {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                self.cut()
                    .map_err(|error| latch.close("cutting off an unfinished write", &error))?;
                return Err(CommitError::DiskFull);
            }
            Err(error) => return Err(latch.close("a write", &error)),
        }
        let end = self.length + bytes.len() as u64;
        if end > self.filled {
            self.filled = end;
            if self.zeros_ahead && bytes.len() <= SMALL_WRITE_BYTES {
                match self.file.write_all_at(ZEROS, end) {
                    Ok(()) => self.filled += ZEROS.len() as u64,
                    // It does without, and leaves what room there is to others.
                    Err(error) if is_full(&error) => {
                        self.zeros_ahead = false;
                        self.file
                            .set_len(end)
                            .map_err(|error| latch.close("cutting off zeros", &error))?;
                    }
                    Err(error) => return Err(latch.close("a write", &error)),
                }
            }
        }
        Ok(())
    }

    /// Takes back what stands behind the bytes that count. Not durable by itself.
    ///
    /// # Errors
    /// The operating system's.
    pub fn cut(&mut self) -> io::Result<()> {
        self.filled = self.length;
        self.file.set_len(self.length)
    }

    /// Makes the last `written` bytes durable; they count from here on.
    ///
    /// # Errors
    /// [`CommitError::Halted`].
    pub fn sync(&mut self, written: u64, latch: &mut Latch) -> Result<(), CommitError> {
        self.file.sync_data().map_err(|error| latch.close("a sync", &error))?;
        self.length += written;
        Ok(())
    }
}

/// A directory for tests that try very many states of files: in memory where
/// there is such a place, since a sync that waits for a disk adds nothing to them.
#[cfg(test)]
pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a directory")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_latch_stays_closed_across_opens_and_names_the_way_out() {
        let data_dir = tempfile::tempdir().expect("a directory");
        let dir = data_dir.path().join("logs/main");
        fs::create_dir_all(&dir).expect("created");
        let mut latch = Latch::open(&dir).expect("open");
        latch.check().expect("open");
        latch.close("a sync", &io::Error::from_raw_os_error(5));
        assert!(matches!(latch.check(), Err(CommitError::Halted(_))));
        let refused = Latch::open(&dir).expect_err("marked").to_string();
        let way_out = format!("publisher recover --data-dir {}", data_dir.path().display());
        assert!(refused.contains(&way_out), "{refused}");
        assert!(refused.contains("a sync failed"), "{refused}");
    }

    #[test]
    fn a_write_that_cannot_be_taken_back_closes() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut latch = Latch::open(dir.path()).expect("open");
        // A device that is always full, and cannot be cut.
        let full = OpenOptions::new().read(true).write(true).open("/dev/full").expect("opened");
        let mut file = AppendFile::new(full, 0);
        assert!(matches!(file.write(b"x", &mut latch), Err(CommitError::Halted(_))));
        assert!(Latch::is_closed(dir.path()).expect("known"));
    }

    #[test]
    fn zeros_stand_behind_small_writes_and_are_written_over() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut file = AppendFile::with_zeros_ahead(replace(&path, b"head").expect("written"), 4);
        let mut latch = Latch::open(dir.path()).expect("open");
        let mut append = |bytes: &[u8]| {
            file.write(bytes, &mut latch).expect("written");
            file.sync(bytes.len() as u64, &mut latch).expect("synced");
            fs::read(&path).expect("read")
        };
        let mut expected = b"head".to_vec();
        let content = append(b"one");
        expected.extend(b"one");
        assert_eq!(content.len(), expected.len() + ZEROS.len());
        assert!(content.starts_with(&expected) && content.ends_with(ZEROS));
        // Room enough: the length stays. A large write is worth none.
        let large = vec![7; 2 * ZEROS.len()];
        assert_eq!(append(b"two").len(), content.len());
        expected.extend(b"two");
        expected.extend(&large);
        assert_eq!(append(&large), expected);
        let content = append(b"three");
        expected.extend(b"three");
        assert_eq!(content.len(), expected.len() + ZEROS.len());
        file.cut().expect("cut");
        assert_eq!(fs::read(&path).expect("read"), expected);
    }

    #[test]
    fn bytes_that_are_not_synced_do_not_count() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let mut file = AppendFile::new(replace(&path, b"head").expect("written"), 4);
        let mut latch = Latch::open(dir.path()).expect("open");
        file.write(b"lost", &mut latch).expect("written");
        file.write(b"kept", &mut latch).expect("written");
        file.sync(4, &mut latch).expect("synced");
        assert_eq!(file.length(), 8);
        assert_eq!(fs::read(&path).expect("read"), b"headkept");
    }
}
