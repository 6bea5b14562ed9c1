//! Forgetting receipts below the key floor, and keeping the number of their files
//! small: files are written anew with less in them, or several as one.

use std::{collections::HashMap, fs, ops::Range, sync::RwLock};

use super::{
    Accepted, Receipts, change, file,
    fold::Hash,
    format::Content,
    look,
    manifest::{Manifest, Part},
    store::{Disk, FLUSH_ROWS},
};
use crate::{
    proto::{crash, event::Sequence},
    publisher::{
        durable,
        log::{CommitError, OpenError},
    },
};

/// Files that are written anew in one go, at most: after a step of the clock all of
/// them may have something to forget, and publishers wait meanwhile.
const FORGET_PARTS: usize = 8;
/// So many neighbours, at least, are made one when they fit one file together: a log
/// that has forgotten nearly everything has few files all the same.
const MERGE_PARTS: usize = 16;
/// What a file costs by itself, in rows. So small ones count as equals, and no more than
/// 64 are read in one go.
const FILE_WEIGHT: u64 = 512;
/// What one file of several may weigh: so long publishers wait for it.
const MERGED_WEIGHT: u64 = FLUSH_ROWS as u64;
/// None of the neighbours weighs more than this part of all: what is written anew gets
/// several times larger by it, so that it is not written anew often.
const LARGEST_PART: u64 = 4;

impl Disk {
    /// Forgets what has expired in some files, or else makes one of many small ones.
    pub(super) fn forget(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        for _ in 0..FORGET_PARTS {
            if !self.forget_one(receipts)? {
                return self.merge_some(receipts);
            }
        }
        Ok(())
    }

    /// Forgets what has expired in the first file that has only such receipts beside
    /// those that are kept for ever. Says whether there was one.
    fn forget_one(&mut self, receipts: &RwLock<Receipts>) -> Result<bool, CommitError> {
        let (at, part) = {
            let receipts = look(receipts);
            let floor_ms = receipts.key_floor_ms();
            let expired = |part: &Part| {
                part.newest_ms.is_some_and(|newest_ms| newest_ms < floor_ms)
                    && !self.unreadable.contains(&part.first)
            };
            match receipts.manifest.parts.iter().position(expired) {
                Some(at) => (at, receipts.manifest.parts[at].clone()),
                None => return Ok(false),
            }
        };
        let Some(mut content) = self.read(&part) else { return Ok(true) };
        let timed = |(_, accepted): &mut (Hash, Accepted)| accepted.time_ms.is_some();
        let forgotten = content.receipts.extract_if(.., timed).collect::<Vec<_>>();
        content.header.rows = content.receipts.len() as u64;
        self.supersede(at..at + 1, content, &forgotten, receipts)?;
        Ok(true)
    }

    /// Makes one file of many small neighbours, where there are some.
    fn merge_some(&mut self, receipts: &RwLock<Receipts>) -> Result<(), CommitError> {
        let (at, parts) = {
            let parts = &look(receipts).manifest.parts;
            match light_neighbours(parts, &self.unreadable) {
                Some(at) => (at.clone(), parts[at].to_vec()),
                None => return Ok(()),
            }
        };
        let Some(contents) = parts.iter().map(|part| self.read(part)).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        match merged(contents) {
            Some(content) => self.supersede(at, content, &[], receipts),
            None => Ok(()),
        }
    }

    /// Reads what is to be written anew. A file that cannot be read is left alone:
    /// whoever asks for a receipt in it is told.
    fn read(&mut self, part: &Part) -> Option<Content> {
        match file::read(&file::path(&self.dir, part.first, part.generation)) {
            Ok(content) if part.matches(&content.header) => Some(content),
            // It is tried again.
            Err(OpenError::Io { source, .. }) if durable::has_run_out(&source) => None,
            other => {
                let why = other.map(|_| "it is another file".to_owned());
                let why = why.unwrap_or_else(|error: OpenError| error.to_string());
                tracing::error!(first = part.first, why, "receipts cannot be read");
                self.unreadable.push(part.first);
                None
            }
        }
    }

    /// Puts a file in the place of some parts.
    fn supersede(
        &mut self,
        at: Range<usize>,
        mut content: Content,
        forgotten: &[(Hash, Accepted)],
        receipts: &RwLock<Receipts>,
    ) -> Result<(), CommitError> {
        let mut manifest = look(receipts).manifest.clone();
        content.header.key_floor_ms = manifest.key_floor_ms;
        content.header.clock_ms = manifest.clock_ms;
        let generation =
            manifest.parts[at.clone()].iter().map(|part| part.generation).max().unwrap_or(0) + 1;
        let part = self.add(&content, generation)?;
        let superseded: Vec<Part> = manifest.parts.splice(at, [part]).collect();
        self.write(&manifest)?;
        crash::point(crash::PUBLISHER_AFTER_FORGET);
        change(receipts).superseded(manifest, forgotten);
        // Nobody looks them up any more; the change above has waited for who did. What
        // stays is named nowhere, and removed when the log is opened.
        for part in superseded {
            let path = file::path(&self.dir, part.first, part.generation);
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(%error, path = %path.display(), "old receipts are not removed");
            }
        }
        Ok(())
    }
}

impl Receipts {
    /// Some parts have others in their place, without some receipts.
    fn superseded(&mut self, manifest: Manifest, forgotten: &[(Hash, Accepted)]) {
        for (key, accepted) in forgotten {
            self.index.remove(key, accepted.sequence);
        }
        self.manifest = manifest;
    }
}

/// The first neighbours that are worth being made one, if there are some: enough of
/// them, none much heavier than the others, and light enough together.
fn light_neighbours(parts: &[Part], except: &[Sequence]) -> Option<Range<usize>> {
    (0..parts.len()).find_map(|start| {
        let (mut together, mut largest, mut found) = (0, 0, None);
        for (end, part) in (start + 1..).zip(&parts[start..]) {
            let weight = FILE_WEIGHT + part.rows + part.subjects;
            together += weight;
            largest = largest.max(weight);
            if together > MERGED_WEIGHT || except.contains(&part.first) {
                break;
            }
            if end - start >= MERGE_PARTS && largest * LARGEST_PART <= together {
                found = Some(start..end);
            }
        }
        found
    })
}

/// One file out of neighbours; None where there are none.
fn merged(contents: Vec<Content>) -> Option<Content> {
    let mut header = contents.first()?.header;
    let mut receipts = Vec::new();
    let mut subjects = HashMap::new();
    for content in contents {
        header.end = content.header.end;
        header.oldest_stated_ms = header.oldest_stated_ms.min(content.header.oldest_stated_ms);
        receipts.extend(content.receipts);
        // Versions rise, so the last is the largest.
        subjects.extend(content.subjects);
    }
    header.rows = receipts.len() as u64;
    header.subjects = subjects.len() as u64;
    Some(Content { header, receipts, subjects: subjects.into_iter().collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of so many rows and subjects.
    fn part(first: Sequence, (rows, subjects): (u64, u64)) -> Part {
        Part { first, end: first + 1, rows, subjects, newest_ms: None, generation: 0 }
    }

    /// Neighbours with so many rows each; `except` holds their numbers.
    fn run(rows: &[u64], except: &[Sequence]) -> Option<Range<usize>> {
        let parts: Vec<_> = (0..).zip(rows).map(|(n, &rows)| part(n, (rows, 0))).collect();
        light_neighbours(&parts, except)
    }

    #[test]
    fn neighbours_are_made_one_when_there_are_many_and_they_fit() {
        const FULL: u64 = FLUSH_ROWS as u64;
        const FIT: u64 = FULL / 16 - FILE_WEIGHT;
        let small = [1; MERGE_PARTS];
        assert_eq!(run(&[], &[]), None);
        assert_eq!(run(&small[1..], &[]), None, "too few");
        assert_eq!(run(&small, &[]), Some(0..16));
        assert_eq!(run(&[0; 40], &[]), Some(0..40));
        assert_eq!(run(&[0; 100], &[]), Some(0..64), "no more in one go");
        assert_eq!(run(&[&[FULL][..], &small].concat(), &[]), Some(1..17));
        assert_eq!(run(&[&[FULL / 2][..], &small].concat(), &[]), Some(1..17), "much heavier");
        assert_eq!(run(&[&small[..], &[FULL]].concat(), &[]), Some(0..16));
        assert_eq!(run(&[&small[1..], &[FULL], &small[1..]].concat(), &[]), None);
        assert_eq!(run(&[FIT; 20], &[]), Some(0..16), "they just fit");
        assert_eq!(run(&[FIT + 1; 20], &[]), None, "too large together");
        assert_eq!(run(&[0; 20], &[3]), Some(4..20), "one cannot be read");
        assert_eq!(run(&[0; 20], &[16]), Some(0..16), "what lies before it is made one");
        assert_eq!(run(&[0; 20], &[10]), None);
    }

    /// Files that come one by one, of which all receipts have been forgotten.
    #[test]
    fn subjects_are_written_anew_few_times_however_many_there_are() {
        for each in [1, 10, 100, 1_000] {
            const FILES: u64 = 5_000;
            let (mut parts, mut rewritten) = (Vec::new(), 0);
            for n in 0..FILES {
                parts.push(part(n as Sequence, (0, each)));
                while let Some(at) = light_neighbours(&parts, &[]) {
                    let subjects = parts[at.clone()].iter().map(|part| part.subjects).sum();
                    rewritten += subjects;
                    let one = part(parts[at.start].first, (0, subjects));
                    parts.splice(at, [one]);
                }
            }
            let total = FILES * each;
            assert_eq!(parts.iter().map(|part| part.subjects).sum::<u64>(), total);
            // A file weighs at most 64 times what the lightest does: a few steps of at
            // least 4 each, and what small files cost by themselves.
            let bound = 4 * (total + FILES * FILE_WEIGHT);
            assert!(rewritten <= bound, "{each}: {rewritten} of {total}");
            let heavy = total / (MERGED_WEIGHT / MERGE_PARTS as u64 - FILE_WEIGHT);
            assert!(parts.len() as u64 <= 4 * MERGE_PARTS as u64 + heavy, "{} files", parts.len());
        }
    }
}
