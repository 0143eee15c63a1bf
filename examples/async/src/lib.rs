//! Programs of the asynchronous Rust world over EXS.
//!
//! What a program changes to leave TCP: the listener of its server ([`Web`]), and the
//! connector of its client ([`connect`]).

use std::io;
use std::net::SocketAddr;

use exs::aio::{AsyncListener, AsyncStream};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;

/// A listener for `axum::serve`.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "a listener with another trait")]
pub struct Web(pub AsyncListener);

impl axum::serve::Listener for Web {
    type Io = AsyncStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (AsyncStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok(accepted) => return accepted,
                // As axum does over TCP: most likely the process has no descriptor left.
                Err(e) => {
                    eprintln!("accept: {e}");
                    // sleep-ok: nothing says when there will be one
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.0.local_addr()?)
    }
}

/// Connects an HTTP/1.1 client. Its connection is moved by a task.
///
/// # Errors
/// If there is no server.
pub async fn connect(
    addr: SocketAddr,
) -> Result<SendRequest<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = AsyncStream::connect(addr).await?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(e) = connection.await {
            eprintln!("connection: {e}");
        }
    });
    Ok(sender)
}
