//! Connections: from resolving an address to the last event.
//!
//! ```text
//! Idle -connect-> Resolving -> Routing -> Connecting -> Rts -> Closing -> Dying -> Over
//! Idle -accept--> Accepting --------------------------> Rts -> Closing -> Dying -> Over
//! ```
//!
//! The device's queue pair exists from Routing, or Accepting, on; it is freed before
//! the last event is told, so that after a connection's end the device touches none
//! of its memory.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::VerbsRnic;
use super::host::Note;
use super::qp::{Hw, QueuePair};
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

/// IB CM's reason "consumer defined": the acceptor's program said no.
const REJ_CONSUMER: i32 = 28;
/// The first try to resolve an address: kernels may wait for all of it although the
/// answer is there, so it is short, and doubled with each try.
const RESOLVE: Duration = Duration::from_millis(250);
/// 4.096 us << 18: a second without acknowledgement, eight times over.
const ACK_TIMEOUT: u8 = 18;
/// 0.64 ms (InfiniBand's code): for a receive that is about to be posted.
const RNR_TIMER: u8 = 12;
/// A connection attempt.
pub(super) struct Dial {
    /// Until the queue pair is made.
    pub(super) id: Option<CmId>,
    addr: SocketAddr,
    bind: Option<SocketAddr>,
    /// The reservation of the local port in TCP.
    _port: Option<OwnedFd>,
    private_data: Vec<u8>,
    ird: u32,
    ord: u32,
    pub(super) timeout: Duration,
    until: Time,
    step: Duration,
}

/// How far a connection is.
pub(super) enum Phase {
    Idle,
    Resolving(Box<Dial>),
    Routing(Box<Dial>),
    Connecting(Box<Dial>),
    Accepting {
        ird: u32,
        ord: u32,
        timeout: Duration,
    },
    Rts,
    /// `asked`: the CM was told; before that, what was posted is let out.
    Closing {
        asked: bool,
    },
    /// It has ended; the device has yet to say that it takes no receive of the SRQ any more.
    Dying {
        cause: DisconnectCause,
    },
    Over,
}

impl Phase {
    pub(super) fn state(&self) -> QpState {
        match self {
            Phase::Idle => QpState::Init,
            Phase::Resolving(_) | Phase::Routing(_) | Phase::Connecting(_) => QpState::Connecting,
            Phase::Accepting { .. } => QpState::Connecting,
            Phase::Rts => QpState::Rts,
            Phase::Closing { .. } => QpState::Closing,
            Phase::Dying { .. } | Phase::Over => QpState::Error,
        }
    }
}

/// A connection request that waits for an answer.
pub(super) struct Request {
    listener: u32,
    id: CmId,
    ird: u8,
    ord: u8,
}

fn small(n: u32) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

impl VerbsRnic {
    // ---- listeners -----------------------------------------------------------------

    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        if addr.ip().is_loopback() || self.dead {
            return Err(RnicError::Os { call: "rdma_bind_addr", errno: libc::EADDRNOTAVAIL });
        }
        let id = self.listeners.insert(addr)?;
        let opened = self.host.listen((self.index, id), addr, opts.backlog, opts.v6_only);
        match opened {
            Ok(bound) => {
                *self.listeners.get_mut(id)? = bound;
                Ok(Listener(id))
            }
            Err(e) => {
                self.listeners.remove(id)?;
                Err(RnicError::os("rdma_listen", &e))
            }
        }
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.listeners.remove(listener.0)?;
        self.host.leave((self.index, listener.0));
        let waiting: Vec<u32> = self
            .requests
            .iter()
            .filter(|(_, r)| r.listener == listener.0)
            .map(|(id, _)| id)
            .collect();
        for id in waiting {
            // To drop the id refuses the caller.
            self.requests.remove(id)?;
        }
        Ok(())
    }

    // ---- connecting ----------------------------------------------------------------

    fn check_private_data(&self, data: &[u8]) -> Result<(), RnicError> {
        let (asked, limit) = (data.len() as u64, self.caps.max_private_data as u64);
        if asked > limit {
            return Err(RnicError::Limit { what: "bytes of private data", asked, limit });
        }
        Ok(())
    }

    pub(super) fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        if !matches!(self.qps.get(qp.0)?.phase, Phase::Idle) {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private_data(param.private_data)?;
        if addr.ip().is_loopback() {
            let call = "loopback addresses are on no RDMA device";
            return Err(RnicError::Os { call, errno: libc::EHOSTUNREACH });
        }
        let step = RESOLVE.min(param.timeout);
        let (id, port) = self
            .start_resolving(addr, param.bind, step)
            .map_err(|e| RnicError::os("rdma_resolve_addr", &e))?;
        self.by_serial.insert(id.serial(), qp.0);
        let until = now + param.timeout;
        let dial = Dial {
            id: Some(id),
            addr,
            bind: param.bind,
            _port: port,
            private_data: param.private_data.to_vec(),
            ird: param.ird.min(self.caps.max_ird),
            ord: param.ord.min(self.caps.max_ord),
            timeout: param.timeout,
            until,
            step,
        };
        self.qps.get_mut(qp.0)?.phase = Phase::Resolving(Box::new(dial));
        self.set_deadline(qp.0, Some(until));
        Ok(())
    }

    pub(super) fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.requests.get(req.0)?;
        if !matches!(self.qps.get(qp.0)?.phase, Phase::Idle) {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private_data(param.private_data)?;
        let Request { id, ird, ord, .. } = self.requests.remove(req.0)?;
        // The peer's wishes, and ours.
        let ird = param.ird.min(self.caps.max_ird).min(u32::from(ird));
        let ord = param.ord.min(self.caps.max_ord).min(u32::from(ord));
        let (serial, addrs) = (id.serial(), id.local_addr().zip(id.peer_addr()));
        self.qps.get_mut(qp.0)?.addrs = addrs;
        self.host.own(&id, self.index);
        self.by_serial.insert(serial, qp.0);
        self.slow_ack(&id);
        let attr = ConnAttr { private_data: param.private_data, ird: small(ird), ord: small(ord) };
        let made = self.equip(qp.0, id).map_err(|(id, e)| {
            self.host.disown(&id);
            e
        });
        let accepted = made.and_then(|()| match &self.qps.get(qp.0)?.hw {
            Some(hw) => hw.id.accept(&attr).map_err(|e| RnicError::os("rdma_accept", &e)),
            None => Ok(()),
        });
        if let Err(e) = accepted {
            self.by_serial.remove(&serial);
            // The queue pair is as before, and serves the next caller; its receives
            // went to the device, and came back.
            self.back_to_idle(qp.0);
            return Err(e);
        }
        let timeout = param.timeout;
        self.qps.get_mut(qp.0)?.phase = Phase::Accepting { ird, ord, timeout };
        self.set_deadline(qp.0, Some(now + timeout));
        Ok(())
    }

    fn back_to_idle(&mut self, qp: u32) {
        self.take_down(qp, true);
        if let Ok(q) = self.qps.get_mut(qp) {
            q.phase = Phase::Idle;
            q.addrs = None;
        }
    }

    pub(super) fn reject(&mut self, req: ConnReq, data: &[u8]) -> Result<(), RnicError> {
        self.check_private_data(data)?;
        let request = self.requests.remove(req.0)?;
        request.id.reject(data).map_err(|e| RnicError::os("rdma_reject", &e))
    }

    /// Not with iWARP, whose TCP has timers of its own.
    fn slow_ack(&self, id: &CmId) {
        if !self.attr.iwarp
            && let Err(e) = id.ack_timeout(ACK_TIMEOUT)
        {
            crate::trace::debug!("{}: RDMA_OPTION_ID_ACK_TIMEOUT: {e}", self.caps.name);
        }
    }

    // ---- what the CM reports ---------------------------------------------------------

    pub(super) fn handle_note(&mut self, (listener, note): Note, now: Time) {
        if let Some(listener) = listener {
            return self.handle_request(listener, note);
        }
        let Some(&qp) = self.by_serial.get(&note.serial) else { return };
        match note.event {
            event::ADDR_RESOLVED => self.addr_resolved(qp, now),
            event::ADDR_ERROR => self.addr_error(qp, note.status, now),
            event::ROUTE_RESOLVED => self.route_resolved(qp),
            event::ESTABLISHED => self.established(qp, note),
            event::REJECTED => self.rejected(qp, note),
            event::ROUTE_ERROR | event::CONNECT_ERROR | event::UNREACHABLE => {
                let errno = if note.status < 0 { -note.status } else { libc::EHOSTUNREACH };
                // The peer's last word of the start-up may not have come, though messages did.
                if !self.begun_and_broken(qp, errno) {
                    self.connect_failed(qp, RnicError::Os { call: "rdma_connect", errno });
                }
            }
            event::DISCONNECTED => self.disconnected(qp, note.status),
            event::DEVICE_REMOVAL => self.device_lost(),
            event::ADDR_CHANGE => {
                // A bond has failed over: whether the path still serves, acknowledgements
                // or keep-alive will tell.
                crate::trace::warn!("{}: the network path of a connection changed", self.caps.name);
            }
            _ => {}
        }
    }

    fn handle_request(&mut self, listener: u32, note: CmNote) {
        let Some(id) = note.request else { return };
        if self.listeners.get(listener).is_err() || self.dead {
            return;
        }
        let (Some(local), Some(peer)) = (id.local_addr(), id.peer_addr()) else { return };
        let request = Request { listener, id, ird: note.ird, ord: note.ord };
        let Ok(req) = self.requests.insert(request) else { return };
        self.events.push_back(RnicEvent::Cm(CmEvent::ConnectRequest {
            listener: Listener(listener),
            req: ConnReq(req),
            peer,
            local,
            private_data: note.private_data,
        }));
    }

    fn addr_resolved(&mut self, qp: u32, now: Time) {
        let device = self.device;
        let Ok(QueuePair { phase, .. }) = self.qps.get_mut(qp) else { return };
        let Phase::Resolving(dial) = std::mem::replace(phase, Phase::Over) else { return };
        let ours = dial.id.as_ref().is_some_and(|id| id.device() == Some(device));
        let routed = dial.id.as_ref().map(|id| id.resolve_route(dial.until.since(now)));
        *phase = Phase::Routing(dial);
        if !ours {
            let call = "the route goes by another device";
            self.connect_failed(qp, RnicError::Os { call, errno: libc::EHOSTUNREACH });
        } else if let Some(Err(e)) = routed {
            self.connect_failed(qp, RnicError::os("rdma_resolve_route", &e));
        }
    }

    fn addr_error(&mut self, qp: u32, status: i32, now: Time) {
        let Ok(QueuePair { phase: Phase::Resolving(dial), .. }) = self.qps.get_mut(qp) else {
            return;
        };
        let left = dial.until.since(now);
        let mut result = Err(std::io::Error::from_raw_os_error(-status.min(-1)));
        if status == -libc::ETIMEDOUT && !left.is_zero() {
            dial.step = (dial.step * 2).min(left);
            if let Some(id) = &dial.id {
                // The source is bound by the first try.
                result = id.resolve_addr(None, dial.addr, dial.step);
            }
        }
        if let Err(e) = result {
            crate::trace::debug!("resolving {} (from {:?}): {e}", dial.addr, dial.bind);
            self.connect_failed(qp, RnicError::os("rdma_resolve_addr", &e));
        }
    }

    fn route_resolved(&mut self, qp: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let Phase::Routing(mut dial) = std::mem::replace(&mut q.phase, Phase::Over) else { return };
        let Some(id) = dial.id.take() else { return };
        let private_data = std::mem::take(&mut dial.private_data);
        let (ird, ord) = (small(dial.ird), small(dial.ord));
        q.addrs = id.local_addr().zip(id.peer_addr());
        q.phase = Phase::Connecting(dial);
        self.slow_ack(&id);
        if let Err((id, e)) = self.equip(qp, id) {
            self.host.disown(&id);
            self.by_serial.remove(&id.serial());
            drop(id);
            return self.connect_failed(qp, e);
        }
        let Ok(QueuePair { hw: Some(hw), .. }) = self.qps.get(qp) else { return };
        let connected = if self.attr.iwarp {
            self.dialer.connect(&hw.id, private_data, ird, ord)
        } else {
            hw.id.connect(&ConnAttr { private_data: &private_data, ird, ord })
        };
        if let Err(e) = connected {
            self.connect_failed(qp, RnicError::os("rdma_connect", &e));
        }
    }

    /// Connects in threads that came to nothing.
    pub(super) fn drain_dials(&mut self) {
        for (serial, e) in self.dialer.take() {
            if let Some(&qp) = self.by_serial.get(&serial)
                && matches!(self.qps.get(qp).map(|q| &q.phase), Ok(Phase::Connecting(_)))
            {
                self.connect_failed(qp, RnicError::os("rdma_connect", &e));
            }
        }
    }

    fn established(&mut self, qp: u32, note: CmNote) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        let (ird, ord) = match &q.phase {
            Phase::Connecting(d) => (d.ird.min(note.ird.into()), d.ord.min(note.ord.into())),
            Phase::Accepting { ird, ord, .. } => (*ird, *ord),
            _ => {
                // A message was faster; an orderly end may have waited for this.
                q.unconfirmed = false;
                return self.maybe_close(qp);
            }
        };
        self.up(qp, note.private_data, ird, ord);
    }

    fn up(&mut self, qp: u32, private_data: Vec<u8>, ird: u32, ord: u32) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        q.phase = Phase::Rts;
        if let Some(Hw { id, .. }) = &q.hw {
            q.addrs = id.local_addr().zip(id.peer_addr()).or(q.addrs);
            if !self.attr.iwarp
                && let Err(e) = id.rnr_timer(RNR_TIMER)
            {
                crate::trace::debug!("{}: IBV_QP_MIN_RNR_TIMER: {e}", self.caps.name);
            }
        }
        self.set_deadline(qp, None);
        let event = CmEvent::Established { qp: Qp(qp), private_data, ord, ird };
        self.events.push_back(RnicEvent::Cm(event));
    }

    /// A message came on a connection whose start-up, as far as the CM told, is not
    /// over: it is. The CM is not told (`rdma_notify`): Linux would then take the peer's last
    /// word (RTU), when it comes, for one too many, and go on sending its own (REP) for a
    /// minute, in which the id cannot be freed. Without being told, it gets the RTU,
    /// if need be as the answer to another REP.
    pub(super) fn established_by_message(&mut self, qp: u32) {
        if let Ok(q) = self.qps.get_mut(qp)
            && let Phase::Accepting { ird, ord, .. } = q.phase
            && q.hw.is_some()
        {
            q.unconfirmed = !self.attr.iwarp;
            self.up(qp, Vec::new(), ird, ord);
        }
    }

    fn rejected(&mut self, qp: u32, note: CmNote) {
        // The peer may have ended it before our last word of the start-up was there.
        if self.begun_and_broken(qp, libc::ECONNRESET) {
            return;
        }
        let said_no = if self.attr.iwarp {
            !note.private_data.is_empty()
        } else {
            note.status == REJ_CONSUMER
        };
        if !said_no {
            let error = RnicError::Os { call: "rdma_connect", errno: libc::ECONNREFUSED };
            return self.connect_failed(qp, error);
        }
        let private_data = note.private_data;
        self.end_attempt(qp, CmEvent::Rejected { qp: Qp(qp), private_data });
    }

    pub(super) fn connect_failed(&mut self, qp: u32, error: RnicError) {
        self.end_attempt(qp, CmEvent::ConnectFailed { qp: Qp(qp), error });
    }

    fn end_attempt(&mut self, qp: u32, event: CmEvent) {
        let state = self.qps.get(qp).map(|q| q.phase.state());
        if !matches!(state, Ok(QpState::Connecting | QpState::Error)) {
            return;
        }
        self.set_deadline(qp, None);
        self.take_down(qp, true);
        self.events.push_back(RnicEvent::Cm(event));
    }
}
