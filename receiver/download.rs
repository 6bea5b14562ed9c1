//! A snapshot into a file beside the database: in order, without a hole, and whole only
//! with the right size and hash. What is there of it already, by a process that was killed
//! or over a connection that broke, is not asked for again.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tonic::Status;

use super::{
    choose::Listed,
    replay::{SILENCE, within},
    retry::said,
    source::Source,
    store::lock,
};
use crate::proto::{
    crash,
    event::hex,
    pb::{self, download_snapshot_response::Part as Sent},
    refusal::{Reason, reason_of},
};

/// What all files of a download have behind the database's name.
const ENDING: &str = ".resync-";

/// The file that a snapshot is downloaded to.
pub fn staged(db: &Path, snapshot: &Listed) -> PathBuf {
    lock::beside(db, &format!("{ENDING}{}", hex(&snapshot.sha256)))
}

/// Takes away all files of downloads but one. Best effort: what stays is in nobody's way.
pub fn sweep(db: &Path, but: Option<&Path>) {
    for (path, rest) in lock::all_beside(db, ENDING) {
        if rest.to_str().is_some_and(is_ours)
            && Some(path.as_path()) != but
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "a download of no use cannot be removed");
        }
    }
}

/// Whether a name is that of a download, and not one that a person has chosen.
fn is_ours(rest: &str) -> bool {
    rest == "empty" || rest.len() == 64 && rest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Why there is no whole file.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The way broke: what has come stays, and is not asked for again.
    #[error("the download broke off ({})", said(.0))]
    Way(#[from] Status),
    /// What has come is not what was announced, or the end was missing. It is thrown away.
    #[error("what the publisher sent is not the snapshot it announced: {0}; thrown away")]
    Torn(String),
    /// The file cannot be written.
    #[error("the snapshot cannot be kept beside the database: {0}")]
    Disk(#[from] io::Error),
}

/// Downloads a snapshot, or the rest of it. On return the file is whole and on stable
/// storage.
///
/// # Errors
/// [`Broken`].
pub async fn fetch(source: &Source, snapshot: &Listed, file: &Path) -> Result<(), Broken> {
    let fetched = try_fetch(source, snapshot, file).await;
    let torn = match &fetched {
        Err(Broken::Torn(_)) => true,
        Err(Broken::Way(status)) => reason_of(status) == Some(Reason::SnapshotDamaged),
        _ => false,
    };
    if torn {
        let _ = fs::remove_file(file); // the next one begins at 0, or finds it torn again
    }
    fetched
}

async fn try_fetch(source: &Source, snapshot: &Listed, file: &Path) -> Result<(), Broken> {
    let mut part = blocking({
        let (file, size) = (file.to_owned(), snapshot.size);
        move || Part::open(&file, size)
    })
    .await?;
    let request = pb::DownloadSnapshotRequest {
        log: source.log().to_owned(),
        sha256: Bytes::copy_from_slice(&snapshot.sha256),
        offset: part.length as i64,
    };
    let mut client = source.snapshots();
    let mut pieces = within(SILENCE, client.download_snapshot(request)).await?.into_inner();
    loop {
        let Some(piece) = within(SILENCE, pieces.message()).await? else {
            return Err(Broken::Torn(format!("it ended after {} bytes, unannounced", part.length)));
        };
        match piece.part {
            Some(Sent::Chunk(chunk)) => {
                let after = part.length + chunk.data.len() as u64;
                if chunk.offset != part.length as i64 || after > snapshot.size {
                    return Err(Broken::Torn(format!(
                        "{} bytes at {} came, {} of {} were there",
                        chunk.data.len(),
                        chunk.offset,
                        part.length,
                        snapshot.size
                    )));
                }
                part = blocking(move || part.append(&chunk.data)).await?;
                crash::point(crash::RECEIVER_RESYNC_PIECE);
            }
            Some(Sent::End(end)) => {
                let announced = (snapshot.size as i64, &snapshot.sha256[..]);
                if (end.size_bytes, &end.sha256[..]) != announced {
                    return Err(Broken::Torn("its end is another one's".to_owned()));
                }
                break;
            }
            None => {} // of a later version's, which this one has not to know
        }
    }
    if part.length != snapshot.size {
        return Err(Broken::Torn(format!("{} of {} bytes came", part.length, snapshot.size)));
    }
    let found = blocking(move || part.end()).await?;
    if found != snapshot.sha256 {
        return Err(Broken::Torn("its bytes have another hash".to_owned()));
    }
    crash::point(crash::RECEIVER_RESYNC_STAGED);
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// The beginning of a snapshot, and the hash of it so far.
struct Part {
    file: File,
    length: u64,
    hash: Sha256,
}

impl Part {
    /// Goes on with a file, or begins it. One that is longer than it should be begins anew.
    fn open(path: &Path, most: u64) -> io::Result<Self> {
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
        if file.metadata()?.len() > most {
            file.set_len(0)?;
        }
        let mut part = Part { file: file.try_clone()?, length: 0, hash: Sha256::new() };
        let mut buffer = vec![0; 256 * 1024];
        loop {
            let count = file.read(&mut buffer)?; // leaves the place for what comes next
            if count == 0 {
                return Ok(part);
            }
            part.hash.update(&buffer[..count]);
            part.length += count as u64;
        }
    }

    fn append(mut self, data: &[u8]) -> io::Result<Self> {
        self.file.write_all(data)?;
        self.hash.update(data);
        self.length += data.len() as u64;
        Ok(self)
    }

    /// The hash of all of it, which is on stable storage.
    fn end(self) -> io::Result<[u8; 32]> {
        self.file.sync_all()?;
        Ok(self.hash.finalize().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_downloads_are_swept() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let db = directory.path().join("test.db");
        let download = |byte: u8| lock::beside(&db, &format!("{ENDING}{}", hex(&[byte; 32])));
        let theirs =
            ["", ".resync-kept", ".resync", ".before-resync-7"].map(|end| lock::beside(&db, end));
        let all = [download(1), download(2), lock::beside(&db, ".resync-empty")];
        for file in all.iter().chain(&theirs) {
            fs::write(file, "x").expect("written");
        }
        sweep(&db, Some(&download(2)));
        let left: Vec<_> = all.iter().filter(|file| file.exists()).collect();
        assert_eq!(left, [&download(2)]);
        assert!(theirs.iter().all(|file| file.exists()));
    }

    #[test]
    fn a_part_is_gone_on_with() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("part");
        let whole: Vec<u8> = (0..700_000_u32).map(|n| n as u8).collect();
        let hash: [u8; 32] = Sha256::digest(&whole).into();
        for cut in [0, 1, 300_000, whole.len()] {
            let part = Part::open(&path, whole.len() as u64).expect("opened");
            assert_eq!(part.length, 0);
            drop(part.append(&whole[..cut]).expect("written"));
            let part = Part::open(&path, whole.len() as u64).expect("opened again");
            assert_eq!(part.length, cut as u64);
            let part = part.append(&whole[cut..]).expect("written");
            assert_eq!(part.end().expect("synced"), hash);
            assert_eq!(fs::read(&path).expect("readable"), whole);
            let too_long = Part::open(&path, 10).expect("begun anew");
            assert_eq!(too_long.length, 0);
            drop(too_long);
        }
    }
}
