//! Ways to publish as fast as receipts come back.

use std::{
    collections::VecDeque,
    fmt,
    time::{Duration, Instant},
};

use counterfoil::{
    client::Publisher,
    proto::pb::{NewEvent, PublishRequest, new_event::Data},
};
use tokio::task::JoinSet;

use crate::{
    failure::{Failure, explain},
    link,
};

/// 100 bytes of JSON.
const PAYLOAD: &str = concat!(
    r#"{"item":"camera","place":"shelf 7","delta":3,"note":"#,
    r#""counted by hand on a quiet afternoon in March"}"#
);
const SUBJECTS: usize = 1_000;

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
    /// Publishes to `url` for so long; returns how many receipts came within how
    /// much time.
    ///
    /// # Errors
    /// [`Failure::Runtime`] when an event is not accepted.
    pub async fn run(self, url: &str, turn: Duration) -> Result<(u64, Duration), Failure> {
        let started = Instant::now();
        let until = started + turn;
        let mut callers = JoinSet::new();
        match self.load {
            Load::Unary => {
                let client = link::publisher(url)?;
                for caller in 0..self.in_flight {
                    let mut client = client.clone();
                    callers.spawn(async move {
                        let mut count = 0;
                        while Instant::now() < until {
                            let events = vec![event(caller)];
                            let request = PublishRequest { log: String::new(), events };
                            client.publish(request).await.map_err(|status| explain(&status))?;
                            count += 1;
                        }
                        Ok(count)
                    });
                }
            }
            Load::Client => {
                let publisher = connect(url)?;
                for caller in 0..self.in_flight {
                    let publisher = publisher.clone();
                    callers.spawn(async move {
                        let mut count = 0;
                        while Instant::now() < until {
                            publisher.publish(event(caller)).await.map_err(|e| e.to_string())?;
                            count += 1;
                        }
                        Ok(count)
                    });
                }
            }
            Load::Stream => {
                callers.spawn(stream(connect(url)?, self.in_flight, until));
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

async fn stream(publisher: Publisher, in_flight: usize, until: Instant) -> Result<u64, String> {
    let mut waiting = VecDeque::with_capacity(in_flight);
    let mut count = 0;
    loop {
        while waiting.len() < in_flight && Instant::now() < until {
            let submitted = publisher.submit(vec![event(waiting.len())]).await;
            waiting.push_back(submitted.map_err(|error| error.to_string())?);
        }
        let Some(oldest) = waiting.pop_front() else { return Ok(count) };
        oldest.await.map_err(|error| error.to_string())?;
        count += 1;
    }
}

fn connect(url: &str) -> Result<Publisher, Failure> {
    Publisher::connect(url).map_err(|error| Failure::Usage(error.to_string()))
}

fn event(subject: usize) -> NewEvent {
    NewEvent {
        key: uuid::Uuid::now_v7().to_string(),
        r#type: "bench.published".to_owned(),
        subject: format!("subject-{}", subject % SUBJECTS),
        data: Some(Data::JsonText(PAYLOAD.to_owned())),
        ..NewEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_what_the_table_says() {
        assert_eq!(PAYLOAD.len(), 100);
        assert!(serde_json::from_str::<serde_json::Value>(PAYLOAD).is_ok());
    }
}
