//! Queue pairs: posting, the doorbell, completions.
//!
//! A send WR is staged when it is posted and handed to the device, with all staged
//! before it, by the doorbell. The last of each chain is signalled whatever the
//! caller asked: so every WR is known to have completed soon after it has, and its
//! place in the queue and its slot are free again; the caller is told of those that
//! it asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::VerbsRnic;
use super::cm::Phase;
use super::queues::{Role, blank};
use super::raw::{CmId, HwOp, HwSge, QpShape, RawWc, Staged};
use super::slots::{SLOT, Slot};
use crate::mem::{Access, Key, MAX_SGE};
use crate::rnic::{
    DisconnectCause, Qp, QpAttr, QpState, RecvWr, RnicError, SendOp, SendWr, Wc, WcOp, WcStatus,
};
use crate::time::Time;

/// Bytes that we would like to post inline; devices that take fewer are asked for
/// fewer.
const INLINE: [u32; 6] = [256, 192, 128, 80, 64, 0];
/// Room in the send queue for binds, besides the caller's WRs.
const BINDS: u32 = 64;

/// A send WR that the device has, or will have at the next doorbell.
struct Posted {
    seq: u64,
    wr_id: u64,
    /// None: one of ours (a bind).
    op: Option<WcOp>,
    len: u64,
    signaled: bool,
    slot: Option<Slot>,
}

/// The device's side of a queue pair.
pub(super) struct Hw {
    pub(super) id: CmId,
    pub(super) num: u32,
    inline: u32,
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
    /// Receives posted before there was a device's queue pair: (id, MR, pieces).
    pub(super) early: VecDeque<(u64, Vec<(Key, HwSge)>)>,
    pub(super) windows: Vec<Key>,
    /// Lent keys, and how often each.
    pub(super) lent: HashMap<Key, usize>,
    posted: VecDeque<Posted>,
    seq: u64,
    /// Of `posted`: the caller's; the signalled ones of these.
    sends: usize,
    awaited: usize,
    staged: Vec<Staged>,
    sges: Vec<HwSge>,
    recvs: VecDeque<u64>,
}

impl VerbsRnic {
    pub(super) fn make_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.pds.get(attr.pd.0)?;
        self.cqs.get(attr.send_cq.0)?;
        self.cqs.get(attr.recv_cq.0)?;
        if let Some(srq) = attr.srq
            && self.srqs.get(srq.0)?.pd != attr.pd.0
        {
            return Err(RnicError::NoSuch { what: "shared receive queue of this domain", id: srq.0 });
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
            early: VecDeque::new(),
            windows: Vec::new(),
            lent: HashMap::new(),
            posted: VecDeque::new(),
            seq: 0,
            sends: 0,
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

    pub(super) fn free_qp(&mut self, id: Qp) -> Result<(), RnicError> {
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
        let attr = self.qps.get(qp)?.attr;
        let pd = Arc::clone(&self.pds.get(attr.pd.0)?.pd);
        let sends = u32::try_from(attr.max_send_wr).unwrap_or(u32::MAX) + BINDS;
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
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => continue,
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
                    Some(libc::ENOMEM) => RnicError::Limit {
                        what: "queue pairs of the device (or locked memory: see RLIMIT_MEMLOCK)",
                        asked: self.by_num.len() as u64 + 1,
                        limit: u64::from(self.attr.max_qp),
                    },
                    _ => RnicError::os("rdma_create_qp", &e),
                })
            }
        }
    }

    /// Frees the device's side of a queue pair: after this call none of its WRs
    /// touches memory. `tell`: what is outstanding is flushed; else it vanishes.
    pub(super) fn take_down(&mut self, qp: u32, tell: bool) {
        // What has completed has.
        self.poll_hw();
        let Ok(q) = self.qps.get_mut(qp) else { return };
        if let Some(mut hw) = q.hw.take() {
            let max_recv = u32::try_from(q.attr.max_recv_wr).unwrap_or(u32::MAX).max(1);
            hw.id.fail_qp();
            self.host.disown(&hw.id);
            self.by_serial.remove(&hw.id.serial());
            hw.id.destroy_qp();
            // Before another queue pair gets the number. Nobody is told of what was
            // flushed if all of it is to vanish.
            if !tell {
                self.by_num.remove(&hw.num);
            }
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
        q.sends = 0;
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

    pub(super) fn state_of(&self, id: Qp) -> Result<QpState, RnicError> {
        Ok(self.qps.get(id.0)?.phase.state())
    }

    pub(super) fn wrong_state(&self, qp: Qp, need: &'static str) -> RnicError {
        let state = self.state_of(qp).unwrap_or(QpState::Error);
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

    // ---- sends -------------------------------------------------------------------

    fn check_send(&self, qp: &QueuePair, wr: &SendWr<'_>) -> Result<(Access, u64), RnicError> {
        let limit = |what, asked: u64, limit: u64| {
            if asked > limit { Err(RnicError::Limit { what, asked, limit }) } else { Ok(()) }
        };
        let mut need = Access::LOCAL_READ;
        limit("segments of a work request", wr.sges.len() as u64, self.caps.max_sge as u64)?;
        if wr.file.is_some() {
            return Err(RnicError::Unsupported("files as the source of a WRITE"));
        }
        let payload = wr.sges.iter().try_fold(0u64, |sum, s| sum.checked_add(s.len));
        // What wraps is refused as memory, with its numbers, further on.
        let payload = payload.unwrap_or(0);
        let total = payload + wr.head.len() as u64;
        match wr.op {
            SendOp::Read { .. } => {
                if !wr.head.is_empty() || wr.inline {
                    return Err(RnicError::Unsupported("data to send along with a READ"));
                }
                need = Access::LOCAL;
                if self.caps.read_sink_remote_write {
                    limit("segments of a READ", wr.sges.len() as u64, 1)?;
                    need = Access::REMOTE_WRITE;
                }
            }
            SendOp::WriteImm { .. } if !self.caps.write_imm => {
                return Err(RnicError::Unsupported("WRITE WITH IMMEDIATE"));
            }
            _ => {}
        }
        let by_value = wr.head.len() as u64 + if wr.inline { payload } else { 0 };
        limit("inline data", by_value, self.caps.max_inline as u64)?;
        if qp.sends >= qp.attr.max_send_wr {
            return Err(RnicError::QueueFull { what: "send queue", depth: qp.attr.max_send_wr });
        }
        Ok((need, total))
    }

    pub(super) fn post_tx(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        if !matches!(qp.phase, Phase::Rts) {
            return Err(self.wrong_state(id, "Rts"));
        }
        let (need, total) = self.check_send(qp, wr)?;
        let pd = qp.attr.pd.0;
        let device_inline = u64::from(qp.hw.as_ref().map_or(0, |h| h.inline));
        let mut pieces = [HwSge { addr: 0, len: 0, lkey: 0 }; MAX_SGE];
        let mut count = 0;
        for sge in wr.sges {
            let piece = self.resolve(pd, sge, need)?;
            if piece.len > 0 {
                pieces[count] = piece;
                count += 1;
            }
        }
        if total > self.caps.max_msg {
            let limit = self.caps.max_msg;
            return Err(RnicError::Limit { what: "bytes of a work request", asked: total, limit });
        }
        let mut slot = None;
        let mut first = None;
        let by_value = wr.head.len() + if wr.inline { usize::try_from(total).unwrap_or(0) - wr.head.len() } else { 0 };
        if by_value > 0 {
            let s = self.fill_slot(pd, wr)?;
            first = Some(self.pds.get(pd)?.slots.sge(s, by_value));
            slot = Some(s);
            if wr.inline {
                count = 0;
            }
        }
        let inline = total > 0 && total <= device_inline && count == 0;
        let qp = self.qps.get_mut(id.0)?;
        let sges = count + usize::from(first.is_some());
        qp.sges.extend(first);
        qp.sges.extend_from_slice(&pieces[..count]);
        let (op, wc) = match wr.op {
            SendOp::Send { invalidate: None, solicited } => (HwOp::Send { solicited }, WcOp::Send),
            SendOp::Send { invalidate: Some(key), solicited } => {
                (HwOp::SendInvalidate { key, solicited }, WcOp::Send)
            }
            SendOp::Write { raddr, rkey } => (HwOp::Write { raddr, rkey }, WcOp::Write),
            SendOp::WriteImm { raddr, rkey, imm } => {
                (HwOp::WriteImm { raddr, rkey, imm }, WcOp::Write)
            }
            SendOp::Read { raddr, rkey } => (HwOp::Read { raddr, rkey }, WcOp::Read),
        };
        qp.seq += 1;
        let seq = qp.seq;
        qp.staged.push(Staged { wr_id: seq, op, sges, signaled: wr.signaled, inline });
        let (wr_id, signaled) = (wr.wr_id, wr.signaled);
        qp.posted.push_back(Posted { seq, wr_id, op: Some(wc), len: total, signaled, slot });
        qp.sends += 1;
        if signaled {
            qp.awaited += 1;
            self.awaited += 1;
        }
        Ok(())
    }

    /// Copies what a WR wants copied into a slot.
    fn fill_slot(&mut self, pd: u32, wr: &SendWr<'_>) -> Result<Slot, RnicError> {
        let sources: Vec<_> = if wr.inline {
            wr.sges.iter().map(|s| self.source(s)).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let domain = self.pds.get_mut(pd)?;
        let slot = domain.slots.take(&domain.pd)?;
        let to = domain.slots.segment(slot);
        to.write_at(0, wr.head);
        let mut at = wr.head.len();
        for from in sources {
            from.copy_to(0, &to, at, from.len());
            at += from.len();
        }
        debug_assert!(at <= SLOT, "checked against max_inline");
        Ok(slot)
    }

    /// Stages a WR of ours, signalled; returns its number.
    pub(super) fn stage_own(&mut self, qp: u32, op: HwOp) -> Result<u64, RnicError> {
        let q = self.qps.get_mut(qp)?;
        let depth = q.attr.max_send_wr + BINDS as usize;
        if q.posted.len() >= depth {
            self.poll_hw();
        }
        let q = self.qps.get_mut(qp)?;
        if q.posted.len() >= depth {
            return Err(RnicError::QueueFull { what: "send queue", depth });
        }
        q.seq += 1;
        let seq = q.seq;
        q.staged.push(Staged { wr_id: seq, op, sges: 0, signaled: false, inline: false });
        let p = Posted { seq, wr_id: 0, op: None, len: 0, signaled: false, slot: None };
        q.posted.push_back(p);
        Ok(seq)
    }

    /// The doorbell.
    pub(super) fn ring(&mut self, id: u32) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        let Some(last) = qp.staged.last_mut() else { return };
        last.signaled = true;
        let Some(hw) = &qp.hw else { return };
        match hw.id.post_send(&qp.staged, &qp.sges, &mut self.scratch) {
            Ok(()) => {}
            Err((posted, e)) => {
                crate::trace::warn!("{}: ibv_post_send after {posted}: {e}", self.caps.name);
                let errno = e.raw_os_error().unwrap_or(libc::EIO);
                self.doomed.push((id, DisconnectCause::Broken(errno)));
            }
        }
        qp.staged.clear();
        qp.sges.clear();
    }

    /// Waits, not long, until a bind that was posted has been carried out: a window
    /// that is freed under it would take the connection along. It has been as a rule
    /// long ago; if not, it waits for acknowledgements of what was sent before.
    pub(super) fn let_bind_pass(&mut self, qp: u32, seq: u64) {
        const TRIES: u32 = 20_000;
        let pending = |r: &VerbsRnic| {
            r.qps.get(qp).is_ok_and(|q| q.hw.is_some() && q.posted.iter().any(|p| p.seq == seq))
        };
        if !pending(self) {
            return;
        }
        self.ring(qp);
        for _ in 0..TRIES {
            self.poll_hw();
            if !pending(self) {
                return;
            }
            std::thread::yield_now();
        }
        crate::trace::warn!("{}: a peer that does not answer holds a window", self.caps.name);
        self.doomed.push((qp, DisconnectCause::Broken(libc::ETIMEDOUT)));
        if let Ok(QueuePair { hw: Some(hw), .. }) = self.qps.get(qp) {
            hw.id.fail_qp();
        }
    }

    /// A completion of the send queue.
    pub(super) fn sent(&mut self, id: u32, raw: &RawWc) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        let (cq, pd) = (qp.attr.send_cq, qp.attr.pd.0);
        let status = status(raw.status);
        while let Ok(qp) = self.qps.get_mut(id)
            && qp.posted.front().is_some_and(|p| p.seq <= raw.wr_id)
            && let Some(p) = qp.posted.pop_front()
        {
            // Those before it have been carried out, or it would not be its turn.
            let status = if p.seq == raw.wr_id { status } else { WcStatus::Success };
            if p.op.is_some() {
                qp.sends -= 1;
            }
            if p.signaled {
                qp.awaited -= 1;
                self.awaited -= 1;
            }
            if let (Some(slot), Ok(pd)) = (p.slot, self.pds.get_mut(pd)) {
                pd.slots.give(slot);
            }
            let Some(op) = p.op else { continue };
            if p.signaled || status != WcStatus::Success {
                let ok = status == WcStatus::Success;
                let byte_len = if ok { p.len } else { 0 };
                self.push_wc(cq, Wc { byte_len, ..blank(Qp(id), p.wr_id, op, status) });
            }
        }
        if raw.status != 0 {
            self.work_failed(id, raw);
        } else {
            self.maybe_close(id);
        }
    }

    /// True if somebody waits for the completion of a send.
    pub(super) fn waits_for_sends(&self) -> bool {
        self.awaited > 0 || self.closing > 0
    }

    /// True if nothing of the send queue is outstanding.
    pub(super) fn drained(&self, qp: u32) -> bool {
        self.qps.get(qp).is_ok_and(|q| q.posted.is_empty())
    }

    // ---- receives ------------------------------------------------------------------

    pub(super) fn resolve_recv(&self, pd: u32, wr: &RecvWr<'_>) -> Result<Vec<HwSge>, RnicError> {
        let (asked, limit) = (wr.sges.len() as u64, self.caps.max_sge as u64);
        if asked > limit {
            return Err(RnicError::Limit { what: "segments of a work request", asked, limit });
        }
        let all = wr.sges.iter().map(|s| self.resolve(pd, s, Access::LOCAL));
        all.filter(|s| !s.as_ref().is_ok_and(|s| s.len == 0)).collect()
    }

    pub(super) fn post_rx(&mut self, id: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        if qp.attr.srq.is_some() {
            return Err(RnicError::Unsupported("receive queue of its own (it has a shared one)"));
        }
        if matches!(qp.phase.state(), QpState::Closing | QpState::Error) {
            return Err(self.wrong_state(id, "Init, Connecting or Rts"));
        }
        let sges = self.resolve_recv(qp.attr.pd.0, wr)?;
        let depth = qp.attr.max_recv_wr;
        let iwarp = self.attr.iwarp;
        let qp = self.qps.get_mut(id.0)?;
        if qp.recvs.len() + qp.early.len() >= depth {
            return Err(RnicError::QueueFull { what: "receive queue", depth });
        }
        match &qp.hw {
            Some(hw) => {
                let sges = padded(iwarp, sges);
                hw.id.post_recv(wr.wr_id, &sges).map_err(|e| RnicError::os("ibv_post_recv", &e))?;
                qp.recvs.push_back(wr.wr_id);
            }
            None => {
                let keys = wr.sges.iter().filter(|s| s.len > 0).map(|s| s.lkey);
                qp.early.push_back((wr.wr_id, keys.zip(sges).collect()));
            }
        }
        Ok(())
    }

    /// Hands the receives that were posted early to the device.
    fn post_early(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let Some(hw) = &q.hw else { return };
        while let Some((wr_id, sges)) = q.early.pop_front() {
            let sges = padded(self.attr.iwarp, sges.iter().map(|s| s.1).collect());
            if let Err(e) = hw.id.post_recv(wr_id, &sges) {
                crate::trace::warn!("{}: ibv_post_recv: {e}", self.caps.name);
            }
            q.recvs.push_back(wr_id);
        }
    }

    /// Takes a registration that ends away from receives not yet with the device:
    /// the first message to meet one fails, as it would there.
    pub(super) fn revoke_early(&mut self, key: Key) {
        let hit: Vec<u32> = self
            .qps
            .iter()
            .filter(|(_, q)| q.early.iter().any(|e| e.1.iter().any(|s| s.0 == key)))
            .map(|(id, _)| id)
            .collect();
        for id in hit {
            let Ok(q) = self.qps.get_mut(id) else { continue };
            for sge in q.early.iter_mut().flat_map(|e| &mut e.1).filter(|s| s.0 == key) {
                // A length that nothing fits in; the key is no key.
                sge.1 = HwSge { addr: 0, len: 1, lkey: 0 };
            }
        }
    }

    /// A completion of a receive.
    pub(super) fn received(&mut self, id: u32, raw: &RawWc) {
        // A message may be here before the CM's last word: first things first.
        if raw.status == 0 {
            self.established_by_message(id);
        }
        let Ok(qp) = self.qps.get_mut(id) else { return };
        if qp.attr.srq.is_none() {
            qp.recvs.pop_front();
        }
        let cq = qp.attr.recv_cq;
        let imm = raw.opcode == 129 && raw.status == 0;
        let op = if imm { WcOp::RecvWriteImm } else { WcOp::Recv };
        let byte_len = if raw.status == 0 { u64::from(raw.byte_len) } else { 0 };
        let wc = Wc {
            byte_len,
            imm: raw.imm,
            invalidated: raw.invalidated,
            ..blank(Qp(id), raw.wr_id, op, status(raw.status))
        };
        if let Some(key) = raw.invalidated {
            self.closed_by_peer(id, key);
        }
        self.push_wc(cq, wc);
        if raw.status != 0 {
            self.work_failed(id, raw);
        }
    }
}

/// A receive without memory, as the device takes it: siw wants a segment, if of no
/// bytes.
pub(super) fn padded(iwarp: bool, mut sges: Vec<HwSge>) -> Vec<HwSge> {
    if iwarp && sges.is_empty() {
        sges.push(HwSge { addr: 0, len: 0, lkey: 0 });
    }
    sges
}

/// A completion's status. (The names are those of `ibv_wc_status`.)
fn status(raw: u32) -> WcStatus {
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
