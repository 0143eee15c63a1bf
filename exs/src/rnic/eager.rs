//! Small messages that leave and arrive without a work request.

use super::Qp;
use crate::mem::Segment;

/// The outcome of [`try_send_eager`](super::Rnic::try_send_eager).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EagerSend {
    /// The RNIC took nothing: the caller posts the message as a SEND.
    Declined,
    /// The same, because there is no room with the peer, and nothing waits before the message. A
    /// SEND that the caller posts now completes when there is room again.
    NoRoom,
    /// The message is on the wire.
    Sent,
    /// The SEND is complete, and the message leaves with the next doorbell.
    Batched,
}

impl EagerSend {
    /// The RNIC took the message.
    #[inline]
    pub fn is_taken(self) -> bool {
        matches!(self, EagerSend::Sent | EagerSend::Batched)
    }
}

/// A message that [`next_eager`](super::Rnic::next_eager) returns.
#[derive(Debug)]
pub struct EagerRecv {
    /// The queue pair that received it.
    pub qp: Qp,
    /// The number that the user of the queue pair gave it ([`QpAttr::context`](super::QpAttr::context)).
    pub context: u32,
    /// The length of the message in bytes.
    pub len: usize,
    /// Where the message is.
    pub at: EagerPayload,
}

/// Where an eager message is.
#[derive(Debug)]
pub enum EagerPayload {
    /// In the slice that the caller passed.
    Copied,
    /// In memory of the device, where the peer can still write. The caller reads each byte once,
    /// and then calls [`release_eager`](super::Rnic::release_eager).
    Lent(Segment),
    /// In the receive of this `wr_id`, which was posted to the SRQ of the queue pair and belongs
    /// to its user again.
    #[cfg_attr(
        not(any(test, feature = "internals", feature = "verbs")),
        expect(dead_code, reason = "drivers of devices construct it")
    )]
    InReceive(u64),
}
