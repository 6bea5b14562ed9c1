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
                    if retry::judge(&status) == Verdict::Retry {
                        // Sent without an answer: these may have been accepted.
                        self.summary.unanswered += part.len() as u64;
                    }
                    self.summary.stopped_at = Some(part[0].number);
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

#[cfg(test)]
mod tests {
    use counterfoil::proto::{pb::NewEvent, refusal::Reason};

    use super::{
        super::scripted::{Scripted, State},
        *,
    };

    fn line(number: u64, kind: &str) -> Line {
        let key = format!("k{number}");
        let event = NewEvent { key, r#type: kind.into(), ..Default::default() };
        Line { number, event, key_from: KeyFrom::Input }
    }

    fn lines(numbers: std::ops::Range<u64>) -> Vec<Line> {
        numbers.map(|number| line(number, "good")).collect()
    }

    async fn sender(state: State) -> (Sender, Scripted) {
        let publisher = Scripted::default();
        *publisher.0.lock().expect("just made") = state;
        let client = crate::link::publisher(&publisher.serve().await).expect("a URL");
        (Sender::new(client, String::new(), 4), publisher)
    }

    fn keys(publisher: &Scripted) -> Vec<String> {
        let state = publisher.0.lock().expect("no panic under the lock");
        state.accepted.iter().map(|(key, _)| key.clone()).collect()
    }

    #[tokio::test]
    async fn refused_events_are_singled_out_and_the_others_keep_their_order() {
        let (mut sender, publisher) = sender(State::default()).await;
        let mut all = lines(0..100);
        all[17] = line(17, "bad");
        all[60] = line(60, "bad");
        sender.send(all).await.expect("only events were at fault");
        let expected: Vec<_> =
            (0..100).filter(|n| ![17, 60].contains(n)).map(|n| format!("k{n}")).collect();
        assert_eq!(keys(&publisher), expected);
        assert_eq!((sender.summary.appended, sender.summary.refused), (98, 2));
        let text = sender.summary.to_string();
        assert!(text.contains("line 17: INVALID_FIELD: type: is bad"), "{text}");
    }

    #[tokio::test]
    async fn a_batch_that_is_partly_known_is_completed() {
        let (mut sender, publisher) = sender(State::default()).await;
        sender.send(lines(0..30)).await.expect("new");
        sender.send(lines(20..50)).await.expect("partly known");
        assert_eq!((sender.summary.appended, sender.summary.duplicate), (50, 10));
        assert_eq!(keys(&publisher).len(), 50);
    }

    #[tokio::test]
    async fn a_lost_reply_is_asked_for_again_under_the_same_keys() {
        let (mut sender, publisher) = sender(State { lose_replies: 2, ..State::default() }).await;
        sender.send(lines(0..10)).await.expect("answered in the end");
        assert_eq!(keys(&publisher).len(), 10, "accepted once");
        assert_eq!((sender.summary.duplicate, sender.summary.repeated), (10, 2));
    }

    #[tokio::test]
    async fn what_never_gets_an_answer_is_counted_as_unknown() {
        let (mut sender, _) = sender(State { lose_replies: 99, ..State::default() }).await;
        let status = sender.send(lines(0..10)).await.expect_err("no answer ever");
        assert_eq!(status.code(), tonic::Code::Unknown);
        assert_eq!(sender.summary.unanswered, 10);
    }

    #[tokio::test]
    async fn a_log_that_takes_nothing_stops_the_sending_at_once() {
        for reason in [Reason::LogHalted, Reason::LogFull, Reason::LogNotFound] {
            let (mut sender, publisher) =
                sender(State { refuse: Some((99, reason)), ..State::default() }).await;
            sender.send(lines(0..10)).await.expect_err("stopped");
            assert_eq!((sender.summary.unanswered, sender.summary.stopped_at), (0, Some(0)));
            assert_eq!(publisher.0.lock().expect("no panic").requests, [10], "{reason:?}");
        }
    }
}
