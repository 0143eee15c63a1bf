//! The listening side: names, connecting peers, answers.
//!
//! A connecting peer is a start-up until its HELLO has come, and has no link. The generic
//! driver limits start-ups. The connection is established with ACCEPT, as the reply of MPA
//! establishes one on the software RNIC.
//!
//! A listener does not believe what a peer says of itself: the addresses in its HELLO must belong
//! to this listener and this host.

use std::collections::HashSet;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use mio::Interest;
use mio::unix::SourceFd;

use super::control::{ControlMessage, MAX_MESSAGE, canonical, name, of_family};
use super::dial::{is_here, scope};
use super::link::{LinkPhase, Polling, ShmLink};
use super::ring::Mem;
use super::{ShmParts, ShmRnic};
use crate::driver::{Acceptor, Conn, LinkOwner, LinkSetup, ReactorShare, Source};
use crate::rnic::{
    AttemptNumber, ConnParam, DisconnectCause, ListenOpts, Qp, RnicError, StarvedListener,
};
use crate::sys::{
    self, ForeignFd, PeerCred, PeerListener, PeerSocket, accept_unix, listen_abstract, peer_cred,
    recv_with_fds,
};
use crate::time::Time;

/// Peers that may wait in the kernel. A peer that finds the backlog full tries again.
const BACKLOG: u32 = 4096;

/// A listening socket, which the acceptors of several RNICs may have.
struct ListeningSocket {
    /// The descriptor of an acceptor that has joined others. It goes before the socket does.
    own: Option<OwnedFd>,
    socket: Arc<PeerListener>,
}

impl AsFd for ListeningSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.own.as_ref().map_or_else(|| self.socket.as_fd(), AsFd::as_fd)
    }
}

impl ListeningSocket {
    /// The same socket for another acceptor. A reactor tells registrations by their descriptors.
    fn share(&self) -> io::Result<ListeningSocket> {
        let own = Some(self.as_fd().try_clone_to_owned()?);
        Ok(ListeningSocket { own, socket: Arc::clone(&self.socket) })
    }
}

/// The sockets of a listener: one, or two if it takes IPv6 and IPv4.
pub struct ShmAcceptor {
    socks: Vec<ListeningSocket>,
    addr: SocketAddr,
    /// Holds the TCP port; None if another device of this process does.
    port: Option<Arc<OwnedFd>>,
    v6_only: bool,
    /// Other RNICs accept from the same sockets.
    shared: bool,
}

impl Acceptor for ShmAcceptor {
    type Peer = PeerSocket;

    /// Accepts a connection from any of the sockets. `WouldBlock` if there is none on any; another
    /// error if one occurred and no socket had a connection.
    fn accept(&mut self) -> io::Result<PeerSocket> {
        let mut failed = None;
        for sock in &self.socks {
            match accept_unix(sock.as_fd()) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => failed = Some(e),
                caller => return caller,
            }
        }
        Err(failed.unwrap_or_else(|| io::ErrorKind::WouldBlock.into()))
    }

    fn has_peer(&self) -> bool {
        self.socks.iter().any(|sock| sys::is_readable(sock.as_fd()))
    }

    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError> {
        self.socks.iter().try_for_each(|sock| {
            let raw = sock.as_fd().as_raw_fd();
            match self.shared {
                true => reactor.watch_exclusively(sock.as_fd(), source),
                false => reactor.watch(&mut SourceFd(&raw), source, Interest::READABLE),
            }
        })
    }

    fn forget(&mut self, reactor: &ReactorShare) {
        for sock in &self.socks {
            match self.shared {
                true => reactor.forget_exclusive(sock.as_fd()),
                false => reactor.forget(&mut SourceFd(&sock.as_fd().as_raw_fd())),
            }
        }
    }

    /// The names are bound until the last of the acceptors is gone.
    fn share(&mut self) -> io::Result<Option<ShmAcceptor>> {
        let socks = self.socks.iter().map(ListeningSocket::share).collect::<io::Result<_>>()?;
        self.shared = true;
        let (addr, port) = (self.addr, self.port.clone());
        Ok(Some(ShmAcceptor { socks, addr, port, v6_only: self.v6_only, shared: true }))
    }
}

impl ShmAcceptor {
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
    /// The reactor watches its socket.
    watched: bool,
    /// On the ready list.
    pub(super) queued: bool,
}

/// The names of a listener.
fn names(addr: SocketAddr, v6_only: bool) -> Vec<Vec<u8>> {
    let port = addr.port();
    match (addr.ip().is_unspecified(), addr.is_ipv6()) {
        (false, v6) => vec![name(Some(addr.ip()), v6, scope(addr), port)],
        (true, false) => vec![name(None, false, 0, port)],
        (true, true) if v6_only => vec![name(None, true, 0, port)],
        (true, true) => vec![name(None, true, 0, port), name(None, false, 0, port)],
    }
}

impl LinkSetup for Box<ShmLink> {
    fn open(
        _: &mut ShmRnic,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<(ShmAcceptor, SocketAddr), RnicError> {
        let (mut addr, mut port, v6_only) = (addr, None, opts.v6_only);
        if !opts.port_held {
            let held = sys::hold_port(&addr, v6_only).map_err(|e| RnicError::os("bind", &e))?;
            let held = TcpListener::from(held);
            addr = held.local_addr().map_err(|e| RnicError::os("getsockname", &e))?;
            port = Some(Arc::new(held.into()));
        }
        let mut socks = Vec::new();
        for name in names(canonical(addr), v6_only) {
            let sock = listen_abstract(&name, BACKLOG)
                .map_err(|e| RnicError::os("bind of the abstract name", &e))?;
            socks.push(ListeningSocket { own: None, socket: Arc::new(sock) });
        }
        Ok((ShmAcceptor { socks, addr, port, v6_only, shared: false }, addr))
    }

    fn begin_startup(driver: &mut ShmRnic, listener: u32, sock: PeerSocket, now: Time) {
        let Ok(listening) = driver.listening.listeners.get(listener) else { return };
        let deadline = now + listening.handshake_timeout;
        let Ok(cred) = peer_cred(sock.as_fd()) else { return };
        let pending = PendingPeer { sock, listener, cred, watched: false, queued: false };
        let Ok(id) = driver.parts.pending_peers.insert(pending) else { return };
        driver.turns.timers.set(Source::Opening(id), deadline);
        driver.add_startup(id, now);
        // Its HELLO has mostly come before the connection was accepted.
        driver.serve_pending_peer(id, now);
    }

    fn is_starting(driver: &ShmRnic, id: u32) -> bool {
        driver.parts.pending_peers.get(id).is_ok()
    }
    fn serve_startup(driver: &mut ShmRnic, id: u32, now: Time) {
        driver.serve_pending_peer(id, now);
    }
    fn drop_startup(driver: &mut ShmRnic, id: u32) {
        driver.drop_pending_peer(id);
    }
    fn accepted_peers(driver: &ShmRnic) -> HashSet<SocketAddr> {
        // Those whose HELLO was read.
        let accepted = driver.links.iter().filter(|(_, l)| !l.mem.is_ours());
        accepted.map(|(_, l)| canonical(l.peer.addrs.1)).collect()
    }
    fn fail_attempts(driver: &mut ShmRnic, starved: &StarvedListener, _: Time) {
        driver.fail_calls_to(starved);
    }

    fn answer(
        driver: &mut ShmRnic,
        id: u32,
        _: Qp,
        param: &ConnParam<'_>,
    ) -> Result<((SocketAddr, SocketAddr), Duration), RnicError> {
        let uid = driver.parts.trusting.then_some(driver.parts.uid);
        let (ord, ird) = (param.ord.min(driver.caps.max_ord), param.ird.min(driver.caps.max_ird));
        let link = driver.links.get_mut(id)?;
        // The peer's own limits: READs that it issues, that it answers.
        let (their_ord, their_ird) = (link.peer.ord, link.peer.ird);
        (link.peer.ord, link.peer.ird) = (ord.min(their_ird), ird.min(their_ord));
        link.set_peer(link.peer.cred, uid);
        let private_data = param.private_data.to_vec();
        // If the peer has gone meanwhile, its socket will show that.
        link.send_control(&ControlMessage::Accept { ird, ord, private_data }, &[]);
        Ok((link.peer.addrs, param.timeout))
    }

    fn detached(driver: &mut ShmRnic, id: u32, link: &mut Box<ShmLink>) {
        driver.forget_place(link);
        driver.look_no_more(id);
    }

    fn rests(driver: &ShmRnic, id: u32) -> bool {
        driver.links.get(id).is_ok_and(|link| link.rests())
    }

    fn moved(driver: &mut ShmRnic, id: u32, _: (u32, u32)) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        link.polling = Polling::new(link.polling.last_moved);
        if let Err(e) = Self::adopted(driver, id) {
            crate::trace::warn!("a connection is dropped: {e}");
            return driver.cut(id, DisconnectCause::Broken(libc::ENOMEM), None);
        }
        driver.make_hot(id);
    }

    /// ACCEPT has left. If the peer has gone meanwhile, it has hung up.
    fn answered(driver: &mut ShmRnic, id: u32, _: Time) {
        driver.establish(id, Vec::new());
    }

    fn refuse(
        driver: &mut ShmRnic,
        id: u32,
        private_data: &[u8],
        _: Time,
    ) -> Result<(), RnicError> {
        let reject = ControlMessage::Reject { private_data: private_data.to_vec() };
        driver.links.get(id)?.send_control(&reject, &[]);
        driver.drop_link(id);
        Ok(())
    }

    fn dial(
        driver: &mut ShmRnic,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<Conn, RnicError> {
        driver.begin_call(qp, addr, param, now).map(Conn::Link)
    }
    fn reaches(addr: SocketAddr) -> Result<(), RnicError> {
        is_here(addr)
    }

    fn poll_setup(driver: &mut ShmRnic, id: u32) -> Option<bool> {
        let link = driver.links.get_mut(id).ok()?;
        let before = link.phase;
        if before.is_connected() {
            return None;
        }
        link.socket.readable = true;
        driver.take_control_messages(id);
        let after = driver.links.get(id).map(|l| (l.phase, l.socket.hung_up));
        let found = after.ok() != Some((before, false));
        if found {
            driver.enqueue(Source::Link(id));
        }
        Some(found)
    }

    fn serve_opening(driver: &mut ShmRnic, id: u32, now: Time) {
        driver.serve_pending_peer(id, now);
    }
    fn opening_timed_out(driver: &mut ShmRnic, id: u32) {
        driver.drop_pending_peer(id);
    }
    fn drop_opening(driver: &mut ShmRnic, id: u32) {
        driver.drop_pending_peer(id);
    }
    fn fail_opening(driver: &mut ShmRnic, id: u32, _: RnicError) {
        // It belongs to no queue pair, to which this could be reported.
        driver.drop_pending_peer(id);
    }

    fn close_openings(driver: &mut ShmRnic, listener: u32) {
        let pending = driver.parts.pending_peers.iter().filter(|(_, s)| s.listener == listener);
        let pending: Vec<u32> = pending.map(|(id, _)| id).collect();
        for id in pending {
            driver.drop_pending_peer(id);
        }
    }

    /// Reads again the HELLOs that waited for a descriptor.
    fn retry_openings(driver: &mut ShmRnic) {
        for id in std::mem::take(&mut driver.parts.peers_without_fds) {
            driver.enqueue(Source::Opening(id));
        }
    }

    fn closed(driver: &mut ShmRnic, id: u32, link: Box<ShmLink>) {
        if link.polling.hot {
            driver.parts.hot.retain(|h| *h != id);
        }
        if link.peer_has_bitmap()
            && let Some(bitmap) = &mut driver.parts.bitmap
        {
            bitmap.take_back(link.peer.cred);
        }
        driver.keep_spare(*link);
    }
}

impl ShmRnic {
    /// Fails connection attempts of this RNIC to a starved listener of this process.
    fn fail_calls_to(&mut self, starved: &StarvedListener) {
        let StarvedListener { at, errno, taken, .. } = starved;
        let at = canonical(*at);
        let calls = |l: &ShmLink| {
            let called = canonical(l.peer.addrs.1);
            let there = at.ip().is_unspecified() || at.ip() == called.ip();
            let heard = taken.contains(&canonical(l.peer.addrs.0));
            let greets = l.phase == LinkPhase::Greeting && l.base.began_before(starved);
            there && at.port() == called.port() && greets && !heard
        };
        let own = self.links.iter().filter(|(_, l)| calls(l));
        let own: Vec<u32> = own.map(|(link, _)| link).collect();
        for link in own {
            let (call, errno) = ("accept of the caller", *errno);
            self.fail_attempt(link, RnicError::Os { call, errno });
        }
    }

    fn drop_pending_peer(&mut self, id: u32) {
        let Ok(pending) = self.parts.pending_peers.remove(id) else { return };
        self.turns.timers.clear(Source::Opening(id));
        self.forget_pending(&pending);
        drop(pending);
        self.startup_over();
        self.wake_waiting_for_fds();
    }

    fn forget_pending(&self, pending: &PendingPeer) {
        if pending.watched {
            self.reactor.forget(&mut SourceFd(&pending.sock.as_fd().as_raw_fd()));
        }
    }

    /// Has the reactor watch a peer whose HELLO has not come with the connection.
    fn watch_pending(&mut self, id: u32) {
        let Ok(pending) = self.parts.pending_peers.get_mut(id) else { return };
        if std::mem::replace(&mut pending.watched, true) {
            return;
        }
        let raw = pending.sock.as_fd().as_raw_fd();
        let (source, interest) = (Source::Opening(id), Interest::READABLE);
        if self.reactor.watch(&mut SourceFd(&raw), source, interest).is_err() {
            self.drop_pending_peer(id);
        }
    }

    /// Reads the HELLO of a peer, if it has come.
    fn serve_pending_peer(&mut self, id: u32, now: Time) {
        let Ok(pending) = self.parts.pending_peers.get_mut(id) else { return };
        pending.queued = false;
        let listener = pending.listener;
        let upcoming = AttemptNumber::upcoming();
        // A HELLO brings a descriptor. The kernel discards it if this process can have no more.
        if !sys::has_descriptors(pending.sock.as_fd())
            && let Err(e) = self.find_descriptor(id)
        {
            self.parts.peers_without_fds.push(id);
            return self.pause_listener(listener, &e, upcoming, now);
        }
        let Ok(pending) = self.parts.pending_peers.get_mut(id) else { return };
        let mut buf = [0; MAX_MESSAGE];
        let (n, fds) = match recv_with_fds(pending.sock.as_fd(), &mut buf) {
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return self.watch_pending(id),
            Err(_) => return self.drop_pending_peer(id),
        };
        let hello = ControlMessage::parse(&buf[..n]);
        if self.request(id, hello, fds.unwrap_or_default()).is_none() {
            self.drop_pending_peer(id);
        }
    }

    /// Finds out whether this process can have another descriptor. If not, drops the memory that waits for
    /// connections, which has descriptors unless other connections use them.
    fn find_descriptor(&mut self, id: u32) -> io::Result<()> {
        let another = |parts: &ShmParts| {
            let pending = parts.pending_peers.get(id).map_err(|_| io::ErrorKind::NotFound)?;
            pending.sock.as_fd().try_clone_to_owned().map(drop)
        };
        another(&self.parts).or_else(|e| match self.parts.free_descriptors() {
            true => another(&self.parts),
            false => Err(e),
        })
    }

    /// Makes a request of a HELLO. None if the HELLO is invalid or cannot be true.
    fn request(
        &mut self,
        id: u32,
        hello: Option<ControlMessage>,
        fds: Vec<ForeignFd>,
    ) -> Option<()> {
        let ControlMessage::Hello { called, caller, place, ird, ord, private_data } = hello? else {
            return None;
        };
        let pending = self.parts.pending_peers.get(id).ok()?;
        let (listener, cred) = (pending.listener, pending.cred);
        let listening = self.listening.listeners.get(listener).ok()?;
        if !listening.acceptor.accepts_address(called) || is_here(caller).is_err() {
            return None;
        }
        let [memfd]: [ForeignFd; 1] = fds.try_into().ok()?;
        let addrs = (of_family(called, &listening.addr), of_family(caller, &listening.addr));
        let (slab_id, slab) = self.parts.slabs.open(memfd.as_fd()).ok()?;
        let mem = match self.parts.spares.take_mapped((slab_id, place)) {
            Some(mem) => mem.reopen(),
            None => Mem::open(slab, place),
        };
        let mem = mem.ok()?;
        // A memfd that this process maps: no peer can delay its close.
        memfd.close_here();
        let pending = self.parts.pending_peers.remove(id).ok()?;
        self.turns.timers.clear(Source::Opening(id));
        self.forget_pending(&pending);
        let PendingPeer { sock, .. } = pending;
        let mut link = ShmLink::new(Some(sock), mem, LinkOwner::Startup(listener), addrs);
        (link.peer.cred, link.peer.ord, link.peer.ird) = (cred, ord, ird);
        link.origin = Some((slab_id, place));
        if let Ok(id) = self.add_link(Box::new(link)) {
            self.report_request(id, listener, addrs, private_data);
        }
        Some(())
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::rnic::{PathAttr, Rnic, TakesGroups};
    use crate::sys::{RandomSource, connect_abstract};

    #[test]
    fn another_rnic_accepts_from_the_same_sockets() {
        let polls = [(); 2].map(|()| mio::Poll::new().unwrap());
        let [mut one, mut other] = polls.each_ref().map(|poll| {
            let registry = poll.registry().try_clone().unwrap();
            ShmRnic::new(registry, 0, RandomSource::seeded(1))
        });
        let opts = ListenOpts {
            backlog: 8,
            v6_only: false,
            handshake_timeout: Duration::from_secs(3600),
            port_held: false,
            path: PathAttr::default(),
            groups: TakesGroups::No,
        };
        let listener = one.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &opts).unwrap();
        let addr = one.listener_addr(listener).unwrap();
        let port = one.share_listener(listener).unwrap();
        let joined = other.join_listener(port).unwrap();
        let name = name(Some(addr.ip()), false, 0, addr.port());
        let callers = [(); 2].map(|()| connect_abstract(&name).unwrap());
        let now = Time::ZERO;
        while other.progress(now) {}
        assert_eq!(other.parts.pending_peers.iter().count(), callers.len());
        // The name stays for as long as any RNIC listens.
        one.close_listener(listener).unwrap();
        assert!(connect_abstract(&name).is_ok());
        other.close_listener(joined).unwrap();
        assert!(connect_abstract(&name).is_err());
    }
}
