//! Requests that go through the queue together: each atomic by itself, all of them
//! answered at once. One hand-over to the appender and one back, for all of them.

use super::{
    admit::{Prepared, stored_bytes},
    group::Receipt,
};
use crate::proto::{limits::ANSWER_BYTES, refusal::Refusal};

/// Requests in an order.
#[derive(Debug, Default)]
pub struct Batch {
    /// Of all requests, one after the other.
    events: Vec<Prepared>,
    /// Events of each request.
    counts: Vec<usize>,
    /// Stored bytes, at most.
    bytes: usize,
}

impl Batch {
    /// Adds a request.
    pub fn add(&mut self, events: &mut Vec<Prepared>) {
        self.counts.push(events.len());
        self.bytes += stored_bytes(events);
        self.events.append(events);
    }

    /// The events of all requests.
    pub fn prepared(&self) -> &[Prepared] {
        &self.events
    }

    /// The events of each request.
    pub fn requests_mut(&mut self) -> impl Iterator<Item = &mut [Prepared]> {
        let mut rest = &mut self.events[..];
        self.counts.iter().map(move |&count| {
            let (events, others) = std::mem::take(&mut rest).split_at_mut(count);
            rest = others;
            events
        })
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Whether there is no request.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// How many events they have.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// Bytes that those will take, at most.
    pub fn stored_bytes(&self) -> usize {
        self.bytes
    }

    /// What the requests weigh in the queue, and their answers after that.
    pub fn weight(&self) -> usize {
        self.bytes + self.events.len() * ANSWER_BYTES
    }
}

/// The receipts of one request.
pub type Taken<'a> = std::iter::Take<&'a mut std::vec::IntoIter<Receipt>>;

/// The answers to the requests of a batch.
#[derive(Debug)]
pub struct Answered {
    /// Of all requests, one after the other.
    receipts: std::vec::IntoIter<Receipt>,
    /// How many of them are each request's, or why it is refused.
    requests: std::vec::IntoIter<Result<usize, Refusal>>,
}

impl Answered {
    /// Out of what became of each request; `put` adds its receipts, or refuses it.
    pub fn of<T>(
        outcomes: Vec<T>,
        mut put: impl FnMut(T, &mut Vec<Receipt>) -> Result<(), Refusal>,
    ) -> Self {
        let mut receipts = Vec::with_capacity(outcomes.len());
        let mut requests = Vec::with_capacity(outcomes.len());
        for outcome in outcomes {
            let before = receipts.len();
            let put = put(outcome, &mut receipts);
            requests.push(put.map(|()| receipts.len() - before));
        }
        Answered { receipts: receipts.into_iter(), requests: requests.into_iter() }
    }

    /// The same refusal for so many requests.
    pub fn refused(refusal: Refusal, requests: usize) -> Self {
        Answered::of(vec![refusal; requests], |refusal, _| Err(refusal))
    }

    /// The answer to the next request: its receipts, to be taken one by one, or its
    /// refusal. Those of the one before must have been taken.
    pub fn take_next(&mut self) -> Option<Result<Taken<'_>, Refusal>> {
        let Answered { receipts, requests } = self;
        requests.next().map(|request| request.map(|count| receipts.by_ref().take(count)))
    }

    /// The answer to the only request.
    pub fn only(mut self) -> Result<Vec<Receipt>, Refusal> {
        self.take_next().map_or_else(|| Ok(Vec::new()), |answer| answer.map(Iterator::collect))
    }
}

#[cfg(test)]
impl Batch {
    /// One request of these intents.
    pub fn of(intents: &[crate::proto::event::Intent]) -> Self {
        let mut room = bytes::BytesMut::new();
        let mut batch = Batch::default();
        let prepared = intents.iter().map(|intent| Prepared::new(&intent.stated(), &mut room));
        batch.add(&mut prepared.collect());
        batch
    }
}
