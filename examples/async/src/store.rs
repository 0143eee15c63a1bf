//! A gRPC service over EXS, by tonic: a store that takes bytes and gives bytes back.
//!
//! `build.rs` has the service as tonic's code generator reads it. Nothing in this file knows EXS: the
//! listener is given to `serve_with_incoming`, and the connector to `connect_with_connector`.

use std::pin::Pin;

use prost::bytes::Bytes;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

/// The largest message. tonic's own limit is 4 MiB.
pub const LARGEST: usize = 80 << 20;

/// The bytes of one message of a [`Range`], at most.
const PART: u64 = 1 << 20;

/// The messages of a stream that wait for the client.
const AHEAD: usize = 4;

/// Bytes.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[allow(clippy::exhaustive_structs, reason = "a message of a protocol")]
pub struct Blob {
    /// The bytes.
    #[prost(bytes = "bytes", tag = "1")]
    pub data: Bytes,
}

/// The answer to bytes that were sent.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
#[allow(clippy::exhaustive_structs, reason = "a message of a protocol")]
pub struct Receipt {
    /// The number of messages.
    #[prost(uint64, tag = "1")]
    pub blobs: u64,
    /// The number of bytes in them.
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    /// The sum of the bytes, modulo 2^64.
    #[prost(uint64, tag = "3")]
    pub sum: u64,
}

/// Bytes that a client wants.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
#[allow(clippy::exhaustive_structs, reason = "a message of a protocol")]
pub struct Range {
    /// The number of the first byte.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// The number of bytes.
    #[prost(uint64, tag = "2")]
    pub len: u64,
}

#[allow(missing_docs, unreachable_pub, reason = "tonic's code generator writes it")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/exs.example.Store.rs"));
}
pub use generated::store_client::StoreClient;
pub use generated::store_server::{self, StoreServer};

impl Receipt {
    /// Counts one more message.
    pub fn add(&mut self, blob: &Blob) {
        self.blobs += 1;
        self.bytes += blob.data.len() as u64;
        let sum = blob.data.iter().map(|b| u64::from(*b)).sum();
        self.sum = self.sum.wrapping_add(sum);
    }
}

/// The byte with this number of the store.
#[must_use]
pub fn byte(number: u64) -> u8 {
    (number % 251) as u8
}

/// The server of the service.
#[derive(Clone, Copy, Debug, Default)]
#[allow(clippy::exhaustive_structs, reason = "it has no state")]
pub struct Store;

impl Store {
    /// The service with the limits of its messages.
    #[must_use]
    pub fn service() -> StoreServer<Store> {
        let server = StoreServer::new(Store);
        server.max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST)
    }
}

type Blobs = Pin<Box<dyn Stream<Item = Result<Blob, Status>> + Send>>;

#[tonic::async_trait]
impl store_server::Store for Store {
    /// Unary: takes one message.
    async fn put(&self, request: Request<Blob>) -> Result<Response<Receipt>, Status> {
        let mut receipt = Receipt::default();
        receipt.add(request.get_ref());
        Ok(Response::new(receipt))
    }

    /// Client streaming: takes messages until the client ends.
    async fn upload(&self, request: Request<Streaming<Blob>>) -> Result<Response<Receipt>, Status> {
        let mut blobs = request.into_inner();
        let mut receipt = Receipt::default();
        while let Some(blob) = blobs.message().await? {
            receipt.add(&blob);
        }
        Ok(Response::new(receipt))
    }

    type DownloadStream = ReceiverStream<Result<Blob, Status>>;

    /// Server streaming: sends the bytes of a range in parts.
    async fn download(
        &self,
        request: Request<Range>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let Range { start, len } = request.into_inner();
        let end = start.checked_add(len);
        let end = end.ok_or_else(|| Status::out_of_range("the range ends beyond 2^64"))?;
        let (sender, receiver) = mpsc::channel(AHEAD);
        tokio::spawn(async move {
            let mut at = start;
            while at < end {
                let part = (at..end.min(at + PART)).map(byte).collect::<Vec<_>>();
                at += part.len() as u64;
                // The client may have gone.
                if sender.send(Ok(Blob { data: part.into() })).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    type EchoStream = Blobs;

    /// Bidirectional streaming: sends each message back.
    async fn echo(
        &self,
        request: Request<Streaming<Blob>>,
    ) -> Result<Response<Self::EchoStream>, Status> {
        Ok(Response::new(Box::pin(request.into_inner().fuse())))
    }
}
