//! What a receiver is told: flags over environment over file over default.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    num::NonZeroU32,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use serde::Deserialize;
use tonic::transport::Endpoint;

use super::{projections::Wanted, pruning::Keep};
use crate::{
    process::{
        Failure,
        config::{self, Address},
    },
    proto::{
        event::Sequence,
        limits::{
            CONNECTION_WINDOW_BYTES, KEEPALIVE_INTERVAL, KEEPALIVE_TIMEOUT, REPLAY_WINDOW_BYTES,
            SNAPSHOT_SPACING,
        },
        wire,
    },
};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7602);
/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    /// Find what is wrong with a projection file, before a receiver runs it.
    Check(CheckFlags),
}

/// What to check.
#[derive(Debug, Args)]
pub struct CheckFlags {
    /// The projection file.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Run the events of this publisher's log, too, against a copy that is thrown away: what
    /// would be applied, what rejected, what would fail.
    #[arg(long, value_name = "URL")]
    publisher: Option<Publisher>,
    /// The database that the copy is made of; it may be in use [default: an empty one].
    #[arg(long, value_name = "FILE", requires = "publisher")]
    db: Option<Db>,
    /// The log.
    #[arg(long, value_name = "NAME", default_value = "main", requires = "publisher")]
    log: Name,
    /// The first event that is run, as if it came now [default: the one after what the
    /// database has].
    #[arg(long, value_name = "SEQUENCE", requires = "publisher")]
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    from: Option<i64>,
    /// Most events that are run [default: all up to the head].
    #[arg(long, value_name = "N", requires = "publisher")]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    limit: Option<i64>,
}

impl CheckFlags {
    /// The events that are to be run as well, if any.
    pub fn trial(&self) -> Option<Trial> {
        let Publisher(publisher) = self.publisher.clone()?;
        Some(Trial {
            publisher,
            log: self.log.0.clone(),
            db: self.db.clone().map(|Db(path)| path),
            from: self.from,
            limit: self.limit,
        })
    }
}

/// Which events are run against what, to see what would come of them.
#[derive(Debug)]
pub struct Trial {
    /// Where the publisher is: how to connect is set already.
    pub publisher: Endpoint,
    /// The log.
    pub log: String,
    /// The database that a copy is made of; none: an empty one.
    pub db: Option<PathBuf>,
    /// The first event, as if it came now; none: the one after what the copy has.
    pub from: Option<Sequence>,
    /// Most events; none: up to the head.
    pub limit: Option<Sequence>,
}

/// The flags. Each may also stand in the environment, or in the file under its name with `_` for `-`.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Flags {
    /// Address to serve on; port 0 picks one [default: 127.0.0.1:7602].
    #[arg(long, env = "COUNTERFOIL_LISTEN", value_name = "ADDR")]
    #[serde(deserialize_with = "config::text")]
    listen: Option<Address>,
    /// The publisher [default: http://127.0.0.1:7601].
    #[arg(long, env = "COUNTERFOIL_PUBLISHER", value_name = "URL")]
    #[serde(deserialize_with = "config::text")]
    publisher: Option<Publisher>,
    /// The log to follow [default: main].
    #[arg(long, env = "COUNTERFOIL_LOG", value_name = "NAME")]
    #[serde(deserialize_with = "config::text")]
    log: Option<Name>,
    /// This receiver's name; one process for each name [default: receiver].
    #[arg(long, env = "COUNTERFOIL_NAME", value_name = "NAME")]
    #[serde(deserialize_with = "config::text")]
    name: Option<Name>,
    /// The database [default: counterfoil.db].
    #[arg(long, env = "COUNTERFOIL_DB", value_name = "FILE")]
    #[serde(deserialize_with = "config::text")]
    db: Option<Db>,
    /// What to do with events: the path of a projection file, or the name of a projection that this
    /// program brings along [default: inventory].
    #[arg(long, env = "COUNTERFOIL_PROJECTION", value_name = "NAME|FILE")]
    #[serde(deserialize_with = "config::text")]
    projection: Option<Wanted>,
    /// What becomes of an event that cannot be applied, once its attempts are used up: the
    /// receiver halts (halt), or sets it aside and goes on (skip) [default: halt].
    #[arg(long, env = "COUNTERFOIL_ON_ERROR", value_name = "POLICY")]
    #[serde(deserialize_with = "config::text")]
    on_error: Option<OnError>,
    /// The publisher that follow-up events go to, for a projection that emits some.
    #[arg(long, env = "COUNTERFOIL_FORWARD_TO", value_name = "URL")]
    #[serde(deserialize_with = "config::text")]
    forward_to: Option<ForwardTo>,
    /// The log there [default: main].
    #[arg(long, env = "COUNTERFOIL_FORWARD_LOG", value_name = "NAME")]
    #[serde(deserialize_with = "config::text")]
    forward_log: Option<Name>,
    /// Attempts to connect in a row before halting [default: no limit].
    #[arg(long, env = "COUNTERFOIL_CONNECT_ATTEMPTS", value_name = "N")]
    connect_attempts: Option<NonZeroU32>,
    /// Attempts to apply one event before halting [default: 5].
    #[arg(long, env = "COUNTERFOIL_APPLY_ATTEMPTS", value_name = "N")]
    apply_attempts: Option<NonZeroU32>,
    /// Ledger rows to keep: "all", "retained" (those of events that the publisher still
    /// retains), or those and what was applied within a time such as "30d" [default: all].
    #[arg(long, env = "COUNTERFOIL_KEEP_LEDGER", value_name = "ROWS")]
    #[serde(deserialize_with = "config::text")]
    keep_ledger: Option<Keep>,
    /// Where events are no longer retained, go on from a snapshot by itself (auto) or once a
    /// person says so (ask) [default: auto].
    #[arg(long, env = "COUNTERFOIL_RESYNC", value_name = "POLICY")]
    #[serde(deserialize_with = "config::text")]
    resync: Option<ResyncPolicy>,
    /// Offer a snapshot to the publisher this often, beside those that retention asks for,
    /// such as 1h [default: never].
    #[arg(long, env = "COUNTERFOIL_SNAPSHOT_EVERY", value_name = "DURATION")]
    #[serde(deserialize_with = "config::text")]
    snapshot_every: Option<Every>,
    /// A file with the same settings, as TOML.
    #[arg(long, env = "COUNTERFOIL_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
}

/// The settings, checked.
#[derive(Debug)]
pub struct Settings {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// The publisher, not connected to yet.
    pub publisher: Endpoint,
    /// The log.
    pub log: String,
    /// This receiver's name.
    pub name: String,
    /// The database.
    pub db: PathBuf,
    /// Which projection.
    pub projection: Wanted,
    /// What becomes of an event that cannot be applied.
    pub on_error: OnError,
    /// Where follow-up events go to: the publisher's URL, checked.
    pub forward_to: Option<String>,
    /// The log there.
    pub forward_log: String,
    /// Attempts to connect in a row; none: no limit.
    pub connect_attempts: Option<u32>,
    /// Attempts to apply one event.
    pub apply_attempts: u32,
    /// Which ledger rows are kept.
    pub keep_ledger: Keep,
    /// What to do where events are no longer retained.
    pub resync: ResyncPolicy,
    /// How often to offer a snapshot, whatever retention asks for; none: never.
    pub snapshot_every: Option<Duration>,
}

/// What to do where the events that come next are no longer retained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResyncPolicy {
    /// Go on from a snapshot.
    Auto,
    /// The same, once a person says so.
    Ask,
}

impl FromStr for ResyncPolicy {
    type Err = String;

    fn from_str(policy: &str) -> Result<Self, String> {
        match policy {
            "auto" => Ok(ResyncPolicy::Auto),
            "ask" => Ok(ResyncPolicy::Ask),
            _ => Err(format!("{policy:?} is no policy; \"auto\" or \"ask\" was expected")),
        }
    }
}

/// What becomes of an event that cannot be applied, once its attempts are used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// The receiver halts.
    Halt,
    /// The event is set aside, and the receiver goes on.
    Skip,
}

impl FromStr for OnError {
    type Err = String;

    fn from_str(policy: &str) -> Result<Self, String> {
        match policy {
            "halt" => Ok(OnError::Halt),
            "skip" => Ok(OnError::Skip),
            _ => Err(format!("{policy:?} is no policy; \"halt\" or \"skip\" was expected")),
        }
    }
}

/// A time from one snapshot to the next.
#[derive(Debug, Clone, Copy)]
struct Every(Duration);

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let every = config::parse_duration(text)?;
        if every < SNAPSHOT_SPACING {
            return Err(format!(
                "{text:?} is too short; {SNAPSHOT_SPACING:?} or more was expected"
            ));
        }
        Ok(Every(every))
    }
}

impl Settings {
    /// The defaults, for a receiver of a log under a name.
    ///
    /// # Errors
    /// Which of them cannot be used, and what was expected.
    pub fn of(publisher: &str, log: &str, name: &str, db: &Path) -> Result<Self, String> {
        let Publisher(publisher) = publisher.parse()?;
        let (Name(log), Name(name)) = (log.parse()?, name.parse()?);
        db.to_str().map_or(Ok(Db(db.to_owned())), str::parse)?;
        let defaults = Flags::default().settle().map_err(|failure| failure.to_string())?;
        Ok(Settings { publisher, log, name, db: db.to_owned(), ..defaults })
    }
}

/// Whether follow-up events can be sent to a log of a publisher.
///
/// # Errors
/// What was expected.
pub fn check_target(url: &str, log: &str) -> Result<(), String> {
    url.parse::<ForwardTo>()?;
    log.parse::<Name>()?;
    Ok(())
}

impl Flags {
    /// Completes the flags by the file and the defaults.
    ///
    /// # Errors
    /// [`Failure::Usage`] naming the line, the key and what was expected.
    pub fn settle(self) -> Result<Settings, Failure> {
        let file = match &self.config {
            Some(path) => config::read(path)?,
            None => Flags::default(),
        };
        Ok(Settings {
            listen: self.listen.or(file.listen).map_or(DEFAULT_LISTEN, |Address(at)| at),
            publisher: match self.publisher.or(file.publisher) {
                Some(Publisher(endpoint)) => endpoint,
                None => connecting(Endpoint::from_static("http://127.0.0.1:7601")),
            },
            log: self.log.or(file.log).map_or_else(|| "main".to_owned(), |Name(name)| name),
            name: self.name.or(file.name).map_or_else(|| "receiver".to_owned(), |Name(name)| name),
            db: self.db.or(file.db).map_or_else(|| "counterfoil.db".into(), |Db(path)| path),
            projection: self
                .projection
                .or(file.projection)
                .unwrap_or_else(|| Wanted::Named("inventory".to_owned())),
            on_error: self.on_error.or(file.on_error).unwrap_or(OnError::Halt),
            forward_to: self.forward_to.or(file.forward_to).map(|ForwardTo(url)| url),
            forward_log: self
                .forward_log
                .or(file.forward_log)
                .map_or_else(|| "main".to_owned(), |Name(name)| name),
            connect_attempts: self.connect_attempts.or(file.connect_attempts).map(u32::from),
            apply_attempts: self.apply_attempts.or(file.apply_attempts).map_or(5, u32::from),
            keep_ledger: self.keep_ledger.or(file.keep_ledger).unwrap_or(Keep::All),
            resync: self.resync.or(file.resync).unwrap_or(ResyncPolicy::Auto),
            snapshot_every: self.snapshot_every.or(file.snapshot_every).map(|Every(every)| every),
        })
    }
}

/// A publisher to connect to.
#[derive(Debug, Clone)]
struct Publisher(Endpoint);

impl FromStr for Publisher {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        endpoint(url).map(|endpoint| Publisher(connecting(endpoint)))
    }
}

/// A publisher to forward to.
#[derive(Debug, Clone)]
struct ForwardTo(String);

impl FromStr for ForwardTo {
    type Err = String;

    fn from_str(url: &str) -> Result<Self, String> {
        endpoint(url).map(|_| ForwardTo(url.to_owned()))
    }
}

fn endpoint(url: &str) -> Result<Endpoint, String> {
    let wrong = |why: &str| format!("{url:?} is no URL such as http://127.0.0.1:7601: {why}");
    let endpoint =
        Endpoint::from_shared(url.to_owned()).map_err(|error| wrong(&error.to_string()))?;
    let uri = endpoint.uri();
    if uri.scheme_str() != Some("http") || uri.host().is_none_or(str::is_empty) {
        return Err(wrong("http:// and a host were expected"));
    }
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wrong("nothing was expected behind the host and the port"));
    }
    Ok(endpoint)
}

/// Keepalive also while nothing comes; no deadline over all, or a quiet Replay would end.
/// The windows let frames come without a pause for the way back, over longer ways too.
fn connecting(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(REPLAY_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_while_idle(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
}

/// The name of a log or a receiver.
#[derive(Debug, Clone)]
struct Name(String);

impl FromStr for Name {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        wire::name(name, "the name").map_err(|wrong| wrong.message)?;
        Ok(Name(name.to_owned()))
    }
}

/// The path of a database.
#[derive(Debug, Clone)]
struct Db(PathBuf);

impl FromStr for Db {
    type Err = String;

    fn from_str(path: &str) -> Result<Self, String> {
        match path {
            "" | ":memory:" => Err(format!("{path:?} is no path of a file, which was expected")),
            path => Ok(Db(path.into())),
        }
    }
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
    fn a_projection_is_a_name_or_a_path() {
        let file = |path: &str| Wanted::File(path.into());
        for (written, expected) in [
            ("inventory", Wanted::Named("inventory".to_owned())),
            ("sales.toml", file("sales.toml")),
            ("./sales", file("./sales")),
            ("projections/sales/projection.toml", file("projections/sales/projection.toml")),
        ] {
            let settings = settle(&["--projection", written]).expect("valid");
            assert_eq!(settings.projection, expected);
        }
    }

    #[test]
    fn bad_flags_are_named() {
        for (flag, value) in [
            ("--listen", "nowhere"),
            ("--publisher", "nonsense"),
            ("--publisher", "https://x:1"),
            ("--publisher", "http://"),
            ("--publisher", "http://x:1/path"),
            ("--name", "a b"),
            ("--log", ""),
            ("--db", ""),
            ("--db", ":memory:"),
            ("--projection", "xx"),
            ("--projection", ""),
            ("--apply-attempts", "0"),
            ("--keep-ledger", "30"),
            ("--resync", "never"),
            ("--on-error", "ignore"),
            ("--forward-to", "https://x:1"),
            ("--snapshot-every", "7"),
            ("--snapshot-every", "10ms"),
        ] {
            let error = Cli::try_parse_from(["receiver", flag, value]).expect_err(flag);
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(flag), "{error}");
        }
    }

    #[test]
    fn a_bad_value_in_a_file_has_its_line_its_key_and_what_was_expected() {
        for (key, value, expected) in [
            ("listen", "\"nowhere\"", "127.0.0.1:7601"),
            ("publisher", "\"https://x:1\"", "http://"),
            ("name", "\"a b\"", "letters"),
            ("log", "\"\"", "1 to 128"),
            ("db", "\"\"", "path"),
            ("projection", "\"xx\"", "inventory"),
            ("connect_attempts", "0", "nonzero"),
            ("keep_ledger", "\"some\"", "retained"),
            ("resync", "\"never\"", "ask"),
            ("snapshot_every", "\"10ms\"", "1s or more"),
        ] {
            let mut file = tempfile::NamedTempFile::new().expect("temporary file");
            writeln!(file, "# one\n{key} = {value}").expect("written");
            let path = file.path().to_str().expect("UTF-8");
            let failure = settle(&["--config", path]).expect_err(key);
            assert_eq!(failure.code(), 2);
            for part in ["line 2", key, expected] {
                assert!(failure.to_string().contains(part), "{part:?} is missing in: {failure}");
            }
        }
    }
}
