//! The listening side: sockets, start-ups, answers.
//!
//! A start-up is a link whose owner is the listener until the request has come.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::{TcpListener, TcpStream};

use super::SoftRnic;
use super::dial::mss;
use super::directions::{Ending, Inbound};
use super::link::SoftLink;
use crate::driver::{Acceptor, Conn, LinkOwner, LinkSetup, ReactorShare, Source};
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::{ConnParam, ListenOpts, Qp, QpState, RnicError};
use crate::sys::{self, Paced};
use crate::time::Time;

/// A listening socket.
pub struct SoftAcceptor {
    socket: TcpListener,
    paced: Paced,
}

impl Acceptor for SoftAcceptor {
    type Peer = TcpStream;

    fn accept(&mut self) -> io::Result<TcpStream> {
        self.socket.accept().map(|(stream, _)| stream)
    }
    fn watch(&mut self, reactor: &ReactorShare, source: Source) -> Result<(), RnicError> {
        reactor.watch(&mut self.socket, source, Interest::READABLE)
    }
    fn forget(&mut self, reactor: &ReactorShare) {
        reactor.forget(&mut self.socket);
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
        let paced = sys::unpaced_listener(&socket);
        Ok((SoftAcceptor { socket: TcpListener::from_std(socket), paced }, addr))
    }

    fn begin_startup(driver: &mut SoftRnic, listener: u32, stream: TcpStream, now: Time) {
        let Ok(listening) = driver.listening.listeners.get(listener) else { return };
        let deadline = now + listening.handshake_timeout;
        let _ = sys::no_delay(&stream, true);
        if let (Ok(local), Ok(peer)) = (stream.local_addr(), stream.peer_addr()) {
            sys::unpaced_within_host(&stream, local, peer, listening.acceptor.paced);
            sys::roomy_within_host(&stream, local, peer);
        }
        let link = SoftLink::new(stream, IwarpEngine::responder(), LinkOwner::Startup(listener));
        // If the registration fails, the peer is dropped and sees a reset.
        let Ok(id) = driver.add_link(link) else { return };
        driver.enqueue(Source::Link(id));
        driver.turns.timers.set(Source::Link(id), deadline);
        driver.add_startup(id, now);
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

    fn fail_own_attempts(driver: &mut SoftRnic, listener: u32, errno: i32, now: Time) {
        driver.fail_own_calls(listener, errno, now);
    }

    fn answer(
        driver: &mut SoftRnic,
        id: u32,
        qp: Qp,
        param: &ConnParam<'_>,
    ) -> Result<((SocketAddr, SocketAddr), Duration), RnicError> {
        let config = driver.config(qp, param)?;
        let link = driver.links.get_mut(id)?;
        let addrs = link.addrs().map_err(|e| RnicError::os("getpeername", &e))?;
        let _ = sys::no_delay(&link.stream, param.no_delay);
        let config = Config { mss: mss(&link.stream), ..config };
        link.engine.accept(config, param.private_data)?;
        for buf in std::mem::take(&mut driver.qps.get_mut(qp.0)?.recvs) {
            // The engine's queue is as deep as the queue pair's.
            let posted = link.engine.post_recv(buf);
            debug_assert!(posted.is_ok(), "{posted:?}");
        }
        Ok((addrs, param.timeout))
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
        driver.begin_dial(qp, addr, param, now).map(Conn::Opening)
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

    fn closed(driver: &mut SoftRnic, id: u32, link: SoftLink) {
        if let Some(Ok(queue)) =
            link.intake.holds_recv_of.map(|srq| driver.objects.srqs.get_mut(srq))
        {
            queue.forget_begun(id);
        }
        if link.ending != Ending::Orderly {
            let _ = sys::abort_on_close(&link.stream);
        }
    }
}

impl SoftRnic {
    /// Fails connection attempts of this RNIC to a paused listener.
    fn fail_own_calls(&mut self, id: u32, errno: i32, now: Time) {
        let Ok(listening) = self.listening.listeners.get(id) else { return };
        let at = listening.addr;
        let calls = |l: &SoftLink| {
            let (peer, local) = (l.stream.peer_addr().ok()?, l.stream.local_addr().ok()?);
            let here = peer.port() == at.port() && peer.ip() == local.ip();
            (here && (at.ip().is_unspecified() || at.ip() == peer.ip())).then_some(local)
        };
        let dials = |l: &SoftLink| {
            matches!(l.base.owner, LinkOwner::Qp(_)) && l.engine.state() == QpState::Connecting
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
            l.inbound = Inbound::Broken;
            l.ending.reset();
            l.engine.handle_broken(errno);
            self.finish_turn(link, now);
        }
    }

    /// Reports a connection request that has come completely.
    pub(super) fn handle_request(&mut self, link: u32, listener: u32, private_data: Vec<u8>) {
        match self.links.get(link).map(SoftLink::addrs) {
            Ok(Ok(addrs)) => self.report_request(link, listener, addrs, private_data),
            // The peer has gone already.
            _ => self.cut_link(link),
        }
    }
}
