//! Completion queues and shared receive queues.
//!
//! A CQ of the trait is a queue of ours, filled from as many queues of the device as
//! its queue pairs need: a device's CQ that overflows takes its QPs with it, so each
//! is given no more queue pairs than it can hold the completions of, all flushed at
//! once. Sends and receives have CQs of their own, so that a thread which sleeps is
//! woken by receives, and by sends only if somebody waits for one.

use std::collections::VecDeque;
use std::sync::Arc;

use super::VerbsRnic;
use super::raw::{BATCH, CompQueue, RawWc, SharedQueue};
use crate::mem::Access;
use crate::rnic::{
    Cq, DisconnectCause, Pd, Qp, RecvWr, RnicError, RnicEvent, Srq, Wc, WcOp, WcStatus,
};

/// Entries of a CQ of the device, if it can.
const DEPTH: u32 = 4096;
/// Polls of one CQ in one turn: a turn is bounded.
const ROUNDS: usize = 8;
/// And where all are to be taken: more than the longest queue holds.
const MOST_ROUNDS: usize = 256;

/// A CQ of the trait.
#[derive(Default)]
pub(super) struct Completions {
    queue: VecDeque<Wc>,
    armed: bool,
    pub(super) users: usize,
}

/// What a CQ of the device is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Role {
    #[default]
    Sends,
    Receives,
    /// Receives of this SRQ's queue pairs.
    Shared(u32),
}

/// A CQ of the device.
pub(super) struct HwQueue {
    pub(super) cq: Arc<CompQueue>,
    role: Role,
    depth: u32,
    reserved: u32,
    armed: bool,
}

/// An SRQ.
pub(super) struct SharedEntry {
    pub(super) srq: Arc<SharedQueue>,
    pub(super) pd: u32,
    pub(super) max_wr: u32,
    pub(super) posted: u32,
    pub(super) users: usize,
    /// As many may have been lost (`last`).
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
                self.waiting -= self.cqs.remove(cq.0)?.queue.len();
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
        self.waiting -= n;
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
        self.waiting += 1;
        if std::mem::take(&mut to.armed) {
            self.events.push_back(RnicEvent::CqReady(cq));
        }
    }

    /// Room for `need` completions in a CQ of the device.
    pub(super) fn reserve(&mut self, role: Role, need: u32) -> Result<usize, RnicError> {
        let shared = matches!(role, Role::Shared(_));
        let fits = |q: &HwQueue| q.role == role && (shared || q.depth - q.reserved >= need);
        if let Some((index, queue)) = self.hw.iter_mut().find(|(_, q)| fits(q)) {
            // The receives of an SRQ are counted once, however many share it.
            queue.reserved += if shared { 0 } else { need };
            return Ok(index);
        }
        let limit = self.attr.max_cqe;
        if need > limit {
            let (asked, limit) = (u64::from(need), u64::from(limit));
            return Err(RnicError::Limit { what: "completion queue depth", asked, limit });
        }
        let gone = RnicError::Os { call: "ibv_create_cq", errno: libc::ENODEV };
        let channel = self.channel.as_ref().ok_or(gone)?;
        let depth = need.max(DEPTH).min(limit);
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
        let sges = u32::try_from(self.caps.max_sge).unwrap_or(1);
        let srq = SharedQueue::new(&domain, max_wr, sges)
            .map_err(|e| RnicError::os("ibv_create_srq", &e))?;
        self.pds.get_mut(pd.0)?.users += 1;
        let entry = SharedEntry { srq, pd: pd.0, max_wr, posted: 0, users: 0, lost: 0 };
        self.srqs.insert(entry).map(Srq)
    }

    pub(super) fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let entry = self.srqs.get(srq.0)?;
        if entry.users > 0 {
            let users = entry.users;
            return Err(RnicError::Busy { what: "shared receive queue", id: srq.0, users });
        }
        let pd = self.srqs.remove(srq.0)?.pd;
        self.pds.get_mut(pd)?.users -= 1;
        // Its CQ goes with it.
        self.srq_cqs.remove(&srq.0);
        self.hw.retain(|_, q| q.role != Role::Shared(srq.0));
        Ok(())
    }

    pub(super) fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let entry = self.srqs.get(srq.0)?;
        let (one, many);
        let sges: &[_] = match wr.sges {
            // The usual one, without a list.
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
        entry.srq.post(wr.wr_id, sges).map_err(|e| RnicError::os("ibv_post_srq_recv", &e))?;
        self.srqs.get_mut(srq.0)?.posted += 1;
        Ok(())
    }

    // ---- completions -------------------------------------------------------------

    /// Takes the completions that are there. True if there may be more.
    pub(super) fn poll_hw(&mut self) -> bool {
        self.handle_found();
        let mut more = false;
        for index in 0..self.hw.capacity() {
            for round in 0..ROUNDS {
                let n = self.find(index, |_| true);
                self.handle_found();
                if n < BATCH {
                    break;
                }
                more |= round + 1 == ROUNDS;
            }
        }
        more
    }

    /// Takes all completions that are there. (Other queue pairs may bring more meanwhile.)
    pub(super) fn poll_all(&mut self) {
        (0..MOST_ROUNDS).find(|_| !self.poll_hw());
    }

    /// Takes out what a queue of the device has, to be handled next; returns how much.
    pub(super) fn find(&mut self, index: usize, wanted: impl Fn(Role) -> bool) -> usize {
        // One that no queue pair uses has nothing to say.
        let used = |q: &&HwQueue| wanted(q.role) && self.in_use(q);
        let Some(q) = self.hw.get(index).filter(used) else { return 0 };
        self.raw.begin(index, q.role);
        if let Err(e) = q.cq.poll(&mut self.raw.wcs) {
            crate::trace::warn!("{}: ibv_poll_cq: {e}", self.caps.name);
        }
        self.raw.wcs.len()
    }

    /// Handles what was found and is not handled yet.
    pub(super) fn handle_found(&mut self) {
        while let Some(wc) = self.raw.next() {
            self.handle_raw(self.raw.role, &wc);
        }
    }

    fn in_use(&self, q: &HwQueue) -> bool {
        match q.role {
            Role::Shared(srq) => self.srqs.get(srq).is_ok_and(|s| s.posted > 0),
            Role::Sends | Role::Receives => q.reserved > 0,
        }
    }

    fn handle_raw(&mut self, role: Role, wc: &RawWc) {
        let qp = self.by_num.get(&wc.qp_num).copied();
        match (role, qp) {
            (Role::Sends, Some(qp)) => self.sent(qp, wc),
            (Role::Sends | Role::Receives, None) => {}
            (Role::Receives, Some(qp)) => self.received(qp, wc),
            (Role::Shared(srq), qp) => {
                self.note_used(srq);
                match qp {
                    Some(qp) => self.received(qp, wc),
                    // Of a queue pair that is gone: its buffer comes back all the same.
                    None => self.orphaned(srq, wc.wr_id),
                }
            }
        }
    }

    /// A receive of an SRQ has come back.
    pub(super) fn note_used(&mut self, srq: u32) {
        if let Ok(entry) = self.srqs.get_mut(srq) {
            entry.posted = entry.posted.saturating_sub(1);
        }
    }

    /// A buffer of an SRQ comes back without a message.
    fn orphaned(&mut self, srq: u32, wr_id: u64) {
        let Some(cq) = self.srq_cqs.get(&srq).copied() else { return };
        let wc = blank(Qp(u32::MAX), wr_id, WcOp::Recv, WcStatus::Flushed);
        self.push_wc(cq, wc);
    }

    /// Arms what is not armed, and looks once more: true if something is there.
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
        let before = self.raw.count();
        self.poll_hw();
        self.raw.count() != before
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

    /// The device has failed: what the queues would say is lost.
    pub(super) fn device_lost(&mut self) {
        if std::mem::replace(&mut self.dead, true) {
            return;
        }
        let all: Vec<u32> = self.qps.iter().map(|(id, _)| id).collect();
        for qp in all {
            self.doomed.push((qp, DisconnectCause::DeviceRemoved));
        }
    }
}

/// A completion of nothing.
pub(super) fn blank(qp: Qp, wr_id: u64, op: WcOp, status: WcStatus) -> Wc {
    Wc { wr_id, qp, status, op, byte_len: 0, imm: None, invalidated: None, solicited: false }
}
