//! How a stream comes to be.

use super::{AsyncStream, must_be_stream};
use crate::aio;
use crate::api::{Error, Options, SocketType, ToHost};

impl AsyncStream {
    /// Connects to a host, with default options: to an address, to a name and a port, or to text such
    /// as `"server.example:7471"`. A thread of the library resolves a name, and the addresses of a
    /// name race.
    ///
    /// # Errors
    /// As [`exs::Socket::connect_host`](crate::Socket::connect_host).
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is not made, or is closed.
    ///
    /// # Panics
    /// In a tokio runtime whose I/O driver is not enabled.
    pub async fn connect(host: impl ToHost) -> Result<AsyncStream, Error> {
        AsyncStream::connect_with(host, Options::default()).await
    }

    /// Connects to a host, with these options.
    ///
    /// # Errors
    /// As [`AsyncStream::connect`].
    ///
    /// # Cancel safety
    /// As [`AsyncStream::connect`].
    ///
    /// # Panics
    /// As [`AsyncStream::connect`].
    pub async fn connect_with(host: impl ToHost, options: Options) -> Result<AsyncStream, Error> {
        let socket = aio::AsyncSocket::with_options(SocketType::Stream, options)?;
        socket.connect(host).await?;
        Ok(AsyncStream::of_stream_socket(socket))
    }

    fn of_stream_socket(socket: aio::AsyncSocket) -> AsyncStream {
        let reactor = socket.reactor().clone();
        AsyncStream::of(socket.into_inner(), reactor)
    }
}

impl TryFrom<aio::AsyncSocket> for AsyncStream {
    type Error = Error;

    /// A stream of a connected stream socket, of the same runtime. A seqpacket socket is refused with
    /// [`Error::Invalid`].
    fn try_from(socket: aio::AsyncSocket) -> Result<AsyncStream, Error> {
        must_be_stream(socket.get_ref())?;
        Ok(AsyncStream::of_stream_socket(socket))
    }
}
