//! Connected sockets of either kind, both ends in this process.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use exs::{Options, Socket, SocketType, Transport};
use exs_tools::fail::{During, Failure};

use super::carrier::Carrier;

/// Connections that may wait to be accepted.
const BACKLOG: u32 = 512;

/// One end of a connection, used with calls that block.
pub(super) enum End {
    Tcp(TcpStream),
    Exs(Socket),
}

impl End {
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            End::Tcp(stream) => stream.write_all(bytes).during("send"),
            End::Exs(socket) => socket.blocking().send_all(bytes).during("send"),
        }
    }

    /// Receives exactly `bytes`. Returns false at the end of the stream.
    pub(super) fn recv(&mut self, bytes: &mut [u8]) -> Result<bool, Failure> {
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
    pub(super) fn shutdown(&self) -> Result<(), Failure> {
        match self {
            End::Tcp(stream) => stream.shutdown(Shutdown::Write).during("shutdown"),
            End::Exs(socket) => socket.blocking().shutdown(Shutdown::Write).during("shutdown"),
        }
    }
}

pub(super) fn socket(transport: Transport) -> Result<Socket, Failure> {
    let options = Options::default().with_transport(transport);
    Socket::with_options(SocketType::Stream, options).during("socket")
}

/// Connects, and waits for it.
pub(super) fn connect(carrier: Carrier, to: SocketAddr) -> Result<End, Failure> {
    match carrier {
        Carrier::Tcp => {
            let stream = TcpStream::connect(to).during("connect")?;
            stream.set_nodelay(true).during("TCP_NODELAY")?;
            Ok(End::Tcp(stream))
        }
        Carrier::Exs(transport) => {
            let socket = socket(transport)?;
            socket.blocking().connect(to).during("connect")?;
            Ok(End::Exs(socket))
        }
    }
}

/// A listener on the loopback interface.
pub(super) enum Listener {
    Tcp(TcpListener),
    Exs(Socket, Transport),
}

impl Listener {
    pub(super) fn new(carrier: Carrier) -> Result<Listener, Failure> {
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

    pub(super) fn accept(&self) -> Result<End, Failure> {
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

    pub(super) fn addr(&self) -> Result<SocketAddr, Failure> {
        match self {
            Listener::Tcp(listener) => listener.local_addr().during("local address"),
            Listener::Exs(listener, _) => listener.local_addr().during("local address"),
        }
    }

    fn carrier(&self) -> Carrier {
        match self {
            Listener::Tcp(_) => Carrier::Tcp,
            Listener::Exs(_, transport) => Carrier::Exs(*transport),
        }
    }

    /// Both ends of a new connection: the caller's, and the accepted one.
    pub(super) fn pair(&self) -> Result<(End, End), Failure> {
        thread::scope(|scope| {
            let accepting = scope.spawn(|| self.accept());
            let connected = self.addr().and_then(|to| connect(self.carrier(), to));
            let accepted = accepting.join().map_err(|_| Failure("a thread panicked".to_owned()))?;
            Ok((connected?, accepted?))
        })
    }
}
