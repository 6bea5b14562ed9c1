//! A file of frames that grows at its end. Each frame is there whole or not at
//! all. Knows nothing of what is in them.
//!
//! ```text
//! file  = magic(7) version(1)  frame*
//! frame = mark(4)  length(u32)  crc32c(u32, over length and body)  body
//! ```
//! Little-endian. Bytes behind the last whole frame are the end of a write that
//! nobody was told of. Bytes that cannot be read before a whole frame are damage.

use std::{
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
};

use bytes::{Buf as _, BufMut as _};

use super::{
    durable::{self, AppendFile, Latch},
    log::{CommitError, OpenError},
};

/// Bytes before the first frame.
pub const HEADER_BYTES: usize = 8;
const FRAME_HEADER_BYTES: usize = 12;

/// How the files of one kind are told from others.
#[derive(Debug)]
pub struct Format {
    /// How a file starts.
    pub magic: [u8; 7],
    /// The newest version, which is the one that is written.
    pub version: u8,
    /// How a frame starts.
    pub mark: [u8; 4],
    /// What is in them, for people: "positions".
    pub what: &'static str,
}

/// What a file was found to hold.
#[derive(Debug)]
pub struct Found {
    /// The version of its format.
    pub version: u8,
    /// Up to the end of the last whole frame.
    pub length: u64,
    /// What stands behind.
    torn: Vec<u8>,
}

impl Format {
    /// A file without a frame.
    pub fn header(&self) -> Vec<u8> {
        [&self.magic[..], &[self.version]].concat()
    }

    /// Puts a frame behind what is there; `body` writes what is in it.
    pub fn frame(&self, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
        let start = out.len();
        out.put_slice(&self.mark);
        out.put_u64_le(0); // length and checksum, once they are known
        body(out);
        let frame = &mut out[start..];
        let length = (frame.len() - FRAME_HEADER_BYTES) as u32; // a frame has at most a few MiB
        frame[4..8].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(frame);
        frame[8..12].copy_from_slice(&sum.to_le_bytes());
    }

    /// Walks through the whole frames of a file. `see` is given the version and a
    /// body, and answers with none where that makes no sense. Holds one frame in
    /// memory.
    ///
    /// # Errors
    /// [`OpenError::Damaged`], [`OpenError::Format`] for a newer version,
    /// [`OpenError::Io`].
    pub fn read(
        &self,
        path: &Path,
        mut input: impl Read,
        mut see: impl FnMut(u8, &[u8]) -> Option<()>,
    ) -> Result<Found, OpenError> {
        let io = |error| OpenError::io("read", path, error);
        let damaged = |what: String| OpenError::Damaged { path: path.display().to_string(), what };
        let mut header = Vec::new();
        input.by_ref().take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(io)?;
        let version = match header.strip_prefix(&self.magic[..]) {
            Some(&[version]) if (1..=self.version).contains(&version) => version,
            Some(&[newer]) if newer > self.version => {
                return Err(OpenError::Format(format!(
                    "{} has format {newer}; this version reads up to {}",
                    path.display(),
                    self.version
                )));
            }
            Some(&[other]) => return Err(damaged(format!("it has format {other}"))),
            _ => {
                let what = self.what;
                return Err(damaged(format!("it does not start like a file of {what}")));
            }
        };
        let mut length = HEADER_BYTES as u64;
        let mut frame = Vec::new();
        loop {
            frame.clear();
            input.by_ref().take(FRAME_HEADER_BYTES as u64).read_to_end(&mut frame).map_err(io)?;
            // A length that is none takes in what there is, and no more.
            let stated = self.stated_length(&frame).unwrap_or(0);
            input.by_ref().take(stated).read_to_end(&mut frame).map_err(io)?;
            let Some(body) = self.whole(&frame) else { break };
            see(version, body)
                .ok_or_else(|| damaged("a frame with a right checksum makes no sense".into()))?;
            length += frame.len() as u64;
        }
        let mut torn = frame;
        input.read_to_end(&mut torn).map_err(io)?;
        if (1..torn.len()).any(|later| self.whole(&torn[later..]).is_some()) {
            let what = format!("the bytes at {length} cannot be read, though later ones can");
            return Err(damaged(what));
        }
        Ok(Found { version, length, torn })
    }

    /// Length of the body, where a frame starts.
    fn stated_length(&self, bytes: &[u8]) -> Option<u64> {
        let header = bytes.strip_prefix(&self.mark[..])?;
        Some(u64::from(header.get(..4)?.get_u32_le()))
    }

    /// The body of the whole frame that starts here, if there is one.
    fn whole<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let length = self.stated_length(bytes)? as usize;
        let frame = bytes.get(..FRAME_HEADER_BYTES.checked_add(length)?)?;
        let (header, body) = frame.split_at(FRAME_HEADER_BYTES);
        ((&header[8..]).get_u32_le() == checksum(frame)).then_some(body)
    }
}

/// Over the length and the body of a frame.
fn checksum(frame: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&frame[4..8]), &frame[FRAME_HEADER_BYTES..])
}

/// A file that is being written.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    format: &'static Format,
    file: AppendFile,
}

impl Journal {
    /// A new file without a frame, durably.
    ///
    /// # Errors
    /// Those of [`durable::replace`].
    pub fn create(path: &Path, format: &'static Format) -> io::Result<Self> {
        let file = durable::replace(path, &format.header())?;
        let file = AppendFile::new(file, HEADER_BYTES as u64);
        Ok(Journal { path: path.to_owned(), format, file })
    }

    /// Opens a file, shows its frames, and says which version it has. A torn end
    /// is kept beside it and cut off. What remains is on stable storage on return.
    ///
    /// # Errors
    /// Those of [`Format::read`]. Where a sync fails, the latch has closed.
    pub fn open(
        path: &Path,
        format: &'static Format,
        latch: &mut Latch,
        see: impl FnMut(u8, &[u8]) -> Option<()>,
    ) -> Result<(Self, u8), OpenError> {
        let io = |error| OpenError::io("open", path, error);
        let file = File::options().read(true).write(true).open(path).map_err(io)?;
        let Found { version, length, torn } = format.read(path, BufReader::new(&file), see)?;
        let mut settle = || -> io::Result<()> {
            if !torn.is_empty() {
                let kept = durable::keep_tail(path, length, &torn)?;
                tracing::warn!(kept = %kept.display(), "the end of {} was torn", path.display());
                file.set_len(length)?;
            }
            latch.barrier(&file)?;
            latch.barrier(&File::open(path.parent().unwrap_or(Path::new(".")))?)
        };
        settle().map_err(io)?;
        let file = AppendFile::new(file, length);
        Ok((Journal { path: path.to_owned(), format, file }, version))
    }

    /// Bytes that are on stable storage.
    pub fn length(&self) -> u64 {
        self.file.length()
    }

    /// Adds frames: one write, one sync.
    ///
    /// # Errors
    /// [`CommitError`]; then none of them is there.
    pub fn append(&mut self, frames: &[u8], latch: &mut Latch) -> Result<(), CommitError> {
        self.file.write(frames, latch)?;
        self.file.sync(frames.len() as u64, latch)
    }

    /// Puts frames in the place of all that are there.
    ///
    /// # Errors
    /// Those of [`durable::replace`].
    pub fn rewrite(&mut self, frames: &[u8]) -> io::Result<()> {
        let content = [&self.format.header()[..], frames].concat();
        let file = durable::replace(&self.path, &content)?;
        self.file = AppendFile::new(file, content.len() as u64);
        Ok(())
    }
}

/// Copies the whole frames of a file into a new one, durably, and shows them.
///
/// # Errors
/// Those of [`Format::read`].
pub fn copy(
    path: &Path,
    target: &Path,
    format: &Format,
    see: impl FnMut(u8, &[u8]) -> Option<()>,
) -> Result<(), OpenError> {
    let content = fs::read(path).map_err(|error| OpenError::io("read", path, error))?;
    let found = format.read(path, &content[..], see)?;
    durable::replace(target, &content[..found.length as usize])
        .map_err(|error| OpenError::io("write", target, error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: Format = Format { magic: *b"CFTESTS", version: 2, mark: *b"CFtf", what: "tests" };

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        FORMAT.frame(&mut frame, |out| out.put_slice(body));
        frame
    }

    /// The bodies that a content is found to hold, and how many bytes they take.
    fn bodies(content: &[u8]) -> Result<(Vec<Vec<u8>>, u64), OpenError> {
        let mut bodies = Vec::new();
        let found = FORMAT.read(Path::new("test"), content, |_, body| {
            bodies.push(body.to_vec());
            Some(())
        })?;
        assert_eq!(found.torn, content[found.length as usize..]);
        Ok((bodies, found.length))
    }

    #[test]
    fn an_end_torn_anywhere_takes_back_only_the_last_frame() {
        let first = [FORMAT.header(), frame(b"first"), frame(b"")].concat();
        let last = frame(b"last");
        for cut in 0..last.len() {
            let (found, length) = bodies(&[&first, &last[..cut]].concat()).expect("readable");
            assert_eq!(found, [&b"first"[..], b""], "cut at {cut}");
            assert_eq!(length, first.len() as u64);
        }
        assert_eq!(bodies(&[first, last].concat()).expect("readable").0.len(), 3);
    }

    #[test]
    fn a_torn_end_is_cut_off_and_kept_and_frames_follow_the_whole_ones() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("test");
        let whole = [FORMAT.header(), frame(b"first")].concat();
        fs::write(&path, [&whole[..], b"torn"].concat()).expect("written");
        let mut latch = Latch::open(dir.path()).expect("open");
        let (mut journal, version) =
            Journal::open(&path, &FORMAT, &mut latch, |_, _| Some(())).expect("opens");
        assert_eq!((version, journal.length()), (2, whole.len() as u64));
        let kept = dir.path().join(format!("torn-test-at-{}-0", whole.len()));
        assert_eq!(fs::read(kept).expect("kept"), b"torn");
        journal.append(&frame(b"second"), &mut latch).expect("added");
        let (found, _) = bodies(&fs::read(&path).expect("read")).expect("readable");
        assert_eq!(found, [b"first".to_vec(), b"second".to_vec()]);
    }

    #[test]
    fn a_flipped_bit_before_the_last_frame_is_damage() {
        let before = [FORMAT.header(), frame(b"first")].concat();
        let content = [&before[..], &frame(b"last")].concat();
        for at in 0..before.len() {
            for bit in 0..8 {
                let mut flipped = content.clone();
                flipped[at] ^= 1 << bit;
                // Of the header's version 2 one bit makes the older 1 or 3, or 0.
                if at == HEADER_BYTES - 1 && flipped[at] <= FORMAT.version && flipped[at] > 0 {
                    continue;
                }
                let refused = bodies(&flipped).expect_err("damaged");
                let known = matches!(refused, OpenError::Damaged { .. } | OpenError::Format(_));
                assert!(known, "bit {bit} of byte {at}: {refused}");
            }
        }
    }

    #[test]
    fn what_is_newer_or_something_else_is_said() {
        let newer = bodies(b"CFTESTS\x03").expect_err("newer").to_string();
        assert!(newer.contains("format 3") && newer.contains("up to 2"), "{newer}");
        for other in [&b""[..], b"CFTEST", b"CFPOSIT\x01"] {
            let refused = bodies(other).expect_err("another").to_string();
            assert!(refused.contains("like a file of tests"), "{refused}");
        }
    }

    #[test]
    fn a_length_that_is_none_costs_no_memory() {
        let mut huge = [FORMAT.header(), FORMAT.mark.to_vec()].concat();
        huge.put_u32_le(u32::MAX);
        huge.put_slice(b"rest");
        assert_eq!(bodies(&huge).expect("torn"), (Vec::new(), HEADER_BYTES as u64));
    }
}
