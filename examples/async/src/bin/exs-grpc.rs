//! A gRPC server and its client, by tonic over EXS: `exs-grpc serve ADDRESS`, `exs-grpc ask HOST:PORT`.

use std::error::Error;

use exs::aio::{AsyncConnector, AsyncListener};
use exs_async_examples::store::{Blob, LARGEST, Range, Store, StoreClient};
use tokio_stream::StreamExt;
use tonic::transport::{Endpoint, Server};

async fn serve(addr: &str) -> Result<(), Box<dyn Error>> {
    let listener = AsyncListener::bind(addr.parse()?)?;
    println!("listening at {}", listener.local_addr()?);
    Server::builder().add_service(Store::service()).serve_with_incoming(listener).await?;
    Ok(())
}

async fn ask(host: &str) -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::from_shared(format!("http://{host}"))?;
    let channel = endpoint.connect_with_connector(AsyncConnector::new()).await?;
    let mut store = StoreClient::new(channel).max_encoding_message_size(LARGEST);

    let receipt = store.put(Blob { data: vec![1; 64 << 20].into() }).await?.into_inner();
    println!("put: {} bytes, sum {}", receipt.bytes, receipt.sum);

    let blobs = (0..10).map(|_| Blob { data: vec![2; 1 << 20].into() });
    let receipt = store.upload(tokio_stream::iter(blobs)).await?.into_inner();
    println!("upload: {} bytes in {} messages", receipt.bytes, receipt.blobs);

    let mut parts = store.download(Range { start: 0, len: 10 << 20 }).await?.into_inner();
    let (mut bytes, mut messages) = (0, 0);
    while let Some(part) = parts.message().await? {
        (bytes, messages) = (bytes + part.data.len(), messages + 1);
    }
    println!("download: {bytes} bytes in {messages} messages");

    let lines = ["hello", "over", "EXS"].map(|line| Blob { data: line.into() });
    let mut echoes = store.echo(tokio_stream::iter(lines)).await?.into_inner();
    while let Some(echo) = echoes.next().await {
        println!("echo: {}", String::from_utf8_lossy(&echo?.data));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", addr] => serve(addr).await,
        ["ask", host] => ask(host).await,
        _ => Err("usage: exs-grpc serve ADDRESS, or exs-grpc ask HOST:PORT".into()),
    }
}
