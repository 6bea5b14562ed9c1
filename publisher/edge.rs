//! The publisher's service as it is served. PublishStream, which carries most events,
//! is served here rather than by the generated code: its requests are decoded without
//! copies of their texts, and its answers come as bytes.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf as _, BufMut as _, Bytes};
use futures_util::Stream;
use prost::Message as _;
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    codegen::{BoxFuture, http},
    server::{Grpc, NamedService, StreamingService},
};

use super::{intake::malformed, service::Service};
use crate::proto::{
    limits::MAX_MESSAGE_BYTES, publishing::PublishRequest,
    served::publisher_service_server::PublisherServiceServer,
};

const PUBLISH_STREAM: &str = "/counterfoil.v1.PublisherService/PublishStream";

/// All calls of `counterfoil.v1.PublisherService`.
#[derive(Clone)]
pub struct Edge {
    service: Service,
    others: PublisherServiceServer<Service>,
}

impl Edge {
    /// Serves them.
    pub fn new(service: Service) -> Self {
        let others = PublisherServiceServer::new(service.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES);
        Edge { service, others }
    }
}

impl NamedService for Edge {
    const NAME: &'static str = <PublisherServiceServer<Service> as NamedService>::NAME;
}

impl tower::Service<http::Request<Body>> for Edge {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != PUBLISH_STREAM {
            return self.others.call(request);
        }
        let service = PublishStream(self.service.clone());
        Box::pin(async move {
            let mut grpc = Grpc::new(Messages).max_decoding_message_size(MAX_MESSAGE_BYTES);
            Ok(grpc.streaming(service, request).await)
        })
    }
}

struct PublishStream(Service);

type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl StreamingService<PublishRequest> for PublishStream {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = Ready<Result<Response<Answers>, Status>>;

    fn call(&mut self, requests: Request<Streaming<PublishRequest>>) -> Self::Future {
        let answers = self.0.open_publish_stream(requests.into_inner());
        ready(match answers {
            Ok(answers) => Ok(Response::new(Box::pin(answers))),
            Err(refusal) => Err(refusal.into()),
        })
    }
}

/// What PublishStream speaks.
#[derive(Debug, Default)]
struct Messages;

impl Codec for Messages {
    type Encode = Bytes;
    type Decode = PublishRequest;
    type Encoder = Messages;
    type Decoder = Messages;

    fn encoder(&mut self) -> Self::Encoder {
        Messages
    }

    fn decoder(&mut self) -> Self::Decoder {
        Messages
    }
}

impl Encoder for Messages {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, answer: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(answer);
        Ok(())
    }
}

impl Decoder for Messages {
    type Item = PublishRequest;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<PublishRequest>, Status> {
        let message = from.copy_to_bytes(from.remaining());
        let request =
            PublishRequest::decode(message).map_err(|error| Status::internal(error.to_string()))?;
        if request.is_text() { Ok(Some(request)) } else { Err(malformed()) }
    }
}
