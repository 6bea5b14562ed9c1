//! Follow-up events out: what the projection has emitted goes to another publisher, in its
//! order, and is noted as forwarded once its receipt is there. It follows the commits and
//! never holds them up. A death at any point repeats under the same keys, and the other
//! publisher answers a repeat with the first receipt: each is there once.
//!
//! One request is on its way at a time, with as many events as it may have, all or none:
//! what is refused is not overtaken by what came after it. Before any of it is noted it is
//! looked whether what was forwarded before is still there.

pub mod judge;
pub mod look;
mod search;
pub mod shown;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{mpsc, oneshot},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::{
    judge::{Pace, Verdict, judge},
    look::{Receipts, Seen, Unseen},
    shown::Stuck,
};
use super::{
    apply::{Noted, Work},
    projection::Projection,
    readers::Readers,
    retry::said,
    status::{Board, Failure},
    store::{
        marks::{self, Mark},
        outbox::{self, Forwarded, Outgoing},
    },
};
use crate::{
    client::{self, PublishError, Publisher},
    process,
    proto::{
        backoff::{CALL_BASE, backoff},
        crash,
        event::Time,
        limits::MAX_BATCH_BYTES,
        pb::Receipt,
        refusal::reason_of,
        wire,
    },
};

/// The reason where the other publisher cannot be reached.
const UNREACHABLE: &str = "FORWARD_UNREACHABLE";
/// The reason where what was received cannot be noted, or what waits not be read.
const NOT_NOTED: &str = "FORWARD_NOT_NOTED";
/// The reason where nothing says where follow-up events go.
const NO_TARGET: &str = "NO_FORWARD_TO";
/// Where there is no need to hurry: a reset or a full log is not over at once.
const LEAST_DELAY: Duration = Duration::from_millis(20);

/// Where follow-up events go to, if anywhere.
///
/// # Errors
/// [`process::Failure::Usage`]: the projection emits some, and nothing says where to.
pub fn target(
    projection: &dyn Projection,
    to: Option<String>,
    log: String,
) -> Result<Option<client::Settings>, process::Failure> {
    let Some(url) = to else {
        return match projection.emits() {
            false => Ok(None),
            true => Err(process::Failure::Usage(format!(
                "the projection {} emits follow-up events: say which publisher gets them with \
                 --forward-to URL, and which of its logs with --forward-log NAME",
                projection.name()
            ))),
        };
    };
    // This task tries again by itself, and says so meanwhile.
    Ok(Some(client::Settings { log, attempts: Some(1), ..client::Settings::new(url) }))
}

/// What is shown where there is no target although some wait: an earlier version of the
/// projection has emitted them.
pub fn without_target() -> Stuck {
    let message = "Nothing says where to: start the receiver with --forward-to URL.".to_owned();
    let failure = Failure { reason: NO_TARGET, message, ..Failure::default() };
    Stuck { failure, number: None }
}

/// What forwarding takes.
pub struct Forwarding {
    /// The publisher that gets them.
    pub to: Publisher,
    /// Where it is asked whether it still has them.
    pub receipts: Receipts,
    /// Where those that wait are read.
    pub readers: Readers,
    /// Where it is told that there is more, and says what stands in the way.
    pub board: Arc<Board>,
    /// To the thread that notes what has been forwarded.
    pub work: mpsc::Sender<Work>,
    /// Told to end.
    pub ending: CancellationToken,
}

/// Why an attempt has brought nothing.
enum Unsent {
    /// Fewer are to be tried together.
    Fewer(usize),
    /// It is tried again after a while.
    Passing(Stuck),
    /// A person has to decide about this one.
    Stopped(Box<Outgoing>, Stuck),
    /// The receiver ends.
    Over,
}

impl Forwarding {
    /// Forwards until the receiver ends.
    pub async fn keep(self) {
        tokio::select! {
            () = self.forward() => {}
            () = self.ending.cancelled() => {}
        }
    }

    async fn forward(&self) {
        let (mut pace, mut failed) = (Pace::FULL, 0_u32);
        let mut seen = Seen::default();
        loop {
            let most = pace.most();
            let read = self.readers.read(move |tables| {
                Ok((marks::last(tables)?, outbox::pending(tables, most, MAX_BATCH_BYTES)?))
            });
            let sent = match read.await {
                Ok((last, waiting)) => {
                    let looked = match seen.is_fresh() && !waiting.is_empty() {
                        true => Ok(false),
                        false => self.look(&mut seen, &last).await,
                    };
                    let Some(first) = waiting.first() else {
                        // Where the other one is away, there is nothing that waits for it.
                        if !matches!(looked, Ok(true)) {
                            self.board.note(|status| status.forwarding = None);
                            self.until_more().await;
                        }
                        continue;
                    };
                    match looked {
                        Ok(false) => self.send(waiting, &mut seen, &last).await,
                        // More wait than have been read.
                        Ok(true) => continue,
                        Err(why) => Err(unseen(first, why)),
                    }
                }
                Err(status) => Err(Unsent::Passing(not_noted(said(&status)))),
            };
            match sent {
                Ok(()) => {
                    (pace, failed) = (pace.after_success(), 0);
                    self.board.note(|status| status.forwarding = None);
                }
                Err(Unsent::Fewer(of)) => pace = pace.after_refusal(of),
                Err(Unsent::Passing(stuck)) => {
                    failed = failed.saturating_add(1);
                    self.pause(failed, stuck).await;
                }
                Err(Unsent::Stopped(refused, stuck)) => {
                    failed = 0;
                    self.wait_for_a_person(&refused, stuck).await;
                }
                Err(Unsent::Over) => return,
            }
        }
    }

    /// Until there may be more, or it is time for another look.
    async fn until_more(&self) {
        tokio::select! {
            () = self.board.outbox().notified() => {}
            () = sleep(look::IDLE) => {}
        }
    }

    /// Sends some together, and has it noted that they are there. Not where it shows only now
    /// that some of the earlier ones are lost: then these are sent again behind them.
    async fn send(
        &self,
        waiting: Vec<Outgoing>,
        seen: &mut Seen,
        last: &[Mark],
    ) -> Result<(), Unsent> {
        crash::point(crash::RECEIVER_FORWARD_BEFORE_SEND);
        let events = waiting.iter().map(|out| wire::new_event(out.intent.clone())).collect();
        let receipts =
            self.to.publish_all(events).await.map_err(|error| unsent(&waiting, &error))?;
        crash::point(crash::RECEIVER_FORWARD_AFTER_RECEIPT);
        let forwarded = waiting.iter().zip(&receipts).map(|(out, receipt)| forwarded(out, receipt));
        let forwarded = forwarded.collect::<Option<Vec<_>>>().ok_or_else(|| {
            Unsent::Passing(not_noted("a receipt is not that of its event".to_owned()))
        })?;
        if let (Some(first), Some(newest)) = (waiting.first(), forwarded.last()) {
            seen.receipts(newest.log_id.to_string());
            if self.look(seen, last).await.map_err(|why| unseen(first, why))? {
                return Ok(());
            }
        }
        let (noted, answer) = oneshot::channel();
        self.work.send(Work::Forwarded(forwarded, noted)).await.map_err(|_| Unsent::Over)?;
        let noted = answer.await.map_err(|_| Unsent::Over)?;
        match noted.map_err(|why| Unsent::Passing(not_noted(why)))? {
            Noted::All => seen.made_sure(),
            // It was put back just now: after the next look they are sent again, too.
            Noted::Taken(place) => seen.taken(place),
        }
        Ok(())
    }

    async fn pause(&self, failed: u32, mut stuck: Stuck) {
        let delay = backoff(failed, CALL_BASE, rand::random()).max(LEAST_DELAY);
        stuck.failure.attempts = Some(failed);
        stuck.failure.next_attempt = Some(Time::from_system(SystemTime::now() + delay));
        let Failure { reason, message, .. } = &stuck.failure;
        tracing::warn!(reason, attempts = failed, "follow-up events wait: {message}");
        self.board.note(|status| status.forwarding = Some(stuck));
        sleep(delay).await;
    }

    /// Until it is given up, or other content has taken its place.
    async fn wait_for_a_person(&self, refused: &Outgoing, stuck: Stuck) {
        let Failure { reason, message, .. } = &stuck.failure;
        tracing::error!(reason, "forwarding has stopped: {message}");
        self.board.note(|status| status.forwarding = Some(stuck));
        loop {
            self.board.outbox().notified().await;
            let first = self.readers.read(|tables| outbox::pending(tables, 1, 0)).await;
            // What cannot be read now has not changed.
            if first.is_ok_and(|first| first.first() != Some(refused)) {
                return;
            }
        }
    }
}

/// The receipt of a follow-up event, if it is one.
fn forwarded(outgoing: &Outgoing, receipt: &Receipt) -> Option<Forwarded> {
    if receipt.key != *outgoing.intent.key || receipt.fingerprint[..] != outgoing.intent.fingerprint
    {
        return None;
    }
    Some(Forwarded {
        sequence: outgoing.sequence,
        number: outgoing.number,
        key: receipt.key.clone(),
        log_id: Uuid::try_parse(&receipt.log_id).ok()?,
        at: receipt.sequence?,
    })
}

/// What a failed request with these means.
fn unsent(waiting: &[Outgoing], error: &PublishError) -> Unsent {
    let verdict = judge(error, waiting.len());
    let Some(first) = waiting.first() else { return Unsent::Fewer(0) };
    let why = said(error.status());
    let reason = error.reason().map_or(UNREACHABLE, |reason| reason.as_str());
    let failure = |message| Failure { reason, message, ..Failure::default() };
    match verdict {
        Verdict::Fewer => Unsent::Fewer(waiting.len()),
        Verdict::Again => {
            let message = match error {
                PublishError::Refused(_) => {
                    format!("The publisher that they go to takes none now: {why}.")
                }
                PublishError::Unanswered { .. } | PublishError::NotSent { .. } => away(&why),
            };
            Unsent::Passing(Stuck::at(first, failure(message)))
        }
        Verdict::Stop => {
            let Outgoing { sequence, number, .. } = first;
            let message = format!(
                "The publisher that they go to refuses follow-up {number} of event {sequence}: {why}."
            );
            Unsent::Stopped(Box::new(first.clone()), Stuck::at(first, failure(message)))
        }
    }
}

/// What it means that it is not known whether those before this one are still there.
fn unseen(first: &Outgoing, why: Unseen) -> Unsent {
    match why {
        Unseen::Away(status) => {
            let reason = reason_of(&status).map_or(UNREACHABLE, |reason| reason.as_str());
            let message = away(&said(&status));
            let failure = Failure { reason, message, ..Failure::default() };
            Unsent::Passing(Stuck::at(first, failure))
        }
        Unseen::Store(why) => Unsent::Passing(not_noted(why)),
        Unseen::Over => Unsent::Over,
    }
}

fn away(why: &str) -> String {
    format!("The publisher that they go to cannot be reached: {why}.")
}

fn not_noted(why: String) -> Stuck {
    let message = format!("What has been forwarded cannot be noted: {why}.");
    let failure = Failure { reason: NOT_NOTED, message, ..Failure::default() };
    Stuck { failure, number: None }
}
