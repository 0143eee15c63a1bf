//! Connections: from resolving an address to the last event.
//!
//! ```text
//! Idle -connect-> Resolving -> Routing -> Connecting -> Rts -> Closing -> Draining -> Over
//! Idle -accept--> Accepting --------------------------> Rts -> Closing -> Draining -> Over
//! ```
//!
//! A connection that the peer ends goes from Rts to Draining, by way of AwaitsAnswers if one-sided WRs
//! are outstanding. One that this side ends since the peer went where it may not goes by way of Refusing.
//!
//! The device's queue pair exists from Routing, or Accepting, on. It is freed before the last event
//! is reported. So after a connection's end the device touches none of its memory.

use std::net::SocketAddr;

use super::VerbsRnic;
use super::dialing::CmDial;
use super::host::RoutedEvent;
use super::path::{RNR_TIMER, retries};
use super::patience::TimeLimit;
use super::qp::DeviceQp;
use super::raw::{CmId, CmNote, ConnAttr};
use crate::rnic::{
    CmEvent, ConnParam, ConnReq, DisconnectCause, ListenOpts, Listener, Qp, QpState, RnicError,
    RnicEvent,
};
use crate::time::Time;

/// `rdma_cm_event_type`, as raw integers.
mod event {
    pub(super) const ADDR_RESOLVED: u32 = 0;
    pub(super) const ADDR_ERROR: u32 = 1;
    pub(super) const ROUTE_RESOLVED: u32 = 2;
    pub(super) const ROUTE_ERROR: u32 = 3;
    pub(super) const CONNECT_ERROR: u32 = 6;
    pub(super) const UNREACHABLE: u32 = 7;
    pub(super) const REJECTED: u32 = 8;
    pub(super) const ESTABLISHED: u32 = 9;
    pub(super) const DISCONNECTED: u32 = 10;
    pub(super) const DEVICE_REMOVAL: u32 = 11;
    pub(super) const ADDR_CHANGE: u32 = 14;
}

/// IB CM's reason "consumer defined": the accepting program has rejected the request.
const REJ_CONSUMER: i32 = 28;

/// The state of a connection.
pub(super) enum CmPhase {
    Idle,
    Resolving(Box<CmDial>),
    Routing(Box<CmDial>),
    Connecting(Box<CmDial>),
    Accepting {
        ird: u32,
        ord: u32,
        limit: TimeLimit,
        rnr_timer: u8,
    },
    Rts,
    /// `asked`: the CM was told. Until then, everything posted still leaves.
    Closing {
        asked: bool,
    },
    /// The peer has ended the connection. Its answers to one-sided WRs may still be on their way.
    AwaitsAnswers,
    /// The device has refused an access of the peer. Its answer may still have to leave.
    Refusing {
        cause: DisconnectCause,
    },
    /// The connection has ended. The device has yet to report that it takes no receive of the SRQ any
    /// more.
    Draining {
        cause: DisconnectCause,
    },
    Over,
}

impl CmPhase {
    pub(super) fn state(&self) -> QpState {
        match self {
            CmPhase::Idle => QpState::Init,
            CmPhase::Resolving(_) | CmPhase::Routing(_) | CmPhase::Connecting(_) => {
                QpState::Connecting
            }
            CmPhase::Accepting { .. } => QpState::Connecting,
            CmPhase::Rts => QpState::Rts,
            CmPhase::Closing { .. } | CmPhase::AwaitsAnswers | CmPhase::Refusing { .. } => {
                QpState::Closing
            }
            CmPhase::Draining { .. } | CmPhase::Over => QpState::Error,
        }
    }
}

/// A connection request that waits for the program's answer.
pub(super) struct CmRequest {
    /// None: that of an RNIC from which this one has taken the request over.
    pub(super) listener: Option<u32>,
    pub(super) id: CmId,
    pub(super) ird: u8,
    pub(super) ord: u8,
}

/// Why an accept has failed. The CM refuses each step of it once the caller has gone.
fn answer_error(req: ConnReq, e: RnicError) -> RnicError {
    match e {
        RnicError::Os { errno: libc::EINVAL | libc::ECONNRESET | libc::EBADFD, .. } => {
            crate::trace::debug!("the caller has gone: {e}");
            RnicError::NoSuch { what: "connection request", id: req.0 }
        }
        e => e,
    }
}

pub(super) fn small(n: u32) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

impl VerbsRnic {
    // ---- listeners -----------------------------------------------------------------

    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        if addr.ip().is_loopback() || self.presence.is_lost() {
            return Err(RnicError::Os { call: "rdma_bind_addr", errno: libc::EADDRNOTAVAIL });
        }
        self.cm_ids.listen(addr, opts)
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.cm_ids.close_listener(listener)?;
        self.startups.reject_requests_of(listener.0)
    }

    // ---- connecting ----------------------------------------------------------------

    pub(super) fn check_private_data(&self, data: &[u8]) -> Result<(), RnicError> {
        let (asked, limit) = (data.len() as u64, self.profile.caps().max_private_data as u64);
        if asked > limit {
            return Err(RnicError::Limit { what: "bytes of private data", asked, limit });
        }
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.startups.check_request(req)?;
        if !matches!(self.qps.get(qp.0)?.phase, CmPhase::Idle) {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private_data(param.private_data)?;
        let CmRequest { id, ird, ord, .. } = self.startups.take_request(req)?;
        // The limits of the peer, and ours.
        let ird = param.ird.min(self.profile.caps().max_ird).min(u32::from(ird));
        let ord = param.ord.min(self.profile.caps().max_ord).min(u32::from(ord));
        self.qps.get_mut(qp.0)?.addrs = id.local_addr().zip(id.peer_addr());
        self.cm_ids.assign(&id, qp.0);
        self.set_ack_timeout(&id, &param.path);
        let (retries, private_data) = (retries(&param.path), param.private_data);
        let attr = ConnAttr { private_data, ird: small(ird), ord: small(ord), retries };
        let made = self.make_device_qp(qp.0, id).map_err(|(id, e)| {
            self.cm_ids.release(&id);
            e
        });
        let accepted = made.and_then(|()| match &self.qps.get(qp.0)?.hw {
            Some(hw) => hw.id.accept(&attr).map_err(|e| RnicError::os("rdma_accept", &e)),
            None => Ok(()),
        });
        if let Err(e) = accepted.map_err(|e| answer_error(req, e)) {
            // The queue pair is as before, and can serve another request. Its receives went to the
            // device, and came back.
            self.back_to_idle(qp.0);
            return Err(e);
        }
        let limit = TimeLimit { began: now, timeout: param.timeout };
        let rnr_timer = param.path.rnr_timer.unwrap_or(RNR_TIMER);
        self.qps.get_mut(qp.0)?.phase = CmPhase::Accepting { ird, ord, limit, rnr_timer };
        self.set_deadline(qp.0, Some(now + limit.timeout));
        Ok(())
    }

    fn back_to_idle(&mut self, qp: u32) {
        self.free_device_qp(qp, true);
        if let Ok(q) = self.qps.get_mut(qp) {
            q.phase = CmPhase::Idle;
            q.addrs = None;
        }
    }

    pub(super) fn reject(&mut self, req: ConnReq, data: &[u8]) -> Result<(), RnicError> {
        self.check_private_data(data)?;
        let request = self.startups.take_request(req)?;
        request.id.reject(data).map_err(|e| RnicError::os("rdma_reject", &e))
    }

    // ---- what the CM reports ---------------------------------------------------------

    pub(super) fn handle_note(&mut self, (listener, note): RoutedEvent, now: Time) {
        if let Some(listener) = listener {
            return self.handle_request(listener, note);
        }
        let Some(qp) = self.cm_ids.owner(note.serial) else { return };
        match note.event {
            event::ADDR_RESOLVED => self.addr_resolved(qp, now),
            event::ADDR_ERROR => self.addr_error(qp, note.status, now),
            event::ROUTE_RESOLVED => self.route_resolved(qp),
            event::ESTABLISHED => self.established(qp, note),
            event::REJECTED => self.rejected(qp, note),
            event::ROUTE_ERROR | event::CONNECT_ERROR | event::UNREACHABLE => {
                let errno = if note.status < 0 { -note.status } else { libc::EHOSTUNREACH };
                // The last message of the start-up may be missing although messages have come.
                if !self.break_if_open(qp, errno) {
                    self.connect_failed(qp, RnicError::Os { call: "rdma_connect", errno });
                }
            }
            event::DISCONNECTED => self.disconnected(qp, note.status),
            event::DEVICE_REMOVAL => self.device_lost(),
            event::ADDR_CHANGE => {
                // A bond has failed over. Acknowledgements or keep-alive will show whether the path still
                // works.
                crate::trace::warn!(
                    "{}: the network path of a connection changed",
                    self.profile.name()
                );
            }
            _ => {}
        }
    }

    fn handle_request(&mut self, listener: u32, note: CmNote) {
        let Some(id) = note.request else { return };
        if !self.cm_ids.is_listening(listener) || self.presence.is_lost() {
            return;
        }
        let (Some(local), Some(peer)) = (id.local_addr(), id.peer_addr()) else { return };
        let request = CmRequest { listener: Some(listener), id, ird: note.ird, ord: note.ord };
        let Ok(req) = self.startups.add_request(request) else { return };
        self.events.push_back(RnicEvent::Cm(CmEvent::ConnectRequest {
            listener: Listener(listener),
            req,
            peer,
            local,
            private_data: note.private_data,
        }));
    }

    fn established(&mut self, qp: u32, note: CmNote) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let (ird, ord) = match &q.phase {
            CmPhase::Connecting(d) => {
                (d.to.ird.min(note.ird.into()), d.to.ord.min(note.ord.into()))
            }
            CmPhase::Accepting { ird, ord, .. } => (*ird, *ord),
            _ => {
                // A message came before this event. An orderly end may have waited for it.
                q.awaits_cm = false;
                return self.disconnect_if_drained(qp);
            }
        };
        self.open(qp, note.private_data, ird, ord);
    }

    fn open(&mut self, qp: u32, private_data: Vec<u8>, ird: u32, ord: u32) {
        self.note_answer(qp);
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let before = std::mem::replace(&mut q.phase, CmPhase::Rts);
        let rnr_timer = match &before {
            CmPhase::Connecting(dial) => dial.to.path.rnr_timer.unwrap_or(RNR_TIMER),
            CmPhase::Accepting { rnr_timer, .. } => *rnr_timer,
            _ => RNR_TIMER,
        };
        if let Some(DeviceQp { id, .. }) = &q.hw {
            q.addrs = id.local_addr().zip(id.peer_addr()).or(q.addrs);
            if !self.profile.is_iwarp()
                && let Err(e) = id.rnr_timer(rnr_timer)
            {
                crate::trace::debug!("{}: IBV_QP_MIN_RNR_TIMER: {e}", self.profile.name());
            }
        }
        self.startups.end_turn(qp, &before);
        self.set_deadline(qp, None);
        let event = CmEvent::Established { qp: Qp(qp), private_data, ord, ird };
        self.events.push_back(RnicEvent::Cm(event));
    }

    /// Opens a connection on which a message has come before the CM reported the end of its start-up.
    ///
    /// The CM is not told (`rdma_notify`). Linux would then ignore the peer's last message (RTU) when it
    /// comes, and would repeat its own (REP) for a minute, in which the id cannot be freed. Without
    /// being told, the CM gets the RTU, if need be as the answer to another REP.
    pub(super) fn established_by_message(&mut self, qp: u32) {
        if let Ok(q) = self.qps.get_mut(qp)
            && let CmPhase::Accepting { ird, ord, .. } = q.phase
            && q.hw.is_some()
        {
            q.awaits_cm = !self.profile.is_iwarp();
            self.open(qp, Vec::new(), ird, ord);
        }
    }

    fn rejected(&mut self, qp: u32, note: CmNote) {
        // The peer may have ended the connection before it got our last message of the start-up.
        if self.break_if_open(qp, libc::ECONNRESET) {
            return;
        }
        let said_no = if self.profile.is_iwarp() {
            !note.private_data.is_empty()
        } else {
            note.status == REJ_CONSUMER
        };
        if !said_no {
            // An iWARP peer that resets the TCP connection has dropped the request, or died.
            let errno = match note.status.checked_neg() {
                Some(libc::ECONNRESET) if self.profile.is_iwarp() => libc::ECONNRESET,
                _ => libc::ECONNREFUSED,
            };
            let error = RnicError::Os { call: "rdma_connect", errno };
            return self.connect_failed(qp, error);
        }
        self.note_answer(qp);
        let private_data = note.private_data;
        self.end_attempt(qp, CmEvent::Rejected { qp: Qp(qp), private_data });
    }

    pub(super) fn end_attempt(&mut self, qp: u32, event: CmEvent) {
        let state = self.qps.get(qp).map(|q| q.phase.state());
        if !matches!(state, Ok(QpState::Connecting | QpState::Error)) {
            return;
        }
        self.set_deadline(qp, None);
        self.free_device_qp(qp, true);
        self.events.push_back(RnicEvent::Cm(event));
    }
}
