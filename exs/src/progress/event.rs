//! What an operation leaves behind.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::{Error, SocketHandle};
use crate::mem::Buffer;
use crate::sys::{KernelAddr, abort_on_close};

/// Which call an event answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// `connect`
    Connect,
    /// `accept`
    Accept,
    /// `send`, `send_vectored`
    Send,
    /// `recv`, `recv_vectored`
    Recv,
    /// `send_file`
    SendFile,
    /// `read` (RDMA READ)
    Read,
    /// `write` (RDMA WRITE)
    Write,
    /// `poll`
    Poll,
    /// `shutdown`
    Shutdown,
    /// `close`
    Close,
    /// `Export::revoke`
    Revoke,
}

/// What `poll` found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Data, the end of the stream, or a connection to accept is there.
    pub readable: bool,
    /// A send would not have to wait.
    pub writable: bool,
    /// The connection is broken or was never made.
    pub error: bool,
}

/// The buffers of an operation.
#[derive(Debug, Default)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub enum Bufs {
    /// None.
    #[default]
    None,
    /// One.
    One(Buffer),
    /// Those of a vectored operation.
    Many(Vec<Buffer>),
}

/// An event as the engine makes it.
#[derive(Debug)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct RawEvent {
    /// The program's name for the operation.
    pub token: u64,
    /// The number of the socket, or the raw layer's name for the operation.
    pub tag: [u64; 2],
    /// Which call it answers.
    pub kind: EventKind,
    /// Bytes moved.
    pub bytes: u64,
    /// True length of a seqpacket message.
    pub total: u64,
    /// A receive that ended at the end of the stream.
    pub eof: bool,
    /// Why it failed, if it did. (Boxed, as is `guest`: an event is moved often, and seldom
    /// has either.)
    pub error: Option<Box<Error>>,
    /// The operation's memory.
    pub bufs: Bufs,
    /// `poll`: what was found.
    pub readiness: Readiness,
    /// What only few events bring.
    pub guest: Option<Box<Guest>>,
}

/// What an accept brings, and the address of the peer of a kernel socket.
#[derive(Debug, Default)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct Guest {
    /// `accept`: the connection and its peer.
    pub accepted: Option<(SocketHandle, SocketAddr)>,
    /// `accept` of a kernel socket: the connection.
    pub descriptor: Option<Untaken>,
    /// Kernel sockets: the address of the sender of a message, or of the peer that connected.
    pub peer: Option<KernelAddr>,
}

/// A connection of the kernel's that the program has not taken: dropped, it is reset.
#[derive(Debug)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct Untaken(Option<OwnedFd>);

impl Untaken {
    /// The program takes the connection.
    pub fn take(mut self) -> Option<OwnedFd> {
        self.0.take()
    }
}

impl From<OwnedFd> for Untaken {
    fn from(fd: OwnedFd) -> Untaken {
        Untaken(Some(fd))
    }
}

impl Drop for Untaken {
    fn drop(&mut self) {
        if let Some(fd) = &self.0 {
            // A socket that cannot be reset (UNIX-domain) ends as it can.
            let _ = abort_on_close(fd);
        }
    }
}

impl RawEvent {
    /// An event of a successful operation that moved nothing.
    pub fn new(token: u64, kind: EventKind) -> RawEvent {
        RawEvent::with(token, [0; 2], kind, Bufs::None)
    }

    /// The same with the memory that the program gets back.
    #[inline]
    pub fn with(token: u64, tag: [u64; 2], kind: EventKind, bufs: Bufs) -> RawEvent {
        RawEvent {
            token,
            tag,
            kind,
            bytes: 0,
            total: 0,
            eof: false,
            error: None,
            bufs,
            readiness: Readiness::default(),
            guest: None,
        }
    }
}
