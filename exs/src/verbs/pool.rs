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

use std::collections::VecDeque;

use super::VerbsRnic;
use super::qp::VerbsQp;
use super::raw::HwSge;
use crate::rnic::{RnicError, STRICT_CREDITS};

/// The segments of a pooled receive.
pub(super) const POOLED_SGES: usize = 4;

/// A receive that is not tied to a queue pair.
#[derive(Clone, Copy)]
pub(super) struct PooledReceive {
    wr_id: u64,
    sges: [HwSge; POOLED_SGES],
    count: usize,
}

impl PooledReceive {
    pub(super) fn new(wr_id: u64, sges: &[HwSge]) -> Result<PooledReceive, RnicError> {
        let (asked, limit) = (sges.len(), POOLED_SGES);
        if asked > limit {
            let (asked, limit) = (asked as u64, limit as u64);
            return Err(RnicError::Limit { what: "segments of a pooled receive", asked, limit });
        }
        let mut list = [HwSge { addr: 0, len: 0, lkey: 0 }; POOLED_SGES];
        list[..asked].copy_from_slice(sges);
        Ok(PooledReceive { wr_id, sges: list, count: asked })
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

impl VerbsRnic {
    /// Gives a new queue pair its receives.
    pub(super) fn fill_from_pool(&mut self, qp: u32, srq: u32) {
        (0..STRICT_CREDITS).for_each(|_| self.take_pooled(qp, srq));
    }

    /// Moves a receive from the pool to a queue pair, or puts the queue pair in line.
    fn take_pooled(&mut self, qp: u32, srq: u32) {
        let (Ok(q), Ok(entry)) = (self.qps.get_mut(qp), self.srqs.get_mut(srq)) else { return };
        let Some(pool) = entry.store.pool() else { return };
        match pool.free.pop_front() {
            Some(receive) if post(q, &receive) => {}
            // The connection is about to end, and says so elsewhere.
            Some(receive) => pool.free.push_front(receive),
            None => pool.line.push_back(qp),
        }
    }

    /// Adds a receive to the pool, or gives it to the first queue pair in line.
    pub(super) fn give_to_pool(&mut self, srq: u32, receive: PooledReceive) {
        let Ok(entry) = self.srqs.get_mut(srq) else { return };
        let Some(pool) = entry.store.pool() else { return };
        while let Some(qp) = pool.line.pop_front() {
            if self.qps.get_mut(qp).is_ok_and(|q| post(q, &receive)) {
                return;
            }
        }
        pool.free.push_back(receive);
    }

    /// A message, or the end of the queue pair, has used up its oldest receive.
    pub(super) fn pooled_used(&mut self, qp: u32, srq: u32, success: bool) {
        if let Ok(q) = self.qps.get_mut(qp) {
            q.pooled.pop_front();
        }
        if success {
            self.take_pooled(qp, srq);
        }
    }

    /// The device's queue pair is gone: its receives go back.
    pub(super) fn return_pooled(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let Some(srq) = q.attr.srq else { return };
        let back = std::mem::take(&mut q.pooled);
        if let Some(pool) = self.srqs.get_mut(srq.0).ok().and_then(|entry| entry.store.pool()) {
            pool.line.retain(|waiting| *waiting != qp);
        }
        back.into_iter().for_each(|receive| self.give_to_pool(srq.0, receive));
    }
}

/// Posts a receive to the queue pair's own queue. False if the device refuses it.
fn post(q: &mut VerbsQp, receive: &PooledReceive) -> bool {
    let Some(hw) = &q.hw else { return false };
    match hw.id.post_recv(receive.wr_id, receive.sges()) {
        Ok(()) => {
            q.pooled.push_back(*receive);
            true
        }
        Err(e) => {
            crate::trace::debug!("ibv_post_recv: {e}");
            false
        }
    }
}
