//! The types that a stream is split into.

use std::fmt;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::AsyncStream;

/// The reading half of a [`AsyncStream`], borrowed: [`AsyncStream::split`].
#[derive(Debug)]
pub struct ReadHalf<'a>(&'a AsyncStream);

/// The writing half of a [`AsyncStream`], borrowed: [`AsyncStream::split`]. Dropping it ends nothing.
#[derive(Debug)]
pub struct WriteHalf<'a>(&'a AsyncStream);

/// The reading half of a [`AsyncStream`]: [`AsyncStream::into_split`].
#[derive(Debug)]
pub struct OwnedReadHalf {
    stream: Arc<AsyncStream>,
}

/// The writing half of a [`AsyncStream`]: [`AsyncStream::into_split`]. Dropping it ends the sending direction
/// behind what was written.
#[derive(Debug)]
pub struct OwnedWriteHalf {
    stream: Arc<AsyncStream>,
    ends: bool,
}

pub(super) fn split(stream: &mut AsyncStream) -> (ReadHalf<'_>, WriteHalf<'_>) {
    (ReadHalf(stream), WriteHalf(stream))
}

pub(super) fn into_split(stream: AsyncStream) -> (OwnedReadHalf, OwnedWriteHalf) {
    let stream = Arc::new(stream);
    (OwnedReadHalf { stream: Arc::clone(&stream) }, OwnedWriteHalf { stream, ends: true })
}

/// The halves are not of one stream. They come back.
#[derive(Debug)]
#[allow(clippy::exhaustive_structs, reason = "the two halves, as tokio's error has them")]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

impl fmt::Display for ReuniteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the two halves are not of the same stream: reunite those that were split")
    }
}

impl std::error::Error for ReuniteError {}

impl OwnedReadHalf {
    /// Makes the stream of its halves again.
    ///
    /// # Errors
    /// The halves, if they are of different streams.
    pub fn reunite(self, other: OwnedWriteHalf) -> Result<AsyncStream, ReuniteError> {
        reunite(self, other)
    }
}

impl OwnedWriteHalf {
    /// Makes the stream of its halves again.
    ///
    /// # Errors
    /// The halves, if they are of different streams.
    pub fn reunite(self, other: OwnedReadHalf) -> Result<AsyncStream, ReuniteError> {
        reunite(other, self)
    }

    /// Drops the half without ending the sending direction, which then ends with the other half.
    pub fn forget(mut self) {
        self.ends = false;
    }
}

fn reunite(read: OwnedReadHalf, mut write: OwnedWriteHalf) -> Result<AsyncStream, ReuniteError> {
    if !Arc::ptr_eq(&read.stream, &write.stream) {
        return Err(ReuniteError(read, write));
    }
    write.ends = false;
    drop(write);
    let stream = Arc::into_inner(read.stream);
    Ok(stream.expect("a stream has two halves, and one of them was dropped"))
}

impl Drop for OwnedWriteHalf {
    fn drop(&mut self) {
        if self.ends {
            // A broken connection has ended already.
            let _ = self.stream.link.shutdown();
        }
    }
}

macro_rules! reads {
    ($ty:ty, $self:ident => $stream:expr) => {
        impl AsRef<AsyncStream> for $ty {
            /// The stream, for its methods that borrow it.
            fn as_ref(&$self) -> &AsyncStream {
                $stream
            }
        }

        impl AsyncRead for $ty {
            fn poll_read(
                $self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                $stream.poll_read_shared(cx, buf)
            }
        }
    };
}

macro_rules! writes {
    ($ty:ty, $self:ident => $stream:expr) => {
        impl AsRef<AsyncStream> for $ty {
            /// The stream, for its methods that borrow it.
            fn as_ref(&$self) -> &AsyncStream {
                $stream
            }
        }

        impl AsyncWrite for $ty {
            fn poll_write(
                $self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                $stream.poll_write_shared(cx, &[IoSlice::new(buf)])
            }

            fn poll_write_vectored(
                $self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                $stream.poll_write_shared(cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush($self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready($stream.link.flush())
            }

            fn poll_shutdown($self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
                Poll::Ready($stream.link.shutdown())
            }
        }
    };
}

reads!(ReadHalf<'_>, self => self.0);
writes!(WriteHalf<'_>, self => self.0);
reads!(OwnedReadHalf, self => &self.stream);
writes!(OwnedWriteHalf, self => &self.stream);
