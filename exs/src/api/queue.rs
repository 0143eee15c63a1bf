//! Event queues.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "tokio")]
use super::{Driven, LoopLook};
use super::{Event, Socket};
#[cfg(feature = "futures")]
use crate::progress::Workers;
use crate::progress::{
    Awaited, Error, QueueCore, QueueOptions, QueueUse, ServedBy, Shard, Ticket, WaitPolicy, Waited,
    Want, first_shard, note_own_shard,
};

use super::Token;

/// Where operations leave their events. Cloning gives another handle to the same
/// queue; several threads may dequeue.
///
/// ```
/// use exs::{EventQueue, QueueOptions, Token, WaitPolicy};
/// use std::time::Duration;
/// # use exs::Socket;
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::stream()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// # let (server, _) = listener.blocking().accept()?;
/// let queue = EventQueue::with_options(&QueueOptions::default().with_depth(16).with_wait(WaitPolicy::Notify))?;
/// assert!(queue.dequeue(8, Some(Duration::ZERO))?.is_empty());
///
/// client.send(&queue, Token(1), *b"one")?;
/// client.send(&queue, Token(2), *b"two")?;
/// let events = queue.dequeue_at_least(2, 8, Some(Duration::from_secs(10)))?;
/// assert_eq!(events.iter().map(|e| e.token().0).collect::<Vec<_>>(), [1, 2]);
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct EventQueue {
    core: Arc<QueueCore>,
    /// The raw layer's name for what is posted by this handle.
    tag: [u64; 2],
    /// What serves the connections that begin by this handle.
    served_by: ServedBy,
}

impl EventQueue {
    fn of(core: Arc<QueueCore>) -> EventQueue {
        EventQueue { core, tag: [0; 2], served_by: ServedBy::QueueUse }
    }

    /// A queue for `depth` operations: those in flight and those whose events were
    /// not yet dequeued together. A post beyond is refused with
    /// [`Error::WouldBlock`].
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0; what the kernel says if EXS cannot start.
    pub fn new(depth: usize) -> Result<EventQueue, Error> {
        EventQueue::with_options(&QueueOptions::default().with_depth(depth))
    }

    /// A queue with a wait policy.
    ///
    /// # Errors
    /// As [`EventQueue::new`].
    pub fn with_options(opts: &QueueOptions) -> Result<EventQueue, Error> {
        first_shard()?;
        QueueCore::new(opts).map(EventQueue::of)
    }

    /// A queue for the calls of one thread that block.
    pub(super) fn for_blocking_calls(opts: &QueueOptions) -> Result<EventQueue, Error> {
        first_shard()?;
        QueueCore::of_use(opts, QueueUse::Blocking).map(EventQueue::of)
    }

    /// A queue for connects of sockets whose descriptors the program polls.
    pub(super) fn for_descriptors(opts: &QueueOptions) -> Result<EventQueue, Error> {
        first_shard()?;
        QueueCore::of_use(opts, QueueUse::Descriptors).map(EventQueue::of)
    }

    /// A queue for tasks, for which the driver of their runtime waits.
    #[cfg(feature = "futures")]
    pub(crate) fn for_tasks(opts: &QueueOptions, run_by: Workers) -> Result<EventQueue, Error> {
        first_shard()?;
        QueueCore::of_use(opts, QueueUse::Tasks(run_by)).map(EventQueue::of)
    }

    /// Waits for at least one event and takes up to `max`. It returns none if the time is up. A
    /// timeout of `None` waits for ever, and one of zero does not wait. Events come in the order in
    /// which operations end.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), *b"hello")?;
    /// let events = queue.dequeue(16, Some(Duration::from_secs(10)))?;
    /// assert_eq!((events.len(), events[0].token()), (1, Token(1)));
    /// assert!(queue.dequeue(16, Some(Duration::ZERO))?.is_empty());
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran meanwhile.
    pub fn dequeue(&self, max: usize, timeout: Option<Duration>) -> Result<Vec<Event>, Error> {
        self.dequeue_at_least(1, max, timeout)
    }

    /// Waits for at least `min` events and takes up to `max`. It returns fewer than `min` if the
    /// time is up. ES-API writes `min` as a negative count.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), *b"one")?;
    /// client.send(&queue, Token(2), *b"two")?;
    /// let events = queue.dequeue_at_least(2, 16, None)?;
    /// assert_eq!(events.len(), 2);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`EventQueue::dequeue`]; [`Error::Invalid`] if `min` is more than `max` or
    /// than the depth of the queue, as such a wait could not end.
    pub fn dequeue_at_least(
        &self,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<Vec<Event>, Error> {
        let mut out = Vec::new();
        self.dequeue_into(&mut out, min, max, timeout)?;
        Ok(out)
    }

    /// As [`EventQueue::dequeue_at_least`], appending to `out`; returns how many.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let mut events = Vec::with_capacity(16); // to be used again and again
    /// client.send(&queue, Token(1), *b"hello")?;
    /// queue.dequeue_into(&mut events, 1, 16, None)?;
    /// for event in events.drain(..) {
    ///     event.into_completion()?;
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`EventQueue::dequeue_at_least`].
    pub fn dequeue_into(
        &self,
        out: &mut Vec<Event>,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, Error> {
        self.dequeue_noting(out, min, max, timeout, false)
    }

    /// As `dequeue_into`; with `exact` no signal that comes during the call is missed.
    pub(super) fn dequeue_noting(
        &self,
        out: &mut Vec<Event>,
        min: usize,
        max: usize,
        timeout: Option<Duration>,
        exact: bool,
    ) -> Result<usize, Error> {
        if min > max || min > self.core.depth() {
            return Err(Error::invalid(format!(
                "cannot wait for {min} events: at most {max} were asked for, and the queue holds {}",
                self.core.depth()
            )));
        }
        let context = self.core.context();
        if self.core.is_free() {
            note_own_shard(self.core.shard());
        }
        context.nudge(&self.core);
        let mut begun = None;
        loop {
            if self.core.len() < min {
                let left = match timeout {
                    // By the context's clock: the kernel's costs as much as a message.
                    Some(t) if !t.is_zero() => {
                        let now = context.about_now();
                        Some(t.saturating_sub(now.since(*begun.get_or_insert(now))))
                    }
                    forever_or_none => forever_or_none,
                };
                let want = &mut Want { min, max, out };
                match context.wait(&self.core, want, left, exact)? {
                    Waited::Got(n) => return Ok(n),
                    Waited::There => {}
                    Waited::TooFew => return Ok(self.core.take(max, out)),
                }
            }
            let n = self.core.take_at_least(min, max, out);
            if timeout == Some(Duration::ZERO) {
                context.note_dequeued(&self.core);
            }
            // Another thread may have been faster.
            if n > 0 || min == 0 {
                return Ok(n);
            }
        }
    }

    /// Takes the events that are there, and appends them to `out`. It moves no data.
    #[cfg(feature = "futures")]
    pub(crate) fn take_into(&self, out: &mut Vec<Event>, max: usize) {
        self.core.take(max, out);
    }

    /// As a dequeue that does not wait, for a program that learns of the descriptor's readiness once
    /// (EPOLLET), at any time. So it always asks the kernel before it announces a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_into(&self, out: &mut Vec<Event>, max: usize) -> Driven {
        let context = self.core.context();
        context.nudge(&self.core);
        let mut driven = Driven::Found { asked: false };
        if self.core.is_empty() {
            driven = context.drive_once(&self.core, 1);
        }
        if matches!(driven, Driven::Found { .. }) {
            self.core.take(max, out);
        }
        driven
    }

    /// The same for a program that looks for events before it sleeps. None: the look goes on, and the
    /// program must come again behind its other work.
    #[cfg(feature = "tokio")]
    pub(crate) fn look_into(
        &self,
        out: &mut Vec<Event>,
        max: usize,
        look: &mut LoopLook,
    ) -> Option<Driven> {
        let context = self.core.context();
        context.nudge(&self.core);
        let mut driven = Some(Driven::Found { asked: false });
        if self.core.is_empty() {
            driven = context.look_once(&self.core, &mut Want { min: 1, max, out }, look);
        }
        if matches!(driven, Some(Driven::Found { .. })) {
            self.core.take(max - out.len(), out);
        }
        driven
    }

    /// Sends what tasks have left in link groups ([`TaskSend::Kept`]).
    #[cfg(feature = "tokio")]
    pub(crate) fn write_kept(&self) {
        self.core.context().call(|engine, now| engine.write_kept(now));
    }

    /// Announces that the program is about to wait for the queue's descriptor, as a dequeue that
    /// finds nothing does. False if there is something to do first: the program must dequeue again.
    #[cfg(feature = "tokio")]
    pub(crate) fn announce_sleep(&self) -> bool {
        self.core.is_empty() && self.core.context().announce_sleep()
    }

    /// Begins a look for events before a sleep. None: such looks have not paid lately, and the program
    /// must sleep at once.
    #[cfg(feature = "tokio")]
    pub(crate) fn begin_look(&self) -> Option<LoopLook> {
        self.core.context().begin_look(&self.core)
    }

    /// Waits for one event.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), *b"hello")?;
    /// let event = queue.next()?;
    /// assert_eq!((event.token(), event.result()?), (Token(1), 5));
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`EventQueue::dequeue`].
    pub fn next(&self) -> Result<Event, Error> {
        let mut out = Vec::with_capacity(1);
        loop {
            self.dequeue_into(&mut out, 1, 1, None)?;
            if let Some(event) = out.pop() {
                return Ok(event);
            }
        }
    }

    /// As `next`, for the one operation of a call that blocks: the thread may wait for the socket's
    /// connection itself.
    pub(super) fn next_of(&self, socket: &Socket) -> Result<Event, Error> {
        self.wait_for(socket, None, false)?;
        self.core.pop().map_or_else(|| self.next(), |raw| Ok(raw.into()))
    }

    /// Waits for the event of such an operation, if the thread can wait for the connection itself.
    /// `exact`: no signal that comes during the call is missed.
    pub(super) fn wait_for(
        &self,
        socket: &Socket,
        timeout: Option<Duration>,
        exact: bool,
    ) -> Result<Awaited, Error> {
        let context = self.core.context();
        match socket.handle().id_in(context) {
            Some(id) if self.core.is_empty() => {
                context.wait_for_connection(&self.core, id, timeout, exact)
            }
            _ => Ok(Awaited::CannotAttend),
        }
    }

    /// Sets how threads wait.
    pub fn set_wait_policy(&self, policy: WaitPolicy) {
        self.core.set_wait_policy(policy);
    }

    /// Events that can be dequeued without waiting.
    pub fn len(&self) -> usize {
        self.core.len()
    }

    /// True if no event waits.
    pub fn is_empty(&self) -> bool {
        self.core.is_empty()
    }

    /// Operations in flight and events not yet dequeued.
    pub fn outstanding(&self) -> usize {
        self.core.outstanding()
    }

    /// Operations whose events have not come yet.
    pub fn in_flight(&self) -> usize {
        self.core.in_flight()
    }

    /// Changes how many operations may be outstanding. Those that are beyond a smaller
    /// depth stay; no more are taken until they are fewer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a depth of 0.
    pub fn set_depth(&self, depth: usize) -> Result<(), Error> {
        self.core.set_depth(depth)
    }

    /// Operations that may be outstanding.
    pub fn depth(&self) -> usize {
        self.core.depth()
    }

    /// The shard that it belongs to. What threads with queues of different shards do does not
    /// touch the same memory or locks, so each thread wants a queue with a shard of its own. A
    /// thread with several queues wants them in one shard
    /// ([`QueueOptions::with_shard`](crate::QueueOptions::with_shard)).
    ///
    /// A connection lives in the shard of the queue with which it was accepted or connected. If one of
    /// its first operations names a queue of another shard, the connection goes there, and stays. So
    /// one thread may accept connections, exchange some messages with the peers, and then give each
    /// to the thread that serves it. A connection also stays after a call that blocks on it, or after 64
    /// operations in the shard where it is. It works in either case, but with a queue of another shard
    /// each message takes longer. Connections over RDMA devices always stay.
    ///
    /// EXS extension.
    ///
    /// ```
    /// use exs::{EventQueue, QueueOptions};
    /// let sends = EventQueue::new(16)?;
    /// let options = QueueOptions::default().with_shard(Some(sends.shard()));
    /// let receives = EventQueue::with_options(&options)?; // of the same thread
    /// assert_eq!(receives.shard(), sends.shard());
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn shard(&self) -> Shard {
        self.core.shard()
    }

    /// A handle to the same queue, whose operations carry this name.
    pub(super) fn tagged(&self, tag: [u64; 2]) -> EventQueue {
        EventQueue { tag, ..self.clone() }
    }

    /// A handle to the same queue. It says what serves the connections that begin by it.
    pub(super) fn for_connections(&self, served_by: ServedBy) -> EventQueue {
        EventQueue { served_by, ..self.clone() }
    }

    /// The descriptor, for the program: it waits there from now on.
    fn program_fd(&self) -> BorrowedFd<'_> {
        self.core.context().program_fd(&self.core)
    }

    /// The descriptors that the queue's descriptor is a set of, for a program that waits for each of
    /// them instead, and dequeues when one is readable.
    ///
    /// # Errors
    /// The kernel's, if the process has no descriptor left.
    #[cfg(feature = "tokio")]
    pub(crate) fn drive_fds(&self) -> std::io::Result<[std::os::fd::OwnedFd; 3]> {
        self.core.context().program_fds(&self.core)
    }

    pub(super) fn core(&self) -> &Arc<QueueCore> {
        &self.core
    }

    /// Where the event of an operation goes, on a socket with this user data. The raw layer's
    /// name takes its place: the sockets of the C library have no user data.
    pub(super) fn ticket(&self, token: Token, user_data: u64) -> Ticket<'_> {
        let tag = if self.tag == [0; 2] { [user_data, 0] } else { self.tag };
        Ticket { queue: &self.core, token: token.0, tag, served_by: self.served_by }
    }
}

/// The descriptor is readable (level) while events wait, and while the queue's shard has something
/// to do that may bring events. So a queue can sit in epoll, mio or tokio: when the descriptor is
/// readable, dequeue with a timeout of zero until nothing comes. These calls move the data. Do not
/// read from the descriptor or close it.
///
/// The dequeue that finds nothing is the last step before the sleep. A program that posts after a dequeue
/// which found events, and sleeps then, may learn of an event some milliseconds late.
///
/// A program that does not come for a while loses nothing: a thread of the library moves its data
/// then.
impl AsRawFd for EventQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.program_fd().as_raw_fd()
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program_fd()
    }
}
