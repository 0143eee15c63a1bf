//! The connecting side: which names it tries, and which process it accepts as the listener.
//!
//! The abstract name of a listener consists of the address and port that it listens on. Each
//! network namespace has its own names, as it has its own TCP ports. A listener binds its name only
//! while its program holds the TCP port. So among EXS programs the name leads to the listener that
//! TCP would lead to. But any process can bind such a name, since nothing guards names. So the
//! listener's user must be our own, or root, or the owner of the TCP listener that the kernel finds
//! at the address.
//!
//! The name of a listener on every address is tried for addresses of this host only: another host
//! may use the same port.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};

use super::control::{ControlMessage, canonical, name, of_family, unspecified};
use super::link::{Greeting, LinkPhase, ShmLink, SocketInput};
use super::ring::Mem;
use super::slabs::{OwnSlab, SlabPlace};
use super::spares::MadeMemory;
use super::{ShmParts, ShmRnic};
use crate::driver::{LinkOwner, Source};
use crate::rnic::{AttemptNumber, CmEvent, ConnParam, Qp, RnicError};
use crate::sys::{
    PeerCred, PeerSocket, connect_abstract, listener_uid, local_addrs, next_reported_port,
    peer_cred,
};
use crate::time::Time;

const NOT_HERE: RnicError = RnicError::Os {
    call: "shared memory reaches this host only, and this network namespace",
    errno: libc::EHOSTUNREACH,
};

/// Checks that an address belongs to this network namespace.
///
/// # Errors
/// It does not, or the kernel cannot be asked.
pub(super) fn is_here(addr: SocketAddr) -> Result<(), RnicError> {
    let ip = canonical(addr).ip();
    // Another link may have a host with the same link-local address.
    let ours = |a: &SocketAddr| {
        canonical(*a).ip() == ip && (!is_link_local(ip) || scope(*a) == scope(addr))
    };
    if ip.is_loopback() {
        return Ok(());
    }
    // If no descriptor is left, the kernel cannot be asked: that is no "not here".
    let all = local_addrs(0).map_err(|e| RnicError::os("getifaddrs", &e))?;
    if all.iter().any(ours) { Ok(()) } else { Err(NOT_HERE) }
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local())
}

/// The number of the interface of an address; 0 if it has none.
pub(super) fn scope(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) => a.scope_id(),
    }
}

/// The names that a listener on `addr` may have.
fn names(addr: SocketAddr) -> Vec<Vec<u8>> {
    let (v6, port) = (addr.is_ipv6(), addr.port());
    vec![name(Some(addr.ip()), v6, scope(addr), port), name(None, v6, 0, port)]
}

/// The source address of a connection to `addr`, chosen as TCP would choose it. `port`: the port that
/// it gets if the program has bound none; no kernel is asked, as no TCP socket has to do with it. A
/// port that the program asked for is held by the returned descriptor.
fn source(
    addr: SocketAddr,
    bind: Option<SocketAddr>,
    port: u16,
) -> io::Result<(SocketAddr, Option<OwnedFd>)> {
    let ip: IpAddr = match bind.map(canonical) {
        Some(b) if !b.ip().is_unspecified() => b.ip(),
        // The usual cases, which need no question to the kernel.
        _ if addr.ip() == Ipv4Addr::LOCALHOST || addr.ip() == Ipv6Addr::LOCALHOST => addr.ip(),
        _ => {
            let probe = UdpSocket::bind((unspecified(&addr), 0))?;
            probe.connect(addr)?;
            probe.local_addr()?.ip()
        }
    };
    let bound = bind.map(|b| b.port());
    let mut wanted = SocketAddr::new(ip, bound.unwrap_or(port));
    if let SocketAddr::V6(w) = &mut wanted
        && is_link_local(ip)
    {
        let own = bind.map(scope).filter(|own| *own != 0);
        w.set_scope_id(own.unwrap_or(scope(addr)));
    }
    let Some(bound) = bound else { return Ok((wanted, None)) };
    let held = TcpListener::from(crate::sys::hold_port(&wanted, true)?);
    let chosen = held.local_addr()?;
    Ok((chosen, (bound != 0).then(|| held.into())))
}

impl ShmRnic {
    /// Begins to connect a queue pair. Returns the number of the link.
    pub(super) fn begin_call(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<u32, RnicError> {
        is_here(addr)?;
        let called = canonical(addr);
        let port = next_reported_port(|| self.memory.random_u64());
        let (ours, port) =
            source(called, param.bind, port).map_err(|e| RnicError::os("bind", &e))?;
        let (mem, place) = match self.parts.spares.take_made(called) {
            Some(MadeMemory { mut mem, place }) => {
                mem.renew(self.new_nonces());
                (mem, place)
            }
            None => self.new_memory(Some(called).filter(|_| self.parts.trusting), now)?,
        };
        let mut link = ShmLink::new(None, mem, LinkOwner::Qp(qp.0), (of_family(ours, &addr), addr));
        (link.peer.ord, link.peer.ird) =
            (param.ord.min(self.caps.max_ord), param.ird.min(self.caps.max_ird));
        let private_data = param.private_data.to_vec();
        link.greeting = Some(Greeting { caller: ours, private_data, place });
        let id = self.links.insert(Box::new(link))?;
        let behind_others = self.parts.waiting_calls.has_some(called);
        match if behind_others { Ok(false) } else { self.try_names(id, now) } {
            Ok(true) => {}
            Ok(false) => self.wait_for_room(id, now),
            // The next turn tries once more, so that a refusal becomes an event, as on TCP.
            Err(_) => self.enqueue(Source::Link(id)),
        }
        self.turns.timers.set(Source::Link(id), now + param.timeout);
        self.qps.get_mut(qp.0)?.own.port = port;
        Ok(id)
    }

    fn new_nonces(&mut self) -> [u64; 2] {
        [self.memory.random_u64(), self.memory.random_u64()]
    }

    /// Makes the memory of a connection, in a slab for connections to this address, or in one of its
    /// own.
    fn new_memory(
        &mut self,
        called: Option<SocketAddr>,
        now: Time,
    ) -> Result<(Mem, SlabPlace), RnicError> {
        let take = |parts: &mut ShmParts| match called {
            Some(called) => parts.slabs.take_place(called, now),
            None => OwnSlab::new(1).map(|slab| SlabPlace { slab, number: 0 }),
        };
        let place = take(&mut self.parts).or_else(|e| {
            match crate::sys::starved(&e) && self.parts.free_descriptors() {
                true => take(&mut self.parts),
                false => Err(e),
            }
        });
        let place = place.map_err(|e| RnicError::os("memfd_create", &e))?;
        let mem = place.slab.memory(place.number, self.new_nonces());
        Ok((mem.map_err(|e| RnicError::os("mmap", &e))?, place))
    }

    /// Gives a link new memory if the process that has answered must not get that at hand.
    fn check_memory(&mut self, id: u32, cred: PeerCred, now: Time) -> Result<(), RnicError> {
        let trusted = self.parts.trusting && cred.uid == self.parts.uid;
        let greeting = self.links.get(id)?.greeting.as_ref();
        if greeting.is_none_or(|greeting| greeting.place.slab.give_to(cred, trusted)) {
            return Ok(());
        }
        let (mem, place) = self.new_memory(None, now)?;
        place.slab.give_to(cred, trusted);
        let link = self.links.get_mut(id)?;
        link.mem = mem;
        if let Some(greeting) = &mut link.greeting {
            greeting.place = place;
        }
        Ok(())
    }

    /// Tries the names of a link's listener. False: its backlog is full.
    ///
    /// # Errors
    /// No listener has one of the names, or it belongs to an untrusted user.
    pub(super) fn try_names(&mut self, id: u32, now: Time) -> Result<bool, RnicError> {
        let link = self.links.get_mut(id)?;
        link.base.attempt = Some(AttemptNumber::take());
        let called = canonical(link.peer.addrs.1);
        for name in names(called) {
            let connected = connect_abstract(&name).or_else(|e| {
                // Spares and slabs have descriptors that this call can use.
                match crate::sys::starved(&e) && self.parts.free_descriptors() {
                    true => connect_abstract(&name),
                    false => Err(e),
                }
            });
            let sock = match connected {
                Ok(sock) => sock,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // No listener has this name.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(e) => return Err(RnicError::os("connect", &e)),
            };
            let cred = peer_cred(sock.as_fd()).map_err(|e| RnicError::os("SO_PEERCRED", &e))?;
            let known = cred.uid == self.parts.uid || cred.uid == 0;
            if !known && !listener_uid(&called).is_ok_and(|uid| uid == Some(cred.uid)) {
                let call = "the user who listens there is not the one who has the TCP port";
                return Err(RnicError::Os { call, errno: libc::EACCES });
            }
            self.check_memory(id, cred, now)?;
            self.links.get_mut(id)?.peer.cred = cred;
            self.send_hello(id, sock)?;
            return Ok(true);
        }
        Err(RnicError::Os { call: "connect", errno: libc::ECONNREFUSED })
    }

    /// The listener has accepted: sends HELLO.
    fn send_hello(&mut self, id: u32, sock: PeerSocket) -> Result<(), RnicError> {
        let link = self.links.get_mut(id)?;
        if let Some(Greeting { caller, private_data, place }) = &link.greeting {
            let hello = ControlMessage::Hello {
                called: canonical(link.peer.addrs.1),
                caller: *caller,
                place: place.number,
                ird: link.peer.ird,
                ord: link.peer.ord,
                private_data: private_data.clone(),
            };
            crate::sys::send_with_fds(sock.as_fd(), &hello.emit(), &[place.slab.as_fd()])
                .map_err(|e| RnicError::os("sendmsg", &e))?;
        }
        let place = link.greeting.take().map(|greeting| greeting.place);
        link.place = place.filter(|_| self.parts.spares.keep_place());
        link.socket.sock = Some(sock);
        link.enter(LinkPhase::Greeting);
        self.watch_link(id)?;
        self.setups.note(Source::Link(id));
        Ok(())
    }

    /// Tries once more a call that was refused.
    pub(super) fn retry_call(&mut self, id: u32, now: Time) {
        match self.try_names(id, now) {
            Ok(true) => {}
            Ok(false) => self.wait_for_room(id, now),
            Err(e) => self.fail_attempt(id, e),
        }
    }

    /// Ends a connection attempt of either side.
    pub(super) fn fail_attempt(&mut self, id: u32, error: RnicError) {
        let Ok(link) = self.links.get(id) else { return };
        let owner = link.base.owner;
        self.drop_link(id);
        if let LinkOwner::Qp(qp) = owner {
            self.kill_qp(qp);
            self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
        }
    }

    /// Reads and handles the messages of a link's socket.
    pub(super) fn take_control_messages(&mut self, id: u32) {
        loop {
            let Ok(link) = self.links.get_mut(id) else { return };
            match link.next_input() {
                SocketInput::Nothing => return,
                SocketInput::Invalid => return self.reject_message(id),
                SocketInput::Startup(message) => self.handle_startup(id, message),
            }
        }
    }

    fn reject_message(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        match (link.base.owner, link.phase) {
            (LinkOwner::Qp(_), phase) if phase.is_connected() => {
                let code = crate::rnic::TermCode { layer: 0, etype: 2, code: 7 };
                self.cut(id, crate::rnic::DisconnectCause::TerminatedByUs(code), None);
            }
            _ => {
                let why = "a message of the start-up is invalid".to_owned();
                self.fail_attempt(id, RnicError::Protocol(why));
            }
        }
    }

    /// Handles a message of the start-up.
    fn handle_startup(&mut self, id: u32, message: ControlMessage) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.base.owner else { return self.reject_message(id) };
        // The addresses do not say which of the two sides this is; the memory does.
        match (link.phase, link.mem.is_ours(), message) {
            (LinkPhase::Greeting, true, ControlMessage::Accept { ird, ord, private_data }) => {
                let cred = link.peer.cred;
                (link.peer.ord, link.peer.ird) = (link.peer.ord.min(ird), link.peer.ird.min(ord));
                link.set_peer(cred, self.parts.trusting.then_some(self.parts.uid));
                self.establish(id, private_data);
            }
            (LinkPhase::Greeting, true, ControlMessage::Reject { private_data }) => {
                self.drop_link(id);
                self.kill_qp(qp);
                self.emit(CmEvent::Rejected { qp: Qp(qp), private_data });
            }
            _ => self.reject_message(id),
        }
    }

    /// Opens a connection whose start-up is complete.
    pub(super) fn establish(&mut self, id: u32, private_data: Vec<u8>) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let LinkOwner::Qp(qp) = link.base.owner else { return };
        link.enter(LinkPhase::Open);
        let (ord, ird, addrs) = (link.peer.ord, link.peer.ird, link.peer.addrs);
        self.turns.timers.clear(Source::Link(id));
        if let Ok(pair) = self.qps.get_mut(qp) {
            pair.addrs = Some(addrs);
        }
        self.emit(CmEvent::Established { qp: Qp(qp), private_data, ord, ird });
        self.make_hot(id);
        self.enqueue(Source::Link(id));
    }
}
