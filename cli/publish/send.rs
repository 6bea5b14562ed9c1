//! Sends batches. A lost reply is asked for again with the same keys; a batch
//! that is refused as a whole is halved until the refused events stand alone.

use counterfoil::proto::pb::{
    PublishOutcome, PublishRequest, Receipt, publisher_service_client::PublisherServiceClient,
};
use tonic::{Status, transport::Channel};

use super::{input::Line, line::KeyFrom, summary::Summary};
use crate::{
    link,
    retry::{self, Verdict},
};

/// Sends to one log.
pub struct Sender {
    client: PublisherServiceClient<Channel>,
    log: String,
    attempts: u32,
    /// What has come of the events sent so far.
    pub summary: Summary,
}

impl Sender {
    /// Sends to `log` of the publisher behind `client`; gives up a batch after
    /// so many attempts without an answer.
    pub fn new(client: PublisherServiceClient<Channel>, log: String, attempts: u32) -> Self {
        Sender { client, log, attempts, summary: Summary::default() }
    }

    /// Sends events, in order, and notes what came of each.
    ///
    /// # Errors
    /// The status that makes going on pointless: nothing after these events
    /// should be sent. What was answered until then is in the summary.
    pub async fn send(&mut self, lines: Vec<Line>) -> Result<(), Status> {
        self.summary.made_keys +=
            lines.iter().filter(|line| line.key_from == KeyFrom::Made).count() as u64;
        // A stack with the earliest events on top, so that order is kept.
        let mut parts = vec![lines];
        while let Some(mut part) = parts.pop() {
            match self.publish(&part).await {
                Ok(receipts) => self.note(&receipts),
                Err(status) if retry::judge(&status) != Verdict::Request => {
                    // Sent without an answer: these may have been accepted.
                    self.summary.unanswered += part.len() as u64;
                    return Err(status);
                }
                Err(status) if part.len() == 1 => self.summary.refuse(part[0].number, &status),
                Err(_) => {
                    let later = part.split_off(part.len() / 2);
                    parts.push(later);
                    parts.push(part);
                }
            }
        }
        Ok(())
    }

    /// One atomic Publish, repeated while there is no answer.
    async fn publish(&mut self, part: &[Line]) -> Result<Vec<Receipt>, Status> {
        let mut attempt = 1;
        loop {
            let request = PublishRequest {
                log: self.log.clone(),
                events: part.iter().map(|line| line.event.clone()).collect(),
            };
            match self.client.publish(link::call(request)).await {
                Ok(response) => return Ok(response.into_inner().receipts),
                Err(status)
                    if retry::judge(&status) == Verdict::Retry && attempt < self.attempts =>
                {
                    attempt += 1;
                    self.summary.repeated += 1;
                    tokio::time::sleep(retry::delay(attempt, rand::random())).await;
                }
                Err(status) => return Err(status),
            }
        }
    }

    fn note(&mut self, receipts: &[Receipt]) {
        for receipt in receipts {
            match receipt.outcome() {
                PublishOutcome::Duplicate => self.summary.duplicate += 1,
                _ => self.summary.appended += 1,
            }
        }
    }
}
