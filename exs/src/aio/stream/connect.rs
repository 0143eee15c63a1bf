//! How a stream comes to be.

use std::net::SocketAddr;

use super::AsyncStream;
use crate::aio;
use crate::api::{Error, Options, SocketType};

impl AsyncStream {
    /// Connects to the address, with default options.
    ///
    /// # Errors
    /// As [`exs::Socket::connect`](crate::Socket::connect).
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is not made, or is closed.
    ///
    /// # Panics
    /// In a tokio runtime whose I/O driver is not enabled.
    pub async fn connect(addr: SocketAddr) -> Result<AsyncStream, Error> {
        AsyncStream::connect_with(addr, Options::default()).await
    }

    /// Connects to the address, with these options.
    ///
    /// # Errors
    /// As [`AsyncStream::connect`].
    ///
    /// # Cancel safety
    /// As [`AsyncStream::connect`].
    ///
    /// # Panics
    /// As [`AsyncStream::connect`].
    pub async fn connect_with(addr: SocketAddr, options: Options) -> Result<AsyncStream, Error> {
        let socket = aio::AsyncSocket::with_options(SocketType::Stream, options)?;
        socket.connect(addr).await?;
        Ok(AsyncStream::from(socket))
    }
}

impl From<aio::AsyncSocket> for AsyncStream {
    /// A stream of a connected stream socket, of the same runtime.
    fn from(socket: aio::AsyncSocket) -> AsyncStream {
        let reactor = socket.reactor().clone();
        AsyncStream::of(socket.into_inner(), reactor)
    }
}
