//! A projection that stands in a file: tables, handlers and queries, declared in TOML and
//! run by the receiver inside its own transaction. A file is read as TOML (`file`), then
//! every statement is held against an empty database (`check`); what comes out is `spec`.
//! All that is wrong is found at once and said with its line.

mod check;
mod emit;
pub mod file;
pub mod flaw;
mod object;
mod parts;
mod payload;
mod projection;
pub mod rules;
pub mod spec;
mod statement;
pub mod statements;
#[cfg(test)]
mod tests;
pub mod text;
pub mod tokens;
#[cfg(test)]
mod values_tests;

pub use projection::Declared;
pub use statement::{Given, bind};

use self::{
    flaw::{Flaw, Flaws},
    spec::Spec,
};

/// Reads and checks the text of a projection file; `file` is its name, for people.
///
/// # Errors
/// Everything that is wrong, in the order of the file.
pub fn read(file: &str, text: &str) -> Result<Spec, Vec<Flaw>> {
    let mut flaws = Flaws::of(file);
    let Some(read) = file::read(text, &mut flaws) else { return Err(flaws.into_sorted()) };
    let checked = check::check(read, text, &mut flaws);
    if let Err(error) = &checked {
        flaws.add(1, "", format!("could not be checked: {error}"));
    }
    let found = flaws.into_sorted();
    match checked {
        Ok(spec) if found.is_empty() => Ok(spec),
        _ => Err(found),
    }
}
