//! The apply thread: takes frames, commits them in groups, and tries again
//! where that can help. It owns the connection that writes; everyone else sees
//! the committed cursor, and only after the commit.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    decide::{Misfit, Step, place},
    projection::Projection,
    retry,
    status::{Board, EventName, Failure},
    store::{
        self, OpenError, Store, cursor, lock,
        trouble::{self, Trouble},
    },
    transaction::{self, Committed, EventFault, Failed},
};
use crate::proto::{
    chain::Cursor,
    event::{Event, Time},
    limits::{MAX_COMMIT_BYTES, MAX_COMMIT_EVENTS},
};

/// The reason under which the board shows a broken or foreign database.
pub const STORE_FAILED: &str = "STORE_FAILED";
/// The first delay before an event or a commit is tried again is at most this long.
const RETRY_BASE: Duration = Duration::from_millis(200);
/// Nothing has come for this long: time to look after the write-ahead log.
const IDLE: Duration = Duration::from_secs(2);

/// What the apply thread is handed.
#[derive(Debug)]
pub enum Work {
    /// Events of a stream, checked.
    Frame {
        /// The number of the stream; frames of an older one are dropped.
        stream: u64,
        /// In order. May be empty: then `cursor` alone is held against ours.
        events: Vec<Event>,
        /// The publisher's cursor after them.
        cursor: Cursor,
    },
    /// A new stream is about to be opened: where from?
    Resume(oneshot::Sender<Option<Cursor>>),
}

/// What the apply thread shares with the stream's reader.
#[derive(Debug, Default)]
pub struct Streams {
    /// The number of the newest stream.
    pub newest: AtomicU64,
    /// Asks for a new stream, because this one left something out.
    pub reopen: Notify,
}

/// The apply thread's state.
pub struct Apply {
    /// None between a failed COMMIT and the next open.
    store: Option<Store>,
    /// What makes the effects.
    projection: Box<dyn Projection>,
    /// Where the outcome is written to.
    board: Arc<Board>,
    /// Which stream counts.
    streams: Arc<Streams>,
    /// Attempts at one event before the receiver halts.
    attempts: u32,
    /// Told to end.
    ending: CancellationToken,
    /// For waiting with a bound.
    runtime: Handle,
    state: State,
}

struct State {
    db: std::path::PathBuf,
    log: String,
    /// What is committed.
    committed: Option<Cursor>,
    /// The cursor once everything taken so far is committed.
    tail: Option<Cursor>,
    /// The stream that left something out; none of its frames is taken any more.
    refused: Option<u64>,
    /// Gaps in a row.
    gaps: u32,
    halted: bool,
    /// The disk failed: no more writes, no checkpoint, not even at the end.
    latched: bool,
    /// The write-ahead log has been looked after since the last commit.
    idle: bool,
    /// What a COMMIT of unknown outcome would have brought.
    unsure: Option<(Committed, Time)>,
}

/// How one attempt at a transaction went.
enum Attempt {
    Done,
    EventFailed(EventFault),
    StoreFailed(rusqlite::Error),
}

/// The thread goes no further with what it has.
enum Stop {
    Halt(Failure),
    /// The disk failed.
    Latch(String),
    Ending,
}

impl Apply {
    /// Takes over an opened store that has committed up to `committed`.
    pub fn new(
        store: Store,
        committed: Option<Cursor>,
        projection: Box<dyn Projection>,
        board: Arc<Board>,
        streams: Arc<Streams>,
        attempts: u32,
        ending: CancellationToken,
    ) -> Self {
        let state = State {
            db: store.db().to_owned(),
            log: store.log.clone(),
            committed,
            tail: committed,
            refused: None,
            gaps: 0,
            halted: false,
            latched: false,
            idle: false,
            unsure: None,
        };
        let runtime = Handle::current();
        Apply { store: Some(store), projection, board, streams, attempts, ending, runtime, state }
    }

    /// Runs until there is no more work to come, then closes the store.
    pub fn run(mut self, mut work: mpsc::Receiver<Work>) {
        while let Some(first) = self.wait(&mut work) {
            let mut pending = VecDeque::new();
            let mut resume = self.take(first, &mut pending);
            loop {
                // All that has arrived, and no waiting for more.
                while resume.is_none() && pending.len() < MAX_COMMIT_EVENTS {
                    let Ok(more) = work.try_recv() else { break };
                    resume = self.take(more, &mut pending);
                }
                if pending.is_empty() || self.ending.is_cancelled() {
                    break;
                }
                let group = next_group(&mut pending);
                if let Err(stop) = self.settle(&group) {
                    self.stop(stop);
                    pending.clear();
                }
            }
            if let Some(answer) = resume {
                self.state.tail = self.state.committed;
                // Without a receiver nobody wants to know.
                let _ = answer.send(self.state.committed);
            }
        }
        self.close();
    }

    /// The next piece of work; looks after the write-ahead log meanwhile.
    fn wait(&mut self, work: &mut mpsc::Receiver<Work>) -> Option<Work> {
        loop {
            if self.ending.is_cancelled() {
                return None;
            }
            if self.state.idle || self.state.halted {
                return work.blocking_recv();
            }
            if let Ok(work) = work.try_recv() {
                return Some(work);
            }
            let soon = async { tokio::time::timeout(IDLE, work.recv()).await };
            if let Ok(work) = self.runtime.block_on(soon) {
                return work;
            }
            if let Some(store) = &mut self.store {
                match store.when_idle() {
                    Ok(done) => self.state.idle = done,
                    Err(error) => self.checkpoint_failed(&error),
                }
            }
        }
    }

    /// Puts a frame's events behind those that wait. Answers with the asker of
    /// a [`Work::Resume`].
    fn take(
        &mut self,
        work: Work,
        pending: &mut VecDeque<Step>,
    ) -> Option<oneshot::Sender<Option<Cursor>>> {
        let (stream, events, cursor) = match work {
            Work::Resume(answer) => return Some(answer),
            Work::Frame { stream, events, cursor } => (stream, events, cursor),
        };
        let outdated = stream != self.streams.newest.load(Ordering::Acquire);
        if self.state.halted || outdated || self.state.refused == Some(stream) {
            return None;
        }
        let tail = self.state.tail.unwrap_or_else(|| Cursor::beginning(cursor.log_id));
        match place(tail, events, &cursor) {
            Ok((steps, after)) => {
                if after.sequence > tail.sequence {
                    self.state.gaps = 0;
                    self.state.tail = Some(after);
                }
                pending.extend(steps);
            }
            Err(Misfit::Gap { expected, found }) => {
                self.state.refused = Some(stream);
                self.state.gaps += 1;
                let message = format!(
                    "Sequence {expected} should have come from the publisher, {found} came."
                );
                if self.state.gaps > 1 {
                    self.stop(Stop::Halt(Failure { reason: "GAP", message, ..Default::default() }));
                } else {
                    tracing::warn!("{message} Asking again from the cursor.");
                    self.streams.reopen.notify_one();
                }
            }
            Err(Misfit::Diverged(sequence)) => self.stop(Stop::Halt(Failure {
                reason: "DIVERGED",
                message: format!("The publisher's history is another one at sequence {sequence}."),
                ..Default::default()
            })),
        }
        None
    }

    /// Commits a group; if one of its events fails, all of it one by one, so
    /// that only that event waits.
    fn settle(&mut self, group: &[Step]) -> Result<(), Stop> {
        match self.commit(group)? {
            Ok(()) => Ok(()),
            Err(_) if group.len() > 1 => {
                group.chunks(1).try_for_each(|single| self.settle_single(single, None))
            }
            Err(why) => self.settle_single(group, Some(why)),
        }
    }

    /// One event, as often as is allowed. `failed`: why it failed just now.
    fn settle_single(&mut self, single: &[Step], failed: Option<EventFault>) -> Result<(), Stop> {
        let event = single[0].event();
        let mut failed = failed;
        for attempt in 1.. {
            let why = match failed.take() {
                Some(why) => why,
                None => match self.commit(single)? {
                    Ok(()) => break,
                    Err(why) => why,
                },
            };
            tracing::warn!(sequence = event.sequence, attempt, ?why, "an event failed");
            let mut failure = Failure {
                reason: "EVENT_FAILED",
                message: format!("Event {} failed: {}.", event.sequence, why.said()),
                event: Some(EventName::from(event)),
                attempts: Some(attempt),
                next_attempt: None,
            };
            if matches!(why, EventFault::Conflict) {
                failure.reason = "CONFLICT";
                failure.message = format!(
                    "Sequence {} came again with other content than was applied.",
                    event.sequence
                );
                return Err(Stop::Halt(failure));
            }
            if attempt >= self.attempts {
                return Err(Stop::Halt(failure));
            }
            self.pause(attempt, failure)?;
        }
        Ok(())
    }

    /// One transaction, tried for as long as the store itself is in the way.
    /// The inner error is an event's.
    fn commit(&mut self, steps: &[Step]) -> Result<Result<(), EventFault>, Stop> {
        for attempt in 1.. {
            if self.ending.is_cancelled() {
                return Err(Stop::Ending);
            }
            let error = match self.try_commit(steps)? {
                Attempt::Done => return Ok(Ok(())),
                Attempt::EventFailed(why) => return Ok(Err(why)),
                Attempt::StoreFailed(error) => error,
            };
            let failure = match trouble::judge(&error) {
                Trouble::Broken => return Err(Stop::Latch(trouble::said(&error))),
                Trouble::Full => Failure {
                    reason: "DISK_FULL",
                    message: "The disk is full.".to_owned(),
                    ..Default::default()
                },
                Trouble::Busy => Failure {
                    reason: "STORE_BUSY",
                    message: format!("The database is not free: {}.", trouble::said(&error)),
                    ..Default::default()
                },
                Trouble::Statement => return Ok(Err(EventFault::Statement(error))),
            };
            tracing::debug!(%error, "the store could not take a group");
            self.pause(attempt, Failure { attempts: Some(attempt), ..failure })?;
        }
        unreachable!("the attempts do not end")
    }

    /// One attempt at one transaction.
    fn try_commit(&mut self, steps: &[Step]) -> Result<Attempt, Stop> {
        // Where a rollback failed, the connection is not to be trusted.
        self.store.take_if(|store| !store.connection.is_autocommit());
        if self.store.is_none() {
            match self.open()? {
                Attempt::Done if self.state.committed == last_cursor(steps) => {
                    return Ok(Attempt::Done);
                }
                Attempt::Done => {}
                failed => return Ok(failed),
            }
        }
        let Some(store) = &self.store else { return Ok(Attempt::Done) };
        let from = self.state.committed.as_ref();
        Ok(match transaction::commit(store, self.projection.as_ref(), from, steps) {
            Ok(committed) => {
                self.note_commit(steps, committed);
                Attempt::Done
            }
            Err(Failed::Event(why)) => {
                if matches!(why, EventFault::Panicked) {
                    self.store = None;
                }
                Attempt::EventFailed(why)
            }
            Err(Failed::Store(error)) => Attempt::StoreFailed(error),
            Err(Failed::Unknown(error, committed)) => {
                // The connection stays open when the disk failed: another one
                // would read back what may not be on the disk.
                if trouble::judge(&error) != Trouble::Broken {
                    self.store = None;
                    self.state.unsure = Some((committed, last_time(steps)));
                }
                Attempt::StoreFailed(error)
            }
            Err(Failed::CursorMoved) => return Err(cursor_moved()),
        })
    }

    /// Opens the store again, with its barrier, and looks where the cursor is:
    /// after a COMMIT of unknown outcome, that is the answer.
    fn open(&mut self) -> Result<Attempt, Stop> {
        let opened = store::open(&self.state.db, &self.state.log, self.projection.as_ref());
        let store = match opened {
            Ok(store) => store,
            Err(OpenError::Sql(error)) => return Ok(Attempt::StoreFailed(error)),
            Err(OpenError::Io(error)) => return Err(Stop::Latch(error.to_string())),
            Err(OpenError::Refused(why)) => {
                return Err(Stop::Halt(Failure {
                    reason: STORE_FAILED,
                    message: format!("The database cannot be opened again: {why}."),
                    ..Default::default()
                }));
            }
        };
        let found = match cursor::read(&store.connection, &self.state.log) {
            Ok(found) => found,
            Err(error) => return Ok(Attempt::StoreFailed(error)),
        };
        self.store = Some(store);
        let unsure = self.state.unsure.take();
        if found == self.state.committed {
            return Ok(Attempt::Done);
        }
        match unsure {
            Some((committed, time)) if committed.cursor == found => {
                self.state.committed = found;
                self.tell(committed, time);
                Ok(Attempt::Done)
            }
            _ => Err(cursor_moved()),
        }
    }

    fn note_commit(&mut self, steps: &[Step], committed: Committed) {
        self.board.recovered();
        if committed.cursor.is_none() {
            return;
        }
        self.state.committed = committed.cursor;
        self.state.idle = false;
        self.tell(committed, last_time(steps));
        let Some(store) = &mut self.store else { return };
        if let Err(error) = store.after_commit() {
            self.checkpoint_failed(&error);
        }
    }

    /// From here on the commit is known to others, and acknowledged.
    fn tell(&self, committed: Committed, time: Time) {
        if let Some(cursor) = committed.cursor {
            self.board.note_commit(cursor, committed.outcomes, time);
        }
    }

    fn checkpoint_failed(&mut self, error: &rusqlite::Error) {
        match trouble::judge(error) {
            // There will be another time.
            Trouble::Full | Trouble::Busy => {
                tracing::warn!(%error, "the write-ahead log could not be copied yet");
            }
            Trouble::Broken | Trouble::Statement => self.stop(Stop::Latch(trouble::said(error))),
        }
    }

    /// Waits before another attempt, and says so.
    fn pause(&mut self, attempt: u32, mut failure: Failure) -> Result<(), Stop> {
        let delay = retry::backoff(attempt, RETRY_BASE, rand::random());
        failure.next_attempt = Some(Time::from_system(SystemTime::now() + delay));
        self.board.retrying(failure);
        let ending = self.ending.clone();
        let ended = async { tokio::time::timeout(delay, ending.cancelled()).await };
        if self.runtime.block_on(ended).is_ok() { Err(Stop::Ending) } else { Ok(()) }
    }

    fn stop(&mut self, stop: Stop) {
        let failure = match stop {
            Stop::Ending => return,
            Stop::Halt(failure) => failure,
            Stop::Latch(why) => {
                self.state.latched = true;
                let message = format!("A read or write of the database failed: {why}.");
                lock::mark_halted(&self.state.db, &message);
                Failure { reason: STORE_FAILED, message, ..Default::default() }
            }
        };
        self.state.halted = true;
        self.board.halt(failure);
    }

    fn close(&mut self) {
        if self.state.latched {
            // Readers go on until the end, and this connection keeps them from
            // reading the write-ahead log anew: what failed may stand in it.
            self.runtime.block_on(self.ending.cancelled());
            return;
        }
        if let Some(store) = self.store.take()
            && let Err(error) = store.close()
        {
            self.checkpoint_failed(&error);
        }
    }
}

fn next_group(pending: &mut VecDeque<Step>) -> Vec<Step> {
    let mut bytes = 0;
    let fits = pending.iter().take(MAX_COMMIT_EVENTS).take_while(|step| {
        let first = bytes == 0;
        bytes += 1 + step.event().intent.data.len();
        first || bytes <= MAX_COMMIT_BYTES
    });
    let count = fits.count();
    pending.drain(..count).collect()
}

fn last_cursor(steps: &[Step]) -> Option<Cursor> {
    steps.iter().rev().find_map(|step| match step {
        Step::Next { after, .. } => Some(*after),
        Step::Earlier(_) => None,
    })
}

fn last_time(steps: &[Step]) -> Time {
    steps.last().map_or(Time { seconds: 0, nanos: 0 }, |step| step.event().accept_time)
}

fn cursor_moved() -> Stop {
    Stop::Halt(Failure {
        reason: STORE_FAILED,
        message: "The cursor is not where this receiver left it: something else writes to the \
                  database."
            .to_owned(),
        ..Default::default()
    })
}

#[cfg(test)]
mod tests;
