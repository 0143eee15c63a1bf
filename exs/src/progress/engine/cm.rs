//! Connections: listen, connect, accept, and what the RNICs report of them.

use std::net::{Ipv4Addr, SocketAddr};

use super::post::Ticket;
use super::sock::{Accepts, Request, Sock, State};
use super::{Engine, Error, SockId};
use crate::progress::context::SocketHandle;
use crate::progress::event::{Bufs, EventKind, RawEvent, Readiness};
use crate::rnic::{
    CmEvent, ConnParam, ConnReq, DisconnectCause, ListenOpts, Listener, Qp, RnicError, RnicEvent,
};
use crate::session::{OpError, Session};
use crate::time::Time;
use crate::wire::exs::{Refusal, RefusalCode, VERSIONS};

/// Requests that may wait for room in a full backlog, besides as many as the backlog
/// itself has: a burst is served in time, a flood is refused.
const PATIENCE: usize = 1024;

impl Engine {
    pub(crate) fn bind(&mut self, id: SockId, addr: SocketAddr) -> Result<(), Error> {
        let s = self.fresh(id, "bind")?;
        if s.bound.is_some() {
            return Err(Error::invalid("the socket is bound already"));
        }
        s.bound = Some(addr);
        Ok(())
    }

    fn fresh(&mut self, id: SockId, call: &'static str) -> Result<&mut Sock, Error> {
        let s = self.sock(id)?;
        let errno = match s.state {
            State::Fresh => return Ok(s),
            State::Connecting { .. } => libc::EALREADY,
            State::Listening(_) => libc::EINVAL,
            State::Accepting { .. } | State::Open => libc::EISCONN,
            State::Closed => libc::EBADF,
        };
        Err(Error::State { call, need: "is new", is: s.state.describe(), errno })
    }

    pub(crate) fn listen(&mut self, id: SockId, backlog: u32) -> Result<(), Error> {
        let s = self.fresh(id, "listen")?;
        let addr = s.bound.unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let opts = ListenOpts {
            backlog: backlog.max(1),
            v6_only: s.opts.v6_only,
            handshake_timeout: s.opts.connect_timeout,
        };
        let device = s.device;
        let rnic = &mut self.devices[device].rnic;
        let listener =
            rnic.listen(addr, &opts).map_err(|source| Error::Listen { addr, source })?;
        let bound = rnic.listener_addr(listener)?;
        self.by_listener.insert((device, listener), id.index);
        let s = self.sock(id)?;
        s.state = State::Listening(listener);
        s.bound = Some(bound);
        let backlog = backlog.max(1) as usize;
        s.accepts = Some(Box::new(Accepts { backlog, ..Accepts::default() }));
        Ok(())
    }

    pub(crate) fn connect(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        addr: SocketAddr,
        now: Time,
    ) -> Result<(), Error> {
        let s = self.fresh(id, "connect")?;
        let device = s.device;
        let (opts, bind) = (s.opts.clone(), s.bound);
        let d = &mut self.devices[device];
        let session = Session::initiator(self.socks[id.index as usize].session_config(d.rnic.caps()));
        let qp = d.create_qp(super::MAX_SEND_WR)?;
        let hello = session.hello();
        let param = ConnParam {
            private_data: &hello,
            ird: d.rnic.caps().max_ird,
            ord: d.rnic.caps().max_ord,
            timeout: opts.connect_timeout,
            crc: opts.crc,
            no_delay: opts.no_delay,
            bind,
        };
        if let Err(source) = d.rnic.connect(qp, addr, &param, now) {
            // It was just made: there is nothing to go wrong.
            let _ = d.rnic.destroy_qp(qp);
            return Err(Error::Connect { addr, source });
        }
        let op = self.book(id, ticket, EventKind::Connect, Bufs::None);
        self.by_qp.insert((device, qp), id.index);
        let s = self.sock(id)?;
        s.state = State::Connecting { op, addr };
        s.session = Some(Box::new(session));
        s.qp = Some(qp);
        self.mark(id.index);
        Ok(())
    }

    pub(crate) fn accept(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        now: Time,
    ) -> Result<(), Error> {
        let s = self.sock(id)?;
        if s.accepts.is_none() || s.state == State::Closed {
            let is = s.state.describe();
            let errno = libc::EINVAL;
            return Err(Error::State { call: "accept", need: "is listening", is, errno });
        }
        let op = self.book(id, ticket, EventKind::Accept, Bufs::None);
        if let Some(a) = &mut self.sock(id)?.accepts {
            a.ops.push_back(op);
        }
        self.match_accepts(id.index, now);
        Ok(())
    }

    /// Hands established connections to waiting `accept`s.
    fn match_accepts(&mut self, index: u32, now: Time) {
        loop {
            let Some(a) = &mut self.socks[index as usize].accepts else { return };
            if a.ops.is_empty() || a.ready.is_empty() {
                break;
            }
            let (Some(op), Some(child)) = (a.ops.pop_front(), a.ready.pop_front()) else { return };
            let Some(op) = self.ops.remove(op) else { continue };
            let peer = match self.sock(child) {
                Ok(s) => s.addrs.map(|(_, peer)| peer),
                Err(_) => continue,
            };
            let Some(context) = self.me.upgrade() else { return };
            if let Ok(s) = self.sock(child) {
                s.held = true;
            }
            let mut event = RawEvent::new(op.token, EventKind::Accept);
            let handle = SocketHandle::new(context, child);
            event.accepted = peer.map(|p| (handle, p));
            self.deliver(op, event);
        }
        // There may be room now for requests that wait.
        loop {
            let device = self.socks[index as usize].device;
            let Some(a) = &mut self.socks[index as usize].accepts else { return };
            if a.starting + a.ready.len() >= a.backlog {
                break;
            }
            let Some(r) = a.waiting.pop_front() else { break };
            self.take_request(device, index, r, now);
        }
        self.mark(index);
    }

    pub(crate) fn addrs(
        &self,
        id: SockId,
    ) -> Option<(Option<SocketAddr>, Option<SocketAddr>)> {
        let s = self.sock_ref(id)?;
        Some((s.addrs.map(|a| a.0).or(s.bound), s.addrs.map(|a| a.1)))
    }

    // ---- what the RNIC reports -------------------------------------------------

    pub(super) fn handle_event(&mut self, device: usize, event: RnicEvent, now: Time) {
        let RnicEvent::Cm(event) = event else { return };
        match event {
            CmEvent::ConnectRequest { listener, req, peer, local, private_data } => {
                let request = Request { req, peer, local, private_data };
                self.handle_request(device, listener, request, now);
            }
            CmEvent::Established { qp, private_data, ord, .. } => {
                self.handle_established(device, qp, &private_data, ord, now);
            }
            CmEvent::Rejected { qp, private_data } => {
                if let Some((id, addr)) = self.connecting(device, qp) {
                    let source = Session::refusal(&private_data);
                    self.connect_failed(id, Error::Refused { addr, source });
                }
            }
            CmEvent::ConnectFailed { qp, error } => {
                if let Some((id, addr)) = self.connecting(device, qp) {
                    self.connect_failed(id, Error::Connect { addr, source: error });
                } else {
                    self.handle_disconnected(device, qp, DisconnectCause::Aborted, now);
                }
            }
            CmEvent::Disconnected { qp, cause } => {
                // All completions first: those before the end, and the flushed.
                self.reap_completions(device, now);
                self.handle_disconnected(device, qp, cause, now);
            }
        }
    }

    fn connecting(&self, device: usize, qp: Qp) -> Option<(SockId, SocketAddr)> {
        let index = *self.by_qp.get(&(device, qp))?;
        match self.socks[index as usize].state {
            State::Connecting { addr, .. } => Some((self.id(index), addr)),
            _ => None,
        }
    }

    /// A connect came to nothing: the socket is as before it.
    pub(super) fn connect_failed(&mut self, id: SockId, error: Error) {
        let Ok(s) = self.sock(id) else { return };
        let State::Connecting { op, .. } = s.state else { return };
        s.state = State::Fresh;
        let polls = std::mem::take(&mut s.polls);
        self.drop_session(id.index);
        self.complete(op, Err(error));
        // Whoever polls waits for this connection: it is not to be.
        let ready = Readiness { readable: true, writable: true, error: true };
        for (poll, _) in polls {
            self.complete_poll(poll, ready);
        }
        self.mark(id.index);
    }

    fn handle_request(&mut self, device: usize, listener: Listener, r: Request, now: Time) {
        let Some(&parent) = self.by_listener.get(&(device, listener)) else {
            let closed = Refusal { code: RefusalCode::Closed, versions: VERSIONS };
            return self.reject(device, r.req, &closed.emit(), now);
        };
        let Some(a) = &mut self.socks[parent as usize].accepts else { return };
        if a.starting + a.ready.len() < a.backlog {
            self.take_request(device, parent, r, now);
        } else if a.waiting.len() < a.backlog + PATIENCE {
            a.waiting.push_back(r);
        } else {
            let full = Refusal { code: RefusalCode::BacklogFull, versions: VERSIONS };
            self.reject(device, r.req, &full.emit(), now);
        }
    }

    fn take_request(&mut self, device: usize, parent: u32, r: Request, now: Time) {
        let p = &self.socks[parent as usize];
        let (kind, opts) = (p.kind, p.opts.clone());
        let parent_id = self.id(parent);
        let child = self.new_socket(kind, opts);
        let caps = self.devices[device].rnic.caps();
        let cfg = self.socks[child.index as usize].session_config(caps);
        let (session, reply) = match Session::responder(cfg, &r.private_data) {
            Ok(both) => both,
            Err(refusal) => {
                crate::trace::debug!("{} refused: {}", r.peer, refusal.error);
                self.socks.remove(child.index as usize);
                return self.reject(device, r.req, &refusal.private_data, now);
            }
        };
        match self.start_child(device, &r, &reply, child, now) {
            Ok(qp) => {
                self.by_qp.insert((device, qp), child.index);
                let s = &mut self.socks[child.index as usize];
                s.state = State::Accepting { parent: parent_id };
                s.addrs = Some((r.local, r.peer));
                s.bound = Some(r.local);
                (s.session, s.qp, s.device) = (Some(Box::new(session)), Some(qp), device);
                s.held = false;
                if let Some(a) = &mut self.socks[parent as usize].accepts {
                    a.starting += 1;
                }
            }
            Err(e) => {
                crate::trace::warn!("cannot take the connection of {}: {e}", r.peer);
                self.socks.remove(child.index as usize);
                let busy = Refusal { code: RefusalCode::Busy, versions: VERSIONS };
                self.reject(device, r.req, &busy.emit(), now);
            }
        }
    }

    fn start_child(
        &mut self,
        device: usize,
        r: &Request,
        reply: &[u8],
        child: SockId,
        now: Time,
    ) -> Result<Qp, RnicError> {
        let opts = &self.socks[child.index as usize].opts;
        let (timeout, crc, no_delay) = (opts.connect_timeout, opts.crc, opts.no_delay);
        let d = &mut self.devices[device];
        let qp = d.create_qp(super::MAX_SEND_WR)?;
        let (ird, ord) = (d.rnic.caps().max_ird, d.rnic.caps().max_ord);
        let param =
            ConnParam { private_data: reply, ird, ord, timeout, crc, no_delay, bind: None };
        if let Err(e) = d.rnic.accept(r.req, qp, &param, now) {
            // It was just made: there is nothing to go wrong.
            let _ = d.rnic.destroy_qp(qp);
            return Err(e);
        }
        Ok(qp)
    }

    fn reject(&mut self, device: usize, req: ConnReq, private_data: &[u8], now: Time) {
        // Fails only if the peer has hung up meanwhile.
        let _ = self.devices[device].rnic.reject(req, private_data, now);
    }

    fn handle_established(
        &mut self,
        device: usize,
        qp: Qp,
        private_data: &[u8],
        ord: u32,
        now: Time,
    ) {
        let Some(&index) = self.by_qp.get(&(device, qp)) else { return };
        let id = self.id(index);
        let addrs = self.devices[device].rnic.addrs(qp).ok();
        let s = &mut self.socks[index as usize];
        s.addrs = addrs.or(s.addrs);
        let greeted = match s.session.as_mut() {
            Some(session) => session.handle_established(now, private_data, ord),
            None => return,
        };
        match (s.state.clone(), greeted) {
            (State::Connecting { op, .. }, Ok(())) => {
                s.state = State::Open;
                self.complete(op, Ok(()));
            }
            (State::Connecting { addr, .. }, Err(source)) => {
                self.connect_failed(id, Error::Refused { addr, source });
            }
            (State::Accepting { parent }, Ok(())) => {
                s.state = State::Open;
                self.child_ready(parent, id, now);
            }
            (State::Accepting { .. }, Err(_)) => {
                self.handle_disconnected(device, qp, DisconnectCause::Aborted, now);
            }
            _ => {}
        }
        self.mark(index);
    }

    fn child_ready(&mut self, parent: SockId, child: SockId, now: Time) {
        let listening = match self.sock(parent) {
            Ok(p) => p.accepts.as_mut().map(|a| {
                a.starting = a.starting.saturating_sub(1);
                a.ready.push_back(child);
            }),
            Err(_) => None,
        };
        if listening.is_some() {
            self.match_accepts(parent.index, now);
            self.check_polls(parent.index);
        } else {
            // The listener went away meanwhile.
            self.released.socket(child);
        }
    }

    fn handle_disconnected(&mut self, device: usize, qp: Qp, cause: DisconnectCause, now: Time) {
        let Some(&index) = self.by_qp.get(&(device, qp)) else { return };
        let s = &mut self.socks[index as usize];
        match s.state.clone() {
            State::Accepting { parent } => {
                if let Ok(p) = self.sock(parent)
                    && let Some(a) = &mut p.accepts
                {
                    a.starting = a.starting.saturating_sub(1);
                }
                self.socks[index as usize].state = State::Closed;
                self.drop_session(index);
                // Its place in the backlog is free for a caller that waits.
                if self.sock_ref(parent).is_some() {
                    self.match_accepts(parent.index, now);
                }
            }
            State::Connecting { addr, .. } => {
                let source = RnicError::Os { call: "connect", errno: libc::ECONNRESET };
                let id = self.id(index);
                self.connect_failed(id, Error::Connect { addr, source });
            }
            _ => {
                if let Some(session) = s.session.as_mut() {
                    session.handle_disconnected(now, cause);
                }
            }
        }
        self.mark(index);
    }

    /// The listening side of `close`.
    pub(super) fn end_listening(&mut self, id: SockId, now: Time) {
        let Ok(s) = self.sock(id) else { return };
        let State::Listening(listener) = s.state else { return };
        let (device, accepts) = (s.device, s.accepts.take());
        self.by_listener.remove(&(device, listener));
        // It exists: there is nothing to go wrong.
        let _ = self.devices[device].rnic.close_listener(listener);
        let Some(accepts) = accepts else { return };
        let closed = Refusal { code: RefusalCode::Closed, versions: VERSIONS };
        for r in accepts.waiting {
            self.reject(device, r.req, &closed.emit(), now);
        }
        for op in accepts.ops {
            self.complete(op, Err(Error::Op(OpError::Cancelled)));
        }
        for child in accepts.ready {
            self.release_socket(child, now);
        }
    }
}
