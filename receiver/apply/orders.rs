//! What people order of the apply thread: to set aside the event that it cannot apply, to
//! make the effect of one that was set aside, and not to forward one that follows. Carried out
//! between two transactions, and while it waits to try an event again.

use std::time::SystemTime;

use tokio::sync::oneshot;

use super::{
    Apply, Aside, EVENT_FAILED, EventFault, Failed, Failure, Faulty, RETRY_BASE, Step, Stop,
    backoff,
};
use crate::{
    proto::{
        chain::Cursor,
        event::{Event, Sequence, Time},
        limits::MAX_REASON_BYTES,
        outcome::Outcome,
        refusal::{Reason, Refusal},
    },
    receiver::{skip::Late, store::ledger::Entry},
};

/// Where the answer goes. Without a receiver nobody wants to know.
pub type Done<T> = oneshot::Sender<Result<T, Refusal>>;

/// What a person orders.
#[derive(Debug)]
pub enum Order {
    /// To set aside the event that it cannot apply. Answered with its ledger row.
    Skip {
        /// Which one that is.
        sequence: Sequence,
        /// Why.
        reason: String,
        /// For the answer.
        done: Done<Entry>,
    },
    /// To make the effect of one that was set aside.
    ApplyLate {
        /// Which one.
        sequence: Sequence,
        /// For the answer.
        done: Done<Late>,
    },
    /// Not to forward a follow-up event.
    GiveUp {
        /// Of the event that it follows from.
        sequence: Sequence,
        /// Which one of that event's.
        number: i64,
        /// Why.
        reason: String,
        /// For the answer.
        done: Done<()>,
    },
}

/// The event that the thread is trying again, or has halted on.
pub(super) struct Stuck {
    event: Event,
    after: Cursor,
    fault: String,
}

impl Stuck {
    /// None where it had been applied before: that one is not set aside.
    pub(super) fn at(step: &Step, why: &EventFault) -> Option<Stuck> {
        match step {
            Step::Next { event, after, .. } => {
                Some(Stuck { event: event.clone(), after: *after, fault: why.noted() })
            }
            Step::Earlier(_) => None,
        }
    }
}

impl Apply {
    /// Carries out what has been ordered meanwhile.
    pub(super) fn carry_out_orders(&mut self) {
        while let Ok(order) = self.orders.try_recv() {
            self.carry_out(order);
        }
    }

    /// Carries out one, and answers.
    pub(super) fn carry_out(&mut self, order: Order) {
        match order {
            Order::Skip { sequence, reason, done } => {
                let _ = done.send(self.skip(sequence, reason));
            }
            Order::ApplyLate { sequence, done } => {
                let _ = done.send(self.apply_late(sequence));
            }
            Order::GiveUp { sequence, number, reason, done } => {
                let _ = done.send(self.give_up(sequence, number, &reason));
            }
        }
    }

    fn skip(&mut self, sequence: Sequence, reason: String) -> Result<Entry, Refusal> {
        let wrong =
            |message: String| Refusal::new(Reason::WrongState, message).with("sequence", sequence);
        self.may_write()?;
        let Some(stuck) = self.stuck.take_if(|stuck| stuck.event.sequence == sequence) else {
            return match self.writer.entry(sequence) {
                Some(entry) if entry.outcome == Outcome::Skipped => Ok(entry),
                Some(entry) => {
                    Err(wrong(format!("event {sequence} is {} already", entry.outcome.as_str())))
                }
                None => Err(wrong(match &self.stuck {
                    Some(stuck) => format!(
                        "the receiver waits for event {}, not for {sequence}",
                        stuck.event.sequence
                    ),
                    None => format!("the receiver does not wait for event {sequence}"),
                })),
            };
        };
        tracing::warn!(sequence, reason, fault = stuck.fault, "an event is set aside, as ordered");
        let aside = Aside { reason, fault: stuck.fault.clone() };
        if let Err(stop) = self.set_aside(&stuck, &aside) {
            self.stuck = Some(stuck);
            self.stop(stop);
            return Err(wrong("the database could not be written; its status says why".to_owned()));
        }
        if self.halted {
            self.go_on();
        }
        self.writer.entry(sequence).ok_or_else(|| wrong("it is set aside".to_owned()))
    }

    /// All its attempts are used up, and nobody wants it to halt for that.
    pub(super) fn set_aside_by_itself(&mut self, failure: &Failure) -> Result<(), Stop> {
        let Some(stuck) = self.stuck.take() else { return Err(Stop::Halt(failure.clone())) };
        let reason = shortened(&stuck.fault);
        tracing::error!(
            sequence = stuck.event.sequence,
            key = &*stuck.event.intent.key,
            "{} It is set aside, and the receiver goes on; once mended: `counterfoil \
             apply-skipped --receiver URL {}`.",
            failure.message,
            stuck.event.sequence,
        );
        self.set_aside(&stuck, &Aside { reason, fault: stuck.fault.clone() })
    }

    fn set_aside(&mut self, stuck: &Stuck, aside: &Aside) -> Result<(), Stop> {
        let Stuck { event, after, .. } = stuck;
        match self.commit_by(|writer| writer.set_aside(event, *after, aside))? {
            Ok(()) => {
                self.look_at_skipped();
                Ok(())
            }
            Err(Faulty { why, .. }) => Err(super::store_changed(&why.said())),
        }
    }

    /// The halt is over. What was thrown away since comes again with another stream.
    pub(super) fn go_on(&mut self) {
        self.halted = false;
        if let Some(robbed) = self.robbed.take() {
            self.refused = Some(robbed);
            self.streams.reopen.notify_one();
        }
        self.board.note_going_on();
    }

    fn apply_late(&mut self, sequence: Sequence) -> Result<Late, Refusal> {
        self.may_write()?;
        let wrong =
            |reason, message: String| Refusal::new(reason, message).with("sequence", sequence);
        match self.writer.apply_late(sequence) {
            Ok(Ok(Some(late))) => {
                if late.now {
                    let outcome = late.entry.outcome.as_str();
                    tracing::warn!(sequence, outcome, "an event that was set aside is applied");
                }
                self.idle = false;
                self.look_at_skipped();
                self.look_at_outbox();
                if let Err(error) = self.writer.after_commit() {
                    self.checkpoint_failed(&error);
                }
                Ok(late)
            }
            Ok(Ok(None)) => {
                Err(wrong(Reason::NotFound, format!("event {sequence} was not set aside")))
            }
            Ok(Err(damaged)) => Err(damaged),
            Err(Failed::Event(Faulty { why, .. })) => {
                let message =
                    format!("Event {sequence} cannot be applied now either: {}.", why.said());
                tracing::warn!(sequence, ?why, "an event that was set aside failed again");
                let refusal = wrong(Reason::EventFailed, message)
                    .with("class", why.class().unwrap_or_default());
                Err(match why.statement() {
                    Some(place) => refusal.with("statement", place),
                    None => refusal,
                })
            }
            Err(failed) => {
                let why = self.failed(failed);
                Err(wrong(Reason::WrongState, format!("it cannot be applied now: {why}")))
            }
        }
    }

    /// Not at the end, and after a halt only if that was for an event.
    fn may_write(&self) -> Result<(), Refusal> {
        let halted = self.board.halted_for().filter(|reason| *reason != EVENT_FAILED);
        match (self.may_go_on(), halted) {
            (Err(_), _) => Err(Refusal::new(
                Reason::ShuttingDown,
                "the receiver is ending, or its disk has failed",
            )),
            (_, Some(reason)) => Err(Refusal::new(
                Reason::WrongState,
                format!("it has halted for {reason}; its status says what ends that"),
            )),
            _ => Ok(()),
        }
    }

    /// Shows how many events are set aside.
    pub(super) fn look_at_skipped(&self) {
        if let Some(waiting) = self.writer.waiting() {
            self.board.note(|status| status.skipped = waiting);
        }
    }

    /// Waits before another attempt at an event, and says so. An order may set it aside
    /// meanwhile; then there is nothing stuck any more.
    pub(super) fn pause_at_event(
        &mut self,
        attempt: u32,
        mut failure: Failure,
    ) -> Result<(), Stop> {
        self.may_go_on()?;
        let delay = backoff(attempt, RETRY_BASE, rand::random());
        failure.next_attempt = Some(Time::from_system(SystemTime::now() + delay));
        self.board.retrying(failure);
        let until = tokio::time::Instant::now() + delay;
        while self.stuck.is_some() {
            let (orders, ending) = (&mut self.orders, &self.ending);
            let come = async {
                tokio::select! {
                    () = ending.cancelled() => Err(Stop::Over),
                    () = tokio::time::sleep_until(until) => Ok(None),
                    Some(order) = orders.recv() => Ok(Some(order)),
                }
            };
            match self.runtime.block_on(come)? {
                None => break,
                Some(order) => self.carry_out(order),
            }
            if self.halted {
                return Err(Stop::Over);
            }
        }
        self.may_go_on()
    }
}

/// As much of it as a ledger row's reason may have.
pub fn shortened(fault: &str) -> String {
    let mut end = fault.len().min(MAX_REASON_BYTES);
    while !fault.is_char_boundary(end) {
        end -= 1;
    }
    fault[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_shortened_between_two_characters() {
        assert_eq!(shortened("PAYLOAD: no"), "PAYLOAD: no");
        let long = format!("x{}", "é".repeat(MAX_REASON_BYTES));
        let short = shortened(&long);
        assert!(short.len() == MAX_REASON_BYTES - 1 && long.starts_with(&short));
    }
}
