//! The listening side: listeners, start-ups, requests that wait for the program.
//!
//! A connecting peer is not trusted, so everything that it can tie up is limited:
//! - Start-ups (`startups`).
//! - Requests that the program has not answered: further peers wait in the kernel.
//! - Descriptors. When none is left, an old start-up is dropped. If there is none, listening pauses
//!   until a descriptor is free; it never spins.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::Driver;
use super::link::{Acceptor, Conn, LinkOwner, LinkSetup};
use super::share::{ListenPort, PortShare};
use super::startups::{PendingStartups, PlaceForStartup};
use super::turns::Source;
use crate::rnic::table::IdTable;
use crate::rnic::{
    AttemptNumber, CmEvent, ConnParam, ConnReq, ListenOpts, Listener, Qp, RnicError, RnicEvent,
    StarvedListener,
};
use crate::sys;
use crate::time::Time;

/// Pause when the kernel has no descriptors or memory left.
pub(crate) const STARVED_PAUSE: Duration = Duration::from_millis(100);

/// A listener.
pub(crate) struct ListenerState<A> {
    pub(crate) acceptor: A,
    pub(crate) addr: SocketAddr,
    /// Time that a peer has for its request.
    pub(crate) handshake_timeout: Duration,
    /// Requests that may wait for the program's answer, and those that do.
    pub(super) max_requests: usize,
    open_requests: usize,
    /// Connections may wait in the kernel.
    pub(super) readable: bool,
    /// On the ready list.
    queued: bool,
    /// Other RNICs that listen at the port.
    pub(super) share: PortShare,
    /// The kernel could not register the listener with the reactor, which should watch it.
    pub(super) unwatched: bool,
}

/// All listeners, and the connections that have come to them.
pub(crate) struct Listening<A> {
    pub(crate) listeners: IdTable<ListenerState<A>>,
    /// Connection requests that wait for the program's answer: the numbers of their links.
    requests: IdTable<u32>,
    startups: PendingStartups,
    /// Connections accepted so far.
    accepted: u64,
    /// Listeners that wait for a free descriptor.
    without_fds: Vec<u32>,
}

impl<A> Listening<A> {
    pub(super) fn new() -> Listening<A> {
        Listening {
            listeners: IdTable::new("listener"),
            requests: IdTable::new("connection request"),
            startups: PendingStartups::default(),
            accepted: 0,
            without_fds: Vec::new(),
        }
    }

    /// The mark of a listener that it is on the ready list.
    pub(super) fn queued(&mut self, id: u32) -> Option<&mut bool> {
        self.listeners.get_mut(id).ok().map(|l| &mut l.queued)
    }

    /// The reactor saw connections.
    pub(crate) fn note_readable(&mut self, id: u32) {
        if let Ok(listening) = self.listeners.get_mut(id) {
            listening.readable = true;
        }
    }
}

impl<L: LinkSetup> Driver<L> {
    /// Limits the start-ups of connecting peers at a time (1024 if never called). Further peers wait
    /// in the kernel.
    #[cfg(any(test, feature = "internals"))]
    pub fn limit_startups(&mut self, max: usize) {
        self.listening.startups.limit(|_| max);
    }

    pub(super) fn add_listener(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        let (acceptor, addr) = L::open(self, addr, opts)?;
        let max_requests = usize::try_from(opts.backlog).unwrap_or(usize::MAX).max(16);
        let port =
            ListenPort { acceptor, addr, handshake_timeout: opts.handshake_timeout, max_requests };
        self.add_listener_at(port, PortShare::Alone)
    }

    /// Listens at a port that was opened.
    pub(super) fn add_listener_at(
        &mut self,
        port: ListenPort<L::Acceptor>,
        share: PortShare,
    ) -> Result<Listener, RnicError> {
        let ListenPort { acceptor, addr, handshake_timeout, max_requests } = port;
        self.listening.startups.limit(sys::most_strangers);
        let id = self.listening.listeners.insert(ListenerState {
            acceptor,
            addr,
            handshake_timeout,
            max_requests,
            open_requests: 0,
            readable: true,
            queued: false,
            share,
            unwatched: false,
        })?;
        let listening = self.listening.listeners.get_mut(id)?;
        if let Err(e) = listening.acceptor.watch(&self.reactor, Source::Listener(id)) {
            self.drop_listener(Listener(id))?;
            return Err(e);
        }
        self.enqueue(Source::Listener(id));
        Ok(Listener(id))
    }

    pub(super) fn drop_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        let mut listening = self.listening.listeners.remove(listener.0)?;
        self.turns.timers.clear(Source::Listener(listener.0));
        self.listening.without_fds.retain(|l| *l != listener.0);
        self.listening.startups.held.retain(|l| *l != listener.0);
        listening.acceptor.forget(&self.reactor);
        let orphan = |owner: LinkOwner| match owner {
            LinkOwner::Startup(l) => l == listener.0,
            LinkOwner::Request { listener: l, .. } => l == Some(listener.0),
            LinkOwner::Qp(_) | LinkOwner::Unowned => false,
        };
        let links = self.links.iter().filter(|(_, l)| orphan(l.base().owner));
        let links: Vec<u32> = links.map(|(id, _)| id).collect();
        for link in links {
            self.cut_link(link);
        }
        L::close_openings(self, listener.0);
        Ok(())
    }

    /// Accepts connections.
    pub(super) fn serve_listener(&mut self, id: u32, now: Time) {
        let before = self.listening.accepted;
        self.accept_peers(id, now);
        self.end_turn(id, self.listening.accepted > before, now);
    }

    fn accept_peers(&mut self, id: u32, now: Time) {
        let Ok(listening) = self.listening.listeners.get_mut(id) else { return };
        listening.queued = false;
        let step = listening.share.accept_step();
        L::retry_openings(self);
        for accepted in 0..step {
            let Ok(listening) = self.listening.listeners.get_mut(id) else { return };
            if !listening.readable || listening.open_requests >= listening.max_requests {
                return;
            }
            // After the second connection of a turn the next is mostly there, and accept(2) tells it,
            // too. But no start-up gives up its place for a peer that is not there.
            let looks = accepted < 2 || self.listening.startups.may_be_full();
            if looks && !listening.acceptor.has_peer() {
                listening.readable = false;
                return;
            }
            if !self.find_place(id, now) {
                return;
            }
            let Ok(listening) = self.listening.listeners.get_mut(id) else { return };
            let upcoming = AttemptNumber::upcoming();
            match listening.acceptor.accept() {
                Ok(peer) => {
                    self.listening.accepted += 1;
                    self.setups.note(Source::Listener(id));
                    L::begin_startup(self, id, peer, now);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listening.readable = false;
                    return;
                }
                Err(e) if sys::starved(&e) && self.drop_overdue_startup(now) => {}
                Err(e) if sys::starved(&e) => {
                    return self.pause_listener(id, &e, upcoming, now);
                }
                // The peer has gone already, or so: accept(2) says to go on.
                Err(_) => {}
            }
        }
        self.enqueue(Source::Listener(id));
    }

    /// Looks whether a listener has a connection. None: it does not accept now.
    pub(super) fn try_accept(&mut self, id: u32, now: Time) -> Option<bool> {
        let listening = self.listening.listeners.get_mut(id).ok()?;
        if listening.readable || listening.open_requests >= listening.max_requests {
            return None;
        }
        if !listening.acceptor.has_peer() {
            return Some(false);
        }
        listening.readable = true;
        let before = self.listening.accepted;
        self.serve_listener(id, now);
        Some(self.listening.accepted > before)
    }

    /// Pauses a listener for which the kernel has no descriptors or memory left. `before`: the next
    /// attempt, before the kernel was asked.
    pub(crate) fn pause_listener(
        &mut self,
        id: u32,
        e: &io::Error,
        before: AttemptNumber,
        now: Time,
    ) {
        self.turns.timers.set(Source::Listener(id), now + STARVED_PAUSE);
        if !self.listening.without_fds.contains(&id) {
            self.listening.without_fds.push(id);
        }
        let Ok(listening) = self.listening.listeners.get(id) else { return };
        let (at, errno) = (listening.addr, e.raw_os_error().unwrap_or(libc::EMFILE));
        let starved = StarvedListener { at, errno, taken: L::accepted_peers(self), before };
        L::fail_attempts(self, &starved, now);
        self.reports.events.push_back(RnicEvent::Starved(starved));
    }

    /// A descriptor was freed: everything that waits for one tries again.
    pub(crate) fn wake_waiting_for_fds(&mut self) {
        L::retry_openings(self);
        for id in std::mem::take(&mut self.listening.without_fds) {
            self.turns.timers.clear(Source::Listener(id));
            self.enqueue(Source::Listener(id));
        }
    }

    /// Looks for a place for one more start-up. False if there is none: the listener gets its turn
    /// again when there may be one.
    fn find_place(&mut self, listener: u32, now: Time) -> bool {
        loop {
            let mut startups = std::mem::take(&mut self.listening.startups);
            let place = startups.place(now, |id| L::is_starting(self, id));
            self.listening.startups = startups;
            match place {
                PlaceForStartup::Free => return true,
                PlaceForStartup::Of(oldest) => {
                    // Its request may have come in this very turn.
                    L::serve_startup(self, oldest, now);
                    if L::is_starting(self, oldest) {
                        L::drop_startup(self, oldest);
                    }
                }
                PlaceForStartup::NotBefore(due) => {
                    self.turns.timers.set(Source::Listener(listener), due);
                    let held = &mut self.listening.startups.held;
                    if !held.contains(&listener) {
                        held.push(listener);
                    }
                    return false;
                }
            }
        }
    }

    /// Notes a start-up.
    pub(crate) fn add_startup(&mut self, id: u32, now: Time) {
        self.listening.startups.add(id, now);
    }

    /// A start-up is over: listeners that wait for its place get their turn.
    pub(crate) fn startup_over(&mut self) {
        for id in std::mem::take(&mut self.listening.startups.held) {
            self.turns.timers.clear(Source::Listener(id));
            self.enqueue(Source::Listener(id));
        }
    }

    /// Frees the descriptor of the oldest start-up. False if none is old enough.
    fn drop_overdue_startup(&mut self, now: Time) -> bool {
        let mut startups = std::mem::take(&mut self.listening.startups);
        let overdue = startups.take_overdue(now, |id| L::is_starting(self, id));
        self.listening.startups = startups;
        overdue.map(|id| L::drop_startup(self, id)).is_some()
    }

    /// Makes a request of a link that has read one. `listener`: None if another RNIC accepted it.
    ///
    /// # Errors
    /// There are too many requests. The caller must close the link.
    pub(crate) fn add_request(
        &mut self,
        id: u32,
        listener: Option<u32>,
    ) -> Result<ConnReq, RnicError> {
        let req = self.listening.requests.insert(id)?;
        self.turns.timers.clear(Source::Link(id));
        self.links.get_mut(id)?.base_mut().owner = LinkOwner::Request { listener, req };
        self.startup_over();
        if let Some(listener) = listener
            && let Ok(listening) = self.listening.listeners.get_mut(listener)
        {
            listening.open_requests += 1;
        }
        Ok(ConnReq(req))
    }

    /// Makes a request of a link, and reports it. `addrs`: ours, and the peer's. A link for which
    /// there is no room is closed.
    pub(crate) fn report_request(
        &mut self,
        id: u32,
        listener: u32,
        addrs: (SocketAddr, SocketAddr),
        private_data: Vec<u8>,
    ) {
        let Ok(req) = self.add_request(id, Some(listener)) else { return self.cut_link(id) };
        let (listener, (local, peer)) = (Listener(listener), addrs);
        self.emit(CmEvent::ConnectRequest { listener, req, peer, local, private_data });
    }

    /// Parts a link from its owner, and ends its connection request, if it has one.
    pub(crate) fn release_request(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        match std::mem::replace(&mut link.base_mut().owner, LinkOwner::Unowned) {
            LinkOwner::Request { listener, req } => {
                let _ = self.listening.requests.remove(req);
                if let Some(listener) = listener
                    && let Ok(listening) = self.listening.listeners.get_mut(listener)
                {
                    let full = listening.open_requests >= listening.max_requests;
                    listening.open_requests -= 1;
                    if full {
                        // It takes one more connection from the kernel.
                        self.enqueue(Source::Listener(listener));
                    }
                }
            }
            LinkOwner::Startup(_) => self.startup_over(),
            LinkOwner::Qp(_) | LinkOwner::Unowned => {}
        }
    }

    /// The link of a request.
    pub(super) fn requested(&self, req: ConnReq) -> Result<u32, RnicError> {
        self.listening.requests.get(req.0).copied()
    }

    pub(super) fn check_private(&self, private_data: &[u8]) -> Result<(), RnicError> {
        let (asked, limit) = (private_data.len(), self.caps.max_private_data);
        if asked <= limit {
            return Ok(());
        }
        let (asked, limit) = (asked as u64, limit as u64);
        Err(RnicError::Limit { what: "bytes of private data", asked, limit })
    }

    pub(super) fn accept_request(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        let id = self.requested(req)?;
        self.check_init(qp)?;
        self.check_private(param.private_data)?;
        let (addrs, limit) = L::answer(self, id, qp, param)?;
        self.release_request(id);
        self.links.get_mut(id)?.base_mut().owner = LinkOwner::Qp(qp.0);
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.addrs, pair.timeout) = (Conn::Link(id), Some(addrs), param.timeout);
        self.turns.timers.set(Source::Link(id), now + limit);
        L::answered(self, id, now);
        Ok(())
    }

    pub(super) fn reject_request(
        &mut self,
        req: ConnReq,
        private_data: &[u8],
        now: Time,
    ) -> Result<(), RnicError> {
        let id = self.requested(req)?;
        self.check_private(private_data)?;
        L::refuse(self, id, private_data, now)
    }

    pub(super) fn dial(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.check_init(qp)?;
        self.check_private(param.private_data)?;
        let conn = L::dial(self, qp, addr, param, now)?;
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.timeout) = (conn, param.timeout);
        Ok(())
    }

    /// Puts a link into the table and registers it with the reactor.
    ///
    /// # Errors
    /// It cannot. The link is closed.
    pub(crate) fn add_link(&mut self, link: L) -> Result<u32, RnicError> {
        let id = self.links.insert(link)?;
        match self.watch_link(id) {
            Ok(()) => Ok(id),
            Err(e) => {
                self.links.remove(id)?;
                Err(e)
            }
        }
    }

    /// Registers a link with the reactor.
    pub(crate) fn watch_link(&mut self, id: u32) -> Result<(), RnicError> {
        self.links.get_mut(id)?.watch(&self.reactor, Source::Link(id))
    }

    /// Closes a link.
    pub(crate) fn drop_link(&mut self, id: u32) {
        self.release_request(id);
        let Ok(mut link) = self.links.remove(id) else { return };
        self.turns.timers.clear(Source::Link(id));
        link.forget(&self.reactor);
        L::closed(self, id, link);
        self.wake_waiting_for_fds();
    }

    /// Closes a link without order.
    pub(crate) fn cut_link(&mut self, id: u32) {
        if let Ok(link) = self.links.get_mut(id) {
            link.abort();
        }
        self.drop_link(id);
    }
}
