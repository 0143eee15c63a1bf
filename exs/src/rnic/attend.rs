//! Connections that a thread attends: it waits for what happens there itself, outside of the reactor.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::sys::{SharedStream, SharedWord};

/// The most bytes that a thread reads which waits for a stream.
pub const ATTENDED_READ: usize = 4 << 10;
/// The longest wait in such a read.
pub const ATTENDED_READ_LIMIT: Duration = Duration::from_millis(10);

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
    /// The peer sends bytes. The thread reads up to [`ATTENDED_READ`] of them itself, in a call that
    /// waits for them for [`ATTENDED_READ_LIMIT`] at most. No other thread reads meanwhile.
    Stream(Arc<SharedStream>),
    /// The peer changes a word of shared memory.
    Word {
        /// The word.
        word: SharedWord,
        /// Only processes of this user can write to it.
        trusted: bool,
    },
}

/// How a thread that attends a connection can wait for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttendedBlock {
    /// In a call that waits for several descriptors.
    Poll,
    /// In a call that reads, too. Other threads can end such a wait only by ending the connection.
    Read,
}

/// What ended the wait of a thread that attends a connection ([`Rnic::wake_attended`](super::Rnic)).
#[derive(Debug)]
pub enum AttendedEnd<'a> {
    /// The descriptor is ready, or may be; or the word has changed.
    Ready(super::Ready),
    /// The thread has read these bytes; none at the end of the stream. `WouldBlock`: no bytes came in
    /// time.
    Read(io::Result<&'a [u8]>),
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
