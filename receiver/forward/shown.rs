//! What is shown of follow-up events that wait: why, and what a person can do. Pure.

use crate::{
    proto::event::Sequence,
    receiver::{
        status::{EventName, Failure},
        store::outbox::Outgoing,
    },
};

/// Forwarding does not go on, or not now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stuck {
    /// Why; with the follow-up event, its place that of the event that it follows from.
    /// Without a next attempt a person has to act.
    pub failure: Failure,
    /// Which one of that event's it is.
    pub number: Option<i64>,
}

impl Stuck {
    /// At a follow-up event.
    pub fn at(outgoing: &Outgoing, failure: Failure) -> Self {
        let event = EventName {
            sequence: outgoing.sequence,
            key: outgoing.intent.key.to_string(),
            event_type: outgoing.intent.event_type.to_string(),
            subject: outgoing.intent.subject.to_string(),
        };
        let failure = Failure { event: Some(event), ..failure };
        Stuck { failure, number: Some(outgoing.number) }
    }

    /// The follow-up event that the other publisher will not take.
    pub fn refused(&self) -> Option<(Sequence, i64)> {
        let event = self.failure.event.as_ref()?;
        let stopped = self.failure.next_attempt.is_none();
        stopped.then_some((event.sequence, self.number?))
    }

    /// A sentence or two to go on after the state's.
    pub fn detail(&self, pending: i64) -> String {
        let waiting = match pending {
            1 => "1 follow-up event waits".to_owned(),
            many => format!("{many} follow-up events wait"),
        };
        let message = &self.failure.message;
        if self.failure.next_attempt.is_some() {
            return format!("{waiting}: {message} Trying again by itself.");
        }
        match self.refused() {
            Some((sequence, number)) => format!(
                "{waiting}: {message} Events are applied all the same. Mend the cause over there \
                 and restart the receiver, or give this one up: `counterfoil skip-follow-up \
                 --receiver URL {sequence} {number} --reason TEXT`."
            ),
            None => format!("{waiting}: {message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::event::Time;

    #[test]
    fn each_says_why_and_what_to_do() {
        let message = "The other publisher refuses it.".to_owned();
        let failure = Failure { reason: "KEY_CONFLICT", message, ..Failure::default() };
        let event = Some(EventName {
            sequence: 17,
            key: String::new(),
            event_type: String::new(),
            subject: String::new(),
        });
        let stopped =
            Stuck { failure: Failure { event: event.clone(), ..failure.clone() }, number: Some(2) };
        assert_eq!(stopped.refused(), Some((17, 2)));
        let detail = stopped.detail(3);
        assert!(detail.starts_with("3 follow-up events wait: The other"), "{detail}");
        assert!(detail.contains("--receiver URL 17 2 --reason"), "{detail}");
        let next_attempt = Some(Time { seconds: 0, nanos: 0 });
        let passing =
            Stuck { failure: Failure { event, next_attempt, ..failure }, number: Some(2) };
        assert_eq!(passing.refused(), None);
        assert!(passing.detail(1).starts_with("1 follow-up event waits: "));
        assert!(passing.detail(1).ends_with("Trying again by itself."));
    }
}
