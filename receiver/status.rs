//! What the receiver is doing, for people: one value that the paths write to
//! and the service shows. Decides nothing.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use tokio::sync::{Notify, watch};

use super::{
    apply::{EVENT_FAILED, STORE_CHANGED, STORE_FAILED},
    forward::shown::Stuck,
    pruning::Heard,
    recent::Recent,
};
use crate::proto::{
    chain::Cursor,
    event::{Event, Sequence, Time},
    outcome::{Outcome, Reported},
};

/// What the receiver is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not connected; trying.
    Connecting,
    /// Applying stored events.
    CatchingUp,
    /// At the head.
    Live,
    /// An event or a commit failed; trying again.
    Retrying,
    /// Stopped for good.
    Halted,
    /// What comes next is no longer retained: going on from a snapshot.
    Resyncing,
}

impl State {
    /// The word, as people and programs have it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Connecting => "CONNECTING",
            State::CatchingUp => "CATCHING_UP",
            State::Live => "LIVE",
            State::Retrying => "RETRYING",
            State::Halted => "HALTED",
            State::Resyncing => "RESYNCING",
        }
    }
}

/// The connection to the publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Link {
    /// There is none. Says why.
    Down(String),
    /// There is one. The head has been reached on it at this sequence, if at all.
    Up(Option<Sequence>),
}

/// What stopped the receiver, or holds it up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failure {
    /// A word that programs branch on.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
    /// The event, where there is one.
    pub event: Option<EventName>,
    /// Attempts so far.
    pub attempts: Option<u32>,
    /// When it will be tried again; none: not by itself.
    pub next_attempt: Option<Time>,
    /// The statement or rule of the projection at fault, where there is one.
    pub statement: Option<String>,
    /// A word for what is wrong with the event, where it is the event.
    pub class: Option<&'static str>,
}

/// Why a receiver goes on from other content than it has, and how far that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resyncing {
    /// Why.
    pub failure: Failure,
    /// One sentence: what is done now, or what has to be done.
    pub step: String,
    /// A person has to say so first.
    pub waits: bool,
}

/// How far the database of a later version of the projection is, which is filled beside the
/// live one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebuilding {
    /// The version that goes on meanwhile.
    pub from_version: i64,
    /// The one that is to take over.
    pub to_version: i64,
    /// What is applied in the new database; -1: nothing.
    pub sequence: Sequence,
    /// One sentence: what is done, or what is in the way.
    pub step: String,
}

/// An event without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventName {
    /// Its place.
    pub sequence: Sequence,
    /// Its key.
    pub key: String,
    /// Its type.
    pub event_type: String,
    /// Its subject.
    pub subject: String,
}

impl From<&Event> for EventName {
    fn from(event: &Event) -> Self {
        EventName {
            sequence: event.sequence,
            key: event.intent.key.to_string(),
            event_type: event.intent.event_type.to_string(),
            subject: event.intent.subject.to_string(),
        }
    }
}

/// The status.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The connection.
    pub link: Link,
    /// What holds the receiver up; it goes on by itself.
    pub retrying: Option<Failure>,
    /// What stopped it.
    pub halted: Option<Failure>,
    /// Why other content is about to take the place of what the database holds.
    pub resyncing: Option<Resyncing>,
    /// Attempts at that since the head was reached last.
    pub resync_attempts: u32,
    /// Installations since the start.
    pub resyncs: i64,
    /// A snapshot below this sequence will not be of use for long; 0: none is needed yet.
    pub snapshot_due_below: Sequence,
    /// Where the newest snapshot of this projection is that the publisher has, as last
    /// heard; -1: it has none.
    pub snapshot_sequence: Option<Sequence>,
    /// Events that may still come before this receiver's next one is evicted, as the
    /// publisher has warned; none: it has not.
    pub headroom_events: Option<i64>,
    /// The publisher refuses acks. Says why.
    pub ack_refused: Option<String>,
    /// The last sequence of which outcomes are reported, where the reports after it
    /// do not get through; nothing while they do.
    pub reports_stuck_at: Option<Sequence>,
    /// What is committed.
    pub cursor: Option<Cursor>,
    /// What the publisher has confirmed.
    pub acked: Option<Cursor>,
    /// The publisher's next sequence, as last heard.
    pub next_sequence: Option<Sequence>,
    /// Age of the last committed event when it was committed, in seconds.
    pub lag_seconds: Option<f64>,
    /// Attempts to connect since the last success.
    pub connect_attempts: u32,
    /// Commits since the start.
    pub commits: i64,
    /// Events committed since the start, in the order of [`Outcome::ALL`].
    pub outcomes: [i64; Outcome::ALL.len()],
    /// The first sequence that the ledger has a row of.
    pub ledger_from: Sequence,
    /// Events that are set aside and wait for their effect.
    pub skipped: i64,
    /// Follow-up events that wait to be forwarded.
    pub outbox_pending: i64,
    /// Why they wait, where something is in the way. Events are applied all the same.
    pub forwarding: Option<Stuck>,
    /// The publisher that they go to had lost some, which have been sent again.
    pub forward_lost: Option<String>,
    /// A later version of the projection is being rebuilt.
    pub rebuilding: Option<Rebuilding>,
}

impl Status {
    fn new(cursor: Option<Cursor>) -> Self {
        Status {
            link: Link::Down("just started".to_owned()),
            retrying: None,
            halted: None,
            resyncing: None,
            resync_attempts: 0,
            resyncs: 0,
            snapshot_due_below: 0,
            snapshot_sequence: None,
            headroom_events: None,
            ack_refused: None,
            reports_stuck_at: None,
            cursor,
            acked: None,
            next_sequence: None,
            lag_seconds: None,
            connect_attempts: 0,
            commits: 0,
            outcomes: [0; Outcome::ALL.len()],
            ledger_from: 0,
            skipped: 0,
            outbox_pending: 0,
            forwarding: None,
            forward_lost: None,
            rebuilding: None,
        }
    }

    /// The committed sequence, -1 for none.
    pub fn committed(&self) -> Sequence {
        self.cursor.map_or(-1, |cursor| cursor.sequence)
    }

    /// Events not yet committed, as last heard.
    pub fn lag_events(&self) -> Option<i64> {
        self.next_sequence.map(|next| (next - 1 - self.committed()).max(0))
    }

    /// What the receiver is doing.
    pub fn state(&self) -> State {
        match &self.link {
            _ if self.resyncing.is_some() => State::Resyncing,
            _ if self.halted.is_some() => State::Halted,
            _ if self.retrying.is_some() => State::Retrying,
            Link::Down(_) => State::Connecting,
            Link::Up(Some(head))
                if self.committed() >= *head && self.lag_events().unwrap_or(0) == 0 =>
            {
                State::Live
            }
            Link::Up(_) => State::CatchingUp,
        }
    }

    /// The publisher has said below which sequence a snapshot is of no use for long.
    pub fn snapshot_due(&mut self, below: Option<Sequence>) {
        if let Some(below) = below {
            self.snapshot_due_below = below;
        }
    }

    /// What stopped it, or holds it up.
    pub fn failure(&self) -> Option<&Failure> {
        let resyncing = self.resyncing.as_ref().map(|resyncing| &resyncing.failure);
        resyncing.or(self.halted.as_ref()).or(self.retrying.as_ref())
    }

    /// A sentence or more: why it is in this state, and what to do.
    pub fn detail(&self) -> String {
        let mut detail = self.detail_of_state();
        if let Some(Rebuilding { to_version, sequence, step, .. }) = &self.rebuilding {
            detail.push_str(&format!(
                " Version {to_version} of the projection is being rebuilt, up to sequence \
                 {sequence} so far. {step}"
            ));
        }
        detail
    }

    fn detail_of_state(&self) -> String {
        if let Some(Resyncing { failure, step, .. }) = &self.resyncing {
            return format!("{} {step}", failure.message);
        }
        if let Some(failure) = &self.halted {
            return format!("{} {}", failure.message, what_to_do(failure.reason));
        }
        if let Some(failure) = &self.retrying {
            return format!("{} Trying again by itself.", failure.message);
        }
        let mut detail = match (&self.link, self.state()) {
            (Link::Down(why), _) => format!("Not connected ({why}); trying again by itself."),
            (_, State::Live) => "At the head; nothing to do.".to_owned(),
            _ => match self.lag_events() {
                Some(lag) => format!("Applying stored events, {lag} to go; nothing to do."),
                None => "Applying stored events; nothing to do.".to_owned(),
            },
        };
        if let Some(headroom) = self.headroom_events {
            detail.push_str(&format!(
                " {headroom} more events at the publisher, and this receiver's next one is no \
                 longer retained: it will go on from a snapshot then."
            ));
        }
        if let Some(why) = &self.ack_refused {
            detail.push_str(&format!(
                " The publisher refuses acks ({why}); events are applied all the same."
            ));
        }
        if let Some(reported) = self.reports_stuck_at {
            detail.push_str(&format!(
                " What came of the events after {reported} cannot be reported (the ledger cannot \
                 be read or has no row of the next one, or the publisher does not take it; the \
                 logs say why); events are applied and acknowledged all the same."
            ));
        }
        if let Some(stuck) = &self.forwarding {
            detail.push(' ');
            detail.push_str(&stuck.detail(self.outbox_pending));
        }
        if let Some(lost) = &self.forward_lost {
            detail.push(' ');
            detail.push_str(lost);
        }
        detail
    }
}

/// What a person can do about a reason to halt: all reasons but those that are
/// mended as [`OTHERWISE`] says. `docs/when-it-stops.md` has the same table.
const WHAT_TO_DO: [(&str, &str); 12] = [
    (
        EVENT_FAILED,
        "Mend what it fails on (the projection, a row of its tables), then restart the \
         receiver. Or set the event aside and go on behind it: `counterfoil skip --receiver \
         URL SEQUENCE --reason TEXT`.",
    ),
    ("CONFLICT", OTHER_HISTORY),
    ("DIVERGED", OTHER_HISTORY),
    ("LOG_MISMATCH", OTHER_HISTORY),
    ("CURSOR_AHEAD", OTHER_HISTORY),
    ("GAP", "This is a defect of the publisher's; keep both databases and report it."),
    (
        "RECEIVER_FENCED",
        "Another receiver of this name took over: stop one of them, or give it another --name.",
    ),
    (
        STORE_FAILED,
        "Nothing more is written. Stop the receiver, see to the disk, then run \
         `receiver recover --db FILE`.",
    ),
    (
        "STORE_CHANGED",
        "Find out what else uses it or keeps it from being written, then restart the receiver.",
    ),
    ("LOG_NOT_FOUND", "Check --log, then restart the receiver."),
    ("CORRUPT", "The publisher's data is damaged: see there, then restart the receiver."),
    ("UNREACHABLE", "Check --publisher, then restart the receiver."),
];

const OTHER_HISTORY: &str = "Find out which side was restored or replaced. To give up what this \
                             database has and follow the publisher's history: `counterfoil \
                             resync --receiver URL --confirm NAME`.";
const OTHERWISE: &str = "Mend the cause, then restart the receiver.";

fn what_to_do(reason: &str) -> &'static str {
    let known = WHAT_TO_DO.iter().find(|(known, _)| *known == reason);
    known.map_or(OTHERWISE, |(_, advice)| advice)
}

/// Where the paths write what happened. Cheap to call; latest wins.
#[derive(Debug)]
pub struct Board {
    status: watch::Sender<Status>,
    committed: watch::Sender<Option<Cursor>>,
    recent: Recent,
    heard: Mutex<Heard>,
    outbox: Notify,
    outbox_rewritten: AtomicU64,
    healthy: watch::Sender<bool>,
}

impl Board {
    /// A board of a receiver that has committed up to `cursor`.
    pub fn new(cursor: Option<Cursor>) -> Self {
        Board {
            status: watch::Sender::new(Status::new(cursor)),
            committed: watch::Sender::new(cursor),
            recent: Recent::after(cursor.map_or(-1, |cursor| cursor.sequence)),
            heard: Mutex::new(Heard::NOTHING),
            outbox: Notify::new(),
            outbox_rewritten: AtomicU64::new(0),
            healthy: watch::Sender::new(true),
        }
    }

    /// The status and its changes.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    /// The committed cursor and its changes: what acks are made of.
    pub fn committed(&self) -> watch::Receiver<Option<Cursor>> {
        self.committed.subscribe()
    }

    /// What the last commits have brought, never less far than [`Board::committed`].
    pub fn recent(&self) -> &Recent {
        &self.recent
    }

    /// What the publisher has said that ledger rows are pruned by.
    pub fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Told when there may be more to forward than before, or a follow-up event less in the
    /// way. One waits for it.
    pub fn outbox(&self) -> &Notify {
        &self.outbox
    }

    /// How often the outbox has become another one than what was added to it, forwarded and
    /// given up: whoever has a copy of it begins anew then.
    pub fn outbox_rewritten(&self) -> u64 {
        self.outbox_rewritten.load(Ordering::Acquire)
    }

    /// It has become another one.
    pub fn note_outbox_rewritten(&self) {
        self.outbox_rewritten.fetch_add(1, Ordering::Release);
    }

    /// Whether the receiver works.
    pub fn healthy(&self) -> watch::Receiver<bool> {
        self.healthy.subscribe()
    }

    /// Returns once the receiver has halted.
    pub async fn halted(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.status().wait_for(|status| status.halted.is_some()).await;
    }

    /// Returns once the receiver has not halted, or no longer.
    pub async fn goes_on(&self) {
        let _ = self.status().wait_for(|status| status.halted.is_none()).await;
    }

    /// The reason for which the receiver has halted.
    pub fn halted_for(&self) -> Option<&'static str> {
        self.status.borrow().halted.as_ref().map(|failure| failure.reason)
    }

    /// Changes the status.
    pub fn note(&self, change: impl FnOnce(&mut Status)) {
        self.status.send_modify(change);
    }

    /// A cursor is committed. `told`: what there is to report of the events up to it
    /// since the one before. `event_time`: when its last event was accepted.
    pub fn note_commit(
        &self,
        cursor: Cursor,
        outcomes: [i64; Outcome::ALL.len()],
        told: Vec<Reported>,
        event_time: Time,
    ) {
        self.recent.add(cursor.sequence, told);
        let now = Time::from_system(std::time::SystemTime::now());
        let age = now.unix_millis().saturating_sub(event_time.unix_millis()).max(0);
        self.note(|status| {
            status.cursor = Some(cursor);
            status.commits += 1;
            for (sum, more) in status.outcomes.iter_mut().zip(outcomes) {
                *sum += more;
            }
            status.lag_seconds = Some(age as f64 / 1_000.0);
            status.retrying = None;
            if status.next_sequence.is_some_and(|next| next <= cursor.sequence) {
                status.next_sequence = Some(cursor.sequence + 1);
            }
        });
        self.committed.send_replace(Some(cursor));
    }

    /// So many follow-up events are committed, and wait to be forwarded.
    pub fn note_emitted(&self, emitted: i64) {
        if emitted > 0 {
            self.note(|status| status.outbox_pending += emitted);
            self.outbox.notify_one();
        }
    }

    /// Other content has taken the place of all that was there, up to this cursor.
    pub fn note_installed(&self, cursor: Option<Cursor>) {
        self.recent.begin_anew(cursor.map_or(-1, |cursor| cursor.sequence));
        *self.heard() = Heard::NOTHING;
        self.note_outbox_rewritten();
        self.note(|status| {
            status.cursor = cursor;
            status.resyncs += 1;
            (status.acked, status.lag_seconds, status.headroom_events) = (None, None, None);
            (status.halted, status.retrying) = (None, None);
        });
        self.committed.send_replace(cursor);
        self.outbox.notify_one();
        self.healthy.send_replace(true);
    }

    /// What it had halted for is over; nothing else has changed.
    pub fn note_going_on(&self) {
        self.note(|status| (status.halted, status.retrying) = (None, None));
        self.healthy.send_replace(true);
    }

    /// A later version of the projection has taken over, with its own database up to this
    /// cursor. That ends a halt for an event, and no other.
    pub fn note_taken_over(&self, cursor: Option<Cursor>) {
        self.recent.begin_anew(cursor.map_or(-1, |cursor| cursor.sequence));
        self.note(|status| {
            status.cursor = cursor;
            (status.rebuilding, status.retrying) = (None, None);
            status.halted.take_if(|failure| failure.reason == EVENT_FAILED);
        });
        self.committed.send_replace(cursor);
        self.healthy.send_replace(self.halted_for().is_none());
    }

    /// The log's incarnation has another name from now on; nothing else has changed.
    pub fn note_adopted(&self, cursor: Cursor) {
        self.note(|status| status.cursor = Some(cursor));
        self.committed.send_replace(Some(cursor));
    }

    /// What a resync does now, or waits for.
    pub fn resyncing(&self, resyncing: Resyncing) {
        self.note(|status| status.resyncing = Some(resyncing));
    }

    /// Something failed and is tried again.
    pub fn retrying(&self, failure: Failure) {
        tracing::warn!(reason = failure.reason, attempts = ?failure.attempts, "{}", failure.message);
        self.note(|status| status.retrying = Some(failure));
    }

    /// What was retried has passed.
    pub fn recovered(&self) {
        self.status.send_if_modified(|status| status.retrying.take().is_some());
    }

    /// The receiver stops for good. The first failure is the one that counts,
    /// but for a failed disk: that one needs more than a restart, and ends acks; and for a
    /// changed database: no other content mends that.
    pub fn halt(&self, failure: Failure) {
        tracing::error!(reason = failure.reason, "halted: {}", failure.message);
        self.note(|status| {
            let first = status.halted.as_ref().map(|first| first.reason);
            let counts = match failure.reason {
                STORE_FAILED => true,
                STORE_CHANGED => first != Some(STORE_FAILED),
                _ => first.is_none(),
            };
            if counts {
                status.halted = Some(failure);
            }
            (status.retrying, status.resyncing) = (None, None);
        });
        self.healthy.send_replace(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_says_why_and_what_to_do() {
        let failure = |reason, message: &str| Failure {
            reason,
            message: message.to_owned(),
            ..Failure::default()
        };
        let mut status = Status::new(None);
        let mut expect = |change: &dyn Fn(&mut Status), state, words: &str| {
            change(&mut status);
            assert_eq!(status.state(), state);
            assert!(status.detail().contains(words), "{:?} lacks {words:?}", status.detail());
        };
        expect(&|s| s.link = Link::Down("refused".into()), State::Connecting, "refused");
        expect(&|s| s.link = Link::Up(None), State::CatchingUp, "stored events");
        expect(&|s| s.next_sequence = Some(3), State::CatchingUp, "3 to go");
        // It has been at the head, which has moved on since.
        expect(&|s| s.link = Link::Up(Some(-1)), State::CatchingUp, "3 to go");
        expect(&|s| s.next_sequence = Some(0), State::Live, "nothing to do");
        expect(&|s| s.ack_refused = Some("not known".into()), State::Live, "refuses acks");
        expect(&|s| s.reports_stuck_at = Some(7), State::Live, "after 7 cannot be reported");
        expect(&|s| s.headroom_events = Some(40), State::Live, "40 more events");
        let waits = Failure {
            next_attempt: Some(Time::from_unix_millis(0)),
            ..failure("LOG_FULL", "It is full.")
        };
        let stuck = Some(Stuck { failure: waits, number: None });
        let both = "follow-up events wait: It is full. Trying again";
        expect(&|s| s.forwarding = stuck.clone(), State::Live, both);
        let full = failure("DISK_FULL", "No space.");
        expect(&|s| s.retrying = Some(full.clone()), State::Retrying, "by itself");
        let broken = failure("STORE_FAILED", "A write failed.");
        expect(&|s| s.halted = Some(broken.clone()), State::Halted, "receiver recover --db FILE");
        let resyncing = Resyncing {
            failure: failure("CURSOR_EXPIRED", "Sequence 3 is gone."),
            step: "Getting another.".to_owned(),
            waits: false,
        };
        let both = "Sequence 3 is gone. Getting another.";
        expect(&|s| s.resyncing = Some(resyncing.clone()), State::Resyncing, both);
    }

    #[test]
    fn every_reason_stands_in_the_docs() {
        let docs = include_str!("../docs/when-it-stops.md");
        let (_, table) = docs.split_once("## A receiver: why").expect("the chapter");
        let first_column = |line: &str| line.split('|').nth(1).unwrap_or_default().to_owned();
        let named: Vec<_> = table.lines().map(first_column).collect();
        let others = ["CURSOR_EXPIRED", "DISK_FULL", "STORE_BUSY"].map(|name| (name, ""));
        for (reason, _) in WHAT_TO_DO.into_iter().chain(others) {
            let stands = named.iter().any(|cell| cell.split(',').any(|name| name.trim() == reason));
            assert!(stands, "docs/when-it-stops.md lacks {reason}");
        }
    }

    #[test]
    fn an_installation_ends_a_halt_and_a_failed_disk_ends_a_resync() {
        let board = Board::new(None);
        board.halt(Failure { reason: "DIVERGED", ..Failure::default() });
        let (failure, step) = (Failure::default(), String::new());
        board.resyncing(Resyncing { failure, step, waits: false });
        assert_eq!(board.status().borrow().state(), State::Resyncing);
        board.halt(Failure { reason: STORE_FAILED, ..Failure::default() });
        assert_eq!(board.status().borrow().state(), State::Halted);

        let board = Board::new(None);
        board.halt(Failure { reason: "DIVERGED", ..Failure::default() });
        board.note_installed(None);
        assert_eq!((board.halted_for(), *board.healthy().borrow()), (None, true));
        assert_eq!(board.status().borrow().resyncs, 1);
    }

    #[test]
    fn a_later_version_that_takes_over_ends_a_halt_for_an_event_and_no_other() {
        for (reason, left) in [(EVENT_FAILED, None), ("DIVERGED", Some("DIVERGED"))] {
            let board = Board::new(None);
            board.halt(Failure { reason, ..Failure::default() });
            board.note_taken_over(None);
            assert_eq!((board.halted_for(), *board.healthy().borrow()), (left, left.is_none()));
        }
    }

    #[test]
    fn the_first_reason_to_halt_stays() {
        let board = Board::new(None);
        for reason in ["GAP", "CONFLICT"] {
            board.halt(Failure { reason, ..Failure::default() });
        }
        assert_eq!(board.halted_for(), Some("GAP"));
        assert!(!*board.healthy().borrow());
        for reason in [STORE_FAILED, "RECEIVER_FENCED"] {
            board.halt(Failure { reason, ..Failure::default() });
            assert_eq!(board.halted_for(), Some(STORE_FAILED), "the latch wins");
        }
    }
}
