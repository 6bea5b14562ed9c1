//! A group: requests that are committed together. A request is decided against
//! what is committed and what stands before it in the group; a receipt can be
//! made only of a group that is on stable storage.

use std::sync::RwLock;

use hashbrown::HashMap;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    admit::{Admission, Prepared, admit, room_for_keys},
    halt::Halt,
    log::{CommitError, Entry, EventLog, Extent, LogReader, ReadError},
    oldest::Oldest,
    receipts::{self, Accepted, Hash, Names, Receipts},
    resume::failed,
    retention::{Held, Limits, NoRoom, Size, fits_at_all, make_room},
};
use crate::proto::{
    chain::{Chain, link},
    event::{Sequence, Time},
    refusal::{Reason, Refusal},
    wire,
};

/// What a publisher answered for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The log's incarnation.
    pub log_id: Uuid,
    /// The key.
    pub key: String,
    /// Where and when it was accepted.
    pub accepted: Accepted,
    /// Whether an earlier attempt was accepted, not this one.
    pub duplicate: bool,
}

/// What a caller waits for.
pub type Answer = oneshot::Sender<Result<Vec<Receipt>, Refusal>>;

/// What a group is decided against; none of it changes while it is built.
pub struct Ground<'a> {
    /// What is committed.
    pub receipts: &'a Receipts,
    /// The log, for the sizes of its oldest events.
    pub log: &'a dyn LogReader,
    /// Its bounds.
    pub limits: &'a Limits,
    /// Whether it takes writes.
    pub halt: &'a Halt,
    /// Below it every known receiver has everything, with the receivers that hold it there.
    pub acknowledged: (Sequence, Vec<String>),
    /// The publisher's clock.
    pub now_ms: i64,
}

/// What becomes of a request once the group is committed.
enum Outcome {
    /// These of the group's new events are its.
    Appended { from: usize, to: usize },
    /// Its events were accepted before.
    Duplicate(Vec<(String, Accepted)>),
    /// It is refused. `early`: by what is committed alone.
    Refused { refusal: Refusal, early: bool },
}

/// A group while it is built.
pub struct Group {
    base: Extent,
    /// What the log will hold.
    held: Held,
    chain: Chain,
    entries: Vec<Entry>,
    new: New,
    answers: Vec<(Answer, Outcome)>,
}

/// A new event, as its receipt will show it.
struct NewEvent {
    key: String,
    names: Names,
    accepted: Accepted,
}

/// The new events of a group.
#[derive(Default)]
struct New {
    events: Vec<NewEvent>,
    by_key: HashMap<Hash, usize>,
    versions: HashMap<Hash, i64>,
    /// Keys without a time.
    untimed: u64,
}

impl Group {
    /// An empty group at the end of a log.
    pub fn new(base: Extent) -> Self {
        Group {
            held: Held { floor: base.floor, next: base.next, bytes: base.bytes },
            chain: base.head_chain,
            base,
            entries: Vec::new(),
            new: New::default(),
            answers: Vec::new(),
        }
    }

    /// Decides about one request and takes it in.
    pub fn take(
        &mut self,
        events: Vec<Prepared>,
        answer: Answer,
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) {
        let early = self.entries.is_empty();
        let outcome = self
            .decide(events, ground, oldest)
            .unwrap_or_else(|refusal| Outcome::Refused { refusal, early });
        self.answers.push((answer, outcome));
    }

    fn decide(
        &mut self,
        events: Vec<Prepared>,
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) -> Result<Outcome, Refusal> {
        let known = events
            .iter()
            .map(|event| self.find(&event.names.key, ground.receipts))
            .collect::<Result<Vec<_>, ReadError>>()
            .map_err(|error| failed(&error))?;
        let version = |subject: &Hash| match self.new.versions.get(subject) {
            Some(version) => *version,
            None => ground.receipts.subject_version(subject),
        };
        match admit(&events, &known, ground.receipts.key_floor_ms(), version)? {
            Admission::Duplicate(receipts) => {
                let keys = events.into_iter().map(|event| event.key);
                Ok(Outcome::Duplicate(keys.zip(receipts).collect()))
            }
            Admission::Append(versions) => self.append(events, versions, ground, oldest),
        }
    }

    fn find(&self, key: &Hash, receipts: &Receipts) -> Result<Option<Accepted>, ReadError> {
        match self.new.by_key.get(key) {
            Some(&index) => Ok(Some(self.new.events[index].accepted.clone())),
            None => receipts.find(key),
        }
    }

    fn append(
        &mut self,
        events: Vec<Prepared>,
        versions: Vec<i64>,
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) -> Result<Outcome, Refusal> {
        if ground.halt.is_closed() {
            return Err(ground.halt.refusal());
        }
        let untimed = ground.receipts.untimed() + self.new.untimed;
        room_for_keys(&events, untimed, ground.limits.max_untimed_keys)?;
        let accept_time = Time::from_unix_millis(ground.now_ms);
        let mut bodies = Vec::with_capacity(events.len());
        let mut new = Vec::with_capacity(events.len());
        for (sequence, (event, subject_version)) in
            (self.held.next..).zip(events.into_iter().zip(versions))
        {
            let Prepared { key, names, fingerprint, content, time_ms, .. } = event;
            bodies.push(wire::place(content, sequence, subject_version, accept_time));
            let accepted_at_ms = ground.now_ms;
            let accepted =
                Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms };
            new.push(NewEvent { key, names, accepted });
        }
        let adding =
            (bodies.len() as u64, bodies.iter().map(|body| body.len() as u64).sum::<u64>());
        fits_at_all(ground.limits, adding.0, adding.1)?;
        let held = self.room(adding, ground, oldest)?;

        let from = self.entries.len();
        for (event, body) in new.into_iter().zip(bodies) {
            let NewEvent { key, names, accepted } = &event;
            self.chain = link(&self.chain, accepted.sequence, &accepted.fingerprint, key);
            self.entries.push(Entry { chain: self.chain, accepted_at_ms: ground.now_ms, body });
            self.new.by_key.insert(names.key, self.new.events.len());
            self.new.versions.insert(names.subject, accepted.subject_version);
            self.new.untimed += u64::from(accepted.time_ms.is_none());
            self.new.events.push(event);
        }
        self.held = Held {
            floor: held.floor,
            next: held.next + adding.0 as Sequence,
            bytes: held.bytes + adding.1,
        };
        Ok(Outcome::Appended { from, to: self.entries.len() })
    }

    /// What the log will hold when there is room for some more.
    fn room(
        &self,
        adding: (u64, u64),
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) -> Result<Held, Refusal> {
        let (acknowledged, holders) = &ground.acknowledged;
        let (base, entries) = (self.base.next, &self.entries);
        let size = |sequence: Sequence| match sequence.checked_sub(base) {
            Some(index @ 0..) => {
                let entry = &entries[index as usize];
                Ok(Size { bytes: entry.body.len() as u64, accepted_at_ms: entry.accepted_at_ms })
            }
            _ => oldest.at(sequence, ground.log),
        };
        make_room(ground.limits, self.held, adding, *acknowledged, ground.now_ms, size).map_err(
            |error| match error {
                NoRoom::Full(limit) => full(limit, self.held.floor, holders),
                NoRoom::Unreadable(error) => failed(&error),
            },
        )
    }

    /// Puts the group on stable storage: one write, one sync.
    ///
    /// # Errors
    /// [`Failed`], which answers everybody in it.
    pub fn commit(self, engine: &mut dyn EventLog) -> Result<Committed, Failed> {
        let nothing = self.entries.is_empty() && self.held.floor <= self.base.floor;
        match if nothing { Ok(()) } else { engine.commit(&self.entries, self.held.floor) } {
            Ok(()) => Ok(Committed {
                log_id: self.base.log_id,
                events: self.new.events,
                answers: self.answers,
            }),
            Err(error) => Err(Failed { error, base: self.base, answers: self.answers }),
        }
    }
}

/// A group that is on stable storage.
pub struct Committed {
    log_id: Uuid,
    events: Vec<NewEvent>,
    answers: Vec<(Answer, Outcome)>,
}

impl Committed {
    /// Whether it has new events.
    pub fn is_new(&self) -> bool {
        !self.events.is_empty()
    }

    /// Lets its new events be found by key and subject.
    pub fn insert_into(&self, receipts: &RwLock<Receipts>) {
        if self.events.is_empty() {
            return;
        }
        let mut receipts = receipts::change(receipts);
        for NewEvent { names, accepted, .. } in &self.events {
            receipts.insert(*names, accepted.clone());
        }
    }

    /// Tells everybody. Who has hung up meanwhile changes nothing. The last is told
    /// first: a stream waits for its oldest answer, and when it is woken all are there.
    pub fn answer(self) {
        let Committed { log_id, mut events, answers } = self;
        let receipt = |key, accepted, duplicate| Receipt { log_id, key, accepted, duplicate };
        for (answer, outcome) in answers.into_iter().rev() {
            let _ = answer.send(match outcome {
                Outcome::Appended { from, to } => Ok(events[from..to]
                    .iter_mut()
                    .map(|NewEvent { key, accepted, .. }| {
                        receipt(std::mem::take(key), accepted.clone(), false)
                    })
                    .collect()),
                Outcome::Duplicate(known) => Ok(known
                    .into_iter()
                    .map(|(key, accepted)| receipt(key, accepted, true))
                    .collect()),
                Outcome::Refused { refusal, .. } => Err(refusal),
            });
        }
    }
}

/// A group that could not be committed.
pub struct Failed {
    /// Why.
    pub error: CommitError,
    base: Extent,
    answers: Vec<(Answer, Outcome)>,
}

impl Failed {
    /// Tells everybody: what rests on committed events alone stands, what rests
    /// on the group is refused with it.
    pub fn answer(self, refusal: &Refusal) {
        let Failed { base, answers, .. } = self;
        for (answer, outcome) in answers {
            let _ = answer.send(match outcome {
                Outcome::Duplicate(known)
                    if known.iter().all(|(_, accepted)| accepted.sequence < base.next) =>
                {
                    Ok(known
                        .into_iter()
                        .map(|(key, accepted)| Receipt {
                            log_id: base.log_id,
                            key,
                            accepted,
                            duplicate: true,
                        })
                        .collect())
                }
                Outcome::Refused { refusal, early: true } => Err(refusal),
                _ => Err(refusal.clone()),
            });
        }
    }
}

fn full(limit: &'static str, floor: Sequence, holders: &[String]) -> Refusal {
    let held = if holders.is_empty() {
        "no receiver is known that has acknowledged them".to_owned()
    } else {
        format!("{} has not acknowledged them", holders.join(", "))
    };
    let refusal = Refusal::new(
        Reason::LogFull,
        format!(
            "the log is full ({limit}) and refuses rather than drop the oldest events, from \
             sequence {floor} on: {held}"
        ),
    )
    .with("limit", limit)
    .with("floor", floor);
    if holders.is_empty() { refusal } else { refusal.with("receivers", holders.join(",")) }
}

#[cfg(test)]
mod tests;
