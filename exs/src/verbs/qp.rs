//! Queue pairs: their parts, and how they are made and freed.

use std::sync::Arc;

use super::VerbsRnic;
use super::cm::CmPhase;
use super::device_cqs::Role;
use super::pool::PooledQueue;
use super::queues::blank;
use super::raw::{CmId, QpShape};
use super::recv::QpReceives;
use super::send_queue::QpSendQueue;
use super::srqs::Store;
use super::windows::QpWindows;
use crate::rnic::{Qp, QpAttr, QpState, RnicError, STRICT_CREDITS, WcOp, WcStatus};

/// The device's side of a queue pair.
pub(super) struct DeviceQp {
    /// Shared with the thread that connects it, on devices where that takes one.
    pub(super) id: Arc<CmId>,
    pub(super) num: u32,
    pub(super) inline: u32,
    reserved: Reserved,
}

/// CQs of the device, and the entries that a queue pair has reserved in them.
#[derive(Clone, Copy)]
struct Reserved {
    send_cq: usize,
    sends: u32,
    recv_cq: usize,
    recvs: u32,
}

/// A queue pair.
pub(super) struct VerbsQp {
    pub(super) attr: QpAttr,
    pub(super) phase: CmPhase,
    pub(super) hw: Option<DeviceQp>,
    pub(super) addrs: Option<(std::net::SocketAddr, std::net::SocketAddr)>,
    /// In Rts and Closing: a message came, but not the CM's last event of the start-up.
    pub(super) awaits_cm: bool,
    pub(super) sends: QpSendQueue,
    /// Receives of its own.
    pub(super) recvs: QpReceives,
    /// Receives from pools.
    pub(super) pooled: PooledQueue,
    /// The device has reported that it takes no receive of the SRQ any more.
    pub(super) last_wqe_reached: bool,
    pub(super) windows: QpWindows,
}

impl VerbsRnic {
    pub(super) fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.memory.domain(attr.pd.0)?;
        self.cqs.check(attr.send_cq)?;
        self.cqs.check(attr.recv_cq)?;
        if let Some(srq) = attr.srq
            && self.srqs.get(srq.0)?.pd() != attr.pd.0
        {
            return Err(RnicError::NoSuch {
                what: "shared receive queue of this domain",
                id: srq.0,
            });
        }
        let limit = self.profile.caps().max_send_wr;
        if attr.max_send_wr > limit {
            let (asked, limit) = (attr.max_send_wr as u64, limit as u64);
            return Err(RnicError::Limit { what: "send queue depth", asked, limit });
        }
        let (asked, limit) = (attr.max_recv_wr as u64, u64::from(self.profile.max_recv_wr()));
        if attr.srq.is_none() && asked > limit {
            return Err(RnicError::Limit { what: "receive queue depth", asked, limit });
        }
        let qp = self.qps.insert(VerbsQp {
            attr: *attr,
            phase: CmPhase::Idle,
            hw: None,
            addrs: None,
            awaits_cm: false,
            sends: QpSendQueue::new(attr.max_send_wr, self.profile.shares()),
            recvs: QpReceives::default(),
            pooled: PooledQueue::default(),
            last_wqe_reached: false,
            windows: QpWindows::default(),
        })?;
        self.memory.add_user(attr.pd.0)?;
        self.cqs.add_user(attr.send_cq)?;
        self.cqs.add_user(attr.recv_cq)?;
        if let Some(srq) = attr.srq {
            self.srqs.add_user(srq.0, attr.recv_cq)?;
        }
        Ok(Qp(qp))
    }

    pub(super) fn destroy_qp(&mut self, id: Qp) -> Result<(), RnicError> {
        self.qps.get(id.0)?;
        self.free_device_qp(id.0, false);
        self.set_deadline(id.0, None);
        let qp = self.qps.remove(id.0)?;
        self.memory.remove_user(qp.attr.pd.0)?;
        self.cqs.remove_user(qp.attr.send_cq)?;
        self.cqs.remove_user(qp.attr.recv_cq)?;
        if let Some(srq) = qp.attr.srq {
            self.srqs.remove_user(srq.0)?;
        }
        Ok(())
    }

    /// Makes the device's queue pair, on the id of the connection.
    pub(super) fn make_device_qp(
        &mut self,
        qp: u32,
        mut id: CmId,
    ) -> Result<(), (CmId, RnicError)> {
        // First: the queue pair may have events as soon as it is there.
        super::events::claim(id.serial(), &self.inbox);
        match self.create_device_qp(qp, &mut id) {
            Ok((num, inline, reserved)) => {
                self.qps.set_num(num, qp);
                let hw = DeviceQp { id: Arc::new(id), num, inline, reserved };
                let mut srq = None;
                if let Ok(q) = self.qps.get_mut(qp) {
                    q.hw = Some(hw);
                    srq = q.attr.srq;
                }
                match srq {
                    Some(srq) => self.fill_from_pool(qp, srq.0),
                    None => self.post_early_recvs(qp),
                }
                Ok(())
            }
            Err(e) => {
                super::events::disclaim(id.serial());
                Err((id, e))
            }
        }
    }

    fn create_device_qp(
        &mut self,
        qp: u32,
        id: &mut CmId,
    ) -> Result<(u32, u32, Reserved), RnicError> {
        let q = self.qps.get(qp)?;
        let (attr, sends) = (q.attr, q.sends.depth());
        let pd = Arc::clone(self.memory.domain(attr.pd.0)?);
        let (srq, role, recvs) = match attr.srq {
            Some(srq) => {
                let entry = self.srqs.get(srq.0)?;
                match entry.store() {
                    Store::Device(queue) => {
                        (Some(Arc::clone(queue)), Role::Shared(srq.0), entry.max_wr())
                    }
                    // Room in the CQ for extra receives is reserved when they come.
                    Store::Pool(_) => (None, Role::Pooled(srq.0), STRICT_CREDITS.into()),
                }
            }
            None => {
                let recvs = u32::try_from(attr.max_recv_wr).unwrap_or(u32::MAX).max(1);
                (None, Role::Receives, recvs)
            }
        };
        let send_cq = self.device_cqs.reserve(Role::Sends, sends)?;
        let recv_cq = self
            .device_cqs
            .reserve(role, recvs)
            .inspect_err(|_| self.device_cqs.unreserve(send_cq, sends))?;
        let reserved = Reserved { send_cq, sends, recv_cq, recvs };
        let (scq, rcq) = (self.device_cqs.cq(send_cq), self.device_cqs.cq(recv_cq));
        let pooled = role.is_pooled();
        let mut result = Err(std::io::Error::from_raw_os_error(libc::EINVAL));
        for max_inline in self.profile.inline_sizes() {
            result = id.create_qp(&QpShape {
                pd: &pd,
                send_cq: &scq,
                recv_cq: &rcq,
                srq: srq.as_ref(),
                max_send_wr: sends,
                max_recv_wr: if pooled { self.profile.max_receives().into() } else { recvs },
                max_sge: self.profile.qp_sges(),
                max_inline,
            });
            match &result {
                Ok(_) => self.profile.note_inline(max_inline),
                // bnxt_re sets no errno; `last` reports ENOMEM for that.
                Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM)) => continue,
                Err(_) => {}
            }
            break;
        }
        match result {
            Ok(granted) => Ok((id.qp_num().unwrap_or(0), granted, reserved)),
            Err(e) => {
                self.device_cqs.unreserve(send_cq, sends);
                self.device_cqs.unreserve(recv_cq, recvs);
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

    /// Frees the device's queue pair. After this call none of its WRs touches memory. `tell`: reports
    /// outstanding WRs as flushed; otherwise they vanish.
    pub(super) fn free_device_qp(&mut self, qp: u32, tell: bool) {
        // Takes completions first: a device may forget them with the queue pair, and receives of a
        // shared queue would be lost.
        self.poll_all();
        let Ok(q) = self.qps.get_mut(qp) else { return };
        if let Some(mut hw) = q.hw.take() {
            let attempt = q.phase.state() == QpState::Connecting;
            hw.id.fail_qp();
            self.note_lost(qp);
            // Flushed WRs are not reported if all of them are to vanish.
            if !tell {
                self.qps.clear_num(hw.num);
            }
            self.poll_all();
            let Ok(q) = self.qps.get_mut(qp) else { return };
            // Before the queue pair is destroyed: rxe waits 50 s for windows that are bound to it.
            let windows = q.windows.clear();
            self.memory.drop_windows(windows);
            self.cm_ids.release(&hw.id);
            super::events::disclaim(hw.id.serial());
            if attempt && self.profile.is_iwarp() {
                // siw waits up to 10 s for the peer's answer before it frees a queue pair. No WR moves on
                // it any more, and it holds what it uses. So it is freed with its id.
                drop(hw.id);
            } else if let Some(id) = Arc::get_mut(&mut hw.id) {
                id.destroy_qp();
            }
            // Before another queue pair gets the number.
            self.poll_hw();
            self.qps.clear_num(hw.num);
            self.device_cqs.unreserve(hw.reserved.send_cq, hw.reserved.sends);
            self.device_cqs.unreserve(hw.reserved.recv_cq, hw.reserved.recvs);
            self.return_pooled(qp);
        }
        self.drop_phase(qp);
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let windows = q.windows.clear();
        let (posted, signaled) = q.sends.clear();
        let recvs = q.recvs.clear();
        let attr = q.attr;
        self.awaited.over(signaled);
        self.memory.drop_windows(windows);
        for p in posted {
            if let Some(slot) = p.slot() {
                self.memory.give_slot(attr.pd.0, slot);
            }
            if tell && let Some(wc) = p.completion(Qp(qp), WcStatus::Flushed) {
                self.push_wc(attr.send_cq, wc);
            }
        }
        for wr_id in recvs {
            if tell {
                self.push_wc(attr.recv_cq, blank(Qp(qp), wr_id, WcOp::Recv, WcStatus::Flushed));
            }
        }
    }

    /// Reserves room in the CQ of a queue pair for up to `count` more receives. Returns how many.
    pub(super) fn reserve_receives(&mut self, qp: u32, count: u16) -> u16 {
        let Some(hw) = self.qps.get_mut(qp).ok().and_then(|q| q.hw.as_mut()) else { return 0 };
        let reserved = &mut hw.reserved;
        let count = self.device_cqs.reserve_more(reserved.recv_cq, count.into());
        reserved.recvs += count;
        u16::try_from(count).unwrap_or(0)
    }

    /// A queue pair has one receive less.
    pub(super) fn unreserve_receive(&mut self, qp: u32) {
        let Some(hw) = self.qps.get_mut(qp).ok().and_then(|q| q.hw.as_mut()) else { return };
        hw.reserved.recvs -= 1;
        let index = hw.reserved.recv_cq;
        self.device_cqs.unreserve(index, 1);
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

/// The status of a completion, from a value of `ibv_wc_status`.
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
