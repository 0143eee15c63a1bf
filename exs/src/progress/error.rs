//! The errors that a program sees.

use std::io;
use std::net::SocketAddr;

use crate::mem::MemError;
use crate::rnic::{RnicError, kernel_text};
use crate::session::{OpError, SessionError};

/// Why a call, or an operation, failed. [`Error::errno`] gives the errno of the same failure of a
/// socket call.
///
/// The message of an error contains its cause, and `source()` does not repeat it. A program that
/// prints the whole chain of sources says everything once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too much is in flight: dequeue events, then try again (EAGAIN).
    #[error(
        "the {what} is full ({limit} operations in flight or not yet dequeued): dequeue events, \
         then try again, or make it deeper"
    )]
    WouldBlock {
        /// The object that is full.
        what: &'static str,
        /// The most that it holds.
        limit: usize,
    },
    /// A signal handler ran while the thread waited (EINTR).
    #[error("interrupted by a signal")]
    Interrupted,
    /// An argument is invalid (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// The stream ended before all the wanted bytes had come.
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
        /// The errno.
        errno: i32,
    },
    /// No peer took the connection.
    #[error("cannot connect to {addr}: {cause}{before}")]
    Connect {
        /// The address of the peer.
        addr: SocketAddr,
        /// Why: the error of the last attempt.
        cause: RnicError,
        /// The errors of earlier attempts by other devices. Empty if there were none.
        before: String,
    },
    /// The peer answered, but no EXS connection with it is possible.
    #[error("{addr} refused the connection: {cause}")]
    Refused {
        /// The address of the peer.
        addr: SocketAddr,
        /// Why.
        cause: SessionError,
    },
    /// A name has no address, or no name server answers.
    #[error("cannot find the address of {host}: {why}")]
    Resolve {
        /// The host and its port.
        host: String,
        /// Why: the words of the system's resolver.
        why: String,
        /// The errno.
        errno: i32,
    },
    /// No address of a host took the connection.
    #[error("cannot connect to {host}: {}", each_address(tried, untried))]
    ConnectHost {
        /// The host and its port.
        host: String,
        /// The addresses that were tried, and why each has failed.
        tried: Vec<(SocketAddr, Error)>,
        /// The addresses for which no time was left.
        untried: Vec<SocketAddr>,
    },
    /// The socket cannot be bound to the address.
    #[error("cannot bind to {addr}: {cause}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        cause: RnicError,
    },
    /// The socket cannot listen.
    #[error("cannot listen on {addr}: {cause}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        cause: RnicError,
    },
    /// The options of the socket demand an RDMA device, and there is none (ENODEV).
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
        /// The errno.
        errno: i32,
    },
    /// The figures of this process cannot be offered to readers.
    #[error("the figures of this process cannot be offered: {why}")]
    Stats {
        /// Why, and what to do.
        why: String,
        /// The errno.
        errno: i32,
    },
    /// A memory region or a buffer refused something.
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
        /// The errno.
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

    /// The errno that the C library sets for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Error::WouldBlock { .. } => libc::EAGAIN,
            Error::Interrupted => libc::EINTR,
            Error::Invalid(_) => libc::EINVAL,
            Error::EndOfStream { .. } => libc::EPIPE,
            Error::State { errno, .. }
            | Error::Os { errno, .. }
            | Error::Start { errno, .. }
            | Error::Stats { errno, .. }
            | Error::Resolve { errno, .. } => *errno,
            Error::ConnectHost { tried, .. } => errno_of_all(tried),
            Error::NoDevice { .. } => libc::ENODEV,
            Error::Connect { cause, .. }
            | Error::Bind { cause, .. }
            | Error::Listen { cause, .. } => rnic_errno(cause),
            Error::Refused { .. } => libc::ECONNREFUSED,
            Error::Memory(e) => match e {
                MemError::OutOfBounds { .. } | MemError::BadLength { .. } => libc::EINVAL,
                MemError::Leased { .. } => libc::EBUSY,
                MemError::Map { .. } => libc::ENOMEM,
                MemError::Unmapped => libc::EOPNOTSUPP,
            },
            Error::Op(e) => e.errno(),
            Error::Rnic(e) => rnic_errno(e),
        }
    }

    /// The kind of this error in the standard library.
    pub fn kind(&self) -> io::ErrorKind {
        io::Error::from_raw_os_error(self.errno()).kind()
    }

    /// True if too much is in flight: dequeue events, then try again.
    pub fn is_would_block(&self) -> bool {
        matches!(self, Error::WouldBlock { .. })
    }

    /// True if this side cancelled the operation.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Op(OpError::Cancelled))
    }

    /// True if this side ended the operation early: it was cancelled, or it timed out.
    pub(in crate::progress) fn is_cut(&self) -> bool {
        matches!(self, Error::Op(OpError::Cancelled | OpError::TimedOut { .. }))
    }
}

/// The reason at each address of a host.
fn each_address(tried: &[(SocketAddr, Error)], untried: &[SocketAddr]) -> String {
    let mut all: Vec<String> = tried
        .iter()
        .map(|(addr, error)| match error {
            Error::Connect { cause, before, .. } => format!("{addr}: {cause}{before}"),
            Error::Refused { cause, .. } => format!("{addr}: it refused the connection: {cause}"),
            other => format!("{addr}: {other}"),
        })
        .collect();
    if !untried.is_empty() {
        let each: Vec<String> = untried.iter().map(SocketAddr::to_string).collect();
        all.push(format!("no time was left for {}", each.join(", ")));
    }
    if all.is_empty() { "it has no address".to_owned() } else { all.join("; ") }
}

/// The errno of a host whose addresses have failed: the error that says most. A refusal says
/// more than silence, and silence says more than a missing route.
fn errno_of_all(tried: &[(SocketAddr, Error)]) -> i32 {
    let rank = |errno: &i32| match *errno {
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT => 0,
        libc::ETIMEDOUT => 1,
        libc::ECONNREFUSED => 3,
        _ => 2,
    };
    // Of several with the same rank, the last: `max_by_key` takes it.
    let errnos = tried.iter().map(|(_, e)| e.errno());
    errnos.max_by_key(rank).unwrap_or(libc::EHOSTUNREACH)
}

fn rnic_errno(e: &RnicError) -> i32 {
    match e {
        RnicError::Os { errno, .. } => *errno,
        RnicError::Timeout(_) => libc::ETIMEDOUT,
        RnicError::Protocol(_) => libc::EPROTO,
        RnicError::QueueFull { .. } => libc::EAGAIN,
        RnicError::Busy { .. } => libc::EBUSY,
        RnicError::Unsupported(_) => libc::EOPNOTSUPP,
        // As in POSIX for a message that is too long, or has too many pieces.
        RnicError::Limit { .. } => libc::EMSGSIZE,
        RnicError::Exhausted { errno, .. } => *errno,
        RnicError::NoSuch { .. } => libc::EBADF,
        RnicError::State { .. } => libc::ENOTCONN,
        RnicError::Memory(_) => libc::EFAULT,
        RnicError::MemLock { .. } => libc::ENOMEM,
        RnicError::Unpinnable { errno, .. } => *errno,
        RnicError::NoLibrary { .. } => libc::ENODEV,
        RnicError::Path { .. } => libc::EINVAL,
        RnicError::DmaBuf { errno, .. } => *errno,
    }
}

impl From<Error> for io::Error {
    fn from(e: Error) -> io::Error {
        io::Error::new(e.kind(), e)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::mem::AccessFault;
    use crate::session::Violation;

    /// A program that prints an error with all its sources must say nothing twice.
    #[test]
    fn no_error_repeats_its_source() {
        let addr = "192.0.2.1:7471".parse().unwrap();
        let refused = || RnicError::Os { call: "connect", errno: libc::ECONNREFUSED };
        let cause = crate::wire::exs::HelloError::NotExs;
        let broken = Violation::Unexpected("a message");
        let fault = AccessFault::Wrap { addr: u64::MAX, len: 2 };
        let unmapped = MemError::Map { len: 1, errno: libc::ENOMEM };
        let all: Vec<Error> = vec![
            Error::Connect { addr, cause: refused(), before: String::new() },
            Error::Bind { addr, cause: refused() },
            Error::Listen { addr, cause: refused() },
            Error::Refused { addr, cause: SessionError::Hello(cause) },
            Error::ConnectHost {
                host: "a.example:7".to_owned(),
                tried: vec![(
                    addr,
                    Error::Connect { addr, cause: refused(), before: String::new() },
                )],
                untried: vec![addr],
            },
            unmapped.into(),
            OpError::from(broken).into(),
            OpError::Rnic(fault.into()).into(),
            RnicError::from(fault).into(),
            Error::os("fstat", &io::Error::from_raw_os_error(libc::EBADF)),
        ];
        for error in all {
            let mut said = error.to_string();
            assert!(said.len() > 10, "{said}");
            let mut next = error.source();
            while let Some(source) = next {
                assert!(!said.contains(&source.to_string()), "`{said}` has `{source}`");
                said = source.to_string();
                next = source.source();
            }
            let kind = error.kind();
            let text = error.to_string();
            let converted = io::Error::from(error);
            assert_eq!((converted.kind(), converted.to_string()), (kind, text));
        }
    }
}
