//! What the peer may write to: opening and closing windows, and the end of a receive.

use crate::ids::Outcome;

use super::super::rules::Rule;
use super::super::{MAX_ADVERTS, RxAction, is_direct};
use super::{Recv, StreamRx};

impl StreamRx {
    /// R1: advertises the next receive; false if none may be.
    pub(super) fn advertise_one(&mut self) -> bool {
        // Data for a small receive ride in their announcement anyway. It is shown only to make
        // way for a larger one behind it.
        if self.large_hidden == 0 {
            return false;
        }
        let quiet = self.withdrawing && self.rules.hold(Rule::QuietWhileWithdrawing);
        let bytes_wait = self.ring.fill() > 0 && self.rules.hold(Rule::RingEmpty);
        if quiet || bytes_wait || self.fin || self.holding() || self.shown >= MAX_ADVERTS {
            return false;
        }
        let at = if self.rules.hold(Rule::EarlierAdvertised) {
            self.shown
        } else {
            let free = |r: &Recv| r.shown == 0 && r.post.advertise;
            self.recvs.iter().position(free).unwrap_or(self.recvs.len())
        };
        if at > 0 && self.recvs.get(at - 1).is_some_and(|r| r.shown > 0 && !r.wholly_shown()) {
            return false;
        }
        let Some(recv) = self.recvs.get_mut(at) else { return false };
        if !recv.post.advertise || recv.post.peek || recv.cancelled {
            return false;
        }
        self.large_hidden -= usize::from(std::mem::take(&mut recv.counted));
        let len = u32::try_from(recv.left()).unwrap_or(u32::MAX).min(self.max_advert);
        recv.shown = len;
        if !is_direct(self.phase) {
            self.phase = self.phase.wrapping_add(1);
        }
        // Exact for the first of a phase, for nothing is shown then.
        let seq = self.seq.wrapping_add(self.shown_bytes);
        // If this ADVERT was held back and misses as well, the next one is held back, too.
        self.misses = self.misses.min(self.max_misses - 1);
        self.shown += 1;
        self.shown_bytes += u64::from(len);
        self.out.push_back(RxAction::Advertise {
            op: recv.post.op,
            op_off: recv.filled,
            len,
            seq,
            phase: self.phase,
            waitall: recv.post.waitall,
        });
        true
    }

    /// Takes back every ADVERT. Receives that were cancelled waited for this, and end.
    pub(super) fn unadvertise(&mut self) {
        let count = std::mem::take(&mut self.shown);
        for at in 0..count {
            self.hide(at);
        }
        let mut at = 0;
        for _ in 0..count {
            if self.recvs[at].cancelled {
                self.end(at, Outcome::Cancelled);
            } else {
                at += 1;
            }
        }
    }

    /// Closes the window onto a receive. The caller adjusts `shown`.
    pub(super) fn hide(&mut self, at: usize) {
        let recv = &mut self.recvs[at];
        self.shown_bytes -= u64::from(recv.shown);
        recv.shown = 0;
        if recv.post.len > u64::from(self.small) && !std::mem::replace(&mut recv.counted, true) {
            self.large_hidden += 1;
        }
        self.out.push_back(RxAction::Retract { op: recv.post.op });
    }

    /// Ends a receive; its window is closed first.
    pub(super) fn end(&mut self, at: usize, outcome: Outcome) {
        if at < self.shown {
            if self.rules.hold(Rule::RetractFirst) {
                self.hide(at);
            }
            self.shown -= 1;
        }
        if let Some(recv) = self.recvs.remove(at) {
            self.large_hidden -= usize::from(recv.counted);
            let (op, bytes) = (recv.post.op, recv.filled);
            self.out.push_back(RxAction::Done { op, bytes, outcome });
        }
    }
}
