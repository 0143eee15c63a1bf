//! Receives of an SRQ that end with a queue pair.
//!
//! A queue pair takes a receive off its SRQ when a message begins to arrive. If the queue pair
//! fails then, the device flushes that receive; but some drivers (mlx5, mlx4, hns) forget what
//! a queue pair has left in a CQ when it is destroyed, and a receive that nobody hears of is
//! lost to the SRQ, which runs dry in the end. So a queue pair is put into the error state
//! first, and destroyed when the device has said that it took its last receive
//! (`IBV_EVENT_QP_LAST_WQE_REACHED`; InfiniBand 1.2, section 10.3.1): what there is of it is
//! in the CQ then, and is taken.
//!
//! Not every driver says so: rxe does since Linux 6.11. So we wait for a moment only, and no
//! more on a device that never did. And rxe does not flush the receive of a message that is cut.
//! So how many receives an SRQ may have lost is counted ([`VerbsRnic::lost_by`]), and its user
//! makes another in time. Who ended in order lost none: its messages were all there.

use std::time::Duration;

use super::VerbsRnic;
use super::cm::Phase;
use crate::rnic::{DisconnectCause, Srq};

/// Devices that say it do so within microseconds.
const PATIENCE: Duration = Duration::from_millis(100);
/// As many ends are waited for on a device that never said it.
const TRIES: u8 = 2;
/// Messages that may arrive between the last look and the end of the queue pair.
const BETWEEN: usize = 8;

/// Whether the device tells of the last receive.
pub(super) enum LastWqe {
    /// It has not yet, as often as this.
    Missed(u8),
    /// It did once.
    Told,
}

impl Default for LastWqe {
    fn default() -> LastWqe {
        LastWqe::Missed(0)
    }
}

impl VerbsRnic {
    /// Puts a queue pair into the error state, to be destroyed later; false if there is nothing
    /// to wait for.
    pub(super) fn wait_for_last(&mut self, qp: u32) -> bool {
        let silent = matches!(self.lasts, LastWqe::Missed(n) if n >= TRIES);
        let Ok(q) = self.qps.get(qp) else { return false };
        let Some(hw) = q.hw.as_ref().filter(|_| q.attr.srq.is_some()) else { return false };
        // siw flushes all of it at once, and no driver of iWARP's is known to tell.
        if self.attr.iwarp || self.dead || silent || q.emptied {
            return false;
        }
        hw.id.fail_qp();
        self.set_deadline(qp, Some(self.now + PATIENCE));
        true
    }

    /// The device says that a queue pair takes no receive any more.
    pub(super) fn last_reached(&mut self, qp: u32) {
        self.lasts = LastWqe::Told;
        if let Ok(q) = self.qps.get_mut(qp) {
            q.emptied = true;
        }
        self.lay_to_rest(qp);
    }

    /// It did not say so in time.
    pub(super) fn last_missed(&mut self, qp: u32) {
        if let LastWqe::Missed(n) = &mut self.lasts {
            *n = n.saturating_add(1);
        }
        crate::trace::debug!("{}: no IBV_EVENT_QP_LAST_WQE_REACHED", self.caps.name);
        self.lay_to_rest(qp);
    }

    /// A queue pair is about to be destroyed: notes how many receives its SRQ may lose by that.
    pub(super) fn note_lost(&mut self, qp: u32) {
        let Ok(q) = self.qps.get(qp) else { return };
        let lost = match q.phase {
            Phase::Dying { cause: DisconnectCause::Orderly } => 0,
            Phase::Accepting { .. } | Phase::Rts | Phase::Closing { .. } | Phase::Dying { .. } => {
                // siw flushes at once even the one that it was receiving into.
                match (self.attr.is_rxe(), q.emptied || self.attr.is_siw()) {
                    (true, _) => 1,
                    (false, true) => 0,
                    (false, false) => BETWEEN,
                }
            }
            // Nothing arrives before.
            _ => 0,
        };
        if let Some(srq) = q.attr.srq
            && let Ok(entry) = self.srqs.get_mut(srq.0)
        {
            entry.lost += lost;
        }
    }

    pub(super) fn lost_receives(&self, srq: Srq) -> usize {
        self.srqs.get(srq.0).map_or(0, |entry| entry.lost)
    }
}
