//! A part of the log, read without leaving a trace at the publisher: by an anonymous Replay,
//! checked as the receiver's own is. Knows nothing of who wants it.

use tokio::sync::mpsc;
use tonic::{Status, transport::Endpoint};

use super::{
    decide::{Misfit, Placing, Step},
    replay::{SILENCE, client, stated, unreachable, within},
};
use crate::proto::{
    chain::Cursor,
    event::Sequence,
    limits::{MAX_COMMIT_BYTES, MAX_COMMIT_EVENTS},
    pb::{self, replay_request::Start},
    refusal::{Reason, Refusal},
    stored::Frame,
    wire,
};

/// Frames that wait for whoever takes the events.
pub const AHEAD: usize = 8;

/// Where to begin.
#[derive(Debug, Clone, Copy)]
pub enum From {
    /// After this cursor; none: at the log's first event.
    After(Option<Cursor>),
    /// At the oldest event that is retained.
    Oldest,
}

/// What is read.
#[derive(Debug)]
pub enum Fed {
    /// What comes follows this cursor; none: it is the log's first event. Only where the
    /// oldest event was asked for.
    Begins(Option<Cursor>),
    /// The log goes on under another `log_id`, with the same history up to here.
    Adopt(Cursor),
    /// Events that follow.
    Events(Vec<Step>),
}

/// Reads the log up to a sequence, and hands it over. Ends when all of it is handed over, or
/// nobody takes it any more.
///
/// # Errors
/// The publisher's, or the transport's; OUT_OF_RANGE where it is no longer retained.
pub async fn read(
    publisher: &Endpoint,
    log: &str,
    from: From,
    last: Sequence,
    take: mpsc::Sender<Fed>,
) -> Result<(), Status> {
    let mut tail = match from {
        From::After(cursor) => cursor,
        From::Oldest => None,
    };
    if last <= place_of(tail) {
        return Ok(());
    }
    let channel = publisher.connect().await.map_err(|error| unreachable(&error))?;
    let start = match (from, &tail) {
        (_, Some(cursor)) => Start::After(wire::cursor_message(cursor)),
        (From::After(_), None) => Start::StartAt(pb::StartAt::Beginning.into()),
        (From::Oldest, None) => Start::StartAt(pb::StartAt::Oldest.into()),
    };
    let request = pb::ReplayRequest {
        log: log.to_owned(),
        start: Some(start),
        // Of the oldest event's place nothing is known yet: no more than this, in any case.
        limit: last - place_of(tail),
        ..Default::default()
    };
    let mut frames = within(SILENCE, client(channel).replay(request)).await?.into_inner();
    loop {
        let frame = within(SILENCE, frames.message()).await?;
        let (events, cursor) = match frame.map(|frame| frame.frame) {
            Some(Some(Frame::Batch(batch))) => (batch.events, stated(batch.cursor)?),
            Some(Some(Frame::Started(started))) if matches!(from, From::Oldest) => {
                tail = stated(started.cursor)?;
                if take.send(Fed::Begins(tail)).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            Some(Some(Frame::Started(started))) => {
                let Some(adopted) = adopts(&started, tail.as_ref())? else { continue };
                tail = Some(adopted);
                if take.send(Fed::Adopt(adopted)).await.is_err() {
                    return Ok(());
                }
                continue;
            }
            Some(_) => continue,
            None => {
                let there = place_of(tail);
                return match there < last {
                    true => Err(Status::unavailable(format!(
                        "the stream ended at sequence {there}, {last} was asked for"
                    ))),
                    false => Ok(()),
                };
            }
        };
        let Some(cursor) = cursor else { continue };
        let before = tail.unwrap_or_else(|| Cursor::beginning(cursor.log_id));
        let mut placing = Placing::after(before, events.len());
        for bytes in events {
            placing.put(wire::replayed(bytes)?, |_| None).map_err(misfit)?;
        }
        let (mut steps, after) = placing.finish(&cursor).map_err(misfit)?;
        if after.sequence > before.sequence {
            tail = Some(after);
        }
        steps.retain(|step| step.event().sequence <= last);
        if take.send(Fed::Events(steps)).await.is_err() || place_of(tail) >= last {
            return Ok(());
        }
    }
}

fn place_of(cursor: Option<Cursor>) -> Sequence {
    cursor.map_or(-1, |cursor| cursor.sequence)
}

/// Whether enough waits for a commit.
pub fn is_full(pending: &[Step]) -> bool {
    let bytes = || pending.iter().map(|step| step.event().intent.data.len()).sum::<usize>();
    pending.len() >= MAX_COMMIT_EVENTS || bytes() >= MAX_COMMIT_BYTES
}

fn misfit(misfit: Misfit) -> Status {
    match misfit {
        Misfit::Gap { expected, found } => Status::unavailable(format!(
            "sequence {expected} should have come from the publisher, {found} came"
        )),
        Misfit::Diverged(sequence) => Refusal::new(
            Reason::Diverged,
            format!("the publisher's history is another one at sequence {sequence}"),
        )
        .into(),
    }
}

/// The cursor under the log's name of now, where that is another one than ours.
fn adopts(started: &pb::ReplayStarted, ours: Option<&Cursor>) -> Result<Option<Cursor>, Status> {
    let Some(ours) = ours.filter(|ours| started.log_id != ours.log_id.to_string()) else {
        return Ok(None);
    };
    match stated(started.cursor.clone())? {
        Some(theirs) if (theirs.sequence, theirs.chain) == (ours.sequence, ours.chain) => {
            Ok(Some(theirs))
        }
        _ => Err(Refusal::new(
            Reason::LogMismatch,
            format!("this is log {}, what was read is of {}", started.log_id, ours.log_id),
        )
        .into()),
    }
}
