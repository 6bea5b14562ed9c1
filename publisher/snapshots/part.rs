//! The bytes of a snapshot while they come: written at their end, hashed on the way.
//! Each step is short, so that a thread that waits for the disk is soon free again.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::PathBuf,
    time::{Duration, Instant},
};

use sha2::{Digest as _, Sha256};

use crate::{
    proto::{
        crash,
        limits::{MAX_SNAPSHOT_CHUNK_BYTES, SNAPSHOT_STEP_BYTES},
        snapshot::SnapshotId,
    },
    publisher::durable,
};

/// Why bytes are not taken.
#[derive(Debug)]
pub enum PartError {
    /// Another upload, or an offer, has taken this one's place.
    Ended,
    /// They do not start where what is here ends.
    Hole {
        /// Bytes that are here.
        length: u64,
    },
    /// They would reach beyond the size that was announced.
    TooLong,
    /// There are fewer than were announced.
    Short {
        /// Bytes that are here.
        length: u64,
    },
    /// All are here, and their hash is another one.
    Damaged,
    /// There is no room on the disk; what was here is still.
    Full,
    /// The disk failed: what is here is unknown.
    Io(io::Error),
}

impl PartError {
    /// Of a step that changes nothing of what is here.
    pub fn before(error: io::Error) -> Self {
        if durable::has_run_out(&error) { PartError::Full } else { PartError::Io(error) }
    }
}

impl From<io::Error> for PartError {
    fn from(error: io::Error) -> Self {
        PartError::Io(error)
    }
}

/// One file, and whose turn it is to write it.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    /// Who holds a lower one has been ended.
    turn: u64,
    /// When bytes, or who sends them, came last.
    touched: Instant,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    file: File,
    length: u64,
    /// Over the first `hashed` bytes.
    hash: Sha256,
    /// At most `length`; below it, what is here was found at the start.
    hashed: u64,
    /// Written and not synced.
    unsynced: u64,
}

impl Part {
    /// One at a path, where there may be bytes already.
    pub fn at(path: PathBuf) -> Self {
        Part { path, turn: 0, touched: Instant::now(), open: None }
    }

    /// Bytes that are here.
    ///
    /// # Errors
    /// The operating system's.
    pub fn length(&self) -> io::Result<u64> {
        if let Some(open) = &self.open {
            return Ok(open.length);
        }
        match fs::metadata(&self.path) {
            Ok(metadata) => Ok(metadata.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Ends whoever writes, and returns the turn of who writes next.
    pub fn end_turns(&mut self) -> u64 {
        self.turn += 1;
        self.touched = Instant::now();
        self.turn
    }

    /// How long it has stood still.
    pub fn rest(&self) -> Duration {
        self.touched.elapsed()
    }

    /// One step of reading again what a process before this one has left. Says whether
    /// there is no more: then bytes may follow.
    ///
    /// # Errors
    /// [`PartError::Ended`], [`PartError::Io`].
    pub fn catch_up(&mut self, turn: u64) -> Result<bool, PartError> {
        let open = self.turn_of(turn)?;
        let mut left = SNAPSHOT_STEP_BYTES.min(open.length - open.hashed);
        let mut buffer = vec![0; left.min(MAX_SNAPSHOT_CHUNK_BYTES as u64) as usize];
        while left > 0 {
            let piece = &mut buffer[..left.min(MAX_SNAPSHOT_CHUNK_BYTES as u64) as usize];
            open.file.read_exact_at(piece, open.hashed)?;
            open.hash.update(&*piece);
            open.hashed += piece.len() as u64;
            left -= piece.len() as u64;
        }
        Ok(open.hashed == open.length)
    }

    /// Writes bytes behind those that are here.
    ///
    /// # Errors
    /// [`PartError`]; but for `Io`, what was here is still.
    pub fn write(
        &mut self,
        turn: u64,
        offset: u64,
        data: &[u8],
        size: u64,
    ) -> Result<(), PartError> {
        let open = self.turn_of(turn)?;
        if offset != open.length || open.hashed != open.length {
            return Err(PartError::Hole { length: open.length });
        }
        if data.len() as u64 > size.saturating_sub(offset) {
            return Err(PartError::TooLong);
        }
        if let Err(error) = open.file.write_all_at(data, offset) {
            if !durable::is_full(&error) {
                return Err(error.into());
            }
            open.file.set_len(offset)?;
            return Err(PartError::Full);
        }
        open.hash.update(data);
        open.length += data.len() as u64;
        open.hashed = open.length;
        open.unsynced += data.len() as u64;
        if open.unsynced >= SNAPSHOT_STEP_BYTES { open.sync() } else { Ok(()) }
    }

    /// Checks that all bytes are here and are the right ones, and makes them durable.
    ///
    /// # Errors
    /// [`PartError`].
    pub fn complete(&mut self, turn: u64, id: SnapshotId, size: u64) -> Result<(), PartError> {
        let open = self.turn_of(turn)?;
        if open.length < size || open.hashed < open.length {
            return Err(PartError::Short { length: open.length });
        }
        let hash: [u8; 32] = open.hash.clone().finalize().into();
        if SnapshotId(hash) != id || open.length > size {
            return Err(PartError::Damaged);
        }
        open.sync()
    }

    /// Whether it is still this one's turn.
    ///
    /// # Errors
    /// [`PartError::Ended`].
    pub fn is_turn(&self, turn: u64) -> Result<(), PartError> {
        if turn == self.turn { Ok(()) } else { Err(PartError::Ended) }
    }

    fn turn_of(&mut self, turn: u64) -> Result<&mut Open, PartError> {
        self.is_turn(turn)?;
        self.touched = Instant::now();
        match &mut self.open {
            Some(open) => Ok(open),
            none => {
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(&self.path)
                    .map_err(PartError::before)?;
                let length = file.metadata()?.len();
                let hash = Sha256::new();
                // A process before this one may have died before it synced them.
                Ok(none.insert(Open { file, length, hash, hashed: 0, unsynced: length }))
            }
        }
    }
}

impl Open {
    fn sync(&mut self) -> Result<(), PartError> {
        // After a failed one another would succeed and prove nothing: the file goes.
        self.file.sync_all()?;
        self.unsynced = 0;
        crash::point(crash::PUBLISHER_AFTER_SNAPSHOT_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(content: &[u8]) -> SnapshotId {
        SnapshotId(Sha256::digest(content).into())
    }

    /// A part of which so much is there from a process before.
    fn part(before: &[u8]) -> (Part, tempfile::TempDir) {
        let dir = durable::scratch();
        let path = dir.path().join("a.part");
        if !before.is_empty() {
            fs::write(&path, before).expect("written");
        }
        (Part::at(path), dir)
    }

    #[test]
    fn bytes_follow_those_that_are_there_and_all_are_hashed() {
        for before in [&b""[..], b"who", b"whole"] {
            let (mut part, _dir) = part(before);
            assert_eq!(part.length().expect("readable"), before.len() as u64);
            let turn = part.end_turns();
            assert!(part.catch_up(turn).expect("readable"));
            let rest = &b"whole"[before.len()..];
            part.write(turn, before.len() as u64, rest, 5).expect("taken");
            part.complete(turn, id(b"whole"), 5).expect("right");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_changes_nothing() {
        let (mut part, _dir) = part(b"");
        let turn = part.end_turns();
        part.write(turn, 0, b"wh", 5).expect("taken");
        let hole = part.write(turn, 3, b"le", 5);
        assert!(matches!(hole, Err(PartError::Hole { length: 2 })), "{hole:?}");
        let again = part.write(turn, 0, b"wh", 5);
        assert!(matches!(again, Err(PartError::Hole { length: 2 })), "{again:?}");
        let long = part.write(turn, 2, b"oles", 5);
        assert!(matches!(long, Err(PartError::TooLong)), "{long:?}");
        let short = part.complete(turn, id(b"whole"), 5);
        assert!(matches!(short, Err(PartError::Short { length: 2 })), "{short:?}");
        part.write(turn, 2, b"ole", 5).expect("taken");
        let other = part.complete(turn, id(b"other"), 5);
        assert!(matches!(other, Err(PartError::Damaged)), "{other:?}");
        part.complete(turn, id(b"whole"), 5).expect("right");
    }

    #[test]
    fn bytes_that_were_left_are_read_before_more_are_taken() {
        let (mut part, _dir) = part(b"who");
        let turn = part.end_turns();
        let early = part.write(turn, 3, b"le", 5);
        assert!(matches!(early, Err(PartError::Hole { length: 3 })), "{early:?}");
    }

    #[test]
    fn one_at_a_time_writes() {
        let (mut part, _dir) = part(b"");
        let first = part.end_turns();
        part.write(first, 0, b"wh", 5).expect("taken");
        let second = part.end_turns();
        let late = part.write(first, 2, b"ole", 5);
        assert!(matches!(late, Err(PartError::Ended)), "{late:?}");
        assert!(matches!(part.complete(first, id(b"wh"), 2), Err(PartError::Ended)));
        part.write(second, 2, b"ole", 5).expect("taken");
        part.complete(second, id(b"whole"), 5).expect("right");
    }
}
