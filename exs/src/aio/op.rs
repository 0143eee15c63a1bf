//! Operations as futures.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::reactor::AioReactor;
use super::slots::token;
use super::{AsyncSocket, IoBuf};
use crate::api::{self, Buffer, Completion, Error, Event, Packet, Readiness};

/// An operation in flight: a future of its result.
///
/// The operation is posted when the method of [`AsyncSocket`] returns, not when the future is polled.
/// So a program can post several receives ahead, and await them in turn. Futures can be awaited in
/// any order, and by another task than the one that has posted them.
///
/// # Cancellation
/// Dropping the future cancels the operation. The memory stays the library's until the operation
/// has ended, and is dropped then. What a dropped receive had received is lost, and so is what a
/// dropped send had not sent. [`Operation::cancel`] loses nothing: the future then ends
/// early, with the bytes that were moved. Operations behind a cancelled operation go on.
///
/// ```
/// # use exs::aio::{AsyncSocket, block_on};
/// # block_on(async {
/// # let listener = AsyncSocket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = AsyncSocket::stream()?;
/// # client.connect(listener.local_addr()?).await?;
/// # let (server, _) = listener.accept().await?;
/// let first = server.recv(vec![0; 5]);
/// let second = server.recv(vec![0; 5]); // posted, too
/// client.send("hello").await.0?;
/// let (result, buffer) = first.await;
/// assert_eq!(&buffer[..result?], b"hello");
///
/// second.cancel();
/// let (result, buffer) = second.await;
/// assert!(result.unwrap_err().is_cancelled());
/// assert_eq!(buffer.len(), 5); // it comes back all the same
/// # Ok::<(), exs::Error>(())
/// # }).unwrap();
/// ```
///
/// # Panics
/// If it is polled after it has returned its result.
#[must_use = "dropping the future cancels the operation"]
pub struct Operation<K: OperationKind> {
    state: FutureState<K>,
}

enum FutureState<K: OperationKind> {
    /// It has ended in the call that posted it, or was refused.
    Ready(K::Output),
    /// It is in flight.
    Posted(InFlight, K),
    /// The future has returned the result.
    Over,
}

/// What an operation returns, and what its future keeps for that. The kinds are in [`kinds`].
pub trait OperationKind: Sealed + Unpin {
    /// The result.
    type Output: Unpin;
    #[doc(hidden)]
    fn finish(self, event: OperationEnd) -> Self::Output;
}

/// The event of an operation, with the reactor of its socket.
#[doc(hidden)]
#[allow(unnameable_types, reason = "programs neither make nor see it")]
pub struct OperationEnd {
    event: Event,
    reactor: Arc<AioReactor>,
}

impl OperationEnd {
    /// The result of an operation that moves bytes: some bytes count more than a failure.
    fn moved(&self) -> Result<usize, Error> {
        match self.event.bytes() {
            0 => self.event.result(),
            n => Ok(n),
        }
    }

    fn buffer<B: IoBuf>(&mut self, rest: B::Rest) -> B {
        let buffer = self.event.take_buffer().unwrap_or_else(|| Buffer::from(Vec::new()));
        B::from_buffer(buffer, rest)
    }
}

/// Seals [`OperationKind`].
#[doc(hidden)]
#[allow(unnameable_types, reason = "programs must not name it")]
pub trait Sealed {}

/// The part of a future that cancels its operation.
struct InFlight {
    socket: api::Socket,
    reactor: Arc<AioReactor>,
    /// None: the event was taken.
    slot: Option<usize>,
}

impl InFlight {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Event> {
        let Some(slot) = self.slot else { return Poll::Pending };
        let mut ended = Poll::Pending;
        if !self.reactor.queue().is_empty() {
            ended = self.reactor.slots().poll(slot, None);
            if ended.is_pending() {
                self.reactor.collect();
            }
        }
        if ended.is_pending() {
            ended = self.reactor.slots().poll(slot, Some(cx));
        }
        ended.map(|event| {
            self.slot = None;
            event
        })
    }

    fn cancel(&self) {
        if let Some(slot) = self.slot {
            self.socket.cancel(token(slot, 0));
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let Some(slot) = self.slot else { return };
        let event = self.reactor.slots().abandon(slot);
        if event.is_none() {
            self.cancel();
        }
    }
}

impl<K: OperationKind> Operation<K> {
    pub(super) fn ready(output: K::Output) -> Operation<K> {
        Operation { state: FutureState::Ready(output) }
    }

    pub(super) fn posted(socket: &AsyncSocket, slot: usize, kind: K) -> Operation<K> {
        let (socket, reactor) = (socket.get_ref().clone(), Arc::clone(socket.reactor()));
        Operation {
            state: FutureState::Posted(InFlight { socket, reactor, slot: Some(slot) }, kind),
        }
    }

    /// Asks the operation to end. The future must still be awaited: its result names the bytes that
    /// were moved until then, or says that the operation was cancelled. An operation that has ended
    /// stays as it is, and a close cannot be cancelled.
    pub fn cancel(&self) {
        if let FutureState::Posted(posted, _) = &self.state {
            posted.cancel();
        }
    }
}

impl<K: OperationKind> Future for Operation<K> {
    type Output = K::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<K::Output> {
        match std::mem::replace(&mut self.state, FutureState::Over) {
            FutureState::Ready(output) => Poll::Ready(output),
            FutureState::Posted(mut posted, kind) => match posted.poll(cx) {
                Poll::Ready(event) => {
                    let reactor = Arc::clone(&posted.reactor);
                    Poll::Ready(kind.finish(OperationEnd { event, reactor }))
                }
                Poll::Pending => {
                    self.state = FutureState::Posted(posted, kind);
                    Poll::Pending
                }
            },
            FutureState::Over => panic!("an operation was polled after it had returned its result"),
        }
    }
}

impl<K: OperationKind> fmt::Debug for Operation<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            FutureState::Ready(_) => "ended",
            FutureState::Posted(..) => "in flight",
            FutureState::Over => "over",
        };
        write!(f, "Operation({state})")
    }
}

/// The kinds of operations.
pub mod kinds {
    use super::*;

    macro_rules! kind {
        ($(#[$doc:meta])* $name:ident => $output:ty, |$ended:ident| $finish:expr) => {
            $(#[$doc])*
            #[derive(Debug)]
            #[non_exhaustive]
            pub struct $name;

            impl Sealed for $name {}

            impl OperationKind for $name {
                type Output = $output;

                fn finish(self, $ended: OperationEnd) -> $output {
                    $finish
                }
            }
        };
        ($(#[$doc:meta])* $name:ident<B>($rest:ty) => $output:ty, |$own:ident, $ended:ident| $finish:expr) => {
            $(#[$doc])*
            pub struct $name<B: IoBuf>(pub(in crate::aio) $rest);

            impl<B: IoBuf> Sealed for $name<B> {}

            impl<B: IoBuf> fmt::Debug for $name<B> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(stringify!($name))
                }
            }

            impl<B: IoBuf + Unpin> OperationKind for $name<B> {
                type Output = $output;

                #[allow(unused_mut, reason = "some kinds take buffers out of it")]
                fn finish(self, mut $ended: OperationEnd) -> $output {
                    let $own = self.0;
                    $finish
                }
            }
        };
    }

    kind! {
        /// `connect`, `shutdown`, `close`: it has been done.
        Done => Result<(), Error>, |ended| ended.event.into_result().map(drop)
    }

    kind! {
        /// `accept`: the connection and the address of its peer.
        Accept => Result<(AsyncSocket, SocketAddr), Error>, |ended| {
            match ended.event.into_completion()? {
                Completion::Accept { socket, peer } => {
                    Ok((AsyncSocket::of(socket, ended.reactor), peer))
                }
                _ => Err(Error::invalid("accept ended without a connection")),
            }
        }
    }

    kind! {
        /// `send_file`: bytes of the file that were sent.
        SendFile => Result<u64, Error>, |ended| ended.moved().map(|n| n as u64)
    }

    kind! {
        /// `ready`: the state of the socket.
        Ready => Result<Readiness, Error>, |ended| {
            ended.event.result().map(|_| ended.event.readiness())
        }
    }

    kind! {
        /// `revoke`: the memory, which the peer can no longer reach.
        Revoke => Result<Buffer, Error>, |ended| {
            match ended.event.into_completion()? {
                Completion::Revoke(buffer) => Ok(buffer),
                _ => Err(Error::invalid("the export is gone: its socket was closed")),
            }
        }
    }

    kind! {
        /// `send`, `recv`, `recv_exact`: bytes moved, and the memory.
        Moved<B>(B::Rest) => (Result<usize, Error>, B), |rest, ended| {
            (ended.moved(), ended.buffer(rest))
        }
    }

    kind! {
        /// `recv_packet`: the message, and the memory.
        Received<B>(B::Rest) => (Result<Packet, Error>, B), |rest, ended| {
            let (bytes, total) = (ended.event.bytes(), ended.event.total());
            let packet = Packet { bytes, total, eof: ended.event.eof() };
            (ended.event.result().map(|_| packet), ended.buffer(rest))
        }
    }

    kind! {
        /// `read`, `write`: bytes moved, which are all, and the memory.
        OneSided<B>(B::Rest) => (Result<usize, Error>, B), |rest, ended| {
            (ended.event.result(), ended.buffer(rest))
        }
    }

    kind! {
        /// `fetch_add`, `compare_swap`: the value that was there before.
        OldValue => Result<u64, Error>, |ended| {
            // An event without an error has the value.
            let old = ended.event.old_value().unwrap_or(0);
            ended.event.into_result().map(|_| old)
        }
    }

    kind! {
        /// `send_vectored`, `recv_vectored`: bytes moved, and the memory.
        MovedMany<B>(Vec<B::Rest>) => (Result<usize, Error>, Vec<B>), |rests, ended| {
            let moved = ended.moved();
            let buffers = ended.event.take_buffers();
            (moved, back(buffers, rests))
        }
    }

    /// Makes the program's values again.
    pub(in crate::aio) fn back<B: IoBuf>(buffers: Vec<Buffer>, rests: Vec<B::Rest>) -> Vec<B> {
        buffers.into_iter().zip(rests).map(|(b, rest)| B::from_buffer(b, rest)).collect()
    }
}
