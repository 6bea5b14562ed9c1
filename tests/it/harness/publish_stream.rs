//! A PublishStream as a producer holds it: requests go in, answers come out.

use counterfoil::proto::pb::{NewEvent, PublishRequest, PublishStreamResponse, Receipt};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status, Streaming};

use super::{publisher::Client, wait::within};

/// What one request was answered; a refusal as Publish would have given it.
pub type Answer = Result<Vec<Receipt>, Status>;

/// An open stream.
pub struct PublishStream {
    requests: Option<mpsc::UnboundedSender<PublishRequest>>,
    answers: Streaming<PublishStreamResponse>,
}

impl PublishStream {
    /// Opens one.
    ///
    /// # Errors
    /// The publisher's, or the transport's.
    pub async fn open(client: &Client) -> Result<Self, Status> {
        let (sender, requests) = mpsc::unbounded_channel();
        let mut client = client.clone();
        let opening = client.publish_stream(UnboundedReceiverStream::new(requests));
        let answers = within("the opening of a PublishStream", opening).await?.into_inner();
        Ok(PublishStream { requests: Some(sender), answers })
    }

    /// Sends a request for `main` and does not wait. On a broken stream it goes nowhere.
    pub fn send(&self, events: Vec<NewEvent>) {
        self.send_to("", events);
    }

    /// The same for any log.
    pub fn send_to(&self, log: &str, events: Vec<NewEvent>) {
        let requests = self.requests.as_ref().expect("nothing is sent after a half-close");
        let _ = requests.send(PublishRequest { log: log.into(), events });
    }

    /// Says that no more requests come.
    pub fn half_close(&mut self) {
        self.requests = None;
    }

    /// The next answer; nothing at the end.
    ///
    /// # Errors
    /// The status that the stream broke with.
    pub async fn next(&mut self) -> Result<Option<Answer>, Status> {
        let Some(answer) = within("an answer on a PublishStream", self.answers.message()).await?
        else {
            return Ok(None);
        };
        let PublishStreamResponse { receipts, error } = answer;
        Ok(Some(match error {
            None => Ok(receipts),
            Some(error) => {
                assert!(receipts.is_empty(), "a refusal with receipts: {error:?}, {receipts:?}");
                let details = error.encode_to_vec().into();
                Err(Status::with_details(Code::from(error.code), error.message, details))
            }
        }))
    }

    /// The next answer, which has to come.
    ///
    /// # Errors
    /// The refusal.
    ///
    /// # Panics
    /// If the stream ends or breaks instead.
    pub async fn answer(&mut self) -> Answer {
        match self.next().await {
            Ok(Some(answer)) => answer,
            other => panic!("an answer should have come: {other:?}"),
        }
    }

    /// A request and its answer.
    ///
    /// # Errors
    /// The refusal.
    pub async fn publish(&mut self, events: Vec<NewEvent>) -> Answer {
        self.send(events);
        self.answer().await
    }
}
