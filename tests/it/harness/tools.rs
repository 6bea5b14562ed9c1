//! Programs that some stories need. One that is missing is said loudly, and is a
//! failure where CI is set.

use std::{ffi::OsString, path::Path, process::Command};

use super::process::{Ended, Launch};

/// Leaves the test, loudly; under CI it fails instead.
macro_rules! skip {
    ($($why:tt)*) => {{
        let why = format!($($why)*);
        assert!(std::env::var_os("CI").is_none(), "cannot be skipped under CI: {why}");
        // Not through a macro: the output of a test that passes would be kept from view.
        let name = std::thread::current().name().unwrap_or("a test").to_owned();
        let told = format!("SKIPPED {name}: {why}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes());
        return;
    }};
}
pub(crate) use skip;

/// Whether a program is there and works; for strace, whether it may trace.
pub fn has(program: &str) -> bool {
    let args: &[&str] = match program {
        "strace" => &["-o", "/dev/null", "true"],
        "grpcurl" => &["-version"],
        _ => &["--version"],
    };
    Command::new(program).args(args).output().is_ok_and(|output| output.status.success())
}

/// `grpcurl -plaintext ARGS`.
pub fn grpcurl<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Ended {
    Launch::new("grpcurl").arg("-plaintext").args(args).run()
}

/// The tool for people.
pub fn counterfoil<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Launch {
    Launch::new(env!("CARGO_BIN_EXE_counterfoil")).args(args)
}

/// `strace` around a program that stays our direct child; what it sees goes to a file.
pub fn strace(log: &Path, options: &[&str]) -> Vec<OsString> {
    let fixed = ["strace", "-D", "-f", "-y", "-o"].map(OsString::from);
    let options = options.iter().map(OsString::from);
    fixed.into_iter().chain([log.into()]).chain(options).collect()
}
