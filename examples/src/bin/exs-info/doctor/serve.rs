//! The other end of a test connection, and what the two ends say.
//!
//! The server speaks first: it sends its [`Greeting`]. The client sends [`BULK`] bytes, and the server
//! sends as many back. A server of another kind waits for its client, which hears nothing then.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use exs::{Options, Socket, SocketStream, SocketType};
use exs_tools::fail::{During, Failure};
use exs_tools::peer::LISTENING;
use exs_tools::{frame, out, tell};
use serde::{Deserialize, Serialize};

/// Bytes that go there and back.
pub(super) const BULK: usize = 1 << 20;
/// A stranger that connects and does nothing is sent away after this time.
const PATIENCE: Duration = Duration::from_secs(10);
/// Clients at a time.
const CLIENTS: usize = 64;

/// What the server says first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Greeting {
    /// "exs-info".
    pub(super) program: String,
    /// The version of EXS.
    pub(super) version: String,
}

/// Serves until the program is ended.
pub(crate) fn serve(listen: SocketAddr, options: &Options) -> Result<(), Failure> {
    let (listener, addr) = listen_at(listen, options)?;
    out!("{LISTENING}{addr}")?;
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let (socket, peer) = listener.blocking().accept().during("accept")?;
        if busy.load(Ordering::Relaxed) >= CLIENTS {
            tell!("exs-info: {peer}: sent away, {CLIENTS} clients are here");
            continue;
        }
        busy.fetch_add(1, Ordering::Relaxed);
        let busy = Arc::clone(&busy);
        std::thread::spawn(move || {
            let way = socket.transport().map_or_else(String::new, |r| format!(" by {r}"));
            match client(socket) {
                Ok(()) => tell!("exs-info: {peer}{way}: all is well"),
                Err(e) => tell!("exs-info: {peer}{way}: {e}"),
            }
            busy.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// A listener, and where it listens.
pub(super) fn listen_at(
    addr: SocketAddr,
    options: &Options,
) -> Result<(Socket, SocketAddr), Failure> {
    let options = options
        .clone()
        .with_recv_timeout(Some(PATIENCE))
        .with_send_timeout(Some(PATIENCE))
        .with_linger(PATIENCE);
    let listener = Socket::with_options(SocketType::Stream, options).during("socket")?;
    listener.bind(addr).during("bind")?;
    listener.listen(64).during("listen")?;
    let addr = listener.local_addr().during("local address")?;
    Ok((listener, addr))
}

/// The server's part of one connection.
pub(super) fn client(socket: Socket) -> Result<(), Failure> {
    let mut stream = SocketStream::from(socket);
    let version = exs::VERSION.to_owned();
    frame::send(&mut stream, &Greeting { program: "exs-info".to_owned(), version })?;
    let mut bytes = vec![0; BULK];
    stream.read_exact(&mut bytes).during("data")?;
    stream.write_all(&bytes).during("data")?;
    // The client closes when it has all.
    stream.read(&mut [0]).during("end").map(|_| ())
}
