//! `receiver check FILE`: every flaw of a projection file is found before it is run, and said
//! so that whoever wrote it knows what to write instead.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::harness::process::{Ended, Launch};

fn check(file: impl AsRef<Path>) -> Ended {
    Launch::new(env!("CARGO_BIN_EXE_receiver")).arg("check").arg(file.as_ref()).run()
}

fn in_tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn files(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|found| found == ending));
    files.sort();
    files
}

/// What was said, with the file's name in the place of its path.
fn said(ended: &Ended, file: &Path) -> String {
    let directory = format!("{}/", file.parent().expect("a directory").display());
    ended.stderr.replace(&directory, "")
}

/// Lines that are only in one of two texts.
fn differences(expected: &str, found: &str) -> Vec<String> {
    let only = |one: &str, other: &str, mark: &str| -> Vec<String> {
        let missing = |line: &&str| !other.lines().any(|known| known == *line);
        one.lines().filter(missing).map(|line| format!("{mark} {line}")).collect()
    };
    let mut lines = only(expected, found, "-");
    lines.extend(only(found, expected, "+"));
    if lines.is_empty() && expected != found {
        lines.push("the same lines, in another order or number".to_owned());
    }
    lines
}

/// Every file of the folder breaks one rule or a few, and beside it stands what is said then.
/// `UPDATE_EXPECTED=1` writes that anew, for a person to judge.
#[test]
fn every_flaw_of_every_broken_file_is_found_and_said_word_for_word() {
    let broken = in_tree("tests/fixtures/broken");
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let mut wrong = Vec::new();
    let files = files(&broken, "toml");
    assert!(files.len() >= 25, "{} files", files.len());
    for file in &files {
        let ended = check(file);
        let found = said(&ended, file);
        let snapshot = file.with_extension("expected");
        if update {
            fs::write(&snapshot, &found).expect("written");
        }
        let expected = fs::read_to_string(&snapshot).unwrap_or_default();
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        if ended.code() != Some(1) || found.is_empty() || !ended.stdout.is_empty() {
            wrong.push(format!("{name}: no flaw was found: {ended:?}"));
        }
        if found != expected {
            wrong.push(format!("{name}:\n{}", differences(&expected, &found).join("\n")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A snapshot without its file says nothing.
#[test]
fn every_expected_text_has_its_file() {
    for snapshot in files(&in_tree("tests/fixtures/broken"), "expected") {
        assert!(snapshot.with_extension("toml").exists(), "{}", snapshot.display());
    }
}

#[test]
fn the_projections_of_the_tree_have_no_flaw() {
    let directories = fs::read_dir(in_tree("projections")).expect("a directory");
    let mut checked = 0;
    for directory in directories {
        let file = directory.expect("an entry").path().join("projection.toml");
        let ended = check(&file);
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        assert!(ended.stdout.contains("no flaws"), "{ended:?}");
        checked += 1;
    }
    assert!(checked >= 1);
}

/// A file that is not there is wrong usage, and so is a receiver with a broken one.
#[test]
fn a_file_that_cannot_be_read_or_run_is_wrong_usage() {
    let ended = check("nowhere/projection.toml");
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("nowhere/projection.toml"), "{ended:?}");
    let directory = tempfile::tempdir().expect("a directory");
    let broken = in_tree("tests/fixtures/broken/or_replace.toml");
    let ended = Launch::new(env!("CARGO_BIN_EXE_receiver"))
        .arg("--db")
        .arg(directory.path().join("r.db"))
        .args(["--listen", "127.0.0.1:0", "--projection"])
        .arg(&broken)
        .run();
    assert_eq!(ended.code(), Some(2), "{ended:?}");
    assert!(ended.stderr.contains("or_replace.toml:17: on[0].sql[0]: "), "{ended:?}");
    assert!(!directory.path().join("r.db").exists(), "nothing was made");
}
