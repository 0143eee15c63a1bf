//! The short way of small messages: one work request, put together on the stack and with the
//! device when the call returns. What the device does not take inline (siw: more than 80
//! bytes) lies in a slot until it has left. (At the other end a message comes by a receive,
//! as every one does.)

use super::VerbsRnic;
use super::cm::Phase;
use super::qp::Posted;
use super::raw::{HwOp, HwSge, Staged};
use crate::rnic::{HEAD, Passed, Qp};
use crate::sys::IoVec;

/// Messages of the short way that a queue pair may have outstanding, besides its WRs.
pub(super) const SHORTS: u32 = 32;
/// Bytes of the longest one.
const LONGEST: usize = 256;

impl VerbsRnic {
    /// Sends a small message (`Rnic::send_now`).
    pub(super) fn pass_message(
        &mut self,
        id: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> Passed {
        let most = payload.len() + HEAD;
        if most > LONGEST {
            return Passed::No;
        }
        if self.qps.get(id.0).is_ok_and(|qp| qp.shorts >= SHORTS) {
            // What has completed makes room.
            self.poll_hw();
        }
        let Ok(qp) = self.qps.get_mut(id.0) else { return Passed::No };
        let (Phase::Rts, Some(hw)) = (&qp.phase, &qp.hw) else { return Passed::No };
        if !qp.staged.is_empty() || qp.shorts >= SHORTS {
            return Passed::No;
        }
        let Ok(domain) = self.pds.get_mut(qp.attr.pd.0) else { return Passed::No };
        let device_inline = hw.inline as usize;
        // All that can fail is done before the header is asked for.
        let slot = match most > device_inline {
            true => match domain.slots.take(&domain.pd) {
                Ok(slot) => Some(slot),
                Err(_) => return Passed::No,
            },
            false => None,
        };
        let (mut bytes, mut header) = ([0; LONGEST], [0; HEAD]);
        let len = head(&mut header);
        if len == 0 {
            slot.into_iter().for_each(|slot| domain.slots.give(slot));
            return Passed::No;
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
        qp.sges.push(sge);
        qp.staged.push(Staged { wr_id: seq, op, sges: 1, signaled: true, inline });
        qp.posted.push_back(Posted { slot, short: true, ..Posted::own(seq) });
        qp.shorts += 1;
        self.ring(id.0);
        Passed::Gone
    }
}
