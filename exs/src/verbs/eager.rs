//! Eager messages: one work request, built on the stack, which the device has when the call returns.
//! Bytes that the device does not take inline (siw: more than 80) lie in a slot until they have left.
//!
//! The peer gets an eager message by a receive, as any other. But a poll ([`VerbsRnic::poll_received`])
//! can take it straight from the device's completion, without the driver's queue in between, if it is
//! a plain SEND and nothing comes before it.

use super::VerbsRnic;
use super::cm::CmPhase;
use super::qp::PostedSend;
use super::queues::Role;
use super::raw::{BATCH, HwOp, HwSge, RawWc, Staged};
use super::send_budget::Work;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp};
use crate::sys::IoVec;

/// Bytes of the longest eager message, with its header.
const MAX_EAGER_LEN: usize = 256;

/// The completions of the last poll, which are those of one CQ of the device.
#[derive(Default)]
pub(super) struct PolledWcs {
    pub(super) wcs: Vec<RawWc>,
    pub(super) role: Role,
    index: usize,
    /// Completions of `wcs` that are handled: the first ones.
    handled: usize,
    /// Completions handled since the start, of all polls.
    count: usize,
}

impl PolledWcs {
    /// Begins a poll of the CQ at `index`. All completions of the last poll must be handled.
    pub(super) fn begin(&mut self, index: usize, role: Role) {
        (self.index, self.role, self.handled) = (index, role, 0);
        self.wcs.clear();
    }

    /// The next completion to handle.
    pub(super) fn next(&mut self) -> Option<RawWc> {
        let wc = self.wcs.get(self.handled).copied();
        let one = usize::from(wc.is_some());
        (self.handled, self.count) = (self.handled + one, self.count + one);
        wc
    }

    pub(super) fn handled_total(&self) -> usize {
        self.count
    }

    pub(super) fn is_handled(&self) -> bool {
        self.handled == self.wcs.len()
    }
}

impl VerbsRnic {
    /// Polls for messages; and for completions of sends, if the user waits for one. Other sends only
    /// make room, and are polled when room is needed. Returns true if there is anything to take.
    /// Completions of an SRQ are left for [`VerbsRnic::take_eager`].
    pub(super) fn poll_received(&mut self) -> bool {
        let sends = self.waits_for_sends();
        for index in 0..self.hw.capacity() {
            if !self.polled.is_handled() {
                break;
            }
            self.poll_queue(index, |role| sends || role != Role::Sends);
            if !self.polled.role.has_messages() {
                self.handle_polled();
            }
        }
        !self.polled.is_handled() || self.queued_wcs > 0
    }

    /// Takes an eager message from a polled completion (`Rnic::next_eager`).
    pub(super) fn take_eager(&mut self) -> Option<EagerRecv> {
        if self.polled.is_handled() && self.polled.wcs.len() == BATCH {
            // The same CQ may have more.
            self.poll_queue(self.polled.index, Role::has_messages);
        }
        let role = self.polled.role;
        let (Role::Shared(srq) | Role::Pooled(srq)) = role else { return None };
        let wc = *self.polled.wcs.get(self.polled.handled)?;
        // Everything that was reported earlier must be taken earlier.
        if self.queued_wcs > 0 || !self.events.is_empty() || !wc.is_plain(self.attr.is_rxe()) {
            return None;
        }
        let id = *self.by_num.get(&wc.qp_num)?;
        let qp = self.qps.get(id).ok()?;
        if !matches!(qp.phase, CmPhase::Rts) {
            return None;
        }
        let taken = EagerRecv {
            qp: Qp(id),
            context: qp.attr.context,
            len: wc.byte_len as usize,
            at: EagerPayload::InReceive(wc.wr_id),
        };
        self.polled.next();
        match role {
            Role::Pooled(_) => self.pooled_used(id, true),
            _ => self.count_used_receive(srq),
        }
        Some(taken)
    }

    /// Sends an eager message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        id: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let most = payload.len() + HEAD;
        if most > MAX_EAGER_LEN {
            return EagerSend::Declined;
        }
        if self.qps.get(id.0).is_ok_and(|qp| !qp.budget.has(Work::Eager)) {
            // Completed sends make room.
            self.poll_hw();
        }
        let Ok(qp) = self.qps.get_mut(id.0) else { return EagerSend::Declined };
        let (CmPhase::Rts, Some(hw)) = (&qp.phase, &qp.hw) else { return EagerSend::Declined };
        if !qp.staged.is_empty() || !qp.budget.has(Work::Eager) {
            return EagerSend::Declined;
        }
        let Ok(domain) = self.pds.get_mut(qp.attr.pd.0) else { return EagerSend::Declined };
        let device_inline = hw.inline as usize;
        // Everything that can fail is done before the header is asked for.
        let slot = match most > device_inline {
            true => match domain.slots.take(&domain.pd) {
                Ok(slot) => Some(slot),
                Err(_) => return EagerSend::Declined,
            },
            false => None,
        };
        let (mut bytes, mut header) = ([0; MAX_EAGER_LEN], [0; HEAD]);
        let len = head(&mut header);
        if len == 0 {
            slot.into_iter().for_each(|slot| domain.slots.give(slot));
            return EagerSend::Declined;
        }
        let end = len + payload.len();
        bytes[..len].copy_from_slice(&header[..len]);
        payload.copy_to(&mut bytes[len..end]);
        let sge = match slot {
            Some(slot) => {
                domain.slots.segment(slot).write_at(0, &bytes[..end]);
                domain.slots.sge(slot, end)
            }
            // The device takes the bytes during the call, so the key has no meaning.
            None => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                HwSge { addr, len: u32::try_from(end).unwrap_or(0), lkey: 0 }
            }
        };
        qp.seq += 1;
        let (seq, op, inline) = (qp.seq, HwOp::Send { solicited: false }, end <= device_inline);
        qp.posted.push_back(PostedSend { slot, ..PostedSend::quiet(seq, Work::Eager) });
        qp.budget.take(Work::Eager);
        let send = Staged { wr_id: seq, op, sges: 1, signaled: true, inline };
        if let Err(e) = hw.id.post_one(&send, &sge) {
            self.doorbell_refused(id.0, 0, &e);
        }
        EagerSend::Sent
    }
}
