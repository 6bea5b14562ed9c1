//! A publisher for tests that keeps keys in memory and can be told to misbehave.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use counterfoil::proto::{
    pb::{
        publisher_service_server::{PublisherService, PublisherServiceServer},
        *,
    },
    refusal::{Reason, Refusal},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status, Streaming};

/// What it has seen and holds.
#[derive(Debug, Default)]
pub struct State {
    /// Keys in the order of their acceptance, with their subject for content.
    pub accepted: Vec<(String, String)>,
    /// Events of each request.
    pub requests: Vec<usize>,
    /// Accept the next so many requests, and lose the reply.
    pub lose_replies: u32,
    /// Refuse the next so many requests without looking at them.
    pub refuse: Option<(u32, Reason)>,
}

/// The service.
#[derive(Clone, Default)]
pub struct Scripted(pub Arc<Mutex<State>>);

impl Scripted {
    /// Serves on a free port until the test's runtime ends; returns the URL.
    pub async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback has a free port");
        let address = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder()
            .add_service(PublisherServiceServer::new(self.clone()))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(server);
        format!("http://{address}")
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("no test panics while it holds this")
    }
}

impl State {
    /// All or none, as the contract says; an event of type `bad` is invalid.
    fn publish(&mut self, events: Vec<NewEvent>) -> Result<Vec<Receipt>, Refusal> {
        if let Some((left, reason)) = &mut self.refuse
            && *left > 0
        {
            *left -= 1;
            return Err(Refusal::new(*reason, "as the script says"));
        }
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
        let receipt = Receipt { outcome: outcome.into(), ..Default::default() };
        Ok(events.iter().map(|_| receipt.clone()).collect())
    }
}

#[tonic::async_trait]
impl PublisherService for Scripted {
    async fn publish(
        &self,
        request: Request<PublishRequest>,
    ) -> Result<Response<PublishResponse>, Status> {
        let mut state = self.state();
        let events = request.into_inner().events;
        state.requests.push(events.len());
        let receipts = state.publish(events)?;
        if state.lose_replies > 0 {
            state.lose_replies -= 1;
            return Err(Status::unknown("the connection broke"));
        }
        Ok(Response::new(PublishResponse { receipts }))
    }

    type PublishStreamStream = std::pin::Pin<
        Box<
            dyn futures_util::Stream<
                    Item = Result<counterfoil::proto::pb::PublishStreamResponse, Status>,
                > + Send,
        >,
    >;

    async fn publish_stream(
        &self,
        _: Request<Streaming<counterfoil::proto::pb::PublishRequest>>,
    ) -> Result<Response<Self::PublishStreamStream>, Status> {
        Err(Status::unimplemented("this publisher only replays"))
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
