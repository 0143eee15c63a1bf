//! Readiness of both directions, and the calls of the halves that need no task of their own.

use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use tokio::io::{Interest, ReadBuf, Ready};

use super::{AsyncStream, OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::api::Error;

impl AsyncStream {
    /// Waits until the stream can be read or written, as `interest` asks. Says which, and whether the
    /// receiving direction has ended.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for an interest in neither direction.
    ///
    /// # Cancel safety
    /// It may be dropped at any time.
    ///
    /// ```
    /// # use exs::aio::{AsyncListener, AsyncStream};
    /// # use tokio::io::{AsyncWriteExt, Interest};
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let listener = AsyncListener::bind("127.0.0.1:0".parse()?)?;
    /// # let mut client = AsyncStream::connect(listener.local_addr()?).await?;
    /// # let (server, _) = listener.accept().await?;
    /// client.write_all(b"hello").await?;
    /// client.shutdown().await?;
    /// let mut bytes = [0; 8];
    /// while !server.ready(Interest::READABLE).await?.is_read_closed() {
    ///     server.try_read(&mut bytes)?;
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        if !interest.is_readable() && !interest.is_writable() {
            let why = "a stream can be waited for to be readable, writable, or both";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        poll_fn(|cx| self.poll_ready(interest, cx).map(Ok)).await
    }

    fn poll_ready(&self, interest: Interest, cx: &mut Context<'_>) -> Poll<Ready> {
        let mut ready = Ready::EMPTY;
        if interest.is_readable() && self.poll_read_ready(cx).is_ready() {
            ready |= Ready::READABLE;
            if self.link.is_at_end() {
                ready |= Ready::READ_CLOSED;
            }
        }
        if interest.is_writable() && self.poll_write_ready(cx).is_ready() {
            ready |= Ready::WRITABLE;
        }
        if ready.is_empty() { Poll::Pending } else { Poll::Ready(ready) }
    }

    /// Reads what is there into several slices, without waiting. 0 bytes are the end.
    ///
    /// # Errors
    /// As [`AsyncStream::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut read = 0;
        for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
            match self.try_read(buf) {
                Ok(n) => {
                    read += n;
                    if n < buf.len() {
                        break;
                    }
                }
                // What the slices before it have is the result; the error comes again.
                Err(_) if read > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }
}

macro_rules! of_both {
    ($($ty:ty),+) => {$(
        impl $ty {
            /// Our address.
            ///
            /// # Errors
            /// As [`AsyncStream::local_addr`].
            pub fn local_addr(&self) -> Result<SocketAddr, Error> {
                self.as_ref().local_addr()
            }

            /// The peer's address.
            ///
            /// # Errors
            /// As [`AsyncStream::peer_addr`].
            pub fn peer_addr(&self) -> Result<SocketAddr, Error> {
                self.as_ref().peer_addr()
            }

            /// As [`AsyncStream::ready`].
            ///
            /// # Errors
            /// As [`AsyncStream::ready`].
            ///
            /// # Cancel safety
            /// It may be dropped at any time.
            pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
                self.as_ref().ready(interest).await
            }
        }
    )+};
}

macro_rules! of_readers {
    ($($ty:ty),+) => {$(
        impl $ty {
            /// As [`AsyncStream::peek`].
            ///
            /// # Errors
            /// As a read.
            ///
            /// # Cancel safety
            /// It may be dropped at any time.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().peek(buf).await
            }

            /// As [`AsyncStream::poll_peek`].
            ///
            /// # Errors
            /// As a read.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                self.as_ref().poll_peek(cx, buf)
            }

            /// As [`AsyncStream::readable`].
            ///
            /// # Errors
            /// None today.
            ///
            /// # Cancel safety
            /// It may be dropped at any time.
            pub async fn readable(&self) -> io::Result<()> {
                self.as_ref().readable().await
            }

            /// As [`AsyncStream::try_read`].
            ///
            /// # Errors
            /// As [`AsyncStream::try_read`].
            pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
                self.as_ref().try_read(buf)
            }

            /// As [`AsyncStream::try_read_vectored`].
            ///
            /// # Errors
            /// As [`AsyncStream::try_read`].
            pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                self.as_ref().try_read_vectored(bufs)
            }
        }
    )+};
}

macro_rules! of_writers {
    ($($ty:ty),+) => {$(
        impl $ty {
            /// As [`AsyncStream::writable`].
            ///
            /// # Errors
            /// None today.
            ///
            /// # Cancel safety
            /// It may be dropped at any time.
            pub async fn writable(&self) -> io::Result<()> {
                self.as_ref().writable().await
            }

            /// As [`AsyncStream::try_write`].
            ///
            /// # Errors
            /// As [`AsyncStream::try_write`].
            pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
                self.as_ref().try_write(buf)
            }

            /// As [`AsyncStream::try_write_vectored`].
            ///
            /// # Errors
            /// As [`AsyncStream::try_write`].
            pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
                self.as_ref().try_write_vectored(bufs)
            }
        }
    )+};
}

of_both!(ReadHalf<'_>, WriteHalf<'_>, OwnedReadHalf, OwnedWriteHalf);
of_readers!(ReadHalf<'_>, OwnedReadHalf);
of_writers!(WriteHalf<'_>, OwnedWriteHalf);
