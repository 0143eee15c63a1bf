//! Connections that a thread attends: it waits for what happens there itself, outside of the reactor.

use std::os::fd::RawFd;

use crate::sys::SharedWord;

/// What a thread that attends a connection waits for ([`Rnic::sleep_attended`](super::Rnic)).
#[derive(Debug)]
pub enum AttendedWait {
    /// There is something to do at once: the thread must call `progress`.
    Ready,
    /// The connection's descriptor becomes readable; or writable, with `write`.
    Descriptor {
        /// The descriptor. It may be closed while the thread waits, so it is good for nothing but
        /// poll(2).
        fd: RawFd,
        /// The connection waits for room to write, too.
        write: bool,
    },
    /// The peer changes a word of shared memory.
    Word(SharedWord),
}

/// What a thread that attends a connection would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attended {
    /// There is something to do.
    Ready,
    /// Nothing. The connection waits for the peer, or for room to write as well.
    Idle {
        /// It waits for room.
        for_room: bool,
    },
}

/// The outcome of [`Rnic::sleep_polled`](super::Rnic).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolledSleep {
    /// The peer cannot make the program's descriptor readable.
    Unable,
    /// There is something to do already.
    Ready,
    /// The peer makes the descriptor readable when an eager message comes. It wakes the leader for
    /// anything else.
    Asleep,
}
