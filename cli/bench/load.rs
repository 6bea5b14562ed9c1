//! Ways to publish as fast as receipts come back.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use counterfoil::{
    client::Publisher,
    proto::{
        pb::{
            NewEvent, PublishRequest, new_event::Data,
            publisher_service_client::PublisherServiceClient,
        },
        refusal::status_of,
    },
};
use tokio::{sync::Semaphore, task::JoinSet};
use tonic::transport::Channel;

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
                            client
                                .publish(request(caller))
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
                callers.spawn(stream(link::publisher(url)?, self.in_flight, until));
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

async fn stream(
    mut client: PublisherServiceClient<Channel>,
    in_flight: usize,
    until: Instant,
) -> Result<u64, String> {
    let room = Arc::new(Semaphore::new(in_flight));
    let requests =
        futures_util::stream::unfold((Arc::clone(&room), 0), move |(room, n)| async move {
            room.acquire().await.ok()?.forget();
            (Instant::now() < until).then(|| (request(n), (room, n + 1)))
        });
    let answers = client.publish_stream(requests).await.map_err(|status| explain(&status))?;
    let (mut answers, mut count) = (answers.into_inner(), 0);
    while let Some(answer) = answers.message().await.map_err(|status| explain(&status))? {
        if let Some(error) = answer.error {
            return Err(explain(&status_of(&error)));
        }
        count += 1;
        room.add_permits(1);
    }
    Ok(count)
}

fn connect(url: &str) -> Result<Publisher, Failure> {
    Publisher::connect(url).map_err(|error| Failure::Usage(error.to_string()))
}

fn request(subject: usize) -> PublishRequest {
    PublishRequest { log: String::new(), events: vec![event(subject)] }
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
