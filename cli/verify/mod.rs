//! `counterfoil verify`: what the publisher holds against what stands in a receiver's
//! file. Believes neither: fingerprints and chain are worked out from the events
//! themselves, and the projection's tables are made once more, beside the file.

mod check;
mod ledger;
mod moment;
mod publisher;
mod report;
mod scratch;
mod tables;
mod value;

use std::{
    io::{self, IsTerminal as _},
    path::Path,
    process::ExitCode,
    sync::Arc,
    thread,
};

use counterfoil::receiver::{
    projection::Projection,
    projections,
    store::{contents::Contents, fit},
};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::{mpsc, oneshot};

use self::{
    check::{Batch, check},
    moment::Moment,
    publisher::{Publisher, Walk},
    report::{Difference, Report},
    scratch::{Base, Directory},
};
use crate::{arguments, failure::Failure, output::say, process::told_to_end};

/// Batches of events that wait to be looked at.
const WAITING: usize = 8;

/// Why the checks go no further.
pub enum Stop {
    /// Something is not as it should be.
    Different(Difference),
    /// They cannot be made.
    Failed(Failure),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Stop::Failed(failure)
    }
}

impl From<Difference> for Stop {
    fn from(difference: Difference) -> Self {
        Stop::Different(difference)
    }
}

impl From<rusqlite::Error> for Stop {
    fn from(error: rusqlite::Error) -> Self {
        Stop::Failed(Failure::Runtime(format!("SQLite: {error}")))
    }
}

/// Compares both ends; exit code 0 only if everything was checked and is equal.
///
/// # Errors
/// [`Failure::Usage`] for a file that is no receiver's, or no URL; [`Failure::Runtime`]
/// where something cannot be read.
pub async fn run(arguments: arguments::Verify) -> Result<ExitCode, Failure> {
    let verified = tokio::select! {
        verified = verify(&arguments) => verified?,
        name = told_to_end() => return Err(Failure::Runtime(format!("ended by {name}"))),
    };
    if arguments.json {
        say(format!("{:#}", verified.json()));
    } else {
        say(verified.text().trim_end());
    }
    Ok(if verified.is_equal() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn verify(arguments: &arguments::Verify) -> Result<Report, Failure> {
    let moment = Moment::of(&arguments.db, &arguments.source.log)?;
    let mut report = Report::of(&arguments.db, &moment);
    let compared = compare(arguments, moment, &mut report).await;
    match compared {
        Ok(()) => {}
        Err(Stop::Different(difference)) => report.difference = Some(difference),
        Err(Stop::Failed(failure)) => return Err(failure),
    }
    Ok(report)
}

async fn compare(
    arguments: &arguments::Verify,
    moment: Moment,
    report: &mut Report,
) -> Result<(), Stop> {
    let mut publisher = Publisher::at(&arguments.source)?;
    let log = publisher.log().await?;
    report.log_id = log.log_id.clone();
    if let Some(cursor) = &moment.cursor {
        publisher::same_lineage(cursor, &log)?;
        publisher::not_ahead(cursor, &log)?;
    }
    let mut walk = publisher.walk(moment.cursor.as_ref()).await?;
    let directory = Directory::within(arguments.dir.as_deref())?;
    let asked = arguments.projection.as_deref();
    let base = base(&mut publisher, &moment, &walk, &directory, report, asked).await?;

    let (batches, queue) = mpsc::channel(WAITING);
    let (done, wait_done) = oneshot::channel();
    let progress = progress(walk.length());
    let (start, bar, mut checked) = (walk.start(), progress.clone(), report.clone());
    thread::Builder::new()
        .name("verify".to_owned())
        .spawn(move || {
            let ended = check(moment, base, start, queue, &bar, &mut checked);
            let _ = done.send((checked, ended)); // nobody waits any more: nothing to tell
        })
        .map_err(|error| Failure::Runtime(format!("no thread to compare on: {error}")))?;
    let walked = send_all(&mut walk, batches).await;
    let told = wait_done.await;
    progress.finish_and_clear();
    let (checked, ended) =
        told.map_err(|_| Failure::Runtime("the comparison has failed".to_owned()))?;
    *report = checked;
    // Of what came before the stream broke, the first difference says more.
    match (ended, walked) {
        (Err(Stop::Different(difference)), _) => Err(difference.into()),
        (_, Err(stop)) => Err(stop),
        (ended, Ok(())) => ended,
    }
}

/// Hands over all events up to the file's cursor, or until nobody wants more.
async fn send_all(walk: &mut Walk, batches: mpsc::Sender<Batch>) -> Result<(), Stop> {
    loop {
        let batch = tokio::select! {
            batch = walk.next() => batch?,
            () = batches.closed() => None,
        };
        let Some(batch) = batch else { return Ok(()) };
        if batches.send(batch).await.is_err() {
            return Ok(());
        }
    }
}

/// What the projection is made again from: nothing, if the log still has everything, else
/// the oldest snapshot that the log goes on from, since that has most made again.
async fn base(
    publisher: &mut Publisher,
    moment: &Moment,
    walk: &Walk,
    directory: &Directory,
    report: &mut Report,
    asked: Option<&Path>,
) -> Result<Base, Stop> {
    let projection = match projection(moment, asked)? {
        Ok(projection) => projection,
        Err(why) => {
            report.unchecked.push(format!("the tables: {why}"));
            return Ok(Base::None);
        }
    };
    let (path, last) = (directory.database(), moment.last());
    // What an earlier version has applied, this one may apply otherwise.
    let since = moment.contents.since;
    if last < 0 || (walk.start().sequence < 0 && since < 0) {
        report.rebuilt_from = Some(-1);
        return Ok(Base::Empty { path, projection });
    }
    let reach = walk.start().sequence.max(since)..=last;
    let Some(snapshot) = publisher.oldest_snapshot(&*projection, reach).await? else {
        let why = match walk.start().sequence {
            start if start < since => {
                format!("events up to {since} were applied by an earlier version of the projection")
            }
            start => format!("the log begins at {}", start + 1),
        };
        report.unchecked.push(format!(
            "the tables: {why}, and the publisher has no snapshot of the projection from there up \
             to {last} that they could be made again from"
        ));
        return Ok(Base::None);
    };
    publisher.download(&snapshot, &path).await?;
    let at = snapshot.cursor.and_then(|cursor| cursor.sequence).unwrap_or(-1);
    report.rebuilt_from = Some(at);
    Ok(Base::Snapshot { path, projection, at })
}

/// The projection that has filled the file: out of the text that it keeps, or one that this
/// program has. With a file on the command line that one has to be the same. The inner error
/// says why there is none.
fn projection(
    moment: &Moment,
    asked: Option<&Path>,
) -> Result<Result<Arc<dyn Projection>, String>, Stop> {
    let Contents { name, version, source, parts, .. } = &moment.contents;
    if let Some(file) = asked {
        let spec =
            projections::read(file).map_err(|unusable| Failure::Usage(unusable.to_string()))?;
        let given = projections::of(spec);
        let found = (given.name(), given.version());
        if found != (name.as_str(), *version) {
            let (given, at) = found;
            let expected = format!("{given} version {at}, as in {}", file.display());
            return Err(
                Difference::new("the projection", expected, format!("{name} {version}")).into()
            );
        }
        let ours = fit::digests(&given.parts());
        let difference = parts.as_ref().and_then(|noted| fit::difference(noted, &ours));
        return match difference {
            None => Ok(Ok(given)),
            Some(found) => {
                let expected = format!("the parts of {}", file.display());
                Err(Difference::new("the projection", expected, found).into())
            }
        };
    }
    Ok(match source {
        Some(source) => projections::of_source(source).map_err(|why| {
            format!("this program cannot read the projection that the file keeps: {why}")
        }),
        None => {
            projections::named(name).filter(|known| known.version() == *version).ok_or_else(|| {
                format!("this program does not have version {version} of the projection {name}")
            })
        }
    })
}

/// A bar for somebody who watches; nothing otherwise.
fn progress(events: u64) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{bar:40} {percent:>3} %  {human_pos} of {human_len} events, {eta} left  {msg}";
    let bar = ProgressBar::new(events);
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
