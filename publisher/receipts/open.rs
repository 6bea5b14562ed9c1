//! What stands in the files when a log is opened: the receipts that the manifest
//! names, then what the log has beyond them. Nothing is changed before it is clear
//! that no receipt is missing.

use std::{
    collections::HashSet,
    fs::{self, File},
    path::{Path, PathBuf},
    sync::{Arc, RwLock},
};

use super::{
    Accepted, Names, Receipts, Shared, Store, change, file, fold,
    load::load,
    look,
    manifest::{self, Manifest},
    retired::{self, Row},
};
use crate::{
    proto::event::{Sequence, intent_time_ms},
    publisher::{
        durable::Latch,
        log::{CommitError, Entry, LogReader, OpenError, ReadError},
    },
};

/// Entries read in one go while catching up with the log.
const SCAN_ENTRIES: usize = 4_096;
const SCAN_BYTES: usize = 1024 * 1024;

/// Opens the receipts of a log, up to date with it. The latch is the directory's.
///
/// # Errors
/// [`OpenError`]: some are damaged or missing, which is told before anything changes.
pub fn open(
    dir: &Path,
    mut latch: Latch,
    log: &dyn LogReader,
) -> Result<(Shared, Store), OpenError> {
    let listed = |error| OpenError::io("list", dir, error);
    File::open(dir).and_then(|names| latch.barrier(&names)).map_err(listed)?;

    let retired = retired::list(dir)?;
    let manifest = load_manifest(dir, log)?;
    let new = manifest.is_none();
    let manifest = manifest.unwrap_or_else(|| Manifest::new(log.extent().log_id));
    let mut receipts = Receipts::new(dir.to_owned(), manifest);
    load(&mut receipts)?;
    check_reach(&receipts, &retired, log)?;

    let mut store = Store::new(dir.to_owned(), latch);
    if new {
        // Before the first file, so that one without a manifest has lost it.
        store.write(&receipts.manifest).map_err(|error| failed(dir, error))?;
    }
    remove_unnamed(dir, &receipts.manifest)?;
    let receipts = Arc::new(RwLock::new(receipts));
    import(dir, &retired, &receipts, &mut store)?;
    catch_up(dir, log, &receipts, &mut store)?;
    Ok((receipts, store))
}

/// The manifest of a log, if it has one.
fn load_manifest(dir: &Path, log: &dyn LogReader) -> Result<Option<Manifest>, OpenError> {
    let extent = log.extent();
    let damaged = |what: String| OpenError::Damaged {
        path: dir.join(manifest::FILE).display().to_string(),
        what: format!("{what}; {}", file::way_out(dir)),
    };
    match manifest::read(dir)? {
        None if !file::list(dir)?.is_empty() => {
            Err(damaged("it is missing, and there are files of receipts".to_owned()))
        }
        Some(manifest) if !log.covers(manifest.log_id) => {
            Err(damaged("it belongs to another log".to_owned()))
        }
        Some(manifest) if manifest.position() > extent.next => Err(damaged(format!(
            "it names receipts up to {}, and the log ends at {}",
            manifest.position() - 1,
            extent.next - 1
        ))),
        manifest => Ok(manifest),
    }
}

/// Every event from the position on has to be there still, in the log or as format 1
/// left its receipt.
fn check_reach(
    receipts: &Receipts,
    retired: &[(Sequence, PathBuf)],
    log: &dyn LogReader,
) -> Result<(), OpenError> {
    let dir = &receipts.dir;
    let mut position = receipts.position();
    for (first, path) in retired {
        let end = first + retired::read(*first, path)?.len() as Sequence;
        if (*first..end).contains(&position) {
            position = end;
        }
    }
    match log.read_stored(position, 1, 0) {
        Ok(_) => Ok(()),
        Err(ReadError::Truncated { asked, floor }) => Err(OpenError::Corrupt {
            path: dir.display().to_string(),
            sequence: asked,
            what: format!(
                "the receipts of {asked} to {} are missing; {}",
                floor - 1,
                file::way_out(dir)
            ),
        }),
        Err(error) => Err(unreadable(dir, error)),
    }
}

/// Removes receipts files that a manifest does not name.
///
/// # Errors
/// [`OpenError::Io`].
fn remove_unnamed(dir: &Path, manifest: &Manifest) -> Result<(), OpenError> {
    let named: HashSet<_> =
        manifest.parts.iter().map(|part| (part.first, part.generation)).collect();
    for found in file::list(dir)? {
        if !named.contains(&(found.first, found.generation)) {
            fs::remove_file(&found.path)
                .map_err(|error| OpenError::io("remove", &found.path, error))?;
        }
    }
    Ok(())
}

/// Keeps what format 1 left in files of this one.
fn import(
    dir: &Path,
    retired: &[(Sequence, PathBuf)],
    receipts: &RwLock<Receipts>,
    store: &mut Store,
) -> Result<(), OpenError> {
    for (first, path) in retired {
        let next = look(receipts).next();
        // What lies beyond a hole is in the log, too.
        if *first > next {
            break;
        }
        for (names, accepted) in retired::read(*first, path)? {
            if accepted.sequence >= next {
                change(receipts).insert(names, accepted);
            }
        }
        store.save_if_many(receipts).map_err(|error| failed(dir, error))?;
    }
    if !retired.is_empty() {
        store.save(receipts).map_err(|error| failed(dir, error))?;
    }
    for (_, path) in retired {
        fs::remove_file(path).map_err(|error| OpenError::io("remove", path, error))?;
    }
    Ok(())
}

/// Takes note of what the log holds beyond the files.
fn catch_up(
    dir: &Path,
    log: &dyn LogReader,
    receipts: &RwLock<Receipts>,
    store: &mut Store,
) -> Result<(), OpenError> {
    loop {
        let from = look(receipts).next();
        let entries = log
            .read_stored(from, SCAN_ENTRIES, SCAN_BYTES)
            .map_err(|error| unreadable(dir, error))?;
        if entries.is_empty() {
            return Ok(());
        }
        for (sequence, entry) in (from..).zip(&entries) {
            let (names, accepted) = row(sequence, entry).map_err(|what| OpenError::Corrupt {
                path: dir.display().to_string(),
                sequence,
                what: what.to_owned(),
            })?;
            change(receipts).insert(names, accepted);
        }
        match store.save_if_many(receipts) {
            // They wait in memory, and in the log.
            Ok(()) | Err(CommitError::DiskFull) => {}
            Err(error) => return Err(failed(dir, error)),
        }
    }
}

/// The receipt of a stored event.
///
/// # Errors
/// What is wrong with its bytes.
pub fn row(sequence: Sequence, entry: &Entry) -> Result<Row, &'static str> {
    let stored = fold::stored(&entry.body)?;
    let time_ms = intent_time_ms(stored.key, stored.first_attempt_time);
    let accepted = Accepted {
        sequence,
        subject_version: stored.subject_version,
        fingerprint: stored.fingerprint,
        accepted_at_ms: entry.accepted_at_ms,
        time_ms,
    };
    Ok((Names::of(stored.key, stored.subject, time_ms), accepted))
}

/// An error of the log's, about its receipts.
pub fn unreadable(dir: &Path, error: ReadError) -> OpenError {
    match error {
        ReadError::Io(source) => OpenError::io("read the log in", dir, source),
        other => OpenError::Damaged { path: dir.display().to_string(), what: other.to_string() },
    }
}

/// An error of the store's, about what it should have saved.
pub fn failed(dir: &Path, error: CommitError) -> OpenError {
    OpenError::io("save the receipts in", dir, std::io::Error::other(error))
}
