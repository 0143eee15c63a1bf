//! The calls of a socket that move data.

use std::fs::File;
use std::sync::Arc;

use super::{EventQueue, Socket, Token};
use crate::mem::{Buffer, MemError};
use crate::progress::{Bufs, Error, FileSend, Part, RecvFlags, Short};
use crate::sys::cold_path;

/// A post that was refused: why, and the memory that it would have moved.
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
pub struct Refused<T = Buffer> {
    /// Why.
    pub error: Error,
    /// The memory, untouched.
    pub buffer: T,
}

impl<T> From<Refused<T>> for Error {
    #[cold]
    fn from(r: Refused<T>) -> Error {
        r.error
    }
}

impl<T> From<Refused<T>> for std::io::Error {
    #[cold]
    fn from(r: Refused<T>) -> std::io::Error {
        r.error.into()
    }
}

/// Two-sided: streams and messages.
impl Socket {
    /// Sends the buffer's window. A seqpacket socket sends it as one message.
    ///
    /// The event says that the memory is yours again and that all bytes are on their way, in order; not
    /// that the peer's program has them. A send that is cancelled, or whose
    /// [`send_timeout`](crate::Options) is over, may have sent a part: [`Failed::bytes`](super::Failed)
    /// says how much, and the stream goes on behind it. Of a message nothing arrives then.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), "hello".to_owned())?;
    /// if let Completion::Send { buffer, bytes, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!((&buffer[..], bytes), (&b"hello"[..], 5)); // it can be used again
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`], not connected, shut down (EPIPE), or a
    /// message too long for the peer (EMSGSIZE).
    pub fn send(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
    ) -> Result<(), Refused> {
        self.post_one(queue, buffer.into(), |b| {
            self.handle().post(queue.core(), |e, id, call| {
                e.post_send(id, &self.ticket(queue, token), Bufs::One(b), call)
            })
        })
    }

    /// Receives into the buffer's window: as many bytes as are there (all of it with
    /// [`RecvFlags::WAITALL`]), or one message. 0 bytes with `eof` is the end.
    ///
    /// Receives are filled in the order of posting. More than a few KiB that find a receive are not
    /// copied, so post it early. A receive that is cancelled, or whose
    /// [`recv_timeout`](crate::Options) is over, keeps what had come: [`Failed::bytes`](super::Failed)
    /// says how much.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// server.recv(&queue, Token(1), vec![0; 4096], RecvFlags::NONE)?;
    /// client.blocking().send_all(b"hello")?;
    /// if let Completion::Recv { buffer, bytes, eof, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!((&buffer[..bytes], eof), (&b"hello"[..], false));
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// Refused, with the buffer: [`Error::WouldBlock`], or not connected. The event has ECONNRESET and
    /// the like when the connection breaks.
    pub fn recv(
        &self,
        queue: &EventQueue,
        token: Token,
        buffer: impl Into<Buffer>,
        flags: RecvFlags,
    ) -> Result<(), Refused> {
        self.post_one(queue, buffer.into(), |b| {
            self.handle().post(queue.core(), |e, id, call| {
                e.post_recv(id, &self.ticket(queue, token), Bufs::One(b), flags, call)
            })
        })
    }

    pub(super) fn post_one(
        &self,
        queue: &EventQueue,
        buffer: Buffer,
        f: impl FnOnce(Buffer) -> Result<(), (Error, Bufs)>,
    ) -> Result<(), Refused> {
        if !buffer.is_mapped() {
            cold_path();
            return Err(Refused { error: MemError::Unmapped.into(), buffer });
        }
        self.post_unseen(queue, buffer, f)
    }

    /// As `post_one`, for an operation in which a device moves the bytes. The processor need not reach
    /// them.
    pub(super) fn post_unseen(
        &self,
        queue: &EventQueue,
        buffer: Buffer,
        f: impl FnOnce(Buffer) -> Result<(), (Error, Bufs)>,
    ) -> Result<(), Refused> {
        post(queue, buffer, f, one)
    }

    fn post_many(
        &self,
        queue: &EventQueue,
        buffers: Vec<Buffer>,
        f: impl FnOnce(Vec<Buffer>) -> Result<(), (Error, Bufs)>,
    ) -> Result<(), Refused<Vec<Buffer>>> {
        if !buffers.iter().all(Buffer::is_mapped) {
            return Err(Refused { error: MemError::Unmapped.into(), buffer: buffers });
        }
        post(queue, buffers, f, many)
    }

    /// Sends several buffers as one stretch of bytes, or one message. Otherwise as [`Socket::send`].
    /// The number of bytes in the event is that of all buffers together.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let parts = vec![Buffer::from(*b"a head, "), Buffer::from(vec![b'x'; 3])];
    /// client.send_vectored(&queue, Token(1), parts)?;
    /// if let Completion::SendVectored { buffers, bytes, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!((buffers.len(), bytes), (2, 11));
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
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
            self.handle().post(queue.core(), |e, id, call| {
                e.post_send(id, &self.ticket(queue, token), Bufs::Many(v), call)
            })
        })
    }

    /// Receives into several buffers, filled one after the other. On a stream they are
    /// filled without a copy only with [`RecvFlags::WAITALL`]. Otherwise as [`Socket::recv`].
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let parts = vec![vec![0; 4].into(), vec![0; 100].into()];
    /// server.recv_vectored(&queue, Token(1), parts, RecvFlags::NONE)?;
    /// client.blocking().send_all(b"headbody")?;
    /// if let Completion::RecvVectored { buffers, bytes, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!((&buffers[0][..], &buffers[1][..bytes - 4]), (&b"head"[..], &b"body"[..]));
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
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
            self.handle().post(queue.core(), |e, id, call| {
                e.post_recv(id, &self.ticket(queue, token), Bufs::Many(v), flags, call)
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
            self.handle().post(queue.core(), |e, id, call| {
                e.fetch_polled(id, || call.now());
                if e.sockets.recv_would_wait(id) {
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
                e.post_recv(id, &self.ticket(queue, token), bufs, flags, call)
            })
        })
    }

    /// Sends a part of a file without reading it into the program's memory. It takes its turn
    /// among the sends. If the file turns out to be shorter, the event has the bytes sent and an error.
    /// A cancel leaves what [`Socket::send`]'s does.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let file = std::sync::Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
    /// client.send_file(&queue, Token(1), file, 1, 3)?;
    /// let mut text = [0; 3];
    /// server.blocking().recv_exact(&mut text)?;
    /// assert_eq!(&text, b"ELF");
    /// queue.next()?.into_completion()?;
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Socket::send`]. The event has the kernel's reason if the file cannot be read.
    pub fn send_file(
        &self,
        queue: &EventQueue,
        token: Token,
        file: Arc<File>,
        offset: u64,
        len: u64,
    ) -> Result<(), Error> {
        let file = FileSend { file, offset, len };
        self.post_bare(queue, || {
            self.handle().post(queue.core(), |e, id, call| {
                e.post_file(id, &self.ticket(queue, token), file, call.now())
            })
        })
    }
}

/// Memory and files in one.
impl Socket {
    /// Sends memory and stretches of files, in order, as one stretch of bytes, and with
    /// `shut` ends the sending direction after it. One event says how all of it ended, and
    /// brings the buffers. When a part fails (a file that turns out to be shorter, say),
    /// those behind it are not sent and the direction is not ended. A file that becomes
    /// shorter while it is sent shows that too late: what is behind it may have been sent,
    /// and only the event's error tells. On a seqpacket socket
    /// there can be one part, which is one message. This is the ES-API's sendfile.
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
        let post_parts = |parts: Vec<Part>| {
            let short = Short::of(&parts);
            self.handle().post(queue.core(), |e, id, call| {
                e.post_parts(id, &self.ticket(queue, token), (parts, short), shut, call.now())
            })
        };
        if !parts.iter().all(Part::is_mapped) {
            return Err(Refused { error: MemError::Unmapped.into(), buffer: parts });
        }
        post(queue, parts, post_parts, std::convert::identity)
    }
}

/// Books a place in the queue and posts by `f`. When `f` refuses, the place is free again, and `back` makes
/// the caller's memory of what `f` returned.
#[inline]
fn post<T, R>(
    queue: &EventQueue,
    buffer: T,
    f: impl FnOnce(T) -> Result<(), (Error, R)>,
    back: impl FnOnce(R) -> T,
) -> Result<(), Refused<T>> {
    if let Err(error) = queue.core().reserve() {
        cold_path();
        return Err(Refused { error, buffer });
    }
    f(buffer).map_err(|(error, refused)| {
        cold_path();
        queue.core().unreserve(1);
        Refused { error, buffer: back(refused) }
    })
}

fn one(bufs: Bufs) -> Buffer {
    match bufs {
        Bufs::One(b) => b,
        // A refusal returns what was given, which was one buffer.
        _ => Buffer::from(Vec::new()),
    }
}

fn many(bufs: Bufs) -> Vec<Buffer> {
    match bufs {
        Bufs::Many(v) => v,
        Bufs::One(b) => vec![b],
        Bufs::None => Vec::new(),
    }
}
