//! `std::io::Read` and `Write` on sockets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use super::{Blocking, Event, Socket, ToHost};
use crate::progress::Error;

/// A connected socket that owns itself and reads and writes as
/// [`TcpStream`](std::net::TcpStream) does: for code that takes any `Read + Write`, such as the
/// stream types of rustls and tungstenite.
///
/// Each read and each write waits for its end, within [`Options::recv_timeout`] and
/// [`Options::send_timeout`](crate::Options::send_timeout). A write returns when the bytes are
/// on their way, so there is nothing to flush. `&SocketStream` reads and writes too, so one
/// thread can read while another writes. Reads of several threads end in the order in which
/// they began, and so do writes.
///
/// Clones are handles to one socket. It closes in the background when the last is dropped, which
/// delivers what was written. [`Socket::blocking`]'s `close` waits for that and reports it.
/// On a seqpacket socket each write is one message (of several slices, the first alone may be it),
/// and each read takes one message.
///
/// ```
/// use std::io::{Read, Write};
/// use exs::{Socket, SocketStream};
///
/// let listener = Socket::stream()?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(1)?;
/// let mut client = SocketStream::connect(listener.local_addr()?)?;
/// let (server, _) = listener.blocking().accept()?;
/// let mut server = SocketStream::from(server);
///
/// client.write_all(b"hello")?;
/// client.shutdown(std::net::Shutdown::Write)?;
/// let mut text = String::new();
/// server.read_to_string(&mut text)?;
/// assert_eq!(text, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Options::recv_timeout`]: crate::Options::recv_timeout
#[derive(Clone, Debug)]
pub struct SocketStream {
    socket: Socket,
}

impl SocketStream {
    /// Connects a stream socket with default options, as [`Blocking::connect`] does.
    ///
    /// # Errors
    /// As [`Blocking::connect`].
    pub fn connect(addr: impl ToHost) -> Result<SocketStream, Error> {
        let socket = Socket::stream()?;
        socket.blocking().connect(addr)?;
        Ok(SocketStream { socket })
    }

    /// The socket.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// Gives the socket back.
    pub fn into_inner(self) -> Socket {
        self.socket
    }

    /// Another handle to the same socket, as [`Clone`] gives it. It never fails, and returns a
    /// `Result` because the streams of the standard library do.
    ///
    /// # Errors
    /// None today.
    pub fn try_clone(&self) -> io::Result<SocketStream> {
        Ok(self.clone())
    }

    /// Our address.
    ///
    /// # Errors
    /// As [`Socket::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As [`Socket::peer_addr`].
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.socket.peer_addr()
    }

    /// Ends one direction, or both, after what was written, and waits for that.
    ///
    /// # Errors
    /// If the connection is over.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        self.socket.blocking().shutdown(how)
    }

    /// Limits the time of reads that begin from now on, of all handles of the socket. `None`: no
    /// limit. A read that finds nothing in time ends with [`io::ErrorKind::TimedOut`].
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> Result<(), Error> {
        self.socket.set_options(&self.socket.options().with_recv_timeout(limit))
    }

    /// Limits the time of writes that begin from now on, of all handles of the socket. `None`: no
    /// limit. A write that is cut by it returns how many bytes have left, or
    /// [`io::ErrorKind::TimedOut`] if none have.
    ///
    /// # Errors
    /// If the socket is closed.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> Result<(), Error> {
        self.socket.set_options(&self.socket.options().with_send_timeout(limit))
    }
}

impl From<Socket> for SocketStream {
    fn from(socket: Socket) -> SocketStream {
        SocketStream { socket }
    }
}

impl From<SocketStream> for Socket {
    fn from(stream: SocketStream) -> Socket {
        stream.socket
    }
}

impl AsRef<Socket> for SocketStream {
    fn as_ref(&self) -> &Socket {
        &self.socket
    }
}

/// What [`Read`] and [`Write`] promise: a call that moved something says how much, and the call
/// after it meets the error.
fn moved(ended: Result<Event, Error>) -> io::Result<usize> {
    let event = ended?;
    match event.bytes() {
        0 => Ok(event.into_result()?),
        n => Ok(n),
    }
}

fn read(from: Blocking<'_>, buf: &mut [u8]) -> io::Result<usize> {
    if buf.is_empty() {
        return Ok(0);
    }
    match from.socket.pass(buf)? {
        0 => moved(from.recv_event(buf, crate::RecvFlags::NONE)),
        n => Ok(n),
    }
}

fn write(to: Blocking<'_>, buf: &[u8]) -> io::Result<usize> {
    match to.socket.sends_few_at_once(buf) {
        true => Ok(buf.len()),
        false => moved(to.send_event(buf)),
    }
}

/// Longer writes of several slices send the first slice alone, as a copy of all of them would
/// cost more than another send.
const GATHERED: usize = 16 << 10;

fn write_vectored(to: Blocking<'_>, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let mut full = bufs.iter().filter(|b| !b.is_empty());
    let Some(first) = full.next() else { return Ok(0) };
    let all = bufs.iter().map(|b| b.len()).sum::<usize>();
    if full.next().is_none() || all > GATHERED {
        return write(to, first);
    }
    let mut gathered = Vec::with_capacity(all);
    bufs.iter().for_each(|b| gathered.extend_from_slice(b));
    write(to, &gathered)
}

macro_rules! read_and_write {
    ($($ty:ty),+) => {$(
        impl Read for $ty {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                read(self.waiting(), buf)
            }
        }

        impl Write for $ty {
            fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
                write(self.waiting(), buf)
            }

            fn write_vectored(&mut self, bufs: &[io::IoSlice<'_>]) -> io::Result<usize> {
                write_vectored(self.waiting(), bufs)
            }

            /// Does nothing: a write returns when its bytes are on their way.
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
    )+};
}

read_and_write!(SocketStream, &SocketStream, Blocking<'_>);

impl SocketStream {
    fn waiting(&self) -> Blocking<'_> {
        self.socket.blocking()
    }
}

impl<'a> Blocking<'a> {
    fn waiting(&self) -> Blocking<'a> {
        *self
    }
}
