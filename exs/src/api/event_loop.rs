//! Event loops that wait for the descriptors of sockets, and drive the shards of these.

use std::os::fd::{AsRawFd, RawFd};

use super::{Driven, EventQueue, Socket, Token};
use crate::mem::Buffer;
use crate::progress::{Error, LoopId, QueueOptions, ServedBy, Shard, Standing, shard_of_loop};

/// What drives one shard for an event loop of the program's. Its descriptor is readable while the shard
/// has something to do, and the loop then calls [`LoopDriver::drive`].
///
/// ```
/// use exs::__ffi::{LoopDriver, LoopId, FIRST_SHARD};
/// let driver = LoopDriver::new(FIRST_SHARD)?;
/// assert!(driver.drive(LoopId::new(1), false, || false)?, "nothing happens, and the loop may sleep");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug)]
pub struct LoopDriver(EventQueue);

impl LoopDriver {
    /// A driver of this shard.
    ///
    /// # Errors
    /// As [`EventQueue::with_options`].
    pub fn new(shard: Shard) -> Result<LoopDriver, Error> {
        let options = QueueOptions::default().with_depth(1).with_shard(Some(shard));
        EventQueue::with_options(&options).map(LoopDriver)
    }

    /// A thread leaves the loop, and another one may sleep: announces its sleep. If this one `leaves`
    /// something, the descriptor becomes readable.
    pub fn leave(&self, leaves: bool) {
        self.0.core().context().leave_loop(leaves);
    }

    /// Moves data, without waiting, until `found` returns true. Changes of sockets go to
    /// [`Watch::changed_in`](super::raw::Watch::changed_in). Returns true if there is nothing to do: the
    /// descriptor becomes readable when there is. `woken`: it is readable.
    ///
    /// # Errors
    /// The kernel's, of the reactor.
    pub fn drive(
        &self,
        event_loop: LoopId,
        woken: bool,
        found: impl Fn() -> bool,
    ) -> Result<bool, Error> {
        let driven = self.0.core().context().drive_loop(event_loop, woken, found)?;
        Ok(driven == Driven::Asleep)
    }
}

impl AsRawFd for LoopDriver {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A handle to the same queue, for connects of a thread with an event loop that drives shards. So the
/// connections may be in link groups.
///
/// ```
/// let queue = exs::EventQueue::new(1)?;
/// let same = exs::__ffi::in_loop(&queue);
/// assert_eq!(same.shard(), queue.shard());
/// # Ok::<(), exs::Error>(())
/// ```
pub fn in_loop(queue: &EventQueue) -> EventQueue {
    queue.for_connections(ServedBy::EventLoop)
}

/// Accepts a connection, for a thread with an event loop that drives shards, and that serves the
/// connection itself. It will live in the shard of the thread, and may be in a link group.
///
/// # Errors
/// As [`Socket::accept`].
pub fn accept_in_loop(socket: &Socket, queue: &EventQueue, token: Token) -> Result<(), Error> {
    socket.accept_in(&in_loop(queue), token, shard_of_loop())
}

/// As [`send_at_once`](super::raw::send_at_once), for a socket that an event loop serves which drives its
/// shard. The bytes may wait for those of others until the loop sleeps.
///
/// ```
/// let socket = exs::Socket::stream()?;
/// assert!(!exs::__ffi::send_in_loop(&socket, &b"no connection".to_vec().into()));
/// # Ok::<(), exs::Error>(())
/// ```
pub fn send_in_loop(socket: &Socket, buffer: &Buffer) -> bool {
    socket.send_at_once(&buffer.io_vec(), true)
}

/// The program waits for the socket in an event loop that drives shards, and nowhere else.
pub fn note_loop(socket: &Socket) {
    socket.handle().look(|engine, id| engine.note_loop(id));
}

impl Socket {
    /// The state that the watch keeps for an event loop.
    pub(super) fn kept_standing(&self) -> Standing {
        self.handle().look(|engine, id| engine.kept_standing_of(id))
    }
}
