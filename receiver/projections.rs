//! Which projection a receiver has: one that this program brings along, by its name, or one
//! that stands in a file, by its path.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use super::{
    declared::{self, Declared, flaw::Flaw, spec::Spec},
    projection::Projection,
};

/// The files that this program brings along, by name.
const BROUGHT: [(&str, &str); 1] =
    [("inventory", include_str!("../projections/inventory/projection.toml"))];

/// Which projection is wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// One that this program brings along.
    Named(String),
    /// One that stands in a file.
    File(PathBuf),
}

impl FromStr for Wanted {
    type Err = String;

    /// What has a slash in it or ends in `.toml` is a path.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('/') || text.ends_with(".toml") {
            Ok(Wanted::File(text.into()))
        } else if BROUGHT.iter().any(|(name, _)| *name == text) {
            Ok(Wanted::Named(text.to_owned()))
        } else {
            Err(unknown(text))
        }
    }
}

fn unknown(name: &str) -> String {
    let names: Vec<&str> = BROUGHT.iter().map(|(name, _)| *name).collect();
    format!(
        "{name:?} is no projection; there is: {}; the path of a file has a slash in it or ends in \
         .toml",
        names.join(", ")
    )
}

/// Why a projection cannot be had from a file.
#[derive(Debug)]
pub enum Unusable {
    /// The file cannot be read. Says which, and why.
    Unreadable(String),
    /// It is wrong, in all these places.
    Flawed(Vec<Flaw>),
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unusable::Unreadable(why) => f.write_str(why),
            Unusable::Flawed(flaws) => {
                let count = flaws.len();
                let flaws: Vec<String> = flaws.iter().map(Flaw::to_string).collect();
                let word = if count == 1 { "flaw" } else { "flaws" };
                write!(f, "the projection has {count} {word}:\n{}", flaws.join("\n"))
            }
        }
    }
}

/// The projection that is wanted.
///
/// # Errors
/// [`Unusable`].
pub fn load(wanted: &Wanted) -> Result<Arc<dyn Projection>, Unusable> {
    match wanted {
        Wanted::Named(name) => named(name).ok_or_else(|| Unusable::Unreadable(unknown(name))),
        Wanted::File(path) => Ok(of(read(path)?)),
    }
}

/// The projection that this program brings along by a name, if there is one.
pub fn named(name: &str) -> Option<Arc<dyn Projection>> {
    let (_, text) = BROUGHT.iter().find(|(known, _)| *known == name)?;
    Some(Arc::new(brought(name, text)))
}

/// The one by which the program measures itself.
pub fn inventory() -> Declared {
    let [(name, text)] = BROUGHT;
    brought(name, text)
}

fn brought(name: &str, text: &str) -> Declared {
    Declared::new(declared::read(name, text).expect("a test reads every file brought along"))
}

/// What a file says, checked.
///
/// # Errors
/// [`Unusable`].
pub fn read(path: &Path) -> Result<Spec, Unusable> {
    let shown = path.display().to_string();
    let text = fs::read_to_string(path)
        .map_err(|error| Unusable::Unreadable(format!("projection {shown}: {error}")))?;
    declared::read(&shown, &text).map_err(Unusable::Flawed)
}

/// What a checked file makes.
pub fn of(spec: Spec) -> Arc<dyn Projection> {
    Arc::new(Declared::new(spec))
}

/// The projection that the text of a file makes, as a database has kept it.
///
/// # Errors
/// What this program no longer takes in it.
pub fn of_source(text: &str) -> Result<Arc<dyn Projection>, String> {
    match declared::read("its text", text) {
        Ok(spec) => Ok(of(spec)),
        Err(flaws) => Err(Unusable::Flawed(flaws).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_brought_along_has_its_name_and_no_flaw() {
        for (name, text) in BROUGHT {
            assert_eq!(declared::read(name, text).map(|spec| spec.name), Ok(name.to_owned()));
        }
    }

    #[test]
    fn all_flaws_of_a_file_are_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("broken.toml");
        let load = || load(&Wanted::File(file.clone())).map(drop).expect_err("no projection");
        assert!(load().to_string().contains("broken.toml"), "{}", load());
        fs::write(&file, "[projection]\nname = \"a\"\nversion = 0\n").expect("written");
        let said = load().to_string();
        for part in ["has 2 flaws", "broken.toml:3: projection.version: ", "broken.toml:1: on: "] {
            assert!(said.contains(part), "{part:?} is missing in: {said}");
        }
    }
}
