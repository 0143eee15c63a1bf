//! A proxy between TCP and EXS: `exs-proxy LISTEN TARGET`.
//!
//! The side whose address begins with `exs:` speaks EXS, the other one TCP. So a client that knows TCP
//! only reaches a server over EXS, and the other way round:
//!
//!     exs-proxy 127.0.0.1:8080 exs:192.0.2.1:9000
//!     exs-proxy exs:0.0.0.0:9000 127.0.0.1:80

use std::error::Error;
use std::net::SocketAddr;

use exs::aio::{AsyncListener, AsyncStream};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

/// Connects to the target, and copies both directions until both have ended.
async fn serve<S: AsyncRead + AsyncWrite + Unpin>(mut client: S, target: String) {
    let copied = async {
        match target.strip_prefix("exs:") {
            Some(addr) => {
                let mut server = AsyncStream::connect(addr).await?;
                copy_bidirectional(&mut client, &mut server).await?;
            }
            None => {
                let mut server = TcpStream::connect(&target).await?;
                server.set_nodelay(true)?;
                copy_bidirectional(&mut client, &mut server).await?;
            }
        }
        Ok::<(), Box<dyn Error + Send + Sync>>(())
    };
    if let Err(e) = copied.await {
        eprintln!("exs-proxy: {target}: {e}");
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [listen, target] = &args[..] else {
        return Err("usage: exs-proxy LISTEN TARGET, one of which begins with exs:".into());
    };
    let bound = |addr: SocketAddr| println!("listening at {addr}");
    if let Some(addr) = listen.strip_prefix("exs:") {
        let listener = AsyncListener::bind(addr.parse()?)?;
        bound(listener.local_addr()?);
        loop {
            tokio::spawn(serve(listener.accept().await?.0, target.clone()));
        }
    }
    let listener = TcpListener::bind(listen).await?;
    bound(listener.local_addr()?);
    loop {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        tokio::spawn(serve(client, target.clone()));
    }
}
