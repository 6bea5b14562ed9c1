//! Receipts files on the disk: their names, reading them whole, up to their rows,
//! or one receipt. Knows nothing of which of them count.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
};

use super::{
    Accepted,
    fold::Hash,
    format::{self, Bad, Content, HEADER_BYTES, Header, KEY_BYTES, Key, ROW_BYTES, Sections},
    manifest::{Manifest, Part},
};
use crate::{
    proto::event::Sequence,
    publisher::log::{OpenError, ReadError},
};

const EXTENSION: &str = "receipts";

/// A file in a directory, by its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    /// First sequence.
    pub first: Sequence,
    /// How often it has been written anew.
    pub generation: u64,
    /// Where it is.
    pub path: PathBuf,
}

/// Where a file is.
pub fn path(dir: &Path, first: Sequence, generation: u64) -> PathBuf {
    dir.join(format!("{first:020}-{generation}.{EXTENSION}"))
}

/// The receipts files of a directory, by first sequence and generation.
///
/// # Errors
/// [`OpenError::Io`].
pub fn list(dir: &Path) -> Result<Vec<Found>, OpenError> {
    let listed = || -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        for file in fs::read_dir(dir)? {
            let path = file?.path();
            if path.extension().is_some_and(|extension| extension == EXTENSION)
                && let Some((first, generation)) =
                    path.file_stem().and_then(|stem| stem.to_str()?.split_once('-'))
                && let (Ok(first), Ok(generation)) = (first.parse(), generation.parse())
            {
                found.push(Found { first, generation, path });
            }
        }
        found.sort_unstable();
        Ok(found)
    };
    listed().map_err(|error| OpenError::io("list", dir, error))
}

/// Reads a whole file.
///
/// # Errors
/// [`OpenError`].
pub fn read(path: &Path) -> Result<Content, OpenError> {
    Content::decode(&bytes(path)?).map_err(|bad| bad.at(path))
}

/// Reads a file whose rows may be damaged: without those, and their keys.
///
/// # Errors
/// [`OpenError`].
pub fn salvage(path: &Path) -> Result<(Content, Vec<Key>), OpenError> {
    Content::salvage(&bytes(path)?).map_err(|bad| bad.at(path))
}

/// The bytes of a file.
///
/// # Errors
/// [`OpenError`].
pub fn bytes(path: &Path) -> Result<Vec<u8>, OpenError> {
    fs::read(path).map_err(|error| failed(path, error))
}

/// Reads a file up to its rows.
///
/// # Errors
/// [`OpenError`].
pub fn read_sections(path: &Path) -> Result<(Header, Sections), OpenError> {
    let failed = |error| failed(path, error);
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let mut header = [0; HEADER_BYTES];
    if length >= HEADER_BYTES as u64 {
        file.read_exact_at(&mut header, 0).map_err(failed)?;
    }
    let stated = Header::get(&header).map_err(|bad| bad.at(path))?;
    if stated.header.file_bytes() != length {
        return Err(Bad::Damaged("its length does not fit its header").at(path));
    }
    let mut bytes = vec![0; stated.header.rows_at() as usize - HEADER_BYTES];
    file.read_exact_at(&mut bytes, HEADER_BYTES as u64).map_err(failed)?;
    let sections = format::sections(&stated, &bytes).map_err(|bad| bad.at(path))?;
    Ok((stated.header, sections))
}

/// Whether a file that starts so is the one of a part.
///
/// # Errors
/// [`OpenError::Damaged`]: it is not.
pub fn is_saved(
    path: &Path,
    header: &Header,
    part: &Part,
    manifest: &Manifest,
) -> Result<(), OpenError> {
    match part.matches(header) && header.log_id == manifest.log_id {
        true => Ok(()),
        false => Err(Bad::Damaged("it is not the file that was saved").at(path)),
    }
}

/// Reads one receipt of a part, which holds it.
///
/// # Errors
/// [`ReadError::Corrupt`], also where it is not there; [`ReadError::Io`].
pub fn receipt(dir: &Path, part: &Part, sequence: Sequence) -> Result<(Hash, Accepted), ReadError> {
    let corrupt = |what: &str| ReadError::Corrupt { sequence, what: what.to_owned() };
    match entry(&path(dir, part.first, part.generation), part, sequence) {
        Ok(Some((key, row))) => {
            format::row(&key, &row).ok_or_else(|| corrupt("a receipt's checksum is wrong"))
        }
        Ok(None) => Err(corrupt("its receipt is not where it was saved")),
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => Err(corrupt("the file of its receipt is missing")),
            io::ErrorKind::UnexpectedEof => Err(corrupt("the file of its receipt ends early")),
            _ => Err(error.into()),
        },
    }
}

/// The key and the row at a sequence, as they stand there.
fn entry(
    path: &Path,
    part: &Part,
    sequence: Sequence,
) -> io::Result<Option<([u8; KEY_BYTES], [u8; ROW_BYTES])>> {
    let file = File::open(path)?;
    // Where nothing has been forgotten, a sequence is a place; else it is searched for.
    let (mut low, mut high) = match part.is_dense() {
        true => ((sequence - part.first) as u64, (sequence - part.first) as u64 + 1),
        false => (0, part.rows),
    };
    while low < high {
        let middle = low + (high - low) / 2;
        let mut key = [0; KEY_BYTES];
        file.read_exact_at(&mut key, HEADER_BYTES as u64 + middle * KEY_BYTES as u64)?;
        match Key::get(&key).sequence.cmp(&sequence) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Greater => high = middle,
            std::cmp::Ordering::Equal => {
                let mut row = [0; ROW_BYTES];
                file.read_exact_at(&mut row, part.rows_at() + middle * ROW_BYTES as u64)?;
                return Ok(Some((key, row)));
            }
        }
    }
    Ok(None)
}

fn failed(path: &Path, error: io::Error) -> OpenError {
    match error.kind() {
        io::ErrorKind::NotFound => Bad::Damaged("it is missing").at(path),
        _ => OpenError::io("read", path, error),
    }
}

impl Bad {
    /// As an error about a file in a log's directory.
    pub fn at(self, path: &Path) -> OpenError {
        match self {
            Bad::Newer(version) => OpenError::Format(format!(
                "{} has format {version}; this version reads up to {}",
                path.display(),
                format::VERSION
            )),
            Bad::Damaged(what) => OpenError::Damaged {
                path: path.display().to_string(),
                what: format!("{what}; {}", way_out(path.parent().unwrap_or(path))),
            },
        }
    }
}

/// What to do about receipts that cannot be read.
pub fn way_out(log_dir: &Path) -> String {
    let data_dir = log_dir.ancestors().nth(2).unwrap_or(log_dir).display();
    format!(
        "run `publisher rebuild-receipts --data-dir {data_dir}`, which makes the receipts anew from \
         the log and from what is whole of them"
    )
}

#[cfg(test)]
mod tests {
    use super::{
        super::format::tests::{content, receipt as accepted},
        *,
    };
    use crate::publisher::durable;

    #[test]
    fn each_receipt_is_found_by_its_sequence_also_between_forgotten_ones() {
        let dir = durable::scratch();
        let dense: Vec<_> = (4..9).map(|sequence| accepted(sequence, None)).collect();
        let sparse: Vec<_> = [10, 13, 14, 18].map(|sequence| accepted(sequence, Some(1))).into();
        for (first, end, receipts) in [(4, 9, dense), (9, 20, sparse), (20, 30, Vec::new())] {
            let content = content(first, end, receipts.clone());
            fs::write(path(dir.path(), first, 2), content.encode()).expect("written");
            let part = Part::of(&content, 2);
            for sequence in first..end {
                let expected = receipts.iter().find(|(_, accepted)| accepted.sequence == sequence);
                let found = receipt(dir.path(), &part, sequence);
                assert_eq!(found.as_ref().ok(), expected, "{sequence}");
                assert!(matches!(found, Ok(_) | Err(ReadError::Corrupt { .. })), "{sequence}");
            }
            let (header, sections) = read_sections(&path(dir.path(), first, 2)).expect("readable");
            assert!(part.matches(&header));
            assert_eq!(sections.keys.len(), receipts.len());
        }
        let firsts: Vec<_> =
            list(dir.path()).expect("listed").iter().map(|f| (f.first, f.generation)).collect();
        assert_eq!(firsts, [(4, 2), (9, 2), (20, 2)]);
    }

    #[test]
    fn damage_names_the_way_out() {
        let dir = durable::scratch();
        let path = dir.path().join("logs/main").join("00000000000000000000-0.receipts");
        fs::create_dir_all(path.parent().expect("it has one")).expect("created");
        let missing = read_sections(&path).expect_err("missing").to_string();
        fs::write(&path, "short").expect("written");
        let short = read_sections(&path).expect_err("short").to_string();
        let way_out = format!("publisher rebuild-receipts --data-dir {}", dir.path().display());
        assert!(missing.contains("missing") && missing.contains(&way_out), "{missing}");
        assert!(short.contains(&way_out), "{short}");
    }
}
