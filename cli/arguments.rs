//! What may be typed.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use prost_types::Timestamp;

use crate::bench::Group;

/// Publishes events, looks at logs and receivers.
#[derive(Debug, Parser)]
#[command(name = "counterfoil", version, propagate_version = true)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Publish events from JSON lines
    Publish(Publish),
    /// Print the events of a log, one JSON object a line
    Tail(Tail),
    /// Show both ends on one screen
    Status(Status),
    /// Show what became of a key
    Receipt(Receipt),
    /// Show the snapshots that a publisher keeps of its receivers' databases
    Snapshots(Snapshots),
    /// Let a publisher forget a receiver that is gone for good
    RemoveReceiver(RemoveReceiver),
    /// Have a receiver make a snapshot now and upload it to the publisher
    Snapshot(Snapshot),
    /// Give up what a receiver's database has, and go on from the publisher's newest snapshot
    Resync(Resync),
    /// Ask a receiver what its projection has made
    Query(Query),
    /// Set aside the event that a receiver cannot apply, and let it go on behind it
    Skip(Skip),
    /// Apply an event now that was set aside
    ApplySkipped(ApplySkipped),
    /// Give up a follow-up event that another publisher refuses for good
    SkipFollowUp(SkipFollowUp),
    /// Ask a service whether it is serving: exit code 0 if so, else 1
    Health(Health),
    /// Run the pair on example data, kill the receiver on the way, compare totals
    Demo(Demo),
    /// Compare a receiver's file with the publisher's log: exit code 0 if all is equal
    Verify(Verify),
    /// Measure how fast each stage is here, beside the limits of its parts
    Bench(Bench),
    /// A part of `bench`
    #[command(hide = true)]
    BenchLimit(BenchLimit),
}

/// Which log of which publisher.
#[derive(Debug, Clone, Args)]
pub struct Source {
    /// The publisher
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:7601",
        env = "COUNTERFOIL_PUBLISHER"
    )]
    pub publisher: String,
    /// The log
    #[arg(long, value_name = "NAME", default_value = "main", env = "COUNTERFOIL_LOG")]
    pub log: String,
}

/// Publish events from JSON lines.
///
/// A line is one NewEvent in the JSON of its .proto:
///
///   {"key":"k1","type":"stock.adjusted","subject":"camera","json":{"delta":3}}
///
/// Names may be camelCase or snake_case. Events are sent in order, each for
/// itself, over one stream. Where some of them are refused, the others are still
/// sent. An answer that was lost is asked for again under the same key. Exit
/// code: 0 all accepted, 1 some refused or not sent, 2 a line that is no event.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment)]
pub struct Publish {
    /// Where to publish.
    #[command(flatten)]
    pub source: Source,
    /// The file; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub file: PathBuf,
    /// For lines without a key: take it from this field of the payload, a name
    /// or a JSON pointer such as /order/id. Without this flag they get a UUIDv7
    #[arg(long, value_name = "FIELD")]
    pub key_field: Option<String>,
    /// Most events sent and not yet answered; 1: strictly one after the other
    #[arg(long, value_name = "N", default_value_t = 1024,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub in_flight: u16,
    /// Attempts at one event while the publisher cannot be reached
    #[arg(long, value_name = "N", default_value_t = 12,
          value_parser = clap::value_parser!(u32).range(1..))]
    pub attempts: u32,
}

/// Print the events of a log, one JSON object a line.
#[derive(Debug, Clone, Args)]
pub struct Tail {
    /// Where to look.
    #[command(flatten)]
    pub source: Source,
    /// First sequence to print; default: the oldest that is retained
    #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
    pub from: Option<i64>,
    /// Stay for new events, through reconnects
    #[arg(long, short)]
    pub follow: bool,
    /// End after this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Only events of this type; may be repeated
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
}

/// Have a receiver make a snapshot now and upload it to the publisher.
///
/// Prints the snapshot once the publisher has stored it.
#[derive(Debug, Clone, Args)]
pub struct Snapshot {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Give up what a receiver's database has, and go on from the publisher's newest snapshot.
///
/// For a receiver that waits for it (RESYNCING; its status says so), or that has HALTED
/// because the publisher's history is another one. What the database had is kept in a file
/// beside it wherever its history may be another one. After a halt, where the publisher has
/// no snapshot that fits and its log still starts at 0, the receiver begins anew. Returns
/// once it is under way; `status` shows how it goes.
#[derive(Debug, Clone, Args)]
pub struct Resync {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// The receiver's name, as confirmation
    #[arg(long, value_name = "NAME")]
    pub confirm: String,
}

/// Ask a receiver what its projection has made.
///
/// The rows of a query that the projection declares, as they are at one moment; without a
/// name, the queries that there are.
#[derive(Debug, Clone, Args)]
pub struct Query {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// The query's name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Its parameters. One that is left out is NULL
    #[arg(value_name = "NAME=VALUE")]
    pub parameters: Vec<String>,
    /// Answer only once this sequence is applied: with the one of a receipt, what was
    /// published is in the answer
    #[arg(long, value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
    pub min_sequence: Option<i64>,
    /// All pages, and not only the first
    #[arg(long)]
    pub all: bool,
    /// Show the queries that there are
    #[arg(long)]
    pub list: bool,
    /// Print JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// Set aside the event that a receiver cannot apply, and let it go on behind it.
///
/// For a receiver that is RETRYING an event, or has HALTED on one; its status says which. The
/// event is kept, and its effect can be made later: `counterfoil apply-skipped`.
#[derive(Debug, Clone, Args)]
pub struct Skip {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// The event's sequence
    #[arg(value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
    pub sequence: i64,
    /// Why, for the ledger and the publisher
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Apply an event now that was set aside.
///
/// After all that is applied by then. Where it fails again, nothing has changed.
#[derive(Debug, Clone, Args)]
pub struct ApplySkipped {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// The event's sequence
    #[arg(value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
    pub sequence: i64,
}

/// Give up a follow-up event that another publisher refuses for good.
///
/// For a receiver whose forwarding has stopped; its status says at which. That one will not be
/// forwarded, and those after it are.
#[derive(Debug, Clone, Args)]
pub struct SkipFollowUp {
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// The sequence of the event that it follows from
    #[arg(value_name = "SEQUENCE", value_parser = clap::value_parser!(i64).range(0..))]
    pub sequence: i64,
    /// Its number among those that follow from that event
    #[arg(value_name = "NUMBER", value_parser = clap::value_parser!(i64).range(0..))]
    pub number: i64,
    /// Why, kept beside it
    #[arg(long, value_name = "TEXT")]
    pub reason: String,
}

/// Which receiver.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// The receiver
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:7602",
        env = "COUNTERFOIL_RECEIVER"
    )]
    pub receiver: String,
}

/// Show both ends on one screen.
#[derive(Debug, Clone, Args)]
pub struct Status {
    /// The log.
    #[command(flatten)]
    pub source: Source,
    /// Which receiver.
    #[command(flatten)]
    pub target: Target,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show what became of a key.
#[derive(Debug, Clone, Args)]
pub struct Receipt {
    /// Where to ask.
    #[command(flatten)]
    pub source: Source,
    /// The idempotency key
    pub key: String,
    /// The firstAttemptTime that its event stated, such as 2026-01-31T12:00:00Z: a key
    /// that is no UUIDv7 does not tell by itself whether its receipt may have expired
    #[arg(long, value_name = "TIME")]
    pub first_attempt_time: Option<Timestamp>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show the snapshots that a publisher keeps of its receivers' databases.
///
/// Those that a receiver may resume from, the newest first.
#[derive(Debug, Clone, Args)]
pub struct Snapshots {
    /// Where to look.
    #[command(flatten)]
    pub source: Source,
    /// Only those of this projection
    #[arg(long, value_name = "NAME", default_value = "")]
    pub projection: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Compare a receiver's file with the publisher's log.
///
/// Reads all events that the publisher retains, up to where the file is, and works out
/// their fingerprints and chain; reads the file's ledger; makes the projection's tables
/// once more, from the first event or from a snapshot that the publisher keeps, in a
/// temporary file; and compares. Both services may go on meanwhile: the file is looked at
/// as it is at one moment. Exit code: 0 everything was checked and is equal; 1 something
/// differs (the first difference is said), could not be checked, or failed; 2 wrong usage,
/// or no file of a receiver's.
#[derive(Debug, Clone, Args)]
pub struct Verify {
    /// The log.
    #[command(flatten)]
    pub source: Source,
    /// The receiver's database
    #[arg(long, value_name = "FILE", env = "COUNTERFOIL_DB")]
    pub db: PathBuf,
    /// The projection file that the database has to be filled by; default: the text that the
    /// database keeps
    #[arg(long, value_name = "FILE")]
    pub projection: Option<PathBuf>,
    /// Where the tables are made once more; default: where the system makes temporary files
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Let a publisher forget a receiver that is gone for good.
///
/// It holds no events any more, and what it has reported is not told any more. One that
/// comes back under the name is a new one. Refused while it is connected.
#[derive(Debug, Clone, Args)]
pub struct RemoveReceiver {
    /// Where it is known.
    #[command(flatten)]
    pub source: Source,
    /// The receiver's name
    pub name: String,
    /// The same name again
    #[arg(long, value_name = "NAME")]
    pub confirm: String,
}

/// Ask a service whether it is serving.
#[derive(Debug, Clone, Args)]
pub struct Health {
    /// The publisher or receiver
    #[arg(value_name = "URL")]
    pub url: String,
    /// Full name of one gRPC service; default: the process as a whole
    #[arg(value_name = "SERVICE", default_value = "")]
    pub service: String,
}

/// Run the pair on example data, kill the receiver on the way, compare totals.
///
/// Starts `publisher` and `receiver`, which stand beside this program, on free
/// ports with a temporary directory; everything is gone afterwards. Exit code 0
/// only if all figures agree with those worked out independently.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment)]
pub struct Demo {
    /// The events; what a receiver must hold after them stands beside the
    /// file, under the ending .totals.json
    #[arg(long, value_name = "FILE", default_value = "examples/vending.jsonl")]
    pub events: PathBuf,
}

/// Measure how fast each stage is here, beside the limits of its parts.
///
/// Starts `publisher` and `receiver`, which stand beside this program, with their
/// default configuration on free ports and in a temporary directory; everything is
/// gone afterwards. Events are adjustments of stock with UUIDv7 keys and payloads
/// of 100 and 1,024 bytes. In each round, for each size, the limits of disk, SQLite
/// and tonic are measured, a new log is filled, and the stages take their turns on
/// it; the figures are medians of the rounds, ratios are those within a round.
#[derive(Debug, Clone, Args)]
#[command(verbatim_doc_comment)]
pub struct Bench {
    /// Where the temporary directory is made; default: where the system makes them.
    /// Has to be on a disk, with about 3 GiB free
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Shorter turns, and fewer events: about a minute for a round
    #[arg(long)]
    pub quick: bool,
    /// Rounds
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u16).range(1..))]
    pub rounds: u16,
    /// Only these stages, with commas between them
    #[arg(long, value_name = "STAGES", value_delimiter = ',')]
    pub only: Vec<Group>,
    /// Events, and keys, in the log before the stages take their turns; default:
    /// 1,000,000, with --quick 100,000
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub events: Option<u64>,
    /// Write a plot to this file, too
    #[arg(long, value_name = "FILE", conflicts_with = "growth")]
    pub svg: Option<PathBuf>,
    /// In place of the stages, with --rounds steps of 25,000 events: what an event
    /// costs with 100,000 and with 10,000,000 events and keys retained (--events sets
    /// the larger number), how long a restart takes, and memory. Takes 12 GiB of disk
    #[arg(long, conflicts_with = "only")]
    pub growth: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A part that is measured in a process of its own.
#[derive(Debug, Clone, Args)]
pub struct BenchLimit {
    /// Which.
    #[command(subcommand)]
    pub limit: Limit,
}

/// Which part.
#[derive(Debug, Clone, Subcommand)]
pub enum Limit {
    /// Serve canned answers
    Echo {
        /// Bytes of a payload
        #[arg(long)]
        payload: usize,
    },
    /// Append and sync
    Disk {
        /// Bytes of one append
        #[arg(long)]
        bytes: usize,
        /// Events that they stand for
        #[arg(long)]
        events: u64,
        /// For so long
        #[arg(long)]
        millis: u64,
    },
    /// Run the receiver's statements
    Sqlite {
        /// Events
        #[arg(long)]
        events: u64,
    },
}
