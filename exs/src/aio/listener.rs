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

/// The accepts that are posted ahead, unless the runtime has more reactors than that.
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
    ports: Vec<AcceptPort>,
    accepts: Arc<Mutex<AcceptQueue>>,
}

/// The accepts of a listener by one of the reactors of its runtime. The reactor has the connections.
struct AcceptPort {
    reactor: Arc<AioReactor>,
    slot: usize,
    state: Arc<PortState>,
}

/// The state that the events of accepts change.
struct PortState {
    /// The place of the port in its listener.
    port: usize,
    accepts: Arc<Mutex<AcceptQueue>>,
    uses: Uses,
}

/// An accept that has ended.
struct EndedAccept {
    port: usize,
    result: Result<(Socket, SocketAddr), Error>,
}

struct AcceptQueue {
    /// The accepts in flight of each port.
    in_flight: Vec<usize>,
    ended: VecDeque<EndedAccept>,
    wakers: Wakers,
}

impl AcceptQueue {
    fn new(ports: usize) -> AcceptQueue {
        let (ended, wakers) = (VecDeque::new(), Wakers::default());
        AcceptQueue { in_flight: vec![0; ports], ended, wakers }
    }

    /// The port that needs another accept most: that with the fewest in flight. None: enough are ahead.
    fn lacking(&self) -> Option<usize> {
        let ahead = self.in_flight.iter().sum::<usize>() + self.ended.len();
        let enough = ahead >= AHEAD.max(self.in_flight.len());
        let fewest = self.in_flight.iter().enumerate().min_by_key(|(_, in_flight)| **in_flight);
        fewest.filter(|_| !enough).map(|(port, _)| port)
    }
}

fn lock(accepts: &Mutex<AcceptQueue>) -> MutexGuard<'_, AcceptQueue> {
    accepts.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AcceptPort {
    fn new(port: usize, reactor: Arc<AioReactor>, accepts: &Arc<Mutex<AcceptQueue>>) -> AcceptPort {
        let accepts = Arc::clone(accepts);
        let state = Arc::new(PortState { port, accepts, uses: Uses::owned() });
        let sink: Arc<dyn Sink> = state.clone();
        let slot = reactor.slots().insert_sink(sink);
        AcceptPort { reactor, slot, state }
    }

    fn post(&self, listener: &Socket) -> Result<(), Error> {
        self.state.uses.add();
        let posted = listener.accept(self.reactor.queue(), token(self.slot, 0));
        posted.inspect_err(|_| {
            // The owner's use remains.
            let _ = self.state.uses.end();
        })
    }
}

impl Drop for AcceptPort {
    fn drop(&mut self) {
        if self.state.uses.end() {
            self.reactor.slots().remove(self.slot);
        }
    }
}

impl Sink for PortState {
    fn complete(&self, _: u32, event: Event, wakers: &mut Vec<Waker>) {
        let result = match event.into_completion() {
            Ok(Completion::Accept { socket, peer }) => Ok((socket, peer)),
            Ok(_) => Err(Error::invalid("accept ended without a connection")),
            Err(failed) => Err(failed.error),
        };
        let mut accepts = lock(&self.accepts);
        let in_flight = &mut accepts.in_flight[self.port];
        *in_flight = in_flight.saturating_sub(1);
        accepts.ended.push_back(EndedAccept { port: self.port, result });
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
        let reactors = AioReactor::all_current()?;
        let accepts = Arc::new(Mutex::new(AcceptQueue::new(reactors.len())));
        let ports = reactors.into_iter().enumerate();
        let ports = ports.map(|(port, reactor)| AcceptPort::new(port, reactor, &accepts)).collect();
        Ok(AsyncListener { socket, ports, accepts })
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
        let Some(EndedAccept { port, result }) = self.take_ended(cx) else { return Poll::Pending };
        self.post_ahead();
        Poll::Ready(result.map(|(socket, peer)| {
            (AsyncStream::of(socket, Arc::clone(&self.ports[port].reactor)), peer)
        }))
    }

    /// Takes the next accept that has ended. None: none has, and the task waits.
    fn take_ended(&self, cx: &mut Context<'_>) -> Option<EndedAccept> {
        if let Some(ended) = lock(&self.accepts).ended.pop_front() {
            return Some(ended);
        }
        self.post_ahead();
        self.ports.iter().for_each(|port| port.reactor.collect());
        let mut accepts = lock(&self.accepts);
        let ended = accepts.ended.pop_front();
        if ended.is_none() {
            accepts.wakers.add(cx);
        }
        ended
    }

    /// The connections as a stream (of the crate futures), which has no end.
    pub fn incoming(&self) -> IncomingStreams<'_> {
        IncomingStreams(self)
    }

    /// Posts accepts until enough are ahead. One that is refused ends with the error.
    fn post_ahead(&self) {
        let mut accepts = lock(&self.accepts);
        while let Some(port) = accepts.lacking() {
            match self.ports[port].post(&self.socket) {
                Ok(()) => accepts.in_flight[port] += 1,
                Err(error) => {
                    if accepts.ended.is_empty() {
                        accepts.ended.push_back(EndedAccept { port, result: Err(error) });
                    }
                    return;
                }
            }
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
