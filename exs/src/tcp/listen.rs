//! The acceptor's side: listeners, start-ups under way, requests that wait.
//!
//! Callers are strangers, so what they may tie up is bounded: start-ups under way
//! (the oldest is dropped), requests that the program has not answered (further
//! callers wait in the kernel), and descriptors (when none is left, the oldest caller
//! gives way whose start-up has taken a second, and if there is none, listening pauses
//! until a descriptor is free; it never spins).

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};

use super::SoftRnic;
use super::dial::mss;
use super::link::{Link, Owner};
use super::qp::Conn;
use super::timers::Source;
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::table::Table;
use crate::rnic::{
    CmEvent, ConnParam, ConnReq, ListenOpts, Listener, Qp, QpState, RnicError, RnicEvent,
};
use crate::sys::{self, Paced};
use crate::time::Time;

/// Start-ups that may be under way at a time, unless told otherwise; fewer where the process
/// may have few descriptors.
pub(super) const GREETINGS: usize = 1024;
/// Connections taken from one listener before others have their turn.
const ACCEPT_STEP: usize = 64;
/// How long to pause when the kernel has no descriptors or memory left.
const STARVED_PAUSE: Duration = Duration::from_millis(100);

/// How long a start-up takes at least before its descriptor is taken for another caller.
const GREETING_GRACE: Duration = Duration::from_secs(1);

fn is_greeting(links: &Table<Link>, id: u32) -> bool {
    links.get(id).is_ok_and(|l| matches!(l.owner, Owner::Greeting(_)))
}

/// A listening socket.
pub(super) struct Listening {
    socket: TcpListener,
    addr: SocketAddr,
    paced: Paced,
    handshake_timeout: Duration,
    /// Requests that may wait for an answer, and those that do.
    max_asking: usize,
    asking: usize,
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
        self.max_greetings = sys::most_strangers(self.max_greetings);
        let id = self.listeners.insert(Listening {
            socket: TcpListener::from_std(socket),
            addr,
            paced,
            handshake_timeout: opts.handshake_timeout,
            max_asking: usize::try_from(opts.backlog).unwrap_or(usize::MAX).max(16),
            asking: 0,
            readable: true,
            queued: false,
        })?;
        let token = self.token(Source::Listener(id));
        let listening = self.listeners.get_mut(id)?;
        if let Err(e) = self.registry.register(&mut listening.socket, token, Interest::READABLE) {
            self.listeners.remove(id)?;
            return Err(RnicError::os("epoll_ctl", &e));
        }
        self.enqueue(Source::Listener(id));
        Ok(Listener(id))
    }

    pub(super) fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.listeners.get(listener.0)?.addr)
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        let mut listening = self.listeners.remove(listener.0)?;
        self.timers.clear(Source::Listener(listener.0));
        self.starved.retain(|l| *l != listener.0);
        let _ = self.registry.deregister(&mut listening.socket);
        let orphan = |owner: Owner| match owner {
            Owner::Greeting(l) | Owner::Asking { listener: l, .. } => l == listener.0,
            _ => false,
        };
        let links: Vec<u32> =
            self.links.iter().filter(|(_, l)| orphan(l.owner)).map(|(id, _)| id).collect();
        for link in links {
            self.drop_link(link, true);
        }
        Ok(())
    }

    /// The reactor saw callers.
    pub(super) fn note_callers(&mut self, id: u32) {
        if let Ok(listening) = self.listeners.get_mut(id) {
            listening.readable = true;
        }
    }

    /// Takes callers in.
    pub(super) fn serve_listener(&mut self, id: u32, now: Time) {
        let Ok(listening) = self.listeners.get_mut(id) else { return };
        listening.queued = false;
        for _ in 0..ACCEPT_STEP {
            let Ok(listening) = self.listeners.get_mut(id) else { return };
            if !listening.readable || listening.asking >= listening.max_asking {
                return;
            }
            match listening.socket.accept() {
                Ok((stream, _)) => self.greet(id, stream, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listening.readable = false;
                    return;
                }
                Err(e) if sys::starved(&e) && self.oldest_gives_way(now) => {}
                Err(e) if sys::starved(&e) => {
                    self.timers.set(Source::Listener(id), now + STARVED_PAUSE);
                    if !self.starved.contains(&id) {
                        self.starved.push(id);
                    }
                    return self.fail_own_callers(
                        id,
                        e.raw_os_error().unwrap_or(libc::EMFILE),
                        now,
                    );
                }
                // The caller is gone already, or so: accept(2) says to go on.
                Err(_) => {}
            }
        }
        self.enqueue(Source::Listener(id));
    }

    /// Callers wait in the kernel until there is a descriptor. One of this very process holds a
    /// descriptor itself and may wait for ever: its connect fails, with what this process lacks.
    fn fail_own_callers(&mut self, id: u32, errno: i32, now: Time) {
        let Ok(listening) = self.listeners.get(id) else { return };
        let at = listening.addr;
        let calls = |l: &Link| {
            let (peer, local) = (l.stream.peer_addr().ok()?, l.stream.local_addr().ok()?);
            let here = peer.port() == at.port() && peer.ip() == local.ip();
            (here && (at.ip().is_unspecified() || at.ip() == peer.ip())).then_some(local)
        };
        let dials =
            |l: &Link| matches!(l.owner, Owner::Qp(_)) && l.engine.state() == QpState::Connecting;
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
            (l.broken, l.reset) = (true, true);
            l.engine.handle_broken(errno);
            self.settle(link, now);
        }
    }

    /// A descriptor came free: listeners that lacked one try again.
    pub(super) fn wake_starved(&mut self) {
        for id in std::mem::take(&mut self.starved) {
            self.timers.clear(Source::Listener(id));
            self.enqueue(Source::Listener(id));
        }
    }

    /// Begins the start-up with a caller.
    fn greet(&mut self, listener: u32, stream: TcpStream, now: Time) {
        let Ok(listening) = self.listeners.get(listener) else { return };
        let (deadline, paced) = (now + listening.handshake_timeout, listening.paced);
        let _ = sys::no_delay(&stream, true);
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) {
            sys::unpaced_within_host(&stream, local, peer, paced);
            sys::roomy_within_host(&stream, local, peer);
        }
        let link = Link::new(stream, IwarpEngine::responder(), Owner::Greeting(listener));
        // Failing to register, the caller is dropped; it will see a reset.
        let Ok(id) = self.add_link(link) else { return };
        self.timers.set(Source::Link(id), deadline);
        self.greetings.push_back((id, now));
        self.forget_greeted();
        if self.greetings.len() > self.max_greetings {
            let links = &self.links;
            self.greetings.retain(|(id, _)| is_greeting(links, *id));
        }
        if self.greetings.len() > self.max_greetings
            && let Some((oldest, _)) = self.greetings.pop_front()
        {
            // Its request may have come in this very turn.
            if let Ok(link) = self.links.get_mut(oldest) {
                link.readable = true;
            }
            self.serve_link(oldest, now);
            if is_greeting(&self.links, oldest) {
                self.drop_link(oldest, true);
            }
        }
    }

    /// Takes those off the front of the list whose start-up is over.
    fn forget_greeted(&mut self) {
        while self.greetings.front().is_some_and(|(id, _)| !is_greeting(&self.links, *id)) {
            self.greetings.pop_front();
        }
    }

    /// There is no descriptor for a caller: one that has said nothing for a while gives its own.
    /// False: there is none such.
    fn oldest_gives_way(&mut self, now: Time) -> bool {
        self.forget_greeted();
        let Some((oldest, since)) = self.greetings.front().copied() else { return false };
        if now < since + GREETING_GRACE {
            return false;
        }
        self.greetings.pop_front();
        self.drop_link(oldest, true);
        true
    }

    /// A caller's request is complete.
    pub(super) fn request_came(&mut self, link: u32, listener: u32, private_data: Vec<u8>) {
        let addrs = match self.links.get(link) {
            Ok(l) => l.stream.peer_addr().and_then(|p| Ok((p, l.stream.local_addr()?))),
            Err(_) => return,
        };
        let (Ok((peer, local)), Ok(req)) = (addrs, self.requests.insert(link)) else {
            return self.drop_link(link, true);
        };
        self.timers.clear(Source::Link(link));
        if let Ok(l) = self.links.get_mut(link) {
            l.owner = Owner::Asking { listener, req };
        }
        if let Ok(listening) = self.listeners.get_mut(listener) {
            listening.asking += 1;
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

    /// Parts a link from its owner; a connection request of it is no more.
    pub(super) fn disown(&mut self, id: u32) {
        let Ok(link) = self.links.get_mut(id) else { return };
        if let Owner::Asking { listener, req } = std::mem::replace(&mut link.owner, Owner::Nobody) {
            let _ = self.requests.remove(req);
            if let Ok(listening) = self.listeners.get_mut(listener) {
                listening.asking -= 1;
                // Room for one more that waits in the kernel.
                self.enqueue(Source::Listener(listener));
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
        self.disown(id);
        let (pair, link) = (self.qps.get_mut(qp.0)?, self.links.get_mut(id)?);
        for buf in std::mem::take(&mut pair.early) {
            // The engine's queue is as deep as the one they came from.
            let posted = link.engine.post_recv(buf);
            debug_assert!(posted.is_ok(), "{posted:?}");
        }
        link.owner = Owner::Qp(qp.0);
        (pair.conn, pair.addrs, pair.timeout) = (Conn::Link(id), Some(addrs), param.timeout);
        self.timers.set(Source::Link(id), now + param.timeout);
        self.enqueue(Source::Link(id));
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
        self.disown(id);
        self.timers.set(Source::Link(id), now + super::serve::FAREWELL_LIMIT);
        self.enqueue(Source::Link(id));
        Ok(())
    }
}
