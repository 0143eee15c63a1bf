//! The side that connects: which names it tries, and whom it takes for the listener.
//!
//! A listener's abstract name is made of the address and port that it listens on. The
//! names and the TCP ports of a network namespace are both its own, and a listener binds
//! its name only while its program holds the TCP port. So among EXS programs the name
//! leads to the very listener that TCP would lead to. A stranger could bind such a name
//! as well, since nothing guards them; so the user who listens there must be our own, or
//! root, or the one whose TCP listener the kernel finds at the address.
//!
//! The name of a listener on every address is tried for addresses of this host only: a
//! port of another host may be the same.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use super::ShmRnic;
use super::greet::{Message, canonical, name, of_family, unspecified};
use super::link::{Link, Note, Owner, Phase};
use super::qp::Conn;
use super::ring::Mem;
use super::serve::Source;
use crate::rnic::{CmEvent, ConnParam, Qp, QpState, RnicError};
use crate::sys::{PeerSocket, connect_abstract, listener_uid, local_addrs, peer_cred};
use crate::time::Time;

/// How often a listener without room is tried again.
const RETRY: Duration = Duration::from_millis(2);

const NOT_HERE: RnicError = RnicError::Os {
    call: "shared memory reaches this host only, and this network namespace",
    errno: libc::EHOSTUNREACH,
};

/// Whether an address is one of this network namespace.
///
/// # Errors
/// It is not.
pub(super) fn is_here(addr: SocketAddr) -> Result<(), RnicError> {
    let ip = canonical(addr).ip();
    let ours = |a: &SocketAddr| canonical(*a).ip() == ip;
    if ip.is_loopback() {
        return Ok(());
    }
    // That the kernel cannot be asked, for lack of a descriptor, is no answer.
    let all = local_addrs(0).map_err(|e| RnicError::os("getifaddrs", &e))?;
    if all.iter().any(ours) { Ok(()) } else { Err(NOT_HERE) }
}

/// The names under which `addr` may be listened to.
fn names(addr: SocketAddr) -> Vec<Vec<u8>> {
    let scope = match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(a) => a.scope_id(),
    };
    let (v6, port) = (addr.is_ipv6(), addr.port());
    vec![name(Some(addr.ip()), v6, scope, port), name(None, v6, 0, port)]
}

/// The address that a connection to `addr` comes from: as TCP would choose it. Its port is
/// free at the moment; one that was asked for is held, by what comes with it.
fn source(addr: SocketAddr, bind: Option<SocketAddr>) -> io::Result<(SocketAddr, Option<OwnedFd>)> {
    let ip: IpAddr = match bind.map(canonical) {
        Some(b) if !b.ip().is_unspecified() => b.ip(),
        _ => {
            let probe = UdpSocket::bind((unspecified(&addr), 0))?;
            probe.connect(addr)?;
            probe.local_addr()?.ip()
        }
    };
    let port = bind.map_or(0, |b| b.port());
    let mut wanted = SocketAddr::new(ip, port);
    if let (SocketAddr::V6(w), SocketAddr::V6(a)) = (&mut wanted, addr) {
        w.set_scope_id(a.scope_id());
    }
    let held = TcpListener::from(crate::sys::hold_port(&wanted, true)?);
    let chosen = held.local_addr()?;
    Ok((chosen, (port != 0).then(|| held.into())))
}

impl ShmRnic {
    pub(super) fn check_private(&self, private_data: &[u8]) -> Result<(), RnicError> {
        let (asked, limit) = (private_data.len(), self.caps.max_private_data);
        if asked <= limit {
            return Ok(());
        }
        let (asked, limit) = (asked as u64, limit as u64);
        Err(RnicError::Limit { what: "bytes of private data", asked, limit })
    }

    pub(super) fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        if self.qp_state(qp)? != QpState::Init {
            return Err(self.wrong_state(qp, "Init"));
        }
        self.check_private(param.private_data)?;
        is_here(addr)?;
        let called = canonical(addr);
        let (ours, port) = source(called, param.bind).map_err(|e| RnicError::os("bind", &e))?;
        let mut nonce =
            || u64::from(self.random.next_u32()) << 32 | u64::from(self.random.next_u32());
        let nonces = [nonce(), nonce()];
        let (mem, memfd) = Mem::create(nonces).map_err(|e| RnicError::os("memfd_create", &e))?;
        let mut link = Link::new(None, mem, Owner::Qp(qp.0), (of_family(ours, &addr), addr));
        (link.ord, link.ird) = (param.ord.min(self.caps.max_ord), param.ird.min(self.caps.max_ird));
        link.memfd = Some(memfd);
        let (ord, ird) = (link.ord, link.ird);
        let (caller, private_data) = (ours, param.private_data.to_vec());
        link.hello = Message::Hello { called, caller, ird, ord, private_data }.emit();
        let id = self.links.insert(Box::new(link))?;
        if self.call(id, now).is_err() {
            // Tried once more with the next turn, so that a refusal is an event, as of TCP.
            self.enqueue(Source::Link(id));
        }
        self.timers.set(Source::Link(id), now + param.timeout);
        let pair = self.qps.get_mut(qp.0)?;
        (pair.conn, pair.timeout, pair.port) = (Conn::Link(id), param.timeout, port);
        Ok(())
    }

    /// Tries the names of a link's listener; one without room will be tried again.
    fn call(&mut self, id: u32, now: Time) -> Result<(), RnicError> {
        let called = canonical(self.links.get(id)?.addrs.1);
        for name in names(called) {
            let sock = match connect_abstract(&name) {
                Ok(sock) => sock,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.timers.set(Source::Retry(id), now + RETRY);
                    return Ok(());
                }
                // Nobody has this name.
                Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(e) => return Err(RnicError::os("connect", &e)),
            };
            let cred = peer_cred(sock.as_fd()).map_err(|e| RnicError::os("SO_PEERCRED", &e))?;
            let known = cred.uid == self.uid || cred.uid == 0;
            if !known && !listener_uid(&called).is_ok_and(|uid| uid == Some(cred.uid)) {
                let call = "the user who listens there is not the one who has the TCP port";
                return Err(RnicError::Os { call, errno: libc::EACCES });
            }
            return self.called(id, sock);
        }
        Err(RnicError::Os { call: "connect", errno: libc::ECONNREFUSED })
    }

    /// The listener has a socket for us: HELLO.
    fn called(&mut self, id: u32, sock: PeerSocket) -> Result<(), RnicError> {
        let link = self.links.get_mut(id)?;
        let fds: Vec<_> = link.memfd.iter().map(AsFd::as_fd).collect();
        crate::sys::send_with_fds(sock.as_fd(), &link.hello, &fds)
            .map_err(|e| RnicError::os("sendmsg", &e))?;
        (link.hello, link.memfd) = (Vec::new(), None);
        (link.sock, link.phase) = (Some(sock), Phase::Greeting);
        self.watch(id)?;
        self.enqueue(Source::Link(id));
        Ok(())
    }

    /// Has the reactor report a link's socket.
    pub(super) fn watch(&mut self, id: u32) -> Result<(), RnicError> {
        let token = self.token(Source::Link(id));
        let Some(raw) = self.links.get(id)?.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd))
        else {
            return Ok(());
        };
        self.registry
            .register(&mut mio::unix::SourceFd(&raw), token, mio::Interest::READABLE)
            .map_err(|e| RnicError::os("epoll_ctl", &e))
    }

    /// The time has come to try a listener again.
    pub(super) fn call_again(&mut self, id: u32, now: Time) {
        if let Err(e) = self.call(id, now) {
            self.fail_attempt(id, e);
        }
    }

    /// An attempt, of either side, came to nothing.
    pub(super) fn fail_attempt(&mut self, id: u32, error: RnicError) {
        let Ok(link) = self.links.get(id) else { return };
        let owner = link.owner;
        self.drop_link(id);
        if let Owner::Qp(qp) = owner {
            self.kill_qp(qp);
            self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
        }
    }

    /// Takes the messages of a link's socket.
    pub(super) fn take_notes(&mut self, id: u32, now: Time) {
        loop {
            let Ok(link) = self.links.get_mut(id) else { return };
            match link.next_note() {
                Note::Nothing => return,
                Note::Nonsense => return self.nonsense(id),
                Note::Message(message) => self.take_note(id, message, now),
            }
        }
    }

    fn nonsense(&mut self, id: u32) {
        let Ok(link) = self.links.get(id) else { return };
        match (link.owner, link.phase) {
            (Owner::Qp(_), Phase::Open) => {
                let code = crate::rnic::TermCode { layer: 0, etype: 2, code: 7 };
                self.cut(id, crate::rnic::DisconnectCause::TerminatedByUs(code), None);
            }
            _ => {
                let why = "a message of its start-up makes no sense".to_owned();
                self.fail_attempt(id, RnicError::Protocol(why));
            }
        }
    }

    /// A message of the start-up.
    fn take_note(&mut self, id: u32, message: Message, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        let Owner::Qp(qp) = link.owner else { return self.nonsense(id) };
        // Which of the two sides this is, the addresses do not say: the memory does.
        match (link.phase, link.mem.is_ours(), message) {
            (Phase::Greeting, true, Message::Accept { ird, ord, private_data }) => {
                let cred = link.fd().and_then(|fd| peer_cred(fd).ok());
                let Some(cred) = cred else { return self.nonsense(id) };
                (link.ord, link.ird) = (link.ord.min(ird), link.ird.min(ord));
                link.know(cred, self.trusting.then_some(self.uid));
                link.say(&Message::Ready, &[]);
                self.opened(id, qp, private_data, now);
            }
            (Phase::Greeting, true, Message::Reject { private_data }) => {
                self.drop_link(id);
                self.kill_qp(qp);
                self.emit(CmEvent::Rejected { qp: Qp(qp), private_data });
            }
            (Phase::Accepted, false, Message::Ready) => self.opened(id, qp, Vec::new(), now),
            _ => self.nonsense(id),
        }
    }

    /// A connection is there.
    fn opened(&mut self, id: u32, qp: u32, private_data: Vec<u8>, now: Time) {
        let Ok(link) = self.links.get_mut(id) else { return };
        link.phase = Phase::Open;
        let (ord, ird, addrs) = (link.ord, link.ird, link.addrs);
        self.timers.clear(Source::Link(id));
        if let Ok(pair) = self.qps.get_mut(qp) {
            pair.addrs = Some(addrs);
        }
        self.emit(CmEvent::Established { qp: Qp(qp), private_data, ord, ird });
        let _ = now;
        self.warm(id);
        self.enqueue(Source::Link(id));
    }
}
