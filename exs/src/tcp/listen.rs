//! The listening side: listeners, start-ups, requests that wait for the program.
//!
//! A connecting peer is not trusted, so everything that it can tie up is limited:
//! - Start-ups: the oldest is dropped for one more.
//! - Requests that the program has not answered: further peers wait in the kernel.
//! - Descriptors. When none is left, the oldest start-up is dropped if it has taken a second. If
//!   there is none, listening pauses until a descriptor is free; it never spins.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};

use super::SoftRnic;
use super::dial::mss;
use super::link::{Inbound, SoftLink, SoftLinkOwner};
use super::qp::SoftConn;
use super::timers::SoftSource;
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::table::IdTable;
use crate::rnic::{
    CmEvent, ConnParam, ConnReq, ListenOpts, Listener, Qp, QpState, RnicError, RnicEvent,
};
use crate::sys::{self, Paced};
use crate::time::Time;

/// Start-ups at a time, unless the user sets another limit. Fewer where the process may have few
/// descriptors.
pub(super) const MAX_STARTUPS: usize = 1024;
/// Connections accepted from one listener before others have their turn.
const ACCEPT_STEP: usize = 64;
/// Pause when the kernel has no descriptors or memory left.
const STARVED_PAUSE: Duration = Duration::from_millis(100);

/// Time that a start-up has before its descriptor may be taken for another peer.
const STARTUP_GRACE: Duration = Duration::from_secs(1);

fn is_starting_up(links: &IdTable<SoftLink>, id: u32) -> bool {
    links.get(id).is_ok_and(|l| matches!(l.owner, SoftLinkOwner::Startup(_)))
}

/// A listening socket.
pub(super) struct SoftListener {
    socket: TcpListener,
    addr: SocketAddr,
    paced: Paced,
    handshake_timeout: Duration,
    /// Requests that may wait for the program's answer, and those that do.
    max_requests: usize,
    open_requests: usize,
    /// Connections may wait in the kernel.
    readable: bool,
    /// On the ready list.
    pub(super) queued: bool,
}

impl SoftRnic {
    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        let socket = sys::listen(&addr, opts.backlog.max(1), opts.v6_only)
            .map_err(|e| RnicError::os("listen", &e))?;
        let addr = socket.local_addr().map_err(|e| RnicError::os("getsockname", &e))?;
        let paced = sys::unpaced_listener(&socket);
        self.max_startups = sys::most_strangers(self.max_startups);
        let id = self.listeners.insert(SoftListener {
            socket: TcpListener::from_std(socket),
            addr,
            paced,
            handshake_timeout: opts.handshake_timeout,
            max_requests: usize::try_from(opts.backlog).unwrap_or(usize::MAX).max(16),
            open_requests: 0,
            readable: true,
            queued: false,
        })?;
        let token = self.token(SoftSource::Listener(id));
        let listening = self.listeners.get_mut(id)?;
        if let Err(e) = self.registry.register(&mut listening.socket, token, Interest::READABLE) {
            self.listeners.remove(id)?;
            return Err(RnicError::os("epoll_ctl", &e));
        }
        self.enqueue(SoftSource::Listener(id));
        Ok(Listener(id))
    }

    pub(super) fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.listeners.get(listener.0)?.addr)
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        let mut listening = self.listeners.remove(listener.0)?;
        self.timers.clear(SoftSource::Listener(listener.0));
        self.listeners_without_fds.retain(|l| *l != listener.0);
        let _ = self.registry.deregister(&mut listening.socket);
        let orphan = |owner: SoftLinkOwner| match owner {
            SoftLinkOwner::Startup(l) => l == listener.0,
            SoftLinkOwner::Request { listener: l, .. } => l == Some(listener.0),
            _ => false,
        };
        let links: Vec<u32> =
            self.links.iter().filter(|(_, l)| orphan(l.owner)).map(|(id, _)| id).collect();
        for link in links {
            self.drop_link(link, true);
        }
        Ok(())
    }

    /// The reactor saw connections.
    pub(super) fn note_readable(&mut self, id: u32) {
        if let Ok(listening) = self.listeners.get_mut(id) {
            listening.readable = true;
        }
    }

    /// Accepts connections.
    pub(super) fn serve_listener(&mut self, id: u32, now: Time) {
        let Ok(listening) = self.listeners.get_mut(id) else { return };
        listening.queued = false;
        for _ in 0..ACCEPT_STEP {
            let Ok(listening) = self.listeners.get_mut(id) else { return };
            if !listening.readable || listening.open_requests >= listening.max_requests {
                return;
            }
            match listening.socket.accept() {
                Ok((stream, _)) => self.begin_startup(id, stream, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listening.readable = false;
                    return;
                }
                Err(e) if sys::starved(&e) && self.drop_oldest_startup(now) => {}
                Err(e) if sys::starved(&e) => {
                    self.timers.set(SoftSource::Listener(id), now + STARVED_PAUSE);
                    if !self.listeners_without_fds.contains(&id) {
                        self.listeners_without_fds.push(id);
                    }
                    return self.fail_own_calls(id, e.raw_os_error().unwrap_or(libc::EMFILE), now);
                }
                // The peer has gone already, or so: accept(2) says to go on.
                Err(_) => {}
            }
        }
        self.enqueue(SoftSource::Listener(id));
    }

    /// Fails connection attempts of this very process to a paused listener. Each holds a descriptor,
    /// so it might wait for ever. They fail with the listener's error.
    fn fail_own_calls(&mut self, id: u32, errno: i32, now: Time) {
        let Ok(listening) = self.listeners.get(id) else { return };
        let at = listening.addr;
        let calls = |l: &SoftLink| {
            let (peer, local) = (l.stream.peer_addr().ok()?, l.stream.local_addr().ok()?);
            let here = peer.port() == at.port() && peer.ip() == local.ip();
            (here && (at.ip().is_unspecified() || at.ip() == peer.ip())).then_some(local)
        };
        let dials = |l: &SoftLink| {
            matches!(l.owner, SoftLinkOwner::Qp(_)) && l.engine.state() == QpState::Connecting
        };
        let own: Vec<(u32, SocketAddr)> = self
            .links
            .iter()
            .filter(|(_, l)| dials(l))
            .filter_map(|(link, l)| Some((link, calls(l)?)))
            .collect();
        if own.is_empty() {
            return;
        }
        let taken: HashSet<SocketAddr> =
            self.links.iter().filter_map(|(_, l)| l.stream.peer_addr().ok()).collect();
        for (link, _) in own.into_iter().filter(|(_, local)| !taken.contains(local)) {
            let Ok(l) = self.links.get_mut(link) else { continue };
            (l.inbound, l.reset_on_close) = (Inbound::Broken, true);
            l.engine.handle_broken(errno);
            self.finish_turn(link, now);
        }
    }

    /// A descriptor was freed: listeners that wait for one try again.
    pub(super) fn wake_waiting_for_fds(&mut self) {
        for id in std::mem::take(&mut self.listeners_without_fds) {
            self.timers.clear(SoftSource::Listener(id));
            self.enqueue(SoftSource::Listener(id));
        }
    }

    /// Begins the start-up with a connecting peer.
    fn begin_startup(&mut self, listener: u32, stream: TcpStream, now: Time) {
        let Ok(listening) = self.listeners.get(listener) else { return };
        let (deadline, paced) = (now + listening.handshake_timeout, listening.paced);
        let _ = sys::no_delay(&stream, true);
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) {
            sys::unpaced_within_host(&stream, local, peer, paced);
            sys::roomy_within_host(&stream, local, peer);
        }
        let link =
            SoftLink::new(stream, IwarpEngine::responder(), SoftLinkOwner::Startup(listener));
        // If the registration fails, the peer is dropped and sees a reset.
        let Ok(id) = self.add_link(link) else { return };
        self.timers.set(SoftSource::Link(id), deadline);
        self.startups.push_back((id, now));
        self.forget_finished_startups();
        if self.startups.len() > self.max_startups {
            let links = &self.links;
            self.startups.retain(|(id, _)| is_starting_up(links, *id));
        }
        if self.startups.len() > self.max_startups
            && let Some((oldest, _)) = self.startups.pop_front()
        {
            // Its request may have come in this very turn.
            if let Ok(link) = self.links.get_mut(oldest) {
                link.readable = true;
            }
            self.serve_link(oldest, now);
            if is_starting_up(&self.links, oldest) {
                self.drop_link(oldest, true);
            }
        }
    }

    /// Removes start-ups that are over from the front of the list.
    fn forget_finished_startups(&mut self) {
        while self.startups.front().is_some_and(|(id, _)| !is_starting_up(&self.links, *id)) {
            self.startups.pop_front();
        }
    }

    /// Frees the descriptor of the oldest start-up. False if it has not taken `STARTUP_GRACE` yet, or if
    /// there is none.
    fn drop_oldest_startup(&mut self, now: Time) -> bool {
        self.forget_finished_startups();
        let Some((oldest, since)) = self.startups.front().copied() else { return false };
        if now < since + STARTUP_GRACE {
            return false;
        }
        self.startups.pop_front();
        self.drop_link(oldest, true);
        true
    }

    /// Reports a connection request that has come completely.
    pub(super) fn add_request(&mut self, link: u32, listener: u32, private_data: Vec<u8>) {
        let addrs = match self.links.get(link) {
            Ok(l) => l.stream.peer_addr().and_then(|p| Ok((p, l.stream.local_addr()?))),
            Err(_) => return,
        };
        let (Ok((peer, local)), Ok(req)) = (addrs, self.requests.insert(link)) else {
            return self.drop_link(link, true);
        };
        self.timers.clear(SoftSource::Link(link));
        if let Ok(l) = self.links.get_mut(link) {
            l.owner = SoftLinkOwner::Request { listener: Some(listener), req };
        }
        if let Ok(listening) = self.listeners.get_mut(listener) {
            listening.open_requests += 1;
        }
        let (listener, req) = (Listener(listener), ConnReq(req));
        self.events.push_back(RnicEvent::Cm(CmEvent::ConnectRequest {
            listener,
            req,
            peer,
            local,
            private_data,
        }));
    }

    /// Parts a link from its owner, and ends its connection request, if it has one.
    pub(super) fn release_request(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        if let SoftLinkOwner::Request { listener, req } =
            std::mem::replace(&mut link.owner, SoftLinkOwner::Unowned)
        {
            let _ = self.requests.remove(req);
            if let Some(listener) = listener
                && let Ok(listening) = self.listeners.get_mut(listener)
            {
                listening.open_requests -= 1;
                // The listener may take one more connection from the kernel.
                self.enqueue(SoftSource::Listener(listener));
            }
        }
    }

    pub(super) fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        let id = *self.requests.get(req.0)?;
        if self.qp_state(qp)? != QpState::Init {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private(param.private_data)?;
        let config = self.config(qp, param)?;
        let link = self.links.get_mut(id)?;
        let addrs = link
            .stream
            .local_addr()
            .and_then(|local| Ok((local, link.stream.peer_addr()?)))
            .map_err(|e| RnicError::os("getpeername", &e))?;
        let _ = sys::no_delay(&link.stream, param.no_delay);
        let config = Config { mss: mss(&link.stream), ..config };
        link.engine.accept(config, param.private_data)?;
        self.release_request(id);
        let (pair, link) = (self.qps.get_mut(qp.0)?, self.links.get_mut(id)?);
        for buf in std::mem::take(&mut pair.early_recvs) {
            // The engine's queue is as deep as the queue pair's.
            let posted = link.engine.post_recv(buf);
            debug_assert!(posted.is_ok(), "{posted:?}");
        }
        link.owner = SoftLinkOwner::Qp(qp.0);
        (pair.conn, pair.addrs, pair.timeout) = (SoftConn::Link(id), Some(addrs), param.timeout);
        self.timers.set(SoftSource::Link(id), now + param.timeout);
        self.enqueue(SoftSource::Link(id));
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        req: ConnReq,
        private_data: &[u8],
        now: Time,
    ) -> Result<(), RnicError> {
        let id = *self.requests.get(req.0)?;
        self.check_private(private_data)?;
        let link = self.links.get_mut(id)?;
        link.engine.reject(private_data)?;
        self.release_request(id);
        self.timers.set(SoftSource::Link(id), now + super::serve::LAST_BYTES_LIMIT);
        self.enqueue(SoftSource::Link(id));
        Ok(())
    }
}
