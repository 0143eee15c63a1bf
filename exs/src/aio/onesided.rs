//! One-sided operations as futures.

use super::op::kinds::{OldValue, OneSided, Revoke};
use super::{AsyncSocket, IoBuf, IoBufMut, Operation};
use crate::api::{Export, RemoteBuffer};

/// The peer's memory, without its program.
impl AsyncSocket {
    /// RDMA READ: fills the memory from the peer's at `offset`. EXS extension.
    ///
    /// # Errors
    /// As [`exs::Socket::read`](crate::Socket::read).
    ///
    /// # Cancel safety
    /// A READ may be dropped at any time.
    pub fn read<B: IoBufMut + Unpin>(
        &self,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: B,
    ) -> Operation<OneSided<B>> {
        let (buffer, rest) = buffer.into_buffer();
        let post = |queue: &_, token| self.get_ref().read(queue, token, remote, offset, buffer);
        self.moving(post, rest, OneSided, |error, back| (Err(error), back))
    }

    /// RDMA WRITE: copies the memory into the peer's at `offset`. The result says that the bytes are
    /// there. EXS extension.
    ///
    /// # Errors
    /// As [`exs::Socket::write`](crate::Socket::write).
    ///
    /// # Cancel safety
    /// If the future is dropped, any part of the bytes may have been written.
    pub fn write<B: IoBuf + Unpin>(
        &self,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: B,
    ) -> Operation<OneSided<B>> {
        let (buffer, rest) = buffer.into_buffer();
        let post = |queue: &_, token| self.get_ref().write(queue, token, remote, offset, buffer);
        self.moving(post, rest, OneSided, |error, back| (Err(error), back))
    }

    /// Adds `add` to the word of 8 bytes at `offset` of the peer's memory, in one step. The result is
    /// the value that was there before. EXS extension.
    ///
    /// [`exs::Socket::fetch_add`](crate::Socket::fetch_add) says what is atomic with what.
    ///
    /// ```
    /// use exs::aio::{AsyncSocket, block_on};
    /// use exs::{MemoryRegion, Rights};
    /// # block_on(async {
    /// # let listener = AsyncSocket::stream()?;
    /// # listener.bind("127.0.0.1:0".parse().unwrap())?;
    /// # listener.listen(1)?;
    /// # let client = AsyncSocket::stream()?;
    /// # client.connect(listener.local_addr()?).await?;
    /// # let (server, _) = listener.accept().await?;
    /// let memory = MemoryRegion::new(8)?;
    /// let export = client.get_ref().export(memory.buffer(..)?, Rights::ATOMIC, None)?;
    /// let counter = export.descriptor(); // the peer gets it by a message of the program's own
    /// let adds = [server.fetch_add(&counter, 0, 5), server.fetch_add(&counter, 0, 1)];
    /// let mut old = Vec::new();
    /// for add in adds {
    ///     old.push(add.await?);
    /// }
    /// assert_eq!(old, [0, 5]);
    /// # Ok::<(), exs::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The future has the errors of [`exs::Socket::fetch_add`](crate::Socket::fetch_add). Nothing was
    /// sent after EINVAL (the word, or the rights of `remote`), EOPNOTSUPP (either side's device has no
    /// atomic operations) and ENOTCONN. EACCES says that the peer does not allow the operation. The
    /// operation was not done, and the connection has ended. After another error of the connection
    /// (ECONNRESET, ETIMEDOUT) the operation may have been done.
    ///
    /// # Cancel safety
    /// If the future is dropped, the operation was done once or not at all, and the program does not
    /// learn which. [`Operation::cancel`] loses nothing: the future then has the old value, or an
    /// error that [is a cancellation](crate::Error::is_cancelled) and says that the operation was not done.
    pub fn fetch_add(&self, remote: &RemoteBuffer, offset: u64, add: u64) -> Operation<OldValue> {
        self.bare(OldValue, |queue, token| {
            self.get_ref().fetch_add(queue, token, remote, offset, add)
        })
    }

    /// Stores `new` in the word of 8 bytes at `offset` of the peer's memory if the word is
    /// `expected`, in one step. The result is the value that was found: `new` was stored if this is
    /// `expected`. EXS extension.
    ///
    /// ```
    /// use exs::aio::{AsyncSocket, block_on};
    /// use exs::{MemoryRegion, Rights};
    /// # block_on(async {
    /// # let listener = AsyncSocket::stream()?;
    /// # listener.bind("127.0.0.1:0".parse().unwrap())?;
    /// # listener.listen(1)?;
    /// # let client = AsyncSocket::stream()?;
    /// # client.connect(listener.local_addr()?).await?;
    /// # let (server, _) = listener.accept().await?;
    /// let memory = MemoryRegion::new(8)?;
    /// let export = client.get_ref().export(memory.buffer(..)?, Rights::ATOMIC, None)?;
    /// let lock = export.descriptor(); // the peer gets it by a message of the program's own
    /// assert_eq!(server.compare_swap(&lock, 0, 0, 7).await?, 0, "taken");
    /// assert_eq!(server.compare_swap(&lock, 0, 0, 8).await?, 7, "held by another");
    /// # Ok::<(), exs::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`AsyncSocket::fetch_add`].
    ///
    /// # Cancel safety
    /// As [`AsyncSocket::fetch_add`]. A lock whose future was dropped may be held: the program can find
    /// out by a READ of the word, or by another compare-and-swap, if each task stores a number of
    /// its own.
    pub fn compare_swap(
        &self,
        remote: &RemoteBuffer,
        offset: u64,
        expected: u64,
        new: u64,
    ) -> Operation<OldValue> {
        self.bare(OldValue, |queue, token| {
            self.get_ref().compare_swap(queue, token, remote, offset, expected, new)
        })
    }

    /// Takes the memory of an export of this socket back: the peer can no longer reach it. EXS
    /// extension.
    ///
    /// # Errors
    /// As [`Export::revoke`].
    ///
    /// # Cancel safety
    /// A revoke goes on without its future, and the memory is dropped.
    pub fn revoke(&self, export: Export) -> Operation<Revoke> {
        match self.reactor().post(|queue, token| export.revoke(queue, token)) {
            Ok(slot) => Operation::posted(self, slot, Revoke),
            Err(refused) => Operation::ready(Err(refused.error)),
        }
    }
}
