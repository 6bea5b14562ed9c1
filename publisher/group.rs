//! A group: requests that are committed together. A request is decided against
//! what is committed and what stands before it in the group; a receipt can be
//! made only of a group that is on stable storage.

use std::sync::RwLock;

use bytes::Bytes;
use hashbrown::HashMap;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    admit::{Admission, Prepared, admit, room_for_keys},
    batch::{Answered, Batch},
    halt::Halt,
    log::{CommitError, Entry, EventLog, Extent, LogReader, ReadError},
    oldest::Oldest,
    receipts::{self, Accepted, Hash, Names, Receipts},
    resume::failed,
    retention::{Held, Hold, Limits, NoRoom, Size, fits_at_all, make_room},
};
use crate::proto::{
    chain::{Chain, link},
    event::{Sequence, Time},
    limits::NAMED_RECEIVERS,
    refusal::{Reason, Refusal},
};

/// What a publisher answered for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt {
    /// The log's incarnation.
    pub log_id: Uuid,
    /// The key, a text.
    pub key: Bytes,
    /// Where and when it was accepted.
    pub accepted: Accepted,
    /// Whether an earlier attempt was accepted, not this one.
    pub duplicate: bool,
}

/// What a caller waits for.
pub type Answer = oneshot::Sender<Answered>;

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
    /// What receivers keep of it.
    pub hold: &'a Hold,
    /// Why it takes no new events although it takes writes.
    pub suspect: Option<&'a Refusal>,
    /// The publisher's clock.
    pub now_ms: i64,
}

/// What becomes of a request once the group is committed.
enum Outcome {
    /// These of the group's new events are its.
    Appended { from: usize, to: usize },
    /// Its events were accepted before.
    Duplicate(Vec<(Bytes, Accepted)>),
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
    answers: Vec<(Answer, Vec<Outcome>)>,
}

/// A new event, as its receipt will show it.
struct NewEvent {
    key: Bytes,
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
    /// An empty group at the end of a log, with room for so many events.
    pub fn new(base: Extent, events: usize) -> Self {
        Group {
            held: Held { floor: base.floor, next: base.next, bytes: base.bytes },
            chain: base.head_chain,
            base,
            entries: Vec::with_capacity(events),
            new: New {
                events: Vec::with_capacity(events),
                by_key: HashMap::with_capacity(events),
                versions: HashMap::new(),
                untimed: 0,
            },
            answers: Vec::new(),
        }
    }

    /// Decides about requests, one after the other, and takes them in.
    pub fn take(
        &mut self,
        mut batch: Batch,
        answer: Answer,
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) {
        let outcomes = batch.requests_mut().map(|events| {
            let early = self.entries.is_empty();
            self.decide(events, ground, oldest)
                .unwrap_or_else(|refusal| Outcome::Refused { refusal, early })
        });
        let outcomes = outcomes.collect();
        self.answers.push((answer, outcomes));
    }

    fn decide(
        &mut self,
        events: &mut [Prepared],
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
        match admit(events, &known, ground.receipts.key_floor_ms(), version)? {
            Admission::Duplicate(receipts) => {
                let keys = events.iter().map(Prepared::key);
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
        events: &mut [Prepared],
        versions: Vec<i64>,
        ground: &Ground<'_>,
        oldest: &mut Oldest,
    ) -> Result<Outcome, Refusal> {
        if ground.halt.is_closed() {
            return Err(ground.halt.refusal());
        }
        if let Some(refusal) = ground.suspect {
            return Err(refusal.clone());
        }
        let untimed = ground.receipts.untimed() + self.new.untimed;
        room_for_keys(events, untimed, ground.limits.max_untimed_keys)?;
        let accept_time = Time::from_unix_millis(ground.now_ms);
        let mut placed = Vec::with_capacity(events.len());
        for (sequence, (event, version)) in (self.held.next..).zip(events.iter_mut().zip(versions))
        {
            placed.push((event.place(sequence, version, accept_time), version));
        }
        let bytes = placed.iter().map(|((body, _), _)| body.len() as u64).sum();
        let adding = (placed.len() as u64, bytes);
        fits_at_all(ground.limits, adding.0, adding.1)?;
        let held = self.room(adding, ground, oldest)?;

        let from = self.entries.len();
        for (sequence, (event, ((body, key), subject_version))) in
            (self.held.next..).zip(events.iter().zip(placed))
        {
            let Prepared { names, fingerprint, time_ms, .. } = *event;
            let accepted_at_ms = ground.now_ms;
            self.chain = link(&self.chain, sequence, &fingerprint, &key);
            self.entries.push(Entry { chain: self.chain, accepted_at_ms, body });
            self.new.by_key.insert(names.key, self.new.events.len());
            self.new.versions.insert(names.subject, subject_version);
            self.new.untimed += u64::from(time_ms.is_none());
            let accepted =
                Accepted { sequence, subject_version, fingerprint, accepted_at_ms, time_ms };
            self.new.events.push(NewEvent { key, names, accepted });
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
        let (base, entries) = (self.base.next, &self.entries);
        let size = |sequence: Sequence| match sequence.checked_sub(base) {
            Some(index @ 0..) => {
                let entry = &entries[index as usize];
                Ok(Size { bytes: entry.body.len() as u64, accepted_at_ms: entry.accepted_at_ms })
            }
            _ => oldest.at(sequence, ground.log),
        };
        make_room(ground.limits, self.held, adding, ground.hold, ground.now_ms, size).map_err(
            |error| match error {
                NoRoom::Full(limit) => full(limit, self.held.floor, ground),
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
    answers: Vec<(Answer, Vec<Outcome>)>,
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

    /// Tells so many of those who have not been told yet, and says whether there are more. Who
    /// has hung up meanwhile changes nothing. The last is told first: a stream waits for its
    /// oldest answer, and when it is woken all are there.
    pub fn answer(&mut self, most: usize) -> bool {
        let Committed { log_id, events, answers } = self;
        let told = answers.len().saturating_sub(most);
        for (answer, outcomes) in answers.drain(told..).rev() {
            let _ = answer.send(Answered::of(outcomes, |outcome, receipts| match outcome {
                Outcome::Appended { from, to } => {
                    receipts.extend(events[from..to].iter_mut().map(
                        |NewEvent { key, accepted, .. }| Receipt {
                            log_id: *log_id,
                            key: std::mem::take(key),
                            accepted: accepted.clone(),
                            duplicate: false,
                        },
                    ));
                    Ok(())
                }
                Outcome::Duplicate(known) => {
                    receipts.extend(duplicates(*log_id, known));
                    Ok(())
                }
                Outcome::Refused { refusal, .. } => Err(refusal),
            }));
        }
        !self.answers.is_empty()
    }
}

fn duplicates(log_id: Uuid, known: Vec<(Bytes, Accepted)>) -> impl Iterator<Item = Receipt> {
    known.into_iter().map(move |(key, accepted)| Receipt { log_id, key, accepted, duplicate: true })
}

/// A group that could not be committed.
pub struct Failed {
    /// Why.
    pub error: CommitError,
    base: Extent,
    answers: Vec<(Answer, Vec<Outcome>)>,
}

impl Failed {
    /// Tells everybody: what rests on committed events alone stands, what rests
    /// on the group is refused with it.
    pub fn answer(self, refusal: &Refusal) {
        let Failed { base, answers, .. } = self;
        for (answer, outcomes) in answers {
            let _ = answer.send(Answered::of(outcomes, |outcome, receipts| match outcome {
                Outcome::Duplicate(known)
                    if known.iter().all(|(_, accepted)| accepted.sequence < base.next) =>
                {
                    receipts.extend(duplicates(base.log_id, known));
                    Ok(())
                }
                Outcome::Refused { refusal, early: true } => Err(refusal),
                _ => Err(refusal.clone()),
            }));
        }
    }
}

fn full(limit: &'static str, floor: Sequence, ground: &Ground<'_>) -> Refusal {
    let holders = &ground.hold.holders;
    let held = if holders.is_empty() && ground.limits.hold_for_receivers {
        "no receiver within its lease has acknowledged them".to_owned()
    } else if holders.is_empty() {
        "no receiver is known that has acknowledged them".to_owned()
    } else {
        format!("{} has not acknowledged them", first(holders, ", "))
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
    if holders.is_empty() { refusal } else { refusal.with("receivers", first(holders, ",")) }
}

/// The first few names: a message stays short however many receivers there are.
fn first(names: &[String], between: &str) -> String {
    names[..names.len().min(NAMED_RECEIVERS)].join(between)
}

#[cfg(test)]
mod tests;
