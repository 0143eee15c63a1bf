//! Connected sockets of either kind, both ends in this process.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::thread;

use exs::{Options, Socket, SocketType, Transport};
use exs_examples::fail::{During, Failure};

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 512;

/// What carries the bytes: plain TCP, or a transport of EXS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Tcp,
    Exs(Transport),
}

impl FromStr for Carrier {
    type Err = String;

    fn from_str(name: &str) -> Result<Carrier, String> {
        match name {
            "tcp" => Ok(Carrier::Tcp),
            other => other.parse().map(Carrier::Exs).map_err(|_| {
                format!("no transport is called `{other}`: tcp, soft, shm, verbs or auto")
            }),
        }
    }
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Carrier::Tcp => f.write_str("tcp"),
            Carrier::Exs(transport) => transport.fmt(f),
        }
    }
}

/// One end of a connection, used with calls that block.
pub(crate) enum End {
    Tcp(TcpStream),
    Exs(Socket),
}

impl End {
    pub(crate) fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            End::Tcp(stream) => stream.write_all(bytes).during("send"),
            End::Exs(socket) => socket.blocking().send_all(bytes).during("send"),
        }
    }

    /// Receives exactly `bytes`. Returns false at the end of the stream.
    pub(crate) fn recv(&mut self, bytes: &mut [u8]) -> Result<bool, Failure> {
        let mut got = 0;
        while got < bytes.len() {
            let n = match self {
                End::Tcp(stream) => stream.read(&mut bytes[got..]).during("recv")?,
                End::Exs(socket) => socket.blocking().recv(&mut bytes[got..]).during("recv")?,
            };
            if n == 0 {
                return Ok(false);
            }
            got += n;
        }
        Ok(true)
    }

    /// Ends the direction from here to the peer.
    pub(crate) fn shutdown(&self) -> Result<(), Failure> {
        match self {
            End::Tcp(stream) => stream.shutdown(Shutdown::Write).during("shutdown"),
            End::Exs(socket) => socket.blocking().shutdown(Shutdown::Write).during("shutdown"),
        }
    }
}

fn socket(transport: Transport) -> Result<Socket, Failure> {
    let options = Options::default().with_transport(transport);
    Socket::with_options(SocketType::Stream, options).during("socket")
}

/// A listener on the loopback interface.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Exs(Socket, Transport),
}

impl Listener {
    pub(crate) fn new(carrier: Carrier) -> Result<Listener, Failure> {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        match carrier {
            Carrier::Tcp => TcpListener::bind(any).during("TCP listener").map(Listener::Tcp),
            Carrier::Exs(transport) => {
                let listener = socket(transport)?;
                listener.bind(any).during("bind")?;
                listener.listen(BACKLOG).during("listen")?;
                Ok(Listener::Exs(listener, transport))
            }
        }
    }

    pub(crate) fn accept(&self) -> Result<End, Failure> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept().during("accept")?;
                stream.set_nodelay(true).during("TCP_NODELAY")?;
                Ok(End::Tcp(stream))
            }
            Listener::Exs(listener, _) => {
                Ok(End::Exs(listener.blocking().accept().during("accept")?.0))
            }
        }
    }

    /// Connects to this listener.
    pub(crate) fn connect(&self) -> Result<End, Failure> {
        match self {
            Listener::Tcp(listener) => {
                let addr = listener.local_addr().during("local address")?;
                let stream = TcpStream::connect(addr).during("connect")?;
                stream.set_nodelay(true).during("TCP_NODELAY")?;
                Ok(End::Tcp(stream))
            }
            Listener::Exs(listener, transport) => {
                let socket = socket(*transport)?;
                let addr = listener.local_addr().during("local address")?;
                socket.blocking().connect(addr).during("connect")?;
                Ok(End::Exs(socket))
            }
        }
    }

    /// Both ends of a new connection: the caller's, and the accepted one.
    pub(crate) fn pair(&self) -> Result<(End, End), Failure> {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| self.accept());
            let connected = self.connect();
            let accepted = accepting.join().map_err(|_| Failure("a thread panicked".to_owned()))?;
            Ok((connected?, accepted?))
        })
    }
}
