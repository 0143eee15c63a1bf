//! Listeners that lose no connection.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::reactor::AioReactor;
use super::slots::{Sink, Uses, token};
use super::stream::wakers::Wakers;
use super::stream::{AsyncStream, must_be_stream};
use crate::api::{Completion, Error, Event, Options, Socket, SocketType};

/// The accepts that are posted ahead.
const AHEAD: usize = 16;

/// The connections that wait in the library until the program accepts them.
const BACKLOG: u32 = 1024;

/// Accepts [`AsyncStream`]s, as tokio's `TcpListener` does.
///
/// Some accepts are posted ahead, and the connections that they take wait here. So a task that stops
/// waiting loses none. Connections belong to the runtime of the listener. When the listener is
/// dropped, it listens no more, and connections that no task has taken are reset.
///
/// ```
/// use exs::aio::{AsyncListener, AsyncStream};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let listener = AsyncListener::bind("127.0.0.1:0".parse()?)?;
/// let client = AsyncStream::connect(listener.local_addr()?).await?;
/// let (server, peer) = listener.accept().await?;
/// assert_eq!(peer, client.local_addr()?);
/// # drop(server);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct AsyncListener {
    socket: Socket,
    reactor: Arc<AioReactor>,
    slot: usize,
    state: Arc<AcceptState>,
}

struct AcceptState {
    accepts: Mutex<AcceptQueue>,
    uses: Uses,
}

#[derive(Default)]
struct AcceptQueue {
    in_flight: usize,
    ended: VecDeque<Result<(Socket, SocketAddr), Error>>,
    wakers: Wakers,
}

impl AcceptState {
    fn accepts(&self) -> MutexGuard<'_, AcceptQueue> {
        self.accepts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for AcceptState {
    fn complete(&self, _: u32, event: Event, wakers: &mut Vec<Waker>) {
        let ended = match event.into_completion() {
            Ok(Completion::Accept { socket, peer }) => Ok((socket, peer)),
            Ok(_) => Err(Error::invalid("accept ended without a connection")),
            Err(failed) => Err(failed.error),
        };
        let mut accepts = self.accepts();
        accepts.in_flight = accepts.in_flight.saturating_sub(1);
        accepts.ended.push_back(ended);
        accepts.wakers.take_into(wakers);
    }

    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl AsyncListener {
    /// Listens at the address, with default options. Port 0 stands for any free port.
    ///
    /// # Errors
    /// As [`exs::Socket::bind`](crate::Socket::bind) and
    /// [`exs::Socket::listen`](crate::Socket::listen).
    ///
    /// # Panics
    /// In a tokio runtime whose I/O driver is not enabled.
    pub fn bind(addr: SocketAddr) -> Result<AsyncListener, Error> {
        AsyncListener::bind_with(addr, Options::default())
    }

    /// Listens at the address, with options that its connections have, too.
    ///
    /// # Errors
    /// As [`AsyncListener::bind`].
    ///
    /// # Panics
    /// As [`AsyncListener::bind`].
    pub fn bind_with(addr: SocketAddr, options: Options) -> Result<AsyncListener, Error> {
        let socket = Socket::with_options(SocketType::Stream, options)?;
        socket.bind(addr)?;
        socket.listen(BACKLOG)?;
        AsyncListener::from_socket(socket)
    }

    /// A listener of a stream socket that listens.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a seqpacket socket; what the kernel says if EXS cannot start.
    ///
    /// # Panics
    /// As [`AsyncListener::bind`].
    pub fn from_socket(socket: Socket) -> Result<AsyncListener, Error> {
        must_be_stream(&socket)?;
        let reactor = AioReactor::current()?;
        let state = Arc::new(AcceptState { accepts: Mutex::default(), uses: Uses::owned() });
        let sink: Arc<dyn Sink> = state.clone();
        let slot = reactor.slots().insert_sink(sink);
        Ok(AsyncListener { socket, reactor, slot, state })
    }

    /// The socket.
    pub fn get_ref(&self) -> &Socket {
        &self.socket
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// As [`exs::Socket::local_addr`](crate::Socket::local_addr).
    pub fn local_addr(&self) -> Result<SocketAddr, Error> {
        self.socket.local_addr()
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// As [`exs::Socket::accept`](crate::Socket::accept).
    ///
    /// # Cancel safety
    /// It may be dropped at any time: a connection that comes goes to the next accept.
    pub async fn accept(&self) -> Result<(AsyncStream, SocketAddr), Error> {
        poll_fn(|cx| self.poll_accept(cx)).await
    }

    /// As [`AsyncListener::accept`], for the task of the context.
    ///
    /// # Errors
    /// As [`AsyncListener::accept`].
    pub fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(AsyncStream, SocketAddr), Error>> {
        let mut ended = self.state.accepts().ended.pop_front();
        if ended.is_none() {
            self.post_ahead();
            self.reactor.collect();
            let mut accepts = self.state.accepts();
            ended = accepts.ended.pop_front();
            if ended.is_none() {
                accepts.wakers.add(cx);
                return Poll::Pending;
            }
        }
        self.post_ahead();
        let accepted = ended.unwrap_or_else(|| Err(Error::invalid("no accept has ended")));
        let stream = |(socket, peer)| (AsyncStream::of(socket, Arc::clone(&self.reactor)), peer);
        Poll::Ready(accepted.map(stream))
    }

    /// The connections as a stream (of the crate futures), which has no end.
    pub fn incoming(&self) -> IncomingStreams<'_> {
        IncomingStreams(self)
    }

    /// Posts accepts until enough are ahead. Those that are refused end with the error.
    fn post_ahead(&self) {
        let mut accepts = self.state.accepts();
        while accepts.in_flight + accepts.ended.len() < AHEAD {
            self.state.uses.add();
            match self.socket.accept(self.reactor.queue(), token(self.slot, 0)) {
                Ok(()) => accepts.in_flight += 1,
                Err(error) => {
                    let _ = self.state.uses.end();
                    if accepts.ended.is_empty() {
                        accepts.ended.push_back(Err(error));
                    }
                    return;
                }
            }
        }
    }
}

impl Drop for AsyncListener {
    fn drop(&mut self) {
        if self.state.uses.end() {
            self.reactor.slots().remove(self.slot);
        }
    }
}

impl std::fmt::Debug for AsyncListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("AsyncListener").field(&self.socket).finish()
    }
}

/// Connections of a [`AsyncListener`] as they come: [`AsyncListener::incoming`].
#[derive(Debug)]
pub struct IncomingStreams<'a>(&'a AsyncListener);

impl futures_core::Stream for IncomingStreams<'_> {
    type Item = Result<AsyncStream, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(cx).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

/// A listener is a stream (of the crate futures) of its connections, which has no end.
impl futures_core::Stream for AsyncListener {
    type Item = Result<AsyncStream, Error>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_accept(cx).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}
