//! How a connection ends, and the order in which everything is done.

use std::time::Duration;

use crate::ids::OpId;
use crate::rnic::{Disconnect, DisconnectCause};
use crate::time::Time;
use crate::wire::exs::Message;

use super::proto::Proto;
use super::sendq::Over;
use super::{Done, Link, OpError, Port, Session, Violation};

/// How far the end is.
#[derive(Debug, Default)]
pub(super) struct Ending {
    /// The user has closed: nothing more is taken.
    pub(super) closing: bool,
    /// Closes that wait for the end.
    pub(super) closers: Vec<OpId>,
    /// The linger time, and its end.
    pub(super) linger: Duration,
    pub(super) deadline: Option<Time>,
    close_queued: bool,
    close_said: bool,
    /// CLOSE_ACK is here.
    acked: bool,
    /// The peer has closed.
    pub(super) peer_closed: bool,
    ack_queued: bool,
    ack_said: bool,
    /// The user has ended our direction, unless that was cancelled.
    pub(super) send_shut: bool,
    /// The user wants no more data.
    pub(super) recv_shut: bool,
    /// Not even those that are here.
    discard: bool,
    /// We have ended the connection: in order, or abruptly.
    pub(super) cut: bool,
    aborted: bool,
    /// The port refused a WR because the queue pair is going down.
    pub(super) refused: bool,
    /// Why the connection is over.
    pub(super) reason: Option<OpError>,
    /// Windows are closed and operations ended, but for what the RNIC still holds.
    pub(super) torn: bool,
    /// The queue pair is gone and that is dealt with.
    settled: bool,
}

impl Ending {
    /// Nothing is to be posted any more.
    pub(super) fn mute(&self) -> bool {
        self.over() || self.refused
    }

    /// No data are to come any more.
    pub(super) fn over(&self) -> bool {
        self.reason.is_some() || self.cut
    }

    /// Nobody has asked for the end, and nothing has caused it.
    pub(super) fn is_quiet(&self) -> bool {
        !self.closing && !self.peer_closed && !self.mute() && self.closers.is_empty()
    }

    /// A message has left.
    pub(super) fn said(&mut self, message: &Message) {
        match message {
            Message::Close => self.close_said = true,
            Message::CloseAck => self.ack_said = true,
            _ => {}
        }
    }
}

impl Session {
    /// Closes gracefully: what was posted to be sent is sent first. If that, and the
    /// peer's answer, take longer than `linger`, closes abruptly.
    pub fn close(&mut self, now: Time, op: OpId, linger: Duration) {
        self.ending.closers.push(op);
        if std::mem::replace(&mut self.ending.closing, true) {
            return;
        }
        self.ending.linger = linger;
        match self.link {
            // There is nothing to be graceful about.
            Link::Idle => self.fail(OpError::Aborted),
            Link::Down(_) => {}
            Link::Mute | Link::Up => {
                self.ending.deadline = Some(now + linger);
                if linger.is_zero() {
                    self.ending.acked = true; // asked for, so no error
                    self.fail(OpError::Aborted);
                } else {
                    // The user's own shutdown, if there is one, may yet be cancelled.
                    self.queue_shutdown(None);
                }
            }
        }
    }

    /// The peer sends CLOSE: it takes nothing any more. Our sends end, and what they
    /// have under way is announced before we answer.
    pub(super) fn peer_closes(&mut self, now: Time) -> Result<(), Violation> {
        if std::mem::replace(&mut self.ending.peer_closed, true) {
            return Err(Violation::Unexpected("second CLOSE"));
        }
        let sends: Vec<u64> =
            self.sends.iter().filter(|(_, s)| s.source.is_some()).map(|(id, _)| id).collect();
        // The last first, so that none begins in the place of another.
        for id in sends.into_iter().rev() {
            self.end_send(now, id, OpError::PeerClosed);
        }
        let sided: Vec<u64> = self.sided.iter().map(|(id, _)| id).collect();
        for id in sided {
            self.stop_sided(id, OpError::PeerClosed);
        }
        Ok(())
    }

    /// The peer sends CLOSE_ACK: nothing more comes.
    pub(super) fn close_answered(&mut self) -> Result<(), Violation> {
        if !self.ending.close_said || self.ending.acked {
            return Err(Violation::Unexpected("CLOSE_ACK"));
        }
        self.ending.acked = true;
        Ok(())
    }

    /// Says CLOSE and CLOSE_ACK when their time has come, and disconnects when both
    /// sides' are answered.
    pub(super) fn drive_close(&mut self, port: &mut dyn Port) {
        let e = &self.ending;
        if !e.closing && !e.peer_closed {
            return;
        }
        let sent = self.job.is_none() && self.sided.is_empty();
        // A shutdown whose FIN waits for credits leaves it in the outbox, before us.
        let shutdowns_only = self.sends.iter().all(|(_, s)| s.source.is_none());
        if self.ending.peer_closed && !self.ending.ack_queued && sent && shutdowns_only {
            self.ending.ack_queued = true;
            self.out.tx.push_back(Message::CloseAck);
        }
        let e = &mut self.ending;
        if e.closing && !e.close_queued && sent && self.sends.is_empty() {
            e.close_queued = true;
            self.out.tx.push_back(Message::Close);
        }
        self.flush_outbox(port);
        let e = &self.ending;
        if e.closing && e.acked && (!e.peer_closed || e.ack_said) && !e.mute() {
            self.ending.cut = true;
            self.end_recvs(port);
            self.close_windows(port);
            port.disconnect(Disconnect::Orderly);
        }
    }

    /// Ends everything at once. What the RNIC still reads from or writes to ends as
    /// soon as it has let go.
    pub fn abort(&mut self, port: &mut dyn Port, error: OpError) {
        self.fail(error);
        self.ending.discard = true;
        if !self.ending.torn {
            self.tear_down(port);
        }
    }

    /// The connection cannot go on. `drive` does the rest.
    pub(super) fn fail(&mut self, error: OpError) {
        self.ending.reason.get_or_insert(error);
    }

    /// The QP is disconnected (or was never connected). Take all completions out of
    /// its CQs before.
    pub fn handle_disconnected(&mut self, _now: Time, cause: DisconnectCause) {
        if !matches!(self.link, Link::Down(_)) {
            self.link = Link::Down(cause);
        }
    }

    /// The end, whoever caused it: closes the windows, cuts the link, ends operations.
    pub(super) fn tear_down(&mut self, port: &mut dyn Port) {
        self.ending.torn = true;
        self.drain_tx(port);
        self.out.clear();
        self.job = None;
        self.end_recvs(port);
        self.close_windows(port);
        if self.link == Link::Idle {
            self.link = Link::Down(DisconnectCause::Aborted);
        }
        if !matches!(self.link, Link::Down(_)) && !self.ending.aborted {
            (self.ending.aborted, self.ending.cut) = (true, true);
            port.disconnect(Disconnect::Abort);
        }
        self.end_sends();
        self.reap_sided();
    }

    /// The ends of sends, without anything that would have to be sent.
    pub(super) fn drain_tx(&mut self, port: &mut dyn Port) {
        while let Some(step) = self.proto.as_mut().and_then(|p| p.tx_step(false)) {
            self.tx_step(port, step);
        }
    }

    /// Ends every receive that waits: no data come any more.
    fn end_recvs(&mut self, port: &mut dyn Port) {
        self.drain_rx(port);
        let ends = self.proto.as_mut().map(Proto::abort_rx).unwrap_or_default();
        // The windows of these close here.
        self.drain_rx(port);
        for (id, bytes) in ends {
            let error = self.recv_error(id);
            let eof = error.is_none() && bytes == 0;
            self.finish_recv(port, id, bytes, bytes, eof, error);
        }
    }

    fn drain_rx(&mut self, port: &mut dyn Port) {
        while let Some(step) = self.proto.as_mut().and_then(Proto::rx_step) {
            self.rx_step(port, step, None);
        }
        self.out.rx.clear();
    }

    /// Why a receive ends without its data: it was to end anyway, or the user closes,
    /// or the connection is gone.
    fn recv_error(&self, id: u64) -> Option<OpError> {
        use super::ops::Fate;
        match self.recvs.get(id).and_then(|r| r.fate.as_deref()) {
            Some(Fate::Error(error)) => return Some(error.clone()),
            Some(Fate::End) => return None,
            None => {}
        }
        let reason = self.ending.reason.clone().filter(|_| !self.ending.closing);
        Some(reason.unwrap_or(OpError::Cancelled))
    }

    fn end_sends(&mut self) {
        let Some(reason) = self.ending.reason.clone() else { return };
        let ends = self.proto.as_mut().map(Proto::abort_tx).unwrap_or_default();
        for (id, bytes) in ends {
            if let Some(send) = self.sends.get_mut(id) {
                // A send that was cancelled before it began has ended by now. So this one had
                // begun, and the peer may have all of it, whatever the user asked for since,
                // and however much its file had: only the end of the connection is known.
                send.failed = None;
                send.over.get_or_insert((bytes, Some(reason.clone())));
            }
        }
        let free: Vec<u64> =
            self.sends.iter().filter(|(_, s)| s.in_flight == 0).map(|(id, _)| id).collect();
        for id in free {
            if let Some(send) = self.sends.get_mut(id) {
                send.over.get_or_insert((0, Some(reason.clone())));
            }
            self.finish_send(id);
        }
    }

    /// Closes every window: the peer's access to us ends here.
    fn close_windows(&mut self, port: &mut dyn Port) {
        for key in self.exports.drain(..) {
            port.invalidate(key);
        }
        if let Some(key) = self.ring.as_mut().and_then(|r| r.key.take()) {
            port.invalidate(key);
        }
    }

    /// The queue pair is gone: so are its WRs. What lies in the ring can be read, if
    /// it was not us who gave up.
    pub(super) fn drive_down(&mut self, port: &mut dyn Port, cause: DisconnectCause) {
        if !self.ending.settled {
            self.ending.settled = true;
            while let Some(entry) = self.sendq.retire_any() {
                self.retired(entry, Over::Gone);
            }
            if self.ending.reason.is_none() {
                self.ending.reason = Some(match cause {
                    _ if self.ending.peer_closed => OpError::PeerClosed,
                    DisconnectCause::Aborted => OpError::Aborted,
                    cause => OpError::Reset { cause },
                });
            }
            self.refuse_unconfirmed(cause);
            if !self.ending.torn {
                self.tear_down(port);
            }
            self.end_sends();
            self.reap_sided();
        }
        if !self.recvs.is_empty() {
            self.end_recvs(port);
        }
        let holds = self.proto.as_ref().is_some_and(Proto::holds_data);
        if !holds || self.discards() {
            self.drop_ring(port);
        }
    }

    /// Nobody wants what has come.
    pub(super) fn discards(&self) -> bool {
        let e = &self.ending;
        e.closing || e.aborted || e.recv_shut || e.discard
    }

    /// A close ends when all else has.
    pub(super) fn end_closers(&mut self) {
        let gone = matches!(self.link, Link::Down(_)) && self.ending.settled;
        let others = !(self.sends.is_empty() && self.recvs.is_empty() && self.sided.is_empty());
        if !gone || others || self.ending.closers.is_empty() {
            return;
        }
        // Without a deadline it was closed after its end; with an answer, or the
        // peer's own close, nothing is lost.
        let e = &self.ending;
        let fine = e.deadline.is_none() || e.acked || e.peer_closed;
        let reason = e.reason.clone().filter(|_| !fine);
        for op in std::mem::take(&mut self.ending.closers) {
            let result = reason.clone().map_or(Ok(()), Err);
            self.done.push_back(Done { op, bytes: 0, total: 0, eof: false, result });
        }
    }
}
