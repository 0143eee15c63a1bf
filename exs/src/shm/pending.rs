//! Work requests that have been posted and are not complete.

use crate::iwarp::TxWr;
use crate::mem::{Segment, Sgl};
use crate::rnic::{SendOp, WcOp};

/// How the payload of a WR travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadRoute {
    /// Not chosen yet: the WR has no record.
    Posted,
    /// In the record.
    InRecord,
    /// The record names pieces of shared regions.
    Pieces,
    /// By the lane.
    Lane,
    /// A READ or an atomic operation: its payload comes as answers.
    Answers,
}

/// A WR that is not complete.
pub(super) struct PendingWr {
    pub(super) wr: TxWr,
    pub(super) len: u64,
    /// Positions of its record: from `start` up to `end`. 0 while it has none.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) route: PayloadRoute,
    /// Bytes of answers that have come (READ, atomic operation).
    pub(super) received: u64,
}

impl PendingWr {
    fn is_send(&self) -> bool {
        matches!(self.wr.op, SendOp::Send { .. })
    }

    /// True once the WR is complete. `consumed`: the peer's consumer index.
    #[inline]
    pub(super) fn is_done(&self, consumed: u64) -> bool {
        match self.route {
            PayloadRoute::Posted => false,
            PayloadRoute::InRecord if self.is_send() => true,
            PayloadRoute::Answers if self.len > 0 => self.received == self.len,
            _ => consumed >= self.end,
        }
    }

    #[inline]
    pub(super) fn op(&self) -> WcOp {
        self.wr.op.wc_op()
    }
}

/// The part of a READ's memory that an answer fills.
pub(super) struct ReadSink<'a> {
    pub(super) sgl: &'a Sgl,
    pub(super) at: usize,
    pub(super) len: usize,
}

impl ReadSink<'_> {
    /// Calls `f(segment, offset in it, bytes, bytes before them)`.
    pub(super) fn for_range(&self, mut f: impl FnMut(&Segment, usize, usize, u64)) {
        let mut done = 0;
        self.sgl.for_range(self.at, self.len, |seg, at, n| {
            f(seg, at, n, done);
            done += n as u64;
        });
    }
}
