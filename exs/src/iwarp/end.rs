//! How connections end: in order, by an error of either side, or by a cut.
//!
//! Whatever the way, each WR is completed exactly once, and from then on the
//! engine touches no memory of it: of what was half on the wire a copy is made if
//! it is needed (`TxBatch::scrub`), what was half received is thrown away.

use super::Engine;
use super::rx::{Phase, Target};
use super::state::{State, Trigger, next};
use super::term;
use super::types::Event;
use crate::mem::{AccessFault, Key};
use crate::rnic::{Disconnect, DisconnectCause, RnicError, TermCode, Wc, WcOp, WcStatus};
use crate::wire::rdmap::{Offender, Terminate};

/// Why WRs are ended, and which of them get more than "flushed".
struct Flush {
    /// The receive that a message is filling.
    receive: WcStatus,
    /// The WR that a TERMINATE means.
    offender: Option<(usize, WcStatus)>,
    /// The lkey that was taken back.
    lkey: Option<Key>,
    /// A TERMINATE will follow the FPDU that is half on the wire.
    framed: bool,
}

const FLUSH: Flush =
    Flush { receive: WcStatus::Flushed, offender: None, lkey: None, framed: false };

impl Engine {
    pub(super) fn go(&mut self, trigger: Trigger) {
        debug_assert!(next(self.state, trigger).is_some(), "{trigger:?} in {:?}", self.state);
        self.state = next(self.state, trigger).unwrap_or(State::Dead);
    }

    /// Ends the connection, or its sending side: see [`Disconnect`]. In order,
    /// what is posted leaves first; then comes `TxStep::Shutdown`, and when the
    /// peer has ended its side too, `Event::Disconnected`. That may never happen:
    /// bound it with a timer, and abort. An abort ends all at once.
    pub fn disconnect(&mut self, how: Disconnect) {
        match (how, self.state) {
            (_, State::Dead) => {}
            (_, State::AwaitRequest | State::Asked | State::AwaitReply) => {
                self.startup_failed(RnicError::Os { call: "disconnect", errno: libc::ECANCELED });
            }
            (Disconnect::Abort, _) => self.cut(DisconnectCause::Aborted),
            (Disconnect::Orderly, _) => {
                self.go(Trigger::Disconnect);
                self.maybe_finish();
            }
        }
    }

    /// The peer has ended its sending side. To be called when all bytes before
    /// that were taken by `handle_received`.
    pub fn handle_eof(&mut self) {
        match self.state {
            State::AwaitRequest | State::Asked | State::AwaitReply => {
                let why = "the peer closed the connection during the MPA start-up";
                self.startup_failed(RnicError::Protocol(why.to_owned()));
            }
            // Half a message, or a READ that nobody will answer: no end in order.
            State::Rts | State::Closing if !self.rx.at_boundary() || self.sq.has_reads() => {
                self.cut(DisconnectCause::Broken(libc::ECONNRESET));
            }
            State::Dead => {}
            _ => {
                self.eof = true;
                if self.tx.held {
                    // The first message that would have let these out will not
                    // come any more.
                    self.sq.flush(self.qp(), None, &|_| None, &mut self.wcs);
                }
                self.go(Trigger::Eof);
                self.maybe_finish();
            }
        }
    }

    /// The transport failed with this errno.
    pub fn handle_broken(&mut self, errno: i32) {
        match self.state {
            State::Dead => {}
            State::AwaitRequest | State::Asked | State::AwaitReply => {
                self.startup_failed(RnicError::Os { call: "MPA start-up", errno });
            }
            _ => self.cut(DisconnectCause::Broken(errno)),
        }
    }

    /// A window was closed, after its key was removed from the table: a WRITE
    /// under way through it places no byte more, a READ response from it ends, a
    /// READ of ours whose sink it is fails. Each costs the connection.
    pub fn key_revoked(&mut self, key: Key) {
        if !self.state.is_open() {
            return;
        }
        let placing = self.rx.phase == Phase::Payload;
        if placing && matches!(&self.rx.target, Target::Memory(k, _) if *k == key) {
            let offender = self.rx.offender();
            self.fault(term::TAGGED_STAG, offender);
        } else if let Some(offender) = self.reads.by_key(key) {
            self.fault(term::READ_STAG, Some(offender));
        } else if self.sq.has_sink(key) {
            let flush = Flush { lkey: Some(key), framed: true, ..FLUSH };
            self.fail(term::LOCAL_CATASTROPHIC, None, &flush);
        }
    }

    /// An MR was deregistered: as `key_revoked`; besides, a WR or receive whose
    /// local memory it is ends with a protection error, and, once connected,
    /// the connection with it.
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

    /// The peer broke a rule.
    pub(super) fn fault(&mut self, code: TermCode, offender: Option<Offender>) {
        self.fault_with(code, offender, WcStatus::Flushed);
    }

    /// The peer broke a rule; `receive` is how the receive under way ends.
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
        if self.tx.shut {
            // The way to say it is closed already.
            return self.cut(DisconnectCause::TerminatedByUs(code));
        }
        self.cause = Some(DisconnectCause::TerminatedByUs(code));
        let TermCode { layer, etype, code } = code;
        self.tx.terminate = Some(Terminate { layer, etype, code, offender });
        self.go(Trigger::Fault);
    }

    /// The peer says that we broke a rule.
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

    /// The connection is over at once.
    fn cut(&mut self, cause: DisconnectCause) {
        let refusing = self.state == State::Rejecting;
        self.flush(&FLUSH);
        self.go(Trigger::Cut);
        if !refusing {
            // If a TERMINATE was under way, that is why.
            let cause = self.cause.take().unwrap_or(cause);
            self.events.push_back(Event::Disconnected(cause));
        }
    }

    /// The connection never came to be.
    pub(super) fn startup_failed(&mut self, error: RnicError) {
        self.flush(&FLUSH);
        self.go(Trigger::Fault);
        self.events.push_back(Event::Failed(error));
    }

    /// The acceptor said no.
    pub(super) fn startup_refused(&mut self, private_data: Vec<u8>) {
        self.flush(&FLUSH);
        self.go(Trigger::Fault);
        self.events.push_back(Event::Rejected { private_data });
    }

    /// True if nothing is left to send and the peer shall know.
    pub(super) fn shutdown_due(&self) -> bool {
        let frame = self.startup.as_ref().is_some_and(|s| !s.tx.is_empty());
        let idle = match self.state {
            State::Closing => self.sq.is_empty() && self.reads.is_empty(),
            State::Terminating => self.tx.terminate.is_none(),
            State::Rejecting => true,
            _ => false,
        };
        idle && !self.tx.shut && !frame
    }

    /// Both directions have ended: the end.
    pub(super) fn maybe_finish(&mut self) {
        let ending = matches!(self.state, State::Closing | State::Terminating | State::Rejecting);
        if !ending || !self.tx.shut || !self.eof {
            return;
        }
        let refusing = self.state == State::Rejecting;
        self.flush(&FLUSH);
        self.go(Trigger::Finished);
        if !refusing {
            let cause = self.cause.take().unwrap_or(DisconnectCause::Orderly);
            self.events.push_back(Event::Disconnected(cause));
        }
    }

    /// Completes all WRs and lets go of their memory. Nothing is received or
    /// built afterwards but a TERMINATE.
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
        if self.state != State::Rejecting {
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
