//! Streams with tokio's `AsyncRead` and `AsyncWrite`.
//!
//! A [`AsyncStream`] takes the place of tokio's `TcpStream`. The calls of these traits lend memory only
//! until they return, and the peer's RNIC may write to the memory of a receive later. So a stream
//! has buffers of its own, which are registered once for all streams of a reactor (`pool`).
//!
//! - `rx`: receives are posted ahead, so that large data are written straight into them. Their size
//!   and their number follow the data.
//! - `tx`: a write is copied once, into a buffer that the RNIC reads. The first small write leaves
//!   at once. Small writes behind it wait for each other until the task flushes, reads, or ends
//!   its turn.
//! - `attend`: when the task that reads a busy stream takes the place of the runtime's driver.
//! - `link`: all of them with the socket; `halves`: the types that a stream is split into; `ready`: readiness
//!   of both directions.
//!
//! Neither `rx` nor `tx` knows of the socket or of the reactor.

mod attend;
mod connect;
mod halves;
mod link;
mod pool;
mod ready;
mod rx;
mod tx;
pub(super) mod wakers;

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::coop::poll_proceed;

use self::link::StreamCore;
use self::rx::BytesFound;
use super::reactor::AioReactor;
use crate::api::{Error, Socket};

pub use self::halves::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
pub(super) use self::pool::BufferPool;

/// The numbers of receives, which the tags of their events are. Larger tags have other meanings.
const NUMBERS: u32 = (1 << 30) - 1;
/// The tag of sends.
const IS_SEND: u32 = 1 << 30;
/// The tag of the shutdown.
const IS_SHUTDOWN: u32 = 1 << 31;

/// A connected stream with tokio's [`AsyncRead`] and [`AsyncWrite`]: for hyper, axum, tokio-rustls
/// and other code that takes these traits.
///
/// Its methods are those of tokio's `TcpStream`. A stream belongs to the runtime in which it was
/// made. It can be used from any task. If its runtime ends, a thread takes over.
///
/// # Reads
/// Receives are posted ahead, so large data are written straight into the stream's memory, and then
/// copied once. A read takes what is there.
///
/// # Writes
/// A write copies its bytes once, into memory that the RNIC sends from, and returns. A write of 16
/// KiB or more is sent at once if no send is in flight, and so is the first small write. Writes that
/// follow wait for each other. They leave when a buffer is full, and when the task flushes, waits in
/// a read, or ends its turn, so a task that never flushes loses nothing. `flush` does not wait until the peer has the bytes. A write waits
/// while four sends are in flight. An error of a send is the result of a later write, flush or
/// shutdown.
///
/// # Ends
/// `shutdown` ends the sending direction behind what was written, and does not wait. When the last
/// handle is dropped, the connection closes in the background, and what was written is delivered
/// within [`Options::linger`](crate::Options::linger).
///
/// ```
/// use exs::aio::{AsyncListener, AsyncStream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let listener = AsyncListener::bind("127.0.0.1:0".parse()?)?;
/// let mut client = AsyncStream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
///
/// client.write_all(b"hello").await?;
/// client.shutdown().await?;
/// let mut text = String::new();
/// server.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncStream {
    link: Arc<StreamCore>,
}

impl AsyncStream {
    /// A stream of a connected stream socket.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a seqpacket socket; what the kernel says if EXS cannot start.
    ///
    /// # Panics
    /// In a tokio runtime whose I/O driver is not enabled.
    pub fn from_socket(socket: Socket) -> Result<AsyncStream, Error> {
        must_be_stream(&socket)?;
        Ok(AsyncStream::of(socket, AioReactor::current()?))
    }

    pub(super) fn of(socket: Socket, reactor: Arc<AioReactor>) -> AsyncStream {
        AsyncStream { link: Arc::new(StreamCore::new(socket, reactor)) }
    }

    /// The socket, for its options, counters and transport. Operations that the program posts on it
    /// get in the way of the stream's.
    pub fn get_ref(&self) -> &Socket {
        self.link.socket()
    }

    /// Our address.
    ///
    /// # Errors
    /// As [`Socket::local_addr`].
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.get_ref().local_addr()
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As [`Socket::peer_addr`].
    pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
        self.get_ref().peer_addr()
    }

    /// Receives bytes without taking them: the next read returns them again.
    ///
    /// # Errors
    /// As a read.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        poll_fn(|cx| self.poll_peek(cx, &mut buf)).await
    }

    /// As [`AsyncStream::peek`], for the task of the context.
    ///
    /// # Errors
    /// As a read.
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let before = buf.filled().len();
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(0));
        }
        ready!(self.link.poll_peek(cx, buf))?;
        Poll::Ready(Ok(buf.filled().len() - before))
    }

    /// Waits until a read would find bytes, the end, or an error.
    ///
    /// # Errors
    /// None today.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    pub async fn readable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_read_ready(cx)).await
    }

    /// Waits until a write would take bytes, or return an error.
    ///
    /// # Errors
    /// None today.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    pub async fn writable(&self) -> io::Result<()> {
        poll_fn(|cx| self.poll_write_ready(cx)).await
    }

    /// As [`AsyncStream::readable`], for the task of the context.
    ///
    /// # Errors
    /// None today.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_read_ready(cx).map(Ok)
    }

    /// As [`AsyncStream::writable`], for the task of the context.
    ///
    /// # Errors
    /// None today.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.link.poll_write_ready(cx).map(Ok)
    }

    /// Reads what is there, without waiting. 0 bytes are the end.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if nothing is there; otherwise as a read.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(buf);
        if buf.remaining() == 0 {
            return Ok(0);
        }
        match self.link.try_read(&mut buf) {
            BytesFound::Some => Ok(buf.filled().len()),
            BytesFound::Nothing => Err(io::ErrorKind::WouldBlock.into()),
            BytesFound::Failed(error) => Err(error.into()),
        }
    }

    /// Writes what there is room for, without waiting. Returns the number of bytes.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if there is no room; otherwise as a write.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// As [`AsyncStream::try_write`], with several slices.
    ///
    /// # Errors
    /// As [`AsyncStream::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.link.write(bufs, None).unwrap_or_else(|| Err(io::ErrorKind::WouldBlock.into()))
    }

    /// Splits the stream into halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        halves::split(self)
    }

    /// Splits the stream into halves that different tasks can own. The sending direction ends when
    /// the write half is dropped.
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        halves::into_split(self)
    }

    /// From now on the task that reads attends the connection whenever it can, busy or not: for tests.
    #[cfg(any(test, feature = "internals"))]
    #[doc(hidden)]
    pub fn attend_always(&self) {
        self.link.attend_always();
    }

    fn poll_read_shared(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        let coop = ready!(poll_proceed(cx));
        self.link.poll_read(cx, buf).map(|read| {
            coop.made_progress();
            read
        })
    }

    fn poll_write_shared(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let coop = ready!(poll_proceed(cx));
        match self.link.write(bufs, Some(cx)) {
            Some(written) => {
                coop.made_progress();
                Poll::Ready(written)
            }
            None => Poll::Pending,
        }
    }
}

impl AsyncRead for AsyncStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_read_shared(cx, buf)
    }
}

impl AsyncWrite for AsyncStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_shared(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Sends what waits for the end of the turn. It does not wait.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.link.flush())
    }

    /// Ends the sending direction behind what was written. It does not wait.
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.link.shutdown())
    }
}

/// Refuses a seqpacket socket: reads and writes of a stream keep no bounds of messages.
pub(super) fn must_be_stream(socket: &Socket) -> Result<(), Error> {
    match socket.is_seqpacket() {
        true => {
            Err(Error::invalid("a stream needs a stream socket, and this is a seqpacket socket"))
        }
        false => Ok(()),
    }
}

impl AsRef<Socket> for AsyncStream {
    fn as_ref(&self) -> &Socket {
        self.get_ref()
    }
}

impl std::fmt::Debug for AsyncStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AsyncStream").field(self.get_ref()).finish()
    }
}
