//! The way of a Replay: one loop with two gears, catching up and following.
//! Events are always read from the log after the last one sent; being woken is a
//! hint and carries nothing.

use std::{sync::Arc, time::SystemTime};

use futures_util::Stream;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};
use tonic::Status;

use super::{
    ack::Session,
    advance::fenced,
    aging::Aging,
    blocking::blocking,
    clock::Clock,
    frame::{Packed, Shape, pack},
    headroom::{Alarm, events, eviction_seconds, snapshot_due_below},
    hub::Log,
    log::{Extent, LogReader},
    outgoing::{End, outgoing},
    resume::{Start, start_in, unreadable},
    retention::{Hold, Limits},
    show::{accepted_at_ms, rate_of_late},
    snapshots::Snapshots,
};
use crate::proto::{
    chain::Cursor,
    event::{Sequence, Time, duration_millis},
    limits::*,
    pb,
    refusal::{Reason, Refusal},
    stored::{Frame, ReplayResponse},
    wire::{self, DataForm},
};

/// Frames that wait for a slow reader.
const WAITING_FRAMES: usize = 2;

/// What a caller asks for, checked.
#[derive(Debug)]
pub struct Request {
    /// Its name; none: an anonymous look.
    pub receiver: Option<String>,
    /// Its last session, where it is sure of it.
    pub session: Option<i64>,
    /// Where to start.
    pub start: Start,
    /// Whether to stay for new events.
    pub follow: bool,
    /// Events after which to end.
    pub limit: Option<u64>,
    /// Which events, and how.
    pub shape: Shape,
}

/// Opens a Replay. For a named receiver its new session and position are on
/// stable storage on return.
///
/// # Errors
/// The refusals of a start, and those of opening a session.
pub async fn open(
    log: &Log,
    request: Request,
) -> Result<impl Stream<Item = Result<ReplayResponse, Status>> + Send + use<>, Refusal> {
    let (extent, cursor) = match (admit(log, request.start).await, &request.receiver) {
        (Err(refusal), Some(name)) => {
            let seen = match request.start {
                Start::After(seen) => Some(seen),
                Start::Beginning | Start::Oldest | Start::Head => None,
            };
            // Kept before it is said: whoever hears of it can look it up.
            return Err(log.receivers.refused(name, request.session, seen, refusal).await);
        }
        (admitted, _) => admitted?,
    };
    let session = match &request.receiver {
        Some(name) => Some(log.receivers.open(name, cursor, request.session).await?),
        None => None,
    };
    let (frames, receiver) = mpsc::channel(WAITING_FRAMES);
    let replay = Replay {
        reader: Arc::clone(&log.reader),
        snapshots: log.snapshots.clone(),
        limits: log.limits.clone(),
        clock: Arc::clone(&log.clock),
        aging: Arc::clone(&log.aging),
        heads: log.extent.clone(),
        ending: log.ending.clone(),
        alarm: Alarm::default(),
        request,
        session,
        cursor,
        frames,
        quiet_since: Instant::now(),
    };
    Ok(outgoing(receiver, tokio::spawn(replay.run(extent))))
}

/// Where a Replay starts, and what the log holds then.
async fn admit(log: &Log, start: Start) -> Result<(Extent, Cursor), Refusal> {
    let (reader, snapshots) = (Arc::clone(&log.reader), log.snapshots.clone());
    blocking(move || {
        start_in(&*reader, start).map_err(|refusal| snapshots.told_of(refusal, &*reader))
    })
    .await
}

struct Replay {
    reader: Arc<dyn LogReader>,
    snapshots: Snapshots,
    limits: Limits,
    clock: Arc<Clock>,
    aging: Arc<Aging>,
    heads: watch::Receiver<Extent>,
    ending: tokio_util::sync::CancellationToken,
    alarm: Alarm,
    request: Request,
    session: Option<Session>,
    /// The last event looked at.
    cursor: Cursor,
    frames: mpsc::Sender<ReplayResponse>,
    quiet_since: Instant,
}

impl Replay {
    async fn run(mut self, extent: Extent) -> Result<(), End> {
        self.send(self.started(&extent)).await?;
        let mut left = self.request.limit;
        let mut caught_up_at = None;
        loop {
            // Taken note of before the log is read: what comes later wakes us.
            let extent = *self.heads.borrow_and_update();
            self.warn(&extent).await?;
            if let Some(packed) = self.read(left).await? {
                for batch in packed.batches {
                    self.send(Frame::Batch(batch)).await?;
                }
                self.cursor = packed.cursor;
                left = left.map(|left| left - packed.events);
                if left == Some(0) {
                    return Ok(());
                }
                continue;
            }
            if caught_up_at != Some(self.cursor.sequence) {
                caught_up_at = Some(self.cursor.sequence);
                let cursor = Some(wire::cursor_message(&self.cursor));
                self.send(Frame::CaughtUp(pb::ReplayCaughtUp { cursor })).await?;
            }
            if !self.request.follow {
                return Ok(());
            }
            self.wait().await?;
        }
    }

    fn started(&self, extent: &Extent) -> Frame {
        Frame::Started(pb::ReplayStarted {
            log_id: extent.log_id.to_string(),
            session: Some(self.session.as_ref().map_or(0, Session::number)),
            floor_sequence: Some(extent.floor),
            next_sequence: Some(extent.next),
            cursor: Some(wire::cursor_message(&self.cursor)),
            reported_sequence: self.session.as_ref().map(Session::reported),
            snapshot_due_below: Some(self.snapshot_due_below(extent)),
        })
    }

    fn snapshot_due_below(&self, extent: &Extent) -> Sequence {
        snapshot_due_below(&self.limits, extent, self.aging.half_below())
    }

    /// Tells a receiver whose next event is about to be evicted.
    async fn warn(&mut self, extent: &Extent) -> Result<(), End> {
        if self.session.is_none() {
            return Ok(());
        }
        let needs = self.cursor.sequence + 1;
        let late_below = self.aging.late_below();
        let Some(headroom) = self.alarm.look(&self.limits, extent, needs, late_below) else {
            return Ok(());
        };
        let eviction_seconds = self.eviction_seconds(headroom).await?;
        let headroom_events = Some(headroom);
        self.send(Frame::Warning(pb::ReplayWarning { headroom_events, eviction_seconds })).await
    }

    /// How long so much headroom lasts, where events are evicted to make room, or until the
    /// next event is too old, where there is one that nobody holds. Reads files.
    async fn eviction_seconds(&self, headroom: i64) -> Result<Option<f64>, End> {
        let by_room = Hold::needs_no_look(&self.limits);
        let needs = self.cursor.sequence + 1;
        let max_age = self
            .limits
            .max_age
            .filter(|_| !self.limits.hold_for_receivers && needs < self.reader.extent().next);
        if !by_room && max_age.is_none() {
            return Ok(None);
        }
        let (reader, clock) = (Arc::clone(&self.reader), Arc::clone(&self.clock));
        let look = move || {
            let now_ms = clock.now_ms();
            let rate = by_room.then(|| rate_of_late(&*reader, now_ms)).flatten();
            let left_ms = max_age.and_then(|max_age| {
                let at_ms = accepted_at_ms(&*reader, needs)??;
                Some(duration_millis(max_age) - (now_ms - at_ms))
            });
            Ok(eviction_seconds(headroom, rate, left_ms))
        };
        Ok(blocking(look).await?)
    }

    /// What follows the cursor, as much as fits about one frame, or all of a larger commit in
    /// the form that is stored; none at the head.
    async fn read(&self, left: Option<u64>) -> Result<Option<Packed>, End> {
        let (reader, cursor) = (Arc::clone(&self.reader), self.cursor);
        let from = cursor.sequence + 1;
        if let Some(entries) = reader.recent(from, FRAME_EVENTS, FRAME_BYTES) {
            return Ok(Some(pack(cursor.log_id, from, &entries, &self.request.shape, left)?));
        }
        let (shape, snapshots) = (self.request.shape.clone(), self.snapshots.clone());
        let read = move || {
            let entries = if shape.form == DataForm::Stored {
                reader.read_commits(from, FRAME_EVENTS, FRAME_BYTES)
            } else {
                // Other forms take several times the bytes that are stored.
                reader.read(from, FRAME_EVENTS, FRAME_BYTES)
            };
            let entries = entries.map_err(|error| {
                let refusal = unreadable(error, cursor.sequence, &reader.extent());
                snapshots.told_of(refusal, &*reader)
            })?;
            if entries.is_empty() {
                return Ok(None);
            }
            pack(cursor.log_id, from, &entries, &shape, left).map(Some)
        };
        Ok(blocking(read).await?)
    }

    /// Waits until there may be more to read, and says now and then that the stream is alive.
    async fn wait(&mut self) -> Result<(), End> {
        loop {
            let Replay { heads, ending, session, frames, quiet_since, .. } = self;
            tokio::select! {
                changed = heads.changed() => return changed.map_err(|_| shutting_down().into()),
                () = ending.cancelled() => return Err(shutting_down().into()),
                refusal = fencing(session, &self.request) => return Err(refusal.into()),
                () = frames.closed() => return Err(End::Gone),
                () = sleep_until(*quiet_since + HEARTBEAT) => {}
            }
            let extent = self.reader.extent();
            let headroom = events(&self.limits, &extent, self.cursor.sequence + 1);
            let eviction_seconds = self.eviction_seconds(headroom).await?;
            self.send(Frame::Heartbeat(pb::ReplayHeartbeat {
                floor_sequence: Some(extent.floor),
                next_sequence: Some(extent.next),
                time: Some(wire::timestamp(Time::from_system(SystemTime::now()))),
                snapshot_due_below: Some(self.snapshot_due_below(&extent)),
                headroom_events: Some(headroom),
                eviction_seconds,
            }))
            .await?;
        }
    }

    async fn send(&mut self, frame: Frame) -> Result<(), End> {
        let frame = ReplayResponse { frame: Some(frame) };
        let Replay { ending, session, frames, .. } = self;
        tokio::select! {
            biased;
            () = ending.cancelled() => return Err(shutting_down().into()),
            refusal = fencing(session, &self.request) => return Err(refusal.into()),
            sent = frames.send(frame) => sent.map_err(|_| End::Gone)?,
        }
        self.quiet_since = Instant::now();
        Ok(())
    }
}

/// Returns once a newer session has taken over; never for an anonymous look.
async fn fencing(session: &mut Option<Session>, request: &Request) -> Refusal {
    let Some(session) = session else { return std::future::pending().await };
    let newest = session.fenced().await;
    fenced(request.receiver.as_deref().unwrap_or_default(), session.number(), newest)
}

fn shutting_down() -> Refusal {
    Refusal::new(
        Reason::ShuttingDown,
        "the publisher is ending; reconnect and go on from the cursor",
    )
    .retry_after(std::time::Duration::from_secs(1))
}

#[cfg(test)]
mod tests;
