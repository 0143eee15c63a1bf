//! Queue pairs: what they are made of, how they are made and freed.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::VerbsRnic;
use super::cm::Phase;
use super::queues::{Role, blank};
use super::raw::{CmId, HwSge, QpShape, Staged, Window};
use super::send_budget::{SendBudget, Work};
use super::slots::Slot;
use crate::mem::Key;
use crate::rnic::{Qp, QpAttr, QpState, RnicError, WcOp, WcStatus};
use crate::time::Time;

/// Bytes that we would like to post inline; devices that take fewer are asked for
/// fewer.
const INLINE: [u32; 6] = [256, 192, 128, 80, 64, 0];

/// A send WR that the device has, or will have at the next doorbell.
pub(super) struct Posted {
    pub(super) seq: u64,
    pub(super) wr_id: u64,
    /// None: one of ours (a bind), or one of which nobody is told.
    pub(super) op: Option<WcOp>,
    pub(super) len: u64,
    pub(super) signaled: bool,
    pub(super) slot: Option<Slot>,
    pub(super) work: Work,
    /// How it ended, while others before it have not.
    pub(super) done: Option<WcStatus>,
}

impl Posted {
    /// One of which nobody is told.
    pub(super) fn quiet(seq: u64, work: Work) -> Posted {
        Posted { seq, wr_id: 0, op: None, len: 0, signaled: false, slot: None, work, done: None }
    }
}

/// The device's side of a queue pair.
pub(super) struct Hw {
    /// Shared with the thread that connects it, where that takes one.
    pub(super) id: Arc<CmId>,
    pub(super) num: u32,
    pub(super) inline: u32,
    send_cq: usize,
    recv_cq: usize,
    sends: u32,
}

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) attr: QpAttr,
    pub(super) phase: Phase,
    pub(super) hw: Option<Hw>,
    pub(super) addrs: Option<(std::net::SocketAddr, std::net::SocketAddr)>,
    pub(super) deadline: Option<Time>,
    /// In Rts and Closing: a message came before the CM's last word of the start-up.
    pub(super) unconfirmed: bool,
    /// It takes no receive of its SRQ any more: the device said so.
    pub(super) emptied: bool,
    /// Receives posted before there was a device's queue pair: (id, MR, pieces).
    pub(super) early: VecDeque<(u64, Vec<(Key, HwSge)>)>,
    pub(super) windows: Vec<Key>,
    /// Windows of its that its peer has closed, to be bound again.
    pub(super) spare: Vec<Window>,
    /// Lent keys, and how often each.
    pub(super) lent: HashMap<Key, usize>,
    pub(super) posted: VecDeque<Posted>,
    pub(super) seq: u64,
    /// The places of `posted`.
    pub(super) places: SendBudget,
    /// Of `posted`: the caller's that are signalled.
    pub(super) awaited: usize,
    pub(super) staged: Vec<Staged>,
    pub(super) sges: Vec<HwSge>,
    pub(super) recvs: VecDeque<u64>,
}

impl VerbsRnic {
    pub(super) fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.pds.get(attr.pd.0)?;
        self.cqs.get(attr.send_cq.0)?;
        self.cqs.get(attr.recv_cq.0)?;
        if let Some(srq) = attr.srq
            && self.srqs.get(srq.0)?.pd != attr.pd.0
        {
            return Err(RnicError::NoSuch {
                what: "shared receive queue of this domain",
                id: srq.0,
            });
        }
        let limit = self.caps.max_send_wr;
        if attr.max_send_wr > limit {
            let (asked, limit) = (attr.max_send_wr as u64, limit as u64);
            return Err(RnicError::Limit { what: "send queue depth", asked, limit });
        }
        let qp = self.qps.insert(QueuePair {
            attr: *attr,
            phase: Phase::Idle,
            hw: None,
            addrs: None,
            deadline: None,
            unconfirmed: false,
            emptied: false,
            early: VecDeque::new(),
            windows: Vec::new(),
            spare: Vec::new(),
            lent: HashMap::new(),
            posted: VecDeque::new(),
            seq: 0,
            places: SendBudget::new(attr.max_send_wr),
            awaited: 0,
            staged: Vec::new(),
            sges: Vec::new(),
            recvs: VecDeque::new(),
        })?;
        self.pds.get_mut(attr.pd.0)?.users += 1;
        self.cqs.get_mut(attr.send_cq.0)?.users += 1;
        self.cqs.get_mut(attr.recv_cq.0)?.users += 1;
        if let Some(srq) = attr.srq {
            self.srqs.get_mut(srq.0)?.users += 1;
            self.srq_cqs.insert(srq.0, attr.recv_cq);
        }
        Ok(Qp(qp))
    }

    pub(super) fn destroy_qp(&mut self, id: Qp) -> Result<(), RnicError> {
        self.qps.get(id.0)?;
        self.take_down(id.0, false);
        self.set_deadline(id.0, None);
        let qp = self.qps.remove(id.0)?;
        self.pds.get_mut(qp.attr.pd.0)?.users -= 1;
        self.cqs.get_mut(qp.attr.send_cq.0)?.users -= 1;
        self.cqs.get_mut(qp.attr.recv_cq.0)?.users -= 1;
        if let Some(srq) = qp.attr.srq {
            self.srqs.get_mut(srq.0)?.users -= 1;
        }
        Ok(())
    }

    /// Makes the device's queue pair, on the id of its connection to be.
    pub(super) fn equip(&mut self, qp: u32, mut id: CmId) -> Result<(), (CmId, RnicError)> {
        match self.try_equip(qp, &mut id) {
            Ok((num, inline, send_cq, recv_cq, sends)) => {
                self.by_num.insert(num, qp);
                let id = Arc::new(id);
                let hw = Hw { id, num, inline, send_cq, recv_cq, sends };
                if let Ok(q) = self.qps.get_mut(qp) {
                    q.hw = Some(hw);
                }
                self.post_early(qp);
                Ok(())
            }
            Err(e) => Err((id, e)),
        }
    }

    fn try_equip(
        &mut self,
        qp: u32,
        id: &mut CmId,
    ) -> Result<(u32, u32, usize, usize, u32), RnicError> {
        let q = self.qps.get(qp)?;
        let (attr, sends) = (q.attr, q.places.depth());
        let pd = Arc::clone(&self.pds.get(attr.pd.0)?.pd);
        let recvs = u32::try_from(attr.max_recv_wr).unwrap_or(u32::MAX).max(1);
        let (srq, role, need) = match attr.srq {
            Some(srq) => {
                let entry = self.srqs.get(srq.0)?;
                (Some(Arc::clone(&entry.srq)), Role::Shared(srq.0), entry.max_wr)
            }
            None => (None, Role::Receives, recvs),
        };
        let send_cq = self.reserve(Role::Sends, sends)?;
        let recv_cq = self.reserve(role, need).inspect_err(|_| self.unreserve(send_cq, sends))?;
        let (scq, rcq) = (Arc::clone(&self.hw[send_cq].cq), Arc::clone(&self.hw[recv_cq].cq));
        let mut result = Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        for max_inline in INLINE.into_iter().filter(|n| *n <= self.inline) {
            result = id.create_qp(&QpShape {
                pd: &pd,
                send_cq: &scq,
                recv_cq: &rcq,
                srq: srq.as_ref(),
                max_send_wr: sends,
                max_recv_wr: recvs,
                // One more, for what is copied.
                max_sge: u32::try_from(self.caps.max_sge + 1).unwrap_or(2),
                max_inline,
            });
            match &result {
                Ok(_) => self.inline = max_inline,
                // (bnxt_re gives no errno, which `last` calls ENOMEM.)
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM)) => continue,
                Err(_) => {}
            }
            break;
        }
        match result {
            Ok(granted) => Ok((id.qp_num().unwrap_or(0), granted, send_cq, recv_cq, sends)),
            Err(e) => {
                self.unreserve(send_cq, sends);
                self.unreserve(recv_cq, recvs);
                Err(match e.raw_os_error() {
                    Some(errno @ libc::ENOMEM) => RnicError::Os {
                        call: "rdma_create_qp (the device is out of queue pairs, or RLIMIT_MEMLOCK is too low)",
                        errno,
                    },
                    _ => RnicError::os("rdma_create_qp", &e),
                })
            }
        }
    }

    /// Frees the device's side of a queue pair: after this call none of its WRs
    /// touches memory. `tell`: what is outstanding is flushed; else it vanishes.
    pub(super) fn take_down(&mut self, qp: u32, tell: bool) {
        // What has completed has: a device may forget it with the queue pair, and the receives
        // of a shared queue would be lost.
        self.poll_all();
        let Ok(q) = self.qps.get_mut(qp) else { return };
        if let Some(mut hw) = q.hw.take() {
            let max_recv = u32::try_from(q.attr.max_recv_wr).unwrap_or(u32::MAX).max(1);
            let attempt = q.phase.state() == QpState::Connecting;
            hw.id.fail_qp();
            self.note_lost(qp);
            // Nobody is told of what was flushed if all of it is to vanish.
            if !tell {
                self.by_num.remove(&hw.num);
            }
            self.poll_all();
            let Ok(q) = self.qps.get_mut(qp) else { return };
            // Before it goes: rxe waits 50 s for windows that are bound to it.
            let windows = std::mem::take(&mut q.windows);
            q.spare.clear();
            self.drop_windows(windows);
            self.host.disown(&hw.id);
            self.by_serial.remove(&hw.id.serial());
            if attempt && self.attr.iwarp {
                // siw waits for the peer's answer, up to 10 s, before it lets go of a
                // queue pair. Nothing moves by it any more, and what it uses is held: it
                // goes with its id when it can.
                drop(hw.id);
            } else if let Some(id) = Arc::get_mut(&mut hw.id) {
                id.destroy_qp();
            }
            // Before another queue pair gets the number.
            self.poll_hw();
            self.by_num.remove(&hw.num);
            self.unreserve(hw.send_cq, hw.sends);
            self.unreserve(hw.recv_cq, max_recv);
        }
        self.drop_phase(qp);
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let windows = std::mem::take(&mut q.windows);
        q.lent.clear();
        q.staged.clear();
        q.sges.clear();
        let posted = std::mem::take(&mut q.posted);
        self.awaited -= std::mem::take(&mut q.awaited);
        let recvs = std::mem::take(&mut q.recvs);
        let early = std::mem::take(&mut q.early);
        let attr = q.attr;
        q.places.clear();
        self.drop_windows(windows);
        for p in posted {
            if let (Some(slot), Ok(pd)) = (p.slot, self.pds.get_mut(attr.pd.0)) {
                pd.slots.give(slot);
            }
            if let Some(op) = p.op
                && tell
            {
                self.push_wc(attr.send_cq, blank(Qp(qp), p.wr_id, op, WcStatus::Flushed));
            }
        }
        for wr_id in recvs.into_iter().chain(early.into_iter().map(|e| e.0)) {
            if tell {
                self.push_wc(attr.recv_cq, blank(Qp(qp), wr_id, WcOp::Recv, WcStatus::Flushed));
            }
        }
    }

    pub(super) fn qp_state(&self, id: Qp) -> Result<QpState, RnicError> {
        Ok(self.qps.get(id.0)?.phase.state())
    }

    #[cold]
    pub(super) fn wrong_state(&self, qp: Qp, need: &'static str) -> RnicError {
        let state = self.qp_state(qp).unwrap_or(QpState::Error);
        RnicError::State { qp: qp.0, state, need }
    }

    /// The domain of a queue pair that has a connection.
    pub(super) fn live_qp(&self, id: Qp) -> Result<u32, RnicError> {
        let qp = self.qps.get(id.0)?;
        match qp.phase.state() {
            QpState::Rts | QpState::Connecting if qp.hw.is_some() => Ok(qp.attr.pd.0),
            _ => Err(self.wrong_state(id, "a live connection")),
        }
    }
}

/// A completion's status. (The names are those of `ibv_wc_status`.)
pub(super) fn status(raw: u32) -> WcStatus {
    match raw {
        0 => WcStatus::Success,
        1 => WcStatus::LocalLength,
        4 | 6 | 8 => WcStatus::LocalProtection(crate::mem::AccessFault::InvalidKey { key: 0 }),
        5 => WcStatus::Flushed,
        9 | 15 => WcStatus::RemoteInvalidRequest,
        10 => WcStatus::RemoteAccess,
        11 | 16 => WcStatus::RemoteOperation,
        other => WcStatus::Device(other),
    }
}
