//! The socket, the event queue and the registered memory of one connection.
//!
//! This is the whole of what exs-cp needs of EXS, and a pattern for programs
//! like it: register memory once, cut it into buffers, move a buffer into
//! each operation, and take it back from the event. Receives are posted ahead
//! at all times, so that the peer's RDMA WRITEs find their destination and
//! the bytes are placed where they are hashed and written to disk from.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use exs::{
    Buffer as ExsBuffer, Completion, Error, Event, EventKind, EventQueue, Host, MemoryRegion,
    RecvFlags, Socket, SocketType, Token,
};
use exs_tools::road::Road;

use super::NetError;

/// Data of one frame and its header, and room for small frames beside them.
pub(crate) const SIZE: usize = (1 << 20) + (64 << 10);
/// Sends on their way at most; the other buffers are being filled and hashed.
pub(crate) const SENDS: usize = 4;
/// Receives on their way at most; the thread that writes has some of these buffers.
pub(crate) const RECVS: usize = 6;
const TICK: Duration = Duration::from_millis(100);

const CONNECT: Token = Token(1);
const ACCEPT: Token = Token(2);
const SEND: Token = Token(3);
const RECV: Token = Token(4);

/// Registered memory; `Deref` to its bytes.
pub(crate) type Buffer = ExsBuffer;

/// An event of the queue.
pub(crate) enum Happened {
    /// A buffer is free again.
    Sent(Buffer),
    /// The second field is the number of bytes at the front of the buffer.
    Received(Buffer, usize),
    /// The peer will send no more.
    Eof,
}

/// What carries the bytes, for the summary: all that was used.
#[derive(Default)]
pub(crate) struct Via(Mutex<BTreeSet<String>>);

impl Via {
    pub(crate) fn note(&self, pipe: &Pipe) {
        if let Some(route) = pipe.socket.transport() {
            self.0.lock().unwrap_or_else(|p| p.into_inner()).insert(route.to_string());
        }
    }

    pub(crate) fn names(&self) -> String {
        let names = self.0.lock().unwrap_or_else(|p| p.into_inner());
        match names.is_empty() {
            true => "none".to_owned(),
            false => names.iter().cloned().collect::<Vec<_>>().join(", "),
        }
    }
}

fn socket(road: &Road) -> Result<Socket, NetError> {
    // Our ends are small: what does not leave in this time will not.
    let options = road.options().with_linger(Duration::from_secs(5));
    Socket::with_options(SocketType::Stream, options)
}

/// One connection.
pub(crate) struct Pipe {
    socket: Socket,
    queue: EventQueue,
    events: Vec<Event>,
    /// Sends that found the socket busy; an event of another one follows.
    unsent: VecDeque<(Buffer, usize)>,
    /// Told when everything that came before it was taken.
    failed: Option<NetError>,
    peer: String,
    closed: bool,
}

impl Pipe {
    fn new(socket: Socket, queue: EventQueue, peer: SocketAddr) -> Pipe {
        Pipe {
            socket,
            queue,
            events: Vec::with_capacity(SENDS + RECVS),
            unsent: VecDeque::new(),
            failed: None,
            peer: peer.to_string(),
            closed: false,
        }
    }

    /// Connects; gives up when `stop` is set.
    pub(crate) fn connect(host: &Host, road: &Road, stop: &AtomicBool) -> Result<Pipe, NetError> {
        let (socket, queue) = (socket(road)?, EventQueue::new(depth())?);
        socket.connect_host(&queue, CONNECT, host)?;
        loop {
            for event in dequeue(&queue, TICK)? {
                if event.kind() == EventKind::Connect {
                    event.into_result()?;
                    let peer = socket.peer_addr()?;
                    return Ok(Pipe::new(socket, queue, peer));
                }
            }
            if stop.load(Ordering::Relaxed) {
                socket.abort();
                return Err(Error::Interrupted);
            }
        }
    }

    /// What ends the connection from another thread.
    pub(crate) fn cut(&self) -> Cut {
        let socket = self.socket.clone();
        Cut(Box::new(move || socket.abort()))
    }

    pub(crate) fn peer(&self) -> String {
        self.peer.clone()
    }

    /// Buffers to send from, and buffers to receive into, of one registration.
    pub(crate) fn buffers(&self) -> Result<(Vec<Buffer>, Vec<Buffer>), NetError> {
        let region = MemoryRegion::new(SIZE * (SENDS + RECVS))?;
        let mut all = (0..SENDS + RECVS)
            .map(|i| region.buffer(i * SIZE..(i + 1) * SIZE))
            .collect::<Result<Vec<_>, _>>()?;
        let recvs = all.split_off(SENDS);
        Ok((all, recvs))
    }

    /// Sends the first `len` bytes; `Happened::Sent` brings the buffer back.
    pub(crate) fn send(&mut self, mut buffer: Buffer, len: usize) -> Result<(), NetError> {
        buffer.narrow(..len);
        if !self.unsent.is_empty() {
            self.unsent.push_back((buffer, len));
            return Ok(());
        }
        self.post_send(buffer, len)
    }

    fn post_send(&mut self, buffer: Buffer, len: usize) -> Result<(), NetError> {
        match self.socket.send(&self.queue, SEND, buffer) {
            Ok(()) => Ok(()),
            Err(refused) if refused.error.is_would_block() => {
                self.unsent.push_front((refused.buffer, len));
                Ok(())
            }
            Err(refused) => Err(refused.error),
        }
    }

    /// Receives into the whole buffer; as much as there is, not all of it.
    pub(crate) fn recv(&mut self, mut buffer: Buffer) -> Result<(), NetError> {
        buffer.widen();
        let posted = self.socket.recv(&self.queue, RECV, buffer, RecvFlags::NONE);
        match posted.map_err(|refused| refused.error) {
            // The end, or the failure, is told by the events of other receives.
            Err(_) if self.failed.is_some() => Ok(()),
            other => other,
        }
    }

    /// Waits for something to happen, but not longer than `timeout`.
    pub(crate) fn wait(
        &mut self,
        out: &mut Vec<Happened>,
        timeout: Duration,
    ) -> Result<(), NetError> {
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        let mut events = std::mem::take(&mut self.events);
        let waited = self.queue.dequeue_into(&mut events, 1, SENDS + RECVS, Some(timeout));
        for event in events.drain(..) {
            self.take_in(event, out);
        }
        self.events = events;
        match waited {
            Ok(_) | Err(Error::Interrupted) => {}
            Err(e) => return Err(e),
        }
        if let Some((buffer, len)) = self.unsent.pop_front() {
            self.post_send(buffer, len)?;
        }
        match self.failed.take() {
            Some(e) if out.is_empty() => Err(e),
            failed => {
                self.failed = failed;
                Ok(())
            }
        }
    }

    fn take_in(&mut self, mut event: Event, out: &mut Vec<Happened>) {
        let (kind, n, eof) = (event.kind(), event.bytes(), event.eof());
        let buffer = event.take_buffer();
        match (kind, buffer) {
            (EventKind::Send, Some(mut buffer)) => {
                buffer.widen();
                out.push(Happened::Sent(buffer));
            }
            (EventKind::Recv, Some(buffer)) if n > 0 => out.push(Happened::Received(buffer, n)),
            _ => {}
        }
        if eof {
            out.push(Happened::Eof);
        }
        if let Err(e) = event.into_result() {
            // The first one says why; those that follow are its consequence.
            self.failed.get_or_insert(e);
        }
    }

    /// Closes in order: the peer gets all bytes that were sent. Takes at most the linger time.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        let _ = self.socket.blocking().close();
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        if !self.closed {
            self.socket.abort();
        }
    }
}

/// Every buffer in flight, and a connect.
fn depth() -> usize {
    SENDS + RECVS + 1
}

/// Events; none after `timeout` or a signal.
fn dequeue(queue: &EventQueue, timeout: Duration) -> Result<Vec<Event>, NetError> {
    match queue.dequeue(SENDS + RECVS, Some(timeout)) {
        Err(Error::Interrupted) => Ok(Vec::new()),
        other => other,
    }
}

/// Ends a connection that another thread has.
pub(crate) struct Cut(Box<dyn Fn() + Send>);

impl Cut {
    /// Every operation of the connection ends at once.
    pub(crate) fn cut(&self) {
        (self.0)();
    }

    /// Of no connection: `cut` is called instead.
    #[cfg(test)]
    pub(crate) fn test(cut: impl Fn() + Send + 'static) -> Cut {
        Cut(Box::new(cut))
    }
}

/// A listening socket.
pub(crate) struct Listener {
    socket: Socket,
    queue: EventQueue,
    ready: VecDeque<Event>,
}

/// A peer that connected, and its connection, if there are the means for it.
pub(crate) type Caller = (SocketAddr, Result<Pipe, NetError>);

/// Accepts posted ahead.
const ACCEPTS: usize = 16;

impl Listener {
    pub(crate) fn bind(addr: SocketAddr, road: &Road) -> Result<Listener, NetError> {
        let (socket, queue) = (socket(road)?, EventQueue::new(2 * ACCEPTS)?);
        socket.bind(addr)?;
        socket.listen(128)?;
        for _ in 0..ACCEPTS {
            socket.accept(&queue, ACCEPT)?;
        }
        Ok(Listener { socket, queue, ready: VecDeque::new() })
    }

    pub(crate) fn addr(&self) -> Result<SocketAddr, NetError> {
        self.socket.local_addr()
    }

    /// The next peer, if one comes within the time. The error is the listener's own.
    pub(crate) fn accept(&mut self, timeout: Duration) -> Result<Option<Caller>, NetError> {
        if self.ready.is_empty() {
            self.ready.extend(dequeue(&self.queue, timeout)?);
        }
        let Some(event) = self.ready.pop_front() else { return Ok(None) };
        self.socket.accept(&self.queue, ACCEPT)?;
        match event.into_completion() {
            Ok(Completion::Accept { socket, peer, .. }) => {
                let queue = EventQueue::new(depth());
                Ok(Some((peer, queue.map(|queue| Pipe::new(socket, queue, peer)))))
            }
            // One peer that broke off while it connected is no reason to stop.
            _ => Ok(None),
        }
    }
}
