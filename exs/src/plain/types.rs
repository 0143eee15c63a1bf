//! The vocabulary: what is asked of a kernel socket, and what came of it.

use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use crate::ids::OpId;
use crate::mem::Segment;
use crate::rnic::FileRange;
use crate::sys::{self, Identity, IoVec, IoVecMut, KernelAddr};
use crate::time::Time;

/// What one call to the kernel moves at most: it bounds how long a call may hold up
/// all others.
pub(super) const CALL_MAX: usize = 1 << 20;

/// How operations on kernel sockets that would have to wait do so. As text: `auto`,
/// `uring`, `readiness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelIo {
    /// By io_uring where that is there and pays, else by readiness.
    #[default]
    Auto,
    /// By io_uring; an error where there is none.
    Uring,
    /// By readiness, and threads where there is none: no io_uring.
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
    /// No socket: it can be polled, and that is all.
    Other,
    /// A socket whose type has not been asked for: it is when it matters.
    Unseen,
}

impl Kind {
    /// What a socket carries.
    ///
    /// # Errors
    /// The kernel's: it is none.
    pub fn of(fd: BorrowedFd<'_>) -> std::io::Result<Kind> {
        Ok(match sys::socket_option(fd, libc::SO_TYPE)? {
            libc::SOCK_STREAM => Kind::Stream,
            libc::SOCK_SEQPACKET => Kind::SeqPacket,
            _ => Kind::Datagram,
        })
    }
}

/// A descriptor of the program's, and what it stands for.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// The descriptor.
    pub fd: BorrowedFd<'a>,
    /// What it stood for when it was looked at.
    pub identity: Identity,
    /// What it carries.
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

    /// Calls `each(segment, offset, length)` for what lies between the bytes `skip` and
    /// `end`, until it has had enough.
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

    /// Writes to `out` what the kernel is to read, from byte `skip` on and at most
    /// `room` bytes of it; returns how many pieces, and how many bytes.
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

    /// Writes to `out` what the kernel is to fill, from byte `skip` on; returns how
    /// many pieces, and how many bytes.
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

/// What to do.
#[derive(Debug)]
pub enum Request {
    /// send(2), sendmsg(2).
    Send {
        /// The bytes.
        pieces: Pieces,
        /// Where to, if not to the peer.
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
        /// Where to.
        pieces: Pieces,
        /// MSG_PEEK, MSG_WAITALL and the like.
        flags: i32,
        /// Tell who sent it.
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

/// What an operation carries besides its request.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    /// Its name.
    pub op: OpId,
    /// The descriptor that it was posted with: when the program closes that, the
    /// operation ends.
    pub number: RawFd,
    /// When its time is over, and how long it was given.
    pub limit: Option<(Time, Duration)>,
    /// The send that it is a part of; 0: of none. Where a part fails, those behind it do not
    /// leave: a stream has no holes.
    pub group: OpId,
}

/// Why an operation failed.
#[derive(Debug)]
pub enum Failure {
    /// By `cancel`, or because the program closed the descriptor.
    Cancelled,
    /// Its time was over.
    TimedOut(Duration),
    /// The kernel refused it.
    Os {
        /// The call.
        call: &'static str,
        /// What it said.
        errno: i32,
    },
    /// The file to send could not be read.
    FileRead {
        /// errno.
        errno: i32,
    },
    /// The file to send was shorter.
    FileTooShort {
        /// Bytes that it had.
        had: u64,
        /// Bytes asked for.
        asked: u64,
    },
}

impl Failure {
    pub(super) fn os(call: &'static str, e: &std::io::Error) -> Failure {
        match e.raw_os_error() {
            // The program has closed it while it was posting: as if that had come a
            // moment later.
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
    /// True length of the message received.
    pub total: u64,
    /// The end of the stream.
    pub eof: bool,
    /// Who sent the message. (Boxed, as is `accepted`: an end is moved often, and seldom has
    /// either.)
    pub from: Option<Box<KernelAddr>>,
    /// The connection accepted.
    pub accepted: Option<Box<(OwnedFd, KernelAddr)>>,
    /// What poll(2) found.
    pub revents: i16,
    /// A socket that is held until the event is dequeued.
    pub lease: Option<Arc<Lease>>,
    /// Why not, if not.
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
pub struct Done {
    /// Its name.
    pub op: OpId,
    /// The send that it is a part of; 0: of none.
    pub group: OpId,
    /// How it ended.
    pub end: End,
}

impl Done {
    /// A send of `bytes`, all of which have left.
    pub(super) fn sent(op: OpId, bytes: usize) -> Done {
        Done { op, group: 0, end: End::new(bytes as u64, Ok(())) }
    }
}
