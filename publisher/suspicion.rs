//! What a log says while receivers have seen more or other history than it holds: to who
//! looks, and to who publishes. The log is SUSPECT until each of them has been admitted
//! again or removed.
//!
//! Of a log that was forked, one whose cursor is of an ancestor, or that the fork has taken
//! into account, is a receiver that has to resync, and no more than that: new events already
//! have numbers, or an identity, that it has not seen.

use std::sync::{
    PoisonError, RwLock,
    atomic::{AtomicBool, Ordering},
};

use super::{log::Extent, suspects::Suspect};
use crate::proto::{
    chain::Ancestor,
    limits::NAMED_RECEIVERS,
    refusal::{Reason, Refusal},
};

/// Suspects that a sentence names; of more it gives the number.
const NAMED: usize = 3;

/// The suspects of one log, as others see them.
#[derive(Debug)]
pub struct Suspicion {
    ancestors: Vec<Ancestor>,
    rows: RwLock<Vec<Suspect>>,
    /// Whether new events might be taken for others.
    unsettled: AtomicBool,
}

impl Suspicion {
    /// Of a log with these ancestors.
    pub fn new<'a>(ancestors: &[Ancestor], rows: impl Iterator<Item = &'a Suspect>) -> Self {
        let suspicion = Suspicion {
            ancestors: ancestors.to_vec(),
            rows: RwLock::default(),
            unsettled: AtomicBool::new(false),
        };
        suspicion.show(rows);
        suspicion
    }

    /// Lets all suspects be seen.
    pub fn show<'a>(&self, rows: impl Iterator<Item = &'a Suspect>) {
        let rows: Vec<Suspect> = rows.cloned().collect();
        let unsettled = rows.iter().any(|suspect| !is_settled(suspect, &self.ancestors));
        *self.rows.write().unwrap_or_else(PoisonError::into_inner) = rows;
        self.unsettled.store(unsettled, Ordering::Release);
    }

    /// All suspects, by name.
    pub fn all(&self) -> Vec<Suspect> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why no new event may be taken, if `on_ahead` says so; none: there is no reason.
    /// Costs next to nothing then.
    pub fn refusal(&self, extent: &Extent) -> Option<Refusal> {
        if !self.unsettled.load(Ordering::Acquire) {
            return None;
        }
        let mut rows = self.all();
        rows.retain(|suspect| !is_settled(suspect, &self.ancestors));
        let seen = rows.iter().map(|suspect| suspect.seen.sequence).max()?;
        let names = rows.iter().map(|suspect| suspect.name.as_str());
        let names: Vec<&str> = names.take(NAMED_RECEIVERS).collect();
        let message = format!("the log takes no events: {}", self.sentence(&rows, extent));
        Some(
            Refusal::new(Reason::LogSuspect, message)
                .with("receivers", names.join(","))
                .with("sequence", seen)
                .with("next", extent.next),
        )
    }

    /// What happened and what to do, for a person.
    pub fn sentence(&self, rows: &[Suspect], extent: &Extent) -> String {
        let clause = |suspect| clause(suspect, extent, &self.ancestors);
        let mut told: Vec<String> = rows.iter().take(NAMED).map(clause).collect();
        if rows.len() > NAMED {
            told.push(format!("and {} more", rows.len() - NAMED));
        }
        let what_to_do = if rows.iter().all(|suspect| is_settled(suspect, &self.ancestors)) {
            "resync each (`counterfoil resync`), or remove it (`counterfoil remove-receiver`)"
        } else {
            "if the log has lost history, put a newer copy back, or stop the publisher and run \
             `publisher fork`; a receiver that is wrong is resynced (`counterfoil resync`) or \
             removed (`counterfoil remove-receiver`)"
        };
        format!("{}: {what_to_do}", told.join("; "))
    }
}

/// The ancestor whose history it has seen.
fn ancestor<'a>(suspect: &Suspect, ancestors: &'a [Ancestor]) -> Option<&'a Ancestor> {
    ancestors.iter().find(|ancestor| ancestor.log_id == suspect.seen.log_id)
}

fn is_settled(suspect: &Suspect, ancestors: &[Ancestor]) -> bool {
    suspect.settled || ancestor(suspect, ancestors).is_some()
}

fn clause(suspect: &Suspect, extent: &Extent, ancestors: &[Ancestor]) -> String {
    let Suspect { name, reason, seen, .. } = suspect;
    let sequence = seen.sequence;
    match (ancestor(suspect, ancestors), reason) {
        (Some(ancestor), _) if sequence > ancestor.last => format!(
            "receiver {name} has seen events of log {} up to {sequence}, and this one, {}, goes \
             on from it after {}",
            seen.log_id, extent.log_id, ancestor.last
        ),
        (_, Reason::CursorAhead) => format!(
            "receiver {name} has seen events up to {sequence}, and this log ends before {}",
            extent.next
        ),
        (_, Reason::Diverged) => {
            format!("receiver {name} has seen other events than this log holds, at {sequence}")
        }
        (_, _) => format!(
            "receiver {name} has seen log {} up to {sequence}, and this is {}",
            seen.log_id, extent.log_id
        ),
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::proto::chain::Cursor;

    fn suspect(name: &str, reason: Reason, log: u128, sequence: i64) -> Suspect {
        let seen = Cursor { log_id: Uuid::from_u128(log), sequence, chain: [0; 32] };
        Suspect { name: name.to_owned(), reason, seen, at_ms: 0, settled: false }
    }

    fn extent() -> Extent {
        let log_id = Uuid::from_u128(1);
        Extent { log_id, floor: 0, next: 5, head_chain: [0; 32], bytes: 0 }
    }

    #[test]
    fn publishing_is_refused_for_what_no_fork_has_settled() {
        let ancestors = [Ancestor { log_id: Uuid::from_u128(7), last: 4 }];
        let ahead = suspect("ahead", Reason::CursorAhead, 1, 9);
        let foreign = suspect("foreign", Reason::LogMismatch, 8, 30);
        let left = suspect("left", Reason::LogMismatch, 7, 9);
        let settled = Suspect { settled: true, ..foreign.clone() };
        // (suspects, those that stand in the way, what they have seen)
        let cases = [
            (vec![], None),
            (vec![&left], None),
            (vec![&settled, &left], None),
            (vec![&ahead, &settled], Some(("ahead", "9"))),
            (vec![&ahead], Some(("ahead", "9"))),
            (vec![&ahead, &left], Some(("ahead", "9"))),
            (vec![&ahead, &foreign], Some(("ahead,foreign", "30"))),
        ];
        for (rows, expected) in cases {
            let suspicion = Suspicion::new(&ancestors, rows.iter().copied());
            let refusal = suspicion.refusal(&extent());
            let number = |name: &str| {
                let mut numbers = refusal.iter().flat_map(|refusal| &refusal.metadata);
                numbers.find(|(key, _)| *key == name).map(|(_, value)| value.as_str())
            };
            assert_eq!(number("receivers").zip(number("sequence")), expected, "{rows:?}");
            assert_eq!(number("next"), expected.map(|_| "5"));
        }
    }

    #[test]
    fn the_sentence_says_what_happened_and_what_to_do() {
        let suspicion = Suspicion::new(&[], [].into_iter());
        let rows = [
            suspect("a", Reason::CursorAhead, 1, 9),
            suspect("b", Reason::Diverged, 1, 3),
            suspect("c", Reason::LogMismatch, 2, 30),
            suspect("d", Reason::LogMismatch, 2, 30),
        ];
        let said = suspicion.sentence(&rows, &extent());
        for part in [
            "receiver a has seen events up to 9, and this log ends before 5; ",
            "receiver b has seen other events than this log holds, at 3; ",
            "receiver c has seen log 00000000-0000-0000-0000-000000000002 up to 30",
            "; and 1 more: ",
            "`publisher fork`",
            "`counterfoil remove-receiver`",
        ] {
            assert!(said.contains(part), "{part:?} is missing in: {said}");
        }
        let ancestors = [Ancestor { log_id: Uuid::from_u128(2), last: 4 }];
        let said = Suspicion::new(&ancestors, [].into_iter()).sentence(&rows[2..3], &extent());
        assert!(said.contains("goes on from it after 4: resync each"), "{said}");
        assert!(said.contains("`counterfoil resync`") && !said.contains("fork"), "{said}");
        let below = suspect("b", Reason::Diverged, 2, 3);
        let said = Suspicion::new(&ancestors, [].into_iter()).sentence(&[below], &extent());
        assert!(said.starts_with("receiver b has seen other events than this log"), "{said}");
    }
}
