//! Why an RNIC says no.

use std::time::Duration;

use super::QpState;
use crate::mem::AccessFault;

/// Why an RNIC refused a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RnicError {
    /// No such object, or not any more.
    #[error("no such {what} ({id})")]
    NoSuch {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        id: u32,
    },
    /// The object is in use.
    #[error("{what} {id} is still in use by {users} others")]
    Busy {
        /// Kind of object.
        what: &'static str,
        /// Its number.
        id: u32,
        /// Users.
        users: usize,
    },
    /// The QP is in another state than the call needs.
    #[error("queue pair {qp} is in state {state:?}; the call needs {need}")]
    State {
        /// Which.
        qp: u32,
        /// Its state.
        state: QpState,
        /// The states that would do.
        need: &'static str,
    },
    /// A queue is full: take completions out first.
    #[error("the {what} is full ({depth} work requests): dequeue completions first")]
    QueueFull {
        /// Which queue.
        what: &'static str,
        /// Its depth.
        depth: usize,
    },
    /// The local memory was refused.
    #[error("local memory refused: {0}")]
    Memory(#[from] AccessFault),
    /// A limit of the RNIC.
    #[error("{what}: {asked} is over this RNIC's limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// Asked for.
        asked: u64,
        /// Possible.
        limit: u64,
    },
    /// This RNIC cannot do that.
    #[error("this RNIC has no {0}")]
    Unsupported(&'static str),
    /// The peer's start-up was not understood.
    #[error("the peer does not speak iWARP as expected: {0}")]
    Protocol(String),
    /// The kernel said no.
    #[error("{call}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Os {
        /// The system call or step.
        call: &'static str,
        /// Its errno.
        errno: i32,
    },
    /// No answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
}

impl RnicError {
    /// An [`RnicError::Os`] from an `io::Error`.
    pub fn os(call: &'static str, e: &std::io::Error) -> RnicError {
        RnicError::Os { call, errno: e.raw_os_error().unwrap_or(libc::EIO) }
    }
}
