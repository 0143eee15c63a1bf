//! The send queue of a queue pair: the WRs that are outstanding, from the post to the completion.
//!
//! A WR gets a number, its `wr_id` at the device, and an entry of the budget. It is staged, and goes to
//! the device with the next doorbell; an eager message goes at once. The last WR of each chain is
//! signalled, whatever the user asked for. The completion of a WR says that all earlier ones have been
//! executed. So every WR is known to have completed soon after it has, and its entry and its slot are
//! free again. WRs leave in the order in which they were posted. The user gets completions only of those
//! that it has asked for, and of those that have failed.

use std::collections::VecDeque;

use super::queues::blank;
use super::raw::{HwOp, HwSge, Staged};
use super::send_budget::{SendBudget, Shares, Work};
use super::slots::CopySlot;
use crate::rnic::{Qp, Wc, WcOp, WcStatus};

/// A WR of the user, as it is staged.
pub(super) struct CallerSend<'a> {
    pub(super) wr_id: u64,
    pub(super) op: HwOp,
    pub(super) wc: WcOp,
    pub(super) len: u64,
    /// The user wants its completion.
    pub(super) signaled: bool,
    /// The device reports its completion, also if the user does not want it.
    pub(super) reported: bool,
    pub(super) inline: bool,
    /// The slot of copied bytes, and these bytes: the first segment.
    pub(super) copied: Option<(CopySlot, HwSge)>,
    pub(super) pieces: &'a [HwSge],
}

/// A send WR that the device has, or gets with the next doorbell.
pub(super) struct PostedSend {
    seq: u64,
    wr_id: u64,
    /// None: the driver's own WR (a bind), or one without a completion for the user.
    op: Option<WcOp>,
    len: u64,
    signaled: bool,
    slot: Option<CopySlot>,
    work: Work,
    /// Its result, while earlier WRs have none.
    done: Option<WcStatus>,
}

impl PostedSend {
    /// A WR without a completion for the user.
    fn quiet(seq: u64, work: Work) -> PostedSend {
        PostedSend {
            seq,
            wr_id: 0,
            op: None,
            len: 0,
            signaled: false,
            slot: None,
            work,
            done: None,
        }
    }

    /// True if the user waits for its completion.
    #[inline]
    pub(super) fn is_signaled(&self) -> bool {
        self.signaled
    }

    /// The slot that it holds until it has completed.
    #[inline]
    pub(super) fn slot(&self) -> Option<CopySlot> {
        self.slot
    }

    /// The completion that the user gets, if it gets one.
    #[inline]
    pub(super) fn completion(&self, qp: Qp, status: WcStatus) -> Option<Wc> {
        let op = self.op?;
        let ok = status == WcStatus::Success;
        let byte_len = if ok { self.len } else { 0 };
        let told = self.signaled || !ok;
        told.then(|| Wc { byte_len, ..blank(qp, self.wr_id, op, status) })
    }

    /// True if the user waits for a one-sided WR, which the peer may refuse.
    fn awaits_answer(&self) -> bool {
        let one_sided = matches!(self.op, Some(WcOp::Read | WcOp::Write | WcOp::Atomic));
        one_sided && self.signaled && self.done.is_none()
    }
}

/// See the module's essay.
pub(super) struct QpSendQueue {
    /// Outstanding WRs, the oldest first.
    posted: VecDeque<PostedSend>,
    /// The number of the last WR.
    seq: u64,
    /// The entries that `posted` may use.
    budget: SendBudget,
    /// WRs of `posted` that are signalled for the user.
    signaled: usize,
    /// WRs for the next doorbell, and their segments.
    staged: Vec<Staged>,
    sges: Vec<HwSge>,
}

impl QpSendQueue {
    /// The queue of a queue pair whose user may have `caller` WRs outstanding.
    pub(super) fn new(caller: usize, shares: Shares) -> QpSendQueue {
        QpSendQueue {
            posted: VecDeque::new(),
            seq: 0,
            budget: SendBudget::new(caller, shares),
            signaled: 0,
            staged: Vec::new(),
            sges: Vec::new(),
        }
    }

    /// WRs that the device's queue must take.
    pub(super) fn depth(&self) -> u32 {
        self.budget.depth()
    }

    /// True if there is an entry for another WR of this kind.
    #[inline]
    pub(super) fn has(&self, work: Work) -> bool {
        self.budget.has(work)
    }

    /// True if no WR is outstanding.
    pub(super) fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// True if WRs wait for the doorbell.
    #[inline]
    pub(super) fn has_staged(&self) -> bool {
        !self.staged.is_empty()
    }

    /// True if the WR of this number is outstanding.
    pub(super) fn holds(&self, seq: u64) -> bool {
        self.posted.iter().any(|p| p.seq == seq)
    }

    /// The number of the oldest bind that is outstanding.
    pub(super) fn oldest_bind(&self) -> Option<u64> {
        self.posted.iter().find(|p| p.work == Work::Bind).map(|p| p.seq)
    }

    /// True if the user waits for a one-sided WR, which the peer may refuse.
    pub(super) fn awaits_answers(&self) -> bool {
        self.posted.iter().any(PostedSend::awaits_answer)
    }

    // ---- posting -----------------------------------------------------------------------

    /// Numbers the next WR.
    #[inline]
    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    /// Stages a WR of the user, for which there is an entry.
    #[inline]
    pub(super) fn stage(&mut self, wr: CallerSend<'_>) {
        let seq = self.next_seq();
        let (slot, first) = wr.copied.unzip();
        self.sges.extend(first);
        self.sges.extend_from_slice(wr.pieces);
        let sges = wr.pieces.len() + usize::from(first.is_some());
        let (op, inline) = (wr.op, wr.inline);
        self.staged.push(Staged { wr_id: seq, op, sges, signaled: wr.reported, inline });
        let (wr_id, op, len, signaled) = (wr.wr_id, Some(wr.wc), wr.len, wr.signaled);
        let quiet = PostedSend::quiet(seq, Work::Caller);
        self.posted.push_back(PostedSend { wr_id, op, len, signaled, slot, ..quiet });
        self.budget.take(Work::Caller);
        self.signaled += usize::from(signaled);
    }

    /// Stages a bind, for which there is an entry. Returns its number.
    pub(super) fn stage_bind(&mut self, op: HwOp) -> u64 {
        let seq = self.next_seq();
        self.staged.push(Staged { wr_id: seq, op, sges: 0, signaled: false, inline: false });
        self.posted.push_back(PostedSend::quiet(seq, Work::Bind));
        self.budget.take(Work::Bind);
        seq
    }

    /// Records an eager message, for which there is an entry. The caller posts the WR at once, with its
    /// one segment: none may be staged before it.
    #[inline]
    pub(super) fn eager(&mut self, slot: Option<CopySlot>, inline: bool) -> Staged {
        debug_assert!(!self.has_staged(), "a staged WR would leave behind a later one");
        let (seq, op) = (self.next_seq(), HwOp::Send { solicited: false });
        self.posted.push_back(PostedSend { slot, ..PostedSend::quiet(seq, Work::Eager) });
        self.budget.take(Work::Eager);
        Staged { wr_id: seq, op, sges: 1, signaled: true, inline }
    }

    /// Hands all staged WRs to `post`. None if there are none.
    #[inline]
    pub(super) fn ring<R>(&mut self, post: impl FnOnce(&[Staged], &[HwSge]) -> R) -> Option<R> {
        self.staged.last_mut()?.signaled = true;
        let rung = post(&self.staged, &self.sges);
        self.staged.clear();
        self.sges.clear();
        Some(rung)
    }

    // ---- completions -------------------------------------------------------------------

    /// The device reports the WR of this number. Earlier WRs have been executed, or this one would not
    /// have completed.
    ///
    /// But siw lets WRs behind a READ complete before the READ. So there (`reads_stay`) each READ waits
    /// for its own completion, and the WRs behind it wait for the READ.
    #[inline]
    pub(super) fn completed(&mut self, seq: u64, status: WcStatus, reads_stay: bool) {
        for p in self.posted.iter_mut().take_while(|p| p.seq <= seq) {
            if p.seq == seq {
                p.done = Some(status);
            } else if p.op != Some(WcOp::Read) || !reads_stay {
                p.done.get_or_insert(WcStatus::Success);
            }
        }
    }

    /// Takes the oldest WR out, if it has a result.
    #[inline]
    pub(super) fn take_done(&mut self) -> Option<(PostedSend, WcStatus)> {
        let status = self.posted.front()?.done?;
        let p = self.posted.pop_front()?;
        self.budget.give(p.work);
        self.signaled -= usize::from(p.signaled);
        Some((p, status))
    }

    /// Takes all WRs out, the oldest first: the device's queue is gone. Returns them, and how many of
    /// them are signalled for the user.
    pub(super) fn clear(&mut self) -> (VecDeque<PostedSend>, usize) {
        self.staged.clear();
        self.sges.clear();
        self.budget.clear();
        (std::mem::take(&mut self.posted), std::mem::take(&mut self.signaled))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_waits_for_one_sided_operations_of_the_user_only() {
        let posted = |op, signaled, done| {
            let quiet = PostedSend::quiet(1, Work::Caller);
            PostedSend { op, signaled, done, ..quiet }.awaits_answer()
        };
        for op in [WcOp::Read, WcOp::Write, WcOp::Atomic] {
            assert!(posted(Some(op), true, None), "{op:?}");
            assert!(!posted(Some(op), true, Some(WcStatus::Success)), "{op:?} is answered");
            assert!(!posted(Some(op), false, None), "{op:?}: no caller waits");
        }
        assert!(!posted(Some(WcOp::Send), true, None));
        assert!(!posted(None, true, None), "a bind");
    }
}
