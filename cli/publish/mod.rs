//! `counterfoil publish`: JSON lines in, receipts counted. Reading runs on a
//! thread of its own, one chunk ahead of the one that is being sent.

mod input;
mod line;
mod send;
mod summary;

use std::{
    fs::File,
    io::{self, IsTerminal as _, Read},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use counterfoil::client::{Publisher, Settings};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::mpsc;

use self::input::{Chunk, Chunks, InputError};
use self::send::Sender;
pub use self::summary::Summary;
use crate::{arguments, failure::Failure, output::say};

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
    let settings = Settings {
        log: arguments.source.log.clone(),
        attempts: Some(arguments.attempts),
        ..Settings::new(&arguments.source.publisher)
    };
    let publisher =
        Publisher::connect(settings).map_err(|error| Failure::Usage(error.to_string()))?;
    let mut sender = Sender::new(publisher, arguments.in_flight.into());
    let progress = progress(size);
    let started = Instant::now();
    let mut chunks = read_ahead(Chunks::new(input, arguments.key_field.clone()));
    let mut ended = Ok(());
    while !sender.is_stopped() {
        // What is answered while the input lets us wait is noted at once.
        let chunk = tokio::select! {
            biased;
            () = sender.next_answer() => continue,
            chunk = chunks.recv() => chunk,
        };
        match chunk {
            Some(Ok(Chunk { lines, bytes_read })) => {
                for line in lines {
                    sender.send(line).await;
                }
                progress.set_position(bytes_read);
            }
            Some(Err(error)) => {
                ended = Err(refuse_input(&arguments.file, &error));
                break;
            }
            None => break,
        }
    }
    sender.all_answers().await;
    progress.finish_and_clear();
    let mut summary = sender.summary;
    summary.elapsed = started.elapsed();
    if let Some(stop) = &summary.stop {
        ended = Err(Failure::Runtime(format!("{}: {stop}", arguments.source.publisher)));
    }
    Ok((summary, ended))
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

/// Reads on a thread of its own, one chunk ahead. The thread ends when the
/// input does or nobody wants the chunks any more; a read that is waiting for
/// input then does not keep the process.
fn read_ahead<R: Read + Send + 'static>(
    chunks: Chunks<R>,
) -> mpsc::Receiver<Result<Chunk, InputError>> {
    let (to, from) = mpsc::channel(1);
    std::thread::spawn(move || {
        for chunk in chunks {
            if to.blocking_send(chunk).is_err() {
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
