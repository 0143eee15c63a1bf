//! Sends: posting, the doorbell, completions.
//!
//! A post checks a WR, finds its memory, copies what must be copied, and stages it. The doorbell hands
//! it to the device, with all WRs staged before it. What is outstanding and how it completes is the
//! business of `send_queue`.

use super::VerbsRnic;
use super::cm::CmPhase;
use super::qp::{VerbsQp, status};
use super::raw::{HwOp, HwSge, RawWc};
use super::send_budget::Work;
use super::send_queue::CallerSend;
use super::slots::{CopySlot, SLOT_LEN};
use crate::mem::{Access, MAX_SGE};
use crate::rnic::siw_quirk::cut_at_page;
use crate::rnic::{DisconnectCause, Qp, RnicError, SendOp, SendWr, WcOp, WcStatus, check_atomic};

impl VerbsRnic {
    fn check_send(&self, qp: &VerbsQp, wr: &SendWr<'_>) -> Result<(Access, u64), RnicError> {
        let caps = self.profile.caps();
        let limit = |what, asked: u64, limit: u64| {
            if asked > limit { Err(RnicError::Limit { what, asked, limit }) } else { Ok(()) }
        };
        let mut need = Access::LOCAL_READ;
        limit("segments of a work request", wr.sges.len() as u64, caps.max_sge as u64)?;
        if wr.file.is_some() {
            return Err(RnicError::Unsupported("files as the source of a WRITE"));
        }
        let payload = wr.sges.iter().try_fold(0u64, |sum, s| sum.checked_add(s.len));
        // A sum that wraps is refused as memory, with its numbers, further on.
        let payload = payload.unwrap_or(0);
        let total = payload + wr.head.len() as u64;
        match wr.op {
            SendOp::Read { .. } => {
                if !wr.head.is_empty() || wr.inline {
                    return Err(RnicError::Unsupported("data to send along with a READ"));
                }
                need = Access::LOCAL;
                if caps.read_sink_remote_write {
                    limit("segments of a READ", wr.sges.len() as u64, 1)?;
                    need = Access::REMOTE_WRITE;
                }
            }
            SendOp::Atomic { raddr, .. } => {
                check_atomic(caps, raddr, wr)?;
                need = Access::LOCAL;
            }
            SendOp::WriteImm { .. } if !caps.write_imm => {
                return Err(RnicError::Unsupported("WRITE WITH IMMEDIATE"));
            }
            _ => {}
        }
        let by_value = wr.head.len() as u64 + if self.copies(wr) { payload } else { 0 };
        limit("inline data", by_value, caps.max_inline as u64)?;
        if !qp.sends.has(Work::Caller) {
            return Err(RnicError::QueueFull { what: "send queue", depth: qp.attr.max_send_wr });
        }
        Ok((need, total))
    }

    pub(super) fn post_send(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        let qp = self.qps.get(id.0)?;
        if !matches!(qp.phase, CmPhase::Rts) {
            return Err(self.wrong_state(id, "Rts"));
        }
        let (need, total) = self.check_send(qp, wr)?;
        let pd = qp.attr.pd.0;
        let device_inline = u64::from(qp.hw.as_ref().map_or(0, |h| h.inline));
        let mut pieces = [HwSge { addr: 0, len: 0, lkey: 0 }; MAX_SGE];
        let mut count = 0;
        for sge in wr.sges {
            let piece = self.memory.resolve(pd, sge, need)?;
            if piece.len > 0 {
                pieces[count] = piece;
                count += 1;
            }
        }
        if total > self.profile.caps().max_msg {
            let limit = self.profile.caps().max_msg;
            return Err(RnicError::Limit { what: "bytes of a work request", asked: total, limit });
        }
        let mut copied = None;
        let copies = self.copies(wr);
        let by_value = wr.head.len()
            + if copies { usize::try_from(total).unwrap_or(0) - wr.head.len() } else { 0 };
        if by_value > 0 {
            let slot = self.fill_slot(pd, wr)?;
            copied = Some((slot, self.memory.slots(pd)?.sge(slot, by_value)));
            if copies {
                count = 0;
            }
        }
        if count == 0 && self.profile.is_iwarp() && matches!(wr.op, SendOp::Read { .. }) {
            // siw reads the length of the first segment whether there is one or not. Without one it
            // finds the length of an earlier request.
            count = 1;
        }
        let sends = !matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        if self.profile.is_iwarp() && copied.is_none() && count == 1 && sends {
            count += split_for_siw(&mut pieces);
        }
        let inline = total > 0 && total <= device_inline && count == 0;
        let (op, wc) = to_hw_op(wr.op);
        // On siw a READ reports its own end (`QpSendQueue::completed`). And siw sends what is not signalled
        // without a copy: TCP may read it again after the completion of a later request, when the
        // user may already change the memory.
        let reported =
            wr.signaled || self.profile.is_iwarp() && !inline && (total > 0 || wc == WcOp::Read);
        self.qps.get_mut(id.0)?.sends.stage(CallerSend {
            wr_id: wr.wr_id,
            op,
            wc,
            len: total,
            signaled: wr.signaled,
            reported,
            inline,
            copied,
            pieces: &pieces[..count],
        });
        if wr.signaled {
            self.awaited.posted();
        }
        Ok(())
    }

    /// True if the payload of a WR is copied. A device of one segment can neither gather it behind a
    /// header, nor send it in two parts.
    fn copies(&self, wr: &SendWr<'_>) -> bool {
        let cut = || {
            self.profile.is_iwarp() && wr.sges.iter().any(|s| cut_at_page(s.addr, s.len).is_some())
        };
        let read = matches!(wr.op, SendOp::Read { .. } | SendOp::Atomic { .. });
        wr.inline || !self.profile.gathers() && !read && (!wr.head.is_empty() || cut())
    }

    /// Copies the bytes of a WR that must be copied into a slot.
    fn fill_slot(&mut self, pd: u32, wr: &SendWr<'_>) -> Result<CopySlot, RnicError> {
        let sources: Vec<_> = if self.copies(wr) {
            wr.sges.iter().map(|s| self.memory.source(s)).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let slots = self.memory.slots(pd)?;
        let slot = slots.take()?;
        let to = slots.segment(slot);
        to.write_at(0, wr.head);
        let mut at = wr.head.len();
        for from in sources {
            from.copy_to(0, &to, at, from.len());
            at += from.len();
        }
        debug_assert!(at <= SLOT_LEN, "checked against max_inline");
        Ok(slot)
    }

    /// Reserves the budget of a bind. There may be none left if a peer holds up earlier WRs. Then a
    /// `strict` window waits for a moment, and is refused. A lent one must do without (false).
    pub(super) fn reserve_bind(&mut self, qp: u32, strict: bool) -> Result<bool, RnicError> {
        if self.qps.get(qp)?.sends.has(Work::Bind) {
            return Ok(true);
        }
        // A staged WR would keep its share of the budget for ever.
        self.ring_doorbell(qp);
        self.poll_hw();
        let sends = &self.qps.get(qp)?.sends;
        if strict
            && !sends.has(Work::Bind)
            && let Some(bind) = sends.oldest_bind()
        {
            self.bind_completes(qp, bind, 1000);
        }
        let has = self.qps.get(qp)?.sends.has(Work::Bind);
        if strict && !has {
            let depth = self.profile.shares().binds;
            return Err(RnicError::QueueFull { what: "room for windows in the send queue", depth });
        }
        Ok(has)
    }

    /// Stages a bind, whose budget is reserved. Returns its number.
    pub(super) fn stage_bind(&mut self, qp: u32, op: HwOp) -> Result<u64, RnicError> {
        Ok(self.qps.get_mut(qp)?.sends.stage_bind(op))
    }

    /// Hands all staged WRs to the device.
    pub(super) fn ring_doorbell(&mut self, id: u32) {
        let Ok(VerbsQp { hw: Some(hw), sends, .. }) = self.qps.get_mut(id) else { return };
        let scratch = &mut self.scratch;
        let rung = sends.ring(|staged, sges| hw.id.post_send(staged, sges, scratch));
        if let Some(Err((posted, e))) = rung {
            self.doorbell_refused(id, posted, &e);
        }
    }

    /// Ends a connection whose device took only the first `posted` WRs.
    pub(super) fn doorbell_refused(&mut self, id: u32, posted: usize, e: &std::io::Error) {
        crate::trace::warn!("{}: ibv_post_send after {posted}: {e}", self.profile.name());
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        self.failed.note(id, DisconnectCause::Broken(errno));
    }

    /// Waits for a moment until a posted bind was executed: to free its window earlier would break the
    /// connection. Usually the bind was executed long ago. If not, it waits for acknowledgements of
    /// earlier WRs.
    pub(super) fn wait_for_bind(&mut self, qp: u32, seq: u64) {
        if self.bind_completes(qp, seq, 20_000) {
            return;
        }
        crate::trace::warn!("{}: a peer that does not answer holds a window", self.profile.name());
        self.failed.note(qp, DisconnectCause::Broken(libc::ETIMEDOUT));
        if let Ok(VerbsQp { hw: Some(hw), .. }) = self.qps.get(qp) {
            hw.id.fail_qp();
        }
    }

    /// Polls up to `tries` times for the completion of a posted bind. True if it was executed, or never
    /// will be.
    pub(super) fn bind_completes(&mut self, qp: u32, seq: u64, tries: u32) -> bool {
        let pending =
            |r: &VerbsRnic| r.qps.get(qp).is_ok_and(|q| q.hw.is_some() && q.sends.holds(seq));
        if !pending(self) {
            return true;
        }
        self.ring_doorbell(qp);
        for _ in 0..tries {
            self.poll_hw();
            if !pending(self) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// A completion of the send queue.
    pub(super) fn sent(&mut self, id: u32, raw: &RawWc) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        let (cq, pd) = (qp.attr.send_cq, qp.attr.pd.0);
        let status = final_status(raw.status, qp.hw.is_none());
        qp.sends.completed(raw.wr_id, status, self.profile.is_iwarp());
        while let Ok(qp) = self.qps.get_mut(id)
            && let Some((p, status)) = qp.sends.take_done()
        {
            if p.is_signaled() {
                self.awaited.over(1);
            }
            if let Some(slot) = p.slot() {
                self.memory.give_slot(pd, slot);
            }
            if let Some(wc) = p.completion(Qp(id), status) {
                self.push_wc(cq, wc);
            }
        }
        if raw.status != 0 {
            self.handle_failed_wr(id, raw);
        } else {
            self.disconnect_if_drained(id);
            self.end_if_answered(id);
        }
    }

    /// True if no send is outstanding.
    pub(super) fn is_drained(&self, qp: u32) -> bool {
        self.qps.get(qp).is_ok_and(|q| q.sends.is_empty())
    }
}

/// The status of a send WR, from a value of `ibv_wc_status`. `over`: the queue pair is being freed.
///
/// A WR that our own end of the connection interrupts is flushed, whatever the device calls it: siw
/// reports LOC_QP_OP_ERR for the WR that it was about to send. But the peer's answer stays. The peer
/// has refused that WR, and its refusal has arrived before the end.
fn final_status(raw: u32, over: bool) -> WcStatus {
    match status(raw) {
        status @ (WcStatus::Success
        | WcStatus::RemoteAccess
        | WcStatus::RemoteInvalidRequest
        | WcStatus::RemoteOperation) => status,
        _ if over => WcStatus::Flushed,
        status => status,
    }
}

/// The operation as the verbs name it, and the name of its completion.
fn to_hw_op(op: SendOp) -> (HwOp, WcOp) {
    match op {
        SendOp::Send { invalidate: None, solicited } => (HwOp::Send { solicited }, WcOp::Send),
        SendOp::Send { invalidate: Some(key), solicited } => {
            (HwOp::SendInvalidate { key, solicited }, WcOp::Send)
        }
        SendOp::Write { raddr, rkey } => (HwOp::Write { raddr, rkey }, WcOp::Write),
        SendOp::WriteImm { raddr, rkey, imm } => (HwOp::WriteImm { raddr, rkey, imm }, WcOp::Write),
        SendOp::Read { raddr, rkey } => (HwOp::Read { raddr, rkey }, WcOp::Read),
        SendOp::Atomic { raddr, rkey, op } => (HwOp::Atomic { raddr, rkey, op }, WcOp::Atomic),
    }
}

/// Splits the first segment in two if siw would send its bytes wrong. Returns the number of added
/// segments. The device takes two: one is kept free for copied bytes.
fn split_for_siw(pieces: &mut [HwSge; MAX_SGE]) -> usize {
    let HwSge { addr, len, lkey } = pieces[0];
    let Some(before) = cut_at_page(addr, u64::from(len)) else { return 0 };
    pieces[0].len = before;
    pieces[1] = HwSge { addr: addr + u64::from(before), len: len - before, lkey };
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_flushes_what_the_peer_has_not_answered() {
        // The peer's answers: statuses 9 to 11, 15 and 16 of `ibv_wc_status`.
        for raw in 1..24 {
            let answer = matches!(raw, 9..=11 | 15 | 16);
            let flushed = final_status(raw, true) == WcStatus::Flushed;
            assert_eq!(flushed, !answer, "status {raw}");
            assert_eq!(final_status(raw, false), status(raw), "status {raw}");
        }
        assert_eq!(final_status(10, true), WcStatus::RemoteAccess);
        assert_eq!(final_status(0, true), WcStatus::Success);
    }
}
