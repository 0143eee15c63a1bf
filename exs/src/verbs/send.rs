//! The send queue: posting, the doorbell, completions.
//!
//! A WR is staged when it is posted and handed to the device, with all staged before
//! it, by the doorbell. The last of each chain is signalled whatever the caller asked:
//! so every WR is known to have completed soon after it has, and its place in the
//! queue and its slot are free again; the caller is told of those that it asked for.

use super::VerbsRnic;
use super::cm::Phase;
use super::qp::{Posted, QueuePair, status};
use super::queues::blank;
use super::raw::{HwOp, HwSge, RawWc, Staged};
use super::send_budget::{BINDS, Work};
use super::slots::{SLOT, Slot};
use crate::mem::{Access, MAX_SGE};
use crate::rnic::siw_quirk::cut_at_page;
use crate::rnic::{DisconnectCause, Qp, RnicError, SendOp, SendWr, Wc, WcOp, WcStatus};

impl VerbsRnic {
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
        if !qp.places.has(Work::Caller) {
            return Err(RnicError::QueueFull { what: "send queue", depth: qp.attr.max_send_wr });
        }
        Ok((need, total))
    }

    pub(super) fn post_send(&mut self, id: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
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
        let by_value = wr.head.len()
            + if wr.inline { usize::try_from(total).unwrap_or(0) - wr.head.len() } else { 0 };
        if by_value > 0 {
            let s = self.fill_slot(pd, wr)?;
            first = Some(self.pds.get(pd)?.slots.sge(s, by_value));
            slot = Some(s);
            if wr.inline {
                count = 0;
            }
        }
        if count == 0 && self.attr.iwarp && matches!(wr.op, SendOp::Read { .. }) {
            // siw reads the first segment's length whether there is one or not, and what
            // it finds is some earlier request's.
            count = 1;
        }
        if self.attr.iwarp && first.is_none() && count == 1 && !matches!(wr.op, SendOp::Read { .. })
        {
            count += split_few(&mut pieces);
        }
        let inline = total > 0 && total <= device_inline && count == 0;
        let qp = self.qps.get_mut(id.0)?;
        let sges = count + usize::from(first.is_some());
        qp.sges.extend(first);
        qp.sges.extend_from_slice(&pieces[..count]);
        let (op, wc) = in_verbs(wr.op);
        qp.seq += 1;
        let seq = qp.seq;
        // On siw, a READ says itself that it has ended (see `sent`); and what leaves without
        // being signalled is sent without a copy: TCP may read it again after the
        // completion of a later request, when its memory is free to be changed.
        let signal = wr.signaled || self.attr.iwarp && !inline && (total > 0 || wc == WcOp::Read);
        qp.staged.push(Staged { wr_id: seq, op, sges, signaled: signal, inline });
        let (wr_id, signaled) = (wr.wr_id, wr.signaled);
        let quiet = Posted::quiet(seq, Work::Caller);
        qp.posted.push_back(Posted { wr_id, op: Some(wc), len: total, signaled, slot, ..quiet });
        qp.places.take(Work::Caller);
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

    /// Makes sure of a place for a bind. There is none if a peer holds up what was posted
    /// before the others: then a `strict` window waits, not long, and is refused; a lent one
    /// must do without (false).
    pub(super) fn room_to_bind(&mut self, qp: u32, strict: bool) -> Result<bool, RnicError> {
        if self.qps.get(qp)?.places.has(Work::Bind) {
            return Ok(true);
        }
        // What is staged would keep its place for ever.
        self.flush(qp);
        self.poll_hw();
        let q = self.qps.get(qp)?;
        let oldest = q.posted.iter().find(|p| p.work == Work::Bind).map(|p| p.seq);
        if let Some(bind) = oldest.filter(|_| strict && !q.places.has(Work::Bind)) {
            self.bind_passes(qp, bind, 1000);
        }
        let has = self.qps.get(qp)?.places.has(Work::Bind);
        if strict && !has {
            let depth = BINDS as usize;
            return Err(RnicError::QueueFull { what: "room for windows in the send queue", depth });
        }
        Ok(has)
    }

    /// Stages a bind, which has a place; returns its number.
    pub(super) fn stage_bind(&mut self, qp: u32, op: HwOp) -> Result<u64, RnicError> {
        let q = self.qps.get_mut(qp)?;
        q.seq += 1;
        let seq = q.seq;
        q.staged.push(Staged { wr_id: seq, op, sges: 0, signaled: false, inline: false });
        q.posted.push_back(Posted::quiet(seq, Work::Bind));
        q.places.take(Work::Bind);
        Ok(seq)
    }

    /// The doorbell.
    pub(super) fn flush(&mut self, id: u32) {
        let Ok(qp) = self.qps.get_mut(id) else { return };
        let Some(last) = qp.staged.last_mut() else { return };
        last.signaled = true;
        let Some(hw) = &qp.hw else { return };
        let rung = hw.id.post_send(&qp.staged, &qp.sges, &mut self.scratch);
        qp.staged.clear();
        qp.sges.clear();
        if let Err((posted, e)) = rung {
            self.doorbell_refused(id, posted, &e);
        }
    }

    /// The device did not take what was posted, but for the first `posted`: the connection ends.
    pub(super) fn doorbell_refused(&mut self, id: u32, posted: usize, e: &std::io::Error) {
        crate::trace::warn!("{}: ibv_post_send after {posted}: {e}", self.caps.name);
        let errno = e.raw_os_error().unwrap_or(libc::EIO);
        self.doomed.push((id, DisconnectCause::Broken(errno)));
    }

    /// Waits, not long, until a bind that was posted has been carried out: a window
    /// that is freed under it would take the connection along. It has been as a rule
    /// long ago; if not, it waits for acknowledgements of what was sent before.
    pub(super) fn let_bind_pass(&mut self, qp: u32, seq: u64) {
        if self.bind_passes(qp, seq, 20_000) {
            return;
        }
        crate::trace::warn!("{}: a peer that does not answer holds a window", self.caps.name);
        self.doomed.push((qp, DisconnectCause::Broken(libc::ETIMEDOUT)));
        if let Ok(QueuePair { hw: Some(hw), .. }) = self.qps.get(qp) {
            hw.id.fail_qp();
        }
    }

    /// Looks up to `tries` times for the end of a bind that was posted. True if it has
    /// been carried out, or never will be.
    pub(super) fn bind_passes(&mut self, qp: u32, seq: u64, tries: u32) -> bool {
        let pending = |r: &VerbsRnic| {
            r.qps.get(qp).is_ok_and(|q| q.hw.is_some() && q.posted.iter().any(|p| p.seq == seq))
        };
        if !pending(self) {
            return true;
        }
        self.flush(qp);
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
        // Those before it have been carried out, or it would not be its turn. But siw
        // lets what is behind a READ complete before the READ: each of these waits for a
        // completion of its own, and what is behind it for its turn.
        let reads_stay = self.attr.iwarp;
        // What our own end of the connection interrupts is flushed, whatever the device calls
        // it (siw, of the request that it was about to send: LOC_QP_OP_ERR).
        let over = qp.hw.is_none() && raw.status != 0;
        let status = if over { WcStatus::Flushed } else { status(raw.status) };
        for p in qp.posted.iter_mut().take_while(|p| p.seq <= raw.wr_id) {
            if p.seq == raw.wr_id {
                p.done = Some(status);
            } else if p.op != Some(WcOp::Read) || !reads_stay {
                p.done.get_or_insert(WcStatus::Success);
            }
        }
        while let Ok(qp) = self.qps.get_mut(id)
            && let Some(status) = qp.posted.front().and_then(|p| p.done)
            && let Some(p) = qp.posted.pop_front()
        {
            qp.places.give(p.work);
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
}

/// The same in the verbs' words, and what its completion is called.
fn in_verbs(op: SendOp) -> (HwOp, WcOp) {
    match op {
        SendOp::Send { invalidate: None, solicited } => (HwOp::Send { solicited }, WcOp::Send),
        SendOp::Send { invalidate: Some(key), solicited } => {
            (HwOp::SendInvalidate { key, solicited }, WcOp::Send)
        }
        SendOp::Write { raddr, rkey } => (HwOp::Write { raddr, rkey }, WcOp::Write),
        SendOp::WriteImm { raddr, rkey, imm } => (HwOp::WriteImm { raddr, rkey, imm }, WcOp::Write),
        SendOp::Read { raddr, rkey } => (HwOp::Read { raddr, rkey }, WcOp::Read),
    }
}

/// Makes two segments of the first if siw would send its bytes wrong; returns how many
/// that adds. (The device takes two: one is kept free for what is copied.)
fn split_few(pieces: &mut [HwSge; MAX_SGE]) -> usize {
    let HwSge { addr, len, lkey } = pieces[0];
    let Some(before) = cut_at_page(addr, u64::from(len)) else { return 0 };
    pieces[0].len = before;
    pieces[1] = HwSge { addr: addr + u64::from(before), len: len - before, lkey };
    1
}
