//! The two directions of a TCP connection, and its end.

use super::deferred::Remainder;

/// Bytes after which a connection within this host gets a large receive buffer. It takes two system
/// calls, which connections that carry less do without.
const NARROW: usize = 32 << 10;

/// Bytes of lookahead to ask for at first, and after a large payload.
pub(super) const LOOKAHEAD_MIN: usize = 4 << 10;

/// The input that the peer can still send.
///
/// ```text
/// Open                  -end of file---------------------> Ended
/// Open                  -failed write--------------------> Draining
/// Draining              -end of file---------------------> Broken
/// Open, Ended, Draining -error, deadline-----------------> Broken
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inbound {
    /// Bytes may come.
    Open,
    /// A write has failed with this errno. Reads go on to the end of the bytes that came before.
    Draining(i32),
    /// The peer has ended its side. Ours can still send.
    Ended,
    /// The connection is broken in both directions.
    Broken,
}

impl Inbound {
    /// True while bytes may come.
    #[inline]
    pub(super) fn is_readable(self) -> bool {
        matches!(self, Inbound::Open | Inbound::Draining(_))
    }
}

/// How a link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// After its last bytes.
    Orderly,
    /// After its last bytes. Nothing comes from the peer any more but the end of its side.
    Answered,
    /// With a reset.
    Reset,
    /// With a reset, as its start-up ran out of time.
    TimedOut,
}

impl Ending {
    /// True if the peer sees no reset.
    pub(super) fn is_orderly(self) -> bool {
        matches!(self, Ending::Orderly | Ending::Answered)
    }

    /// Makes it a reset at least.
    pub(super) fn reset(&mut self) {
        if self.is_orderly() {
            *self = Ending::Reset;
        }
    }
}

/// The sending direction.
#[derive(Default)]
pub(super) struct Outbound {
    /// The doorbell was rung, and not everything before it has left.
    pub(super) doorbell_rung: bool,
    /// It was shut down.
    pub(super) shut: bool,
    /// What a deferred write has left. It leaves before anything else.
    pub(super) remainder: Remainder,
    /// Bytes sent since they were counted last, for the deadline of an orderly close.
    pub(super) sent: u64,
}

impl Outbound {
    /// True if nothing waits to leave.
    pub(super) fn rests(&self) -> bool {
        !self.doorbell_rung && !self.shut && self.remainder.is_empty()
    }
}

/// The receiving direction.
pub(super) struct Intake {
    /// The SRQ that lists this link as holding a receive; None: no SRQ does.
    pub(super) holds_recv_of: Option<u32>,
    /// Received bytes that the engine did not take, for lack of receives.
    pub(super) stash: Vec<u8>,
    /// Bytes of lookahead to ask for next.
    pub(super) lookahead_size: usize,
    /// Bytes that may still come before the receive buffer becomes large; 0: it stays as it is.
    narrow: usize,
}

impl Intake {
    /// `near`: both ends are on this host.
    pub(super) fn new(near: bool) -> Intake {
        Intake {
            holds_recv_of: None,
            stash: Vec::new(),
            lookahead_size: LOOKAHEAD_MIN,
            narrow: if near { NARROW } else { 0 },
        }
    }

    /// True if no bytes wait for a receive, and the link holds none.
    pub(super) fn rests(&self) -> bool {
        self.stash.is_empty() && self.holds_recv_of.is_none()
    }

    /// Counts bytes that came. True if the receive buffer must become large.
    #[inline]
    pub(super) fn outgrows(&mut self, came: usize) -> bool {
        let before = self.narrow;
        self.narrow = before.saturating_sub(came);
        before > 0 && self.narrow == 0
    }
}
