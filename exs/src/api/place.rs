//! What the C library needs of queues and events, and programs do not. All of it is safe; `raw`
//! exports it.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Event, EventQueue, Refused, RungBy, Socket, Token};
use crate::mem::Buffer;
use crate::progress::{
    Awaited, Error, EventKind, FdUse, QueueCore, QueueOptions, RawEvent, Readiness, RecvFlags,
    ServedBy, Shard, shard_of_next_accept,
};
pub use crate::progress::{LoopId, RecvAtOnce, Standing, Watch};

/// A handle to the same queue whose operations carry a second name, which comes back
/// with their events: for example which call it was, and where it stores its results.
pub fn tagged(queue: &EventQueue, tag: [u64; 2]) -> EventQueue {
    queue.tagged(tag)
}

/// The second name of an event's operation ([`tagged`]).
pub fn tag(event: &Event) -> [u64; 2] {
    event.tag()
}

/// An accept: takes the connection, and the address of its peer. A connection that is dropped
/// with its event is reset.
pub fn take_accepted(event: &mut Event) -> Option<(Socket, SocketAddr)> {
    let (handle, peer) = event.raw.guest.as_mut()?.accepted.take()?;
    handle.take();
    Some((Socket::from_handle(Arc::new(handle)), peer))
}

/// An accept of a kernel socket: takes the connection, which is the program's from now on and
/// blocks.
pub fn take_descriptor(event: &mut Event) -> Option<OwnedFd> {
    event.raw.guest.as_mut()?.descriptor.take()?.take()
}

/// As [`EventQueue::dequeue_into`], but a signal handler that would run at any time
/// between the call and the end of its wait interrupts it, not only a handler that runs
/// during a sleep. For that the thread's signals are blocked while it waits.
///
/// ```
/// let queue = exs::EventQueue::new(4)?;
/// let mut events = Vec::new();
/// let none = Some(std::time::Duration::from_millis(1));
/// assert_eq!(exs::__ffi::dequeue_exact(&queue, &mut events, 1, 4, none)?, 0);
/// # Ok::<(), exs::Error>(())
/// ```
///
/// # Errors
/// As [`EventQueue::dequeue_into`].
pub fn dequeue_exact(
    queue: &EventQueue,
    out: &mut Vec<Event>,
    min: usize,
    max: usize,
    timeout: Option<Duration>,
) -> Result<usize, Error> {
    queue.dequeue_noting(out, min, max, timeout, true)
}

/// As [`dequeue_exact`] of one event of a [`private_queue`], that of the thread's operation of the
/// socket. Threads that wait so wake no other thread.
///
/// # Errors
/// As [`EventQueue::dequeue`].
pub fn dequeue_of(
    queue: &EventQueue,
    socket: &Socket,
    out: &mut Vec<Event>,
    timeout: Option<Duration>,
) -> Result<usize, Error> {
    let mut left = timeout;
    if timeout != Some(Duration::ZERO) {
        let begun = timeout.map(|_| Instant::now());
        if queue.wait_for(socket, timeout, true)? == Awaited::TimedOut {
            return Ok(0);
        }
        left = timeout.zip(begun).map(|(t, begun)| t.saturating_sub(begun.elapsed()));
    }
    queue.dequeue_noting(out, 1, 1, left, true)
}

/// Why the connection of a socket has broken, as errno; None if it has not, or has ended in order.
pub fn failure(socket: &Socket) -> Option<i32> {
    socket.failure()
}

/// Asks those operations of a socket to end whose events go to this queue; returns how
/// many there were.
pub fn cancel_on(socket: &Socket, queue: &EventQueue) -> usize {
    socket.cancel_on(queue)
}

/// As [`Socket::cancel`] (with `None`: as [`Socket::cancel_all`]), but spares the
/// operations whose events go to some queues: those that the caller posted for itself. Of
/// these only a connect ends, and only with `None`.
pub fn cancel_but(socket: &Socket, token: Option<Token>, spared: &[&EventQueue]) -> usize {
    socket.cancel_but(token, spared)
}

/// Posts a receive only if it would not wait: what [`Socket::readiness`] says is looked
/// at in the same step, so no other thread takes the data between. Several buffers are
/// filled as by [`Socket::recv_vectored`].
///
/// ```
/// # use exs::{EventQueue, Socket, Token};
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::stream()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// let queue = EventQueue::new(1)?;
/// let refused = exs::__ffi::recv_ready(
///     &client, &queue, Token(1), vec![vec![0; 8].into()], Default::default(),
/// );
/// assert!(matches!(refused.unwrap_err().error, exs::Error::WouldBlock { .. }));
/// # Ok::<(), exs::Error>(())
/// ```
///
/// # Errors
/// [`Error::WouldBlock`] if it would wait; else as [`Socket::recv`].
pub fn recv_ready(
    socket: &Socket,
    queue: &EventQueue,
    token: Token,
    buffers: Vec<Buffer>,
    flags: RecvFlags,
) -> Result<(), Refused<Vec<Buffer>>> {
    socket.recv_ready(queue, token, buffers, flags)
}

/// Shows a socket's state by `watch` from now on; `None`: no longer. While the program polls
/// descriptors, the library calls `watch` as soon as something has changed. Otherwise it calls `watch`
/// within some milliseconds, if no call of the program has come for the change by then.
///
/// ```
/// # use std::sync::Arc;
/// struct Nothing;
/// impl exs::__ffi::Watch for Nothing {
///     fn changed(&self) {}
/// }
/// let socket = exs::Socket::stream()?;
/// exs::__ffi::watch(&socket, Some(Arc::new(Nothing)));
/// assert!(!exs::__ffi::standing(&socket).readable);
/// # Ok::<(), exs::Error>(())
/// ```
pub fn watch(socket: &Socket, watch: Option<Arc<dyn Watch>>) {
    socket.set_watch(watch);
}

/// The state of a socket that its watch shows. The watch ([`watch`]) is called again only for what
/// changes after this.
pub fn standing(socket: &Socket) -> Standing {
    socket.standing()
}

/// As [`standing`], for a watch that keeps the state for an event loop and shows it nowhere
/// ([`Watch::changed_in`]). If no call reads the state within 20 to 200 ms, the watch is called again.
pub fn kept_standing(socket: &Socket) -> Standing {
    socket.kept_standing()
}

/// The program polls the other end of `end`, the end of a socket pair of the type SOCK_SEQPACKET,
/// and is about to sleep: a peer that can do so leaves a message there when data come. If there is
/// no `end`, the program does not sleep. Returns the number of messages that the peer has left, or
/// is about to leave, since the last call. None: the peer of this connection never leaves any.
///
/// ```
/// let socket = exs::Socket::stream()?;
/// assert_eq!(exs::__ffi::polled(&socket, None), Some(0), "there is no peer yet");
/// # Ok::<(), exs::Error>(())
/// ```
pub fn polled(socket: &Socket, end: Option<BorrowedFd<'_>>) -> Option<u32> {
    socket.polled(end)
}

/// What can make a descriptor of the program's readable when data come, without a thread of the
/// library.
///
/// ```
/// use exs::__ffi::RungBy;
/// let socket = exs::Socket::stream()?;
/// assert!(matches!(exs::__ffi::rung_by(&socket), RungBy::Unknown), "there is no connection");
/// # Ok::<(), exs::Error>(())
/// ```
pub fn rung_by(socket: &Socket) -> RungBy {
    socket.rung_by()
}

/// The program polls the connection no longer, by [`rung_by`] or [`polled`]: a thread of the library
/// looks after it. The caller holds no lock that a [`Watch`] takes.
pub fn end_polling(socket: &Socket) {
    socket.end_polling();
}

/// The same for a connection that has ended, or whose peer sends nothing any more. The caller may hold
/// locks.
pub fn end_polling_at_end(socket: &Socket) {
    socket.end_polling_at_end();
}

/// Sends the buffer's window, if that completes at once and needs no event: few bytes, and nothing
/// before them. Otherwise returns false, and has sent nothing.
///
/// ```
/// let socket = exs::Socket::stream()?;
/// assert!(!exs::__ffi::send_at_once(&socket, &b"no connection".to_vec().into()));
/// # Ok::<(), exs::Error>(())
/// ```
pub fn send_at_once(socket: &Socket, buffer: &Buffer) -> bool {
    // The thread that calls may sleep next, and rings no doorbell after that.
    socket.sends_at_once(&buffer.io_vec())
}

/// Receives into the buffer's window what has come, for a call that does not wait, if that completes at
/// once and needs no event. With `end`, the program's sleep is announced as by [`polled`].
///
/// ```
/// use exs::__ffi::RecvAtOnce;
/// let socket = exs::Socket::stream()?;
/// let outcome = exs::__ffi::recv_at_once(&socket, &vec![0; 8].into(), None);
/// assert!(matches!(outcome, RecvAtOnce::Declined), "there is no connection");
/// # Ok::<(), exs::Error>(())
/// ```
pub fn recv_at_once(socket: &Socket, buffer: &Buffer, end: Option<BorrowedFd<'_>>) -> RecvAtOnce {
    socket.recv_at_once(buffer, end)
}

/// True if [`recv_passing`] may have what it takes: threads of several connections block.
pub fn may_pass(socket: &Socket) -> bool {
    socket.may_pass()
}

/// Waits for a small message, for a call that blocks, and receives it into the buffer's window without an
/// operation. Returns the number of bytes; 0: a receive must be posted.
///
/// # Errors
/// [`Error::Interrupted`] if a signal handler ran while the thread slept. Those of a receive.
pub fn recv_passing(socket: &Socket, buffer: &Buffer) -> Result<usize, Error> {
    socket.pass_exactly(buffer)
}

/// A call on the socket found nothing, and does not wait: most likely the program is about to
/// wait for a descriptor. EXS moves data by a thread of its own while programs do.
pub fn found_nothing(socket: &Socket) {
    socket.found_nothing();
}

/// The descriptor of a queue whose user is no program, but a thread of a library.
pub fn inner_fd(queue: &EventQueue) -> RawFd {
    queue.core().fd(FdUse::Library).as_raw_fd()
}

/// True if threads wait for events of this queue.
pub fn is_watched(queue: &EventQueue) -> bool {
    queue.core().is_watched()
}

/// True if a thread attends the connection of this socket, or has left it a moment ago, or borrows it:
/// for tests. It ends no loan.
#[cfg(any(test, feature = "internals"))]
pub fn is_attended(socket: &Socket) -> bool {
    let home = socket.handle().home();
    home.is_some_and(|(context, id)| context.look(|engine| engine.sockets.is_attended(id)))
}

/// True if the connection of this socket is lent to a thread that waits there for a message: for tests.
/// It ends no loan.
#[cfg(any(test, feature = "internals"))]
pub fn is_waiting_on_loan(socket: &Socket) -> bool {
    socket.handle().loan().is_read()
}

/// True if a thread has waited there for so long that the engine does not look after the loan.
#[cfg(any(test, feature = "internals"))]
pub fn is_dormant_loan(socket: &Socket) -> bool {
    socket.handle().loan().is_dormant()
}

/// A queue of the calling thread's, for one operation of the socket that the thread waits for. To
/// be given back by [`keep_private_queue`].
///
/// # Errors
/// What the kernel says, if the thread cannot wait.
pub fn private_queue(socket: &Socket) -> Result<EventQueue, Error> {
    super::private_queues::queue_for(socket)
}

/// A queue of the calling thread's for an accept of the listener that the thread waits for, and the home of
/// the connection, for [`accept_at_home`]. To be given back by [`keep_private_queue`].
///
/// # Errors
/// What the kernel says, if the thread cannot wait.
pub fn private_queue_for_accept(listener: &Socket) -> Result<(EventQueue, Shard), Error> {
    super::private_queues::queue_for_accept(listener)
}

/// Keeps a queue that [`private_queue`] has given for the thread's next call.
pub fn keep_private_queue(queue: EventQueue) {
    super::private_queues::keep(queue);
}

/// A queue for connects of sockets whose descriptors the program polls. So the connections are in no
/// link group, since those have no descriptors of their own.
///
/// # Errors
/// As [`EventQueue::with_options`].
pub fn queue_for_descriptors(options: &QueueOptions) -> Result<EventQueue, Error> {
    EventQueue::for_descriptors(options)
}

/// A descriptor of the queue that is readable while events wait, and at no other time. A thread of
/// the library moves data for it.
pub fn shown_fd(queue: &EventQueue) -> RawFd {
    queue.core().context().rely();
    queue.core().fd(FdUse::Program).as_raw_fd()
}

/// Where sockets live that have no connection.
pub const FIRST_SHARD: Shard = Shard::FIRST;

/// Accepts a connection, whose home this shard is.
///
/// # Errors
/// As [`Socket::accept`].
pub fn accept_at_home(
    socket: &Socket,
    queue: &EventQueue,
    token: Token,
    home: Shard,
) -> Result<(), Error> {
    socket.accept_in(queue, token, home)
}

/// Accepts a connection, for a caller that looks for it and does not wait: its program most likely polls
/// descriptors, also that of the connection, which is in no link group. The shards of the process take turns
/// in having such connections.
///
/// # Errors
/// As [`Socket::accept`].
pub fn accept_in_turn(socket: &Socket, queue: &EventQueue, token: Token) -> Result<(), Error> {
    let queue = queue.for_connections(ServedBy::Poller);
    socket.accept_in(&queue, token, shard_of_next_accept().home)
}

/// The shard in which a socket lives.
pub fn shard_of(socket: &Socket) -> Shard {
    socket.handle().shard()
}

/// A place in a queue, booked for an event that the caller makes. Dropping it gives the
/// place back.
///
/// ```
/// use exs::{EventKind, EventQueue, Token, __ffi::Place};
/// let queue = EventQueue::new(1)?;
/// let place = Place::book(&queue)?;
/// assert!(Place::book(&queue).is_err(), "it is full");
/// place.complete(Token(7), EventKind::Poll, Ok(exs::Readiness::default()))?;
/// assert_eq!(queue.next()?.token(), Token(7));
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug)]
pub struct Place {
    queue: EventQueue,
    booked: bool,
}

impl Place {
    /// Books one.
    ///
    /// # Errors
    /// [`Error::WouldBlock`].
    pub fn book(queue: &EventQueue) -> Result<Place, Error> {
        queue.core().reserve()?;
        Ok(Place { queue: queue.clone(), booked: true })
    }

    /// Puts the event there.
    ///
    /// # Errors
    /// If EXS could not be started, and so nothing be booked.
    pub fn complete(
        mut self,
        token: Token,
        kind: EventKind,
        result: Result<Readiness, Error>,
    ) -> Result<(), Error> {
        let ticket = self.queue.ticket(token, 0);
        let mut event = RawEvent::new(ticket.token, kind);
        event.tag = ticket.tag;
        match result {
            Ok(ready) => event.readiness = ready,
            Err(e) => event.error = Some(Box::new(e)),
        }
        let core: &Arc<QueueCore> = ticket.queue;
        core.context().deliver(core, event);
        self.booked = false;
        Ok(())
    }

    /// Closes a socket; the event of that comes here.
    ///
    /// # Errors
    /// It is closed already.
    pub fn close(mut self, socket: &Socket, token: Token) -> Result<(), Error> {
        socket.close_booked(&self.queue, token)?;
        self.booked = false;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.booked {
            self.queue.core().unreserve(1);
        }
    }
}
