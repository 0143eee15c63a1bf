//! Several sends or receives in one call.

use super::{EventQueue, Socket, Token};
use crate::mem::{Buffer, MemError};
use crate::progress::{Error, Posting, RecvFlags};

impl Posting for (Token, Buffer) {
    #[inline]
    fn name(&self, usual: [u64; 2]) -> (u64, [u64; 2]) {
        (self.0.0, usual)
    }

    #[inline]
    fn buffer(&self) -> &Buffer {
        &self.1
    }

    #[inline]
    fn into_buffer(self) -> Buffer {
        self.1
    }

    fn again((token, _): (u64, [u64; 2]), buffer: Buffer) -> (Token, Buffer) {
        (Token(token), buffer)
    }
}

/// An operation of a batch whose event carries a tag of its own: for the C library.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "the C library makes it")]
pub struct Tagged {
    /// The program's name for it.
    pub token: Token,
    /// The second name ([`tagged`](super::raw::tagged)).
    pub tag: [u64; 2],
    /// The memory.
    pub buffer: Buffer,
}

impl Posting for Tagged {
    #[inline]
    fn name(&self, _: [u64; 2]) -> (u64, [u64; 2]) {
        (self.token.0, self.tag)
    }

    #[inline]
    fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    #[inline]
    fn into_buffer(self) -> Buffer {
        self.buffer
    }

    fn again((token, tag): (u64, [u64; 2]), buffer: Buffer) -> Tagged {
        Tagged { token: Token(token), tag, buffer }
    }
}

/// As [`Socket::send_batch`], for operations with tags of their own.
///
/// # Errors
/// As [`Socket::send_batch`].
pub fn send_batch(
    socket: &Socket,
    queue: &EventQueue,
    batch: &mut Vec<Tagged>,
) -> Result<usize, Error> {
    socket.send_each(queue, batch)
}

/// As [`Socket::recv_batch`], for operations with tags of their own.
///
/// # Errors
/// As [`Socket::recv_batch`].
pub fn recv_batch(
    socket: &Socket,
    queue: &EventQueue,
    batch: &mut Vec<Tagged>,
    flags: RecvFlags,
) -> Result<usize, Error> {
    socket.recv_each(queue, batch, flags)
}

/// Batches: what a program does that moves many small messages.
impl Socket {
    /// Posts several sends, as [`Socket::send`] one after the other, and takes those that were
    /// posted out of `batch`. Each has an event of its own. Returns how many were posted: fewer than
    /// given if the queue has no more room, or if one is refused. The next call gives the reason.
    ///
    /// The library does once for a batch what it does once for a call: it takes its lock, looks up
    /// the socket, and wakes the peer. On a stream, sends of at most 1 KiB that follow each other
    /// also travel together. With 64 bytes each, that is several times as fast as a call for each.
    ///
    /// EXS extension.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let mut batch: Vec<(Token, Buffer)> = vec![(Token(1), (*b"one").into()), (Token(2), (*b"two").into())];
    /// assert_eq!(client.send_batch(&queue, &mut batch)?, 2);
    /// assert!(batch.is_empty()); // to be used again
    /// let events = queue.dequeue_at_least(2, 16, None)?;
    /// assert_eq!((events[0].token(), events[1].token()), (Token(1), Token(2)));
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::send`], if not even the first was posted. `batch` is as it was.
    pub fn send_batch(
        &self,
        queue: &EventQueue,
        batch: &mut Vec<(Token, Buffer)>,
    ) -> Result<usize, Error> {
        self.send_each(queue, batch)
    }

    /// Posts several receives, as [`Socket::recv`] one after the other, and takes those that were
    /// posted out of `batch`. Otherwise as [`Socket::send_batch`].
    ///
    /// EXS extension.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let mut batch: Vec<(Token, Buffer)> =
    ///     (0..2).map(|n| (Token(n), vec![0; 3].into())).collect();
    /// assert_eq!(server.recv_batch(&queue, &mut batch, RecvFlags::WAITALL)?, 2);
    /// client.blocking().send_all(b"onetwo")?;
    /// let mut events = queue.dequeue_at_least(2, 16, None)?;
    /// assert_eq!(&events[1].take_buffer().unwrap()[..], b"two");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::recv`], if not even the first was posted. `batch` is as it was.
    pub fn recv_batch(
        &self,
        queue: &EventQueue,
        batch: &mut Vec<(Token, Buffer)>,
        flags: RecvFlags,
    ) -> Result<usize, Error> {
        self.recv_each(queue, batch, flags)
    }

    pub(super) fn send_each<P: Posting>(
        &self,
        queue: &EventQueue,
        batch: &mut Vec<P>,
    ) -> Result<usize, Error> {
        post_batch(queue, batch, |batch| {
            let ticket = self.ticket(queue, Token(0));
            self.handle().post(queue.core(), |e, id, call| e.post_sends(id, &ticket, batch, call))
        })
    }

    pub(super) fn recv_each<P: Posting>(
        &self,
        queue: &EventQueue,
        batch: &mut Vec<P>,
        flags: RecvFlags,
    ) -> Result<usize, Error> {
        post_batch(queue, batch, |batch| {
            let ticket = self.ticket(queue, Token(0));
            self.handle()
                .post(queue.core(), |e, id, call| e.post_recvs(id, &ticket, batch, flags, call))
        })
    }
}

/// Books places in the queue for as many of a batch as there is room for, and posts these by `f`.
#[inline]
fn post_batch<P: Posting>(
    queue: &EventQueue,
    batch: &mut Vec<P>,
    f: impl FnOnce((&mut Vec<P>, usize)) -> (usize, Option<Error>),
) -> Result<usize, Error> {
    if batch.is_empty() {
        return Ok(0);
    }
    let usable = batch.iter().take_while(|p| p.buffer().is_mapped()).count();
    if usable == 0 {
        return Err(MemError::Unmapped.into());
    }
    let booked = queue.core().reserve_some(usable)?;
    let (posted, refused) = f((batch, booked));
    if posted < booked {
        queue.core().unreserve(booked - posted);
    }
    match refused {
        Some(error) if posted == 0 => Err(error),
        _ => Ok(posted),
    }
}
