//! The receive queue of a queue pair without a shared one, and receives posted before the device has it.

use std::collections::VecDeque;

use super::VerbsRnic;
use super::qp::status;
use super::queues::blank;
use super::raw::{HwSge, RawWc};
use crate::mem::{Access, Key};
use crate::rnic::{Qp, RecvWr, RnicError, Wc, WcOp};

/// A receive that is not with the device yet.
struct EarlyReceive {
    wr_id: u64,
    /// Its segments, each with the key of its region.
    sges: Vec<(Key, HwSge)>,
}

/// The receives of a queue pair without a shared receive queue.
#[derive(Default)]
pub(super) struct QpReceives {
    /// Those that the device has, the oldest first.
    posted: VecDeque<u64>,
    /// Those posted before the device's queue pair was made.
    early: VecDeque<EarlyReceive>,
}

impl QpReceives {
    /// The receives that are outstanding, wherever they are.
    #[cfg(any(test, feature = "internals"))]
    fn len(&self) -> usize {
        self.posted.len() + self.early.len()
    }

    /// The device has taken a receive.
    fn add(&mut self, wr_id: u64) {
        self.posted.push_back(wr_id);
    }

    /// Keeps a receive until the device has a queue for it.
    #[cfg(any(test, feature = "internals"))]
    fn add_early(&mut self, wr_id: u64, sges: Vec<(Key, HwSge)>) {
        self.early.push_back(EarlyReceive { wr_id, sges });
    }

    /// Takes out the oldest receive that the device has yet to get, with its segments.
    fn take_early(&mut self) -> Option<(u64, Vec<HwSge>)> {
        let EarlyReceive { wr_id, sges } = self.early.pop_front()?;
        Some((wr_id, sges.into_iter().map(|(_, sge)| sge).collect()))
    }

    /// True if a receive that is not with the device yet names this key.
    fn names(&self, key: Key) -> bool {
        self.early.iter().any(|e| e.sges.iter().any(|s| s.0 == key))
    }

    /// Takes a key away from the receives that are not with the device yet.
    fn revoke(&mut self, key: Key) {
        for sge in self.early.iter_mut().flat_map(|e| &mut e.sges).filter(|s| s.0 == key) {
            // A length that nothing fits; the key is none.
            sge.1 = HwSge { addr: 0, len: 1, lkey: 0 };
        }
    }

    /// A message, or the end of the queue pair, has used up the oldest receive.
    fn used(&mut self) {
        self.posted.pop_front();
    }

    /// Takes all receives out, the oldest first: the device's queue is gone.
    pub(super) fn clear(&mut self) -> impl Iterator<Item = u64> + use<> {
        let QpReceives { posted, early } = std::mem::take(self);
        posted.into_iter().chain(early.into_iter().map(|e| e.wr_id))
    }
}

impl VerbsRnic {
    pub(super) fn resolve_recv(&self, pd: u32, wr: &RecvWr<'_>) -> Result<Vec<HwSge>, RnicError> {
        let (asked, limit) = (wr.sges.len() as u64, self.profile.caps().max_sge as u64);
        if asked > limit {
            return Err(RnicError::Limit { what: "segments of a work request", asked, limit });
        }
        let all = wr.sges.iter().map(|s| self.memory.resolve(pd, s, Access::LOCAL));
        all.filter(|s| !s.as_ref().is_ok_and(|s| s.len == 0)).collect()
    }

    #[cfg(any(test, feature = "internals"))]
    pub(super) fn post_recv(&mut self, id: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        if qp.attr.srq.is_some() {
            return Err(RnicError::Unsupported("receive queue of its own (it has a shared one)"));
        }
        if matches!(qp.phase.state(), crate::rnic::QpState::Closing | crate::rnic::QpState::Error) {
            return Err(self.wrong_state(id, "Init, Connecting or Rts"));
        }
        let sges = self.resolve_recv(qp.attr.pd.0, wr)?;
        let depth = qp.attr.max_recv_wr;
        let iwarp = self.profile.is_iwarp();
        let qp = self.qps.get_mut(id.0)?;
        if qp.recvs.len() >= depth {
            return Err(RnicError::QueueFull { what: "receive queue", depth });
        }
        match &qp.hw {
            Some(hw) => {
                let sges = padded(iwarp, sges);
                hw.id.post_recv(wr.wr_id, &sges).map_err(|e| RnicError::os("ibv_post_recv", &e))?;
                qp.recvs.add(wr.wr_id);
            }
            None => {
                let keys = wr.sges.iter().filter(|s| s.len > 0).map(|s| s.lkey);
                qp.recvs.add_early(wr.wr_id, keys.zip(sges).collect());
            }
        }
        Ok(())
    }

    /// Hands receives that were posted early to the device.
    pub(super) fn post_early_recvs(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let Some(hw) = &q.hw else { return };
        while let Some((wr_id, sges)) = q.recvs.take_early() {
            let sges = padded(self.profile.is_iwarp(), sges);
            if let Err(e) = hw.id.post_recv(wr_id, &sges) {
                crate::trace::warn!("{}: ibv_post_recv: {e}", self.profile.name());
            }
            q.recvs.add(wr_id);
        }
    }

    /// Takes a registration that ends away from receives that are not with the device yet. The first
    /// message that meets one fails, as it would at the device.
    pub(super) fn revoke_early_recvs(&mut self, key: Key) {
        let hit = self.qps.iter().filter(|(_, q)| q.recvs.names(key)).map(|(id, _)| id);
        for id in hit.collect::<Vec<u32>>() {
            if let Ok(q) = self.qps.get_mut(id) {
                q.recvs.revoke(key);
            }
        }
    }

    /// A completion of a receive.
    pub(super) fn received(&mut self, id: u32, raw: &RawWc) {
        // A message may come before the CM's last event, so the connection opens first.
        if raw.status == 0 {
            self.established_by_message(id);
        }
        let Ok(qp) = self.qps.get_mut(id) else { return };
        if qp.attr.srq.is_none() {
            qp.recvs.used();
        }
        let cq = qp.attr.recv_cq;
        let imm = raw.opcode == 129 && raw.status == 0;
        let op = if imm { WcOp::RecvWriteImm } else { WcOp::Recv };
        let byte_len = if raw.status == 0 { u64::from(raw.byte_len) } else { 0 };
        let invalidated = raw.invalidated(self.profile.is_rxe());
        let wc = Wc {
            byte_len,
            imm: raw.imm,
            invalidated,
            ..blank(Qp(id), raw.wr_id, op, status(raw.status))
        };
        if let Some(key) = invalidated {
            self.closed_by_peer(id, key);
        }
        self.push_wc(cq, wc);
        if raw.status != 0 {
            self.handle_failed_wr(id, raw);
        }
    }
}

/// The segments of a receive, as the device takes them: siw wants at least one, if of no bytes.
pub(super) fn padded(iwarp: bool, mut sges: Vec<HwSge>) -> Vec<HwSge> {
    if iwarp && sges.is_empty() {
        sges.push(HwSge { addr: 0, len: 0, lkey: 0 });
    }
    sges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64) -> HwSge {
        HwSge { addr, len: 100, lkey: 2 }
    }

    #[test]
    fn receives_end_in_the_order_in_which_they_were_posted() {
        let mut recvs = QpReceives::default();
        recvs.add_early(10, vec![(7, sge(1))]);
        assert_eq!(recvs.take_early(), Some((10, vec![sge(1)])));
        assert_eq!((recvs.take_early(), recvs.len()), (None, 0), "the caller has it");
        recvs.add(10);
        recvs.add(11);
        recvs.used();
        recvs.add_early(12, Vec::new());
        assert_eq!(recvs.len(), 2);
        assert_eq!(recvs.clear().collect::<Vec<_>>(), [11, 12]);
        assert_eq!(recvs.len(), 0);
    }

    #[test]
    fn an_early_receive_has_no_segment_of_a_key_that_ended() {
        let mut recvs = QpReceives::default();
        recvs.add_early(10, vec![(7, sge(1)), (8, sge(2))]);
        recvs.add_early(11, vec![(7, sge(3))]);
        assert_eq!([7, 8, 9].map(|key| recvs.names(key)), [true, true, false]);
        recvs.revoke(7);
        let none = HwSge { addr: 0, len: 1, lkey: 0 };
        assert_eq!(recvs.take_early(), Some((10, vec![none, sge(2)])));
        assert_eq!(recvs.take_early(), Some((11, vec![none])));
    }
}
