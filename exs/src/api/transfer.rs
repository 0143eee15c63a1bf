//! The calls of a socket that move data.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use super::{EventQueue, Export, RemoteBuffer, Socket, Token};
use crate::mem::{Access, Buffer};
use crate::progress::{Bufs, Error, FileSend, Part, RecvFlags, Rights, Short};
use crate::sys::cold_path;

/// A post that was refused: why, and the memory that was to be moved.
///
/// ```
/// use exs::{EventQueue, RecvFlags, Socket, Token};
/// let queue = EventQueue::new(4)?;
/// let refused = Socket::stream()?
///     .recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)
///     .expect_err("it is not connected");
/// println!("{}", refused.error);
/// assert_eq!(refused.buffer.len(), 100); // still yours
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[allow(
    clippy::exhaustive_structs,
    reason = "an error and what comes back: programs take it apart"
)]
pub struct Refused<T: std::fmt::Debug = Buffer> {
    /// Why.
    pub error: Error,
    /// The memory, untouched.
    pub buffer: T,
}

impl<T: std::fmt::Debug> From<Refused<T>> for Error {
    #[cold]
    fn from(r: Refused<T>) -> Error {
        r.error
    }
}

impl<T: std::fmt::Debug> From<Refused<T>> for std::io::Error {
    #[cold]
    fn from(r: Refused<T>) -> std::io::Error {
        r.error.into()
    }
}

/// Two-sided: streams and messages.
impl Socket {
    /// Sends the buffer's window. The event says that the memory is yours again and
    /// that the bytes are on their way, in order. A seqpacket socket sends it as one
    /// message.
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`], not connected, shut down, or a
    /// message too long for the peer.
    pub fn send(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        self.post_one(queue, buffer.into(), |b| {
            let id = self.handle().id();
            self.handle().context().call_at(|e, moment| {
                e.post_send(id, &self.ticket(queue, token), Bufs::One(b), moment)
            })
        })
    }

    /// Receives into the buffer's window: as many bytes as are there (all of it with
    /// [`RecvFlags::WAITALL`]), or one message. 0 bytes with `eof` is the end.
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`], or not connected.
    pub fn recv(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused> {
        self.post_one(queue, buffer.into(), |b| {
            let id = self.handle().id();
            self.handle().context().call_at(|e, moment| {
                e.post_recv(id, &self.ticket(queue, token), Bufs::One(b), flags, moment)
            })
        })
    }

    fn post_one(
        &self,
        queue: &EventQueue,
        buffer: Buffer,
        f: impl FnOnce(Buffer) -> Result<(), (Error, Bufs)>,
    ) -> Result<(), Refused> {
        if let Err(error) = queue.core().reserve() {
            cold_path();
            return Err(Refused { error, buffer });
        }
        f(buffer).map_err(|(error, bufs)| {
            cold_path();
            queue.core().unreserve();
            Refused { error, buffer: one(bufs) }
        })
    }

    fn post_many(
        &self,
        queue: &EventQueue,
        buffers: Vec<Buffer>,
        f: impl FnOnce(Vec<Buffer>) -> Result<(), (Error, Bufs)>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        if let Err(error) = queue.core().reserve() {
            return Err(Refused { error, buffer: buffers });
        }
        f(buffers).map_err(|(error, bufs)| {
            queue.core().unreserve();
            let buffer = match bufs {
                Bufs::Many(v) => v,
                Bufs::One(b) => vec![b],
                Bufs::None => Vec::new(),
            };
            Refused { error, buffer }
        })
    }

    /// Sends several buffers as one stretch of bytes, or one message.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_vectored(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.post_many(queue, buffers, |v| {
            let id = self.handle().id();
            self.handle().context().call_at(|e, moment| {
                e.post_send(id, &self.ticket(queue, token), Bufs::Many(v), moment)
            })
        })
    }

    /// Receives into several buffers, filled one after the other. On a stream they are
    /// filled without a copy only with [`RecvFlags::WAITALL`].
    ///
    /// # Errors
    /// As [`Socket::recv`].
    pub fn recv_vectored(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.post_many(queue, buffers, |v| {
            let id = self.handle().id();
            self.handle().context().call_at(|e, moment| {
                e.post_recv(id, &self.ticket(queue, token), Bufs::Many(v), flags, moment)
            })
        })
    }

    /// As `recv_vectored`, if it would not wait.
    pub(super) fn recv_ready(
        &self,
        queue: &EventQueue,
        token: Token,
        buffers: Vec<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        self.post_many(queue, buffers, |mut v| {
            let id = self.handle().id();
            self.handle().context().call_at(|e, moment| {
                if e.recv_would_wait(id) {
                    let nothing = Error::WouldBlock { what: "socket's receiver", limit: 0 };
                    return Err((nothing, Bufs::Many(v)));
                }
                let bufs = match v.pop() {
                    Some(only) if v.is_empty() => Bufs::One(only),
                    Some(last) => {
                        v.push(last);
                        Bufs::Many(v)
                    }
                    None => Bufs::Many(v),
                };
                e.post_recv(id, &self.ticket(queue, token), bufs, flags, moment)
            })
        })
    }

    /// Sends a part of a file without reading it into the program's memory. If the
    /// file turns out to be shorter, the event has the bytes sent and an error.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_file(
        &self,
        queue: &EventQueue,
        token: Token,
        file: Arc<File>,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        let (id, context) = (self.handle().id(), self.handle().context());
        let file = FileSend { file, offset, len };
        self.post_bare(queue, || {
            context.call(|e, now| e.post_file(id, &self.ticket(queue, token), file, now))
        })
    }
}

/// Memory and files in one.
impl Socket {
    /// Sends memory and stretches of files, in order, as one stretch of bytes, and with
    /// `shut` ends the sending direction after it. One event says how all of it ended, and
    /// brings the buffers. When a part fails (a file that turns out to be shorter, say),
    /// those behind it are not sent and the direction is not ended. (A file that becomes
    /// shorter while it is sent shows that too late: what is behind it may have been sent,
    /// and only the event's error tells.) On a seqpacket socket
    /// there can be one part, which is one message. (The ES-API's sendfile.)
    ///
    /// ```
    /// use exs::{EventQueue, Part, Token};
    /// use std::sync::Arc;
    /// # use exs::Socket;
    /// # let listener = Socket::stream()?;
    /// # listener.bind("127.0.0.1:0".parse().unwrap())?;
    /// # listener.listen(1)?;
    /// # let client = Socket::stream()?;
    /// # client.blocking().connect(listener.local_addr()?)?;
    /// # let (server, _) = listener.blocking().accept()?;
    /// let queue = EventQueue::new(4)?;
    /// let file = Arc::new(std::fs::File::open("/proc/self/exe")?);
    /// let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", 4);
    /// let parts = vec![
    ///     Part::Memory(vec![head.into()]),
    ///     Part::File { file, offset: 0, len: 4 },
    /// ];
    /// client.send_parts(&queue, Token(1), parts, true)?;
    /// let mut got = Vec::new();
    /// std::io::Read::read_to_end(&mut server.blocking(), &mut got)?;
    /// assert!(got.ends_with(b"\r\n\r\n\x7fELF"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn send_parts(
        &self,
        queue: &EventQueue,
        token: Token,
        parts: Vec<Part>,
        shut: bool,
    ) -> Result<(), Refused<Vec<Part>>> {
        if let Err(error) = queue.core().reserve() {
            return Err(Refused { error, buffer: parts });
        }
        let id = self.handle().id();
        let short = Short::of(&parts);
        let posted = self
            .handle()
            .context()
            .call(|e, now| e.post_parts(id, &self.ticket(queue, token), (parts, short), shut, now));
        posted.map_err(|(error, buffer)| {
            queue.core().unreserve();
            Refused { error, buffer }
        })
    }
}

/// One-sided: the peer's memory, without its program.
impl Socket {
    /// Opens a buffer to the peer of this connection, for RDMA READ or WRITE, until it
    /// is revoked, the lifetime is over, or the connection ends. Hand the
    /// [`Export::descriptor`] to the peer by a message of your own. (EXS extension.)
    ///
    /// # Errors
    /// Refused, with the buffer: not connected, or empty; or, over an RDMA device, a peer holds up
    /// what was sent before, and many exports (EAGAIN).
    pub fn export(
        &self,
        buffer: impl Into<Buffer>,
        rights: Rights,
        lifetime: Option<Duration>,
    ) -> Result<Export, Refused> {
        let buffer = buffer.into();
        let len = buffer.len();
        if len == 0 || !(rights.read || rights.write) {
            let error = Error::invalid("an export needs at least one byte and one right");
            return Err(Refused { error, buffer });
        }
        let access = Access {
            local_write: rights.write,
            remote_read: rights.read,
            remote_write: rights.write,
        };
        let id = self.handle().id();
        let made =
            self.handle().context().call(|e, now| e.export(id, buffer, access, lifetime, now));
        match made {
            Ok((remote, export)) => {
                let descriptor = RemoteBuffer::new(remote, len as u64, rights);
                Ok(Export::new(Arc::clone(self.handle()), descriptor, export))
            }
            Err((error, buffer)) => Err(Refused { error, buffer }),
        }
    }

    /// RDMA READ: fills the buffer's window from the peer's memory at `offset`. The
    /// peer's program takes no part. (EXS extension.)
    ///
    /// # Errors
    /// Refused, with the buffer: out of the range, no right, or not connected.
    pub fn read(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        let buffer = buffer.into();
        let target = match remote.target(offset, buffer.len(), false) {
            Ok(t) => t,
            Err(error) => return Err(Refused { error, buffer }),
        };
        self.post_one(queue, buffer, |b| {
            let id = self.handle().id();
            self.handle()
                .context()
                .call(|e, now| e.post_read(id, &self.ticket(queue, token), target, b, now))
        })
    }

    /// RDMA WRITE: copies the buffer's window into the peer's memory at `offset`. The
    /// event says that the bytes are there. (EXS extension.)
    ///
    /// # Errors
    /// As [`Socket::read`].
    pub fn write(
        &self,
        queue: &EventQueue,
        token: Token,
        remote: &RemoteBuffer,
        offset: u64,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        let buffer = buffer.into();
        let target = match remote.target(offset, buffer.len(), true) {
            Ok(t) => t,
            Err(error) => return Err(Refused { error, buffer }),
        };
        self.post_one(queue, buffer, |b| {
            let id = self.handle().id();
            self.handle()
                .context()
                .call(|e, now| e.post_write(id, &self.ticket(queue, token), target, b, now))
        })
    }
}

fn one(bufs: Bufs) -> Buffer {
    match bufs {
        Bufs::One(b) => b,
        // A refusal returns what was given, which was one buffer.
        _ => Buffer::from(Vec::new()),
    }
}
