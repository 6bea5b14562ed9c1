//! A file that has been read, held against SQLite: its migrations are run on an empty
//! database in memory beside the receiver's own tables, under the same settings and the same
//! guard as in a real one, and every statement is prepared there. What comes out is a
//! [`Spec`] with no flaw left that can be seen before an event comes.

mod handlers;
mod parameters;
mod queries;
mod sandbox;
mod tables;

use self::sandbox::Sandbox;
use super::{
    file::File,
    flaw::Flaws,
    spec::Spec,
    statements::{Piece, statements},
    text::Text,
};
use crate::receiver::projection::Migration;

/// Checks all that a file says.
///
/// # Errors
/// That of a database in memory that cannot be made at all.
pub(super) fn check(file: File, source: &str, flaws: &mut Flaws) -> rusqlite::Result<Spec> {
    let sandbox = Sandbox::new()?;
    tables::make(&sandbox, &file.migrations, flaws)?;
    let handlers = file.handlers.into_iter().map(|on| handlers::check(&sandbox, on, flaws));
    let handlers = handlers.collect();
    let queries = file.queries.into_iter().map(|query| queries::check(&sandbox, query, flaws));
    let queries = queries.collect();
    let migrations = file.migrations.into_iter();
    Ok(Spec {
        name: file.name,
        version: file.version,
        on_unknown_type: file.on_unknown_type,
        upgrade: file.upgrade,
        migrations: migrations.map(|step| Migration { sql: step.text.into() }).collect(),
        handlers,
        queries,
        source: source.to_owned(),
    })
}

/// The statement of a text that has to be one; what is wrong otherwise is noted.
fn only<'t>(text: &'t Text, place: &str, flaws: &mut Flaws) -> Option<Piece<'t>> {
    let mut pieces = statements(&text.text).into_iter();
    let first = pieces.next();
    match (&first, pieces.next()) {
        (None, _) => flaws.add(text.line_at(0), place, "is empty; one statement was expected"),
        (Some(_), Some(second)) => flaws.add(
            text.line_at(second.at),
            place,
            format!("holds {} statements; one was expected", 2 + pieces.count()),
        ),
        (Some(_), None) => {}
    }
    first
}
