//! Streams as connections of hyper.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;

use super::AsyncStream;

/// As tokio's `AsyncRead`, of which this is hyper's own version: connections of hyper take a stream as
/// it is.
impl Read for AsyncStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut TokioIo::new(&mut *self)).poll_read(cx, buf)
    }
}

/// As tokio's `AsyncWrite`.
impl Write for AsyncStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut TokioIo::new(&mut *self)).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut TokioIo::new(&mut *self)).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut TokioIo::new(&mut *self)).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut TokioIo::new(&mut *self)).poll_write_vectored(cx, bufs)
    }
}

/// For the client of hyper-util, which keeps connections of
/// [`AsyncConnector`](super::AsyncConnector) for later requests.
///
/// ```
/// use exs::aio::AsyncConnector;
/// use hyper_util::client::legacy::Client;
/// use hyper_util::rt::TokioExecutor;
/// type Body = String; // any body of hyper
/// let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build(AsyncConnector::new());
/// # let _ = client;
/// ```
impl Connection for AsyncStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}
