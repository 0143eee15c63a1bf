//! Receive pools: the receives of a device without shared receive queues.
//!
//! Above the driver all connections of a domain share one SRQ. Many adapters have none (Intel
//! E810, Alibaba eRDMA, Microsoft MANA), and each queue pair must have receives of its own. There
//! the driver keeps the receives of an SRQ in a *pool*. A new queue pair takes
//! [`STRICT_CREDITS`] receives from the pool to its own receive queue. When a message has used one
//! up, the queue pair takes the next. When a queue pair ends, its receives go back to the pool.
//!
//! A queue pair may lack a receive for a while, since the user posts receives back in groups. It
//! never lacks a receive that its peer may use. The argument: let a pool of `n` queue pairs have
//! `8n + s` receives, and let the user post back in groups of at most `s`. Consider the messages
//! that arrived since the pool was last full, in their order. The first `s` find their
//! replacements in the pool. The queue pair of message `s + k` lacks one, and is the `k`th in the
//! line. The user handles messages in order of arrival, and returns a credit to the peer only when
//! it has handled the message. When it has handled `s + k - 1` messages, it has posted back all but
//! `s - 1` of them at most, so at least `k`. These go to the first `k` in the line. So the queue
//! pair has its replacement before the user returns the credit of message `s + k`.
//!
//! A busy queue pair can have *extra* receives, from a second pool, for as long as its user wants
//! ([`VerbsRnic::add_receives`]). The room for them in its completion queue is reserved before. They
//! are posted at once or not at all, so no queue pair waits in line for them at first. From then on
//! each receive is replaced from the pool that it came from, and the argument holds for each pool by
//! itself. So the usual receives stay where they are, and all memory of the second pool is free
//! again when no queue pair has extra receives. A receive that is posted cannot be taken back.
//! After [`VerbsRnic::drop_receives`] extra receives are not replaced, and go with the next messages.

use std::collections::VecDeque;

use super::VerbsRnic;
use super::qp::VerbsQp;
use super::raw::{Attr, HwSge};
use crate::rnic::{ExtraReceives, Qp, RnicError, STRICT_CREDITS, Srq};

/// The segments of a pooled receive.
pub(super) const POOLED_SGES: usize = 4;
/// The most receives of a queue pair, with the extra ones.
const MAX_RECEIVES: u16 = 32;

/// The same, on a device.
pub(super) fn max_receives(attr: &Attr) -> u16 {
    let most = u16::try_from(attr.max_qp_wr).unwrap_or(u16::MAX);
    MAX_RECEIVES.min(most).max(STRICT_CREDITS)
}

/// A receive that is not tied to a queue pair.
#[derive(Clone, Copy)]
pub(super) struct PooledReceive {
    wr_id: u64,
    sges: [HwSge; POOLED_SGES],
    count: usize,
    /// Its pool.
    srq: u32,
}

impl PooledReceive {
    pub(super) fn new(srq: u32, wr_id: u64, sges: &[HwSge]) -> Result<PooledReceive, RnicError> {
        let (asked, limit) = (sges.len(), POOLED_SGES);
        if asked > limit {
            let (asked, limit) = (asked as u64, limit as u64);
            return Err(RnicError::Limit { what: "segments of a pooled receive", asked, limit });
        }
        let mut list = [HwSge { addr: 0, len: 0, lkey: 0 }; POOLED_SGES];
        list[..asked].copy_from_slice(sges);
        Ok(PooledReceive { wr_id, sges: list, count: asked, srq })
    }

    fn sges(&self) -> &[HwSge] {
        &self.sges[..self.count]
    }
}

/// The receives of an SRQ that no queue pair has, or the queue pairs that lack some.
#[derive(Default)]
pub(super) struct ReceivePool {
    free: VecDeque<PooledReceive>,
    /// Queue pairs that lack a receive, each once for every receive that it lacks.
    line: VecDeque<u32>,
}

impl ReceivePool {
    /// Takes out the receives whose `wr_id` is `first` or more.
    fn reclaim(&mut self, first: u64, out: &mut Vec<u64>) {
        let (keep, go) = self.free.drain(..).partition(|receive| receive.wr_id < first);
        self.free = keep;
        let go: VecDeque<PooledReceive> = go;
        out.extend(go.iter().map(|receive| receive.wr_id));
    }
}

/// The receives that a queue pair has from pools.
#[derive(Default)]
pub(super) struct PooledQueue {
    /// Those that the device has, the oldest first.
    posted: VecDeque<PooledReceive>,
    /// The pool of its extra receives. None: it never had any.
    extra: Option<u32>,
    /// Extra receives are not replaced.
    drops_extra: bool,
}

impl PooledQueue {
    fn is_extra(&self, receive: &PooledReceive) -> bool {
        self.extra == Some(receive.srq)
    }

    /// The extra receives that are posted.
    fn extra(&self) -> ExtraReceives {
        let is_extra = |r: &PooledReceive| self.is_extra(r);
        let left = self.posted.iter().filter(|r| is_extra(r)).count();
        let messages = self.posted.iter().rposition(is_extra).map_or(0, |last| last + 1);
        let narrow = |n| u16::try_from(n).unwrap_or(u16::MAX);
        ExtraReceives { left: narrow(left), messages: narrow(messages) }
    }

    /// True if it holds receives of this pool.
    pub(super) fn holds(&self, srq: u32) -> bool {
        self.posted.iter().any(|receive| receive.srq == srq)
    }
}

impl VerbsRnic {
    /// Gives a new queue pair its receives.
    pub(super) fn fill_from_pool(&mut self, qp: u32, srq: u32) {
        (0..STRICT_CREDITS).for_each(|_| self.take_pooled(qp, srq));
    }

    /// Moves a receive from the pool to a queue pair, or puts the queue pair in line.
    fn take_pooled(&mut self, qp: u32, srq: u32) {
        let (Ok(q), Some(pool)) = (self.qps.get_mut(qp), self.srqs.pool(srq)) else { return };
        match pool.free.pop_front() {
            Some(receive) if post(q, &receive) => {}
            // The connection is about to end, and says so elsewhere.
            Some(receive) => pool.free.push_front(receive),
            None => pool.line.push_back(qp),
        }
    }

    /// Adds a receive to the pool, or gives it to the first queue pair in line.
    pub(super) fn give_to_pool(&mut self, receive: PooledReceive) {
        let Some(pool) = self.srqs.pool(receive.srq) else { return };
        while let Some(qp) = pool.line.pop_front() {
            if self.qps.get_mut(qp).is_ok_and(|q| post(q, &receive)) {
                return;
            }
        }
        pool.free.push_back(receive);
    }

    /// A message, or the end of the queue pair, has used up its oldest receive.
    pub(super) fn pooled_used(&mut self, qp: u32, success: bool) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let Some(receive) = q.pooled.posted.pop_front() else { return };
        let goes = q.pooled.is_extra(&receive) && q.pooled.drops_extra;
        self.srqs.note_used(receive.srq);
        match (success, goes) {
            (true, false) => self.take_pooled(qp, receive.srq),
            (true, true) => self.unreserve_receive(qp),
            (false, _) => {}
        }
    }

    /// The device's queue pair is gone: its receives go back.
    pub(super) fn return_pooled(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let queue = std::mem::take(&mut q.pooled);
        for srq in q.attr.srq.map(|srq| srq.0).into_iter().chain(queue.extra) {
            if let Some(pool) = self.srqs.pool(srq) {
                pool.line.retain(|waiting| *waiting != qp);
            }
        }
        queue.posted.into_iter().for_each(|receive| self.give_to_pool(receive));
    }

    // ---- extra receives ------------------------------------------------------------

    /// Posts extra receives to a queue pair (`Rnic::add_receives`).
    pub(super) fn add_receives(&mut self, id: Qp, from: Srq, count: u16) -> u16 {
        let (Ok(q), Ok(entry)) = (self.qps.get_mut(id.0), self.srqs.get_mut(from.0)) else {
            return 0;
        };
        let same_domain = entry.pd() == q.attr.pd.0 && q.attr.srq.is_some_and(|own| own != from);
        let other = q.pooled.extra.is_some_and(|extra| extra != from.0);
        let Some(pool) = entry.pool().filter(|_| same_domain && q.hw.is_some()) else {
            return 0;
        };
        if other && q.pooled.extra().left > 0 {
            return 0;
        }
        let free = u16::try_from(pool.free.len()).unwrap_or(u16::MAX);
        let room = self.profile.max_receives().saturating_sub(STRICT_CREDITS);
        let Ok(q) = self.qps.get_mut(id.0) else { return 0 };
        let room = room.saturating_sub(q.pooled.extra().left);
        // Room for their completions first: a CQ that overflows breaks all its queue pairs.
        let count = self.reserve_receives(id.0, count.min(free).min(room));
        if let Ok(q) = self.qps.get_mut(id.0) {
            (q.pooled.extra, q.pooled.drops_extra) = (Some(from.0), false);
        }
        (0..count).for_each(|_| self.take_pooled(id.0, from.0));
        count
    }

    /// Replaces extra receives no more (`Rnic::drop_receives`).
    pub(super) fn drop_receives(&mut self, id: Qp) -> ExtraReceives {
        let Ok(q) = self.qps.get_mut(id.0) else { return ExtraReceives::default() };
        let first = !std::mem::replace(&mut q.pooled.drops_extra, true);
        // Those that it lacks do not come any more.
        if let Some(pool) = q.pooled.extra.filter(|_| first).and_then(|srq| self.srqs.pool(srq)) {
            let before = pool.line.len();
            pool.line.retain(|waiting| *waiting != id.0);
            let lacked = before - pool.line.len();
            (0..lacked).for_each(|_| self.unreserve_receive(id.0));
        }
        self.qps.get(id.0).map_or(ExtraReceives::default(), |q| q.pooled.extra())
    }

    /// Takes back receives of a pool that no queue pair has (`Rnic::reclaim_receives`).
    pub(super) fn reclaim_receives(&mut self, srq: Srq, first: u64, out: &mut Vec<u64>) -> usize {
        let Ok(entry) = self.srqs.get_mut(srq.0) else { return 0 };
        let Some(pool) = entry.pool() else { return 0 };
        let before = out.len();
        pool.reclaim(first, out);
        let left = pool.free.len();
        let reclaimed = u32::try_from(out.len() - before).unwrap_or(u32::MAX);
        entry.note_used(reclaimed);
        left
    }
}

/// Posts a receive to the queue pair's own queue. False if the device refuses it.
fn post(q: &mut VerbsQp, receive: &PooledReceive) -> bool {
    let Some(hw) = &q.hw else { return false };
    match hw.id.post_recv(receive.wr_id, receive.sges()) {
        Ok(()) => {
            q.pooled.posted.push_back(*receive);
            true
        }
        Err(e) => {
            crate::trace::debug!("ibv_post_recv: {e}");
            false
        }
    }
}
