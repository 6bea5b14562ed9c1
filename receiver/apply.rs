//! The apply thread: takes frames, commits them in groups, and tries again
//! where that can help. It owns the connection that writes; everyone else sees
//! the committed cursor, and only after the commit.

use std::{
    path::PathBuf,
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

use self::{orders::Stuck, pruning::Pruning};
use super::{
    config::OnError,
    decide::{Misfit, Step},
    pruning::Keep,
    status::{Board, EventName, Failure},
    store::{
        marks::Place,
        outbox::Forwarded,
        skipped::Aside,
        trouble::{self, Trouble},
    },
    transaction::{Committed, EventFault, Faulty},
    writer::{Failed, Writer},
};
use crate::proto::{
    backoff::backoff,
    chain::Cursor,
    event::Time,
    limits::{MAX_COMMIT_BYTES, MAX_COMMIT_EVENTS},
};

/// The reason under which the board shows a broken or foreign database.
pub const STORE_FAILED: &str = "STORE_FAILED";
/// The reason for a database that something else has changed.
pub const STORE_CHANGED: &str = "STORE_CHANGED";
/// The reason for an event that cannot be applied.
pub const EVENT_FAILED: &str = "EVENT_FAILED";
/// The first delay before an event or a commit is tried again is at most this long.
const RETRY_BASE: Duration = Duration::from_millis(200);
/// Nothing has come for this long: time to look after the write-ahead log.
const IDLE: Duration = Duration::from_secs(2);

/// What the apply thread is handed.
#[derive(Debug)]
pub enum Work {
    /// A frame's events, checked and put in their places.
    Frame {
        /// The number of the stream; frames of an older one are dropped.
        stream: u64,
        /// They follow those of the stream's frames before, and its first ones follow
        /// the answer to its [`Work::Resume`].
        placed: Result<Vec<Step>, Misfit>,
    },
    /// A new stream is about to be opened: where from?
    Resume(oneshot::Sender<Option<Cursor>>),
    /// Other content is to take the place of what the database holds.
    Install(Install, oneshot::Sender<Result<(), String>>),
    /// The log goes on under another `log_id`, with the same history up to what is
    /// committed.
    Adopt(Cursor, oneshot::Sender<Result<(), String>>),
    /// These follow-up events have been forwarded.
    Forwarded(Vec<Forwarded>, oneshot::Sender<Result<Noted, String>>),
    /// The other log has lost those from a place on. Answered with how many wait again.
    Lost(Place, oneshot::Sender<Result<usize, String>>),
    /// A rebuilt database is about to take over: wait for it.
    Hold(Hold),
}

/// What is to take the place of what the database holds. It has been checked.
#[derive(Debug)]
pub struct Install {
    /// The file; none: an empty database.
    pub staged: Option<PathBuf>,
    /// The cursor in it; none: nothing is applied.
    pub brings: Option<Cursor>,
    /// What the database had when that was found to go on from it; no matter where `ordered`.
    pub over: Option<Cursor>,
    /// A person has said so: also what is older, or of another history; and the thread goes
    /// on if it had halted.
    pub ordered: bool,
}

/// How the apply thread is to go about it.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Attempts at one event.
    pub attempts: u32,
    /// What happens once they are used up.
    pub on_error: OnError,
    /// Which ledger rows are kept.
    pub keep: Keep,
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
    writer: Writer,
    board: Arc<Board>,
    streams: Arc<Streams>,
    /// Attempts at one event before the receiver halts, or sets it aside.
    attempts: u32,
    on_error: OnError,
    /// From people. Looked at between two transactions, and while it waits.
    orders: mpsc::Receiver<Order>,
    /// The event that it is trying again, or has halted on.
    stuck: Option<Stuck>,
    ending: CancellationToken,
    /// For waiting with a bound.
    runtime: Handle,
    /// The stream that left something out; none of its frames is taken any more.
    refused: Option<u64>,
    /// The stream that had frames thrown away after a halt: once that is over, there has to
    /// be another one.
    robbed: Option<u64>,
    /// Gaps in a row.
    gaps: u32,
    halted: bool,
    /// The disk failed: no more writes, no checkpoint, not even at the end.
    latched: Option<String>,
    /// The write-ahead log has been looked after since the last commit.
    idle: bool,
    pruning: Pruning,
}

/// What has come while the thread waited.
enum Come {
    Work(Option<Work>),
    Order(Order),
    /// Nobody reads in the write-ahead log any more that has to be cut.
    Room,
    Nothing,
}

/// The thread goes no further with what it has.
enum Stop {
    Halt(Failure),
    /// The disk failed.
    Latch(String),
    /// Nothing that has not been said: told to end, or latched before.
    Over,
}

impl Apply {
    /// An apply thread to be run. Called inside the runtime that the thread may wait on.
    pub fn new(
        writer: Writer,
        board: Arc<Board>,
        streams: Arc<Streams>,
        rules: Rules,
        orders: mpsc::Receiver<Order>,
        ending: CancellationToken,
    ) -> Self {
        Apply {
            writer,
            board,
            streams,
            attempts: rules.attempts,
            on_error: rules.on_error,
            orders,
            stuck: None,
            ending,
            runtime: Handle::current(),
            refused: None,
            robbed: None,
            gaps: 0,
            halted: false,
            latched: None,
            idle: false,
            pruning: Pruning::new(rules.keep),
        }
    }

    /// Runs until there is no more work to come, then closes the store.
    ///
    /// # Errors
    /// One sentence: the disk failed while the store was being closed.
    pub fn run(mut self, mut work: mpsc::Receiver<Work>) -> Result<(), String> {
        while let Some(first) = self.wait(&mut work) {
            let mut pending = Vec::new();
            let mut asked = self.take(first, &mut pending);
            loop {
                // All that has arrived, and no waiting for more.
                while asked.is_none() && !is_full(&pending) {
                    let Ok(more) = work.try_recv() else { break };
                    asked = self.take(more, &mut pending);
                }
                if pending.is_empty() || self.ending.is_cancelled() {
                    break;
                }
                let count = group_size(&pending);
                match self.settle(&pending[..count]) {
                    Ok(()) => drop(pending.drain(..count)),
                    Err(stop) => {
                        self.stop(stop);
                        pending.clear();
                    }
                }
                self.prune_under_load();
                self.carry_out_orders();
                if self.halted {
                    pending.clear();
                }
            }
            if let Some(asked) = asked {
                self.answer(asked);
            }
        }
        self.close()
    }

    /// Does what is asked once all that came before it is settled. Without a receiver
    /// nobody wants to know.
    fn answer(&mut self, asked: Work) {
        match asked {
            Work::Frame { .. } => {}
            Work::Resume(answer) => {
                // Nothing of the new stream has come yet.
                (self.refused, self.robbed) = (None, None);
                self.look_at_ledger();
                let _ = answer.send(self.writer.committed());
            }
            Work::Install(install, answer) => {
                let _ = answer.send(self.install(&install));
            }
            Work::Adopt(to, answer) => {
                let _ = answer.send(self.adopt(to));
            }
            Work::Forwarded(forwarded, answer) => {
                let _ = answer.send(self.note_forwarded(&forwarded));
            }
            Work::Lost(from, answer) => {
                let _ = answer.send(self.note_lost(&from));
            }
            Work::Hold(hold) => self.hold(hold),
        }
    }

    /// The next piece of work; looks after the write-ahead log meanwhile.
    fn wait(&mut self, work: &mut mpsc::Receiver<Work>) -> Option<Work> {
        loop {
            if self.ending.is_cancelled() {
                return None;
            }
            self.carry_out_orders();
            if let Ok(work) = work.try_recv() {
                return Some(work);
            }
            let quiet = self.halted || (self.idle && !self.pruning.is_wanted());
            if !quiet && self.prune_between_groups() {
                continue;
            }
            let (orders, gate) = (&mut self.orders, self.writer.gate().clone());
            let come = async {
                tokio::select! {
                    work = work.recv() => Come::Work(work),
                    Some(order) = orders.recv() => Come::Order(order),
                    () = gate.emptied() => Come::Room,
                    () = tokio::time::sleep(IDLE), if !quiet => Come::Nothing,
                }
            };
            match self.runtime.block_on(come) {
                Come::Work(work) => return work,
                Come::Order(order) => {
                    self.carry_out(order);
                    continue;
                }
                Come::Room => {
                    if self.latched.is_none() {
                        self.tidy();
                    }
                    continue;
                }
                Come::Nothing => {}
            }
            if !self.prune_in_quiet() && !self.idle {
                self.tidy();
            }
        }
    }

    /// Puts a frame's events behind those that wait. Answers with what is no frame.
    fn take(&mut self, work: Work, pending: &mut Vec<Step>) -> Option<Work> {
        let (stream, placed) = match work {
            Work::Frame { stream, placed } => (stream, placed),
            asked => return Some(asked),
        };
        let outdated = stream != self.streams.newest.load(Ordering::Acquire);
        if outdated || self.refused == Some(stream) {
            return None;
        }
        if self.halted {
            self.robbed = Some(stream);
            return None;
        }
        match placed {
            Ok(steps) => {
                if steps.iter().any(|step| matches!(step, Step::Next { .. })) {
                    self.gaps = 0;
                }
                if pending.is_empty() {
                    *pending = steps;
                } else {
                    pending.extend(steps);
                }
            }
            Err(Misfit::Gap { expected, found }) => {
                self.refused = Some(stream);
                self.gaps += 1;
                let message = format!(
                    "Sequence {expected} should have come from the publisher, {found} came."
                );
                if self.gaps > 1 {
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

    /// Commits a group; if one of its events fails, all before it, it alone, and then the
    /// rest: the others pay a commit or two for it.
    fn settle(&mut self, mut group: &[Step]) -> Result<(), Stop> {
        while let Err(Faulty { at, why }) = self.commit(group)? {
            match at {
                _ if group.len() == 1 => return self.settle_single(&group[0], Some(why)),
                Some(0) => self.settle_single(&group[0], Some(why))?,
                Some(at) => {
                    self.settle(&group[..at])?;
                    self.settle_single(&group[at], None)?;
                }
                // What shows only with the commit is in one of its halves.
                None => {
                    let (first, second) = group.split_at(group.len() / 2);
                    self.settle(first)?;
                    group = second;
                    continue;
                }
            }
            group = &group[at.unwrap_or_default() + 1..];
            if group.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// One event, as often as is allowed. `failed`: why it failed just now.
    fn settle_single(&mut self, single: &Step, failed: Option<EventFault>) -> Result<(), Stop> {
        let event = single.event();
        let mut failed = failed;
        for attempt in 1.. {
            let why = match failed.take() {
                Some(why) => why,
                None => match self.commit(std::slice::from_ref(single))? {
                    Ok(()) => break,
                    Err(faulty) => faulty.why,
                },
            };
            tracing::warn!(sequence = event.sequence, attempt, ?why, "an event failed");
            let mut failure = Failure {
                reason: EVENT_FAILED,
                message: format!("Event {} failed: {}.", event.sequence, why.said()),
                event: Some(EventName::from(event)),
                attempts: Some(attempt),
                next_attempt: None,
                statement: why.statement(),
                class: why.class(),
            };
            if matches!(why, EventFault::Conflict) {
                failure.reason = "CONFLICT";
                failure.message = format!(
                    "Sequence {} came again with other content than was applied.",
                    event.sequence
                );
            }
            if matches!(why, EventFault::Lost) {
                failure.reason = STORE_CHANGED;
                failure.message = format!(
                    "Sequence {} came again; it was applied, and the ledger has lost its row.",
                    event.sequence
                );
            }
            if failure.reason != EVENT_FAILED {
                return Err(Stop::Halt(failure));
            }
            self.stuck = Stuck::at(single, &why);
            if attempt < self.attempts {
                self.pause_at_event(attempt, failure)?;
            } else if self.on_error == OnError::Skip {
                self.set_aside_by_itself(&failure)?;
            } else {
                return Err(Stop::Halt(failure));
            }
            if self.stuck.is_none() {
                break; // it was set aside
            }
        }
        self.stuck = None;
        Ok(())
    }

    /// One transaction, tried for as long as the store itself is in the way.
    /// The inner error is an event's.
    fn commit(&mut self, steps: &[Step]) -> Result<Result<(), Faulty>, Stop> {
        self.commit_by(|writer| writer.attempt(steps))
    }

    /// The same of whatever moves the cursor.
    fn commit_by(
        &mut self,
        attempt_at: impl Fn(&mut Writer) -> Result<Committed, Failed>,
    ) -> Result<Result<(), Faulty>, Stop> {
        let mut unfit = 0;
        for attempt in 1.. {
            self.may_go_on()?;
            let error = match attempt_at(&mut self.writer) {
                Ok(group) => {
                    self.tell(group);
                    return Ok(Ok(()));
                }
                Err(Failed::Event(faulty)) => return Ok(Err(faulty)),
                Err(Failed::Store(error)) => error,
                Err(Failed::Disk(error)) => return Err(Stop::Latch(error.to_string())),
                Err(Failed::Changed(why)) => return Err(store_changed(&why)),
            };
            tracing::debug!(%error, "the store could not take a group");
            let (reason, message) = match trouble::judge(&error) {
                Trouble::Broken => return Err(Stop::Latch(trouble::said(&error))),
                // Not an event's: the writer says which those are. The group
                // stays whole, because it may have been committed as a whole.
                Trouble::Statement => {
                    unfit += 1;
                    if unfit >= self.attempts {
                        return Err(store_changed(&trouble::said(&error)));
                    }
                    ("STORE_BUSY", format!("The database is not fit: {}.", trouble::said(&error)))
                }
                Trouble::Busy => {
                    ("STORE_BUSY", format!("The database is not free: {}.", trouble::said(&error)))
                }
                Trouble::Full => {
                    // The write-ahead log may have room to give back.
                    self.tidy();
                    ("DISK_FULL", "The disk is full.".to_owned())
                }
            };
            let attempts = Some(attempt);
            self.pause(attempt, Failure { reason, message, attempts, ..Default::default() })?;
        }
        unreachable!("the attempts do not end")
    }

    /// From here on a commit is known to others, and acknowledged.
    fn tell(&mut self, group: Committed) {
        self.board.recovered();
        let Some(cursor) = group.cursor else { return };
        // First: who has waited for the cursor finds what follows counted.
        self.board.note_emitted(group.emitted);
        self.board.note_commit(cursor, group.outcomes, group.told, group.event_time);
        self.idle = false;
        if let Err(error) = self.writer.after_commit() {
            self.checkpoint_failed(&error);
        }
    }

    /// Empties the write-ahead log, as far as it goes now.
    fn tidy(&mut self) {
        match self.writer.when_idle() {
            Ok(done) => self.idle = done,
            Err(error) => self.checkpoint_failed(&error),
        }
    }

    fn checkpoint_failed(&mut self, error: &rusqlite::Error) {
        match trouble::judge(error) {
            // There will be another time.
            Trouble::Full | Trouble::Busy => {
                tracing::debug!(%error, "the write-ahead log could not be copied yet");
            }
            Trouble::Broken | Trouble::Statement => self.stop(Stop::Latch(trouble::said(error))),
        }
    }

    /// Not when told to end, and never after the disk has failed, which a
    /// checkpoint may have found between two commits.
    fn may_go_on(&self) -> Result<(), Stop> {
        if self.ending.is_cancelled() || self.latched.is_some() { Err(Stop::Over) } else { Ok(()) }
    }

    /// Waits before another attempt, and says so.
    fn pause(&mut self, attempt: u32, mut failure: Failure) -> Result<(), Stop> {
        self.may_go_on()?;
        let delay = backoff(attempt, RETRY_BASE, rand::random());
        failure.next_attempt = Some(Time::from_system(SystemTime::now() + delay));
        self.board.retrying(failure);
        let ending = self.ending.clone();
        let ended = async { tokio::time::timeout(delay, ending.cancelled()).await };
        if self.runtime.block_on(ended).is_ok() { Err(Stop::Over) } else { Ok(()) }
    }

    fn stop(&mut self, stop: Stop) {
        let failure = match stop {
            Stop::Over => return,
            Stop::Halt(failure) => failure,
            Stop::Latch(why) => {
                let message = format!("A read or write of the database failed: {why}.");
                self.writer.mark_halted(&message);
                // It will not be cut any more.
                self.writer.gate().open();
                self.latched = Some(message.clone());
                Failure { reason: STORE_FAILED, message, ..Default::default() }
            }
        };
        self.halted = true;
        // What had been taken of it, and not committed, is thrown away.
        self.robbed = Some(self.streams.newest.load(Ordering::Acquire));
        self.board.halt(failure);
    }

    fn close(mut self) -> Result<(), String> {
        if self.latched.is_some() {
            // Readers go on until the end, and this connection keeps them from
            // reading the write-ahead log anew: what failed may stand in it.
            self.runtime.block_on(self.ending.cancelled());
            return Ok(());
        }
        if let Err(error) = self.writer.close() {
            self.checkpoint_failed(&error);
        }
        self.latched.map_or(Ok(()), Err)
    }
}

fn store_changed(why: &str) -> Stop {
    let message = format!("The database cannot be written to: {why}.");
    Stop::Halt(Failure { reason: STORE_CHANGED, message, ..Default::default() })
}

/// Whether enough waits for a commit. More stays in the queue, which is bounded.
fn is_full(pending: &[Step]) -> bool {
    let bytes = || pending.iter().map(|step| step.event().intent.data.len()).sum::<usize>();
    pending.len() >= MAX_COMMIT_EVENTS || bytes() >= MAX_COMMIT_BYTES
}

/// How many of those that wait are committed together.
fn group_size(pending: &[Step]) -> usize {
    let mut bytes = 0;
    let fits = pending.iter().take(MAX_COMMIT_EVENTS).take_while(|step| {
        let first = bytes == 0;
        bytes += 1 + step.event().intent.data.len();
        first || bytes <= MAX_COMMIT_BYTES
    });
    fits.count()
}

mod forwarded;
mod install;
mod orders;
mod pruning;
mod take_over;

pub use forwarded::Noted;
pub use take_over::{Hold, TakeOver};

pub use orders::{Done, Order, shortened};

#[cfg(test)]
mod tests;
