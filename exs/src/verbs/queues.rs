//! Completion queues and shared receive queues.
//!
//! A CQ of the trait is a queue of the driver. It is filled from as many CQs of the device as its
//! queue pairs need. A device's CQ that overflows breaks its QPs. So each gets no more queue pairs
//! than it can hold completions of, even if all are flushed at once. Sends and receives have
//! separate CQs. So a sleeping thread is woken by receives, and by sends only if a WR's poster waits
//! for one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::VerbsRnic;
use super::pool::{PooledReceive, ReceivePool};
use super::raw::{BATCH, CompQueue, RawWc, SharedQueue};
use crate::mem::Access;
use crate::rnic::{
    Cq, DisconnectCause, Pd, Qp, RecvWr, RnicError, RnicEvent, Srq, Wc, WcOp, WcStatus,
};

/// Entries of the first CQ of the device for a purpose, unless its limit is lower. Each further CQ is
/// twice as long, so that few are polled for many connections.
const CQ_DEPTH: u32 = 4096;
/// The most entries of a CQ, unless a single queue pair needs more.
const MAX_CQ_DEPTH: u32 = 64 << 10;
/// Polls of one CQ in one turn, so that a turn is bounded.
const POLLS_PER_TURN: usize = 8;
/// Turns until everything was taken: more than the longest queue needs.
const MAX_POLLS: usize = 256;

/// A CQ of the trait.
#[derive(Default)]
pub(super) struct Completions {
    queue: VecDeque<Wc>,
    /// The next completion is reported as `CqReady`.
    armed: bool,
    /// Queue pairs that use it.
    pub(super) users: usize,
}

/// The completions that a CQ of the device holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Sends,
    Receives,
    /// Receives of this SRQ's queue pairs.
    Shared(u32),
    /// Receives of queue pairs that take them from the pool of this SRQ.
    Pooled(u32),
}

impl Role {
    /// True if it holds messages for the SRQ of a domain.
    pub(super) fn has_messages(self) -> bool {
        matches!(self, Role::Shared(_) | Role::Pooled(_))
    }

    /// True if it holds messages for queue pairs that have receives of their own.
    pub(super) fn is_pooled(self) -> bool {
        matches!(self, Role::Pooled(_))
    }
}

/// A CQ of the device.
pub(super) struct HwQueue {
    pub(super) cq: Arc<CompQueue>,
    role: Role,
    /// Entries.
    depth: u32,
    /// Entries that queue pairs may fill.
    reserved: u32,
    /// A notification was requested.
    armed: bool,
}

impl HwQueue {
    /// Entries that queue pairs can still reserve.
    pub(super) fn room(&self) -> u32 {
        self.depth - self.reserved
    }

    pub(super) fn reserve(&mut self, count: u32) {
        self.reserved += count;
    }

    /// True if another queue pair may reserve `need` entries. A quarter of the entries for pooled
    /// receives is for the extra ones of queue pairs that are there.
    fn fits(&self, need: u32) -> bool {
        let kept = if self.role.is_pooled() && self.reserved > 0 { self.depth / 4 } else { 0 };
        self.room() >= need + kept
    }
}

/// Where the receives of an SRQ are.
pub(super) enum Store {
    /// In an SRQ of the device.
    Device(Arc<SharedQueue>),
    /// In the queue pairs, and in a pool.
    Pool(ReceivePool),
}

impl Store {
    pub(super) fn pool(&mut self) -> Option<&mut ReceivePool> {
        match self {
            Store::Pool(pool) => Some(pool),
            Store::Device(_) => None,
        }
    }
}

/// An SRQ.
pub(super) struct SharedEntry {
    pub(super) store: Store,
    pub(super) pd: u32,
    pub(super) max_wr: u32,
    pub(super) posted: u32,
    pub(super) users: usize,
    /// Receives that may have been lost so far (`last_wqe`).
    pub(super) lost: usize,
}

impl VerbsRnic {
    pub(super) fn create_cq(&mut self) -> Result<Cq, RnicError> {
        self.cqs.insert(Completions::default()).map(Cq)
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        match self.cqs.get(cq.0)?.users {
            0 => {
                self.queued_wcs -= self.cqs.remove(cq.0)?.queue.len();
                Ok(())
            }
            users => Err(RnicError::Busy { what: "completion queue", id: cq.0, users }),
        }
    }

    pub(super) fn poll_cq(
        &mut self,
        cq: Cq,
        max: usize,
        out: &mut Vec<Wc>,
    ) -> Result<usize, RnicError> {
        let queue = &mut self.cqs.get_mut(cq.0)?.queue;
        let n = queue.len().min(max);
        out.extend(queue.drain(..n));
        self.queued_wcs -= n;
        Ok(n)
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.get_mut(cq.0)?.armed = true;
        Ok(())
    }

    pub(super) fn push_wc(&mut self, cq: Cq, wc: Wc) {
        let Ok(to) = self.cqs.get_mut(cq.0) else { return };
        to.queue.push_back(wc);
        self.queued_wcs += 1;
        if std::mem::take(&mut to.armed) {
            self.events.push_back(RnicEvent::CqReady(cq));
        }
    }

    /// Reserves `need` entries in a CQ of the device; makes a CQ if none has room. Returns its index.
    pub(super) fn reserve(&mut self, role: Role, need: u32) -> Result<usize, RnicError> {
        let shared = matches!(role, Role::Shared(_));
        let fits = |q: &HwQueue| q.role == role && (shared || q.fits(need));
        if let Some((index, queue)) = self.hw.iter_mut().find(|(_, q)| fits(q)) {
            // The receives of an SRQ are counted once, however many queue pairs share it.
            queue.reserve(if shared { 0 } else { need });
            return Ok(index);
        }
        let limit = self.attr.max_cqe;
        if need > limit {
            let (asked, limit) = (u64::from(need), u64::from(limit));
            return Err(RnicError::Limit { what: "completion queue depth", asked, limit });
        }
        let gone = RnicError::Os { call: "ibv_create_cq", errno: libc::ENODEV };
        let channel = self.channel.as_ref().ok_or(gone)?;
        let usual = match role {
            Role::Shared(_) => CQ_DEPTH,
            _ => {
                let earlier = self.hw.iter().filter(|(_, q)| q.role == role).count();
                (CQ_DEPTH << earlier.min(8)).min(MAX_CQ_DEPTH)
            }
        };
        let depth = need.max(usual).min(limit);
        let entry = self.hw.vacant_entry();
        let index = entry.key();
        let cq = CompQueue::new(self.device, depth, channel, index)
            .map_err(|e| RnicError::os("ibv_create_cq", &e))?;
        entry.insert(HwQueue { cq, role, depth, reserved: need, armed: false });
        Ok(index)
    }

    pub(super) fn unreserve(&mut self, index: usize, count: u32) {
        if let Some(q) = self.hw.get_mut(index)
            && !matches!(q.role, Role::Shared(_))
        {
            q.reserved -= count;
        }
    }

    // ---- shared receive queues -------------------------------------------------

    pub(super) fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        let limit = self.caps.max_srq_wr;
        let domain = Arc::clone(&self.pds.get(pd.0)?.pd);
        if max_wr > limit {
            let (asked, limit) = (max_wr as u64, limit as u64);
            return Err(RnicError::Limit { what: "shared receive queue depth", asked, limit });
        }
        let max_wr = u32::try_from(max_wr).unwrap_or(u32::MAX).max(1);
        let store = match self.attr.has_srq() {
            true => {
                let sges = u32::try_from(self.caps.max_sge).unwrap_or(1);
                let srq = SharedQueue::new(&domain, max_wr, sges)
                    .map_err(|e| RnicError::os("ibv_create_srq", &e))?;
                Store::Device(srq)
            }
            false => Store::Pool(ReceivePool::default()),
        };
        self.pds.get_mut(pd.0)?.users += 1;
        let entry = SharedEntry { store, pd: pd.0, max_wr, posted: 0, users: 0, lost: 0 };
        self.srqs.insert(entry).map(Srq)
    }

    pub(super) fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let entry = self.srqs.get(srq.0)?;
        if entry.users > 0 {
            let users = entry.users;
            return Err(RnicError::Busy { what: "shared receive queue", id: srq.0, users });
        }
        let holders = self.qps.iter().filter(|(_, q)| q.pooled.holds(srq.0)).count();
        if holders > 0 {
            let users = holders;
            return Err(RnicError::Busy { what: "shared receive queue", id: srq.0, users });
        }
        let pd = self.srqs.remove(srq.0)?.pd;
        self.pds.get_mut(pd)?.users -= 1;
        // Its CQ goes with it.
        self.srq_cqs.remove(&srq.0);
        self.hw.retain(|_, q| q.role != Role::Shared(srq.0) && q.role != Role::Pooled(srq.0));
        Ok(())
    }

    pub(super) fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let entry = self.srqs.get(srq.0)?;
        let (one, many);
        let sges: &[_] = match wr.sges {
            // The common case needs no list.
            [sge] if sge.len > 0 => {
                one = [self.resolve(entry.pd, sge, Access::LOCAL)?];
                &one
            }
            _ => {
                many = super::recv::padded(self.attr.iwarp, self.resolve_recv(entry.pd, wr)?);
                &many
            }
        };
        if entry.posted >= entry.max_wr {
            let (what, depth) = ("shared receive queue", entry.max_wr as usize);
            return Err(RnicError::QueueFull { what, depth });
        }
        match &entry.store {
            Store::Device(queue) => {
                queue.post(wr.wr_id, sges).map_err(|e| RnicError::os("ibv_post_srq_recv", &e))?;
            }
            Store::Pool(_) => self.give_to_pool(PooledReceive::new(srq.0, wr.wr_id, sges)?),
        }
        self.srqs.get_mut(srq.0)?.posted += 1;
        Ok(())
    }

    // ---- completions -------------------------------------------------------------

    /// Takes completions from all CQs of the device. True if there may be more.
    pub(super) fn poll_hw(&mut self) -> bool {
        self.handle_polled();
        let mut more = false;
        for index in 0..self.hw.capacity() {
            for round in 0..POLLS_PER_TURN {
                let n = self.poll_queue(index, |_| true);
                self.handle_polled();
                if n < BATCH {
                    break;
                }
                more |= round + 1 == POLLS_PER_TURN;
            }
        }
        more
    }

    /// Takes all completions that are there. Other queue pairs may bring more meanwhile.
    pub(super) fn poll_all(&mut self) {
        (0..MAX_POLLS).find(|_| !self.poll_hw());
    }

    /// Polls one CQ of the device, if its role is wanted. Returns the number of completions, which must
    /// be handled before the next poll.
    pub(super) fn poll_queue(&mut self, index: usize, wanted: impl Fn(Role) -> bool) -> usize {
        // A CQ that no queue pair uses has no completions.
        let used = |q: &&HwQueue| wanted(q.role) && self.in_use(q);
        let Some(q) = self.hw.get(index).filter(used) else { return 0 };
        self.polled.begin(index, q.role);
        if let Err(e) = q.cq.poll(&mut self.polled.wcs) {
            crate::trace::warn!("{}: ibv_poll_cq: {e}", self.caps.name);
        }
        self.polled.wcs.len()
    }

    /// Handles polled completions that are not handled yet.
    pub(super) fn handle_polled(&mut self) {
        while let Some(wc) = self.polled.next() {
            self.handle_wc(self.polled.role, &wc);
        }
    }

    fn in_use(&self, q: &HwQueue) -> bool {
        match q.role {
            Role::Shared(srq) => self.srqs.get(srq).is_ok_and(|s| s.posted > 0),
            Role::Sends | Role::Receives | Role::Pooled(_) => q.reserved > 0,
        }
    }

    fn handle_wc(&mut self, role: Role, wc: &RawWc) {
        let qp = self.by_num.get(&wc.qp_num).copied();
        match (role, qp) {
            (Role::Sends, Some(qp)) => self.sent(qp, wc),
            // The receives of a queue pair that is gone are in the pool already.
            (Role::Sends | Role::Receives | Role::Pooled(_), None) => {}
            (Role::Receives, Some(qp)) => self.received(qp, wc),
            (Role::Pooled(_), Some(qp)) => {
                self.pooled_used(qp, wc.status == 0);
                self.received(qp, wc);
            }
            (Role::Shared(srq), qp) => {
                self.count_used_receive(srq);
                match qp {
                    Some(qp) => self.received(qp, wc),
                    // The queue pair is gone; its receive comes back all the same.
                    None => self.return_receive(srq, wc.wr_id),
                }
            }
        }
    }

    /// Counts a receive of an SRQ that has come back.
    pub(super) fn count_used_receive(&mut self, srq: u32) {
        if let Ok(entry) = self.srqs.get_mut(srq) {
            entry.posted = entry.posted.saturating_sub(1);
        }
    }

    /// Returns a receive of an SRQ whose queue pair is gone.
    fn return_receive(&mut self, srq: u32, wr_id: u64) {
        let Some(cq) = self.srq_cqs.get(&srq).copied() else { return };
        let wc = blank(Qp(u32::MAX), wr_id, WcOp::Recv, WcStatus::Flushed);
        self.push_wc(cq, wc);
    }

    /// Requests notifications, and polls once more. True if completions came.
    pub(super) fn arm_hw(&mut self) -> bool {
        let sends = self.waits_for_sends();
        for (_, q) in &mut self.hw {
            if !q.armed && (q.role != Role::Sends || sends) {
                match q.cq.arm() {
                    Ok(()) => q.armed = true,
                    Err(e) => crate::trace::warn!("ibv_req_notify_cq: {e}"),
                }
            }
        }
        let before = self.polled.handled_total();
        self.poll_hw();
        self.polled.handled_total() != before
    }

    /// Takes the notifications that are there.
    pub(super) fn drain_notifications(&mut self) {
        let Some(channel) = self.channel.clone() else { return };
        while let Some(tag) = channel.next() {
            if let Some(q) = self.hw.get_mut(tag) {
                q.armed = false;
                q.cq.notified();
            }
        }
    }

    /// Handles the loss of the device: completions will not come any more.
    pub(super) fn device_lost(&mut self) {
        if std::mem::replace(&mut self.removed, true) {
            return;
        }
        let all: Vec<u32> = self.qps.iter().map(|(id, _)| id).collect();
        for qp in all {
            self.failed.push((qp, DisconnectCause::DeviceRemoved));
        }
    }
}

/// A completion without data.
pub(super) fn blank(qp: Qp, wr_id: u64, op: WcOp, status: WcStatus) -> Wc {
    Wc { wr_id, qp, status, op, byte_len: 0, imm: None, invalidated: None, solicited: false }
}
