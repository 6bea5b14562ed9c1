//! Which projection a receiver has: one that this program brings along, by its name, or one
//! that stands in a file, by its path.

use std::{fmt, fs, path::Path, sync::Arc};

use super::{
    declared::{self, Declared, flaw::Flaw, spec::Spec},
    inventory::Inventory,
    projection::Projection,
};

/// The names of those that this program has, for people.
pub const NAMES: &str = "inventory";

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

/// The projection of a name, if there is one.
pub fn named(name: &str) -> Option<Arc<dyn Projection>> {
    match name {
        "inventory" => Some(Arc::new(Inventory)),
        _ => None,
    }
}

/// Whether a projection is told by the path of its file, and not by its name.
pub fn is_path(projection: &str) -> bool {
    projection.contains('/') || projection.ends_with(".toml")
}

/// The projection of a path, or of a name.
///
/// # Errors
/// [`Unusable`].
pub fn load(projection: &str) -> Result<Arc<dyn Projection>, Unusable> {
    if is_path(projection) {
        return Ok(Arc::new(Declared::new(read(Path::new(projection))?)));
    }
    named(projection).ok_or_else(|| {
        Unusable::Unreadable(format!("{projection:?} is no projection; there is: {NAMES}"))
    })
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
