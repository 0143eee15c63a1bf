//! The connecting side: a TCP connect, then an engine.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::TcpStream;

use super::SoftRnic;
use super::link::SoftLink;
use crate::driver::{Conn, LinkOwner, Source};
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::{AttemptNumber, CmEvent, ConnParam, Qp, RnicError};
use crate::sys;
use crate::time::Time;

/// A TCP connect under way.
pub(super) struct SoftDial {
    stream: TcpStream,
    qp: u32,
    no_delay: bool,
    timeout: Duration,
    deadline: Time,
    config: Config,
    private_data: Vec<u8>,
    attempt: AttemptNumber,
    /// On the ready list.
    pub(super) queued: bool,
}

/// Bytes of a segment before the kernel is asked, or if it does not report it (RFC 9293 section
/// 3.7.1).
const DEFAULT_MSS: usize = 536;

impl SoftRnic {
    /// The engine's configuration for a queue pair.
    pub(super) fn config(&self, qp: Qp, param: &ConnParam<'_>) -> Result<Config, RnicError> {
        let attr = &self.qps.get(qp.0)?.attr;
        Ok(Config {
            qp: qp.0,
            pd: attr.pd.0,
            crc: param.crc,
            ird: param.ird.min(self.caps.max_ird),
            ord: param.ord.min(self.caps.max_ord),
            max_send_wr: attr.max_send_wr,
            max_recv_wr: attr.max_recv_wr,
            uses_srq: attr.srq.is_some(),
            mss: DEFAULT_MSS,
            peer_to_peer: false,
        })
    }

    /// Begins to connect a queue pair.
    pub(super) fn begin_dial(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<Conn, RnicError> {
        let config = self.config(qp, param)?;
        let attempt = AttemptNumber::take();
        let stream = sys::connect_nonblocking(&addr, param.bind.as_ref(), param.path.traffic_class)
            .map_err(|e| RnicError::os("connect", &e))?;
        let dial = SoftDial {
            stream: TcpStream::from_std(stream),
            qp: qp.0,
            no_delay: param.no_delay,
            timeout: param.timeout,
            deadline: now + param.timeout,
            config,
            private_data: param.private_data.to_vec(),
            attempt,
            queued: false,
        };
        // On loopback the peer's host answers within the call.
        if addr.ip().to_canonical().is_loopback()
            && let Ok(peer) = dial.stream.peer_addr()
            && let Ok(local) = dial.stream.local_addr()
        {
            let deadline = dial.deadline;
            let link = self.start_engine(dial, (local, peer))?;
            self.turns.timers.set(Source::Link(link), deadline);
            // The request leaves at once. If it cannot, the next turn says why.
            if self.write_link(link) || self.links.get(link).is_ok_and(|l| !l.ready.writable) {
                self.enqueue(Source::Link(link));
            }
            self.watch_link(link).inspect_err(|_| self.cut_link(link))?;
            return Ok(Conn::Link(link));
        }
        let id = self.parts.dials.insert(dial)?;
        let source = Source::Opening(id);
        let dial = self.parts.dials.get_mut(id)?;
        if let Err(e) = self.reactor.watch(&mut dial.stream, source, Interest::WRITABLE) {
            self.parts.dials.remove(id)?;
            return Err(e);
        }
        self.turns.timers.set(source, now + param.timeout);
        // The result may be there already.
        self.enqueue(source);
        Ok(Conn::Opening(id))
    }

    /// Looks whether a connect has succeeded or failed.
    pub(super) fn serve_dial(&mut self, id: u32, now: Time) {
        let Ok(dial) = self.parts.dials.get_mut(id) else { return };
        dial.queued = false;
        match dial.stream.take_error() {
            Ok(Some(e)) | Err(e) => return self.fail_dial(id, RnicError::os("connect", &e)),
            Ok(None) => {}
        }
        let peer = match dial.stream.peer_addr() {
            Ok(peer) => peer,
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return,
            Err(e) => return self.fail_dial(id, RnicError::os("connect", &e)),
        };
        match dial.stream.local_addr() {
            Ok(local) => self.dial_succeeded(id, (local, peer), now),
            Err(e) => self.fail_dial(id, RnicError::os("getsockname", &e)),
        }
    }

    /// A TCP connect has succeeded.
    fn dial_succeeded(&mut self, id: u32, addrs: (SocketAddr, SocketAddr), now: Time) {
        let Ok(mut dial) = self.parts.dials.remove(id) else { return };
        self.turns.timers.clear(Source::Opening(id));
        self.reactor.forget(&mut dial.stream);
        let (qp, deadline) = (dial.qp, dial.deadline.max(now));
        match self.start_engine(dial, addrs) {
            Ok(link) => {
                self.turns.timers.set(Source::Link(link), deadline);
                if let Ok(pair) = self.qps.get_mut(qp) {
                    pair.conn = Conn::Link(link);
                }
                self.serve_link(link, now);
            }
            Err(error) => self.report_failed_dial(qp, error),
        }
    }

    /// Gives an established TCP connection its engine. Returns the link, which no reactor watches yet.
    fn start_engine(
        &mut self,
        dial: SoftDial,
        addrs: (SocketAddr, SocketAddr),
    ) -> Result<u32, RnicError> {
        if dial.no_delay {
            let _ = sys::no_delay(&dial.stream, true);
        }
        let mut engine = IwarpEngine::initiator(dial.config, &dial.private_data)?;
        let pair = self.qps.get_mut(dial.qp)?;
        for buf in std::mem::take(&mut pair.recvs) {
            engine.post_recv(buf)?;
        }
        pair.addrs = Some(addrs);
        // Nothing comes before the request has left.
        let mut link = SoftLink::new(dial.stream, addrs, engine, LinkOwner::Qp(dial.qp), false);
        link.base.attempt = Some(dial.attempt);
        let id = self.links.insert(link)?;
        // The answer is a round trip away.
        self.make_hot(id);
        Ok(id)
    }

    pub(super) fn dial_timed_out(&mut self, id: u32) {
        if let Ok(dial) = self.parts.dials.get(id) {
            let timeout = dial.timeout;
            self.fail_dial(id, RnicError::Timeout(timeout));
        }
    }

    pub(super) fn fail_dial(&mut self, id: u32, error: RnicError) {
        if let Ok(dial) = self.parts.dials.get(id) {
            let qp = dial.qp;
            self.drop_dial(id);
            self.report_failed_dial(qp, error);
        }
    }

    fn report_failed_dial(&mut self, qp: u32, error: RnicError) {
        self.kill_qp(qp);
        self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
    }

    pub(super) fn drop_dial(&mut self, id: u32) {
        if let Ok(mut dial) = self.parts.dials.remove(id) {
            self.turns.timers.clear(Source::Opening(id));
            self.reactor.forget(&mut dial.stream);
        }
    }
}
