//! Ways to publish as fast as receipts come back.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil::{
    client::Publisher,
    proto::{
        pb::{PublishRequest, publisher_service_client::PublisherServiceClient},
        refusal::status_of,
    },
};
use tokio::{sync::Semaphore, task::JoinSet};
use tonic::transport::Channel;

use super::events::Events;
use crate::{
    failure::{Failure, explain},
    link,
};

/// How events are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Load {
    /// Callers that each wait for the answer to their Publish, over one connection.
    Unary,
    /// Callers that each wait for `publish` of one shared client.
    Client,
    /// One caller with many unanswered on one PublishStream.
    Stream,
}

/// The ways to publish that are measured.
pub const WAYS: [Way; 5] = [
    Way { load: Load::Unary, in_flight: 1 },
    Way { load: Load::Unary, in_flight: 16 },
    Way { load: Load::Unary, in_flight: 128 },
    CALLERS,
    STREAM,
];
/// What a service would use that has several callers.
pub const CALLERS: Way = Way { load: Load::Client, in_flight: 128 };
/// What a service would use that has one source.
pub const STREAM: Way = Way { load: Load::Stream, in_flight: 1_024 };

/// How, and with how many events unanswered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// How.
    pub load: Load,
    /// Events unanswered at any time.
    pub in_flight: usize,
}

impl fmt::Display for Way {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Way { load, in_flight } = self;
        match (load, in_flight) {
            (Load::Unary, 1) => write!(to, "Publish, 1 caller"),
            (Load::Unary, callers) => write!(to, "Publish, {callers} callers"),
            (Load::Client, callers) => write!(to, "client module, {callers} callers"),
            (Load::Stream, events) => write!(to, "PublishStream, {events} in flight"),
        }
    }
}

impl Way {
    /// Publishes to `url` for so long; returns how many receipts came within how much time.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when an event is not accepted.
    pub async fn run(
        self,
        url: &str,
        events: &Events,
        turn: Duration,
    ) -> Result<(u64, Duration), Failure> {
        let started = Instant::now();
        let until = started + turn;
        let mut callers = JoinSet::new();
        match self.load {
            Load::Unary => {
                let client = link::publisher(url)?;
                for caller in 0..self.in_flight {
                    let (mut client, events) = (client.clone(), events.clone());
                    callers.spawn(async move {
                        let mut count = 0;
                        while Instant::now() < until {
                            client
                                .publish(events.request(caller, 1))
                                .await
                                .map_err(|status| explain(&status))?;
                            count += 1;
                        }
                        Ok(count)
                    });
                }
            }
            Load::Client => {
                let publisher = connect(url)?;
                for caller in 0..self.in_flight {
                    let (publisher, events) = (publisher.clone(), events.clone());
                    callers.spawn(async move {
                        let mut count = 0;
                        while Instant::now() < until {
                            let event = events.make(caller);
                            publisher.publish(event).await.map_err(|e| e.to_string())?;
                            count += 1;
                        }
                        Ok(count)
                    });
                }
            }
            Load::Stream => {
                let made = Made::until(events, until);
                callers.spawn(stream(link::publisher(url)?, self.in_flight, made));
            }
        }
        let mut count = 0;
        while let Some(ended) = callers.join_next().await {
            let counted: Result<u64, String> = ended.map_err(|error| error.to_string()).flatten();
            count += counted.map_err(|why| Failure::Runtime(format!("{self}: {why}")))?;
        }
        Ok((count, started.elapsed()))
    }
}

/// Requests as they are made, one after the other.
pub struct Made {
    events: Events,
    /// Events in each.
    per_request: usize,
    until: Option<Instant>,
    left: usize,
    turn: usize,
}

impl Made {
    /// Of one event each, until then.
    fn until(events: &Events, until: Instant) -> Self {
        let events = events.clone();
        Made { events, per_request: 1, until: Some(until), left: usize::MAX, turn: 0 }
    }

    /// Of several events each, so many in all.
    pub fn counted(events: &Events, per_request: usize, count: usize) -> Self {
        Made { events: events.clone(), per_request, until: None, left: count, turn: 0 }
    }
}

impl Iterator for Made {
    type Item = PublishRequest;

    fn next(&mut self) -> Option<PublishRequest> {
        if self.left == 0 || self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let count = self.per_request.min(self.left);
        let request = self.events.request(self.turn, count);
        (self.left, self.turn) = (self.left - count, self.turn + count);
        Some(request)
    }
}

/// Sends requests on one PublishStream; returns the receipts that came.
///
/// # Errors
/// One line for a person.
pub async fn stream(
    mut client: PublisherServiceClient<Channel>,
    in_flight: usize,
    made: Made,
) -> Result<u64, String> {
    let room = Arc::new(Semaphore::new(in_flight));
    let requests =
        futures_util::stream::unfold((Arc::clone(&room), made), |(room, mut made)| async move {
            room.acquire().await.ok()?.forget();
            made.next().map(|request| (request, (room, made)))
        });
    let answers = client.publish_stream(requests).await.map_err(|status| explain(&status))?;
    let (mut answers, mut count) = (answers.into_inner(), 0);
    while let Some(answer) = answers.message().await.map_err(|status| explain(&status))? {
        if let Some(error) = answer.error {
            return Err(explain(&status_of(&error)));
        }
        count += answer.receipts.len() as u64;
        room.add_permits(1);
    }
    Ok(count)
}

fn connect(url: &str) -> Result<Publisher, Failure> {
    Publisher::connect(url).map_err(|error| Failure::Usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_events_are_made_as_were_asked_for() {
        let made = Made::counted(&Events::of(100), 100, 250);
        let sizes: Vec<_> = made.map(|request| request.events.len()).collect();
        assert_eq!(sizes, [100, 100, 50]);
    }
}
