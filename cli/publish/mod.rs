//! `counterfoil publish`: JSON lines in, receipts counted. Reading runs on a
//! thread of its own, one batch ahead of the one that is being sent.

mod input;
mod line;
#[cfg(test)]
mod scripted;
mod send;
mod summary;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;
use tonic::Status;

use self::input::{Batch, Batches, Cut, InputError};
use self::send::Sender;
pub use self::summary::Summary;
use crate::{
    arguments,
    failure::{Failure, explain},
    link,
    output::say,
    retry::{self, Verdict},
};

/// The file name that stands for standard input.
const STDIN: &str = "-";

/// Publishes and prints the summary.
///
/// # Errors
/// See [`publish`].
pub async fn run(arguments: arguments::Publish) -> Result<ExitCode, Failure> {
    let (summary, ended) = publish(&arguments).await?;
    say(&summary);
    ended?;
    Ok(if summary.refused == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Publishes. The summary tells what came of the events that were sent, also
/// where the second part says why no more were sent.
///
/// # Errors
/// [`Failure::Usage`] for a file that cannot be opened or a URL that is none,
/// and, as the second part, for a malformed line; [`Failure::Runtime`] there
/// when the publisher takes no more events or cannot be reached.
pub async fn publish(
    arguments: &arguments::Publish,
) -> Result<(Summary, Result<(), Failure>), Failure> {
    let from_stdin = arguments.file == Path::new(STDIN);
    let (input, size): (Box<dyn Read + Send>, _) = if from_stdin {
        (Box::new(io::stdin()), None)
    } else {
        let (file, size) = open(&arguments.file)?;
        (Box::new(file), size)
    };
    let cut = Cut {
        events: usize::from(arguments.batch),
        when_waiting: from_stdin,
        key_field: arguments.key_field.clone(),
    };
    let client = link::publisher(&arguments.source.publisher)?;
    let mut sender = Sender::new(client, arguments.source.log.clone(), arguments.attempts);
    let progress = progress(size);
    let started = Instant::now();
    let mut batches = read_ahead(Batches::new(input, cut));
    let mut ended = Ok(());
    while let Some(batch) = batches.recv().await {
        let sent = match batch {
            Ok(batch) => {
                let bytes_read = batch.bytes_read;
                let sent = sender.send(batch.lines).await;
                progress.set_position(bytes_read);
                sent.map_err(|status| stopped(arguments, &sender.summary, &status))
            }
            Err(error) => Err(refuse_input(&arguments.file, &error)),
        };
        if sent.is_err() {
            ended = sent;
            break;
        }
    }
    progress.finish_and_clear();
    sender.summary.elapsed = started.elapsed();
    Ok((sender.summary, ended))
}

fn open(path: &Path) -> Result<(File, Option<u64>), Failure> {
    let wrong = |error| Failure::Usage(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(wrong)?;
    let about = file.metadata().map_err(wrong)?;
    if about.is_dir() {
        return Err(Failure::Usage(format!("{}: is a directory", path.display())));
    }
    Ok((file, about.is_file().then_some(about.len())))
}

fn refuse_input(path: &Path, error: &InputError) -> Failure {
    let name =
        if path == Path::new(STDIN) { "standard input".into() } else { path.to_string_lossy() };
    let text = format!("{name}: {error}; nothing from this line on was sent");
    match error {
        InputError::Malformed(..) => Failure::Usage(text),
        InputError::Unreadable(..) => Failure::Runtime(text),
    }
}

fn stopped(arguments: &arguments::Publish, summary: &Summary, status: &Status) -> Failure {
    let at = summary.stopped_at.unwrap_or_default();
    let after = match retry::judge(status) {
        Verdict::Retry => format!(" after {} attempts", arguments.attempts),
        _ => String::new(),
    };
    let (url, why) = (&arguments.source.publisher, explain(status));
    Failure::Runtime(format!("{url}: stopped at line {at}{after}: {why}"))
}

/// Reads on a thread of its own, one batch ahead. The thread ends when the
/// input does or nobody wants the batches any more; a read that is waiting for
/// input then does not keep the process.
fn read_ahead<R: Read + Send + 'static>(
    batches: Batches<R>,
) -> mpsc::Receiver<Result<Batch, InputError>> {
    let (to, from) = mpsc::channel(1);
    std::thread::spawn(move || {
        for batch in batches {
            if to.blocking_send(batch).is_err() {
                return;
            }
        }
    });
    from
}

/// A bar for somebody who watches; nothing otherwise.
fn progress(size: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match size {
        Some(size) => (
            ProgressBar::new(size),
            "{bar:40} {percent:>3} %  {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left",
        ),
        None => (ProgressBar::new_spinner(), "{spinner} {bytes}, {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
