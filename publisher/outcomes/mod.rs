//! What receivers have reported of each event, kept as long as the event's
//! receipt. Decides nothing; which receivers have reported how far is kept by
//! the [positions](super::positions).
//!
//! ```text
//!   block 0          block 16384      block 32768
//!   [ 0.outcomes   ] (no file)        [ 32768.outcomes ]
//!                                              ^ reported
//! ```
//! A block of whose events nothing but plain APPLIED was reported has no file.
//!
//! What is written here comes before the position that moves `reported` over it:
//! a frame that nobody was answered for speaks of sequences that are not looked
//! up yet, and is repeated before they are.
//!
//! A damaged file is a loss that receivers make good from their ledgers. It is set
//! aside once every receiver's `reported` stands below its block, not before:
//! without the file, what had been reported there would look like plain APPLIED.

mod block;
mod reader;

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    ops::Range,
    path::Path,
};

use self::block::{BLOCK, FORMAT, Said, first_of, path};
pub use self::reader::Reader;
use super::{
    durable::{self, Latch, has_run_out},
    journal::{self, Journal},
    log::{CommitError, OpenError},
};
use crate::proto::{
    crash,
    event::Sequence,
    outcome::{Report, Reported},
};

/// Files that are held open for writing. Each receiver writes to one, seldom two.
const MOST_OPEN: usize = 16;

/// Blocks in which one report may have something to say. Each may be a file to
/// read, and all receivers wait for the thread that does it.
const MOST_BLOCKS: usize = 8;

/// Bytes that may wait for being written to one file.
const MOST_WAITING: usize = 4 * 1024 * 1024;

/// All outcomes of one log. One owner; blocking.
#[derive(Debug)]
pub struct Outcomes {
    reader: Reader,
    latch: Latch,
    /// The files being written, the one used last at the end.
    open: Vec<Open>,
    /// Blocks whose files are damaged and stand in their places yet.
    damaged: BTreeSet<Sequence>,
    /// Files have been added since the last [sweep](Outcomes::sweep).
    grown: bool,
}

/// A file that is being written.
#[derive(Debug)]
struct Open {
    first: Sequence,
    journal: Journal,
    /// Up to where something is said for each receiver; at least as far as it is.
    said: HashMap<String, Sequence>,
    /// What is not written yet: the body of the next frame.
    waiting: Vec<u8>,
}

/// Why a file is not open for writing.
enum Closed {
    /// It cannot be written.
    Unwritable(CommitError),
    /// It cannot be read.
    Unreadable(OpenError),
}

impl From<CommitError> for Closed {
    fn from(error: CommitError) -> Self {
        Closed::Unwritable(error)
    }
}

impl Outcomes {
    /// Finds what a directory keeps. Files are opened once they are needed.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(dir: &Path, latch: Latch) -> Result<Self, OpenError> {
        let firsts = block::list(dir).map_err(|error| OpenError::io("list", dir, error))?;
        let reader = Reader::of_files(dir, firsts);
        Ok(Outcomes { reader, latch, open: Vec::new(), damaged: BTreeSet::new(), grown: true })
    }

    /// A reading side.
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Takes a report of the sequences above `after`; what it says of others is
    /// left out. Answers up to where: a report of many blocks is taken in part, and
    /// one of a block that cannot be read as far as that. It is kept once
    /// [`Outcomes::commit`] has returned.
    ///
    /// # Errors
    /// [`CommitError`]; what of it has been taken does no harm.
    pub fn add(
        &mut self,
        receiver: &str,
        after: Sequence,
        report: &Report,
    ) -> Result<Sequence, CommitError> {
        let spoken_of = after + 1..report.through + 1;
        for (place, first) in self.blocks(&spoken_of, report).into_iter().enumerate() {
            let part = spoken_of.start.max(first)..spoken_of.end.min(first + BLOCK);
            if place == MOST_BLOCKS {
                return Ok(part.start - 1);
            }
            let rows = within(&report.outcomes, &part);
            let file = match self.file(first) {
                Ok(file) => file,
                Err(Closed::Unwritable(error)) => return Err(error),
                Err(Closed::Unreadable(error)) => {
                    self.unreadable(first, &error);
                    return Ok(part.start - 1);
                }
            };
            let last = part.end - 1;
            let said = file.said.get(receiver).copied().unwrap_or(-1);
            // Nothing to say, unless something else has been said before: that was
            // done by a database which has since been put back.
            if rows.is_empty() && said < part.start {
                continue;
            }
            Said::put(&mut file.waiting, receiver, part.start - 1, last, rows);
            file.said.insert(receiver.to_owned(), said.max(last));
            if file.waiting.len() > MOST_WAITING {
                self.write()?;
            }
        }
        Ok(after.max(report.through))
    }

    /// Reads the file of a block that somebody could not read.
    pub fn inspect(&mut self, sequence: Sequence) {
        let first = first_of(sequence);
        if let Err(error) = self.reader.read(first, |_| Some(())) {
            self.unreadable(first, &error);
        }
    }

    fn unreadable(&mut self, first: Sequence, error: &OpenError) {
        tracing::error!(first, "outcomes cannot be read: {error}");
        if matches!(error, OpenError::Damaged { .. }) {
            self.damaged.insert(first);
        }
    }

    /// From here on outcomes are to be reported again, since a file is damaged.
    pub fn lost_from(&self) -> Option<Sequence> {
        self.damaged.first().copied()
    }

    /// Sets damaged files aside. Called once no receiver's `reported` reaches
    /// [`Outcomes::lost_from`], durably; repeated after it has failed.
    ///
    /// # Errors
    /// [`CommitError`].
    pub fn set_aside(&mut self) -> Result<(), CommitError> {
        while let Some(&first) = self.damaged.first() {
            self.latch.check()?;
            self.open.retain(|file| file.first != first);
            let (from, to) =
                (path(self.reader.dir(), first), block::aside(self.reader.dir(), first));
            fs::rename(&from, &to)
                .and_then(|()| durable::sync_dir(self.reader.dir()))
                .map_err(|error| self.latch.judge("setting damaged outcomes aside", &error))?;
            tracing::warn!(
                first,
                "damaged outcomes are kept as {}; receivers report again",
                to.display()
            );
            self.reader.forget(first);
            self.damaged.remove(&first);
        }
        Ok(())
    }

    /// The blocks in whose files something may have to be said: where there are
    /// outcomes, and where there is a file.
    fn blocks(&self, spoken_of: &Range<Sequence>, report: &Report) -> BTreeSet<Sequence> {
        if spoken_of.is_empty() {
            return BTreeSet::new();
        }
        let rows = within(&report.outcomes, spoken_of);
        let with_outcomes = rows.iter().map(|row| first_of(row.sequence));
        let with_file = self.reader.blocks(first_of(spoken_of.start)..spoken_of.end);
        with_outcomes.chain(with_file).collect()
    }

    /// Makes all that has been taken durable: one frame and one sync a file.
    ///
    /// # Errors
    /// [`CommitError`]; then what has been taken is given up.
    pub fn commit(&mut self) -> Result<(), CommitError> {
        let written = self.write();
        for file in &mut self.open {
            file.waiting.clear();
        }
        written
    }

    fn write(&mut self) -> Result<(), CommitError> {
        self.latch.check()?;
        let mut wrote = false;
        for file in self.open.iter_mut().filter(|file| !file.waiting.is_empty()) {
            let mut frame = Vec::new();
            FORMAT.frame(&mut frame, |out| out.extend_from_slice(&file.waiting));
            file.journal.append(&frame, &mut self.latch)?;
            file.waiting.clear();
            self.reader.note(file.first, Some(file.journal.length()));
            wrote = true;
        }
        if wrote {
            crash::point(crash::PUBLISHER_AFTER_OUTCOMES);
        }
        Ok(())
    }

    /// Removes the files of blocks that are not held any more: no receipt is left
    /// of their events, nor will there be one. Looks only once files have been
    /// added, and when first called: else there is no need for their room.
    pub fn sweep(&mut self, held: impl Fn(Range<Sequence>) -> bool) {
        if !std::mem::take(&mut self.grown) {
            return;
        }
        let blocks = self.reader.blocks(0..Sequence::MAX);
        for first in blocks.into_iter().filter(|&first| !held(first..first + BLOCK)) {
            self.open.retain(|file| file.first != first);
            self.reader.forget(first);
            // A file that is back after a power cut is found at the next start.
            if let Err(error) = fs::remove_file(path(self.reader.dir(), first)) {
                tracing::warn!(%error, first, "outcomes without receipts cannot be removed");
            }
        }
    }

    /// The file of a block, open for writing.
    fn file(&mut self, first: Sequence) -> Result<&mut Open, Closed> {
        match self.open.iter().position(|file| file.first == first) {
            Some(place) => {
                let file = self.open.remove(place);
                self.open.push(file);
            }
            None => {
                if self.open.len() == MOST_OPEN {
                    self.write()?; // what does not succeed is still waiting
                    let closed = self.open.remove(0);
                    self.reader.note(closed.first, None);
                }
                let file = self.start(first)?;
                self.reader.note(first, Some(file.journal.length()));
                self.open.push(file);
            }
        }
        Ok(self.open.last_mut().expect("it has just been put there"))
    }

    fn start(&mut self, first: Sequence) -> Result<Open, Closed> {
        self.latch.check()?;
        let path = path(self.reader.dir(), first);
        let mut said: HashMap<String, Sequence> = HashMap::new();
        let journal = if self.reader.has(first) {
            let opened = Journal::open(&path, &FORMAT, &mut self.latch, |_, body| {
                Said::each(body, |Said { receiver, through, .. }| {
                    let known = said.entry(receiver.to_owned()).or_insert(through);
                    *known = through.max(*known);
                    Some(())
                })
            });
            match opened {
                Ok((journal, _)) => journal,
                Err(OpenError::Io { source, .. }) if has_run_out(&source) => {
                    return Err(CommitError::DiskFull.into());
                }
                Err(error) => {
                    self.latch.check()?; // a failed sync has closed it
                    return Err(Closed::Unreadable(error));
                }
            }
        } else {
            self.grown = true;
            Journal::create(&path, &FORMAT)
                .map_err(|error| self.latch.judge("starting a file of outcomes", &error))?
        };
        Ok(Open { first, journal, said, waiting: Vec::new() })
    }
}

/// The outcomes of a range of sequences.
fn within<'a>(outcomes: &'a [Reported], range: &Range<Sequence>) -> &'a [Reported] {
    let place = |sequence| outcomes.partition_point(|row| row.sequence < sequence);
    &outcomes[place(range.start)..place(range.end)]
}

/// Copies the outcomes of one directory into new files in another, durably.
/// Damaged files are left out, and the first sequence of the lowest is said: from
/// there on outcomes are to be reported again.
///
/// # Errors
/// [`OpenError`] for a file that is newer, or cannot be read or written.
pub fn copy(from: &Path, to: &Path) -> Result<Option<Sequence>, OpenError> {
    let firsts = block::list(from).map_err(|error| OpenError::io("list", from, error))?;
    let mut lost_from: Option<Sequence> = None;
    for first in firsts {
        let (path, target) = (path(from, first), path(to, first));
        match journal::copy(&path, &target, &FORMAT, |_, body| Said::each(body, |_| Some(()))) {
            Err(OpenError::Damaged { .. }) => {
                lost_from = Some(lost_from.map_or(first, |lowest| lowest.min(first)));
            }
            copied => copied?,
        }
    }
    Ok(lost_from)
}

#[cfg(test)]
mod tests;
