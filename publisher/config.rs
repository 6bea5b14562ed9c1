//! What a publisher is told: flags over environment over file over default.

use std::{
    collections::BTreeMap,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use serde::{Deserialize, Deserializer, de};

use super::{
    log::segment,
    payloads::Payloads,
    retention::{Limits, OnAhead, WhenFull},
    snapshots::Bounds,
};
use crate::{
    process::{
        Failure,
        config::{self, Address},
    },
    proto::wire,
};

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7601);
const DEFAULT_MAX_EVENTS: u64 = 10_000_000;
const DEFAULT_MAX_BYTES: u64 = 4 << 30;
const DEFAULT_MAX_AGE: Duration = Duration::from_secs(7 * 86_400);
const DEFAULT_KEY_WINDOW: Duration = Duration::from_secs(7 * 86_400);
const DEFAULT_MAX_UNTIMED_KEYS: u64 = 10_000_000;
const DEFAULT_KEEP_SNAPSHOTS: u64 = 2;
const DEFAULT_MAX_SNAPSHOT_BYTES: u64 = 4 << 30;
const DEFAULT_HOLD_LEASE: Duration = Duration::from_secs(86_400);

/// Holds logs of events, durably, and replays them.
#[derive(Debug, Parser)]
#[command(name = "publisher", version, about)]
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
    /// Copy logs whose disk failed into new files, and put them back into service.
    Recover {
        /// Where.
        #[command(flatten)]
        at: At,
    },
    /// Read every event, receipt and snapshot, and say whether all are whole.
    Check {
        /// Where.
        #[command(flatten)]
        at: At,
    },
    /// Make a log that was restored from an older copy another one that goes on above
    /// everything any receiver has seen.
    ///
    /// The lost numbers in between are taken by events of type `counterfoil.lost`, so that
    /// there is no hole. Receivers that have seen nothing of what is lost go on by themselves.
    Fork {
        /// Where.
        #[command(flatten)]
        at: At,
        /// Which log.
        #[arg(long, value_name = "NAME", default_value = "main")]
        log: String,
        /// Number of the next event [default: one above everything any receiver has seen]
        #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
        from: Option<i64>,
    },
    /// Make lost or damaged receipts anew, from the log and from what is whole of them.
    RebuildReceipts {
        /// Where.
        #[command(flatten)]
        at: At,
        /// Only this log [default: all].
        #[arg(long, value_name = "NAME")]
        log: Option<String>,
        /// Receipts of truncated events that are lost count as expired.
        #[arg(long)]
        forget_truncated: bool,
    },
}

/// A directory that no publisher uses meanwhile.
#[derive(Debug, Args)]
pub struct At {
    /// Where the logs are kept.
    #[arg(
        long,
        env = "COUNTERFOIL_DATA_DIR",
        default_value = "./counterfoil-data",
        value_name = "DIR"
    )]
    pub data_dir: PathBuf,
}

/// The flags. Each may also stand in the environment.
#[derive(Debug, Default, Args)]
pub struct Flags {
    /// Address to serve on; port 0 picks one [default: 127.0.0.1:7601].
    #[arg(long, env = "COUNTERFOIL_LISTEN", value_name = "ADDR")]
    listen: Option<Address>,
    /// Where the logs are kept [default: ./counterfoil-data].
    #[arg(long, env = "COUNTERFOIL_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// A file with the settings, and with the logs and their bounds, as TOML.
    #[arg(long, env = "COUNTERFOIL_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The settings, checked.
#[derive(Debug)]
pub struct Settings {
    /// Address to serve on.
    pub listen: SocketAddr,
    /// Where the logs are kept.
    pub data_dir: PathBuf,
    /// The logs by name; at least one.
    pub logs: BTreeMap<String, LogSettings>,
}

/// The settings of one log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Its bounds.
    pub limits: Limits,
    /// Size of a file of events, in bytes.
    pub segment_bytes: u64,
    /// What its payloads may be.
    pub payloads: Payloads,
    /// How much of snapshots it keeps.
    pub snapshots: Bounds,
}

impl Flags {
    /// Completes the flags by the file and the defaults.
    ///
    /// # Errors
    /// [`Failure::Usage`] naming the line, the key and what was expected.
    pub fn settle(self) -> Result<Settings, Failure> {
        let file: File = match &self.config {
            Some(path) => config::read(path)?,
            None => File::default(),
        };
        Ok(Settings {
            listen: self.listen.or(file.listen).map_or(DEFAULT_LISTEN, |Address(at)| at),
            data_dir: self
                .data_dir
                .or(file.data_dir)
                .unwrap_or_else(|| PathBuf::from("./counterfoil-data")),
            logs: logs(file.logs),
        })
    }
}

/// The logs of a file; `main` where there is none.
fn logs(sections: BTreeMap<LogName, LogSection>) -> BTreeMap<String, LogSettings> {
    if sections.is_empty() {
        return [("main".to_owned(), LogSection::default().settle())].into();
    }
    sections.into_iter().map(|(name, section)| (name.0, section.settle())).collect()
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default, deserialize_with = "config::text")]
    listen: Option<Address>,
    data_dir: Option<PathBuf>,
    #[serde(default)]
    logs: BTreeMap<LogName, LogSection>,
}

/// `[logs.NAME]`.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct LogSection {
    #[serde(deserialize_with = "count")]
    max_events: Option<u64>,
    #[serde(deserialize_with = "bytes")]
    max_bytes: Option<u64>,
    #[serde(deserialize_with = "age")]
    max_age: Option<Duration>,
    when_full: Option<Rule>,
    #[serde(deserialize_with = "age")]
    key_window: Option<Duration>,
    #[serde(deserialize_with = "count")]
    max_untimed_keys: Option<u64>,
    #[serde(deserialize_with = "bytes")]
    segment_bytes: Option<u64>,
    payloads: Option<PayloadsName>,
    #[serde(deserialize_with = "count")]
    keep_snapshots: Option<u64>,
    #[serde(deserialize_with = "bytes")]
    max_snapshot_bytes: Option<u64>,
    hold_for_receivers: Option<bool>,
    #[serde(deserialize_with = "age")]
    hold_lease: Option<Duration>,
    on_ahead: Option<OnAheadName>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Rule {
    DropOldest,
    Reject,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OnAheadName {
    Alarm,
    RefusePublish,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum PayloadsName {
    Inventory,
    Any,
}

impl LogSection {
    fn settle(self) -> LogSettings {
        LogSettings {
            limits: Limits {
                max_events: self.max_events.unwrap_or(DEFAULT_MAX_EVENTS),
                max_bytes: self.max_bytes.unwrap_or(DEFAULT_MAX_BYTES),
                max_age: Some(self.max_age.unwrap_or(DEFAULT_MAX_AGE)),
                when_full: match self.when_full {
                    None | Some(Rule::DropOldest) => WhenFull::DropOldest,
                    Some(Rule::Reject) => WhenFull::Reject,
                },
                key_window: self.key_window.unwrap_or(DEFAULT_KEY_WINDOW),
                max_untimed_keys: self.max_untimed_keys.unwrap_or(DEFAULT_MAX_UNTIMED_KEYS),
                hold_for_receivers: self.hold_for_receivers.unwrap_or(false),
                hold_lease: self.hold_lease.unwrap_or(DEFAULT_HOLD_LEASE),
                on_ahead: match self.on_ahead {
                    None | Some(OnAheadName::Alarm) => OnAhead::Alarm,
                    Some(OnAheadName::RefusePublish) => OnAhead::RefusePublish,
                },
            },
            segment_bytes: self
                .segment_bytes
                .unwrap_or_else(|| segment::Options::default().segment_bytes),
            payloads: match self.payloads {
                None | Some(PayloadsName::Inventory) => Payloads::Inventory,
                Some(PayloadsName::Any) => Payloads::Any,
            },
            snapshots: Bounds {
                keep: self.keep_snapshots.unwrap_or(DEFAULT_KEEP_SNAPSHOTS),
                max_bytes: self.max_snapshot_bytes.unwrap_or(DEFAULT_MAX_SNAPSHOT_BYTES),
            },
        }
    }
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LogName(String);

impl<'de> Deserialize<'de> for LogName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        match wire::name(&name, "the name of a log") {
            Ok(()) => Ok(LogName(name)),
            Err(refusal) => Err(de::Error::custom(refusal)),
        }
    }
}

fn count<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    match i64::deserialize(from)? {
        count @ 1.. => Ok(Some(count as u64)),
        other => Err(de::Error::custom(format!("is {other}; it must be a number from 1 on"))),
    }
}

fn age<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let age = config::duration(from)?;
    if age.is_some_and(|age| age.as_millis() == 0) {
        return Err(de::Error::custom("it must be longer than nothing, such as \"7d\""));
    }
    Ok(age)
}

fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    struct Bytes;
    impl de::Visitor<'_> for Bytes {
        type Value = u64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number of bytes from 1 on, or text such as \"512MiB\" or \"4GiB\"")
        }

        fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<u64, E> {
            match bytes {
                1.. => Ok(bytes as u64),
                _ => Err(E::invalid_value(de::Unexpected::Signed(bytes), &self)),
            }
        }

        fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<u64, E> {
            if bytes == 0 {
                return Err(E::invalid_value(de::Unexpected::Unsigned(bytes), &self));
            }
            Ok(bytes)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
            parse_bytes(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
        }
    }
    from.deserialize_any(Bytes).map(Some)
}

/// Bytes as text with a unit; nothing for what is none, or zero.
fn parse_bytes(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        "TiB" => 40,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Through a file, as it is used.
    fn read(text: &str) -> Result<Settings, Failure> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("publisher.toml");
        std::fs::write(&path, text).expect("written");
        Flags { config: Some(path), ..Flags::default() }.settle()
    }

    #[test]
    fn without_a_file_there_is_main() {
        let settings = Flags::default().settle().expect("defaults");
        assert_eq!(settings.listen.to_string(), "127.0.0.1:7601");
        let main = &settings.logs["main"];
        assert_eq!(main.limits.max_events, 10_000_000);
        assert_eq!(main.limits.max_bytes, 4 << 30);
        assert_eq!(main.limits.max_age, Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(main.limits.when_full, WhenFull::DropOldest);
        assert_eq!(main.limits.key_window, Duration::from_secs(7 * 86_400));
        assert_eq!(main.limits.max_untimed_keys, 10_000_000);
        assert_eq!(main.snapshots, Bounds { keep: 2, max_bytes: 4 << 30 });
        assert!(!main.limits.hold_for_receivers);
        assert_eq!(main.limits.hold_lease, Duration::from_secs(86_400));
        assert_eq!(main.limits.on_ahead, OnAhead::Alarm);
    }

    #[test]
    fn a_file_names_logs_and_bounds_and_flags_come_first() {
        let text = "listen = \"127.0.0.1:1\"\n[logs.orders]\nmax_events = 5\nmax_bytes = \"1 KiB\"\n\
                    max_age = \"2h\"\nwhen_full = \"reject\"\nkey_window = \"3h\"\n\
                    max_untimed_keys = 9\nsegment_bytes = 4096\nkeep_snapshots = 3\n\
                    max_snapshot_bytes = \"2GiB\"\nhold_for_receivers = true\n\
                    hold_lease = \"5m\"\non_ahead = \"refuse_publish\"\n[logs.b]\n";
        let settings = read(text).expect("valid");
        assert_eq!(settings.listen.to_string(), "127.0.0.1:1");
        assert_eq!(settings.logs.keys().collect::<Vec<_>>(), ["b", "orders"]);
        let orders = &settings.logs["orders"];
        assert_eq!(orders.segment_bytes, 4096);
        assert_eq!(orders.snapshots, Bounds { keep: 3, max_bytes: 2 << 30 });
        let expected = Limits {
            max_events: 5,
            max_bytes: 1024,
            max_age: Some(Duration::from_secs(7_200)),
            when_full: WhenFull::Reject,
            key_window: Duration::from_secs(3 * 3_600),
            max_untimed_keys: 9,
            hold_for_receivers: true,
            hold_lease: Duration::from_secs(300),
            on_ahead: OnAhead::RefusePublish,
        };
        assert_eq!(orders.limits, expected);
    }

    #[test]
    fn errors_name_line_key_and_what_was_expected() {
        let cases = [
            ("[logs.main]\nmax_event = 1", "line 2", "max_event", "max_events"),
            ("[logs.main]\nmax_events = 0", "line 2", "max_events", "from 1 on"),
            ("[logs.main]\nmax_events = -4", "line 2", "max_events", "from 1 on"),
            ("[logs.main]\nkeep_snapshots = 0", "line 2", "keep_snapshots", "from 1 on"),
            ("[logs.main]\nmax_bytes = 0", "line 2", "max_bytes", "4GiB"),
            ("[logs.main]\nmax_bytes = -1", "line 2", "max_bytes", "4GiB"),
            ("[logs.main]\nmax_bytes = \"4 GB\"", "line 2", "max_bytes", "4GiB"),
            ("[logs.main]\n\nmax_age = \"0s\"", "line 3", "max_age", "7d"),
            ("[logs.main]\nmax_age = \"7\"", "line 2", "max_age", "such as"),
            ("[logs.main]\nwhen_full = \"drop\"", "line 2", "when_full", "drop_oldest"),
            ("[logs.main]\nhold_for_receivers = 1", "line 2", "hold_for_receivers", "boolean"),
            ("[logs.main]\nhold_lease = \"0s\"", "line 2", "hold_lease", "7d"),
            ("[logs.main]\non_ahead = \"halt\"", "line 2", "on_ahead", "refuse_publish"),
            ("[logs.\"a b\"]\n", "line 1", "a b", "letters, digits"),
            ("[logs.\"../x\"]\n", "line 1", "../x", "letters, digits"),
            ("port = 1\n", "line 1", "port", "listen"),
        ];
        for (text, line, key, expected) in cases {
            let wrong = read(text).expect_err(text).to_string();
            for part in [line, key, expected] {
                assert!(wrong.contains(part), "{part:?} is missing in: {wrong}");
            }
        }
    }
}
