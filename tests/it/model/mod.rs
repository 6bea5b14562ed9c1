//! What Publish must answer, told by a reference that remembers everything: the
//! whole history is one list, and every question is answered by looking through it.
//! [`operations`] makes histories up, [`live`] lives one on a real publisher, [`check`]
//! compares each answer, [`run`] does so again and again. Pure: knows nothing of
//! processes, files and real time.
//!
//! Time goes in whole hours since the history began. Clocks, windows and ages are
//! whole hours, an intent is of the middle of an hour: so nothing ever lies within
//! half an hour of a bound, and the real minutes that pass meanwhile decide nothing.

mod check;
mod live;
mod operations;
mod run;

use counterfoil::proto::refusal::Reason;

/// Hours since the history began. An intent's lies in the middle of its hour.
pub type Hour = i64;

/// An idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// Text, that tells no time.
    Text(u16),
    /// A UUIDv7 of this hour.
    Uuid(Hour, u16),
}

/// An event as a producer states it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Intent {
    pub key: Key,
    /// Its first_attempt_time.
    pub stated: Option<Hour>,
    pub subject: u8,
    pub expected_version: Option<i64>,
    /// Stands for the rest of its content.
    pub delta: i64,
}

impl Intent {
    /// By which its receipt is kept; none: for ever.
    pub fn hour(&self) -> Option<Hour> {
        hour(self.key, self.stated)
    }
}

fn hour(key: Key, stated: Option<Hour>) -> Option<Hour> {
    match key {
        Key::Uuid(hour, _) => Some(hour).max(stated),
        Key::Text(_) => stated,
    }
}

/// The bounds of a log, as its configuration states them.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    pub key_window: Hour,
    pub max_untimed_keys: usize,
    pub max_events: usize,
    /// And half an hour.
    pub max_age: Hour,
    /// `when_full = "reject"`; otherwise the oldest events go.
    pub reject: bool,
}

/// An event as it was accepted; its place in the list is its sequence.
#[derive(Debug, Clone, Copy)]
pub struct Accepted {
    pub intent: Intent,
    pub subject_version: i64,
    /// The publisher's clock then.
    pub at: Hour,
}

/// The numbers that come with a refusal.
pub type Numbers = Vec<(&'static str, i64)>;

/// What one request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// These sequences, appended by it.
    Appended(Vec<usize>),
    /// These sequences, appended by an earlier attempt.
    Duplicate(Vec<usize>),
    /// Nothing happened.
    Refused(Reason, Numbers),
}

/// What GetReceipt answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// The receipt of this sequence.
    Accepted(usize),
    Never,
    Expired,
    /// Never accepted; but the log may be unable to tell that by now.
    NeverOrExpired,
}

/// A log that remembers everything.
#[derive(Debug, Clone)]
pub struct Model {
    pub bounds: Bounds,
    /// The publisher's clock: the largest value that it has seen.
    pub clock: Hour,
    /// What of it outlives a restart: it is stored with the key floor and with events.
    pub stored_clock: Hour,
    /// Receipts of intents from before it are gone. Never moves back.
    pub key_floor: Hour,
    /// Everything ever accepted.
    pub log: Vec<Accepted>,
    /// Everything below has been dropped. What is too old may still stand above it:
    /// age is looked at now and then only.
    pub floor: usize,
}

impl Model {
    pub fn new(bounds: Bounds) -> Self {
        let key_floor = -bounds.key_window;
        Model { bounds, clock: 0, stored_clock: 0, key_floor, log: Vec::new(), floor: 0 }
    }

    /// A new process has only what is stored; its bounds may be others.
    pub fn restarts(&mut self) {
        self.clock = self.stored_clock;
    }

    /// The system's clock shows this hour.
    pub fn clock_shows(&mut self, hour: Hour) {
        self.clock = self.clock.max(hour);
        let key_floor = self.clock - self.bounds.key_window;
        if key_floor > self.key_floor {
            (self.key_floor, self.stored_clock) = (key_floor, self.clock);
        }
    }

    /// How many events of a subject were accepted.
    pub fn version(&self, subject: u8) -> i64 {
        self.log.iter().filter(|event| event.intent.subject == subject).count() as i64
    }

    /// How many keys have no time: none of them is ever forgotten.
    pub fn untimed(&self) -> usize {
        self.log.iter().filter(|event| event.intent.hour().is_none()).count()
    }

    /// Keys with a receipt.
    pub fn keys(&self) -> usize {
        self.log.iter().filter(|event| !self.is_expired(event.intent.hour())).count()
    }

    /// Where the floor is once age has been looked at.
    pub fn floor_by_age(&self) -> usize {
        let too_old = |event: &&Accepted| self.clock - event.at > self.bounds.max_age;
        self.floor + self.log[self.floor..].iter().take_while(too_old).count()
    }

    fn is_expired(&self, hour: Option<Hour>) -> bool {
        hour.is_some_and(|hour| hour < self.key_floor)
    }

    /// Where a key's receipt stands.
    fn find(&self, key: Key) -> Option<usize> {
        self.log
            .iter()
            .rposition(|event| event.intent.key == key && !self.is_expired(event.intent.hour()))
    }

    /// What became of a key, asked with or without its first_attempt_time.
    pub fn receipt(&self, key: Key, stated: Option<Hour>) -> Known {
        let forgotten = |event: &&Accepted| self.is_expired(event.intent.hour());
        let mut forgotten = self.log.iter().filter(forgotten).map(|event| event.intent);
        let this_one = forgotten.clone().any(|intent| intent.key == key);
        match (self.find(key), hour(key, stated)) {
            (Some(sequence), _) => Known::Accepted(sequence),
            (None, hour @ Some(_)) if self.is_expired(hour) => Known::Expired,
            // Asked with another time than it was accepted with: no fair question.
            (None, Some(_)) if this_one => Known::NeverOrExpired,
            (None, Some(_)) => Known::Never,
            (None, None) if this_one => Known::Expired,
            (None, None) if forgotten.any(|intent| intent.stated.is_some()) => {
                Known::NeverOrExpired
            }
            (None, None) => Known::Never,
        }
    }

    /// One request: all or nothing.
    pub fn publish(&mut self, intents: &[Intent]) -> Answer {
        self.admit(intents).unwrap_or_else(|(reason, numbers)| Answer::Refused(reason, numbers))
    }

    /// The checks in the order that the contract states.
    fn admit(&mut self, intents: &[Intent]) -> Result<Answer, (Reason, Numbers)> {
        let from_the_future =
            |intent: &Intent| intent.hour().is_some_and(|hour| hour >= self.clock);
        let twice = |n: usize| intents[..n].iter().any(|before| before.key == intents[n].key);
        if intents.iter().any(from_the_future) || (0..intents.len()).any(twice) {
            return Err((Reason::InvalidField, Vec::new()));
        }

        let known: Vec<_> = intents.iter().map(|intent| self.find(intent.key)).collect();
        for (index, (intent, known)) in (0..).zip(intents.iter().zip(&known)) {
            if let &Some(sequence) = known
                && self.log[sequence].intent != *intent
            {
                let numbers = vec![("index", index), ("sequence", sequence as i64)];
                return Err((Reason::KeyConflict, numbers));
            }
        }
        for (index, (intent, known)) in (0..).zip(intents.iter().zip(&known)) {
            if known.is_none() && self.is_expired(intent.hour()) {
                return Err((Reason::KeyExpired, vec![("index", index)]));
            }
        }
        let count = known.iter().flatten().count();
        if count == intents.len() {
            return Ok(Answer::Duplicate(known.into_iter().flatten().collect()));
        }
        if count > 0 {
            return Err((Reason::PartialDuplicate, vec![("known", count as i64)]));
        }

        let mut new = Vec::with_capacity(intents.len());
        for (index, &intent) in (0..).zip(intents) {
            let before = |event: &&Accepted| event.intent.subject == intent.subject;
            let version = self.version(intent.subject) + new.iter().filter(before).count() as i64;
            if intent.expected_version.is_some_and(|expected| expected != version) {
                return Err((Reason::StaleVersion, vec![("index", index), ("version", version)]));
            }
            new.push(Accepted { intent, subject_version: version + 1, at: self.clock });
        }

        let untimed = intents.iter().filter(|intent| intent.hour().is_none()).count();
        if untimed > 0 && self.untimed() + untimed > self.bounds.max_untimed_keys {
            return Err((Reason::KeysFull, vec![("untimed_keys", self.untimed() as i64)]));
        }
        let next = self.log.len() + new.len();
        let lowest = next.saturating_sub(self.bounds.max_events);
        let floor = self.floor_by_age();
        if self.bounds.reject && floor < lowest {
            return Err((Reason::LogFull, Vec::new()));
        }

        self.floor = floor.max(lowest);
        self.stored_clock = self.clock;
        let appended = (self.log.len()..next).collect();
        self.log.extend(new);
        Ok(Answer::Appended(appended))
    }
}
