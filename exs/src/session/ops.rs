//! Operations that have been posted and have not ended.

use crate::ids::OpId;
use crate::mem::Key;
use crate::time::Time;

use super::{Buf, IoVec, OpError, SendSource};

/// A send, or the end of the sending direction.
#[derive(Debug)]
pub(super) struct Send {
    /// The user's name for it; none for the shutdown that is a part of a close.
    pub(super) user: Option<OpId>,
    /// The bytes; none for a shutdown.
    pub(super) source: Option<SendSource>,
    /// WRs that use its memory.
    pub(super) in_flight: u32,
    /// Why it is being cancelled.
    pub(super) fate: Option<OpError>,
    /// Its file could not give all its bytes: why, and how many it gave.
    pub(super) failed: Option<(OpError, u64)>,
    /// It has ended, with these bytes and this error, but for the WRs that still use
    /// its memory.
    pub(super) over: Option<(u64, Option<OpError>)>,
    /// It must end before this.
    pub(super) deadline: Option<Time>,
}

/// Why a receive ends before its time.
#[derive(Clone, Debug)]
pub(super) enum Fate {
    /// With this error.
    Error(OpError),
    /// As at the end of the data: the user wants no more.
    End,
}

/// A receive, or a part of one. (Small, for each is moved: what few of them have is boxed.)
#[derive(Debug)]
pub(super) struct Recv {
    pub(super) user: OpId,
    /// The receive that this is a part of.
    pub(super) group: Option<u64>,
    pub(super) iov: IoVec,
    /// Length of `iov`.
    pub(super) len: u64,
    pub(super) waitall: bool,
    /// The window that the peer may write through.
    pub(super) window: Option<Key>,
    /// What the peer writes to in place of a buffer in several pieces.
    pub(super) bounce: Option<Box<Buf>>,
    /// The data came inside of a message, so `bounce` holds nothing.
    pub(super) copied: bool,
    /// Its window was closed before it ended.
    pub(super) retracted: bool,
    pub(super) fate: Option<Box<Fate>>,
    pub(super) deadline: Option<Time>,
}

impl Recv {
    /// It has one piece of memory, which the peer was not shown, and ends by itself: its data
    /// are all that there is to it.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.iov, IoVec::One(_))
            && self.group.is_none()
            && self.window.is_none()
            && self.bounce.is_none()
            && self.fate.is_none()
            && !self.retracted
    }
}

/// A WAITALL receive into several pieces: one receive of the machine's for each, so
/// that each can be shown to the peer.
#[derive(Debug)]
pub(super) struct Group {
    /// Parts that have not ended.
    pub(super) parts: usize,
    pub(super) bytes: u64,
    pub(super) eof: bool,
    pub(super) error: Option<OpError>,
}

/// What a one-sided operation does.
#[derive(Debug)]
pub(super) enum Side {
    /// READ into this.
    Read(Buf),
    /// WRITE this; then make sure of it, if asked to.
    Write(IoVec, bool),
}

/// A one-sided operation.
#[derive(Debug)]
pub(super) struct Sided {
    pub(super) user: OpId,
    pub(super) side: Side,
    pub(super) raddr: u64,
    pub(super) rkey: Key,
    pub(super) len: u64,
    /// Bytes posted.
    pub(super) posted: u64,
    /// Nothing more is going to be posted.
    pub(super) all_posted: bool,
    /// WRs that have not completed.
    pub(super) in_flight: u32,
    /// Bytes completed.
    pub(super) bytes: u64,
    /// What a WR of it met.
    pub(super) error: Option<OpError>,
    /// Why no more of it is posted, although there is more.
    pub(super) stopped: Option<OpError>,
    /// It waits for the answer to the CONFIRM of this number.
    pub(super) unconfirmed: Option<u32>,
    /// A WR was flushed: why, the end of the connection will tell.
    pub(super) flushed: bool,
}
