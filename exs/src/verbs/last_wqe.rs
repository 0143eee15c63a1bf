//! The last-WQE wait: until a failed queue pair has returned the receives of its SRQ.
//!
//! A queue pair takes a receive off its SRQ when a message begins to arrive. If the queue pair fails
//! then, the device flushes that receive. But some drivers (mlx5, mlx4, hns) drop the completions of
//! a queue pair when it is destroyed. A receive whose completion is dropped is lost to the SRQ,
//! which runs dry in the end. So a queue pair is put into the error state first. It is destroyed
//! when the device has reported that it took its last receive (`IBV_EVENT_QP_LAST_WQE_REACHED`;
//! InfiniBand 1.2, section 10.3.1). By then all of its completions are in the CQ, and are taken.
//!
//! Not every driver reports that: rxe does since Linux 6.11. So the wait is short, and is omitted on
//! a device that has never reported it. And rxe does not flush the receive of a message that is
//! cut. So the driver counts the receives that an SRQ may have lost
//! (`Rnic::lost_receives`), and the user of the SRQ posts others in time. A connection that
//! ended in order has lost none, as its messages were complete.

use std::time::Duration;

use super::VerbsRnic;
use super::cm::CmPhase;
use crate::rnic::DisconnectCause;

/// Limit of the wait. Devices that report the last receive do so within microseconds.
const LAST_WQE_TIMEOUT: Duration = Duration::from_millis(100);
/// Waits without a report, after which a device is not waited for any more.
const MAX_MISSES: u8 = 2;
/// Messages that may arrive between the last poll and the end of the queue pair.
pub(super) const MAX_LOST: usize = 8;

/// Whether the device reports the last receive.
pub(super) enum LastWqe {
    /// It has not yet, in this number of waits.
    Missed(u8),
    /// It has, at least once.
    Reported,
}

impl Default for LastWqe {
    fn default() -> LastWqe {
        LastWqe::Missed(0)
    }
}

impl LastWqe {
    /// True if the device has never reported it, in as many waits as there are.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, LastWqe::Missed(n) if *n >= MAX_MISSES)
    }

    /// The device has reported it.
    pub(super) fn reported(&mut self) {
        *self = LastWqe::Reported;
    }

    /// A wait was over without a report.
    pub(super) fn missed(&mut self) {
        if let LastWqe::Missed(n) = self {
            *n = n.saturating_add(1);
        }
    }
}

impl VerbsRnic {
    /// Puts a queue pair into the error state, to be destroyed later. False if there is nothing to wait
    /// for.
    pub(super) fn wait_for_last_wqe(&mut self, qp: u32) -> bool {
        let Ok(q) = self.qps.get(qp) else { return false };
        // A queue pair with receives of its own loses none: the driver knows which it had.
        let shared = q.attr.srq.is_some() && self.profile.has_srq();
        let Some(hw) = q.hw.as_ref().filter(|_| shared) else { return false };
        let may_come = self.profile.may_report_last_wqe() && !self.presence.is_lost();
        if !may_come || q.last_wqe_reached {
            return false;
        }
        hw.id.fail_qp();
        self.set_deadline(qp, Some(self.now + LAST_WQE_TIMEOUT));
        true
    }

    /// Handles the report that a queue pair takes no receive any more.
    pub(super) fn handle_last_wqe(&mut self, qp: u32) {
        self.profile.note_last_wqe();
        if let Ok(q) = self.qps.get_mut(qp) {
            q.last_wqe_reached = true;
        }
        self.finish_draining(qp);
    }

    /// Handles the end of a wait without a report.
    pub(super) fn last_wqe_timed_out(&mut self, qp: u32) {
        self.profile.note_no_last_wqe();
        crate::trace::debug!("{}: no IBV_EVENT_QP_LAST_WQE_REACHED", self.profile.name());
        self.finish_draining(qp);
    }

    /// Counts the receives that an SRQ may lose as this queue pair is destroyed.
    pub(super) fn note_lost(&mut self, qp: u32) {
        let Ok(q) = self.qps.get(qp) else { return };
        let lost = match q.phase {
            CmPhase::Draining { cause: DisconnectCause::Orderly } => 0,
            CmPhase::Accepting { .. }
            | CmPhase::Rts
            | CmPhase::Closing { .. }
            | CmPhase::Draining { .. } => self.profile.lost_receives(q.last_wqe_reached),
            // No message arrives in earlier phases.
            _ => 0,
        };
        if let Some(srq) = q.attr.srq
            && self.profile.has_srq()
        {
            self.srqs.note_lost(srq.0, lost);
        }
    }
}
