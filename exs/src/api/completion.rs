//! What an operation brings, by its kind.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Event, Socket};
use crate::mem::Buffer;
use crate::progress::{Bufs, Error, EventKind, Guest, RawEvent, Readiness, Untaken};
use crate::sys::KernelAddr;

/// What an operation that succeeded brings: [`Event::into_completion`] makes it. Each kind has
/// what that kind of operation has, and no more.
///
/// ```
/// use exs::{Completion, EventQueue, RecvFlags, Socket, Token};
///
/// let queue = EventQueue::new(16)?;
/// let listener = Socket::stream()?;
/// listener.bind("127.0.0.1:0".parse().unwrap())?;
/// listener.listen(1)?;
/// listener.accept(&queue, Token(1))?;
/// let client = Socket::stream()?;
/// client.connect(&queue, Token(2), listener.local_addr()?)?;
/// let mut server = None;
/// loop {
///     match queue.next()?.into_completion()? {
///         Completion::Connect => client.send(&queue, Token(3), *b"hello")?,
///         Completion::Accept { socket, .. } => {
///             socket.recv(&queue, Token(4), vec![0; 100], RecvFlags::NONE)?;
///             server = Some(socket);
///         }
///         Completion::Recv { buffer, bytes, .. } => {
///             assert_eq!(&buffer[..bytes], b"hello");
///             break;
///         }
///         _ => {} // the end of the send
///     }
/// }
/// # drop(server);
/// # Ok::<(), exs::Error>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// `connect`: the socket is connected.
    Connect,
    /// `accept`. A connection that is dropped with this is reset.
    #[non_exhaustive]
    Accept {
        /// The connection.
        socket: Socket,
        /// The address of the peer.
        peer: SocketAddr,
    },
    /// `accept` of a [`KernelSocket`](crate::KernelSocket).
    #[non_exhaustive]
    AcceptKernel {
        /// The connection, which blocks.
        socket: OwnedFd,
        /// The address of the peer.
        peer: KernelAddr,
    },
    /// `send`
    #[non_exhaustive]
    Send {
        /// Bytes sent: the whole window of the buffer.
        bytes: usize,
        /// The buffer.
        buffer: Buffer,
    },
    /// `send_vectored`, `send_to`
    #[non_exhaustive]
    SendVectored {
        /// Bytes sent: those of all windows.
        bytes: usize,
        /// The buffers, in their order.
        buffers: Vec<Buffer>,
    },
    /// `send_file`, `send_parts`
    #[non_exhaustive]
    SendFile {
        /// Bytes sent, of memory and files.
        bytes: usize,
        /// The buffers of the parts in memory, in their order.
        buffers: Vec<Buffer>,
    },
    /// `recv`
    #[non_exhaustive]
    Recv {
        /// Bytes received, from the start of the buffer's window.
        bytes: usize,
        /// The true length of a message: more than `bytes` if the buffer was too short for it.
        total: u64,
        /// The peer has ended its direction, and nothing more comes.
        eof: bool,
        /// The buffer.
        buffer: Buffer,
    },
    /// `recv_vectored`, `recv_from`
    #[non_exhaustive]
    RecvVectored {
        /// Bytes received, which fill the windows of the buffers in their order.
        bytes: usize,
        /// The true length of a message: more than `bytes` if the buffers were too short for it.
        total: u64,
        /// The peer has ended its direction, and nothing more comes.
        eof: bool,
        /// The buffers, in their order.
        buffers: Vec<Buffer>,
        /// `recv_from`: the sender's address, if the sender has one.
        peer: Option<KernelAddr>,
    },
    /// `read`: RDMA READ
    #[non_exhaustive]
    Read {
        /// Bytes read: the whole window of the buffer.
        bytes: usize,
        /// The buffer.
        buffer: Buffer,
    },
    /// `write`: RDMA WRITE
    #[non_exhaustive]
    Write {
        /// Bytes written, which are in the peer's memory.
        bytes: usize,
        /// The buffer.
        buffer: Buffer,
    },
    /// `fetch_add`
    #[non_exhaustive]
    FetchAdd {
        /// The value before the addition.
        old: u64,
    },
    /// `compare_swap`
    #[non_exhaustive]
    CompareSwap {
        /// The value that was found. It was replaced if it is the expected one.
        old: u64,
    },
    /// `poll`: what was found.
    Poll(Readiness),
    /// `shutdown`
    Shutdown,
    /// `close`: all that was sent has been delivered.
    Close,
    /// `Export::revoke`: the memory, which the peer can no longer reach.
    Revoke(Buffer),
}

/// An operation that failed: why, and what it leaves. It turns into an [`Error`] by `?`.
///
/// ```
/// use exs::{Error, EventQueue, RecvFlags, Socket, Token};
/// # let listener = Socket::stream()?;
/// # listener.bind("127.0.0.1:0".parse().unwrap())?;
/// # listener.listen(1)?;
/// # let client = Socket::stream()?;
/// # client.blocking().connect(listener.local_addr()?)?;
/// let queue = EventQueue::new(1)?;
/// client.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
/// client.cancel(Token(1));
/// let failed = queue.next()?.into_completion().unwrap_err();
/// assert!(failed.error.is_cancelled());
/// assert_eq!((failed.bytes, failed.buffers[0].len()), (0, 100));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// Bytes that were moved before, from the start.
    pub bytes: usize,
    /// The memory that was moved into the operation.
    pub buffers: Vec<Buffer>,
}

impl From<Failed> for Error {
    #[cold]
    fn from(failed: Failed) -> Error {
        failed.error
    }
}

impl From<Failed> for std::io::Error {
    #[cold]
    fn from(failed: Failed) -> std::io::Error {
        failed.error.into()
    }
}

impl Event {
    /// What the operation brings, or why it failed and what it leaves. Ask the event for its
    /// [`token`](Event::token) before.
    ///
    /// # Errors
    /// [`Failed`], with the operation's error.
    pub fn into_completion(mut self) -> Result<Completion, Failed> {
        if let Some(error) = self.raw.error.take() {
            let (bytes, buffers) = (self.bytes(), self.take_buffers());
            return Err(Failed { error: *error, bytes, buffers });
        }
        complete(self.raw)
    }
}

fn complete(raw: RawEvent) -> Result<Completion, Failed> {
    let bytes = usize::try_from(raw.bytes).unwrap_or(usize::MAX);
    let (total, eof) = (raw.total.max(raw.bytes), raw.eof);
    Ok(match (raw.kind, raw.bufs) {
        (EventKind::Connect, _) => Completion::Connect,
        (EventKind::Accept, _) => return accepted(raw.guest),
        (EventKind::Send, Bufs::One(buffer)) => Completion::Send { bytes, buffer },
        (EventKind::Send, bufs) => Completion::SendVectored { bytes, buffers: many(bufs) },
        (EventKind::SendFile, bufs) => Completion::SendFile { bytes, buffers: many(bufs) },
        (EventKind::Recv, Bufs::One(buffer)) => Completion::Recv { bytes, total, eof, buffer },
        (EventKind::Recv, bufs) => {
            let peer = raw.guest.and_then(|g| g.peer);
            Completion::RecvVectored { bytes, total, eof, buffers: many(bufs), peer }
        }
        (EventKind::FetchAdd, _) => Completion::FetchAdd { old: raw.total },
        (EventKind::CompareSwap, _) => Completion::CompareSwap { old: raw.total },
        (EventKind::Poll, _) => Completion::Poll(raw.readiness),
        (EventKind::Shutdown, _) => Completion::Shutdown,
        (EventKind::Close, _) => Completion::Close,
        (EventKind::Read, Bufs::One(buffer)) => Completion::Read { bytes, buffer },
        (EventKind::Write, Bufs::One(buffer)) => Completion::Write { bytes, buffer },
        (EventKind::Revoke, Bufs::One(buffer)) => Completion::Revoke(buffer),
        // A socket that is gone took the memory of its exports with it.
        (EventKind::Revoke, _) => return Err(nothing("the export is gone: its socket was closed")),
        (EventKind::Read | EventKind::Write, _) => return Err(nothing(TAKEN)),
    })
}

/// A program that takes a part of an event cannot have it a second time.
const TAKEN: &str = "the event's buffer was taken before";

fn accepted(guest: Option<Box<Guest>>) -> Result<Completion, Failed> {
    let guest = guest.map_or_else(Guest::default, |g| *g);
    if let Some((handle, peer)) = guest.accepted {
        handle.take();
        return Ok(Completion::Accept { socket: Socket::from_handle(Arc::new(handle)), peer });
    }
    match (guest.descriptor.and_then(Untaken::take), guest.peer) {
        (Some(socket), Some(peer)) => Ok(Completion::AcceptKernel { socket, peer }),
        _ => Err(nothing("accept ended without a connection")),
    }
}

fn many(bufs: Bufs) -> Vec<Buffer> {
    match bufs {
        Bufs::None => Vec::new(),
        Bufs::One(b) => vec![b],
        Bufs::Many(v) => v,
    }
}

#[cold]
fn nothing(why: &str) -> Failed {
    Failed { error: Error::invalid(why), bytes: 0, buffers: Vec::new() }
}
