//! Eager messages: one work request, built on the stack, which the device has when the call returns.
//! Bytes that the device does not take inline (siw: more than 80) lie in a slot until they have left.
//!
//! The peer gets an eager message by a receive, as any other. But a poll ([`VerbsRnic::poll_received`])
//! can take it straight from the device's completion, without the driver's queue in between, if it is
//! a plain SEND and nothing comes before it.

use super::VerbsRnic;
use super::cm::CmPhase;
use super::device_cqs::Role;
use super::raw::HwSge;
use super::send_budget::Work;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp};
use crate::sys::IoVec;

/// Bytes of the longest eager message, with its header.
const MAX_EAGER_LEN: usize = 256;

impl VerbsRnic {
    /// Polls for messages; and for completions of sends, if the user waits for one. Other sends only
    /// make room, and are polled when room is needed. Returns true if there is anything to take.
    /// Completions of an SRQ are left for [`VerbsRnic::take_eager`].
    pub(super) fn poll_received(&mut self) -> bool {
        let sends = self.awaited.any();
        for index in 0..self.device_cqs.places() {
            if !self.device_cqs.is_handled() {
                break;
            }
            self.poll_queue(index, |role| sends || role != Role::Sends);
            if self.device_cqs.peek().is_some_and(|(role, _)| !role.has_messages()) {
                self.handle_polled();
            }
        }
        !self.device_cqs.is_handled() || !self.cqs.are_empty()
    }

    /// Takes an eager message from a polled completion (`Rnic::next_eager`).
    pub(super) fn take_eager(&mut self) -> Option<EagerRecv> {
        if let Some(same) = self.device_cqs.may_have_more() {
            self.poll_queue(same, Role::has_messages);
        }
        let (role, wc) = self.device_cqs.peek()?;
        let (Role::Shared(srq) | Role::Pooled(srq)) = role else { return None };
        // Everything that was reported earlier must be taken earlier.
        if !self.cqs.are_empty() || !self.events.is_empty() || !wc.is_plain(self.profile.is_rxe()) {
            return None;
        }
        let id = self.qps.id_of(wc.qp_num)?;
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
        self.device_cqs.next();
        match role {
            Role::Pooled(_) => self.pooled_used(id, true),
            _ => self.srqs.note_used(srq),
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
        if self.qps.get(id.0).is_ok_and(|qp| !qp.sends.has(Work::Eager)) {
            // Completed sends make room.
            self.poll_hw();
        }
        let Ok(qp) = self.qps.get_mut(id.0) else { return EagerSend::Declined };
        let (CmPhase::Rts, Some(hw)) = (&qp.phase, &qp.hw) else { return EagerSend::Declined };
        if qp.sends.has_staged() || !qp.sends.has(Work::Eager) {
            return EagerSend::Declined;
        }
        let Ok(slots) = self.memory.slots(qp.attr.pd.0) else { return EagerSend::Declined };
        let device_inline = hw.inline as usize;
        // Everything that can fail is done before the header is asked for.
        let slot = match most > device_inline {
            true => match slots.take() {
                Ok(slot) => Some(slot),
                Err(_) => return EagerSend::Declined,
            },
            false => None,
        };
        let (mut bytes, mut header) = ([0; MAX_EAGER_LEN], [0; HEAD]);
        let len = head(&mut header);
        if len == 0 {
            slot.into_iter().for_each(|slot| slots.give(slot));
            return EagerSend::Declined;
        }
        let end = len + payload.len();
        bytes[..len].copy_from_slice(&header[..len]);
        payload.copy_to(&mut bytes[len..end]);
        let sge = match slot {
            Some(slot) => {
                slots.segment(slot).write_at(0, &bytes[..end]);
                slots.sge(slot, end)
            }
            // The device takes the bytes during the call, so the key has no meaning.
            None => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                HwSge { addr, len: u32::try_from(end).unwrap_or(0), lkey: 0 }
            }
        };
        let send = qp.sends.eager(slot, end <= device_inline);
        if let Err(e) = hw.id.post_one(&send, &sge) {
            self.doorbell_refused(id.0, 0, &e);
        }
        EagerSend::Sent
    }
}
