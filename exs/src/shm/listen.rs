//! The side that listens: names, callers, requests that wait.
//!
//! Callers are strangers, so what they may tie up is bounded: callers that have not said
//! what they want (the oldest is dropped), requests that the program has not answered
//! (further callers wait in the kernel), the time until one that was accepted is ready, and
//! descriptors (when none is left, the oldest caller gives way that has said nothing for a
//! second, and if there is none, listening pauses). What a caller says of itself is not believed: its addresses must be ones that
//! this listener, and this host, have.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use super::ShmRnic;
use super::dial::is_here;
use super::greet::{MAX_MESSAGE, Message, canonical, name, of_family};
use super::link::{Link, Owner, Phase};
use super::qp::Conn;
use super::ring::Mem;
use super::serve::Source;
use crate::rnic::{CmEvent, ConnParam, ConnReq, ListenOpts, Listener, Qp, QpState, RnicError};
use crate::sys::{
    self, ForeignFd, PeerCred, PeerListener, PeerSocket, accept_unix, listen_abstract, peer_cred,
    recv_with_fds,
};
use crate::time::Time;

/// Callers whose HELLO may be awaited at a time; fewer where the process may have few
/// descriptors.
pub(super) const GREETINGS: usize = 1024;
/// Connections taken from one listener before others have their turn.
const ACCEPT_STEP: usize = 64;
/// How long to pause when the kernel has no descriptors or memory left.
const STARVED_PAUSE: Duration = Duration::from_millis(100);
/// How long a caller's HELLO is awaited at least before its descriptor is taken for another.
const GREETING_GRACE: Duration = Duration::from_secs(1);
/// How long a caller that was accepted may take to say that it is ready. It is on this host,
/// and holds a place in the backlog meanwhile.
const READY_LIMIT: Duration = Duration::from_secs(5);
/// Callers that may wait in the kernel. (A caller that finds it full tries again.)
const BACKLOG: u32 = 4096;

/// A listener: one socket, or for IPv6 with IPv4 two.
pub(super) struct Listening {
    socks: Vec<PeerListener>,
    addr: SocketAddr,
    /// Holds the TCP port, where no other device of ours does.
    _port: Option<OwnedFd>,
    v6_only: bool,
    handshake_timeout: Duration,
    max_greetings: usize,
    max_asking: usize,
    asking: usize,
    readable: bool,
    /// On the ready list.
    pub(super) queued: bool,
}

impl Listening {
    /// Whether a caller may say that it has called this address here.
    fn is_called(&self, called: SocketAddr) -> bool {
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

/// A caller that has not said what it wants.
pub(super) struct Stranger {
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
        let id = self.listeners.insert(Listening {
            socks,
            addr,
            _port: port,
            v6_only: opts.v6_only,
            handshake_timeout: opts.handshake_timeout,
            max_greetings: sys::most_strangers(self.max_greetings),
            max_asking: usize::try_from(opts.backlog).unwrap_or(usize::MAX).max(16),
            asking: 0,
            readable: true,
            queued: false,
        })?;
        let token = self.token(Source::Listener(id));
        for fd in &raw {
            let interest = mio::Interest::READABLE;
            if let Err(e) = self.registry.register(&mut mio::unix::SourceFd(fd), token, interest) {
                let _ = self.close_listener(Listener(id));
                return Err(RnicError::os("epoll_ctl", &e));
            }
        }
        self.enqueue(Source::Listener(id));
        Ok(Listener(id))
    }

    pub(super) fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        Ok(self.listeners.get(listener.0)?.addr)
    }

    pub(super) fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        let listening = self.listeners.remove(listener.0)?;
        self.timers.clear(Source::Listener(listener.0));
        self.starved.retain(|l| *l != listener.0);
        for sock in &listening.socks {
            let _ = self.registry.deregister(&mut mio::unix::SourceFd(&sock.as_fd().as_raw_fd()));
        }
        let of = |o: Owner| matches!(o, Owner::Asking { listener: l, .. } if l == listener.0);
        let links: Vec<u32> =
            self.links.iter().filter(|(_, l)| of(l.owner)).map(|(id, _)| id).collect();
        for link in links {
            self.drop_link(link);
        }
        let strangers: Vec<u32> = self
            .strangers
            .iter()
            .filter(|(_, s)| s.listener == listener.0)
            .map(|(id, _)| id)
            .collect();
        for stranger in strangers {
            self.drop_stranger(stranger);
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
        self.hear_again();
        for _ in 0..ACCEPT_STEP {
            let Ok(listening) = self.listeners.get_mut(id) else { return };
            if !listening.readable || listening.asking >= listening.max_asking {
                return;
            }
            match one_of(&listening.socks) {
                Ok(sock) => self.greet(id, sock, now),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    listening.readable = false;
                    return;
                }
                Err(e) if sys::starved(&e) && self.oldest_gives_way(now) => {}
                Err(e) if sys::starved(&e) => return self.pause(id, &e, now),
                // The caller is gone already, or so: accept(2) says to go on.
                Err(_) => {}
            }
        }
        self.enqueue(Source::Listener(id));
    }

    /// The kernel has no descriptors or memory left: a listener waits for some.
    fn pause(&mut self, id: u32, e: &io::Error, now: Time) {
        self.timers.set(Source::Listener(id), now + STARVED_PAUSE);
        if !self.starved.contains(&id) {
            self.starved.push(id);
        }
        self.fail_own_callers(id, e.raw_os_error().unwrap_or(libc::EMFILE));
    }

    /// Callers wait until there is a descriptor. One of this very process holds descriptors itself
    /// and may wait for ever: its connect fails, with what this process lacks.
    fn fail_own_callers(&mut self, id: u32, errno: i32) {
        let Ok(listening) = self.listeners.get(id) else { return };
        let at = canonical(listening.addr);
        let calls = |l: &Link| {
            let called = canonical(l.addrs.1);
            let there = at.ip().is_unspecified() || at.ip() == called.ip();
            there && at.port() == called.port() && l.phase == Phase::Greeting && l.mem.is_ours()
        };
        // Those that were heard have a link at this end, too.
        let heard = |caller: SocketAddr| {
            let from = |l: &Link| !l.mem.is_ours() && canonical(l.addrs.1) == canonical(caller);
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

    /// Callers whose memory there was no descriptor for say again what they want.
    fn hear_again(&mut self) {
        for id in std::mem::take(&mut self.unheard) {
            self.enqueue(Source::Stranger(id));
        }
    }

    /// A descriptor came free: listeners that lacked one try again.
    pub(super) fn wake_starved(&mut self) {
        self.hear_again();
        for id in std::mem::take(&mut self.starved) {
            self.timers.clear(Source::Listener(id));
            self.enqueue(Source::Listener(id));
        }
    }

    fn greet(&mut self, listener: u32, sock: PeerSocket, now: Time) {
        let Ok(listening) = self.listeners.get(listener) else { return };
        let (deadline, most) = (now + listening.handshake_timeout, listening.max_greetings);
        let Ok(cred) = peer_cred(sock.as_fd()) else { return };
        let raw = sock.as_fd().as_raw_fd();
        let Ok(id) = self.strangers.insert(Stranger { sock, listener, cred, queued: false }) else {
            return;
        };
        let token = self.token(Source::Stranger(id));
        let interest = mio::Interest::READABLE;
        if self.registry.register(&mut mio::unix::SourceFd(&raw), token, interest).is_err() {
            return self.drop_stranger(id);
        }
        self.timers.set(Source::Stranger(id), deadline);
        // It said what it wants before we took it in, mostly.
        self.enqueue(Source::Stranger(id));
        self.greetings.push_back((id, now));
        if self.greetings.len() > most {
            let strangers = &self.strangers;
            self.greetings.retain(|(id, _)| strangers.get(*id).is_ok());
        }
        if self.greetings.len() > most
            && let Some((oldest, _)) = self.greetings.pop_front()
        {
            // Its HELLO may have come in this very turn.
            self.serve_stranger(oldest, now);
            self.drop_stranger(oldest);
        }
    }

    /// There is no descriptor for a caller: one that has said nothing for a while gives its own.
    /// False: there is none such.
    fn oldest_gives_way(&mut self, now: Time) -> bool {
        while self.greetings.front().is_some_and(|(id, _)| self.strangers.get(*id).is_err()) {
            self.greetings.pop_front();
        }
        let Some((oldest, since)) = self.greetings.front().copied() else { return false };
        if now < since + GREETING_GRACE {
            return false;
        }
        self.greetings.pop_front();
        self.drop_stranger(oldest);
        true
    }

    pub(super) fn drop_stranger(&mut self, id: u32) {
        let Ok(stranger) = self.strangers.remove(id) else { return };
        self.timers.clear(Source::Stranger(id));
        let raw = stranger.sock.as_fd().as_raw_fd();
        let _ = self.registry.deregister(&mut mio::unix::SourceFd(&raw));
        drop(stranger);
        self.wake_starved();
    }

    /// A caller may have said what it wants.
    pub(super) fn serve_stranger(&mut self, id: u32, now: Time) {
        let Ok(stranger) = self.strangers.get_mut(id) else { return };
        stranger.queued = false;
        // What it says brings a descriptor, which the kernel throws away if there is no room.
        if let Err(e) = stranger.sock.as_fd().try_clone_to_owned() {
            let listener = stranger.listener;
            self.unheard.push(id);
            return self.pause(listener, &e, now);
        }
        let mut buf = [0; MAX_MESSAGE];
        let (n, fds) = match recv_with_fds(stranger.sock.as_fd(), &mut buf) {
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => return self.drop_stranger(id),
        };
        let hello = Message::parse(&buf[..n]);
        if self.request(id, hello, &fds.unwrap_or_default(), now).is_none() {
            self.drop_stranger(id);
        }
    }

    /// A HELLO becomes a request; None if it makes no sense, or is not believed.
    fn request(
        &mut self,
        id: u32,
        hello: Option<Message>,
        fds: &[ForeignFd],
        _: Time,
    ) -> Option<()> {
        let Message::Hello { called, caller, ird, ord, private_data } = hello? else {
            return None;
        };
        let stranger = self.strangers.get(id).ok()?;
        let (listener, cred) = (stranger.listener, stranger.cred);
        let listening = self.listeners.get(listener).ok()?;
        if !listening.is_called(called) || is_here(caller).is_err() {
            return None;
        }
        let [memfd] = fds else { return None };
        let (called, caller) =
            (of_family(called, &listening.addr), of_family(caller, &listening.addr));
        let mem = Mem::open(memfd.as_fd()).ok()?;
        let Stranger { sock, .. } = self.strangers.remove(id).ok()?;
        self.timers.clear(Source::Stranger(id));
        let _ = self.registry.deregister(&mut mio::unix::SourceFd(&sock.as_fd().as_raw_fd()));
        let owner = Owner::Asking { listener, req: 0 };
        let mut link = Link::new(Some(sock), mem, owner, (called, caller));
        (link.cred, link.ord, link.ird) = (cred, ord, ird);
        let link = self.links.insert(Box::new(link)).ok()?;
        let req = match self.requests.insert(link) {
            Ok(req) if self.watch(link).is_ok() => req,
            _ => {
                self.drop_link(link);
                return Some(());
            }
        };
        if let Ok(l) = self.links.get_mut(link) {
            l.owner = Owner::Asking { listener, req };
        }
        if let Ok(listening) = self.listeners.get_mut(listener) {
            listening.asking += 1;
        }
        let (listener, req) = (Listener(listener), ConnReq(req));
        let (peer, local) = (caller, called);
        self.emit(CmEvent::ConnectRequest { listener, req, peer, local, private_data });
        Some(())
    }

    /// Parts a link from its listener; a connection request of it is no more.
    pub(super) fn disown(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        if let Owner::Asking { listener, req } = link.owner {
            let _ = self.requests.remove(req);
            if let Ok(listening) = self.listeners.get_mut(listener) {
                listening.asking = listening.asking.saturating_sub(1);
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
        self.disown(id);
        let uid = self.trusting.then_some(self.uid);
        let (max_ord, max_ird) = (self.caps.max_ord, self.caps.max_ird);
        let link = self.links.get_mut(id)?;
        link.owner = Owner::Qp(qp.0);
        // What the caller has said of itself: (that it issues, that it answers).
        let (their_ord, their_ird) = (link.ord, link.ird);
        let (ord, ird) = (param.ord.min(max_ord), param.ird.min(max_ird));
        (link.ord, link.ird) = (ord.min(their_ird), ird.min(their_ord));
        link.know(link.cred, uid);
        let private_data = param.private_data.to_vec();
        link.phase = Phase::Accepted;
        // A caller that has gone meanwhile is noticed by its socket.
        link.say(&Message::Accept { ird, ord, private_data }, &[]);
        let addrs = link.addrs;
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.addrs, pair.timeout) = (Conn::Link(id), Some(addrs), param.timeout);
        self.timers.set(Source::Link(id), now + param.timeout.min(READY_LIMIT));
        self.enqueue(Source::Link(id));
        Ok(())
    }

    pub(super) fn reject(&mut self, req: ConnReq, private_data: &[u8]) -> Result<(), RnicError> {
        let id = *self.requests.get(req.0)?;
        self.check_private(private_data)?;
        let reject = Message::Reject { private_data: private_data.to_vec() };
        self.links.get(id)?.say(&reject, &[]);
        self.drop_link(id);
        Ok(())
    }
}

/// A caller of one of these sockets; none is taken in beside it. If there is none: whatever is
/// worse than that nobody calls.
fn one_of(socks: &[PeerListener]) -> io::Result<PeerSocket> {
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
