//! The listening side: sockets, start-ups, answers.
//!
//! A start-up is a link whose owner is the listener until the request has come.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};

use super::SoftRnic;
use super::deferred::share;
use super::directions::Inbound;
use super::group::{GroupTaker, HelloSniffer, LinkStream, PassedConn};
use super::link::SoftLink;
use super::short_write::ShortWrite;
use crate::driver::{Acceptor, Conn, Link, LinkOwner, LinkSetup, ReactorShare, Source};
use crate::iwarp::IwarpEngine;
use crate::rnic::{
    ConnParam, ListenOpts, Qp, QpState, Ready, RnicError, StarvedListener, TakesGroups,
};
use crate::sys::{self, Paced};
use crate::time::Time;

/// A listening socket.
pub struct SoftAcceptor {
    socket: TcpListener,
    paced: Paced,
    /// Other RNICs accept from the same socket.
    shared: bool,
    groups: GroupTaker,
    /// Streams of groups that wait to be accepted.
    opened: VecDeque<(u32, u32)>,
}

impl SoftAcceptor {
    fn new(socket: TcpListener, paced: Paced, shared: bool, groups: GroupTaker) -> SoftAcceptor {
        SoftAcceptor { socket, paced, shared, groups, opened: VecDeque::new() }
    }

    /// A peer has opened a stream of a group.
    pub(super) fn opened(&mut self, group: u32, stream: u32) {
        self.opened.push_back((group, stream));
    }

    /// From now on peers may open link groups of brief connections only.
    pub(super) fn keep_apart(&mut self) {
        self.groups.keep_apart();
    }

    /// Which RNICs get the link groups that peers open.
    pub(super) fn groups(&self) -> &GroupTaker {
        &self.groups
    }
}

/// A connection that has just been accepted.
pub enum SoftPeer {
    /// A TCP connection.
    Tcp(TcpStream, SocketAddr),
    /// A stream of a group.
    Stream(u32, u32),
    /// One whose first bytes another RNIC at the port has read.
    Passed(PassedConn),
}

impl Acceptor for SoftAcceptor {
    type Peer = SoftPeer;

    fn accept(&mut self) -> io::Result<SoftPeer> {
        if let Some((group, stream)) = self.opened.pop_front() {
            return Ok(SoftPeer::Stream(group, stream));
        }
        if let Some(conn) = self.groups.take_mail() {
            return Ok(SoftPeer::Passed(conn));
        }
        self.socket.accept().map(|(stream, peer)| SoftPeer::Tcp(stream, peer))
    }
    fn has_peer(&self) -> bool {
        !self.opened.is_empty() || self.groups.has_mail() || sys::is_readable(self.socket.as_fd())
    }
    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError> {
        self.groups.watch(reactor, source)?;
        match self.shared {
            true => reactor.watch_exclusively(self.socket.as_fd(), source),
            false => reactor.watch(&mut self.socket, source, Interest::READABLE),
        }
    }
    fn forget(&mut self, reactor: &ReactorShare) {
        self.groups.rest();
        // The registration of a shared socket outlives the descriptor. The socket may have been
        // registered before it was shared.
        match self.shared {
            true => reactor.forget_exclusive(self.socket.as_fd()),
            false => reactor.forget(&mut self.socket),
        }
    }
    fn share(&mut self) -> io::Result<Option<SoftAcceptor>> {
        let socket = std::net::TcpListener::from(self.socket.as_fd().try_clone_to_owned()?);
        self.shared = true;
        let socket = TcpListener::from_std(socket);
        Ok(Some(SoftAcceptor::new(socket, self.paced, true, self.groups.share())))
    }
}

impl LinkSetup for SoftLink {
    fn open(
        _: &mut SoftRnic,
        addr: SocketAddr,
        opts: &ListenOpts,
    ) -> Result<(SoftAcceptor, SocketAddr), RnicError> {
        let socket = sys::listen(&addr, opts.backlog.max(1), opts.v6_only)
            .map_err(|e| RnicError::os("listen", &e))?;
        let addr = socket.local_addr().map_err(|e| RnicError::os("getsockname", &e))?;
        if let Some(class) = opts.path.traffic_class {
            sys::traffic_class(&socket, addr.is_ipv6(), class)
                .map_err(|e| RnicError::os("IP_TOS", &e))?;
        }
        let paced = sys::unpaced_listener(&socket);
        // The connections that it accepts begin so.
        let _ = sys::no_delay(&socket, true);
        let socket = TcpListener::from_std(socket);
        Ok((SoftAcceptor::new(socket, paced, false, GroupTaker::new(opts.groups)), addr))
    }

    fn begin_startup(driver: &mut SoftRnic, listener: u32, peer: SoftPeer, now: Time) {
        let (stream, peer) = match peer {
            SoftPeer::Tcp(stream, peer) => (stream, peer),
            SoftPeer::Stream(group, stream) => {
                return driver.accept_stream(listener, (group, stream), now);
            }
            SoftPeer::Passed(conn) => return driver.take_passed(listener, conn, now),
        };
        let Ok(listening) = driver.listening.listeners.get(listener) else { return };
        let (deadline, addr) = (now + listening.handshake_timeout, listening.addr);
        let local = match addr.ip().is_unspecified() {
            true => stream.local_addr(),
            false => Ok(addr),
        };
        // Fails if the peer has gone already.
        let Ok(local) = local else { return };
        sys::paced_between_hosts(&stream, local, peer, listening.acceptor.paced);
        let (engine, owner) = (IwarpEngine::responder(), LinkOwner::Startup(listener));
        let greets = listening.acceptor.groups().expects_greetings();
        let stream = LinkStream::Own(share(stream));
        let mut link = SoftLink::new(stream, (local, peer), engine, owner, true);
        if greets {
            link.sniffer = HelloSniffer::Watching;
        }
        let Ok(id) = driver.links.insert(link) else { return };
        driver.turns.timers.set(Source::Link(id), deadline);
        driver.add_startup(id, now);
        // The request mostly comes with the connection.
        driver.make_hot(Source::Link(id));
        driver.serve_link(id, now);
    }

    fn take_groups(driver: &mut SoftRnic, listener: u32, takes: TakesGroups) {
        if let Ok(listening) = driver.listening.listeners.get_mut(listener) {
            listening.acceptor.groups.set(takes);
        }
    }

    fn is_starting(driver: &SoftRnic, id: u32) -> bool {
        driver.links.get(id).is_ok_and(|l| matches!(l.base.owner, LinkOwner::Startup(_)))
    }

    fn serve_startup(driver: &mut SoftRnic, id: u32, now: Time) {
        if let Ok(link) = driver.links.get_mut(id) {
            link.ready.readable = true;
        }
        driver.serve_link(id, now);
    }

    fn drop_startup(driver: &mut SoftRnic, id: u32) {
        driver.cut_link(id);
    }

    fn accepted_peers(driver: &SoftRnic) -> HashSet<SocketAddr> {
        let own = driver.links.iter().filter(|(_, l)| l.stream.own().is_some());
        own.map(|(_, l)| l.addrs.1).chain(driver.parts.groups.accepted_peers()).collect()
    }

    fn fail_attempts(driver: &mut SoftRnic, starved: &StarvedListener, now: Time) {
        driver.fail_calls_to(starved, now);
    }

    fn answer(
        driver: &mut SoftRnic,
        id: u32,
        qp: Qp,
        param: &ConnParam<'_>,
    ) -> Result<((SocketAddr, SocketAddr), Duration), RnicError> {
        let config = driver.config(qp, param)?;
        let link = driver.links.get_mut(id)?;
        let addrs = link.addrs;
        if !param.no_delay
            && let Some(stream) = link.stream.own()
        {
            let _ = sys::no_delay(&**stream, false);
        }
        link.engine.accept(config, param.private_data)?;
        for buf in std::mem::take(&mut driver.qps.get_mut(qp.0)?.recvs) {
            // The engine's queue is as deep as the queue pair's.
            let posted = link.engine.post_recv(buf);
            debug_assert!(posted.is_ok(), "{posted:?}");
        }
        Ok((addrs, param.timeout))
    }

    fn detached(driver: &mut SoftRnic, id: u32, link: &mut SoftLink) {
        driver.parts.unwatched.retain(|unwatched| *unwatched != id);
        driver.make_cold(Source::Link(id));
        if let Some(addr) = link.dialed.take() {
            driver.parts.groups.uncount_dial(addr);
        }
    }

    fn rests(driver: &SoftRnic, id: u32) -> bool {
        let read_ahead = driver.parts.unparsed.as_ref().is_some_and(|bytes| bytes.link == id);
        !read_ahead && driver.links.get(id).is_ok_and(SoftLink::rests)
    }

    fn moved(driver: &mut SoftRnic, id: u32, (qp, pd): (u32, u32)) {
        let Ok(link) = driver.links.get_mut(id) else { return };
        link.engine.move_to(qp, pd);
        // Its place in a list of the other RNIC is gone.
        link.short_write = ShortWrite::default();
        // Edges may have passed while the descriptor was in no reactor. The turn that follows registers it.
        link.note_ready(Ready { readable: true, writable: true, hup: false });
        driver.enqueue(Source::Link(id));
    }

    fn adopted(driver: &mut SoftRnic, id: u32) -> Result<(), RnicError> {
        // It is registered when its request is answered, which follows.
        driver.parts.unwatched.push(id);
        Ok(())
    }

    fn answered(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.parts.unwatched.retain(|unwatched| *unwatched != id);
        if driver.links.get(id).is_ok_and(|l| l.ready.readable) {
            driver.enqueue(Source::Link(id));
        }
        if driver.write_link(id) {
            driver.enqueue(Source::Link(id));
        }
        driver.finish_turn(id, now);
        driver.write_groups();
    }

    fn refuse(
        driver: &mut SoftRnic,
        id: u32,
        private_data: &[u8],
        now: Time,
    ) -> Result<(), RnicError> {
        driver.links.get_mut(id)?.engine.reject(private_data)?;
        driver.release_request(id);
        driver.turns.timers.set(Source::Link(id), now + super::serve::LAST_BYTES_LIMIT);
        driver.enqueue(Source::Link(id));
        Ok(())
    }

    fn dial(
        driver: &mut SoftRnic,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<Conn, RnicError> {
        driver.begin_dial(qp, addr, param, now)
    }

    fn serve_opening(driver: &mut SoftRnic, id: u32, now: Time) {
        driver.serve_dial(id, now);
    }
    fn opening_timed_out(driver: &mut SoftRnic, id: u32) {
        driver.dial_timed_out(id);
    }
    fn drop_opening(driver: &mut SoftRnic, id: u32) {
        driver.drop_dial(id);
    }
    fn fail_opening(driver: &mut SoftRnic, id: u32, error: RnicError) {
        driver.fail_dial(id, error);
    }

    fn close_openings(driver: &mut SoftRnic, listener: u32) {
        driver.refuse_waiting(listener);
    }

    fn closed(driver: &mut SoftRnic, id: u32, link: SoftLink) {
        if let Some(addr) = link.dialed {
            driver.parts.groups.uncount_dial(addr);
            if let Some(stream) = link.stream.grouped() {
                driver.parts.groups.note_messages(addr, stream);
            }
        }
        if let Some(Ok(queue)) =
            link.intake.holds_recv_of.map(|srq| driver.objects.srqs.get_mut(srq))
        {
            queue.forget_begun(id);
        }
        let stream = match &link.stream {
            LinkStream::Own(stream) => stream,
            LinkStream::Grouped(stream) => {
                if let Some(next) = stream.next_conn().filter(|_| !link.ending.is_orderly()) {
                    let _ = sys::abort_on_close(next);
                }
                return driver.end_stream(stream, id, &link);
            }
        };
        if !link.ending.is_orderly() {
            let _ = sys::abort_on_close(&**stream);
        }
        if link.attendant.reads {
            // Ends the read of the thread that attends the link.
            stream.end_reads();
        }
        if link.attendant.lent {
            // The program may keep the stream open.
            stream.end(link.ending.is_orderly());
        }
    }
}

impl SoftRnic {
    /// Fails connection attempts of this RNIC to a starved listener of this process.
    fn fail_calls_to(&mut self, starved: &StarvedListener, now: Time) {
        let StarvedListener { at, errno, taken, .. } = starved;
        let calls = |l: &SoftLink| {
            let (local, peer) = l.addrs;
            let here = peer.port() == at.port() && peer.ip() == local.ip();
            here && (at.ip().is_unspecified() || at.ip() == peer.ip()) && !taken.contains(&local)
        };
        let dials = |l: &SoftLink| {
            let begun_here =
                matches!(l.base.owner, LinkOwner::Qp(_)) && l.base.began_before(starved);
            begun_here && l.stream.own().is_some() && l.engine.state() == QpState::Connecting
        };
        self.fail_waiting_dials(starved);
        let own = self.links.iter().filter(|(_, l)| dials(l) && calls(l));
        let own: Vec<u32> = own.map(|(link, _)| link).collect();
        for link in own {
            let Ok(l) = self.links.get_mut(link) else { continue };
            l.inbound = Inbound::Broken;
            l.ending.reset();
            l.engine.handle_broken(*errno);
            self.finish_turn(link, now);
        }
    }

    /// Reports a connection request that has come completely.
    pub(super) fn handle_request(&mut self, link: u32, listener: u32, private_data: Vec<u8>) {
        let Ok(addrs) = self.links.get(link).map(|l| l.addrs) else { return };
        self.report_request(link, listener, addrs, private_data);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::driver::STARVED_PAUSE;
    use crate::rnic::{Listener, PathAttr, Ready, Rnic, SharedPort};
    use crate::sys::RandomSource;

    /// How many connections the listener has accepted by `now`.
    fn accepted(rnic: &mut SoftRnic, now: Time) -> usize {
        while rnic.progress(now) {}
        SoftLink::accepted_peers(rnic).len()
    }

    fn acceptor(rnic: &SoftRnic) -> &SoftAcceptor {
        rnic.listening.listeners.iter().map(|(_, l)| &l.acceptor).next().unwrap()
    }

    /// Connects, and waits until the connection waits in the kernel.
    fn call(rnic: &SoftRnic, addr: SocketAddr) -> std::net::TcpStream {
        let caller = std::net::TcpStream::connect(addr).unwrap();
        while !acceptor(rnic).has_peer() {
            std::thread::yield_now();
        }
        caller
    }

    /// A listener whose port another RNIC may share, and the reactor.
    struct Shared {
        poll: mio::Poll,
        rnic: SoftRnic,
        listener: Listener,
        addr: SocketAddr,
        _port: SharedPort,
    }

    fn shared() -> Shared {
        let poll = mio::Poll::new().unwrap();
        let registry = poll.registry().try_clone().unwrap();
        let mut rnic = SoftRnic::new(registry, 0, RandomSource::seeded(1));
        let opts = ListenOpts {
            backlog: 8,
            v6_only: false,
            handshake_timeout: Duration::from_secs(3600),
            port_held: false,
            path: PathAttr::default(),
            groups: TakesGroups::Yes,
        };
        let listener = rnic.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &opts).unwrap();
        let addr = rnic.listener_addr(listener).unwrap();
        let port = rnic.share_listener(listener).unwrap();
        assert_eq!(accepted(&mut rnic, Time::ZERO), 0);
        Shared { poll, rnic, listener, addr, _port: port }
    }

    /// The kernel may have woken only this reactor for them, which reports them no more.
    #[test]
    fn a_listener_that_rests_takes_what_has_come() {
        let Shared { mut rnic, listener, addr, .. } = shared();
        let _caller = call(&rnic, addr);
        rnic.rest_listener(listener, true).unwrap();
        assert_eq!(accepted(&mut rnic, Time::ZERO), 1);
    }

    #[test]
    fn a_shared_listener_that_cannot_be_registered_looks_for_connections_itself() {
        let Shared { mut poll, mut rnic, listener, addr, _port } = shared();
        rnic.rest_listener(listener, true).unwrap();
        assert_eq!(accepted(&mut rnic, Time::ZERO), 0);
        // The kernel refuses to register a descriptor twice.
        sys::watch_exclusively(poll.registry(), acceptor(&rnic).socket.as_fd(), 1).unwrap();
        rnic.rest_listener(listener, false).unwrap();
        assert_eq!(accepted(&mut rnic, Time::ZERO), 0);
        let pause = |n: u32| Time::ZERO + STARVED_PAUSE * n;
        let mut callers = Vec::new();
        for n in 1..=3 {
            assert_eq!(rnic.next_timeout(), Some(pause(n)));
            callers.push(call(&rnic, addr));
            assert_eq!(accepted(&mut rnic, pause(n)), callers.len(), "pause {n}");
        }
        sys::unwatch(poll.registry(), acceptor(&rnic).socket.as_fd());
        assert_eq!(accepted(&mut rnic, pause(4)), 3);
        // From here on the reactor reports connections.
        callers.push(call(&rnic, addr));
        let mut events = mio::Events::with_capacity(8);
        poll.poll(&mut events, Some(Duration::ZERO)).unwrap();
        let ready = Ready { readable: true, ..Ready::default() };
        events.iter().for_each(|event| rnic.handle_ready(event.token().0, ready));
        assert_eq!(accepted(&mut rnic, pause(4)), 4);
    }
}
