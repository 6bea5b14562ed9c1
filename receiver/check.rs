//! `receiver check FILE`: what is wrong with a projection file, said before anything is run.

use super::{config::CheckFlags, declared::spec::Spec, projections};
use crate::{process::Failure, receiver::projections::Unusable};

/// Checks a file. Flaws go to standard error, a line each; then there is nothing to go on
/// with. A file without any is one line on standard output.
///
/// # Errors
/// [`Failure::Usage`]: the file cannot be read.
pub fn check(flags: &CheckFlags) -> Result<Option<Spec>, Failure> {
    match projections::read(&flags.file) {
        Ok(spec) => {
            println!("{}: {}", flags.file.display(), summary(&spec));
            Ok(Some(spec))
        }
        Err(Unusable::Flawed(flaws)) => {
            for flaw in flaws {
                eprintln!("{flaw}");
            }
            Ok(None)
        }
        Err(unreadable @ Unusable::Unreadable(_)) => Err(Failure::Usage(unreadable.to_string())),
    }
}

fn summary(spec: &Spec) -> String {
    let counted = |count: usize, one: &str, many: &str| {
        format!("{count} {}", if count == 1 { one } else { many })
    };
    let Spec { name, version, migrations, handlers, queries, .. } = spec;
    format!(
        "projection {name} version {version}: {}, {}, {}, no flaws",
        counted(migrations.len(), "migration", "migrations"),
        counted(handlers.len(), "handler", "handlers"),
        counted(queries.len(), "query", "queries"),
    )
}
