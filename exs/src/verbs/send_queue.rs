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
        let wanted = self.signaled || !ok;
        wanted.then(|| Wc { byte_len, ..blank(qp, self.wr_id, op, status) })
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

    const QP: Qp = Qp(1);
    const CALLER: usize = 4;
    /// Bytes of each WR of the user.
    const LEN: u64 = 100;
    const OK: WcStatus = WcStatus::Success;

    fn queue() -> QpSendQueue {
        QpSendQueue::new(CALLER, Shares::of(64))
    }

    fn sge(addr: u64) -> HwSge {
        HwSge { addr, len: 1, lkey: 2 }
    }

    fn send() -> HwOp {
        HwOp::Send { solicited: false }
    }

    fn stage(queue: &mut QpSendQueue, wr_id: u64, wc: WcOp, signaled: bool) {
        let (op, len, reported) = (send(), LEN, signaled);
        let (inline, copied, pieces) = (false, None, &[][..]);
        queue.stage(CallerSend { wr_id, op, wc, len, signaled, reported, inline, copied, pieces });
    }

    /// Takes out what has a result. Returns the completions that the user gets: WR, status and bytes.
    fn completions(queue: &mut QpSendQueue) -> Vec<(u64, WcStatus, u64)> {
        let done = std::iter::from_fn(|| queue.take_done());
        let wcs = done.filter_map(|(p, status)| p.completion(QP, status));
        wcs.map(|wc| (wc.wr_id, wc.status, wc.byte_len)).collect()
    }

    #[test]
    fn one_doorbell_hands_over_all_that_is_staged() {
        let mut queue = queue();
        let (op, wc, copied) = (send(), WcOp::Send, Some((CopySlot::NONE, sge(1))));
        let (pieces, len) = (&[sge(2), sge(3)][..], LEN);
        let (signaled, reported, inline) = (false, false, false);
        let wr = CallerSend { wr_id: 10, op, wc, len, signaled, reported, inline, copied, pieces };
        queue.stage(wr);
        queue.stage_bind(send());
        stage(&mut queue, 12, WcOp::Send, false);
        assert!(queue.has_staged());
        let chain = queue.ring(|staged, sges| {
            let wrs: Vec<_> = staged.iter().map(|s| (s.wr_id, s.sges, s.signaled)).collect();
            (wrs, sges.to_vec())
        });
        let wrs = vec![(1, 3, false), (2, 0, false), (3, 0, true)];
        assert_eq!(chain, Some((wrs, vec![sge(1), sge(2), sge(3)])), "the last one is signalled");
        assert!(!queue.has_staged());
        assert_eq!(queue.ring(|_, _| ()), None, "each goes once");
        let eager = queue.eager(None, true);
        assert_eq!((eager.wr_id, eager.signaled, eager.sges), (4, true, 1));
        assert!(!queue.has_staged(), "it goes by itself");
    }

    #[test]
    fn a_completion_is_that_of_all_earlier_wrs() {
        let mut queue = queue();
        stage(&mut queue, 10, WcOp::Read, true);
        stage(&mut queue, 11, WcOp::Send, false);
        assert_eq!(queue.stage_bind(send()), 3);
        stage(&mut queue, 13, WcOp::Send, true);
        stage(&mut queue, 14, WcOp::Write, true);
        assert!(queue.awaits_answers());
        queue.completed(4, OK, false);
        assert_eq!(completions(&mut queue), [(10, OK, LEN), (13, OK, LEN)]);
        assert_eq!((queue.holds(3), queue.holds(5)), (false, true));
        assert!(!queue.is_empty() && queue.awaits_answers());
        queue.completed(5, OK, false);
        assert_eq!(completions(&mut queue), [(14, OK, LEN)]);
        assert!(queue.is_empty() && !queue.awaits_answers());
    }

    #[test]
    fn reads_of_siw_hold_back_what_is_behind_them() {
        let mut queue = queue();
        let refused = WcStatus::RemoteAccess;
        stage(&mut queue, 10, WcOp::Read, true);
        stage(&mut queue, 11, WcOp::Read, true);
        stage(&mut queue, 12, WcOp::Send, true);
        queue.completed(2, refused, true);
        queue.completed(3, WcStatus::Flushed, true);
        assert_eq!(completions(&mut queue), [], "the first READ has yet to complete");
        queue.completed(1, OK, true);
        let all = [(10, OK, LEN), (11, refused, 0), (12, WcStatus::Flushed, 0)];
        assert_eq!(completions(&mut queue), all, "each has its own result");
    }

    #[test]
    fn the_user_gets_failures_that_it_did_not_ask_for() {
        let mut queue = queue();
        let failed = WcStatus::RemoteOperation;
        stage(&mut queue, 10, WcOp::Send, false);
        let bind = queue.stage_bind(send());
        queue.ring(|_, _| ());
        let eager = queue.eager(None, true).wr_id;
        for seq in [1, bind, eager] {
            queue.completed(seq, failed, false);
        }
        assert_eq!(completions(&mut queue), [(10, failed, 0)], "the others are the driver's own");
        stage(&mut queue, 11, WcOp::Send, false);
        queue.completed(4, OK, false);
        assert_eq!((completions(&mut queue), queue.is_empty()), (vec![], true));
    }

    #[test]
    fn an_entry_is_free_when_its_wr_has_left() {
        let mut queue = queue();
        assert_eq!(queue.oldest_bind(), None);
        (0..CALLER).for_each(|_| stage(&mut queue, 10, WcOp::Send, true));
        assert!(!queue.has(Work::Caller) && queue.has(Work::Bind) && queue.has(Work::Eager));
        let bind = queue.stage_bind(send());
        queue.stage_bind(send());
        queue.completed(1, OK, false);
        assert!(!queue.has(Work::Caller), "it may still hold a slot");
        assert_eq!((completions(&mut queue).len(), queue.has(Work::Caller)), (1, true));
        assert_eq!(queue.oldest_bind(), Some(bind));
    }

    #[test]
    fn nothing_is_left_after_the_queue_pair() {
        let mut queue = queue();
        stage(&mut queue, 10, WcOp::Send, true);
        stage(&mut queue, 11, WcOp::Send, false);
        stage(&mut queue, 12, WcOp::Send, true);
        queue.completed(1, OK, false);
        assert_eq!(completions(&mut queue).len(), 1);
        (0..2).for_each(|_| stage(&mut queue, 13, WcOp::Send, false));
        assert!(!queue.has(Work::Caller));
        let (posted, signaled) = queue.clear();
        assert_eq!((posted.len(), signaled), (4, 1), "one of the two has left");
        assert!(queue.is_empty() && !queue.has_staged() && queue.has(Work::Caller));
        assert_eq!(queue.clear().1, 0);
        assert_eq!(queue.stage_bind(send()), 6, "no number is used again");
    }

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
