//! `counterfoil tail`: an anonymous look at a log, one event a line. Leaves no
//! trace at the publisher.

use std::{
    io::{BufWriter, StdoutLock, Write as _},
    process::ExitCode,
    time::Duration,
};

use counterfoil::{
    client::{Verdict, delay, judge},
    proto::{
        pb::{
            Cursor, ReplayRequest, ReplayStarted, StartAt,
            publisher_service_client::PublisherServiceClient, replay_request::Start,
            replay_response::Frame,
        },
        refusal::{Reason, Refusal},
    },
};
use tonic::{Status, transport::Channel};

use crate::{
    arguments, event_json,
    failure::{Failure, explain},
    link,
};

/// Without a frame for so long, heartbeats included, the connection is taken for dead.
const SILENCE: Duration = Duration::from_secs(45);

/// How far the printing has come.
struct Progress {
    /// After the last frame: where a reconnect goes on.
    cursor: Option<Cursor>,
    /// Sequences below are not printed.
    from: i64,
    printed: u64,
    out: BufWriter<StdoutLock<'static>>,
}

/// Prints until the head, the limit, or, with `--follow`, for ever.
///
/// # Errors
/// [`Failure::Runtime`] when the publisher refuses, or, without `--follow`,
/// when the stream breaks; [`Failure::OutputClosed`] when nobody reads any more.
pub async fn run(arguments: arguments::Tail) -> Result<ExitCode, Failure> {
    let mut client = link::publisher(&arguments.source.publisher)?;
    let mut progress = Progress {
        cursor: None,
        from: arguments.from.unwrap_or(0),
        printed: 0,
        out: BufWriter::with_capacity(64 * 1024, std::io::stdout().lock()),
    };
    let mut attempt = 1;
    loop {
        let printed = progress.printed;
        let status = match read(&mut client, &arguments, &mut progress).await? {
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(status) => status,
        };
        if !arguments.follow || judge(&status) != Verdict::Retry {
            return Err(Failure::call(&arguments.source.publisher, &status));
        }
        attempt = if progress.printed > printed { 2 } else { attempt + 1 };
        if attempt == 2 {
            eprintln!("{}; trying again", explain(&status));
        }
        tokio::time::sleep(delay(attempt, rand::random())).await;
    }
}

/// One stream, to its end. The inner error is the publisher's or the network's.
async fn read(
    client: &mut PublisherServiceClient<Channel>,
    arguments: &arguments::Tail,
    progress: &mut Progress,
) -> Result<Result<(), Status>, Failure> {
    let start = match &progress.cursor {
        Some(cursor) => Start::After(cursor.clone()),
        None => Start::StartAt(StartAt::Oldest.into()),
    };
    let request = ReplayRequest {
        log: arguments.source.log.clone(),
        start: Some(start),
        follow: arguments.follow,
        types: arguments.types.clone(),
        ..Default::default()
    };
    let mut stream = match client.replay(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return Ok(Err(status)),
    };
    loop {
        let response = match tokio::time::timeout(SILENCE, stream.message()).await {
            Ok(Ok(Some(response))) => response,
            Ok(Ok(None)) => return Ok(Ok(())),
            Ok(Err(status)) => return Ok(Err(status)),
            Err(_) => {
                let silent = format!("nothing was heard for {SILENCE:?}");
                return Ok(Err(Status::unavailable(silent)));
            }
        };
        match response.frame {
            Some(Frame::Started(started)) if progress.cursor.is_none() => {
                if let Err(refusal) = check_from(arguments.from, &started) {
                    return Ok(Err(refusal.into()));
                }
                progress.cursor = started.cursor;
            }
            Some(Frame::Batch(batch)) => {
                for event in batch.events {
                    if event.sequence.unwrap_or(-1) < progress.from {
                        continue;
                    }
                    writeln!(progress.out, "{}", event_json::line(event))
                        .map_err(Failure::output)?;
                    progress.printed += 1;
                    if Some(progress.printed) == arguments.limit {
                        progress.out.flush().map_err(Failure::output)?;
                        return Ok(Ok(()));
                    }
                }
                progress.out.flush().map_err(Failure::output)?;
                progress.cursor = batch.cursor;
            }
            _ => {}
        }
    }
}

/// Whether printing may begin at `from`. The publisher cannot judge that: a
/// place without a chain proves nothing to it.
fn check_from(from: Option<i64>, started: &ReplayStarted) -> Result<(), Refusal> {
    let Some(from) = from else { return Ok(()) };
    let floor = started.floor_sequence.unwrap_or(0);
    let next = started.next_sequence.unwrap_or(0);
    let refuse = |reason, message: String| {
        Err(Refusal::new(reason, message).with("floor", floor).with("next", next))
    };
    if from < floor {
        refuse(
            Reason::CursorExpired,
            format!("sequence {from} is no longer retained; the oldest is {floor}"),
        )
    } else if from > next {
        refuse(
            Reason::CursorAhead,
            format!("sequence {from} lies beyond the end; the next event gets {next}"),
        )
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_outside_the_log_is_refused() {
        let started =
            ReplayStarted { floor_sequence: Some(5), next_sequence: Some(9), ..Default::default() };
        let cases = [
            (None, None),
            (Some(4), Some(Reason::CursorExpired)),
            (Some(5), None),
            (Some(9), None),
            (Some(10), Some(Reason::CursorAhead)),
        ];
        for (from, reason) in cases {
            let refused = check_from(from, &started).err().map(|refusal| refusal.reason);
            assert_eq!(refused, reason, "{from:?}");
        }
    }
}
