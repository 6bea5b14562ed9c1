//! Requests go out as the bytes that their callers have encoded: once, also if
//! they are sent more than once.

use bytes::{BufMut as _, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, EncodeBuf, Encoder},
};
use tonic_prost::{ProstCodec, ProstDecoder};

use crate::proto::pb::{PublishRequest, PublishStreamResponse};

/// The codec of PublishStream.
#[derive(Debug, Default)]
pub struct Encoded;

impl Codec for Encoded {
    type Encode = Bytes;
    type Decode = PublishStreamResponse;
    type Encoder = Encoded;
    type Decoder = ProstDecoder<PublishStreamResponse>;

    fn encoder(&mut self) -> Self::Encoder {
        Encoded
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<PublishRequest, _>::raw_decoder(BufferSettings::default())
    }
}

impl Encoder for Encoded {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, request: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(request);
        Ok(())
    }
}
