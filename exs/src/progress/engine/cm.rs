//! Connection management: `bind`, `accept`, and the events that the RNICs report about connections.

use std::net::SocketAddr;

use super::accepts::{AcceptOp, Admission, Arrival, Parent, Request};
use super::binding::Binding;
use super::connection::ConnectionFacts;
use super::device::Device;
use super::domain::Place;
use super::holder::Holder;
use super::post::Ticket;
use super::sock::State;
use super::spread::Parcel;
use super::startups::StartupId;
use super::{Engine, Error, SockId};
use crate::progress::event::{Bufs, EventKind};
use crate::progress::grouping::{Grouping, ServedBy};
use crate::progress::handle::SocketHandle;
use crate::progress::options::Options;
use crate::progress::route::Route;
use crate::progress::shards::Shard;
use crate::rnic::{
    CmEvent, ConnParam, DisconnectCause, GroupRule, Listener, Qp, RnicError, RnicEvent, TakesGroups,
};
use crate::session::Session;
use crate::time::Time;
use crate::trace::{debug, info};
use crate::wire::exs::{Refusal, RefusalCode, SocketKind, VERSIONS};

/// When the backlog is full, as many requests may wait as it is long, and this many more. They
/// absorb a burst; the engine refuses a flood.
pub(super) const PATIENCE: usize = 1024;

impl Device {
    /// Makes the queue pair of a connection, and accepts the request.
    fn start_child(
        &mut self,
        domain: u32,
        (child, opts): (SockId, &Options),
        r: &Request,
        reply: &[u8],
        now: Time,
    ) -> Result<Qp, RnicError> {
        let (timeout, crc, no_delay) = (opts.connect_timeout, opts.crc, opts.no_delay);
        let qp = self.create_qp(domain, child.index)?;
        let (ird, ord) = (self.rnic.caps().max_ird, self.rnic.caps().max_ord);
        let param = ConnParam {
            private_data: reply,
            ird,
            ord,
            timeout,
            crc,
            no_delay,
            bind: None,
            path: opts.path.checked(),
            grouping: GroupRule::default(),
        };
        if let Err(e) = self.rnic.accept(r.req, qp, &param, now) {
            self.destroy_qp(domain, qp);
            return Err(e);
        }
        Ok(qp)
    }
}

impl Engine {
    /// Posts an accept. Its connection will live in the shard `home`.
    pub(crate) fn accept(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        home: Shard,
        now: Time,
    ) -> Result<(), Error> {
        let s = self.sockets.find(id)?;
        let Some(accepts) = s.accepts.as_ref().filter(|_| s.state == State::Listening) else {
            let is = s.state.describe();
            let errno = libc::EINVAL;
            return Err(Error::State { call: "accept", need: "is listening", is, errno });
        };
        if accepts.on.is_empty() && accepts.ready.is_empty() {
            let why = "the RDMA devices that the socket listened on were removed".to_owned();
            return Err(Error::NoDevice { why });
        }
        let op = self.book(id, ticket, EventKind::Accept, Bufs::None);
        let here = self.neighbours.here();
        // Event loops of several shards would say one thing and the other in turn.
        let accepts = self.sockets.find(id)?.accepts.as_ref();
        let spreads =
            ticket.served_by == ServedBy::EventLoop && accepts.is_some_and(|a| a.spreads(here));
        let takes = match ticket.group_use().takes() {
            TakesGroups::Yes if home != here || spreads => TakesGroups::No,
            takes => takes,
        };
        self.tell_groups(id, takes);
        if let Some(a) = &mut self.sockets.find(id)?.accepts {
            a.post(AcceptOp { op, home });
        }
        self.rest_listener(id, false);
        self.match_accepts(id.index, now);
        Ok(())
    }

    /// Tells the devices of a listener, or of a branch, which link groups its accepts allow now.
    pub(super) fn tell_groups(&mut self, id: SockId, takes: TakesGroups) {
        let Some(s) = self.sockets.get_mut(id) else { return };
        let Some(a) = &mut s.accepts else { return };
        let unable = a.hands_over || s.opts.link_group == Grouping::Off;
        let groups = if unable { TakesGroups::No } else { takes };
        if a.groups.replace(groups) == Some(groups) {
            return;
        }
        for (place, listener) in &a.on {
            self.devices[place.device].rnic.take_groups(*listener, groups);
        }
    }

    /// Hands established connections to the accepts that wait for them.
    pub(super) fn match_accepts(&mut self, index: u32, now: Time) {
        loop {
            let here = self.neighbours.here();
            let Some(a) = &mut self.sockets[index].accepts else { return };
            let Some((op, arrival)) = a.next_pair(here) else { break };
            let accepted = self.hand_out_arrival(arrival);
            self.serve_accept(op, accepted);
        }
        match self.sockets[index].is_branch() {
            true => self.pass_surplus(index),
            false => self.offer_to_branches(index),
        }
        // The backlog may have room now for requests that wait.
        loop {
            let Some(a) = &mut self.sockets[index].accepts else { return };
            if !a.has_room() {
                break;
            }
            let Some((device, r)) = a.waiting.pop_front() else { break };
            self.take_request(device, index, r, now);
        }
        self.sockets.mark(index);
    }

    /// The program's handle to an established connection, and the peer's address.
    fn hand_out(&mut self, child: SockId) -> Option<(SocketHandle, SocketAddr)> {
        let context = self.released.context()?;
        let s = self.sockets.find(child).ok()?;
        let peer = s.facts.peer()?;
        let taken = s.holder.hand_out();
        Some((SocketHandle::accepted(context, child, taken), peer))
    }

    /// The program's handle to a connection that waits at a listener, and the peer's address. None: the
    /// connection has ended.
    pub(super) fn hand_out_arrival(
        &mut self,
        arrival: Arrival,
    ) -> Option<(SocketHandle, SocketAddr)> {
        match arrival {
            Arrival::Here(child) => self.hand_out(child),
            Arrival::There(handle, peer) => Some((handle, peer)),
        }
    }

    // ---- events of the RNICs ---------------------------------------------------

    pub(super) fn handle_event(&mut self, device: usize, event: RnicEvent, now: Time) {
        let event = match event {
            RnicEvent::Cm(event) => event,
            RnicEvent::CqReady(_) => return,
            RnicEvent::EndLoan(qp) => {
                if let Some(index) = self.sockets.of_qp(device, qp) {
                    self.recall_at(index, now);
                }
                return;
            }
            RnicEvent::DeviceRemoved => return self.drop_device(device),
            RnicEvent::Starved(starved) => {
                return self.neighbours.spread_starvation(device, &starved);
            }
        };
        match event {
            CmEvent::ConnectRequest { listener, req, peer, local, private_data } => {
                let request = Request { req, peer, local, private_data };
                self.handle_request(device, listener, request, now);
            }
            CmEvent::Established { qp, private_data, ord, .. } => {
                self.handle_established(device, qp, &private_data, ord, now);
            }
            CmEvent::Rejected { qp, private_data } => {
                if let Some((id, addr)) = self.sockets.connecting(device, qp) {
                    self.attempt_refused(id, addr, Session::refusal(&private_data), now);
                }
            }
            CmEvent::ConnectFailed { qp, error } => {
                if let Some((id, _)) = self.sockets.connecting(device, qp) {
                    self.attempt_failed(id, error, now);
                } else {
                    self.handle_disconnected(device, qp, DisconnectCause::Aborted, now);
                }
            }
            CmEvent::Disconnected { qp, cause } => {
                if cause == DisconnectCause::DeviceRemoved {
                    self.drop_device(device);
                }
                // Completions first: those from before the end, and those of the flushed WRs.
                self.reap_completions(device, now);
                self.handle_disconnected(device, qp, cause, now);
            }
        }
    }

    fn handle_request(&mut self, device: usize, listener: Listener, r: Request, now: Time) {
        let Some(parent) = self.sockets.of_listener(device, listener) else {
            let closed = Refusal { code: RefusalCode::Closed, versions: VERSIONS };
            return self.devices[device].reject(r.req, &closed.emit(), now);
        };
        self.admit_request(device, parent, r, now);
    }

    /// A request finds its place in the backlog, waits for one, goes to the listener of its branch, or
    /// is refused.
    pub(super) fn admit_request(&mut self, device: usize, parent: u32, r: Request, now: Time) {
        let Some(a) = &mut self.sockets[parent].accepts else { return };
        match a.admission() {
            Admission::Starts => self.take_request(device, parent, r, now),
            Admission::Passes => {
                // If the connection is established where no accept waits, it goes to the listener.
                if let Some(r) = self.pass_request(device, parent, r) {
                    self.take_request(device, parent, r, now);
                }
            }
            Admission::Waits => {
                a.waiting.push_back((device, r));
                self.make_room(parent, now);
                // Marks the listener, which sets its timer. If no other event comes, the timer takes
                // the places of start-ups that are late by then.
                self.sockets.mark(parent);
            }
            Admission::Refused => {
                let full = Refusal { code: RefusalCode::BacklogFull, versions: VERSIONS };
                self.devices[device].reject(r.req, &full.emit(), now);
            }
        }
    }

    fn take_request(&mut self, device: usize, parent: u32, r: Request, now: Time) {
        let Some(r) = self.spread_request(device, parent, r, now) else { return };
        let p = &self.sockets[parent];
        let (kind, opts) = (p.kind, p.opts.clone());
        // The connection joins the domain that its listener joined. The listener's options may have
        // changed since.
        let on = p.accepts.as_ref().map_or(&[][..], |a| &a.on);
        let domain = on.iter().find(|(place, _)| place.device == device);
        let place = domain.map_or(Place { device, domain: u32::MAX }, |(place, _)| *place);
        let listener = self.sockets.id(parent);
        if let Some(child) = self.begin_child(place, Parent::Here(listener), (kind, opts), &r, now)
            && let Some(a) = &mut self.sockets[parent].accepts
        {
            a.starting.begin(StartupId::Here(child), now);
        }
    }

    /// Begins the start-up of a listener's connection. None: the engine has refused it.
    pub(super) fn begin_child(
        &mut self,
        place: Place,
        parent: Parent,
        (kind, opts): (SocketKind, Options),
        r: &Request,
        now: Time,
    ) -> Option<SockId> {
        let device = place.device;
        let child = self.sockets.open(kind, opts);
        let caps = self.devices[device].rnic.caps();
        let cfg = self.sockets[child.index].session_config(caps);
        let (mut session, reply) = match Session::responder(cfg, &r.private_data) {
            Ok(both) => both,
            Err(refusal) => {
                crate::trace::debug!("{} refused: {}", r.peer, refusal.error);
                self.sockets.remove(child.index);
                self.devices[device].reject(r.req, &refusal.private_data, now);
                return None;
            }
        };
        let begins = (child, &self.sockets[child.index].opts);
        match self.devices[device].start_child(place.domain, begins, r, &reply, now) {
            Ok(qp) => {
                self.sockets.add_qp(device, qp, child.index);
                let d = &self.devices[device];
                let (transport, name) = (d.transport, d.name().to_owned());
                let reason = "the peer came by it".to_owned();
                let route = Route { transport, device: name, reason };
                let here = self.neighbours.here().index();
                let name = format_args!("{here}.{child}");
                let facts = ConnectionFacts::of_request(name, (r.local, r.peer), route);
                facts.log_route(|route| info!("{} connects by {route}", r.peer));
                let s = &mut self.sockets[child.index];
                session.set_span(facts.span());
                (s.state, s.facts) = (State::Accepting { parent }, facts);
                (s.holder, s.binding) = (Holder::ENGINE, Binding::at(Some(r.local)));
                (s.session, s.qp, s.place) = (Some(Box::new(session)), Some(qp), place);
                Some(child)
            }
            Err(e) => {
                crate::trace::warn!("cannot take the connection of {}: {e}", r.peer);
                self.sockets.remove(child.index);
                let busy = Refusal { code: RefusalCode::Busy, versions: VERSIONS };
                self.devices[device].reject(r.req, &busy.emit(), now);
                None
            }
        }
    }

    fn handle_established(
        &mut self,
        device: usize,
        qp: Qp,
        private_data: &[u8],
        ord: u32,
        now: Time,
    ) {
        let Some(index) = self.sockets.of_qp(device, qp) else { return };
        let id = self.sockets.id(index);
        let addrs = self.devices[device].rnic.addrs(qp).ok();
        let s = &mut self.sockets[index];
        if let Some(addrs) = addrs {
            s.facts.set_addrs(addrs);
        }
        let same = addrs.is_some_and(|(local, peer)| local.ip() == peer.ip());
        let near = same || self.devices[device].rnic.caps().within_host;
        let greeted = match s.session.as_mut() {
            Some(session) => session.handle_established(now, private_data, ord, near),
            None => return,
        };
        match (s.state.clone(), greeted) {
            (State::Connecting { op, .. }, Ok(())) => self.connected(index, op, now),
            (State::Connecting { addr, .. }, Err(source)) => {
                self.connect_failed(id, Error::Refused { addr, cause: source }, now);
            }
            (State::Accepting { parent, .. }, Ok(())) => {
                s.state = State::Open;
                s.facts.log_established();
                self.child_ready(parent, id, now);
            }
            (State::Accepting { .. }, Err(_)) => {
                self.handle_disconnected(device, qp, DisconnectCause::Aborted, now);
            }
            _ => {}
        }
        self.sockets.mark(index);
    }

    fn child_ready(&mut self, parent: Parent, child: SockId, now: Time) {
        match parent {
            Parent::Here(listener) => {
                let arrival = Arrival::Here(child);
                if !self.arrive(listener, StartupId::Here(child), arrival, now) {
                    // The listener was closed during the start-up.
                    self.reset_untaken(child, now);
                }
            }
            Parent::There { shard, listener, startup } => {
                if let Some((handle, peer)) = self.hand_out(child) {
                    self.neighbours.send(shard, Parcel::Ready { listener, startup, handle, peer });
                }
            }
        }
    }

    /// A start-up has succeeded. False: its listener is gone.
    pub(super) fn arrive(
        &mut self,
        listener: SockId,
        startup: StartupId,
        arrival: Arrival,
        now: Time,
    ) -> bool {
        let Some(a) = self.sockets.find(listener).ok().and_then(|p| p.accepts.as_mut()) else {
            return false;
        };
        a.starting.end(startup);
        a.came = a.came.wrapping_add(1);
        let kept = self.offer_where_it_lives(listener.index, arrival);
        if let Some(a) = &mut self.sockets[listener.index].accepts {
            a.ready.extend(kept);
        }
        self.match_accepts(listener.index, now);
        self.check_polls(listener.index);
        self.delivery.news.check(listener.index, &mut self.sockets[listener.index]);
        true
    }

    /// A start-up has failed. Its place in the backlog goes to a peer that waits.
    pub(super) fn startup_failed(&mut self, listener: SockId, startup: StartupId, now: Time) {
        if let Ok(p) = self.sockets.find(listener)
            && let Some(a) = &mut p.accepts
        {
            a.starting.end(startup);
            self.match_accepts(listener.index, now);
        }
    }

    fn handle_disconnected(&mut self, device: usize, qp: Qp, cause: DisconnectCause, now: Time) {
        let Some(index) = self.sockets.of_qp(device, qp) else { return };
        let s = &mut self.sockets[index];
        s.facts.log(|| debug!("the link has ended: {cause:?}"));
        match s.state.clone() {
            State::Accepting { parent, .. } => {
                let child = self.sockets.id(index);
                self.sockets[index].state = State::Closed;
                self.drop_session(index);
                match parent {
                    Parent::Here(listener) => {
                        self.startup_failed(listener, StartupId::Here(child), now);
                    }
                    Parent::There { shard, listener, startup } => {
                        self.neighbours.send(shard, Parcel::Failed { listener, startup });
                    }
                }
            }
            State::Connecting { .. } => {
                let errno = match cause {
                    DisconnectCause::DeviceRemoved => libc::ENODEV,
                    _ => libc::ECONNRESET,
                };
                let source = RnicError::Os { call: "connect", errno };
                self.attempt_failed(self.sockets.id(index), source, now);
            }
            _ => {
                if let Some(session) = s.session.as_mut() {
                    session.handle_disconnected(now, cause);
                }
            }
        }
        self.sockets.mark(index);
    }
}
