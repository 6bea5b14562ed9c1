//! What a receiver is told: flags over environment over file over default.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use serde::Deserialize;
use tonic::transport::Endpoint;

use crate::{
    process::{Failure, config},
    proto::{
        limits::{KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT},
        wire,
    },
};

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// Applies a log's events to a SQLite database, each exactly once.
#[derive(Debug, Parser)]
#[command(name = "receiver", version, about)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Something other than serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// How to serve.
    #[command(flatten)]
    pub serve: Flags,
}

/// What else the program can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Copy a database whose disk failed into new files, and put it back into service.
    Recover {
        /// The database.
        #[arg(long, env = "COUNTERFOIL_DB", default_value = "counterfoil.db")]
        db: PathBuf,
    },
}

/// The flags. Each may also stand in the environment, or in the file under its name with `_` for `-`.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flags {
    /// Address to serve on; port 0 picks one [default: 127.0.0.1:7602].
    #[arg(long, env = "COUNTERFOIL_LISTEN", value_name = "ADDR")]
    listen: Option<String>,
    /// The publisher [default: http://127.0.0.1:7601].
    #[arg(long, env = "COUNTERFOIL_PUBLISHER", value_name = "URL")]
    publisher: Option<String>,
    /// The log to follow [default: main].
    #[arg(long, env = "COUNTERFOIL_LOG", value_name = "NAME")]
    log: Option<String>,
    /// This receiver's name; one process for each name [default: receiver].
    #[arg(long, env = "COUNTERFOIL_NAME", value_name = "NAME")]
    name: Option<String>,
    /// The database [default: counterfoil.db].
    #[arg(long, env = "COUNTERFOIL_DB", value_name = "FILE")]
    db: Option<PathBuf>,
    /// What to do with events [default: inventory].
    #[arg(long, env = "COUNTERFOIL_PROJECTION", value_name = "NAME")]
    projection: Option<String>,
    /// Attempts to connect in a row before halting [default: no limit].
    #[arg(long, env = "COUNTERFOIL_CONNECT_ATTEMPTS", value_name = "N")]
    connect_attempts: Option<u32>,
    /// Attempts to apply one event before halting [default: 5].
    #[arg(long, env = "COUNTERFOIL_APPLY_ATTEMPTS", value_name = "N")]
    apply_attempts: Option<u32>,
    /// A file with the same settings, as TOML.
    #[arg(long, env = "COUNTERFOIL_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
}

/// The settings, checked.
#[derive(Debug)]
pub struct Settings {
    /// Address to serve on.
    pub listen: String,
    /// The publisher, not connected to yet.
    pub publisher: Endpoint,
    /// The log.
    pub log: String,
    /// This receiver's name.
    pub name: String,
    /// The database.
    pub db: PathBuf,
    /// The projection's name.
    pub projection: String,
    /// Attempts to connect in a row; none: no limit.
    pub connect_attempts: Option<u32>,
    /// Attempts to apply one event.
    pub apply_attempts: u32,
}

impl Flags {
    /// Completes the flags by the file and the defaults, and checks them.
    ///
    /// # Errors
    /// [`Failure::Usage`] naming the setting and what was expected.
    pub fn settle(self) -> Result<Settings, Failure> {
        let file = match &self.config {
            Some(path) => config::read(path)?,
            None => Flags::default(),
        };
        let or = |flag: Option<String>, file: Option<String>, default: &str| {
            flag.or(file).unwrap_or_else(|| default.to_owned())
        };
        let settings = Settings {
            listen: or(self.listen, file.listen, "127.0.0.1:7602"),
            publisher: endpoint(or(self.publisher, file.publisher, "http://127.0.0.1:7601"))?,
            log: or(self.log, file.log, "main"),
            name: or(self.name, file.name, "receiver"),
            db: self.db.or(file.db).unwrap_or_else(|| "counterfoil.db".into()),
            projection: or(self.projection, file.projection, "inventory"),
            connect_attempts: self.connect_attempts.or(file.connect_attempts),
            apply_attempts: self.apply_attempts.or(file.apply_attempts).unwrap_or(5),
        };
        for (field, value) in [("log", &settings.log), ("name", &settings.name)] {
            wire::name(value, field).map_err(|wrong| Failure::Usage(wrong.message))?;
        }
        let attempts = [
            ("connect_attempts", settings.connect_attempts),
            ("apply_attempts", Some(settings.apply_attempts)),
        ];
        for (field, count) in attempts {
            if count == Some(0) {
                return Err(Failure::Usage(format!("{field}: is 0; at least 1 was expected")));
            }
        }
        Ok(settings)
    }
}

/// Keepalive also while nothing comes; no deadline over all, or a quiet Replay would end.
fn endpoint(url: String) -> Result<Endpoint, Failure> {
    let wrong = |why: String| {
        Failure::Usage(format!("publisher: {url:?} is no URL such as http://127.0.0.1:7601: {why}"))
    };
    let endpoint = Endpoint::from_shared(url.clone()).map_err(|error| wrong(error.to_string()))?;
    let uri = endpoint.uri();
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return Err(wrong("http:// and a host were expected".to_owned()));
    }
    Ok(endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .keep_alive_while_idle(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn settle(flags: &[&str]) -> Result<Settings, Failure> {
        let flags = std::iter::once("receiver").chain(flags.iter().copied());
        Cli::try_parse_from(flags).expect("flags").serve.settle()
    }

    #[test]
    fn flags_over_file_over_default() {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        writeln!(file, "log = \"orders\"\napply_attempts = 2").expect("written");
        let path = file.path().to_str().expect("UTF-8");
        let settings = settle(&["--config", path, "--apply-attempts", "9"]).expect("valid");
        assert_eq!(settings.log, "orders");
        assert_eq!(settings.apply_attempts, 9);
        assert_eq!(settings.name, "receiver");
    }

    #[test]
    fn bad_settings_are_named() {
        for (flags, field) in [
            (["--publisher", "nonsense"], "publisher"),
            (["--publisher", "https://x:1"], "publisher"),
            (["--publisher", "http://"], "publisher"),
            (["--name", "a b"], "name"),
            (["--log", ""], "log"),
            (["--apply-attempts", "0"], "apply_attempts"),
        ] {
            let failure = settle(&flags).expect_err(field);
            assert_eq!(failure.code(), 2);
            assert!(failure.to_string().contains(field), "{failure}");
        }
    }
}
