//! How a connection ends: the close of either side, and the cut.
//!
//! The states and their transitions are in `life.rs`.

use std::time::Duration;

use crate::ids::OpId;
use crate::rnic::{Disconnect, DisconnectCause};
use crate::time::Time;
use crate::wire::exs::Message;

use super::proto::Proto;
use super::sender::Ends;
use super::sendq::WrEnd;
use super::{Done, OpError, Port, Session, Violation};

/// The closes that the program waits for.
#[derive(Debug, Default)]
pub(super) struct Closing {
    ops: Vec<OpId>,
    /// The time that the first close may take.
    linger: Duration,
    /// When that time is over. `None`: the connection was never open, or had ended before.
    deadline: Option<Time>,
}

impl Closing {
    /// When the connection is cut because the close took too long.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// The time that the close may take.
    pub(super) fn linger(&self) -> Duration {
        self.linger
    }

    /// No close waits.
    pub(super) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }
}

impl Session {
    /// Closes in order: what was posted to be sent is sent first. The session cuts the
    /// connection if that, and the peer's answer, take longer than `linger`.
    pub fn close(&mut self, now: Time, op: OpId, linger: Duration) {
        self.assert_here();
        self.closing.ops.push(op);
        if !self.life.on_close() {
            return;
        }
        self.closing.linger = linger;
        if self.life.is_idle() {
            self.fail(OpError::Aborted);
        } else if self.life.is_connected() {
            self.closing.deadline = Some(now + linger);
            if linger.is_zero() {
                self.life.waive_answer();
                self.fail(OpError::Aborted);
            } else {
                // The program can still cancel its own shutdown, if there is one.
                self.queue_shutdown(None);
            }
        }
    }

    /// The peer's CLOSE arrived: the peer takes nothing any more. The sends of this side end;
    /// CLOSE_ACK leaves behind the announcement of what they have under way.
    pub(super) fn handle_close(&mut self, now: Time) -> Result<(), Violation> {
        if !self.life.on_peer_close() {
            return Err(Violation::Unexpected("second CLOSE"));
        }
        // The last first, so that none begins in the place of another.
        for id in self.sender.data_sends().into_iter().rev() {
            self.end_send(now, id, OpError::PeerClosed);
        }
        self.stop_all_sided(&OpError::PeerClosed);
        Ok(())
    }

    /// The peer's CLOSE_ACK arrived: nothing follows it.
    pub(super) fn handle_close_ack(&mut self) -> Result<(), Violation> {
        match self.life.on_answer() {
            true => Ok(()),
            false => Err(Violation::Unexpected("CLOSE_ACK")),
        }
    }

    /// Sends CLOSE and CLOSE_ACK when their time has come, and disconnects when both sides have
    /// their answers.
    pub(super) fn drive_close(&mut self, port: &mut dyn Port) {
        if !self.life.is_closing() && !self.life.peer_closed() {
            return;
        }
        let sent = !self.sender.has_job() && self.sided.is_empty();
        // A shutdown whose FIN waits for credits leaves it in the outbox, before CLOSE_ACK.
        if sent && self.sender.has_only_shutdowns() && self.life.queue_answer() {
            self.out.queue_tx(Message::CloseAck);
        }
        if sent && self.sender.is_empty() && self.life.queue_close() {
            self.out.queue_tx(Message::Close);
        }
        self.flush_outbox(port);
        if self.life.leave() {
            self.end_recvs(port);
            self.close_windows(port);
            port.disconnect(Disconnect::Answered);
        }
    }

    /// Ends everything at once. An operation whose memory the RNIC still uses ends when the
    /// RNIC has let go.
    pub fn abort(&mut self, port: &mut dyn Port, error: OpError) {
        self.assert_here();
        self.fail(error);
        self.life.abandon();
        if self.life.is_failed() {
            self.cut(port);
        } else if self.life.is_gone() && !self.life.is_down() {
            self.end_all(port);
        }
    }

    /// The connection cannot go on. The next `drive` cuts it.
    pub(super) fn fail(&mut self, error: OpError) {
        self.life.on_failed(error);
    }

    /// The queue pair is disconnected, or was never connected. The caller must take all
    /// completions out of its completion queues before.
    pub fn handle_disconnected(&mut self, _now: Time, cause: DisconnectCause) {
        self.assert_here();
        self.life.on_disconnected(cause);
    }

    /// Cuts the connection that has failed.
    pub(super) fn cut(&mut self, port: &mut dyn Port) {
        if self.life.cut() {
            self.end_all(port);
            port.disconnect(Disconnect::Abort);
        }
    }

    /// Closes the windows and ends all operations, apart from those whose memory the RNIC still
    /// uses.
    fn end_all(&mut self, port: &mut dyn Port) {
        self.drain_tx(port);
        self.out.clear();
        self.sender.set_job(None);
        self.end_recvs(port);
        self.close_windows(port);
        self.end_sends();
        self.reap_sided();
    }

    /// Takes the ends of sends out of the machine, without anything that would have to be sent.
    pub(super) fn drain_tx(&mut self, port: &mut dyn Port) {
        while let Some(step) = self.proto.as_mut().and_then(|p| p.tx_step(false)) {
            self.tx_step(port, step);
        }
    }

    /// Ends every receive that waits: no data arrive any more.
    fn end_recvs(&mut self, port: &mut dyn Port) {
        self.drain_rx(port);
        let ended = self.proto.as_mut().map(Proto::abort_rx).unwrap_or_default();
        // The windows of these receives close here.
        self.drain_rx(port);
        // A program that closes has asked for the end of its receives.
        let reason = self.life.reason().filter(|_| !self.life.is_closing());
        let reason = reason.unwrap_or(&OpError::Cancelled);
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.receiver.abort(port, ended, reason, &mut ends);
    }

    fn drain_rx(&mut self, port: &mut dyn Port) {
        while let Some(step) = self.proto.as_mut().and_then(Proto::rx_step) {
            self.rx_step(port, step, None);
        }
        self.out.clear_rx();
    }

    fn end_sends(&mut self) {
        let Some(reason) = self.life.reason() else { return };
        let ended = self.proto.as_mut().map(Proto::abort_tx).unwrap_or_default();
        let mut ends = Ends { done: &mut self.done, counters: &mut self.counters };
        self.sender.abort(ended, reason, &mut ends);
    }

    /// Closes every window: the peer's access to this side ends here.
    fn close_windows(&mut self, port: &mut dyn Port) {
        self.sided.close_exports(port);
        self.ring.close(port);
    }

    /// The queue pair is gone, and its WRs with it. The program can still read what lies in the
    /// ring, unless this side gave the connection up.
    pub(super) fn drive_gone(&mut self, port: &mut dyn Port) {
        if !self.life.is_down() {
            while let Some(entry) = self.sendq.retire_any() {
                self.retired(entry, WrEnd::Gone);
            }
            if let Some(cause) = self.life.settle() {
                self.sided.refuse_unconfirmed(cause);
            }
            self.end_all(port);
        }
        if !self.receiver.is_empty() {
            self.end_recvs(port);
        }
        let holds = self.proto.as_ref().is_some_and(Proto::holds_data);
        if !holds || self.life.discards() {
            self.ring.free(port);
        }
    }

    /// Ends the closes when all other operations have ended.
    pub(super) fn end_closers(&mut self) {
        let others = !(self.sender.is_empty() && self.receiver.is_empty() && self.sided.is_empty());
        if !self.life.is_down() || others || self.closing.is_empty() {
            return;
        }
        // Without a deadline the program closed after the end.
        let fine = self.closing.deadline.is_none() || self.life.closed_in_order();
        let reason = self.life.reason().filter(|_| !fine).cloned();
        for op in std::mem::take(&mut self.closing.ops) {
            let result = reason.clone().map_or(Ok(()), Err);
            self.done.push_back(Done { op, bytes: 0, total: 0, eof: false, result });
        }
    }
}
