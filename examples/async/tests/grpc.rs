//! gRPC by tonic: each kind of call, both ends over EXS.

use std::net::SocketAddr;

use exs::aio::{AsyncConnector, AsyncListener};
use exs::{Options, Transport};
use exs_async_examples::store::{
    Blob, LARGEST, Range, Receipt, Store, StoreClient, byte, store_server,
};
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};

/// Both transports that every host has.
const EACH: [Transport; 2] = [Transport::Soft, Transport::Shm];

/// A server, and a client with a connection to it.
async fn both_ends(transport: Transport) -> (StoreClient<Channel>, SocketAddr) {
    let options = Options::default().with_transport(transport);
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = AsyncListener::bind_with(any, options.clone()).unwrap();
    let addr = listener.local_addr().unwrap();
    let server = Server::builder().add_service(Store::service());
    tokio::spawn(async move { server.serve_with_incoming(listener).await });
    (client(addr, options).await, addr)
}

async fn client(addr: SocketAddr, options: Options) -> StoreClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    let connector = AsyncConnector::with_options(options);
    let channel = endpoint.connect_with_connector(connector).await.unwrap();
    let client = StoreClient::new(channel);
    client.max_decoding_message_size(LARGEST).max_encoding_message_size(LARGEST)
}

fn blob(start: u64, len: u64) -> Blob {
    Blob { data: (start..start + len).map(byte).collect::<Vec<_>>().into() }
}

fn receipt<'a>(blobs: impl IntoIterator<Item = &'a Blob>) -> Receipt {
    let mut receipt = Receipt::default();
    blobs.into_iter().for_each(|blob| receipt.add(blob));
    receipt
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unary_calls() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        for len in [0, 1, 100, 5000, 100_000, 3_000_000] {
            let sent = blob(7, len);
            let expected = receipt([&sent]);
            assert_eq!(store.put(sent).await.unwrap().into_inner(), expected);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_streaming_calls() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        let blobs: Vec<_> = (0..200).map(|i| blob(i, i * 500)).collect();
        let expected = receipt(&blobs);
        let got = store.upload(tokio_stream::iter(blobs)).await.unwrap();
        assert_eq!(got.into_inner(), expected);
        let got = store.upload(tokio_stream::empty()).await.unwrap();
        assert_eq!(got.into_inner(), Receipt::default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_streaming_calls() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        let range = Range { start: 123, len: 20_000_000 };
        let mut parts = store.download(range).await.unwrap().into_inner();
        let mut at = range.start;
        while let Some(part) = parts.message().await.unwrap() {
            assert!((at..).zip(&part.data).all(|(n, b)| byte(n) == *b), "after {at}");
            at += part.data.len() as u64;
        }
        assert_eq!(at, range.start + range.len);
    }
}

/// Each message is sent after the echo of the one before, and then many at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bidirectional_calls() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        let (sender, receiver) = mpsc::channel(1);
        let echoes = store.echo(ReceiverStream::new(receiver)).await.unwrap();
        let mut echoes = echoes.into_inner();
        for i in 0..100 {
            sender.send(blob(i, i * 100)).await.unwrap();
            assert_eq!(echoes.message().await.unwrap().unwrap(), blob(i, i * 100));
        }
        let writer = tokio::spawn(async move {
            for i in 0..100 {
                sender.send(blob(i, 100_000)).await.unwrap();
            }
        });
        for i in 0..100 {
            assert!(echoes.message().await.unwrap().unwrap() == blob(i, 100_000));
        }
        writer.await.unwrap();
        assert!(echoes.message().await.unwrap().is_none());
    }
}

/// A message of 64 MiB in each kind of call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_64_mib() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        let large = Blob { data: (0..64_u64 << 20).map(byte).collect::<Vec<_>>().into() };
        let expected = receipt([&large]);
        assert_eq!(store.put(large.clone()).await.unwrap().into_inner(), expected);
        let stream = tokio_stream::once(large.clone());
        let mut echoes = store.echo(stream).await.unwrap().into_inner();
        assert!(echoes.message().await.unwrap().unwrap() == large);
        assert!(echoes.message().await.unwrap().is_none());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_share_a_connection() {
    for transport in EACH {
        let (store, _) = both_ends(transport).await;
        let calls: Vec<_> = (0..100)
            .map(|i| {
                let mut store = store.clone();
                tokio::spawn(async move {
                    let sent = blob(i, i * 1000);
                    let expected = receipt([&sent]);
                    assert_eq!(store.put(sent).await.unwrap().into_inner(), expected);
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
    }
}

/// A client that no longer wants the parts of a download ends that call alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_is_dropped_and_the_connection_goes_on() {
    for transport in EACH {
        let (mut store, _) = both_ends(transport).await;
        let endless = Range { start: 0, len: 1 << 40 };
        for _ in 0..3 {
            let mut parts = store.download(endless).await.unwrap().into_inner();
            assert!(parts.message().await.unwrap().is_some());
            drop(parts);
            assert_eq!(store.put(blob(0, 10)).await.unwrap().into_inner().bytes, 10);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_come_with_their_code() {
    for transport in EACH {
        let (mut store, addr) = both_ends(transport).await;
        let beyond = Range { start: u64::MAX, len: 1 };
        assert_eq!(store.download(beyond).await.unwrap_err().code(), Code::OutOfRange);
        let too_large = Blob { data: vec![0; LARGEST + 1].into() };
        let refused = StoreClient::max_encoding_message_size(store, 1 << 30).put(too_large).await;
        assert_eq!(refused.unwrap_err().code(), Code::OutOfRange);

        let unknown = Endpoint::from_shared(format!("http://{addr}/elsewhere")).unwrap();
        let channel = unknown.connect_with_connector(AsyncConnector::new()).await.unwrap();
        let origin = "http://exs/elsewhere".parse().unwrap();
        let error = StoreClient::with_origin(channel, origin).put(blob(0, 1)).await.unwrap_err();
        assert_eq!(error.code(), Code::Unimplemented);
    }
}

/// A service that says where its requests come from.
struct Mirror;

#[tonic::async_trait]
impl store_server::Store for Mirror {
    async fn put(&self, request: Request<Blob>) -> Result<tonic::Response<Receipt>, Status> {
        let port = |addr: Option<SocketAddr>| addr.map_or(0, |addr| u64::from(addr.port()));
        let (bytes, sum) = (port(request.remote_addr()), port(request.local_addr()));
        Ok(tonic::Response::new(Receipt { blobs: 1, bytes, sum }))
    }

    async fn upload(
        &self,
        _: Request<tonic::Streaming<Blob>>,
    ) -> Result<tonic::Response<Receipt>, Status> {
        Err(Status::unimplemented("upload"))
    }

    type DownloadStream = ReceiverStream<Result<Blob, Status>>;

    async fn download(
        &self,
        _: Request<Range>,
    ) -> Result<tonic::Response<Self::DownloadStream>, Status> {
        Err(Status::unimplemented("download"))
    }

    type EchoStream = ReceiverStream<Result<Blob, Status>>;

    async fn echo(
        &self,
        _: Request<tonic::Streaming<Blob>>,
    ) -> Result<tonic::Response<Self::EchoStream>, Status> {
        Err(Status::unimplemented("echo"))
    }
}

/// Requests have the addresses of their connection, and a server ends in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_knows_its_peers_and_stops() {
    for transport in EACH {
        let options = Options::default().with_transport(transport);
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = AsyncListener::bind_with(any, options.clone()).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let server = Server::builder().add_service(store_server::StoreServer::new(Mirror));
        let server = tokio::spawn(async move {
            let stopped = async { _ = stopped.await };
            server.serve_with_incoming_shutdown(listener, stopped).await
        });
        let mut store = client(addr, options.clone()).await;
        let ports = store.put(Blob::default()).await.unwrap().into_inner();
        assert!(ports.bytes != 0 && ports.bytes != ports.sum, "{ports:?}");
        assert_eq!(ports.sum, u64::from(addr.port()));
        stop.send(()).unwrap();
        drop(store);
        server.await.unwrap().unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
        let again = endpoint.connect_with_connector(AsyncConnector::with_options(options)).await;
        assert!(again.is_err(), "{transport}: the listener has gone");
    }
}
