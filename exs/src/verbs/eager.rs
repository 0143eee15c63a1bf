//! The short way of small messages: one work request, put together on the stack and with the
//! device when the call returns. What the device does not take inline (siw: more than 80
//! bytes) lies in a slot until it has left.
//!
//! At the other end a message comes by a receive, as every one does. But whoever looks for it
//! ([`VerbsRnic::look_for_news`]) takes it from the completion that the device gave, with no
//! queue of ours between, if it is a plain one and nothing comes before it.

use super::VerbsRnic;
use super::cm::Phase;
use super::qp::Posted;
use super::queues::Role;
use super::raw::{BATCH, HwOp, HwSge, RawWc, Staged};
use super::send_budget::Work;
use crate::rnic::{EagerPayload, EagerRecv, EagerSend, HEAD, Qp};
use crate::sys::IoVec;

/// Bytes of the longest one.
const LONGEST: usize = 256;

/// The completions that one poll has found: those of a CQ of the device.
#[derive(Default)]
pub(super) struct Found {
    pub(super) wcs: Vec<RawWc>,
    pub(super) role: Role,
    index: usize,
    handled: usize,
    /// Handled so far, of all polls.
    count: usize,
}

impl Found {
    /// Others are going to be found, in the CQ at `index`. All of these have been handled.
    pub(super) fn begin(&mut self, index: usize, role: Role) {
        (self.index, self.role, self.handled) = (index, role, 0);
        self.wcs.clear();
    }

    /// The next that is to be handled.
    pub(super) fn next(&mut self) -> Option<RawWc> {
        let wc = self.wcs.get(self.handled).copied();
        let one = usize::from(wc.is_some());
        (self.handled, self.count) = (self.handled + one, self.count + one);
        wc
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_handled(&self) -> bool {
        self.handled == self.wcs.len()
    }
}

impl VerbsRnic {
    /// Looks for what a peer has sent, and for the end of sends if somebody waits for one: others
    /// only make room, which is looked for when there is none. True if there is anything to take:
    /// of an SRQ's what is found is left for [`VerbsRnic::take_received`].
    pub(super) fn look_for_news(&mut self) -> bool {
        let sends = self.waits_for_sends();
        for index in 0..self.hw.capacity() {
            if !self.raw.is_handled() {
                break;
            }
            self.find(index, |role| sends || role != Role::Sends);
            if !matches!(self.raw.role, Role::Shared(_)) {
                self.handle_found();
            }
        }
        !self.raw.is_handled() || self.waiting > 0
    }

    /// Takes a small message from the completion that was found (`Rnic::next_eager`).
    pub(super) fn next_eager(&mut self) -> Option<EagerRecv> {
        if self.raw.is_handled() && self.raw.wcs.len() == BATCH {
            // There may be more where these came from.
            self.find(self.raw.index, |role| matches!(role, Role::Shared(_)));
        }
        let Role::Shared(srq) = self.raw.role else { return None };
        let wc = *self.raw.wcs.get(self.raw.handled)?;
        // What is told before it is taken before it.
        if self.waiting > 0 || !self.events.is_empty() || !wc.is_plain(self.attr.is_rxe()) {
            return None;
        }
        let id = *self.by_num.get(&wc.qp_num)?;
        let qp = self.qps.get(id).ok()?;
        if !matches!(qp.phase, Phase::Rts) {
            return None;
        }
        let taken = EagerRecv {
            qp: Qp(id),
            context: qp.attr.context,
            len: wc.byte_len as usize,
            at: EagerPayload::InReceive(wc.wr_id),
        };
        self.raw.next();
        self.note_used(srq);
        Some(taken)
    }

    /// Sends a small message (`Rnic::try_send_eager`).
    pub(super) fn try_send_eager(
        &mut self,
        id: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        let most = payload.len() + HEAD;
        if most > LONGEST {
            return EagerSend::Declined;
        }
        if self.qps.get(id.0).is_ok_and(|qp| !qp.places.has(Work::Short)) {
            // What has completed makes room.
            self.poll_hw();
        }
        let Ok(qp) = self.qps.get_mut(id.0) else { return EagerSend::Declined };
        let (Phase::Rts, Some(hw)) = (&qp.phase, &qp.hw) else { return EagerSend::Declined };
        if !qp.staged.is_empty() || !qp.places.has(Work::Short) {
            return EagerSend::Declined;
        }
        let Ok(domain) = self.pds.get_mut(qp.attr.pd.0) else { return EagerSend::Declined };
        let device_inline = hw.inline as usize;
        // All that can fail is done before the header is asked for.
        let slot = match most > device_inline {
            true => match domain.slots.take(&domain.pd) {
                Ok(slot) => Some(slot),
                Err(_) => return EagerSend::Declined,
            },
            false => None,
        };
        let (mut bytes, mut header) = ([0; LONGEST], [0; HEAD]);
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
            // Taken by the device during the call: the key counts for nothing.
            None => {
                let addr = bytes.as_ptr().expose_provenance() as u64;
                HwSge { addr, len: u32::try_from(end).unwrap_or(0), lkey: 0 }
            }
        };
        qp.seq += 1;
        let (seq, op, inline) = (qp.seq, HwOp::Send { solicited: false }, end <= device_inline);
        qp.posted.push_back(Posted { slot, ..Posted::quiet(seq, Work::Short) });
        qp.places.take(Work::Short);
        let send = Staged { wr_id: seq, op, sges: 1, signaled: true, inline };
        if let Err(e) = hw.id.post_one(&send, &sge) {
            self.doorbell_refused(id.0, 0, &e);
        }
        EagerSend::Sent
    }
}
