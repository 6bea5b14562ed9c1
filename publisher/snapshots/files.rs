//! The directory of a log's snapshots: names, metadata, and what is left of one that
//! was being uploaded when the process died.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::SystemTime,
};

use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::{
    proto::{
        limits::{MAX_SNAPSHOT_CHUNK_BYTES, SNAPSHOT_OFFER_LIFE},
        pb,
        snapshot::{Snapshot, SnapshotId},
        wire::snapshot as wire,
    },
    publisher::{durable, journal::Format, log::OpenError},
};

const DIR: &str = "snapshots";
/// Ends the name of bytes that are about to be removed.
const GONE: &str = "gone";
const FORMAT: Format = Format { magic: *b"CFSNAPS", version: 1, mark: *b"CFnf", what: "snapshots" };

/// Where the files of a log's snapshots are. The directory is made with the first.
#[derive(Debug, Clone)]
pub struct Files(PathBuf);

/// What a directory was found to hold.
#[derive(Debug, Default)]
pub struct Found {
    /// Those that are whole.
    pub whole: Vec<Snapshot>,
    /// Those of which bytes have come.
    pub parts: Vec<SnapshotId>,
}

impl Files {
    /// The snapshots of the log in this directory.
    pub fn of(log_dir: &Path) -> Self {
        Files(log_dir.join(DIR))
    }

    /// The bytes of one that is whole.
    pub fn whole(&self, id: SnapshotId) -> PathBuf {
        self.0.join(format!("{id}.db"))
    }

    /// The bytes of one that is being uploaded.
    pub fn part(&self, id: SnapshotId) -> PathBuf {
        self.0.join(format!("{id}.part"))
    }

    fn meta(&self, id: SnapshotId) -> PathBuf {
        self.0.join(format!("{id}.meta"))
    }

    /// Makes the directory, if there is none.
    ///
    /// # Errors
    /// The operating system's.
    pub fn make(&self) -> io::Result<()> {
        if self.0.is_dir() {
            return Ok(());
        }
        fs::create_dir(&self.0)?;
        durable::sync_dir(self.0.parent().unwrap_or(Path::new(".")))
    }

    /// Makes metadata durable.
    ///
    /// # Errors
    /// The operating system's.
    pub fn write_meta(&self, snapshot: &Snapshot) -> io::Result<()> {
        let mut content = FORMAT.header();
        FORMAT.frame(&mut content, |out| out.extend(wire::message(snapshot).encode_to_vec()));
        durable::replace(&self.meta(snapshot.id), &content).map(drop)
    }

    /// Gives uploaded bytes the name of a whole snapshot; durable once
    /// [`Files::sync`] has returned.
    ///
    /// # Errors
    /// The operating system's.
    pub fn rename(&self, id: SnapshotId) -> io::Result<()> {
        fs::rename(self.part(id), self.whole(id))
    }

    /// Makes names durable.
    ///
    /// # Errors
    /// The operating system's.
    pub fn sync(&self) -> io::Result<()> {
        durable::sync_dir(&self.0)
    }

    /// Removes what there is of one. What cannot be removed now is found by the next
    /// [`Files::sweep`].
    pub fn remove(&self, id: SnapshotId) {
        unlink(&self.retire(id));
    }

    /// Takes the names from what there is of one, which is soon done, and returns what is
    /// left to [`unlink`], which may take long.
    pub fn retire(&self, id: SnapshotId) -> Vec<PathBuf> {
        // The metadata first: bytes without it are no snapshot.
        unlink(&[self.meta(id)]);
        let gone = |path: PathBuf| {
            let mut name = path.clone().into_os_string();
            name.push(".");
            name.push(GONE);
            match fs::rename(&path, &name) {
                Ok(()) => Some(PathBuf::from(name)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => Some(path),
            }
        };
        [self.whole(id), self.part(id)].into_iter().filter_map(gone).collect()
    }

    /// Tells what there is, and removes what is neither whole nor worth resuming. What
    /// it tells is on stable storage: the bytes and metadata of a whole one were before
    /// they got their names.
    ///
    /// # Errors
    /// [`OpenError::Io`]; [`OpenError::Format`] for metadata of a newer version.
    pub fn sweep(&self) -> Result<Found, OpenError> {
        let mut found = Found::default();
        if !self.0.is_dir() {
            return Ok(found);
        }
        let io = |error| OpenError::io("sweep", &self.0, error);
        durable::remove_unfinished(&self.0).map_err(io)?;
        for file in fs::read_dir(&self.0).map_err(io)? {
            let path = file.map_err(io)?.path();
            if path.extension() == Some(GONE.as_ref()) {
                let _ = fs::remove_file(&path);
            }
            let Some(id) = id_of(&path) else { continue };
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("db") => match self.read(id) {
                    Ok(Some(snapshot)) => found.whole.push(snapshot),
                    Ok(None) => {
                        tracing::warn!(snapshot = %id, "removed: it is not whole");
                        self.remove(id);
                    }
                    // What cannot be read now may be at the next start.
                    Err(error @ OpenError::Io { .. }) => {
                        tracing::error!(snapshot = %id, %error, "left alone, and not shown");
                    }
                    Err(error) => return Err(error),
                },
                Some("meta") if !self.whole(id).exists() => {
                    let _ = fs::remove_file(&path); // its bytes go on being uploaded
                }
                Some("part") if self.whole(id).exists() || is_stale(&path) => {
                    let _ = fs::remove_file(&path);
                }
                Some("part") => found.parts.push(id),
                _ => {}
            }
        }
        self.sync().map_err(io)?;
        Ok(found)
    }

    /// Those that have the name of whole ones.
    fn named_whole(&self) -> Result<Vec<SnapshotId>, OpenError> {
        let mut named = Vec::new();
        if !self.0.is_dir() {
            return Ok(named);
        }
        let io = |error| OpenError::io("list", &self.0, error);
        for file in fs::read_dir(&self.0).map_err(io)? {
            let path = file.map_err(io)?.path();
            if path.extension() == Some("db".as_ref()) {
                named.extend(id_of(&path));
            }
        }
        Ok(named)
    }

    /// What was announced of one with bytes of that length; none where they are not
    /// those, or it is damaged.
    fn read(&self, id: SnapshotId) -> Result<Option<Snapshot>, OpenError> {
        let path = self.meta(id);
        let content = match fs::read(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(OpenError::io("read", &path, error)),
        };
        let mut snapshot = None;
        let read = FORMAT.read(&path, &content[..], |_, body| {
            snapshot = wire::checked(pb::Snapshot::decode(body).ok()?, "snapshot").ok();
            snapshot.is_some().then_some(())
        });
        match read {
            Ok(_) => {}
            Err(OpenError::Damaged { .. }) => return Ok(None),
            Err(error) => return Err(error),
        }
        let length = fs::metadata(self.whole(id)).map(|metadata| metadata.len()).ok();
        Ok(snapshot.filter(|snapshot| snapshot.id == id && Some(snapshot.size_bytes) == length))
    }
}

/// Removes files that nobody uses any more.
pub fn unlink(paths: &[PathBuf]) {
    for path in paths {
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %path.display(), "a snapshot's file stays");
        }
    }
}

/// The snapshot that a file is of.
fn id_of(path: &Path) -> Option<SnapshotId> {
    SnapshotId::from_hex(path.file_stem()?.to_str()?)
}

/// Whether nothing has come for so long that nothing will.
fn is_stale(part: &Path) -> bool {
    let touched = fs::metadata(part).and_then(|metadata| metadata.modified());
    // A clock that went back makes none of them old.
    let age = touched.map(|touched| SystemTime::now().duration_since(touched).unwrap_or_default());
    !age.is_ok_and(|age| age < SNAPSHOT_OFFER_LIFE)
}

/// Copies the whole snapshots of one log's directory into another's, durably: those whose
/// bytes still have their hash. Says how many.
///
/// # Errors
/// [`OpenError`]. A snapshot that cannot be read, or for which there is no room, is left out.
pub fn copy(from: &Path, to: &Path) -> Result<usize, OpenError> {
    let (from, to) = (Files::of(from), Files::of(to));
    let write = |error| OpenError::io("write", &to.0, error);
    let mut copied = 0;
    for id in from.named_whole()? {
        let snapshot = match from.read(id) {
            Ok(Some(snapshot)) => snapshot,
            Ok(None) => continue,
            Err(error @ OpenError::Io { .. }) => {
                tracing::warn!(snapshot = %id, %error, "left out: it cannot be read");
                continue;
            }
            Err(error) => return Err(error),
        };
        match copy_one(&from, &to, &snapshot) {
            Ok(true) => copied += 1,
            Ok(false) => to.remove(id),
            Err(error) if durable::is_full(&error) => {
                tracing::warn!(snapshot = %id, "left out: there is no room for it on the disk");
                to.remove(id);
            }
            Err(error) => return Err(write(error)),
        }
    }
    if copied > 0 {
        to.sync().map_err(write)?;
    }
    Ok(copied)
}

/// Copies one; the names are not durable yet. False: its bytes are others, or cannot be
/// read.
fn copy_one(from: &Files, to: &Files, snapshot: &Snapshot) -> io::Result<bool> {
    let id = snapshot.id;
    to.make()?;
    let part = to.part(id);
    let same = fs::copy(from.whole(id), &part).and_then(|_| {
        File::open(&part)?.sync_all()?;
        hash(&part)
    });
    match same {
        Ok(hash) if hash == id => {}
        Err(error) if durable::is_full(&error) => return Err(error),
        other => {
            tracing::warn!(snapshot = %id, ?other, "left out: it is damaged");
            return Ok(false);
        }
    }
    to.write_meta(snapshot)?;
    to.rename(id)?;
    Ok(true)
}

/// Reads all whole snapshots of a log's directory, and says how many they are. Changes
/// nothing.
///
/// # Errors
/// [`OpenError`]; [`OpenError::Damaged`] for the first whose bytes are others.
pub fn check(log_dir: &Path) -> Result<usize, OpenError> {
    let files = Files::of(log_dir);
    let mut whole = Vec::new();
    for id in files.named_whole()? {
        whole.extend(files.read(id)?);
    }
    for snapshot in &whole {
        let path = files.whole(snapshot.id);
        if hash(&path).map_err(|error| OpenError::io("read", &path, error))? != snapshot.id {
            let what = "its bytes have another hash; remove it, or leave that to its next download";
            return Err(OpenError::Damaged {
                path: path.display().to_string(),
                what: what.to_owned(),
            });
        }
    }
    Ok(whole.len())
}

/// The hash of a file's bytes.
fn hash(path: &Path) -> io::Result<SnapshotId> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; MAX_SNAPSHOT_CHUNK_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(SnapshotId(hash.finalize().into())),
            count => hash.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::proto::chain::Cursor;

    /// A snapshot that is these bytes.
    fn snapshot(content: &[u8]) -> Snapshot {
        Snapshot {
            log: "main".into(),
            cursor: Cursor { log_id: Uuid::from_u128(7), sequence: 3, chain: [1; 32] },
            projection: "inventory".into(),
            projection_version: 1,
            schema_digest: [2; 32],
            size_bytes: content.len() as u64,
            id: SnapshotId(Sha256::digest(content).into()),
            receiver: "shop".into(),
            create_time: None,
        }
    }

    /// Puts a whole one down.
    fn put(files: &Files, content: &[u8]) -> Snapshot {
        let snapshot = snapshot(content);
        files.make().expect("made");
        fs::write(files.part(snapshot.id), content).expect("written");
        files.write_meta(&snapshot).expect("written");
        files.rename(snapshot.id).expect("renamed");
        snapshot
    }

    fn names(files: &Files) -> Vec<PathBuf> {
        let listed = fs::read_dir(&files.0).expect("listed");
        let mut names: Vec<_> = listed.map(|file| file.expect("a file").path()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_sweep_keeps_what_is_whole_and_what_can_be_resumed() {
        let dir = durable::scratch();
        let files = Files::of(dir.path());
        assert!(files.sweep().expect("nothing there").whole.is_empty());
        let whole = put(&files, b"whole");
        let resumable = snapshot(b"resumable").id;
        fs::write(files.part(resumable), b"resu").expect("written");
        fs::write(files.0.join("README"), b"not ours").expect("written");
        let mut kept = names(&files);

        fs::write(files.part(whole.id), b"who").expect("written"); // beside the whole one
        let nameless = snapshot(b"nameless");
        files.write_meta(&nameless).expect("written");
        fs::write(files.part(nameless.id), b"nameless").expect("written");
        fs::write(files.whole(snapshot(b"unknown").id), b"unknown").expect("written");
        let cut = put(&files, b"cut short");
        fs::write(files.whole(cut.id), b"cut").expect("written");
        let damaged = put(&files, b"damaged");
        let mut meta = fs::read(files.meta(damaged.id)).expect("read");
        *meta.last_mut().expect("not empty") ^= 1;
        fs::write(files.meta(damaged.id), meta).expect("written");
        let renamed = put(&files, b"renamed");
        let elsewhere = snapshot(b"elsewhere").id;
        fs::rename(files.whole(renamed.id), files.whole(elsewhere)).expect("renamed");
        fs::rename(files.meta(renamed.id), files.meta(elsewhere)).expect("renamed");
        let stale = files.part(snapshot(b"stale").id);
        fs::write(&stale, b"sta").expect("written");
        let file = File::options().write(true).open(&stale).expect("opened");
        file.set_modified(SystemTime::now() - SNAPSHOT_OFFER_LIFE).expect("set");
        fs::write(files.0.join("x.meta.tmp"), b"torn").expect("written");
        let going = files.whole(snapshot(b"going").id).with_extension("db.gone");
        fs::write(going, b"going").expect("written");

        let Found { whole: found, mut parts } = files.sweep().expect("swept");
        assert_eq!(found, [whole]);
        parts.sort();
        let mut expected = [resumable, nameless.id];
        expected.sort();
        assert_eq!(parts, expected);
        kept.push(files.part(nameless.id));
        kept.sort();
        assert_eq!(names(&files), kept);
    }

    #[test]
    fn metadata_that_cannot_be_read_costs_that_one_alone_and_removes_nothing() {
        let dir = durable::scratch();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for dir in [&from, &to] {
            fs::create_dir(dir).expect("created");
        }
        let files = Files::of(&from);
        let (right, unreadable) = (put(&files, b"right"), put(&files, b"unreadable"));
        let meta = files.meta(unreadable.id);
        fs::remove_file(&meta).expect("removed");
        fs::create_dir(&meta).expect("created");
        let found = files.sweep().expect("swept").whole;
        assert_eq!(found, std::slice::from_ref(&right));
        assert!(files.whole(unreadable.id).exists(), "it may be readable again");
        assert_eq!(copy(&from, &to).expect("copied"), 1);
        assert_eq!(Files::of(&to).sweep().expect("swept").whole, [right]);
        assert!(matches!(check(&from), Err(OpenError::Io { .. })), "a check says so");
    }

    #[test]
    fn metadata_of_a_newer_version_is_left_alone() {
        let dir = durable::scratch();
        let files = Files::of(dir.path());
        let newer = put(&files, b"newer");
        let mut meta = fs::read(files.meta(newer.id)).expect("read");
        meta[FORMAT.magic.len()] = FORMAT.version + 1;
        fs::write(files.meta(newer.id), meta).expect("written");
        let before = names(&files);
        assert!(matches!(files.sweep(), Err(OpenError::Format(_))));
        assert_eq!(names(&files), before);
    }

    #[test]
    fn a_copy_leaves_out_what_there_is_no_room_for() {
        let dir = durable::scratch();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for dir in [&from, &to] {
            fs::create_dir(dir).expect("created");
        }
        let files = Files::of(&from);
        let (small, large) = (put(&files, b"small"), put(&files, b"large"));
        // A device that is always full.
        let target = Files::of(&to);
        target.make().expect("made");
        std::os::unix::fs::symlink("/dev/full", target.part(large.id)).expect("linked");
        assert_eq!(copy(&from, &to).expect("the rest is copied"), 1);
        assert_eq!(target.sweep().expect("swept").whole, [small]);
        assert_eq!(names(&target).len(), 2, "nothing is left of the other");
    }

    #[test]
    fn a_copy_takes_along_what_is_right() {
        let dir = durable::scratch();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for dir in [&from, &to] {
            fs::create_dir(dir).expect("created");
        }
        assert_eq!(copy(&from, &to).expect("nothing there"), 0);
        let files = Files::of(&from);
        let (right, wrong) = (put(&files, b"right"), put(&files, b"wrong"));
        assert_eq!(check(&from).expect("whole"), 2);
        fs::write(files.whole(wrong.id), b"wrnog").expect("written");
        assert!(matches!(check(&from), Err(OpenError::Damaged { .. })));
        assert_eq!(copy(&from, &to).expect("copied"), 1);
        let copied = Files::of(&to).sweep().expect("swept");
        assert_eq!((copied.whole, copied.parts), (vec![right], vec![]));
        assert_eq!(check(&to).expect("whole"), 1);
    }
}
