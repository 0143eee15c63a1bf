//! Sockets.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Blocking, Counters, EventQueue, Token};
use crate::mem::Buffer;
#[cfg(feature = "tokio")]
use crate::progress::TaskSend;
use crate::progress::Ticket;
use crate::progress::{
    Error, Options, Readiness, RecvAtOnce, Route, SocketHandle, Standing, Watch, note_service,
    shard_of_new_socket,
};
use crate::sys::IoVec;
use crate::wire::exs::SocketKind;

/// The most bytes of a blocking send that is first tried without an operation. Most longer sends need
/// one.
const FEW: usize = 4 << 10;

/// What a socket carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SocketType {
    /// Bytes in order (SOCK_STREAM).
    Stream,
    /// Whole messages in order (SOCK_SEQPACKET).
    SeqPacket,
}

/// An extended socket. Cloning gives another handle to the same socket, as dup(2) does. When the
/// last handle is dropped the socket closes in the background, in order. A listener listens no more
/// when that drop returns, and its port is free.
///
/// A process that returns from `main`, or calls exit(3), closes its open sockets and waits until
/// what was sent is delivered, for [`Options::linger`] at most. A process that is killed, or calls
/// [`abort`](std::process::abort), cuts its connections.
///
/// Calls that take a queue and a token are asynchronous: `Ok` means accepted, and
/// exactly one event follows. None of them waits. [`Error::WouldBlock`] means that too much is in
/// flight. The twins that wait are under [`Socket::blocking`].
///
/// # Order
/// Any thread may post on any handle. Each call is one step: what one call posts is not mixed with
/// what another thread posts at the same time, and a call that begins after another has returned
/// comes after it. Sends, files and shutdowns of one socket move their bytes in the order of
/// posting, and so do receives; READs and WRITEs keep an order among themselves. There is no order
/// between these, nor between sockets. The events of one kind come in that order too, but for
/// those of operations that fail or are cancelled.
///
/// # Parts
/// A send that succeeds has sent all of its bytes: there are no short sends. A send that fails, is
/// cancelled or runs out of its time ends with an error and the number of bytes that left before
/// ([`Failed::bytes`](super::Failed)). A receive on a stream takes what is there, unless it is told
/// to wait for all.
///
/// # Errors
/// A post that is refused has no event, and gives its buffers back ([`Refused`](super::Refused)).
/// An operation that fails later says so by its event, which brings the buffers. When the
/// connection breaks all operations end, each with the reason.
///
/// ```
/// use exs::{Completion, EventQueue, RecvFlags, Socket, SocketType, Token};
///
/// let queue = EventQueue::new(16)?;
/// let listener = Socket::new(SocketType::Stream)?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(8)?;
/// listener.accept(&queue, Token(1))?;
///
/// let client = Socket::new(SocketType::Stream)?;
/// client.connect(&queue, Token(2), listener.local_addr()?)?;
/// let mut server = None;
/// for _ in 0..2 {
///     if let Completion::Accept { socket, .. } = queue.next()?.into_completion()? {
///         server = Some(socket);
///     }
/// }
/// let server = server.unwrap();
///
/// server.recv(&queue, Token(3), vec![0; 5], RecvFlags::WAITALL)?;
/// client.send(&queue, Token(4), *b"hello")?;
/// for _ in 0..2 {
///     if let Completion::Recv { buffer, .. } = queue.next()?.into_completion()? {
///         assert_eq!(&buffer[..], b"hello");
///     }
/// }
/// # Ok::<(), exs::Error>(())
/// ```
///
/// A buffer that was moved into an operation is out of reach until its event:
/// ```compile_fail,E0382
/// # fn f(socket: exs::Socket, queue: exs::EventQueue) {
/// let buffer = exs::Buffer::from(vec![0u8; 5]);
/// socket.recv(&queue, exs::Token(1), buffer, exs::RecvFlags::NONE);
/// println!("{}", buffer[0]); // moved
/// # }
/// ```
/// Nor can a borrowed slice, which might end before the operation does, be lent:
/// ```compile_fail,E0277
/// # fn f(socket: exs::Socket, queue: exs::EventQueue) {
/// let mut bytes = [0u8; 5];
/// socket.recv(&queue, exs::Token(1), &mut bytes[..], exs::RecvFlags::NONE);
/// # }
/// ```
/// Two operations cannot share a buffer:
/// ```compile_fail,E0382
/// # fn f(socket: exs::Socket, queue: exs::EventQueue) {
/// let buffer = exs::Buffer::from(vec![0u8; 5]);
/// socket.recv(&queue, exs::Token(1), buffer, exs::RecvFlags::NONE);
/// socket.recv(&queue, exs::Token(2), buffer, exs::RecvFlags::NONE);
/// # }
/// ```
/// A buffer cannot be copied to keep a second way to its bytes:
/// ```compile_fail,E0599
/// let buffer = exs::Buffer::from(vec![0u8; 5]);
/// let again = buffer.clone();
/// # drop((buffer, again));
/// ```
#[derive(Clone, Debug)]
pub struct Socket {
    handle: Arc<SocketHandle>,
    inner: Arc<Shared>,
}

/// What the handles of one socket share besides the engine's part.
#[derive(Debug, Default)]
struct Shared {
    options: Mutex<Option<Options>>,
}

impl Socket {
    /// A socket with default options ([`Options::default`] reads the environment).
    ///
    /// # Errors
    /// The kernel's error if EXS cannot start.
    pub fn new(ty: SocketType) -> Result<Socket, Error> {
        Socket::with_options(ty, Options::default())
    }

    /// A socket with these options.
    ///
    /// # Errors
    /// As [`Socket::new`]; [`Error::Invalid`] if a value of [`Options::path`] is out of its range.
    pub fn with_options(ty: SocketType, options: Options) -> Result<Socket, Error> {
        options.check()?;
        let context = shard_of_new_socket()?;
        let kind = match ty {
            SocketType::Stream => SocketKind::Stream,
            SocketType::SeqPacket => SocketKind::SeqPacket,
        };
        let shared = Shared { options: Mutex::new(Some(options.clone())) };
        let id = context.call(|e, _| e.sockets.open(kind, options));
        let handle = Arc::new(SocketHandle::new(Arc::clone(context), id));
        Ok(Socket { handle, inner: Arc::new(shared) })
    }

    /// A stream socket.
    ///
    /// # Errors
    /// As [`Socket::new`].
    pub fn stream() -> Result<Socket, Error> {
        Socket::new(SocketType::Stream)
    }

    /// A seqpacket socket.
    ///
    /// # Errors
    /// As [`Socket::new`].
    pub fn seqpacket() -> Result<Socket, Error> {
        Socket::new(SocketType::SeqPacket)
    }

    pub(super) fn from_handle(handle: Arc<SocketHandle>) -> Socket {
        Socket { handle, inner: Arc::default() }
    }

    pub(super) fn handle(&self) -> &Arc<SocketHandle> {
        &self.handle
    }

    /// Where the event of an operation of this socket goes.
    pub(super) fn ticket<'q>(&self, queue: &'q EventQueue, token: Token) -> Ticket<'q> {
        queue.ticket(token, self.handle.user_data())
    }

    /// The number that the program has given to the socket; 0 if it has given none.
    pub fn user_data(&self) -> u64 {
        self.handle.user_data()
    }

    /// Gives the socket a number of the program's, such as the index of its connection in a
    /// table. The event of each operation that is posted from now on carries it
    /// ([`Event::user_data`](crate::Event::user_data)), so a token can say which operation it
    /// was, and a program needs no map from tokens to sockets. All handles of a socket share it. An
    /// accepted socket begins with 0, and the event that brings it has the number of its listener.
    ///
    /// ```
    /// use exs::{EventKind, EventQueue, RecvFlags, Socket, Token};
    ///
    /// const RECV: Token = Token(1); // the same for all connections
    /// # let listener = Socket::stream()?;
    /// # listener.bind("127.0.0.1:0".parse().unwrap())?;
    /// # listener.listen(2)?;
    /// let queue = EventQueue::new(16)?;
    /// let (mut clients, mut connections) = (Vec::new(), Vec::new());
    /// for i in 0..2 {
    /// #   let client = Socket::stream()?;
    /// #   client.blocking().connect(listener.local_addr()?)?;
    /// #   clients.push(client);
    ///     let (socket, _) = listener.blocking().accept()?;
    ///     socket.set_user_data(i);
    ///     socket.recv(&queue, RECV, vec![0; 100], RecvFlags::NONE)?;
    ///     connections.push(socket);
    /// }
    /// clients[1].blocking().send_all(b"hello")?;
    /// let event = queue.next()?;
    /// assert_eq!((event.token(), event.user_data()), (RECV, 1));
    /// connections[event.user_data() as usize].blocking().send_all(b"hello to you")?;
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn set_user_data(&self, number: u64) {
        self.handle.set_user_data(number);
    }

    /// Its options.
    pub fn options(&self) -> Options {
        let mut cached = self.inner.options.lock().unwrap_or_else(PoisonError::into_inner);
        cached
            .get_or_insert_with(|| {
                self.handle.call(|e, id, _| e.sockets.options_of(id)).unwrap_or_default()
            })
            .clone()
    }

    /// Sets its options, before `connect` or `listen`. On a connected socket only the time limits
    /// change: those of operations posted from then on, the keep-alive, and `linger`.
    ///
    /// # Errors
    /// [`Error::State`] if the socket is closed; [`Error::Invalid`] if a value is out of its range.
    pub fn set_options(&self, options: &Options) -> Result<(), Error> {
        self.handle.call(|e, id, _| e.sockets.set_options(id, options.clone()))?;
        self.handle.each_branch(|e, id, _| e.sockets.set_options(id, options.clone()));
        *self.inner.options.lock().unwrap_or_else(PoisonError::into_inner) = Some(options.clone());
        Ok(())
    }

    /// Gives it a local address; port 0 stands for any free port.
    ///
    /// # Errors
    /// [`Error::State`] if the socket is connected or listening, [`Error::Invalid`] if it is bound,
    /// and [`Error::Bind`] with the kernel's reason: EADDRINUSE, EADDRNOTAVAIL, EACCES. For a socket
    /// that insists on RDMA devices, `listen` and `connect` report these instead.
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        self.handle.call(|e, id, _| e.sockets.bind(id, addr))
    }

    /// Makes it a listener. Up to `backlog` connections are established before the program accepts
    /// them. More wait for room, and a flood of them is refused.
    ///
    /// # Errors
    /// [`Error::Listen`], with the kernel's reason (EADDRINUSE, EACCES, ...).
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.handle.listen(backlog)
    }

    fn addrs(&self) -> Result<(Option<SocketAddr>, Option<SocketAddr>), Error> {
        self.handle.call(|e, id, _| e.sockets.addrs(id)).ok_or_else(|| not_connected("address"))
    }

    /// Our address.
    ///
    /// # Errors
    /// [`Error::State`] if it has none yet.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.addrs()?.0.ok_or_else(|| not_connected("local_addr"))
    }

    /// The peer's address.
    ///
    /// # Errors
    /// [`Error::State`] if it is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.addrs()?.1.ok_or_else(|| not_connected("peer_addr"))
    }

    /// The device that it is connected by, and the reason for the choice; `None` before it is
    /// connected.
    pub fn transport(&self) -> Option<Route> {
        self.handle.call(|e, id, _| e.sockets.route_of(id))
    }

    /// Books a place in the queue and posts; gives the place back if refused.
    pub(super) fn post_bare(
        &self,
        queue: &EventQueue,
        f: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        queue.core().reserve()?;
        f().inspect_err(|_| queue.core().unreserve(1))
    }

    /// What a poll would find now, without waiting.
    ///
    /// ```
    /// # use exs::Socket;
    /// # let listener = Socket::stream()?;
    /// # listener.bind("127.0.0.1:0".parse().unwrap())?;
    /// listener.listen(1)?;
    /// assert!(!listener.readiness().readable); // no connection waits
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn readiness(&self) -> Readiness {
        self.handle.call(|e, id, _| e.sockets.readiness_of(id))
    }

    /// Why its connection has broken, as errno.
    pub(super) fn failure(&self) -> Option<i32> {
        self.handle.call(|e, id, _| e.sockets.failure_of(id))
    }

    /// Shows its state by `watch`.
    pub(super) fn set_watch(&self, watch: Option<Arc<dyn Watch>>) {
        self.handle.look(|e, id| e.set_watch(id, watch));
    }

    /// The state that the watch shows.
    pub(super) fn standing(&self) -> Standing {
        self.handle.look(|e, id| e.sockets.standing_of(id))
    }

    /// The program polls the other end of `end`, and is about to sleep.
    pub(super) fn polled(&self, end: Option<BorrowedFd<'_>>) -> Option<u32> {
        self.handle.call(|e, id, now| e.polled(id, end, now))
    }

    /// Sends bytes if that completes at once. `may_share`: the thread is not known to sleep next, so
    /// sends of a burst may leave together.
    pub(crate) fn send_at_once(&self, payload: &IoVec<'_>, may_share: bool) -> bool {
        self.handle.send_at_once(payload, may_share)
    }

    /// Sends few bytes of a task of a tokio runtime, without an operation (`Engine::send_for_task`).
    #[cfg(feature = "tokio")]
    pub(crate) fn send_for_task(&self, payload: &IoVec<'_>, may_wait: bool) -> TaskSend {
        self.handle.send_for_task(payload, may_wait)
    }

    /// Sends few bytes for a call that blocks, without an operation. False if something is in the way:
    /// then nothing was sent.
    pub(super) fn sends_few_at_once(&self, bytes: &[u8]) -> bool {
        if bytes.len() > FEW {
            return false;
        }
        let bytes = IoVec::new(bytes);
        if self.handle.send_lent(&bytes) {
            return true;
        }
        let sent = self.send_at_once(&bytes, true);
        if sent {
            note_service();
        }
        sent
    }

    /// Sends bytes if that completes at once, for a call of C. The thread may sleep next.
    pub(super) fn sends_at_once(&self, payload: &IoVec<'_>) -> bool {
        payload.len() <= FEW && self.handle.send_lent(payload) || self.send_at_once(payload, false)
    }

    /// Receives small data that have come, for a call that does not wait.
    pub(super) fn recv_at_once(&self, buffer: &Buffer, end: Option<BorrowedFd<'_>>) -> RecvAtOnce {
        self.handle.recv_at_once(buffer, end)
    }

    /// A call has found nothing, and does not wait.
    pub(super) fn found_nothing(&self) {
        self.handle.context().note_miss();
    }

    /// True if it has messages in place of a stream of bytes.
    #[cfg(feature = "tokio")]
    pub(crate) fn is_seqpacket(&self) -> bool {
        self.handle.call(|e, id, _| e.sockets.is_seqpacket(id))
    }

    /// True if it takes connections.
    pub fn is_listening(&self) -> bool {
        self.handle.call(|e, id, _| e.sockets.is_listening(id))
    }

    /// What the connection counted so far.
    pub fn counters(&self) -> Counters {
        let counted = self.handle.call(|e, id, _| e.sockets.counters_of(id));
        Counters::of_socket(&counted.unwrap_or_default())
    }

    /// The same calls, waiting for their end.
    pub fn blocking(&self) -> Blocking<'_> {
        Blocking::new(self)
    }
}

#[cold]
fn not_connected(call: &'static str) -> Error {
    Error::State { call, need: "is connected", is: "is not connected", errno: libc::ENOTCONN }
}
