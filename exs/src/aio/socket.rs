//! Sockets whose operations are futures.

use std::fs::File;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use super::op::kinds::{Accept, Done, Moved, MovedMany, Ready, Received, SendFile, back};
use super::reactor::AioReactor;
use super::{IoBuf, IoBufMut, Operation, OperationKind};
use crate::api::{
    self, Buffer, Error, EventQueue, Interest, Options, RecvFlags, Refused, SocketType, ToHost,
    Token,
};

/// Messages up to this many bytes may be sent without an event.
const SMALL: usize = 4 << 10;

/// A socket whose calls return futures. Its methods are those of [`exs::Socket`](crate::Socket)
/// without the event queue: memory moves into the operation, and comes back with the result.
///
/// A socket belongs to the runtime in which it was made, whose threads move its data. Outside of a
/// runtime a thread of the process does. Any task of any runtime can await its operations. If the
/// runtime ends, a thread takes over.
///
/// Clones are handles to one socket, which closes in the background when the last is dropped.
///
/// ```
/// use exs::aio::{AsyncSocket, block_on};
/// use exs::MemoryRegion;
/// # block_on(async {
/// let listener = AsyncSocket::stream()?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(8)?;
/// let client = AsyncSocket::stream()?;
/// client.connect(listener.local_addr()?).await?;
/// let (server, _) = listener.accept().await?;
///
/// let region = MemoryRegion::new(4096)?; // registered once
/// let mut buffer = region.buffer(..5)?;
/// buffer.copy_from_slice(b"hello");
/// let (sent, buffer) = client.send(buffer).await;
/// assert_eq!((sent?, &buffer[..]), (5, &b"hello"[..]));
///
/// let (received, bytes) = server.recv(vec![0; 100]).await;
/// assert_eq!(&bytes[..received?], b"hello");
/// # Ok::<(), exs::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct AsyncSocket {
    socket: api::Socket,
    reactor: Arc<AioReactor>,
}

/// Sockets, and what they are.
impl AsyncSocket {
    /// A stream socket with default options.
    ///
    /// # Errors
    /// What the kernel says if EXS cannot start.
    ///
    /// # Panics
    /// In a tokio runtime whose I/O driver is not enabled.
    pub fn stream() -> Result<AsyncSocket, Error> {
        AsyncSocket::with_options(SocketType::Stream, Options::default())
    }

    /// A seqpacket socket with default options.
    ///
    /// # Errors
    /// As [`AsyncSocket::stream`].
    ///
    /// # Panics
    /// As [`AsyncSocket::stream`].
    pub fn seqpacket() -> Result<AsyncSocket, Error> {
        AsyncSocket::with_options(SocketType::SeqPacket, Options::default())
    }

    /// A socket with these options.
    ///
    /// # Errors
    /// As [`AsyncSocket::stream`].
    ///
    /// # Panics
    /// As [`AsyncSocket::stream`].
    pub fn with_options(ty: SocketType, options: Options) -> Result<AsyncSocket, Error> {
        AsyncSocket::from_socket(api::Socket::with_options(ty, options)?)
    }

    /// A socket that exists. Other handles of it keep working, with queues of their own.
    ///
    /// # Errors
    /// As [`AsyncSocket::stream`].
    ///
    /// # Panics
    /// As [`AsyncSocket::stream`].
    pub fn from_socket(socket: api::Socket) -> Result<AsyncSocket, Error> {
        Ok(AsyncSocket { socket, reactor: AioReactor::current()? })
    }

    pub(super) fn of(socket: api::Socket, reactor: Arc<AioReactor>) -> AsyncSocket {
        AsyncSocket { socket, reactor }
    }

    pub(super) fn reactor(&self) -> &Arc<AioReactor> {
        &self.reactor
    }

    /// The socket, for its options, counters, and transport.
    pub fn get_ref(&self) -> &api::Socket {
        &self.socket
    }

    /// Gives the socket back. Its operations in flight go on.
    pub fn into_inner(self) -> api::Socket {
        self.socket
    }

    /// Gives it a local address; port 0 stands for any free port.
    ///
    /// # Errors
    /// As [`exs::Socket::bind`](crate::Socket::bind).
    pub fn bind(&self, addr: SocketAddr) -> Result<(), Error> {
        self.socket.bind(addr)
    }

    /// Makes it a listener.
    ///
    /// # Errors
    /// As [`exs::Socket::listen`](crate::Socket::listen).
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.socket.listen(backlog)
    }

    /// Our address.
    ///
    /// # Errors
    /// [`Error::State`] if it has none yet.
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// [`Error::State`] if it is not connected.
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.socket.peer_addr()
    }
}

/// Connections.
impl AsyncSocket {
    /// Connects, within [`Options::connect_timeout`]: to an address, to a name and a port, or to text
    /// such as `"server.example:7471"`. A thread of the library resolves a name.
    ///
    /// # Errors
    /// As [`exs::Socket::connect_host`](crate::Socket::connect_host).
    ///
    /// # Cancel safety
    /// A connect whose future is dropped leaves the socket as it was, in a moment: it may be used
    /// for another attempt.
    pub fn connect(&self, host: impl ToHost) -> Operation<Done> {
        self.bare(Done, |queue, token| self.socket.connect_host(queue, token, host))
    }

    /// Accepts a connection, which belongs to the same runtime.
    ///
    /// # Errors
    /// As [`exs::Socket::accept`](crate::Socket::accept).
    ///
    /// # Cancel safety
    /// If the future is dropped while a connection is there for it, the connection is reset.
    /// `AsyncListener` loses none.
    pub fn accept(&self) -> Operation<Accept> {
        let accepts = AsyncSocket::of(self.socket.clone(), self.reactor.for_accepted());
        accepts.bare(Accept, |queue, token| self.socket.accept(queue, token))
    }

    /// Waits until the socket is ready for what is asked, or broken. It moves nothing.
    ///
    /// # Errors
    /// [`Error::State`] if the socket is closed.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    pub fn ready(&self, interest: Interest) -> Operation<Ready> {
        self.bare(Ready, |queue, token| self.socket.poll(queue, token, interest))
    }

    /// Ends one direction, or both, after what was posted before.
    ///
    /// # Errors
    /// As [`exs::Socket::shutdown`](crate::Socket::shutdown).
    ///
    /// # Cancel safety
    /// A shutdown that is dropped before its turn never was.
    pub fn shutdown(&self, how: Shutdown) -> Operation<Done> {
        self.bare(Done, |queue, token| self.socket.shutdown(queue, token, how))
    }

    /// Closes, after all that was sent has been delivered, within [`Options::linger`].
    ///
    /// # Errors
    /// As [`exs::Socket::close`](crate::Socket::close).
    ///
    /// # Cancel safety
    /// A close cannot be cancelled, and goes on without its future.
    pub fn close(&self) -> Operation<Done> {
        self.bare(Done, |queue, token| self.socket.close(queue, token))
    }

    /// Cuts the connection at once: all operations end, and the peer sees ECONNRESET.
    pub fn abort(&self) {
        self.socket.abort();
    }

    /// Posts an operation without memory.
    pub(super) fn bare<T, K: OperationKind<Output = Result<T, Error>>>(
        &self,
        kind: K,
        f: impl FnOnce(&EventQueue, Token) -> Result<(), Error>,
    ) -> Operation<K> {
        match self.reactor.post(f) {
            Ok(slot) => Operation::posted(self, slot, kind),
            Err(error) => Operation::ready(Err(error)),
        }
    }
}

/// Data.
impl AsyncSocket {
    /// Sends the bytes, on a seqpacket socket as one message. The result is their number. The memory
    /// is the program's again, and the bytes are on their way.
    ///
    /// # Errors
    /// As [`exs::Socket::send`](crate::Socket::send). A send that has sent a part before it failed
    /// returns the number of these bytes, and the next operation meets the error.
    ///
    /// # Cancel safety
    /// If the future is dropped, any number of the bytes may have been sent, and of a message all or
    /// nothing. [`Operation::cancel`] says how many.
    pub fn send<B: IoBuf + Unpin>(&self, buffer: B) -> Operation<Moved<B>> {
        let (buffer, rest) = buffer.into_buffer();
        let len = buffer.len();
        if (1..=SMALL).contains(&len) && self.reactor.send_at_once(&self.socket, &buffer.io_vec()) {
            return Operation::ready((Ok(len), B::from_buffer(buffer, rest)));
        }
        let post = |queue: &_, token| self.socket.send(queue, token, buffer);
        self.moving(post, rest, Moved, |error, back| (Err(error), back))
    }

    /// Receives into the memory: as many bytes as are there, or a message. The result is the number
    /// of bytes; 0 is the end.
    ///
    /// # Errors
    /// As [`exs::Socket::recv`](crate::Socket::recv).
    ///
    /// # Cancel safety
    /// If the future is dropped, the bytes that it had received are lost. [`Operation::cancel`]
    /// loses none.
    pub fn recv<B: IoBufMut + Unpin>(&self, buffer: B) -> Operation<Moved<B>> {
        self.recv_with(buffer, RecvFlags::NONE)
    }

    /// Receives until the memory is full. The result is less only if the stream ended before.
    ///
    /// # Errors
    /// As [`AsyncSocket::recv`].
    ///
    /// # Cancel safety
    /// As [`AsyncSocket::recv`].
    pub fn recv_exact<B: IoBufMut + Unpin>(&self, buffer: B) -> Operation<Moved<B>> {
        self.recv_with(buffer, RecvFlags::WAITALL)
    }

    fn recv_with<B: IoBufMut + Unpin>(&self, buffer: B, flags: RecvFlags) -> Operation<Moved<B>> {
        let (buffer, rest) = buffer.into_buffer();
        let post = |queue: &_, token| self.socket.recv(queue, token, buffer, flags);
        self.moving(post, rest, Moved, |error, back| (Err(error), back))
    }

    /// Receives a message of a seqpacket socket. [`Packet`](crate::Packet) says if it was cut off,
    /// and tells an empty message from the end.
    ///
    /// # Errors
    /// As [`exs::Socket::recv`](crate::Socket::recv).
    ///
    /// # Cancel safety
    /// If the future is dropped while a message is there for it, the message is lost.
    pub fn recv_packet<B: IoBufMut + Unpin>(&self, buffer: B) -> Operation<Received<B>> {
        let (buffer, rest) = buffer.into_buffer();
        let post = |queue: &_, token| self.socket.recv(queue, token, buffer, RecvFlags::NONE);
        self.moving(post, rest, Received, |error, back| (Err(error), back))
    }

    /// Sends several pieces of memory as one stretch of bytes, or as one message.
    ///
    /// # Errors
    /// As [`AsyncSocket::send`].
    ///
    /// # Cancel safety
    /// As [`AsyncSocket::send`].
    pub fn send_vectored<B: IoBuf + Unpin>(&self, buffers: Vec<B>) -> Operation<MovedMany<B>> {
        self.moving_many(buffers, |queue, token, v| self.socket.send_vectored(queue, token, v))
    }

    /// Receives into several pieces of memory, filled one after the other.
    ///
    /// # Errors
    /// As [`AsyncSocket::recv`].
    ///
    /// # Cancel safety
    /// As [`AsyncSocket::recv`].
    pub fn recv_vectored<B: IoBufMut + Unpin>(&self, buffers: Vec<B>) -> Operation<MovedMany<B>> {
        self.moving_many(buffers, |queue, token, v| {
            self.socket.recv_vectored(queue, token, v, RecvFlags::NONE)
        })
    }

    /// Sends a part of a file without reading it into the program's memory. The result is the number
    /// of bytes.
    ///
    /// # Errors
    /// As [`exs::Socket::send_file`](crate::Socket::send_file).
    ///
    /// # Cancel safety
    /// As [`AsyncSocket::send`].
    pub fn send_file(&self, file: Arc<File>, offset: u64, len: u64) -> Operation<SendFile> {
        self.bare(SendFile, |queue, token| self.socket.send_file(queue, token, file, offset, len))
    }

    /// Posts an operation with one buffer.
    pub(super) fn moving<B: IoBuf, K: OperationKind>(
        &self,
        post: impl FnOnce(&EventQueue, Token) -> Result<(), Refused>,
        rest: B::Rest,
        kind: impl FnOnce(B::Rest) -> K,
        refused: impl FnOnce(Error, B) -> K::Output,
    ) -> Operation<K> {
        match self.reactor.post(post) {
            Ok(slot) => Operation::posted(self, slot, kind(rest)),
            Err(Refused { error, buffer }) => {
                Operation::ready(refused(error, B::from_buffer(buffer, rest)))
            }
        }
    }

    /// Posts an operation with several buffers.
    fn moving_many<B: IoBuf + Unpin>(
        &self,
        buffers: Vec<B>,
        post: impl FnOnce(&EventQueue, Token, Vec<Buffer>) -> Result<(), Refused<Vec<Buffer>>>,
    ) -> Operation<MovedMany<B>> {
        let (buffers, rests) = buffers.into_iter().map(IoBuf::into_buffer).unzip();
        match self.reactor.post(|queue, token| post(queue, token, buffers)) {
            Ok(slot) => Operation::posted(self, slot, MovedMany(rests)),
            Err(Refused { error, buffer }) => Operation::ready((Err(error), back(buffer, rests))),
        }
    }
}

impl std::fmt::Debug for AsyncSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.socket.fmt(f)
    }
}
