//! Completions, on their way from the device to the user, and the posts of shared receives.
//!
//! A CQ of the trait is a queue of the driver (`cqs`). It is filled from as many CQs of the device
//! as its queue pairs need (`device_cqs`), also if all their WRs are flushed at once. Sends and
//! receives have separate CQs of the device. So a sleeping thread is woken by receives, and by sends
//! only if a WR's poster waits for one (`awaited`). `srqs` is the table of shared receive queues.

use std::sync::Arc;

use super::VerbsRnic;
use super::device_cqs::Role;
use super::pool::{PooledReceive, ReceivePool};
use super::raw::{BATCH, RawWc, SharedQueue};
use super::srqs::Store;
use crate::mem::Access;
use crate::rnic::{Cq, Pd, Qp, RecvWr, RnicError, RnicEvent, Srq, Wc, WcOp, WcStatus};

/// Polls of one CQ in one turn, so that a turn is bounded.
const POLLS_PER_TURN: usize = 8;
/// Turns until everything was taken: more than the longest queue needs.
const MAX_POLLS: usize = 256;

impl VerbsRnic {
    pub(super) fn push_wc(&mut self, cq: Cq, wc: Wc) {
        if self.cqs.push(cq, wc) {
            self.events.push_back(RnicEvent::CqReady(cq));
        }
    }

    // ---- shared receive queues -------------------------------------------------

    pub(super) fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        let limit = self.profile.caps().max_srq_wr;
        let domain = Arc::clone(self.memory.domain(pd.0)?);
        if max_wr > limit {
            let (asked, limit) = (max_wr as u64, limit as u64);
            return Err(RnicError::Limit { what: "shared receive queue depth", asked, limit });
        }
        let max_wr = u32::try_from(max_wr).unwrap_or(u32::MAX).max(1);
        let store = match self.profile.has_srq() {
            true => {
                let sges = u32::try_from(self.profile.caps().max_sge).unwrap_or(1);
                let srq = SharedQueue::new(&domain, max_wr, sges)
                    .map_err(|e| RnicError::os("ibv_create_srq", &e))?;
                Store::Device(srq)
            }
            false => Store::Pool(ReceivePool::default()),
        };
        self.memory.add_user(pd.0)?;
        self.srqs.add(store, pd.0, max_wr)
    }

    pub(super) fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        let holders = || self.qps.iter().filter(|(_, q)| q.pooled.holds(srq.0)).count();
        let pd = self.srqs.remove(srq.0, holders)?;
        self.memory.remove_user(pd)?;
        // Its CQ goes with it.
        self.device_cqs.end_srq(srq.0);
        Ok(())
    }

    pub(super) fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let entry = self.srqs.get(srq.0)?;
        let (one, many);
        let sges: &[_] = match wr.sges {
            // The common case needs no list.
            [sge] if sge.len > 0 => {
                one = [self.memory.resolve(entry.pd(), sge, Access::LOCAL)?];
                &one
            }
            _ => {
                many = super::recv::padded(
                    self.profile.is_iwarp(),
                    self.resolve_recv(entry.pd(), wr)?,
                );
                &many
            }
        };
        entry.check_room()?;
        match entry.store() {
            Store::Device(queue) => {
                queue.post(wr.wr_id, sges).map_err(|e| RnicError::os("ibv_post_srq_recv", &e))?;
            }
            Store::Pool(_) => self.give_to_pool(PooledReceive::new(srq.0, wr.wr_id, sges)?),
        }
        self.srqs.note_posted(srq.0)
    }

    // ---- completions -------------------------------------------------------------

    /// Takes completions from all CQs of the device. True if there may be more.
    pub(super) fn poll_hw(&mut self) -> bool {
        self.handle_polled();
        let mut more = false;
        for index in 0..self.device_cqs.places() {
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
        let srqs = &self.srqs;
        self.device_cqs.poll(index, wanted, |srq| srqs.has_receives(srq))
    }

    /// Handles polled completions that are not handled yet.
    pub(super) fn handle_polled(&mut self) {
        while let Some((role, wc)) = self.device_cqs.next() {
            self.handle_wc(role, &wc);
        }
    }

    fn handle_wc(&mut self, role: Role, wc: &RawWc) {
        let qp = self.qps.id_of(wc.qp_num);
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
                self.srqs.note_used(srq);
                match qp {
                    Some(qp) => self.received(qp, wc),
                    // The queue pair is gone; its receive comes back all the same.
                    None => self.return_receive(srq, wc.wr_id),
                }
            }
        }
    }

    /// Returns a receive of an SRQ whose queue pair is gone.
    fn return_receive(&mut self, srq: u32, wr_id: u64) {
        let Some(cq) = self.srqs.cq(srq) else { return };
        let wc = blank(Qp(u32::MAX), wr_id, WcOp::Recv, WcStatus::Flushed);
        self.push_wc(cq, wc);
    }

    /// Requests notifications, and polls once more. True if completions came.
    pub(super) fn arm_hw(&mut self) -> bool {
        self.device_cqs.arm(self.awaited.any());
        let before = self.device_cqs.handled_total();
        self.poll_hw();
        self.device_cqs.handled_total() != before
    }
}

/// A completion without data.
pub(super) fn blank(qp: Qp, wr_id: u64, op: WcOp, status: WcStatus) -> Wc {
    Wc { wr_id, qp, status, op, byte_len: 0, imm: None, invalidated: None, solicited: false }
}
