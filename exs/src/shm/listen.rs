//! The listening side: names, connecting peers, requests that wait for the program.
//!
//! A connecting peer is not trusted, so everything that it can tie up is limited:
//! - Peers whose HELLO has not come: the oldest is dropped for one more.
//! - Requests that the program has not answered: further peers wait in the kernel.
//! - The time from ACCEPT to READY.
//! - Descriptors. When none is left, the oldest peer without a HELLO is dropped if it has waited for
//!   a second. If there is none, listening pauses.
//!
//! A listener does not believe what a peer says of itself: the addresses in its HELLO must belong
//! to this listener and this host.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::ShmRnic;
use super::control::{ControlMessage, MAX_MESSAGE, canonical, name, of_family};
use super::dial::is_here;
use super::link::{LinkOwner, LinkPhase, ShmLink};
use super::qp::ShmConn;
use super::ring::Mem;
use super::serve::ShmSource;
use crate::rnic::{CmEvent, ConnParam, ConnReq, ListenOpts, Listener, Qp, QpState, RnicError};
use crate::sys::{
    self, ForeignFd, PeerCred, PeerListener, PeerSocket, accept_unix, listen_abstract, peer_cred,
    recv_with_fds,
};
use crate::time::Time;

/// Peers whose HELLO may be awaited at a time. Fewer where the process may have few descriptors.
pub(super) const MAX_PENDING_PEERS: usize = 1024;
/// Connections accepted from one listener before others have their turn.
const ACCEPT_STEP: usize = 64;
/// Pause when the kernel has no descriptors or memory left.
const STARVED_PAUSE: Duration = Duration::from_millis(100);
/// Time that a peer has for its HELLO before its descriptor may be taken for another peer.
const HELLO_GRACE: Duration = Duration::from_secs(1);
/// Time from ACCEPT to READY. The peer is on this host, and holds a place in the backlog meanwhile.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// Peers that may wait in the kernel. A peer that finds the backlog full tries again.
const BACKLOG: u32 = 4096;

/// A listener. It has one socket, or two if it takes IPv6 and IPv4.
pub(super) struct ShmListener {
    socks: Vec<PeerListener>,
    addr: SocketAddr,
    /// Holds the TCP port; None if another device of this process does.
    _port: Option<OwnedFd>,
    v6_only: bool,
    handshake_timeout: Duration,
    max_pending_peers: usize,
    /// Requests that may wait for the program's answer, and those that do.
    max_requests: usize,
    open_requests: usize,
    /// Connections may wait in the kernel.
    readable: bool,
    /// On the ready list.
    pub(super) queued: bool,
}

impl ShmListener {
    /// True if a peer that connected to this address can have reached this listener.
    fn accepts_address(&self, called: SocketAddr) -> bool {
        let (ours, called) = (canonical(self.addr), canonical(called));
        if ours.port() != called.port() {
            return false;
        }
        if !ours.ip().is_unspecified() {
            return ours.ip() == called.ip();
        }
        let family = ours.is_ipv6() == called.is_ipv6() || (ours.is_ipv6() && !self.v6_only);
        family && is_here(called).is_ok()
    }
}

/// A connecting peer whose HELLO has not come.
pub(super) struct PendingPeer {
    sock: PeerSocket,
    listener: u32,
    cred: PeerCred,
    /// On the ready list.
    pub(super) queued: bool,
}

/// The names of a listener.
fn names(addr: SocketAddr, v6_only: bool) -> Vec<Vec<u8>> {
    let scope = match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) => a.scope_id(),
    };
    let port = addr.port();
    match (addr.ip().is_unspecified(), addr.is_ipv6()) {
        (false, v6) => vec![name(Some(addr.ip()), v6, scope, port)],
        (true, false) => vec![name(None, false, 0, port)],
        (true, true) if v6_only => vec![name(None, true, 0, port)],
        (true, true) => vec![name(None, true, 0, port), name(None, false, 0, port)],
    }
}

impl ShmRnic {
    pub(super) fn listen(
        &mut self,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<Listener, RnicError> {
        let mut addr = addr;
        let mut port = None;
        if !opts.port_held {
            let held =
                sys::hold_port(&addr, opts.v6_only).map_err(|e| RnicError::os("bind", &e))?;
            let held = TcpListener::from(held);
            addr = held.local_addr().map_err(|e| RnicError::os("getsockname", &e))?;
            port = Some(held.into());
        }
        let mut socks = Vec::new();
        for name in names(canonical(addr), opts.v6_only) {
            let sock = listen_abstract(&name, BACKLOG)
                .map_err(|e| RnicError::os("bind of the abstract name", &e))?;
            socks.push(sock);
        }
        let raw: Vec<_> = socks.iter().map(|sock| sock.as_fd().as_raw_fd()).collect();
        let id = self.listeners.insert(ShmListener {
            socks,
            addr,
            _port: port,
            v6_only: opts.v6_only,
            handshake_timeout: opts.handshake_timeout,
            max_pending_peers: sys::most_strangers(self.max_pending_peers),
            max_requests: usize::try_from(opts.backlog).unwrap_or(usize::MAX).max(16),
            open_requests: 0,
            readable: true,
            queued: false,
        })?;
        let token = self.token(ShmSource::Listener(id));
        for fd in &raw {
            let interest = mio::Interest::READABLE;
            if let Err(e) = self.registry.register(&mut mio::unix::SourceFd(fd), token, interest) {
                let _ = self.close_listener(Listener(id));
                return Err(RnicError::os("epoll_ctl", &e));
            }
        }
        self.enqueue(ShmSource::Listener(id));
        Ok(Listener(id))
    }

    pub(super) fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.listeners.get(listener.0)?.addr)
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        let listening = self.listeners.remove(listener.0)?;
        self.timers.clear(ShmSource::Listener(listener.0));
        self.listeners_without_fds.retain(|l| *l != listener.0);
        for sock in &listening.socks {
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&sock.as_fd().as_raw_fd()));
        }
        let ours = Some(listener.0);
        let of = |o: LinkOwner| matches!(o, LinkOwner::Request { listener: l, .. } if l == ours);
        let links: Vec<u32> =
            self.links.iter().filter(|(_, l)| of(l.owner)).map(|(id, _)| id).collect();
        for link in links {
            self.drop_link(link);
        }
        let pending_peers: Vec<u32> = self
            .pending_peers
            .iter()
            .filter(|(_, s)| s.listener == listener.0)
            .map(|(id, _)| id)
            .collect();
        for pending in pending_peers {
            self.drop_pending_peer(pending);
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
        self.retry_peers_without_fds();
        for _ in 0..ACCEPT_STEP {
            let Ok(listening) = self.listeners.get_mut(id) else { return };
            if !listening.readable || listening.open_requests >= listening.max_requests {
                return;
            }
            match accept_any(&listening.socks) {
                Ok(sock) => self.add_pending_peer(id, sock, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listening.readable = false;
                    return;
                }
                Err(e) if sys::starved(&e) && self.drop_oldest_pending_peer(now) => {}
                Err(e) if sys::starved(&e) => return self.pause(id, &e, now),
                // The peer has gone already, or so: accept(2) says to go on.
                Err(_) => {}
            }
        }
        self.enqueue(ShmSource::Listener(id));
    }

    /// Pauses a listener for which the kernel has no descriptors or memory left.
    fn pause(&mut self, id: u32, e: &io::Error, now: Time) {
        self.timers.set(ShmSource::Listener(id), now + STARVED_PAUSE);
        if !self.listeners_without_fds.contains(&id) {
            self.listeners_without_fds.push(id);
        }
        self.fail_own_calls(id, e.raw_os_error().unwrap_or(libc::EMFILE));
    }

    /// Fails connection attempts of this very process to a paused listener. They hold descriptors, so
    /// they might wait for ever. They fail with the listener's error.
    fn fail_own_calls(&mut self, id: u32, errno: i32) {
        let Ok(listening) = self.listeners.get(id) else { return };
        let at = canonical(listening.addr);
        let calls = |l: &ShmLink| {
            let called = canonical(l.addrs.1);
            let there = at.ip().is_unspecified() || at.ip() == called.ip();
            there && at.port() == called.port() && l.phase == LinkPhase::Greeting && l.mem.is_ours()
        };
        // Attempts whose HELLO was read have a link at this end, too.
        let heard = |caller: SocketAddr| {
            let from = |l: &ShmLink| !l.mem.is_ours() && canonical(l.addrs.1) == canonical(caller);
            self.links.iter().any(|(_, l)| from(l))
        };
        let own: Vec<u32> = self
            .links
            .iter()
            .filter(|(_, l)| calls(l) && !heard(l.addrs.0))
            .map(|(link, _)| link)
            .collect();
        for link in own {
            self.fail_attempt(link, RnicError::Os { call: "accept of the caller", errno });
        }
    }

    /// Reads again the HELLOs that waited for a descriptor.
    fn retry_peers_without_fds(&mut self) {
        for id in std::mem::take(&mut self.peers_without_fds) {
            self.enqueue(ShmSource::PendingPeer(id));
        }
    }

    /// A descriptor was freed: everything that waits for one tries again.
    pub(super) fn wake_waiting_for_fds(&mut self) {
        self.retry_peers_without_fds();
        for id in std::mem::take(&mut self.listeners_without_fds) {
            self.timers.clear(ShmSource::Listener(id));
            self.enqueue(ShmSource::Listener(id));
        }
    }

    fn add_pending_peer(&mut self, listener: u32, sock: PeerSocket, now: Time) {
        let Ok(listening) = self.listeners.get(listener) else { return };
        let (deadline, most) = (now + listening.handshake_timeout, listening.max_pending_peers);
        let Ok(cred) = peer_cred(sock.as_fd()) else { return };
        let raw = sock.as_fd().as_raw_fd();
        let Ok(id) = self.pending_peers.insert(PendingPeer { sock, listener, cred, queued: false })
        else {
            return;
        };
        let token = self.token(ShmSource::PendingPeer(id));
        let interest = mio::Interest::READABLE;
        if self.registry.register(&mut mio::unix::SourceFd(&raw), token, interest).is_err() {
            return self.drop_pending_peer(id);
        }
        self.timers.set(ShmSource::PendingPeer(id), deadline);
        // Its HELLO has mostly come before the connection was accepted.
        self.enqueue(ShmSource::PendingPeer(id));
        self.awaiting_hello.push_back((id, now));
        if self.awaiting_hello.len() > most {
            let pending_peers = &self.pending_peers;
            self.awaiting_hello.retain(|(id, _)| pending_peers.get(*id).is_ok());
        }
        if self.awaiting_hello.len() > most
            && let Some((oldest, _)) = self.awaiting_hello.pop_front()
        {
            // Its HELLO may have come in this very turn.
            self.serve_pending_peer(oldest, now);
            self.drop_pending_peer(oldest);
        }
    }

    /// Frees the descriptor of the oldest peer whose HELLO has not come. False if that peer has not
    /// waited for `HELLO_GRACE` yet, or if there is none.
    fn drop_oldest_pending_peer(&mut self, now: Time) -> bool {
        while self
            .awaiting_hello
            .front()
            .is_some_and(|(id, _)| self.pending_peers.get(*id).is_err())
        {
            self.awaiting_hello.pop_front();
        }
        let Some((oldest, since)) = self.awaiting_hello.front().copied() else { return false };
        if now < since + HELLO_GRACE {
            return false;
        }
        self.awaiting_hello.pop_front();
        self.drop_pending_peer(oldest);
        true
    }

    pub(super) fn drop_pending_peer(&mut self, id: u32) {
        let Ok(pending) = self.pending_peers.remove(id) else { return };
        self.timers.clear(ShmSource::PendingPeer(id));
        let raw = pending.sock.as_fd().as_raw_fd();
        let _ = self.registry.deregister(&mut mio::unix::SourceFd(&raw));
        drop(pending);
        self.wake_waiting_for_fds();
    }

    /// Reads the HELLO of a peer, if it has come.
    pub(super) fn serve_pending_peer(&mut self, id: u32, now: Time) {
        let Ok(pending) = self.pending_peers.get_mut(id) else { return };
        pending.queued = false;
        // A HELLO brings a descriptor. The kernel discards it if this process can have no more.
        if let Err(e) = pending.sock.as_fd().try_clone_to_owned() {
            let listener = pending.listener;
            self.peers_without_fds.push(id);
            return self.pause(listener, &e, now);
        }
        let mut buf = [0; MAX_MESSAGE];
        let (n, fds) = match recv_with_fds(pending.sock.as_fd(), &mut buf) {
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.drop_pending_peer(id),
        };
        let hello = ControlMessage::parse(&buf[..n]);
        if self.request(id, hello, &fds.unwrap_or_default(), now).is_none() {
            self.drop_pending_peer(id);
        }
    }

    /// Makes a request of a HELLO. None if the HELLO is invalid or cannot be true.
    fn request(
        &mut self,
        id: u32,
        hello: Option<ControlMessage>,
        fds: &[ForeignFd],
        _: Time,
    ) -> Option<()> {
        let ControlMessage::Hello { called, caller, ird, ord, private_data } = hello? else {
            return None;
        };
        let pending = self.pending_peers.get(id).ok()?;
        let (listener, cred) = (pending.listener, pending.cred);
        let listening = self.listeners.get(listener).ok()?;
        if !listening.accepts_address(called) || is_here(caller).is_err() {
            return None;
        }
        let [memfd] = fds else { return None };
        let (called, caller) =
            (of_family(called, &listening.addr), of_family(caller, &listening.addr));
        let mem = Mem::open(memfd.as_fd()).ok()?;
        let PendingPeer { sock, .. } = self.pending_peers.remove(id).ok()?;
        self.timers.clear(ShmSource::PendingPeer(id));
        let _ = self.registry.deregister(&mut mio::unix::SourceFd(&sock.as_fd().as_raw_fd()));
        let owner = LinkOwner::Request { listener: None, req: 0 };
        let mut link = ShmLink::new(Some(sock), mem, owner, (called, caller));
        (link.cred, link.ord, link.ird) = (cred, ord, ird);
        let Ok(req) = self.add_request(Box::new(link), Some(listener)) else { return Some(()) };
        if let Ok(listening) = self.listeners.get_mut(listener) {
            listening.open_requests += 1;
        }
        let (listener, peer, local) = (Listener(listener), caller, called);
        self.emit(CmEvent::ConnectRequest { listener, req, peer, local, private_data });
        Some(())
    }

    /// Puts the link of a request into the tables, and registers it with the reactor. If it cannot,
    /// the link is closed.
    pub(super) fn add_request(
        &mut self,
        link: Box<ShmLink>,
        listener: Option<u32>,
    ) -> Result<ConnReq, RnicError> {
        let id = self.links.insert(link)?;
        let req = match self.watch(id).and_then(|()| self.requests.insert(id)) {
            Ok(req) => req,
            Err(e) => {
                self.drop_link(id);
                return Err(e);
            }
        };
        self.links.get_mut(id)?.owner = LinkOwner::Request { listener, req };
        Ok(ConnReq(req))
    }

    /// Ends the request that a link stands for, if it is one.
    pub(super) fn release_request(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        if let LinkOwner::Request { listener, req } = link.owner {
            let _ = self.requests.remove(req);
            if let Some(listener) = listener
                && let Ok(listening) = self.listeners.get_mut(listener)
            {
                listening.open_requests = listening.open_requests.saturating_sub(1);
                // The listener may take one more connection from the kernel.
                self.enqueue(ShmSource::Listener(listener));
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
        self.release_request(id);
        let uid = self.trusting.then_some(self.uid);
        let (max_ord, max_ird) = (self.caps.max_ord, self.caps.max_ird);
        let link = self.links.get_mut(id)?;
        link.owner = LinkOwner::Qp(qp.0);
        // The peer's own limits: READs that it issues, that it answers.
        let (their_ord, their_ird) = (link.ord, link.ird);
        let (ord, ird) = (param.ord.min(max_ord), param.ird.min(max_ird));
        (link.ord, link.ird) = (ord.min(their_ird), ird.min(their_ord));
        link.set_peer(link.cred, uid);
        let private_data = param.private_data.to_vec();
        link.enter(LinkPhase::Accepted);
        // If the peer has gone meanwhile, its socket will show that.
        link.send_control(&ControlMessage::Accept { ird, ord, private_data }, &[]);
        let addrs = link.addrs;
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.addrs, pair.timeout) = (ShmConn::Link(id), Some(addrs), param.timeout);
        self.timers.set(ShmSource::Link(id), now + param.timeout.min(READY_LIMIT));
        self.enqueue(ShmSource::Link(id));
        Ok(())
    }

    pub(super) fn reject(&mut self, req: ConnReq, private_data: &[u8]) -> Result<(), RnicError> {
        let id = *self.requests.get(req.0)?;
        self.check_private(private_data)?;
        let reject = ControlMessage::Reject { private_data: private_data.to_vec() };
        self.links.get(id)?.send_control(&reject, &[]);
        self.drop_link(id);
        Ok(())
    }
}

/// Accepts a connection from any of these sockets. `WouldBlock` if there is none on any; another
/// error if one occurred and no socket had a connection.
fn accept_any(socks: &[PeerListener]) -> io::Result<PeerSocket> {
    let mut failed = None;
    for sock in socks {
        match accept_unix(sock.as_fd()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(e) => failed = Some(e),
            caller => return caller,
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::WouldBlock.into()))
}
