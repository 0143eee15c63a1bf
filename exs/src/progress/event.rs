//! Events: the reports of operations that have completed.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Error, SocketHandle};
use crate::mem::Buffer;
use crate::plain::Lease;
use crate::sys::{KernelAddr, abort_on_close};

/// The call whose completion an event reports.
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
    /// `fetch_add`
    FetchAdd,
    /// `compare_swap`
    CompareSwap,
    /// `poll`
    Poll,
    /// `shutdown`
    Shutdown,
    /// `close`
    Close,
    /// `Export::revoke`
    Revoke,
}

/// The state of a socket that `poll` found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Readiness {
    /// Data, the end of the stream, or a connection to accept is there.
    pub readable: bool,
    /// A send would not wait.
    pub writable: bool,
    /// The connection is broken, or was never made.
    pub error: bool,
}

/// The buffers of an operation.
#[derive(Debug, Default)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub enum Bufs {
    /// No buffer.
    #[default]
    None,
    /// A single buffer.
    One(Buffer),
    /// The buffers of a vectored operation.
    Many(Vec<Buffer>),
}

/// An event as the engine makes it.
#[derive(Debug)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct RawEvent {
    /// The token that the caller gave to the operation.
    pub token: u64,
    /// The user data of the socket, or the tag that the raw layer gave to the operation.
    pub tag: [u64; 2],
    /// The call whose completion this is.
    pub kind: EventKind,
    /// Bytes moved.
    pub bytes: u64,
    /// The true length of a seqpacket message. Of an atomic operation that was done: the value that
    /// was there before.
    pub total: u64,
    /// True for a receive that ended at the end of the stream.
    pub eof: bool,
    /// Why the operation failed. None: it succeeded. It is boxed, as is `guest`, because events are
    /// moved often and few have either.
    pub error: Option<Box<Error>>,
    /// The buffers of the operation.
    pub bufs: Bufs,
    /// `poll`: the state of the socket.
    pub readiness: Readiness,
    /// The parts that only few events have.
    pub guest: Option<Box<Guest>>,
}

/// The results of an accept, and the parts that only events of kernel sockets have.
#[derive(Debug, Default)]
#[allow(unnameable_types, reason = "an event is made of it, by this crate alone")]
pub struct Guest {
    /// `accept`: the connection and its peer.
    pub accepted: Option<(SocketHandle, SocketAddr)>,
    /// `accept` of a kernel socket: the connection.
    pub descriptor: Option<Untaken>,
    /// Kernel sockets: the address of the sender of a message, or of the peer that connected.
    pub peer: Option<KernelAddr>,
    /// A kernel socket that the library holds until the program dequeues the event.
    pub lease: Option<Arc<Lease>>,
}

/// A kernel connection that the program has not taken. If it is dropped, the connection is reset.
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
            // A UNIX-domain socket cannot be reset: it ends in its own way.
            let _ = abort_on_close(fd);
        }
    }
}

impl RawEvent {
    /// Ends the lease that the event may have. Called when the program dequeues the event.
    #[inline]
    pub fn dequeued(&mut self) {
        if let Some(guest) = &mut self.guest
            && let Some(lease) = guest.lease.take()
        {
            lease.end();
        }
    }

    /// An event of an operation that succeeded and moved no bytes.
    pub fn new(token: u64, kind: EventKind) -> RawEvent {
        RawEvent::with(token, [0; 2], kind, Bufs::None)
    }

    /// The same, with the buffers that the program gets back.
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
