//! The ends of a connection: in order, by an error of either side, or by a cut.
//!
//! In each case every WR completes exactly once, and from then on the engine touches no memory of
//! it. The rest of an FPDU that is half on the wire is copied if it must still leave
//! (`TxBatch::scrub`). A message that is half received is thrown away.

use super::IwarpEngine;
use super::rx::{PayloadTarget, RxPhase};
use super::state::{ConnState, SendHalf, Trigger, next};
use super::term;
use super::types::IwarpEvent;
use crate::mem::{AccessFault, Key};
use crate::rnic::{Disconnect, DisconnectCause, RnicError, TermCode, Wc, WcOp, WcStatus};
use crate::wire::rdmap::{Offender, Terminate};

/// The statuses of the WRs that an end flushes. WRs not named here get "flushed".
struct Flush {
    /// The status of the receive that a message is filling.
    receive: WcStatus,
    /// The WR that a TERMINATE refers to: its index in the send queue and its status.
    offender: Option<(usize, WcStatus)>,
    /// The lkey that the program revoked. WRs with this lkey get a protection error.
    lkey: Option<Key>,
    /// A TERMINATE will follow the FPDU that is half on the wire.
    framed: bool,
}

const FLUSH: Flush =
    Flush { receive: WcStatus::Flushed, offender: None, lkey: None, framed: false };

impl IwarpEngine {
    pub(super) fn go(&mut self, trigger: Trigger) {
        debug_assert!(next(self.state, trigger).is_some(), "{trigger:?} in {:?}", self.state);
        self.state = next(self.state, trigger).unwrap_or(ConnState::Dead);
    }

    /// Ends the connection, or its sending side: see [`Disconnect`].
    ///
    /// An orderly end lets posted WRs leave first. Then comes `SendStep::Shutdown`, and, when the
    /// peer has ended its side too, `IwarpEvent::Disconnected`. The peer may never do so; the
    /// driver must bound the wait with a timer, and abort. A driver that need not wait for the peer
    /// ([`Disconnect::Answered`]) may report its end itself. An abort ends everything at once.
    pub fn disconnect(&mut self, how: Disconnect) {
        match (how, self.state) {
            (_, ConnState::Dead) => {}
            (_, ConnState::AwaitRequest | ConnState::Asked | ConnState::AwaitReply) => {
                self.startup_failed(RnicError::Os { call: "disconnect", errno: libc::ECANCELED });
            }
            (Disconnect::Abort, _) => self.cut(DisconnectCause::Aborted),
            (Disconnect::Orderly | Disconnect::Answered, _) => {
                self.go(Trigger::Disconnect);
                self.maybe_finish();
            }
        }
    }

    /// Reports that the peer has ended its sending side. The driver must first hand all bytes
    /// before the end to `handle_received`.
    pub fn handle_eof(&mut self) {
        match self.state {
            ConnState::AwaitRequest | ConnState::Asked | ConnState::AwaitReply => {
                let why = "the peer closed the connection during the MPA start-up";
                self.startup_failed(RnicError::Protocol(why.to_owned()));
            }
            // Half a message, or a READ without a response: this is no orderly end.
            ConnState::Rts | ConnState::Closing
                if !self.rx.at_boundary() || self.sq.has_reads() =>
            {
                self.cut(DisconnectCause::Broken(libc::ECONNRESET));
            }
            ConnState::Dead => {}
            _ => {
                self.eof = true;
                if self.tx.half == SendHalf::Held {
                    // These WRs wait for the peer's first message, which will not come any more.
                    self.sq.flush(self.qp(), None, &|_| None, &mut self.wcs);
                }
                self.go(Trigger::Eof);
                self.maybe_finish();
            }
        }
    }

    /// Reports that the transport failed with this errno.
    pub fn handle_broken(&mut self, errno: i32) {
        match self.state {
            ConnState::Dead => {}
            ConnState::AwaitRequest | ConnState::Asked | ConnState::AwaitReply => {
                self.startup_failed(RnicError::Os { call: "MPA start-up", errno });
            }
            _ => self.cut(DisconnectCause::Broken(errno)),
        }
    }

    /// Reports that a window was closed, after its key was removed from the table. A WRITE under
    /// way through it places no byte more, a READ response from it ends, and a READ of this side
    /// whose sink it is fails. Each of these ends the connection.
    pub fn key_revoked(&mut self, key: Key) {
        if !self.state.is_open() {
            return;
        }
        let placing = self.rx.phase == RxPhase::Payload;
        if placing && matches!(&self.rx.target, PayloadTarget::Memory(k, _) if *k == key) {
            let offender = self.rx.offender();
            self.fault(term::TAGGED_STAG, offender);
        } else if let Some(offender) = self.reads.by_key(key) {
            self.fault(term::READ_STAG, Some(offender));
        } else if self.sq.has_sink(key) {
            let flush = Flush { lkey: Some(key), framed: true, ..FLUSH };
            self.fail(term::LOCAL_CATASTROPHIC, None, &flush);
        }
    }

    /// Reports that an MR was deregistered. Does the same as `key_revoked`. In addition, a WR or
    /// receive that uses the MR as local memory ends with a protection error. On an established
    /// connection this ends the connection.
    pub fn mr_revoked(&mut self, key: Key) {
        self.key_revoked(key);
        let filling = self.rx.receive.as_ref().is_some_and(|r| r.buf.lkeys.contains(&key));
        let posted = self.rq.iter().any(|buf| buf.lkeys.contains(&key));
        if !(filling || posted || self.sq.uses(key)) {
            return;
        }
        if self.state.is_open() {
            let flush = Flush { lkey: Some(key), framed: true, ..FLUSH };
            self.fail(term::LOCAL_CATASTROPHIC, None, &flush);
            return;
        }
        let (qp, status) = (self.qp(), local_protection(key));
        let wcs = &mut self.wcs;
        self.rq.retain(|buf| {
            let gone = buf.lkeys.contains(&key);
            if gone {
                wcs.push(receive_wc(qp, buf.wr_id, status));
            }
            !gone
        });
    }

    /// Ends the connection because the peer broke a rule.
    pub(super) fn fault(&mut self, code: TermCode, offender: Option<Offender>) {
        self.fault_with(code, offender, WcStatus::Flushed);
    }

    /// As `fault`. `receive` is the status of the receive under way.
    pub(super) fn fault_with(
        &mut self,
        code: TermCode,
        offender: Option<Offender>,
        receive: WcStatus,
    ) {
        self.fail(code, offender, &Flush { receive, framed: true, ..FLUSH });
    }

    fn fail(&mut self, code: TermCode, offender: Option<Offender>, flush: &Flush) {
        if !self.state.is_open() {
            return;
        }
        self.flush(flush);
        if self.tx.half == SendHalf::Shut {
            // The sending side is closed already, so no TERMINATE can leave.
            return self.cut(DisconnectCause::TerminatedByUs(code));
        }
        self.cause = Some(DisconnectCause::TerminatedByUs(code));
        let TermCode { layer, etype, code } = code;
        self.tx.terminate = Some(Terminate { layer, etype, code, offender });
        self.go(Trigger::Fault);
    }

    /// Handles a TERMINATE from the peer: this side broke a rule.
    pub(super) fn terminated(&mut self, terminate: &Terminate) {
        let Terminate { layer, etype, code, .. } = *terminate;
        let code = TermCode { layer, etype, code };
        let offender = term::meant(terminate)
            .and_then(|(op, msn)| self.sq.find(op, msn))
            .map(|index| (index, term::status(code)));
        self.flush(&Flush { offender, ..FLUSH });
        self.cause = Some(DisconnectCause::TerminatedByPeer(code));
        self.go(Trigger::Fault);
        self.maybe_finish();
    }

    /// Ends the connection at once.
    fn cut(&mut self, cause: DisconnectCause) {
        let refusing = self.state == ConnState::Rejecting;
        self.flush(&FLUSH);
        self.go(Trigger::Cut);
        if !refusing {
            // If a TERMINATE was under way, its reason is the cause.
            let cause = self.cause.take().unwrap_or(cause);
            self.events.push_back(IwarpEvent::Disconnected(cause));
        }
    }

    /// Ends a connection that was never established.
    pub(super) fn startup_failed(&mut self, error: RnicError) {
        self.flush(&FLUSH);
        self.go(Trigger::Fault);
        self.events.push_back(IwarpEvent::Failed(error));
    }

    /// Ends a connection that the acceptor refused.
    pub(super) fn startup_refused(&mut self, private_data: Vec<u8>) {
        self.flush(&FLUSH);
        self.go(Trigger::Fault);
        self.events.push_back(IwarpEvent::Rejected { private_data });
    }

    /// Returns true if nothing is left to send and the end of sending must be told to the peer.
    pub(super) fn shutdown_due(&self) -> bool {
        let frame = self.startup.as_ref().is_some_and(|s| !s.tx.is_empty());
        let idle = match self.state {
            ConnState::Closing => self.sq.is_empty() && self.reads.is_empty(),
            ConnState::Terminating => self.tx.terminate.is_none(),
            ConnState::Rejecting => true,
            _ => false,
        };
        idle && self.tx.half != SendHalf::Shut && !frame
    }

    /// Ends the connection if both directions have ended.
    pub(super) fn maybe_finish(&mut self) {
        let ending = matches!(
            self.state,
            ConnState::Closing | ConnState::Terminating | ConnState::Rejecting
        );
        if !ending || self.tx.half != SendHalf::Shut || !self.eof {
            return;
        }
        let refusing = self.state == ConnState::Rejecting;
        self.flush(&FLUSH);
        self.go(Trigger::Finished);
        if !refusing {
            let cause = self.cause.take().unwrap_or(DisconnectCause::Orderly);
            self.events.push_back(IwarpEvent::Disconnected(cause));
        }
    }

    /// Completes all WRs and lets go of their memory. Afterwards the engine receives nothing, and
    /// builds nothing but a TERMINATE.
    fn flush(&mut self, flush: &Flush) {
        let qp = self.qp();
        let own =
            |lkeys: &[Key]| flush.lkey.filter(|key| lkeys.contains(key)).map(local_protection);
        if let Some(receive) = self.rx.receive.take() {
            let status = own(&receive.buf.lkeys).unwrap_or(flush.receive);
            self.wcs.push(receive_wc(qp, receive.buf.wr_id, status));
        }
        for buf in self.rq.drain(..) {
            let status = own(&buf.lkeys).unwrap_or(WcStatus::Flushed);
            self.wcs.push(receive_wc(qp, buf.wr_id, status));
        }
        self.sq.flush(qp, flush.offender, &own, &mut self.wcs);
        self.reads.clear();
        self.tx.abandon(flush.framed);
        self.rx.discard();
        if self.state != ConnState::Rejecting {
            self.startup = None;
        }
    }
}

fn local_protection(key: Key) -> WcStatus {
    WcStatus::LocalProtection(AccessFault::InvalidKey { key })
}

fn receive_wc(qp: crate::rnic::Qp, wr_id: u64, status: WcStatus) -> Wc {
    Wc {
        wr_id,
        qp,
        status,
        op: WcOp::Recv,
        byte_len: 0,
        imm: None,
        invalidated: None,
        solicited: false,
    }
}
