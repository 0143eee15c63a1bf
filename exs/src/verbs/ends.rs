//! How connections end.
//!
//! The device's queue pair is freed before the last event is reported. So after a connection's end
//! the device touches none of its memory.

use std::time::Duration;

use super::VerbsRnic;
use super::cm::CmPhase;
use super::device::Due;
use super::qp::VerbsQp;
use super::raw::RawWc;
use crate::rnic::{
    CmEvent, Disconnect, DisconnectCause, Qp, QpState, RnicError, RnicEvent, TermCode,
};
use crate::time::Time;

/// Limit of an orderly end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after the first flushed WR in which the CM must report why.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after the peer's end of a connection in which answers to one-sided WRs may arrive. They are
/// in this host already, or do not come.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(50);
/// Time in which the device's refusal of an access leaves. rxe reports the access before it answers, and
/// does not answer for a queue pair that has ended.
const REFUSAL_TIME: Duration = Duration::from_millis(10);

impl VerbsRnic {
    /// Ends the attempt that a phase stands for. The queue pair is over.
    pub(super) fn drop_phase(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let phase = std::mem::replace(&mut q.phase, CmPhase::Over);
        self.startups.end_turn(qp, &phase);
        match phase {
            CmPhase::Resolving(dial) | CmPhase::Routing(dial) | CmPhase::Connecting(dial) => {
                if let Some(id) = dial.id {
                    self.cm_ids.release(&id);
                }
            }
            CmPhase::Closing { .. } => self.awaited.end_close(),
            _ => {}
        }
    }

    pub(super) fn disconnect(
        &mut self,
        qp: Qp,
        how: Disconnect,
        now: Time,
    ) -> Result<(), RnicError> {
        self.now = now;
        let q = self.qps.get_mut(qp.0)?;
        match (&q.phase, how) {
            (CmPhase::Rts, how) if how.is_orderly() => {
                q.phase = CmPhase::Closing { asked: false };
                self.awaited.begin_close();
                self.ring_doorbell(qp.0);
                self.set_deadline(qp.0, Some(now + CLOSE_TIMEOUT));
                self.disconnect_if_drained(qp.0);
                Ok(())
            }
            // It ends in a moment.
            (CmPhase::AwaitsAnswers | CmPhase::Refusing { .. }, how) if how.is_orderly() => Ok(()),
            (
                CmPhase::Rts
                | CmPhase::Closing { .. }
                | CmPhase::AwaitsAnswers
                | CmPhase::Refusing { .. },
                Disconnect::Abort,
            ) => {
                self.finish(qp.0, DisconnectCause::Aborted);
                Ok(())
            }
            (CmPhase::Accepting { .. }, Disconnect::Abort) => {
                let errno = libc::ECONNABORTED;
                self.connect_failed(qp.0, RnicError::Os { call: "rdma_disconnect", errno });
                Ok(())
            }
            _ => Err(self.wrong_state(qp, "Rts")),
        }
    }

    /// Asks the CM for an orderly end once everything posted has left.
    pub(super) fn disconnect_if_drained(&mut self, qp: u32) {
        if !self.is_drained(qp) {
            return;
        }
        // The CM ends no connection whose start it has not reported.
        let Ok(VerbsQp {
            phase: CmPhase::Closing { asked }, hw: Some(hw), awaits_cm: false, ..
        }) = self.qps.get_mut(qp)
        else {
            return;
        };
        if !std::mem::replace(asked, true)
            && let Err(e) = hw.id.disconnect()
        {
            crate::trace::debug!("{}: rdma_disconnect: {e}", self.profile.name());
            // The peer was faster, and its event is on its way. Or no event comes, and the deadline ends
            // the connection.
        }
    }

    pub(super) fn disconnected(&mut self, qp: u32, status: i32) {
        // A kernel that removes a device cuts its connections one by one. One end of a connection
        // within the device sees that as an end by the other.
        self.node_changed();
        match self.qps.get(qp).map(|q| q.phase.state()) {
            Ok(QpState::Rts | QpState::Closing) => {
                let cause = match status {
                    0 => DisconnectCause::Orderly,
                    n => DisconnectCause::Broken(n.abs()),
                };
                let cause = match self.qps.get(qp).map(|q| &q.phase) {
                    Ok(&CmPhase::Refusing { cause: refusal }) => refusal,
                    _ => cause,
                };
                if cause != DisconnectCause::Orderly || !self.wait_for_answers(qp) {
                    self.finish(qp, cause);
                }
            }
            Ok(QpState::Connecting) => {
                let errno = libc::ECONNRESET;
                self.connect_failed(qp, RnicError::Os { call: "rdma_connect", errno });
            }
            _ => {}
        }
    }

    /// Ends a connection whose peer named memory that it may not access, once the device's answer has
    /// left: the answer says why.
    pub(super) fn refuse(&mut self, qp: u32, cause: DisconnectCause) {
        match self.qps.get_mut(qp) {
            Ok(q) if matches!(q.phase, CmPhase::Rts) && !self.profile.is_iwarp() => {
                q.phase = CmPhase::Refusing { cause };
                let until = self.now + REFUSAL_TIME;
                self.set_deadline(qp, Some(until));
            }
            // An iWARP device has sent its TERMINATE.
            _ => self.failed.note(qp, cause),
        }
    }

    /// Waits for the peer's answers to one-sided WRs. False if there is none to wait for.
    ///
    /// A correct peer does not end a connection while it owes an answer. But a peer that has refused an
    /// access ends the connection at once. Its refusal (a NAK) and its end (a message of the CM) reach
    /// this host by two ways, and the end may be faster. To free the queue pair then would lose the
    /// reason.
    fn wait_for_answers(&mut self, qp: u32) -> bool {
        let Ok(q) = self.qps.get_mut(qp) else { return false };
        // An iWARP queue pair is over when the CM reports the end.
        let open =
            matches!(q.phase, CmPhase::Rts) && !self.profile.is_iwarp() && !self.presence.is_lost();
        if !open || !q.sends.awaits_answers() {
            return false;
        }
        q.phase = CmPhase::AwaitsAnswers;
        let until = self.now + ANSWER_TIMEOUT;
        self.set_deadline(qp, Some(until));
        true
    }

    /// Ends a connection that has waited for the peer's answers once all are there.
    pub(super) fn end_if_answered(&mut self, qp: u32) {
        if let Ok(q) = self.qps.get(qp)
            && matches!(q.phase, CmPhase::AwaitsAnswers)
            && !q.sends.awaits_answers()
        {
            self.failed.note(qp, DisconnectCause::Orderly);
        }
    }

    /// Ends an open connection of which the CM reports that it could not be made. False if it is not
    /// open.
    pub(super) fn break_if_open(&mut self, qp: u32, errno: i32) -> bool {
        let state = self.qps.get(qp).map(|q| q.phase.state());
        let begun = matches!(state, Ok(QpState::Rts | QpState::Closing));
        if begun {
            self.finish(qp, DisconnectCause::Broken(errno));
        }
        begun
    }

    /// Ends a connection in any phase.
    pub(super) fn finish(&mut self, qp: u32, cause: DisconnectCause) {
        let Ok(q) = self.qps.get(qp) else { return };
        // Whatever was reported of the connection since, its device is gone.
        let cause = match cause {
            DisconnectCause::Aborted => cause,
            _ if self.presence.is_lost() => DisconnectCause::DeviceRemoved,
            _ => cause,
        };
        match q.phase.state() {
            QpState::Rts | QpState::Closing => {}
            QpState::Error if self.presence.is_lost() => return self.finish_draining(qp),
            QpState::Connecting => {
                let errno = match cause {
                    DisconnectCause::DeviceRemoved => libc::ENODEV,
                    DisconnectCause::Broken(errno) => errno,
                    _ => libc::ECONNRESET,
                };
                return self.connect_failed(qp, RnicError::Os { call: "rdma_connect", errno });
            }
            QpState::Init | QpState::Error => return,
        }
        // WRs without a doorbell do not leave any more.
        if let Some(hw) = &q.hw
            && !self.profile.is_iwarp()
            && cause != DisconnectCause::DeviceRemoved
        {
            // Tells the peer, or answers it. Fails if the CM has ended the connection already, or has
            // not begun it: then the end of the id tells the peer, by a reject.
            let _ = hw.id.disconnect();
        }
        self.drop_phase(qp);
        if let Ok(q) = self.qps.get_mut(qp) {
            q.phase = CmPhase::Draining { cause };
        }
        if !self.wait_for_last_wqe(qp) {
            self.finish_draining(qp);
        }
    }

    /// Frees a queue pair that is draining, and reports its end. Does nothing in other phases.
    pub(super) fn finish_draining(&mut self, qp: u32) {
        let Ok(&CmPhase::Draining { cause }) = self.qps.get(qp).map(|q| &q.phase) else { return };
        self.set_deadline(qp, None);
        self.free_device_qp(qp, true);
        self.events.push_back(RnicEvent::Cm(CmEvent::Disconnected { qp: Qp(qp), cause }));
    }

    /// Ends a connection because of a failed WR.
    pub(super) fn handle_failed_wr(&mut self, qp: u32, wc: &RawWc) {
        let ours =
            |layer, etype, code| DisconnectCause::TerminatedByUs(TermCode { layer, etype, code });
        let theirs =
            |etype| DisconnectCause::TerminatedByPeer(TermCode { layer: 0, etype, code: 0xff });
        // Statuses of `ibv_wc_status`; codes of RFC 5040 section 4.8 (0xff: unspecified).
        let cause = match wc.status {
            1 => ours(1, 2, 5),
            5 => return self.flushed(qp),
            9 | 15 => theirs(2),
            10 => theirs(1),
            11 | 16 => theirs(2),
            status => DisconnectCause::Device(status),
        };
        self.failed.note(qp, cause);
    }

    /// Handles a flushed WR: the connection is over, and the CM must report why.
    fn flushed(&mut self, qp: u32) {
        if let Ok(VerbsQp { phase: CmPhase::Rts, .. }) = self.qps.get(qp)
            && !self.deadlines.is_set(Due::Qp(qp))
        {
            self.set_deadline(qp, Some(self.now + REASON_TIMEOUT));
        }
    }

    pub(super) fn deadline_passed(&mut self, qp: u32) {
        let Ok(q) = self.qps.get(qp) else { return };
        match &q.phase {
            CmPhase::Resolving(_)
            | CmPhase::Routing(_)
            | CmPhase::Connecting(_)
            | CmPhase::Accepting { .. } => self.start_up_late(qp),
            CmPhase::Rts => self.finish(qp, DisconnectCause::Broken(libc::ECONNRESET)),
            CmPhase::Closing { .. } => self.finish(qp, DisconnectCause::Broken(libc::ETIMEDOUT)),
            CmPhase::AwaitsAnswers => self.finish(qp, DisconnectCause::Orderly),
            &CmPhase::Refusing { cause } => self.finish(qp, cause),
            CmPhase::Draining { .. } => self.last_wqe_timed_out(qp),
            CmPhase::Idle | CmPhase::Over => {}
        }
    }
}
