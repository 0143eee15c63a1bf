//! An axum server, and clients of hyper and hyper-util.

use std::collections::HashSet;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use exs::aio::{AsyncConnector, AsyncListener, AsyncStream};
use exs::{Options, Transport};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};

fn app() -> Router {
    let hello = |Path(name): Path<String>| async move { format!("hello, {name}") };
    Router::new()
        .route("/hello/{name}", get(hello))
        .route("/echo", post(|body: Body| async move { body }))
        .route("/bytes/{len}", get(|Path(len): Path<usize>| async move { vec![7_u8; len] }))
}

async fn server() -> SocketAddr {
    let listener = AsyncListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app()).await });
    addr
}

async fn connect(addr: SocketAddr) -> SendRequest<Full<Bytes>> {
    let stream = AsyncStream::connect(addr).await.unwrap();
    let (sender, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(async move { connection.await.unwrap() });
    sender
}

async fn ask(client: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> Bytes {
    client.ready().await.unwrap();
    let response = client.send_request(request).await.unwrap();
    assert!(response.status().is_success(), "{response:?}");
    response.into_body().collect().await.unwrap().to_bytes()
}

fn get_of(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header("host", "exs").body(Full::default()).unwrap()
}

#[tokio::test]
async fn requests_follow_each_other_on_a_connection() {
    let mut client = connect(server().await).await;
    for i in 0..200 {
        let body = ask(&mut client, get_of(&format!("/hello/{i}"))).await;
        assert_eq!(body, format!("hello, {i}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn clients_ask_at_once() {
    let addr = server().await;
    let clients: Vec<_> = (0..50)
        .map(|i| {
            tokio::spawn(async move {
                let mut client = connect(addr).await;
                for _ in 0..20 {
                    let body = ask(&mut client, get_of(&format!("/hello/{i}"))).await;
                    assert_eq!(body, format!("hello, {i}"));
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_go_both_ways() {
    let mut client = connect(server().await).await;
    let body = Bytes::from((0..10_000_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let request = Request::post("/echo").header("host", "exs").body(Full::new(body.clone()));
    assert_eq!(ask(&mut client, request.unwrap()).await, body);
    let answer = ask(&mut client, get_of("/bytes/3000000")).await;
    assert!(answer.len() == 3_000_000 && answer.iter().all(|b| *b == 7));
}

/// hyper's own traits by the wrapper of hyper-util, as a program has it without the feature `hyper`.
#[tokio::test]
async fn a_wrapped_stream_is_a_connection_too() {
    let stream = AsyncStream::connect(server().await).await.unwrap();
    let (mut client, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(async move { connection.await.unwrap() });
    assert_eq!(ask(&mut client, get_of("/hello/wrapped")).await, "hello, wrapped");
    let body = Bytes::from(vec![3; 1_000_000]);
    let request = Request::post("/echo").header("host", "exs").body(Full::new(body.clone()));
    assert_eq!(ask(&mut client, request.unwrap()).await, body);
}

/// hyper-util's client keeps connections in a pool, and names them by the URI.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_pool_takes_the_connector() {
    for transport in [Transport::Soft, Transport::Shm] {
        let listener = AsyncListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        // Handlers see the peer: its port says which connection they serve.
        let whoami = |ConnectInfo(addr): ConnectInfo<SocketAddr>| async move { addr.to_string() };
        let app = app().route("/peer", get(whoami));
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener.tap_io(|_| {}), app).await });

        let connector = AsyncConnector::with_options(Options::default().with_transport(transport));
        let client: Client<_, Full<Bytes>> =
            Client::builder(TokioExecutor::new()).build(connector.clone());
        let get = async |client: &Client<_, _>, path: &str| {
            let uri = format!("http://localhost:{port}{path}").parse().unwrap();
            let response = client.get(uri).await.unwrap();
            response.into_body().collect().await.unwrap().to_bytes()
        };
        // A connection returns to the pool a moment after its answer, so a client has a few of them.
        let mut peers = HashSet::new();
        for i in 0..100 {
            assert_eq!(get(&client, &format!("/hello/{i}")).await, format!("hello, {i}"));
            peers.insert(get(&client, "/peer").await);
        }
        assert!(peers.len() < 100, "no connection was kept");
        let other = Client::builder(TokioExecutor::new()).build(connector);
        assert!(peers.insert(get(&other, "/peer").await), "another pool has its own connections");
    }
}

#[tokio::test]
async fn a_client_says_why_it_cannot_connect() {
    let client: Client<_, Full<Bytes>> =
        Client::builder(TokioExecutor::new()).build(AsyncConnector::new());
    let gone = {
        let listener = AsyncListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        listener.local_addr().unwrap()
    };
    for (uri, why) in [(format!("http://{gone}/"), "127.0.0.1"), ("ftp://a.test/x".into(), "port")]
    {
        let error = client.get(uri.parse().unwrap()).await.unwrap_err();
        assert!(error.is_connect(), "{error}");
        let cause = std::error::Error::source(&error).expect("a cause").to_string();
        assert!(cause.contains(why), "{cause}");
    }
}
