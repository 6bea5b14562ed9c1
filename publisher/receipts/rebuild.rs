//! Makes the receipts of a log anew, after their files have been damaged or lost:
//! from the events that the log still stores, and from what is whole of the files.

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
};

use super::{
    file,
    format::{Content, Header, Key},
    look,
    manifest::{self, Manifest, Part},
    open::{self, open},
    retired,
};
use crate::{
    proto::{
        event::{Sequence, duration_millis},
        limits::MAX_CLOCK_LEAD,
    },
    publisher::{
        clock::Clock,
        durable::{self, Latch},
        log::{LogReader, OpenError, ReadError},
    },
};

/// What a rebuild did.
#[derive(Debug)]
pub struct Rebuilt {
    /// Receipts that are held now.
    pub receipts: u64,
    /// Files with damage, under the names they have now.
    pub set_aside: Vec<PathBuf>,
    /// Truncated events whose receipts are lost; they count as expired.
    pub lost: Vec<Range<Sequence>>,
    /// The list of the files was damaged or missing, and with it the key floor: it is
    /// where it was when the newest of the files was made.
    pub list_lost: bool,
    /// No receipt is found of intents from before this time, milliseconds since the Unix epoch.
    pub key_floor_ms: i64,
}

/// Rebuilds the receipts of a log that nobody else uses. With `forget_truncated`,
/// receipts that are lost count as expired.
///
/// # Errors
/// [`OpenError`]: without `forget_truncated` also for lost receipts of truncated
/// events. Nothing has changed then.
pub fn rebuild(
    dir: &Path,
    latch: Latch,
    log: &dyn LogReader,
    forget_truncated: bool,
) -> Result<Rebuilt, OpenError> {
    let Whole { known, files, damaged } = whole(dir, log)?;
    let list_lost = known.is_none() && !(files.is_empty() && damaged.is_empty());
    let mut manifest = scalars(log, known, &files);
    let first_stored = first_stored(dir, log)?;
    let mut tiles = tile(first_stored, &files);
    let not_taken_over = retired_ranges(dir)?;
    let stands_elsewhere = |tile: &Tile<'_>| match tile {
        Tile::Lost(range) => not_taken_over.iter().any(|held| held.contains(&range.start)),
        Tile::File(_) => false,
    };
    if let Some(from) = tiles.iter().position(stands_elsewhere) {
        tiles.truncate(from);
    }
    let lost: Vec<_> = tiles.iter().flat_map(|tile| tile.lost(first_stored)).collect();
    if !lost.is_empty() {
        if !forget_truncated {
            return Err(refused(dir, &lost));
        }
        let newest_ms = newest_lost_ms(dir, log, &tiles, manifest.clock_ms)?;
        manifest.key_floor_ms = manifest.key_floor_ms.max(newest_ms.saturating_add(1));
        // One of them may have been of any key.
        manifest.oldest_stated_ms = i64::MIN;
    }

    let mut set_aside: Vec<_> = damaged.into_iter().map(aside).collect::<Result<_, _>>()?;
    for tile in tiles {
        let part = match tile {
            Tile::File(file) if file.damaged.is_empty() => file.part.clone(),
            Tile::File(file) => {
                // What is whole of it is kept elsewhere before it goes.
                let (path, part) = mended(dir, &manifest, file, log)?;
                set_aside.push(aside(path)?);
                part
            }
            Tile::Lost(range) => forgotten(dir, &manifest, range)?,
        };
        manifest.parts.push(part);
    }
    let path = dir.join(manifest::FILE);
    durable::replace(&path, &manifest.encode())
        .map_err(|error| OpenError::io("write", &path, error))?;
    let (receipts, mut store) = open(dir, latch, log)?;
    store.save(&receipts).map_err(|error| open::failed(dir, error))?;
    let (receipts, key_floor_ms) = (look(&receipts).keys(), manifest.key_floor_ms);
    Ok(Rebuilt { receipts, set_aside, lost, list_lost, key_floor_ms })
}

struct Whole {
    /// What the list says.
    known: Option<Manifest>,
    files: Files,
    /// What cannot be used.
    damaged: Vec<PathBuf>,
}

/// By first sequence, of each the newest.
type Files = BTreeMap<Sequence, Usable>;

/// A file that can be used.
struct Usable {
    header: Header,
    part: Part,
    /// Of receipts in it that cannot.
    damaged: Vec<Key>,
}

/// Tells the files that can be used from those that cannot.
fn whole(dir: &Path, log: &dyn LogReader) -> Result<Whole, OpenError> {
    let extent = log.extent();
    let mut whole = Whole { known: None, files: BTreeMap::new(), damaged: Vec::new() };
    for found in file::list(dir)? {
        match file::salvage(&found.path) {
            Ok((content, damaged))
                if log.covers(content.header.log_id)
                    && content.header.first == found.first
                    && content.header.end <= extent.next =>
            {
                // Generations come in rising order.
                let part = Part::of(&content, found.generation);
                whole.files.insert(found.first, Usable { header: content.header, part, damaged });
            }
            Err(error @ (OpenError::Io { .. } | OpenError::Format(_))) => return Err(error),
            Ok(_) | Err(_) => whole.damaged.push(found.path),
        }
    }
    match manifest::read(dir) {
        Ok(known) => whole.known = known.filter(|known| log.covers(known.log_id)),
        Err(error @ (OpenError::Io { .. } | OpenError::Format(_))) => return Err(error),
        Err(_) => whole.damaged.push(dir.join(manifest::FILE)),
    }
    Ok(whole)
}

/// What is known beside the files: each of them has it as it was when it was made.
fn scalars(log: &dyn LogReader, known: Option<Manifest>, files: &Files) -> Manifest {
    // Receipts keep the identity that the log had when the first of them was saved.
    let saved = files.values().next().map(|file| file.header.log_id);
    let log_id = saved.unwrap_or(log.extent().log_id);
    let mut manifest = known
        .map_or_else(|| Manifest::new(log_id), |known| Manifest { parts: Vec::new(), ..known });
    for Usable { header, .. } in files.values() {
        manifest.key_floor_ms = manifest.key_floor_ms.max(header.key_floor_ms);
        manifest.clock_ms = manifest.clock_ms.max(header.clock_ms);
        manifest.oldest_stated_ms = manifest.oldest_stated_ms.min(header.oldest_stated_ms);
    }
    manifest
}

/// What stands for a range of truncated events.
enum Tile<'a> {
    File(&'a Usable),
    Lost(Range<Sequence>),
}

impl Tile<'_> {
    /// What is lost of the events that are not stored any more.
    fn lost(&self, first_stored: Sequence) -> Vec<Range<Sequence>> {
        match self {
            Tile::Lost(range) => vec![range.clone()],
            Tile::File(file) => {
                let damaged = file.damaged.iter().map(|key| key.sequence);
                let lost = damaged.filter(|&sequence| sequence < first_stored);
                lost.map(|sequence| sequence..sequence + 1).collect()
            }
        }
    }
}

/// What stands for each truncated event. The receipts of stored events need no file.
fn tile(first_stored: Sequence, files: &Files) -> Vec<Tile<'_>> {
    let mut tiles = Vec::new();
    let mut position = 0;
    while position < first_stored {
        if let Some(file) = files.get(&position) {
            position = file.part.end;
            tiles.push(Tile::File(file));
        } else {
            let next = files.range(position..first_stored).next().map(|(first, _)| *first);
            let hole = position..next.unwrap_or(first_stored);
            position = hole.end;
            tiles.push(Tile::Lost(hole));
        }
    }
    tiles
}

/// What stands in files of format 1, of which some may have been taken over already.
fn retired_ranges(dir: &Path) -> Result<Vec<Range<Sequence>>, OpenError> {
    let files = retired::list(dir)?.into_iter();
    let range = |(first, path): (Sequence, PathBuf)| {
        Ok(first..first + retired::read(first, &path)?.len() as Sequence)
    };
    files.map(range).collect()
}

/// The oldest sequence that the log still stores; its end where there is none.
fn first_stored(dir: &Path, log: &dyn LogReader) -> Result<Sequence, OpenError> {
    match log.read_stored(0, 1, 0) {
        Ok(_) => Ok(0),
        Err(ReadError::Truncated { floor, .. }) => Ok(floor),
        Err(error) => Err(open::unreadable(dir, error)),
    }
}

/// No lost event's intent is newer. Of a damaged receipt the time is known; any other
/// was accepted before the oldest event that is stored, or else before now by a clock
/// that never goes back, and could lie so far ahead then.
fn newest_lost_ms(
    dir: &Path,
    log: &dyn LogReader,
    tiles: &[Tile<'_>],
    clock_ms: i64,
) -> Result<i64, OpenError> {
    if !tiles.iter().any(|tile| matches!(tile, Tile::Lost(_))) {
        let damaged = tiles.iter().flat_map(|tile| match tile {
            Tile::File(file) => &file.damaged[..],
            Tile::Lost(_) => &[],
        });
        return Ok(damaged.filter_map(|key| key.time_ms).max().unwrap_or(i64::MIN));
    }
    let stored = log
        .read_stored(first_stored(dir, log)?, 1, 0)
        .map_err(|error| open::unreadable(dir, error))?;
    let accepted_at_ms = stored
        .first()
        .map_or_else(|| Clock::after(clock_ms).now_ms(), |entry| entry.accepted_at_ms);
    Ok(accepted_at_ms.saturating_add(duration_millis(MAX_CLOCK_LEAD)))
}

/// A file that says that nothing is known of a range.
fn forgotten(dir: &Path, manifest: &Manifest, range: Range<Sequence>) -> Result<Part, OpenError> {
    let header = Header {
        log_id: manifest.log_id,
        first: range.start,
        end: range.end,
        rows: 0,
        subjects: 0,
        key_floor_ms: manifest.key_floor_ms,
        clock_ms: manifest.clock_ms,
        oldest_stated_ms: manifest.oldest_stated_ms,
    };
    let content = Content { header, receipts: Vec::new(), subjects: Vec::new() };
    write(dir, &content, 0)
}

/// Writes a file anew without its damaged receipts, but with those of them that the log
/// still tells. Gives the path of the old one, too.
fn mended(
    dir: &Path,
    manifest: &Manifest,
    file: &Usable,
    log: &dyn LogReader,
) -> Result<(PathBuf, Part), OpenError> {
    let old = file::path(dir, file.part.first, file.part.generation);
    let (mut content, damaged) = file::salvage(&old)?;
    for Key { sequence, .. } in damaged {
        match log.read_stored(sequence, 1, 0) {
            Ok(entries) => {
                let rows = entries.iter().map(|entry| open::row(sequence, entry));
                let rows = rows.collect::<Result<Vec<_>, _>>().map_err(|what| {
                    let path = dir.display().to_string();
                    OpenError::Corrupt { path, sequence, what: what.to_owned() }
                })?;
                content.receipts.extend(rows.into_iter().map(|(names, row)| (names.key, row)));
            }
            Err(ReadError::Truncated { .. }) => {}
            Err(error) => return Err(open::unreadable(dir, error)),
        }
    }
    content.receipts.sort_unstable_by_key(|(_, accepted)| accepted.sequence);
    content.header = Header {
        rows: content.receipts.len() as u64,
        key_floor_ms: manifest.key_floor_ms,
        clock_ms: manifest.clock_ms,
        oldest_stated_ms: manifest.oldest_stated_ms,
        ..content.header
    };
    Ok((old, write(dir, &content, file.part.generation + 1)?))
}

/// Writes a file of receipts, durably.
fn write(dir: &Path, content: &Content, generation: u64) -> Result<Part, OpenError> {
    let path = file::path(dir, content.header.first, generation);
    durable::replace(&path, &content.encode())
        .map_err(|error| OpenError::io("write", &path, error))?;
    Ok(Part::of(content, generation))
}

/// What is damaged is kept under a name that is not looked at.
fn aside(path: PathBuf) -> Result<PathBuf, OpenError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let aside = (0..)
        .map(|n| match n {
            0 => path.with_file_name(format!("damaged-{name}")),
            _ => path.with_file_name(format!("damaged-{n}-{name}")),
        })
        .find(|aside| !aside.exists())
        .expect("one of endless names is free");
    fs::rename(&path, &aside).map_err(|error| OpenError::io("rename", &path, error))?;
    Ok(aside)
}

fn refused(dir: &Path, lost: &[Range<Sequence>]) -> OpenError {
    let count: Sequence = lost.iter().map(|range| range.end - range.start).sum();
    let ranges: Vec<_> =
        lost.iter().map(|range| format!("{} to {}", range.start, range.end - 1)).collect();
    OpenError::Corrupt {
        path: dir.display().to_string(),
        sequence: lost.first().map_or(0, |range| range.start),
        what: format!(
            "the receipts of {count} truncated events are lost ({}); restore the directory from a \
             copy, or run this again with --forget-truncated, after which late retries of their \
             keys are refused as expired, those of keys without a time are executed as new, and \
             subjects without later events start again at version 0",
            ranges.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(first: Sequence, end: Sequence) -> (Sequence, Usable) {
        let content = super::super::format::tests::content(first, end, Vec::new());
        let part = Part::of(&content, 0);
        (first, Usable { header: content.header, part, damaged: Vec::new() })
    }

    #[test]
    fn what_is_lost_lies_below_the_oldest_stored_event() {
        let cases = [
            ("nothing truncated", 0, vec![], None),
            ("files of stored events are not needed", 0, vec![(0, 3)], None),
            ("all there", 6, vec![(0, 3), (3, 6)], None),
            ("one reaches into the log", 5, vec![(0, 3), (3, 8)], None),
            ("none", 6, vec![], Some((0, 6))),
            ("the first", 6, vec![(3, 6)], Some((0, 3))),
            ("in the middle", 9, vec![(0, 3), (6, 9)], Some((3, 6))),
            ("the last", 9, vec![(0, 3)], Some((3, 9))),
            ("beyond the last truncated", 4, vec![(0, 3), (6, 9)], Some((3, 4))),
        ];
        for (case, first_stored, files, expected) in cases {
            let files: Files = files.into_iter().map(|(first, end)| file(first, end)).collect();
            let tiles = tile(first_stored, &files);
            let lost = tiles.iter().flat_map(|tile| tile.lost(first_stored));
            let lost: Vec<_> = lost.map(|range| (range.start, range.end)).collect();
            assert_eq!(lost, Vec::from_iter(expected), "{case}");
            let end = tiles.last().map_or(0, |tile| match tile {
                Tile::File(file) => file.part.end,
                Tile::Lost(range) => range.end,
            });
            assert!(end >= first_stored, "{case}");
        }
    }
}
