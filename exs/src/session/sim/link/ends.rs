//! The ends of queue pairs.

use super::{Frame, Net};
use crate::rnic::{DisconnectCause, QpState, WcOp, WcStatus};

impl Net {
    /// All that was posted has left.
    pub(super) fn end_orderly(&mut self, side: usize) {
        if !std::mem::replace(&mut self.sides[side].fin_sent, true) {
            self.send(side, Frame::Fin);
            // Some RNICs wait for the peer, and some do not.
            if self.sides[side].answered && self.rng.one_in(2) {
                self.break_qp(side, WcStatus::Flushed, DisconnectCause::Orderly);
            }
        }
    }

    /// The queue pair is dead: what was posted is flushed, the first with `status`.
    pub(in crate::session::sim) fn break_qp(
        &mut self,
        side: usize,
        status: WcStatus,
        cause: DisconnectCause,
    ) {
        if self.sides[side].state == QpState::Error {
            return;
        }
        let s = &mut self.sides[side];
        s.state = QpState::Error;
        let lost = s.posted.drain(..).flat_map(|posted| posted.parts);
        s.lost.extend(lost.map(|part| (part.addr(), part.len())));
        s.inbound.clear();
        s.transmit_at = None;
        let mut status = status;
        let wrs: Vec<u64> = s.tracks.iter().map(|t| t.wr).collect();
        for wr in wrs {
            let track = self.track(side, wr).map(|t| (t.op, t.status));
            // A TERMINATE speaks of the one-sided operation that it answers.
            let own = matches!(track, Some((WcOp::Read | WcOp::Write | WcOp::Atomic, _)));
            let this = if own {
                std::mem::replace(&mut status, WcStatus::Flushed)
            } else {
                WcStatus::Flushed
            };
            if track.is_some_and(|(_, status)| status.is_none()) {
                self.complete(side, wr, this);
            }
        }
        let at = self.soon(self.delay);
        self.sides[side].down = Some((at, cause));
    }
}
