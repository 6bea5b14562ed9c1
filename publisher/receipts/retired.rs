//! Receipts of truncated events as format 1 of a log left them: read once, then kept
//! in receipts files. They say nothing of times, so they are kept for ever.
//!
//! ```text
//! NNNNNNNNNNNNNNNNNNNN.retired  (N: first sequence)
//! header = "CFRETRD" version(1)  first(i64)  count(u64)  crc32c(u32, over the header before it)
//! row    = key(16)  fingerprint(32)  subject(16)  subject_version(i64)  accepted_at_ms(i64)  crc32c(u32)
//! ```
//! Little-endian. The checksum of a row covers its sequence too.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bytes::Buf;

use super::{Accepted, Names};
use crate::{
    proto::event::Sequence,
    publisher::{durable, log::OpenError},
};

const EXTENSION: &str = "retired";
const MAGIC: &[u8; 7] = b"CFRETRD";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 28;
const ROW_BYTES: usize = 84;

/// A receipt and what it is looked up by.
pub type Row = (Names, Accepted);

/// The files of a directory with their first sequences, ascending.
///
/// # Errors
/// [`OpenError::Io`].
pub fn list(dir: &Path) -> Result<Vec<(Sequence, PathBuf)>, OpenError> {
    let listed = || -> io::Result<Vec<(Sequence, PathBuf)>> {
        let mut files = Vec::new();
        for file in fs::read_dir(dir)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && let Some(first) = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok())
            {
                files.push((first, path));
            }
        }
        files.sort_unstable();
        Ok(files)
    };
    listed().map_err(|error| OpenError::io("list", dir, error))
}

/// The receipts of a file.
///
/// # Errors
/// [`OpenError`].
pub fn read(first: Sequence, path: &Path) -> Result<Vec<Row>, OpenError> {
    let content = fs::read(path).map_err(|error| OpenError::io("read", path, error))?;
    rows(&content, first, path)
}

/// Copies the files of one directory into new ones in another, durably, and says
/// how many receipts there are.
///
/// # Errors
/// [`OpenError`], as for reading them.
pub fn copy(from: &Path, to: &Path) -> Result<u64, OpenError> {
    let mut count = 0;
    for (first, path) in list(from)? {
        let content = fs::read(&path).map_err(|error| OpenError::io("read", &path, error))?;
        count += rows(&content, first, &path)?.len() as u64;
        let target = to.join(path.file_name().unwrap_or_default());
        durable::replace(&target, &content)
            .map_err(|error| OpenError::io("write", &target, error))?;
    }
    Ok(count)
}

fn rows(content: &[u8], first: Sequence, path: &Path) -> Result<Vec<Row>, OpenError> {
    let damaged =
        |what: &str| OpenError::Damaged { path: path.display().to_string(), what: what.to_owned() };
    let (mut header, rows) = content
        .split_at_checked(HEADER_BYTES)
        .filter(|(header, _)| header.starts_with(MAGIC))
        .ok_or_else(|| damaged("it does not start like a file of receipts"))?;
    let sum = crc32c::crc32c(&header[..HEADER_BYTES - 4]);
    header.advance(MAGIC.len());
    let version = header.get_u8();
    if version > VERSION {
        return Err(OpenError::Format(format!(
            "{} has format {version}; this version reads up to {VERSION}",
            path.display()
        )));
    }
    let stated = (header.get_i64_le(), header.get_u64_le());
    let (rows, rest) = rows.as_chunks();
    if header.get_u32_le() != sum || !rest.is_empty() || stated != (first, rows.len() as u64) {
        return Err(damaged("its header does not fit its content"));
    }
    (first..)
        .zip(rows)
        .map(|(sequence, bytes)| {
            row(sequence, bytes).ok_or_else(|| OpenError::Corrupt {
                path: path.display().to_string(),
                sequence,
                what: "a receipt's checksum is wrong".to_owned(),
            })
        })
        .collect()
}

fn row(sequence: Sequence, bytes: &[u8; ROW_BYTES]) -> Option<Row> {
    let (covered, sum) = bytes.split_at(ROW_BYTES - 4);
    let expected = crc32c::crc32c_append(crc32c::crc32c(&sequence.to_le_bytes()), covered);
    if sum != expected.to_le_bytes() {
        return None;
    }
    let mut rest = covered;
    let (mut key, mut fingerprint, mut subject) = ([0; 16], [0; 32], [0; 16]);
    rest.copy_to_slice(&mut key);
    rest.copy_to_slice(&mut fingerprint);
    rest.copy_to_slice(&mut subject);
    let (subject_version, accepted_at_ms) = (rest.get_i64_le(), rest.get_i64_le());
    Some((
        Names { key, subject, stated: false },
        Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms: None },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three receipts, sequences 0 to 2, as format 1 left them.
    const FIXTURE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/log-format-1/00000000000000000000.retired"
    );

    #[test]
    fn a_file_of_format_1_is_read_and_every_flipped_byte_is_noticed() {
        let dir = durable::scratch();
        let path = dir.path().join("00000000000000000000.retired");
        fs::copy(FIXTURE, &path).expect("copied");
        assert_eq!(list(dir.path()).expect("listed"), [(0, path.clone())]);
        let read_rows = read(0, &path).expect("readable");
        let sequences: Vec<_> = read_rows.iter().map(|(_, accepted)| accepted.sequence).collect();
        assert_eq!(sequences, (0..read_rows.len() as i64).collect::<Vec<_>>());
        let whole = fs::read(&path).expect("read");
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            fs::write(&path, flipped).expect("written");
            assert!(read(0, &path).is_err(), "byte {at}");
        }
        fs::write(&path, &whole[..whole.len() - 1]).expect("written");
        assert!(read(0, &path).is_err(), "one byte short");
    }
}
