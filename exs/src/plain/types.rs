//! The vocabulary: requests to kernel sockets, and their results.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use crate::ids::OpId;
use crate::mem::Segment;
use crate::rnic::FileRange;
use crate::sys::{self, Identity, IoVec, IoVecMut, KernelAddr};
use crate::time::Time;

/// Bytes that one call to the kernel moves at most. This bounds how long a call can delay all others.
pub(super) const CALL_MAX: usize = 1 << 20;

/// How the library waits for operations on kernel sockets. As text: `auto`, `uring`, `readiness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelIo {
    /// By io_uring where the kernel has it and it pays, else by readiness.
    #[default]
    Auto,
    /// By io_uring; an error if the kernel has none.
    Uring,
    /// By readiness, and by threads where there is no readiness; never by io_uring.
    Readiness,
}

/// What a descriptor carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes in order (SOCK_STREAM).
    Stream,
    /// Messages on a connection (SOCK_SEQPACKET).
    SeqPacket,
    /// Messages (SOCK_DGRAM, SOCK_RAW, ...).
    Datagram,
    /// No socket: it can only be polled.
    Other,
    /// A socket whose type is not known yet: the library asks for it when it matters.
    Unseen,
}

impl Kind {
    /// Asks the kernel what a socket carries.
    ///
    /// # Errors
    /// The kernel's, if the descriptor is no socket.
    pub fn of(fd: BorrowedFd<'_>) -> std::io::Result<Kind> {
        Ok(match sys::socket_option(fd, libc::SO_TYPE)? {
            libc::SOCK_STREAM => Kind::Stream,
            libc::SOCK_SEQPACKET => Kind::SeqPacket,
            _ => Kind::Datagram,
        })
    }
}

/// A descriptor of the program, and the file that it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// The file, at the time of the last look.
    pub identity: Identity,
    /// What the file carries.
    pub kind: Kind,
}

/// The memory of a transfer, in order.
#[derive(Debug)]
pub enum Pieces {
    /// One stretch.
    One(Segment),
    /// Several.
    Many(Box<[Segment]>),
}

impl Pieces {
    fn as_slice(&self) -> &[Segment] {
        match self {
            Pieces::One(one) => std::slice::from_ref(one),
            Pieces::Many(list) => list,
        }
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(Segment::len).sum()
    }

    /// How many pieces there are.
    pub fn count(&self) -> usize {
        self.as_slice().len()
    }

    /// Calls `each(segment, offset, length)` for the memory between the bytes `skip` and `end`, until it
    /// returns false.
    fn walk<'a>(
        &'a self,
        skip: usize,
        end: usize,
        mut each: impl FnMut(&'a Segment, usize, usize) -> bool,
    ) {
        let mut at = 0;
        for seg in self.as_slice() {
            let from = skip.saturating_sub(at).min(seg.len());
            let to = end.saturating_sub(at).min(seg.len());
            at += seg.len();
            if from < to && !each(seg, from, to - from) {
                return;
            }
        }
    }

    /// Writes to `out` the memory that the kernel must read, from byte `skip` on and at most `room` bytes.
    /// Returns the number of pieces and of bytes.
    pub(super) fn to_read<'a>(
        &'a self,
        skip: usize,
        room: usize,
        out: &mut [IoVec<'a>],
    ) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        self.walk(skip, skip.saturating_add(room), |seg, off, len| {
            let Some(place) = out.get_mut(count) else { return false };
            *place = seg.io_vec(off, len);
            (count, bytes) = (count + 1, bytes + len);
            true
        });
        (count, bytes)
    }

    /// Writes to `out` the memory that the kernel must fill, from byte `skip` on. Returns the number of
    /// pieces and of bytes.
    pub(super) fn to_fill<'a>(&'a self, skip: usize, out: &mut [IoVecMut<'a>]) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        self.walk(skip, usize::MAX, |seg, off, len| {
            let Some(place) = out.get_mut(count) else { return false };
            *place = seg.io_vec_mut(off, len);
            (count, bytes) = (count + 1, bytes + len);
            true
        });
        (count, bytes)
    }
}

/// A request.
#[derive(Debug)]
pub enum Request {
    /// send(2), sendmsg(2).
    Send {
        /// The bytes.
        pieces: Pieces,
        /// The address; None: the peer.
        to: Option<KernelAddr>,
        /// MSG_MORE and the like.
        flags: i32,
    },
    /// sendfile(2).
    File(FileRange),
    /// shutdown(2), after all sends posted before; SHUT_RD and the like.
    Shutdown(i32),
    /// recv(2), recvmsg(2).
    Recv {
        /// The memory to fill.
        pieces: Pieces,
        /// MSG_PEEK, MSG_WAITALL and the like.
        flags: i32,
        /// Report the address of the sender.
        from: bool,
    },
    /// connect(2).
    Connect(KernelAddr),
    /// accept(2).
    Accept,
    /// poll(2), once.
    Poll {
        /// POLLIN
        readable: bool,
        /// POLLOUT
        writable: bool,
    },
}

/// What the table knows of an operation besides its request.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its name.
    pub op: OpId,
    /// The descriptor that it was posted with. When the program closes it, the operation ends.
    pub number: RawFd,
    /// When its time is over, and the time that it was given; None: no limit.
    pub limit: Option<(Time, Duration)>,
    /// The send of several parts that it belongs to; 0: none. After a part that fails, the parts behind it
    /// do not leave, because a stream has no holes.
    pub group: OpId,
}

/// Why an operation failed.
#[derive(Debug)]
pub enum Failure {
    /// The program cancelled it, or closed the descriptor.
    Cancelled,
    /// Its time limit, this long, was over.
    TimedOut(Duration),
    /// The kernel refused it.
    Os {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// The file to send could not be read.
    FileRead {
        /// errno.
        errno: i32,
    },
    /// The file to send was shorter.
    FileTooShort {
        /// Bytes that the file had.
        had: u64,
        /// Bytes asked for.
        asked: u64,
    },
}

impl Failure {
    pub(super) fn os(call: &'static str, e: &std::io::Error) -> Failure {
        match e.raw_os_error() {
            // The program has closed the descriptor while it was posting.
            Some(libc::EBADF) => Failure::Cancelled,
            errno => Failure::Os { call, errno: errno.unwrap_or(libc::EIO) },
        }
    }
}

/// How an operation ended.
#[derive(Debug)]
pub struct End {
    /// Bytes moved.
    pub bytes: u64,
    /// The true length of a received message, which may be more than `bytes`.
    pub total: u64,
    /// A receive found the end of the stream.
    pub eof: bool,
    /// The sender of the message, if the request asked for it. Boxed, as `accepted` is: an end is moved
    /// often, and seldom has either.
    pub from: Option<Box<KernelAddr>>,
    /// An accept: the connection and its peer.
    pub accepted: Option<Box<(OwnedFd, KernelAddr)>>,
    /// A poll: what poll(2) found.
    pub revents: i16,
    /// A socket that the library holds until the program dequeues the event.
    pub lease: Option<Arc<Lease>>,
    /// Why the operation failed, if it did.
    pub result: Result<(), Failure>,
}

impl End {
    pub(super) fn new(bytes: u64, result: Result<(), Failure>) -> End {
        End {
            bytes,
            total: bytes,
            eof: false,
            from: None,
            accepted: None,
            revents: 0,
            lease: None,
            result,
        }
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub struct KernelDone {
    /// Its name.
    pub op: OpId,
    /// The send that it is a part of; 0: of none.
    pub group: OpId,
    /// How it ended.
    pub end: End,
}

impl KernelDone {
    /// The end of a send of `bytes` that has left whole.
    pub(super) fn sent(op: OpId, bytes: usize) -> KernelDone {
        KernelDone { op, group: 0, end: End::new(bytes as u64, Ok(())) }
    }
}
