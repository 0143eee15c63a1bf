//! Blocking twins: the ES-API's "synchronous" use.

use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::private_queues::{keep, queue_for, queue_for_accept};
use super::raw::{with_slice, with_slice_mut};
use super::{Completion, Event, EventQueue, RemoteBuffer, Socket, ToHost, Token};
use crate::mem::Buffer;
use crate::progress::{Error, Interest, Readiness, RecvFlags};

/// The calls of a [`Socket`] that wait for their end. Borrowed slices will do, as no
/// call returns before its operation has ended.
///
/// A signal handler that runs meanwhile does not interrupt a call whose bytes may be
/// moving already; time limits do ([`Options::send_timeout`](crate::Options)).
/// Implements [`io::Read`] and [`io::Write`]; [`SocketStream`](super::SocketStream) does so and owns
/// its socket.
///
/// ```
/// use exs::Socket;
/// let listener = Socket::stream()?;
/// listener.bind("[::1]:0".parse().unwrap())?;
/// listener.listen(1)?;
/// let client = Socket::stream()?;
/// client.blocking().connect(listener.local_addr()?)?;
/// let (server, _) = listener.blocking().accept()?;
/// client.blocking().send_all(b"hello")?;
/// let mut text = [0; 5];
/// server.blocking().recv_exact(&mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Blocking<'a> {
    pub(super) socket: &'a Socket,
}

/// A received seqpacket message.
///
/// ```
/// # use exs::Socket;
/// # let listener = Socket::seqpacket()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::seqpacket()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// # let (server, _) = listener.blocking().accept()?;
/// client.blocking().send(b"a message of 24 bytes...")?;
/// let mut start = [0; 9];
/// let packet = server.blocking().recv_packet(&mut start)?;
/// assert_eq!(&start, b"a message");
/// assert_eq!((packet.bytes, packet.total, packet.eof), (9, 24, false)); // cut off
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Packet {
    /// Bytes in the buffer.
    pub bytes: usize,
    /// True length of the message: more than `bytes` if it was cut off.
    pub total: u64,
    /// No message: the peer has ended its direction.
    pub eof: bool,
}

/// The one event of the operation just posted, whatever signals say.
fn wait(queue: &EventQueue, socket: &Socket) -> Result<Event, Error> {
    loop {
        match queue.next_of(socket) {
            Err(Error::Interrupted) => {}
            other => return other,
        }
    }
}

pub(super) const TOKEN: Token = Token(0);

impl<'a> Blocking<'a> {
    pub(super) fn new(socket: &'a Socket) -> Blocking<'a> {
        Blocking { socket }
    }

    pub(super) fn run(
        &self,
        post: impl FnOnce(&EventQueue) -> Result<(), Error>,
    ) -> Result<Event, Error> {
        self.run_on(queue_for(self.socket)?, post)
    }

    /// The same, on this queue of the thread's.
    fn run_on(
        &self,
        queue: EventQueue,
        post: impl FnOnce(&EventQueue) -> Result<(), Error>,
    ) -> Result<Event, Error> {
        let result = post(&queue).and_then(|()| wait(&queue, self.socket));
        keep(queue);
        result
    }

    /// Posts with a lent buffer; gives it back with the outcome.
    fn run_lent(
        &self,
        buffer: Buffer,
        post: impl FnOnce(&EventQueue, Buffer) -> Result<(), super::Refused>,
    ) -> (Buffer, Result<Event, Error>) {
        let queue = match queue_for(self.socket) {
            Ok(queue) => queue,
            Err(e) => return (buffer, Err(e)),
        };
        if let Err(refused) = post(&queue, buffer) {
            keep(queue);
            return (refused.buffer, Err(refused.error));
        }
        let result = wait(&queue, self.socket);
        keep(queue);
        match result {
            Ok(mut event) => match event.take_buffer() {
                Some(buffer) => (buffer, Ok(event)),
                // Never: an event brings its buffer. `lend` ends the process.
                None => (Buffer::from(Vec::new()), Ok(event)),
            },
            Err(e) => (Buffer::from(Vec::new()), Err(e)),
        }
    }

    /// Connects to an address, or to the first address of a host that answers
    /// ([`Socket::connect_host`]). Waits until both ends are there, for
    /// [`Options::connect_timeout`](crate::Options) at most.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let another = Socket::stream()?;
    /// another.blocking().connect(listener.local_addr()?)?; // or "localhost:7471"
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::connect_host`], and those of its event.
    pub fn connect(&self, host: impl ToHost) -> Result<(), Error> {
        let host = host.to_host()?;
        self.run(|q| self.socket.connect_host(q, TOKEN, host))?.into_result().map(|_| ())
    }

    /// Accepts a connection.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let another = Socket::stream()?;
    /// another.blocking().connect(listener.local_addr()?)?;
    /// let (accepted, peer) = listener.blocking().accept()?;
    /// assert_eq!((accepted.peer_addr()?, another.local_addr()?), (peer, peer));
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the socket is not listening, or is closed meanwhile.
    pub fn accept(&self) -> Result<(Socket, SocketAddr), Error> {
        let (queue, home) = queue_for_accept(self.socket)?;
        let event = self.run_on(queue, |q| self.socket.accept_in(q, TOKEN, home))?;
        match event.into_completion()? {
            Completion::Accept { socket, peer } => Ok((socket, peer)),
            other => Err(Error::invalid(format!("accept ended with {other:?}"))),
        }
    }

    /// Sends all of it (as one message on a seqpacket socket); returns how much. It returns when
    /// the bytes are on their way. Sends of several threads are not mixed.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// assert_eq!(client.blocking().send(b"hello")?, 5);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the connection is over, or time is up. The bytes that left before stay sent.
    pub fn send(&self, bytes: &[u8]) -> Result<usize, Error> {
        match self.socket.sends_few_at_once(bytes) {
            true => Ok(bytes.len()),
            false => self.send_event(bytes)?.into_result(),
        }
    }

    pub(super) fn send_event(&self, bytes: &[u8]) -> Result<Event, Error> {
        with_slice(bytes, |b| self.run_lent(b, |q, b| self.socket.send(q, TOKEN, b)))
    }

    /// Sends all of it.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"hello")?;
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::send`].
    pub fn send_all(&self, bytes: &[u8]) -> Result<(), Error> {
        self.send(bytes).map(|_| ())
    }

    pub(super) fn recv_event(&self, bytes: &mut [u8], flags: RecvFlags) -> Result<Event, Error> {
        with_slice_mut(bytes, |b| self.run_lent(b, |q, b| self.socket.recv(q, TOKEN, b, flags)))
    }

    /// Receives what is there, but at least one byte; 0 is the end.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"hello")?;
    /// let mut text = [0; 100];
    /// let n = server.blocking().recv(&mut text)?;
    /// assert_eq!(&text[..n], b"hello");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the connection broke, or time is up.
    pub fn recv(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        match self.socket.pass(bytes)? {
            0 => self.recv_event(bytes, RecvFlags::NONE)?.into_result(),
            n => Ok(n),
        }
    }

    /// Looks at what is there without taking it. Of a large seqpacket message that is
    /// still at the peer it brings 0 bytes: use [`Socket::recv`] with
    /// [`RecvFlags::PEEK`], whose event has the message's length too.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"hello")?;
    /// let mut first = [0; 1];
    /// server.blocking().peek(&mut first)?;
    /// assert_eq!(&first, b"h"); // a receive gets it again
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::recv`].
    pub fn peek(&self, bytes: &mut [u8]) -> Result<usize, Error> {
        self.recv_event(bytes, RecvFlags::PEEK)?.into_result()
    }

    /// Receives until the slice is full (MSG_WAITALL).
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"hel")?;
    /// client.blocking().send_all(b"lo")?;
    /// let mut text = [0; 5];
    /// server.blocking().recv_exact(&mut text)?;
    /// assert_eq!(&text, b"hello");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::recv`]; [`Error::EndOfStream`] if the stream ends before.
    pub fn recv_exact(&self, bytes: &mut [u8]) -> Result<(), Error> {
        let passed = self.socket.pass(bytes)?;
        let rest = &mut bytes[passed..];
        if passed > 0 && rest.is_empty() {
            return Ok(());
        }
        let got = passed + self.recv_event(rest, RecvFlags::WAITALL)?.into_result()?;
        if got < bytes.len() {
            return Err(Error::EndOfStream { got, wanted: bytes.len() });
        }
        Ok(())
    }

    /// Receives one message of a seqpacket socket. [`Packet`] has an example.
    ///
    /// # Errors
    /// As [`Blocking::recv`].
    pub fn recv_packet(&self, bytes: &mut [u8]) -> Result<Packet, Error> {
        let event = self.recv_event(bytes, RecvFlags::NONE)?;
        let (total, eof) = (event.total(), event.eof());
        Ok(Packet { bytes: event.into_result()?, total, eof })
    }

    /// Sends several slices as one stretch of bytes, or one message. They are copied;
    /// [`Socket::send_vectored`] does without.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let parts = [std::io::IoSlice::new(b"head"), std::io::IoSlice::new(b"body")];
    /// assert_eq!(client.blocking().send_vectored(&parts)?, 8);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::send`].
    pub fn send_vectored(&self, parts: &[io::IoSlice<'_>]) -> Result<usize, Error> {
        self.vectored(parts.iter().map(|p| Buffer::copy_from_slice(p)).collect(), |q, v| {
            self.socket.send_vectored(q, TOKEN, v)
        })
        .and_then(Event::into_result)
    }

    /// Receives into several slices, one after the other, by way of memory of the
    /// library's; [`Socket::recv_vectored`] does without.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"headbody")?;
    /// let (mut head, mut body) = ([0; 4], [0; 100]);
    /// let mut parts = [std::io::IoSliceMut::new(&mut head), std::io::IoSliceMut::new(&mut body)];
    /// assert_eq!(server.blocking().recv_vectored(&mut parts)?, 8);
    /// assert_eq!((&head, &body[..4]), (b"head", &b"body"[..]));
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::recv`].
    pub fn recv_vectored(&self, parts: &mut [io::IoSliceMut<'_>]) -> Result<usize, Error> {
        let own = parts.iter().map(|p| Buffer::from(vec![0; p.len()])).collect();
        let mut event =
            self.vectored(own, |q, v| self.socket.recv_vectored(q, TOKEN, v, RecvFlags::NONE))?;
        let filled = event.take_buffers();
        let n = event.into_result()?;
        let mut left = n;
        for (part, own) in parts.iter_mut().zip(&filled) {
            let k = left.min(part.len());
            part[..k].copy_from_slice(&own[..k]);
            left -= k;
        }
        Ok(n)
    }

    fn vectored(
        &self,
        buffers: Vec<Buffer>,
        post: impl FnOnce(&EventQueue, Vec<Buffer>) -> Result<(), super::Refused<Vec<Buffer>>>,
    ) -> Result<Event, Error> {
        self.run(|q| post(q, buffers).map_err(Error::from))
    }

    /// Sends a part of a file; returns how much.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let file = std::sync::Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
    /// assert_eq!(client.blocking().send_file(&file, 0, 4)?, 4);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::send`], or if the file cannot be read.
    pub fn send_file(&self, file: &Arc<File>, offset: u64, len: u64) -> Result<usize, Error> {
        self.run(|q| self.socket.send_file(q, TOKEN, Arc::clone(file), offset, len))?.into_result()
    }

    /// RDMA READ from the peer's memory.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![7; 100], Rights::READ, None)?;
    /// let mut bytes = [0; 10];
    /// server.blocking().read(&export.descriptor(), 90, &mut bytes)?;
    /// assert_eq!(bytes, [7; 10]);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the peer no longer allows it (which ends the connection), or it is over.
    pub fn read(
        &self,
        remote: &RemoteBuffer,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, Error> {
        with_slice_mut(bytes, |b| {
            self.run_lent(b, |q, b| self.socket.read(q, TOKEN, remote, offset, b))
        })?
        .into_result()
    }

    /// RDMA WRITE to the peer's memory; when it returns, the bytes are there.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let export = client.export(vec![0; 100], Rights::WRITE, None)?;
    /// server.blocking().write(&export.descriptor(), 0, b"hello")?;
    /// let mut text = [0; 5];
    /// export.read_at(0, &mut text)?;
    /// assert_eq!(&text, b"hello");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Blocking::read`].
    pub fn write(&self, remote: &RemoteBuffer, offset: u64, bytes: &[u8]) -> Result<usize, Error> {
        with_slice(bytes, |b| {
            self.run_lent(b, |q, b| self.socket.write(q, TOKEN, remote, offset, b))
        })?
        .into_result()
    }

    /// Waits for readiness; None if the time is up.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let moment = Some(Duration::from_millis(1));
    /// assert_eq!(server.blocking().poll(Interest::READABLE, moment)?, None);
    /// client.blocking().send_all(b"hello")?;
    /// assert!(server.blocking().poll(Interest::READABLE, None)?.unwrap().readable);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Interrupted`] if a signal handler ran.
    pub fn poll(
        &self,
        want: Interest,
        timeout: Option<Duration>,
    ) -> Result<Option<Readiness>, Error> {
        // The token is the queue's own address, so that a timeout cancels this poll
        // and no other thread's.
        let queue = EventQueue::new(1)?;
        let token = Token(Arc::as_ptr(queue.core()).addr() as u64);
        self.socket.poll(&queue, token, want)?;
        let events = queue.dequeue(1, timeout);
        if !matches!(&events, Ok(list) if !list.is_empty()) {
            // Also after a signal, or polls would gather on the socket.
            self.socket.cancel(token);
        }
        Ok(events?.first().map(Event::readiness))
    }

    /// Ends one direction, or both.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().shutdown(Shutdown::Write)?;
    /// assert_eq!(server.blocking().recv(&mut [0; 10])?, 0);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the socket is not connected.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        self.run(|q| self.socket.shutdown(q, TOKEN, how))?.into_result().map(|_| ())
    }

    /// Closes, and waits until all that was sent is delivered.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.blocking().send_all(b"goodbye")?;
    /// client.blocking().close()?; // the server has it
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// If something could not be delivered.
    pub fn close(&self) -> Result<(), Error> {
        self.run(|q| self.socket.close(q, TOKEN))?.into_result().map(|_| ())
    }
}
