//! Events.

use crate::mem::Buffer;
use crate::progress::{Bufs, Error, EventKind, RawEvent, Readiness};
use crate::sys::KernelAddr;

/// The program's name for an operation; it comes back with the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a number with a name")]
pub struct Token(pub u64);

impl From<u64> for Token {
    fn from(number: u64) -> Token {
        Token(number)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.0
    }
}

/// How one operation ended. Each accepted operation yields exactly one.
///
/// [`Event::into_completion`] turns it into what the operation brings, or into the error. The
/// other methods look at it, and take its buffers, whatever its kind and whether it failed.
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
    pub(super) raw: RawEvent,
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

    /// The number that the socket had when the operation was posted
    /// ([`Socket::set_user_data`](crate::Socket::set_user_data)); 0 if it had none.
    pub fn user_data(&self) -> u64 {
        self.raw.tag[0]
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
        if self.is_atomic() { self.raw.bytes } else { self.raw.total.max(self.raw.bytes) }
    }

    fn is_atomic(&self) -> bool {
        matches!(self.raw.kind, EventKind::FetchAdd | EventKind::CompareSwap)
    }

    /// An atomic operation that was done: the value that was there before it.
    pub fn old_value(&self) -> Option<u64> {
        (self.is_atomic() && self.raw.error.is_none()).then_some(self.raw.total)
    }

    /// A receive of a message: the message was longer than the buffer.
    pub fn truncated(&self) -> bool {
        self.total() > self.raw.bytes
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
    ///
    /// # Errors
    /// The operation's error, as [`Event::error`] lends it.
    pub fn result(&self) -> Result<usize, Error> {
        self.error().map_or(Ok(self.bytes()), |e| Err(e.clone()))
    }

    /// As [`Event::result`], taking the event (and dropping its buffer).
    ///
    /// # Errors
    /// The operation's error.
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

    /// Of a [`KernelSocket`](crate::KernelSocket): the address of the sender of a message, if
    /// the receive asked for it and the sender has one, or of the peer that connected.
    pub fn peer(&self) -> Option<&KernelAddr> {
        self.raw.guest.as_ref()?.peer.as_ref()
    }

    /// A poll: what was found.
    pub fn readiness(&self) -> Readiness {
        self.raw.readiness
    }
}
