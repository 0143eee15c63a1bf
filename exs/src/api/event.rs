//! Events.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Socket;
use crate::mem::Buffer;
use crate::progress::{Bufs, Error, EventKind, RawEvent, Readiness};
use crate::sys::KernelAddr;

/// The program's name for an operation; it comes back with the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a number with a name")]
pub struct Token(pub u64);

/// How one operation ended. Each accepted operation yields exactly one.
///
/// ```
/// use exs::{EventKind, EventQueue, RecvFlags, Token};
/// # use exs::Socket;
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::stream()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// # let (server, _) = listener.blocking().accept()?;
/// // `server` and `client` are connected.
/// let queue = EventQueue::new(16)?;
/// server.recv(&queue, Token(7), vec![0; 4096], RecvFlags::NONE)?;
/// client.blocking().send_all(b"hello")?;
///
/// let event = queue.next()?;
/// assert_eq!((event.token(), event.kind()), (Token(7), EventKind::Recv));
/// match event.result() {
///     Ok(0) => println!("the end: {}", event.eof()),
///     Ok(n) => assert_eq!(n, 5),
///     Err(e) => println!("{e} (errno {})", e.errno()),
/// }
/// let n = event.bytes();
/// let buffer = event.into_buffer().expect("what was moved in comes back");
/// assert_eq!(&buffer[..n], b"hello");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug)]
pub struct Event {
    raw: RawEvent,
}

impl From<RawEvent> for Event {
    #[inline]
    fn from(mut raw: RawEvent) -> Event {
        raw.dequeued();
        Event { raw }
    }
}

impl Event {
    /// The token given with the operation.
    pub fn token(&self) -> Token {
        Token(self.raw.token)
    }

    pub(super) fn tag(&self) -> [u64; 2] {
        self.raw.tag
    }

    /// Which call this answers.
    pub fn kind(&self) -> EventKind {
        self.raw.kind
    }

    /// Bytes moved; also of an operation that failed or was cancelled on its way.
    pub fn bytes(&self) -> usize {
        usize::try_from(self.raw.bytes).unwrap_or(usize::MAX)
    }

    /// A receive of a message: the true length of the message, which is more than
    /// [`Event::bytes`] if the buffer was too small for it.
    pub fn total(&self) -> u64 {
        self.raw.total.max(self.raw.bytes)
    }

    /// A receive of a message: the message was longer than the buffer.
    pub fn truncated(&self) -> bool {
        self.raw.total > self.raw.bytes
    }

    /// A receive: the peer has ended its direction, and there is no more.
    pub fn eof(&self) -> bool {
        self.raw.eof
    }

    /// Why the operation failed, if it did.
    pub fn error(&self) -> Option<&Error> {
        self.raw.error.as_deref()
    }

    /// Bytes moved, or why not.
    pub fn result(&self) -> Result<usize, &Error> {
        self.error().map_or(Ok(self.bytes()), Err)
    }

    /// As [`Event::result`], taking the event (and dropping its buffer).
    pub fn into_result(self) -> Result<usize, Error> {
        let n = self.bytes();
        self.raw.error.map_or(Ok(n), |e| Err(*e))
    }

    /// Takes the buffer back that was moved into the operation.
    pub fn take_buffer(&mut self) -> Option<Buffer> {
        match std::mem::take(&mut self.raw.bufs) {
            Bufs::One(b) => Some(b),
            other => {
                self.raw.bufs = other;
                None
            }
        }
    }

    /// The buffer that was moved into the operation.
    pub fn into_buffer(mut self) -> Option<Buffer> {
        self.take_buffer()
    }

    /// Takes the buffers of a vectored operation back (or the one of another).
    pub fn take_buffers(&mut self) -> Vec<Buffer> {
        match std::mem::take(&mut self.raw.bufs) {
            Bufs::None => Vec::new(),
            Bufs::One(b) => vec![b],
            Bufs::Many(v) => v,
        }
    }

    /// An accept: the connection, and the address of its peer. One that is dropped with its event, or with
    /// the queue where that waits, is reset.
    pub fn take_accepted(&mut self) -> Option<(Socket, SocketAddr)> {
        let (handle, peer) = self.raw.guest.as_mut()?.accepted.take()?;
        handle.take();
        Some((Socket::from_handle(Arc::new(handle)), peer))
    }

    /// An accept of a [`KernelSocket`](crate::KernelSocket): the connection, which is the
    /// program's from now on and blocks. [`Event::peer`] is who made it.
    pub fn take_descriptor(&mut self) -> Option<OwnedFd> {
        self.raw.guest.as_mut()?.descriptor.take()?.take()
    }

    /// Of a [`KernelSocket`](crate::KernelSocket): who sent the message, if that was asked
    /// for and it has an address, or made the connection.
    pub fn peer(&self) -> Option<&KernelAddr> {
        self.raw.guest.as_ref()?.peer.as_ref()
    }

    /// A poll: what was found.
    pub fn readiness(&self) -> Readiness {
        self.raw.readiness
    }
}
