//! Listeners for which the kernel has no descriptors left, and the attempts that they fail.

use std::collections::HashSet;
use std::net::SocketAddr;

use crate::sys::ProcessNumber;

/// The number of a connection attempt of this process. Attempts of all RNICs are numbered as they begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttemptNumber(u64);

static NEXT: ProcessNumber = ProcessNumber::new(0);

impl AttemptNumber {
    /// Numbers an attempt. The driver calls it before it asks the kernel to connect, so that a listener
    /// which finds the connection sees the number.
    pub(crate) fn take() -> AttemptNumber {
        AttemptNumber(NEXT.add(1))
    }

    /// The number of the attempt that begins next.
    pub fn upcoming() -> AttemptNumber {
        AttemptNumber(NEXT.get())
    }
}

/// A listener of an RNIC in software for which the kernel has no descriptors left. Connection attempts of
/// this very process to it hold some, and might wait for ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StarvedListener {
    /// Its address.
    pub at: SocketAddr,
    /// The error of the accept.
    pub errno: i32,
    /// The peers that its RNIC has accepted.
    pub taken: HashSet<SocketAddr>,
    /// The number of the next attempt, read before the accept. The accept says nothing about this
    /// attempt and later ones: there may be descriptors by then.
    pub before: AttemptNumber,
}
