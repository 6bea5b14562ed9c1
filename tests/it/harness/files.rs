//! What lies in a directory, for "nothing was changed" and for finding segments.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// All files below a directory, sorted.
pub fn below(dir: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(dir).expect("a directory").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        entries.flat_map(|path| if path.is_dir() { below(&path) } else { vec![path] }).collect();
    files.sort();
    files
}

/// The segment files below a publisher's directory, oldest first.
pub fn segments(data_dir: &Path) -> Vec<PathBuf> {
    with_extension(data_dir, "seg")
}

/// The files of one kind below a directory, sorted.
pub fn with_extension(dir: &Path, wanted: &str) -> Vec<PathBuf> {
    let mut files = below(dir);
    files.retain(|path| path.extension().is_some_and(|extension| extension == wanted));
    files
}

/// Every file with its bytes, but for the lock.
pub fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = below(dir).into_iter().filter(|path| !path.ends_with("LOCK"));
    files.map(|path| (path.clone(), fs::read(&path).expect("readable"))).collect()
}

/// A file's length; 0 where there is none.
pub fn length(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

/// Puts a copy of a directory in the place of another, as a person would with the service
/// stopped.
pub fn put_copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    for file in below(from) {
        let target = to.join(file.strip_prefix(from).expect("below it"));
        fs::create_dir_all(target.parent().expect("a directory")).expect("made");
        fs::copy(&file, &target).expect("copied");
    }
}
