//! How connections end.
//!
//! The device's queue pair is freed before the last event is told, so that after a
//! connection's end the device touches none of its memory.

use std::time::Duration;

use super::VerbsRnic;
use super::cm::Phase;
use super::qp::QueuePair;
use super::raw::RawWc;
use crate::rnic::{
    CmEvent, Disconnect, DisconnectCause, Qp, QpState, RnicError, RnicEvent, TermCode,
};
use crate::time::Time;

/// An orderly end may take so long.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// After the first flushed WR the CM is to say why, within this.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

impl VerbsRnic {
    /// Ends the attempt that a phase stands for; the queue pair is over.
    pub(super) fn drop_phase(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        match std::mem::replace(&mut q.phase, Phase::Over) {
            Phase::Resolving(dial) | Phase::Routing(dial) | Phase::Connecting(dial) => {
                if let Some(id) = dial.id {
                    self.by_serial.remove(&id.serial());
                    self.host.disown(&id);
                }
            }
            Phase::Closing { .. } => self.closing -= 1,
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
            (Phase::Rts, Disconnect::Orderly) => {
                q.phase = Phase::Closing { asked: false };
                self.closing += 1;
                self.flush(qp.0);
                self.set_deadline(qp.0, Some(now + CLOSE_TIMEOUT));
                self.maybe_close(qp.0);
                Ok(())
            }
            (Phase::Rts | Phase::Closing { .. }, Disconnect::Abort) => {
                self.finish(qp.0, DisconnectCause::Aborted);
                Ok(())
            }
            (Phase::Accepting { .. }, Disconnect::Abort) => {
                let errno = libc::ECONNABORTED;
                self.connect_failed(qp.0, RnicError::Os { call: "rdma_disconnect", errno });
                Ok(())
            }
            _ => Err(self.wrong_state(qp, "Rts")),
        }
    }

    /// Tells the CM of an orderly end as soon as all that was posted has left.
    pub(super) fn maybe_close(&mut self, qp: u32) {
        if !self.drained(qp) {
            return;
        }
        // The CM ends no connection that it has not begun.
        let Ok(QueuePair {
            phase: Phase::Closing { asked }, hw: Some(hw), unconfirmed: false, ..
        }) = self.qps.get_mut(qp)
        else {
            return;
        };
        if !std::mem::replace(asked, true)
            && let Err(e) = hw.id.disconnect()
        {
            crate::trace::debug!("{}: rdma_disconnect: {e}", self.caps.name);
            // The peer was faster, and its event is on its way; or there is none to come,
            // and the deadline ends it.
        }
    }

    pub(super) fn disconnected(&mut self, qp: u32, status: i32) {
        // A kernel that removes a device cuts its connections one by one, which one end of a
        // connection within the device hears as the other's doing.
        self.node_changed();
        match self.qps.get(qp).map(|q| q.phase.state()) {
            Ok(QpState::Rts | QpState::Closing) => {
                let cause = match status {
                    0 => DisconnectCause::Orderly,
                    n => DisconnectCause::Broken(n.abs()),
                };
                self.finish(qp, cause);
            }
            Ok(QpState::Connecting) => {
                let errno = libc::ECONNRESET;
                self.connect_failed(qp, RnicError::Os { call: "rdma_connect", errno });
            }
            _ => {}
        }
    }

    /// The CM says of a connection that carries messages that it could not be made: so it
    /// ends. False if it carries none.
    pub(super) fn begun_and_broken(&mut self, qp: u32, errno: i32) -> bool {
        let state = self.qps.get(qp).map(|q| q.phase.state());
        let begun = matches!(state, Ok(QpState::Rts | QpState::Closing));
        if begun {
            self.finish(qp, DisconnectCause::Broken(errno));
        }
        begun
    }

    /// The end of a connection, whatever it was.
    pub(super) fn finish(&mut self, qp: u32, cause: DisconnectCause) {
        let Ok(q) = self.qps.get(qp) else { return };
        // Whatever was said of the connection since, its device is gone.
        let cause = match cause {
            DisconnectCause::Aborted => cause,
            _ if self.dead => DisconnectCause::DeviceRemoved,
            _ => cause,
        };
        match q.phase.state() {
            QpState::Rts | QpState::Closing => {}
            QpState::Error if self.dead => return self.lay_to_rest(qp),
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
        // What was posted and has no doorbell yet does not leave any more.
        if let Some(hw) = &q.hw
            && !self.attr.iwarp
            && cause != DisconnectCause::DeviceRemoved
        {
            // Tells the peer, or answers it. Fails if the CM has ended it already, or has not
            // begun it: then the end of the id tells the peer, by a reject.
            let _ = hw.id.disconnect();
        }
        self.drop_phase(qp);
        if let Ok(q) = self.qps.get_mut(qp) {
            q.phase = Phase::Dying { cause };
        }
        if !self.wait_for_last(qp) {
            self.lay_to_rest(qp);
        }
    }

    /// The end of a queue pair that was dying, if it was.
    pub(super) fn lay_to_rest(&mut self, qp: u32) {
        let Ok(&Phase::Dying { cause }) = self.qps.get(qp).map(|q| &q.phase) else { return };
        self.set_deadline(qp, None);
        self.take_down(qp, true);
        self.events.push_back(RnicEvent::Cm(CmEvent::Disconnected { qp: Qp(qp), cause }));
    }

    /// A work request has failed: so has its connection.
    pub(super) fn work_failed(&mut self, qp: u32, wc: &RawWc) {
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
        self.doomed.push((qp, cause));
    }

    /// Work was flushed: the connection is over, and the CM is to say why.
    fn flushed(&mut self, qp: u32) {
        let now = self.now;
        if let Ok(QueuePair { phase: Phase::Rts, deadline: None, .. }) = self.qps.get(qp) {
            self.set_deadline(qp, Some(now + REASON_TIMEOUT));
        }
    }

    pub(super) fn deadline_passed(&mut self, qp: u32) {
        let Ok(q) = self.qps.get(qp) else { return };
        match &q.phase {
            Phase::Resolving(d) | Phase::Routing(d) | Phase::Connecting(d) => {
                let error = RnicError::Timeout(d.timeout);
                self.connect_failed(qp, error);
            }
            Phase::Accepting { timeout, .. } => {
                let error = RnicError::Timeout(*timeout);
                self.connect_failed(qp, error);
            }
            Phase::Rts => self.finish(qp, DisconnectCause::Broken(libc::ECONNRESET)),
            Phase::Closing { .. } => self.finish(qp, DisconnectCause::Broken(libc::ETIMEDOUT)),
            Phase::Dying { .. } => self.last_missed(qp),
            Phase::Idle | Phase::Over => {}
        }
    }
}
