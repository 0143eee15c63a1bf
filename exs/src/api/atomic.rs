//! Atomic operations on words of the peer's memory, and of exported memory.

use super::blocking::TOKEN;
use super::{Blocking, EventQueue, Export, RemoteBuffer, Socket, Token};
use crate::mem::{AtomicOp, Atomics};
use crate::progress::Error;

/// Atomic operations on the peer's memory, without its program.
impl Socket {
    /// Adds `add` to the word of 8 bytes at `offset` of the peer's memory, in one step. The event has
    /// the value that was there before ([`Completion::FetchAdd`](super::Completion::FetchAdd)). The
    /// sum wraps at 2^64, so adding `(-1i64) as u64` subtracts 1.
    ///
    /// RFC 7306 (FetchAdd), IBV_WR_ATOMIC_FETCH_AND_ADD. EXS extension.
    ///
    /// The value is a number in the byte order of the peer's processor. The address must be a multiple
    /// of 8: an export for atomic operations begins at one, so `offset` must be one too.
    ///
    /// Atomic operations of all connections that reach the word through one device are atomic among
    /// each other. Whether the peer's own processor may take part, the peer's device decides
    /// ([`Socket::peer_atomics`]). A WRITE to the word, or [`Export::write_at`], is not atomic with
    /// them. A READ of the word is not either: to add 0 is.
    ///
    /// The operation is done once or not at all, in the order of posting with WRITEs and other
    /// atomic operations of the connection. An event with an error of the connection (ECONNRESET,
    /// ETIMEDOUT) leaves open whether the operation was done, as the connection ended under it. An
    /// operation that was cancelled before it left was not done; later it can no longer be cancelled.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(exs::MemoryRegion::new(8)?.buffer(..)?, Rights::ATOMIC, None)?;
    /// let counter = export.descriptor(); // the peer gets it by a message of the program's own
    /// server.fetch_add(&queue, Token(1), &counter, 0, 5)?;
    /// if let Completion::FetchAdd { old, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(old, 0);
    /// }
    /// assert_eq!(export.load(0)?, 5);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Nothing is sent if the word is outside of the memory, not aligned, or not open to atomic
    /// operations (EINVAL); if this side's device or the peer's has none, or the peer's EXS is older
    /// (EOPNOTSUPP); if the socket is not connected; or [`Error::WouldBlock`]. A peer that no longer
    /// allows it ends the connection: the event has EACCES, those of other operations ECONNRESET.
    pub fn fetch_add(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        add: u64,
    ) -> Result<(), Error> {
        self.post_atomic(queue, token, (remote, offset), AtomicOp::FetchAdd(add))
    }

    /// Stores `new` in the word of 8 bytes at `offset` of the peer's memory if the word is
    /// `expected`, in one step. The event has the value that was found
    /// ([`Completion::CompareSwap`](super::Completion::CompareSwap)): `new` was stored if this is
    /// `expected`.
    ///
    /// RFC 7306 (CmpSwap), IBV_WR_ATOMIC_CMP_AND_SWP. EXS extension. Otherwise as
    /// [`Socket::fetch_add`].
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(exs::MemoryRegion::new(8)?.buffer(..)?, Rights::ATOMIC, None)?;
    /// let lock = export.descriptor(); // the peer gets it by a message of the program's own
    /// server.compare_swap(&queue, Token(1), &lock, 0, 0, 1)?;
    /// if let Completion::CompareSwap { old, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(old, 0, "the lock was free, and is the server's now");
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::fetch_add`].
    pub fn compare_swap(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<(), Error> {
        let op = AtomicOp::CompareSwap { expected, new };
        self.post_atomic(queue, token, (remote, offset), op)
    }

    fn post_atomic(
        &self,
        queue: &EventQueue,
        token: Token,
        (remote, offset): (&RemoteBuffer, u64),
        op: AtomicOp,
    ) -> Result<(), Error> {
        let word = remote.word(offset)?;
        self.post_bare(queue, || {
            let ticket = self.ticket(queue, token);
            self.handle().post(queue.core(), |e, id, _| e.post_atomic(id, &ticket, word, op))
        })
    }

    /// What the device of this connection executes the peer's atomic operations with, on memory
    /// exported here. [`Atomics::None`]: it executes none, or the socket is not connected. With
    /// [`Atomics::Host`], [`Export::fetch_add`] and its relatives work.
    ///
    /// EXS extension.
    pub fn atomics(&self) -> Atomics {
        self.handle().call(|e, id, _| e.atomics_of(id))
    }

    /// What the peer's device executes this side's atomic operations with. [`Atomics::None`]:
    /// [`Socket::fetch_add`] and [`Socket::compare_swap`] refuse.
    ///
    /// EXS extension.
    pub fn peer_atomics(&self) -> Atomics {
        self.handle().call(|e, id, _| e.sockets.peer_atomics(id))
    }
}

/// Atomic operations that wait for their end.
impl Blocking<'_> {
    /// As [`Socket::fetch_add`]. Returns the value that was there before.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(exs::MemoryRegion::new(8)?.buffer(..)?, Rights::ATOMIC, None)?;
    /// let counter = export.descriptor(); // the peer gets it by a message of the program's own
    /// assert_eq!(server.blocking().fetch_add(&counter, 0, 5)?, 0);
    /// assert_eq!(server.blocking().fetch_add(&counter, 0, 1)?, 5);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::fetch_add`], and those of its event.
    pub fn fetch_add(&self, remote: &RemoteBuffer, offset: u64, add: u64) -> Result<u64, Error> {
        self.atomic((remote, offset), AtomicOp::FetchAdd(add))
    }

    /// As [`Socket::compare_swap`]. Returns the value that was found: `new` was stored if this is
    /// `expected`.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(exs::MemoryRegion::new(8)?.buffer(..)?, Rights::ATOMIC, None)?;
    /// let lock = export.descriptor(); // the peer gets it by a message of the program's own
    /// assert_eq!(server.blocking().compare_swap(&lock, 0, 0, 7)?, 0, "taken");
    /// assert_eq!(server.blocking().compare_swap(&lock, 0, 0, 8)?, 7, "held by another");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::fetch_add`], and those of its event.
    pub fn compare_swap(
        &self,
        remote: &RemoteBuffer,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, Error> {
        let op = AtomicOp::CompareSwap { expected, new };
        self.atomic((remote, offset), op)
    }

    fn atomic(&self, place: (&RemoteBuffer, u64), op: AtomicOp) -> Result<u64, Error> {
        let event = self.run(|q| self.socket.post_atomic(q, TOKEN, place, op))?;
        // An event without an error has the value.
        let old = event.old_value().unwrap_or(0);
        event.into_result().map(|_| old)
    }
}

/// Atomic operations of the owner, beside those of the peer. They work where the connection's device
/// executes the peer's as the processor does ([`Atomics::Host`], see [`Socket::atomics`]): over
/// shared memory, the software RNIC and some RDMA devices. Elsewhere they fail with EOPNOTSUPP.
/// There the owner can do them over a connection to itself.
///
/// EXS extension.
impl Export {
    /// The word of 8 bytes at `offset`.
    ///
    /// # Errors
    /// The word is outside or not aligned (EINVAL), the export has not the right
    /// [`Rights::ATOMIC`](super::Rights::ATOMIC) (EINVAL), or the device executes the peer's operations
    /// apart from the processor (EOPNOTSUPP).
    pub fn load(&self, offset: usize) -> Result<u64, Error> {
        self.fetch_add(offset, 0)
    }

    /// Adds to the word at `offset`, and returns what was there before.
    ///
    /// # Errors
    /// As [`Export::load`].
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Error> {
        self.checked_atomic(offset, AtomicOp::FetchAdd(add))
    }

    /// Stores `new` in the word at `offset` if it is `expected`. Returns what was there before.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(exs::MemoryRegion::new(8)?.buffer(..)?, Rights::ATOMIC, None)?;
    /// assert_eq!(export.compare_swap(0, 0, 7)?, 0);
    /// assert_eq!(server.blocking().fetch_add(&export.descriptor(), 0, 1)?, 7);
    /// assert_eq!(export.compare_swap(0, 7, 9)?, 8, "the peer was there before");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Export::load`].
    pub fn compare_swap(&self, offset: usize, expected: u64, new: u64) -> Result<u64, Error> {
        self.checked_atomic(offset, AtomicOp::CompareSwap { expected, new })
    }

    fn checked_atomic(&self, offset: usize, op: AtomicOp) -> Result<u64, Error> {
        self.descriptor().word(offset as u64)?;
        self.atomic(offset, op)
    }
}
