//! Standard output that may be closed by its reader: no reason to panic, nor to
//! stop. Nobody reads the text then; the exit code still tells.

use std::{fmt::Display, io::Write as _};

/// Prints one line, or several.
pub fn say(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
