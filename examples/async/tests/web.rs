//! An axum server and a hyper client.

use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::routing::{get, post};
use exs::aio::AsyncListener;
use exs_async_examples::{Web, connect};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;

async fn server() -> SocketAddr {
    let app = Router::new()
        .route(
            "/hello/{name}",
            get(|Path(name): Path<String>| async move { format!("hello, {name}") }),
        )
        .route("/echo", post(|body: Body| async move { body }))
        .route("/bytes/{len}", get(|Path(len): Path<usize>| async move { vec![7_u8; len] }));
    let listener = AsyncListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(Web(listener), app).await });
    addr
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
    let mut client = connect(server().await).await.unwrap();
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
                let mut client = connect(addr).await.unwrap();
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
    let mut client = connect(server().await).await.unwrap();
    let body = Bytes::from((0..10_000_000_u32).map(|i| (i % 251) as u8).collect::<Vec<_>>());
    let request = Request::post("/echo").header("host", "exs").body(Full::new(body.clone()));
    assert_eq!(ask(&mut client, request.unwrap()).await, body);
    let answer = ask(&mut client, get_of("/bytes/3000000")).await;
    assert!(answer.len() == 3_000_000 && answer.iter().all(|b| *b == 7));
}
