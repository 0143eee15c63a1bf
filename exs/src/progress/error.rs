//! The errors that a program sees.

use std::io;
use std::net::SocketAddr;

use crate::mem::MemError;
use crate::rnic::{RnicError, kernel_text};
use crate::session::{OpError, SessionError};

/// Why a call, or an operation, failed. [`Error::errno`] gives the number that a
/// socket call would have left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too much is in flight: dequeue events, then try again (EAGAIN).
    #[error(
        "the {what} is full ({limit} operations in flight or not yet dequeued): dequeue events, \
         then try again, or make it deeper"
    )]
    WouldBlock {
        /// What is full.
        what: &'static str,
        /// How much it takes.
        limit: usize,
    },
    /// A signal handler ran while the thread waited (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// An argument makes no sense (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// The stream ended before all that was wanted had come.
    #[error("the stream ended after {got} of {wanted} bytes")]
    EndOfStream {
        /// Bytes received.
        got: usize,
        /// Bytes wanted.
        wanted: usize,
    },
    /// The socket is in another state than the call needs.
    #[error("{call} needs a socket that {need}; this one {is}")]
    State {
        /// The call.
        call: &'static str,
        /// What the call needs.
        need: &'static str,
        /// What the socket is instead.
        is: &'static str,
        /// The errno for it.
        errno: i32,
    },
    /// Nobody took the connection.
    #[error("cannot connect to {addr}: {source}{before}")]
    Connect {
        /// Where to.
        addr: SocketAddr,
        /// Why: the last attempt's error.
        source: RnicError,
        /// What became of attempts by other devices before; empty if there were none.
        before: String,
    },
    /// The peer answered, but no EXS connection can be made with it.
    #[error("{addr} refused the connection: {source}")]
    Refused {
        /// Where to.
        addr: SocketAddr,
        /// Why.
        source: SessionError,
    },
    /// No listener could be made.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// Where.
        addr: SocketAddr,
        /// Why.
        source: RnicError,
    },
    /// The socket must have an RDMA device, by its options, and there is none (ENODEV).
    #[error("{why}")]
    NoDevice {
        /// Why, and what to do.
        why: String,
    },
    /// EXS could not be started in this process.
    #[error("EXS cannot start: {why}")]
    Start {
        /// Why.
        why: String,
        /// Its errno.
        errno: i32,
    },
    /// Memory.
    #[error(transparent)]
    Memory(#[from] MemError),
    /// The operation, or its connection, failed.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The RNIC refused something.
    #[error(transparent)]
    Rnic(#[from] RnicError),
    /// The kernel refused something.
    #[error("{call}: {}", kernel_text(*.errno))]
    Os {
        /// The call.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
}

impl Error {
    #[cold]
    pub(crate) fn os(call: &'static str, e: &io::Error) -> Error {
        Error::Os { call, errno: e.raw_os_error().unwrap_or(libc::EIO) }
    }

    #[cold]
    pub(crate) fn invalid(why: impl Into<String>) -> Error {
        Error::Invalid(why.into())
    }

    /// The errno that stands for it at the C edge.
    pub fn errno(&self) -> i32 {
        match self {
            Error::WouldBlock { .. } => libc::EAGAIN,
            Error::Interrupted => libc::EINTR,
            Error::Invalid(_) => libc::EINVAL,
            Error::EndOfStream { .. } => libc::EPIPE,
            Error::State { errno, .. } | Error::Os { errno, .. } | Error::Start { errno, .. } => *errno,
            Error::NoDevice { .. } => libc::ENODEV,
            Error::Connect { source, .. } | Error::Listen { source, .. } => rnic_errno(source),
            Error::Refused { .. } => libc::ECONNREFUSED,
            Error::Memory(e) => match e {
                MemError::OutOfBounds { .. } | MemError::BadLength { .. } => libc::EINVAL,
                MemError::Leased { .. } => libc::EBUSY,
                MemError::Map { .. } => libc::ENOMEM,
            },
            Error::Op(e) => e.errno(),
            Error::Rnic(e) => rnic_errno(e),
        }
    }

    /// The standard library's name for it.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno()).kind()
    }

    /// Too much is in flight: dequeue events, then try again.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::WouldBlock { .. })
    }

    /// The operation was cancelled by this side.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Op(OpError::Cancelled))
    }

    /// This side ended the operation before its time: it was cancelled, or its time was over.
    pub(in crate::progress) fn is_cut(&self) -> bool {
        matches!(self, Error::Op(OpError::Cancelled | OpError::TimedOut { .. }))
    }
}

fn rnic_errno(e: &RnicError) -> i32 {
    match e {
        RnicError::Os { errno, .. } => *errno,
        RnicError::Timeout(_) => libc::ETIMEDOUT,
        RnicError::Protocol(_) => libc::EPROTO,
        RnicError::QueueFull { .. } => libc::EAGAIN,
        RnicError::Busy { .. } => libc::EBUSY,
        RnicError::Unsupported(_) => libc::EOPNOTSUPP,
        // As POSIX has it for a message, and for its pieces.
        RnicError::Limit { .. } => libc::EMSGSIZE,
        RnicError::Exhausted { errno, .. } => *errno,
        RnicError::NoSuch { .. } => libc::EBADF,
        RnicError::State { .. } => libc::ENOTCONN,
        RnicError::Memory(_) => libc::EFAULT,
        RnicError::MemLock { .. } => libc::ENOMEM,
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        io::Error::new(e.kind(), e)
    }
}
