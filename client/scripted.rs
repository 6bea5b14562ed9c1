//! A publisher for tests that keeps keys in memory, serves streams of requests,
//! and can be told to misbehave.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard},
};

use futures_util::{Stream, StreamExt as _};
use tokio::{
    net::TcpListener,
    sync::{Notify, mpsc},
};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use crate::proto::{
    pb::{
        publisher_service_server::{PublisherService, PublisherServiceServer},
        *,
    },
    refusal::{Reason, Refusal, status_message},
};

/// What happens to the next request.
#[derive(Debug, Clone)]
pub enum Step {
    /// It is accepted, and the stream breaks before the answer.
    LoseAnswer,
    /// It is accepted, and never answered; the stream stays open.
    Hang,
    /// It is refused without a look at it.
    Refuse(Reason),
    /// It is answered with one receipt too many.
    Babble,
}

/// What it has seen and holds.
#[derive(Debug, Default)]
pub struct State {
    /// Keys in the order of their acceptance, with their subject for content.
    pub accepted: Vec<(String, String)>,
    /// Keys of each request, in the order of their arrival, over all streams.
    pub arrived: Vec<Vec<String>>,
    /// Streams opened.
    pub streams: usize,
    /// Scripts of the requests to come, the last first; without one they are answered.
    pub script: Vec<Step>,
    /// Refuses every stream itself.
    pub refuse_streams: Option<Status>,
}

/// The service.
#[derive(Clone, Default)]
pub struct Scripted {
    state: Arc<Mutex<State>>,
    arrival: Arc<Notify>,
}

impl Scripted {
    /// Serves on a free port until the test's runtime ends; returns the URL.
    pub async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("bound");
        self.serve_on(listener);
        format!("http://{address}")
    }

    /// Serves a listener that is bound already.
    pub fn serve_on(&self, listener: TcpListener) {
        let server = tonic::transport::Server::builder()
            .add_service(PublisherServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics while it holds this")
    }

    /// Waits until so many requests have arrived.
    pub async fn arrived(&self, count: usize) {
        loop {
            let arrival = self.arrival.notified();
            if self.state().arrived.len() >= count {
                return;
            }
            arrival.await;
        }
    }

    /// The keys that were accepted, in order.
    pub fn keys(&self) -> Vec<String> {
        self.state().accepted.iter().map(|(key, _)| key.clone()).collect()
    }

    /// The answer to one request; nothing where the stream breaks, or hangs.
    async fn answer(&self, request: PublishRequest) -> Option<PublishStreamResponse> {
        let (step, answer) = {
            let mut state = self.state();
            let keys = request.events.iter().map(|event| event.key.clone()).collect();
            state.arrived.push(keys);
            let step = state.script.pop();
            let answer = match step {
                Some(Step::Refuse(reason)) => Err(Refusal::new(reason, "as the script says")),
                _ => state.publish(request.events),
            };
            (step, answer)
        };
        self.arrival.notify_waiters();
        let (mut receipts, error) = match answer {
            Ok(receipts) => (receipts, None),
            Err(refusal) => (Vec::new(), Some(status_message(refusal.into()))),
        };
        match step {
            Some(Step::LoseAnswer) => return None,
            Some(Step::Hang) => std::future::pending().await,
            Some(Step::Babble) => receipts.push(Receipt::default()),
            Some(Step::Refuse(_)) | None => {}
        }
        Some(PublishStreamResponse { receipts, error })
    }
}

impl State {
    /// All or none, as the contract says; an event of type `bad` is invalid.
    fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, Refusal> {
        let known: BTreeMap<_, _> = self.accepted.iter().cloned().collect();
        let mut duplicates = 0;
        for event in &events {
            match known.get(&event.key) {
                _ if event.r#type == "bad" => return Err(Refusal::field("type", "is bad")),
                Some(subject) if *subject != event.subject => {
                    return Err(Refusal::new(Reason::KeyConflict, "known with other content"));
                }
                Some(_) => duplicates += 1,
                None => {}
            }
        }
        let outcome = match duplicates {
            0 => PublishOutcome::Appended,
            all if all == events.len() => PublishOutcome::Duplicate,
            _ => return Err(Refusal::new(Reason::PartialDuplicate, "some keys are known")),
        };
        if outcome == PublishOutcome::Appended {
            self.accepted
                .extend(events.iter().map(|event| (event.key.clone(), event.subject.clone())));
        }
        let receipt = |event: NewEvent| Receipt {
            key: event.key,
            outcome: outcome.into(),
            ..Default::default()
        };
        Ok(events.into_iter().map(receipt).collect())
    }
}

#[tonic::async_trait]
impl PublisherService for Scripted {
    async fn publish(
        &self,
        _: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    type PublishStreamStream =
        Pin<Box<dyn Stream<Item = Result<PublishStreamResponse, Status>> + Send>>;

    async fn publish_stream(
        &self,
        requests: Request<Streaming<PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        self.state().streams += 1;
        if let Some(status) = self.state().refuse_streams.clone() {
            return Err(status);
        }
        let (service, mut requests) = (self.clone(), requests.into_inner());
        let (answers, answered) = mpsc::channel(1);
        tokio::spawn(async move {
            while let Some(Ok(request)) = requests.next().await {
                let answer = service.answer(request).await;
                let broken = answer.is_none();
                let answer = answer.ok_or_else(|| Status::unknown("the connection broke"));
                if answers.send(answer).await.is_err() || broken {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(answered))))
    }

    async fn get_receipt(
        &self,
        _: Request<GetReceiptRequest>,
    ) -> Result<Response<GetReceiptResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    type ReplayStream = tokio_stream::Empty<Result<ReplayResponse, Status>>;

    async fn replay(
        &self,
        _: Request<ReplayRequest>,
    ) -> Result<Response<Self::ReplayStream>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn ack(&self, _: Request<AckRequest>) -> Result<Response<AckResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn get_log(&self, _: Request<GetLogRequest>) -> Result<Response<GetLogResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }

    async fn list_logs(
        &self,
        _: Request<ListLogsRequest>,
    ) -> Result<Response<ListLogsResponse>, Status> {
        Err(Status::unimplemented("not in this script"))
    }
}
