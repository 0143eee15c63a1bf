//! The connecting side: a TCP connect, then an engine.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::TcpStream;

use super::SoftRnic;
use super::link::{SoftLink, SoftLinkOwner};
use super::qp::SoftConn;
use super::timers::SoftSource;
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::{CmEvent, ConnParam, Qp, QpState, RnicError, RnicEvent};
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
    /// On the ready list.
    pub(super) queued: bool,
}

/// Bytes of a segment if the kernel does not report it (RFC 9293 section 3.7.1).
const DEFAULT_MSS: usize = 536;

/// The segment size of a connection, in bytes.
pub(super) fn mss(stream: &TcpStream) -> usize {
    sys::max_segment(stream).ok().filter(|m| *m > 0).unwrap_or(DEFAULT_MSS)
}

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
        let config = self.config(qp, param)?;
        let stream = sys::connect_nonblocking(&addr, param.bind.as_ref())
            .map_err(|e| RnicError::os("connect", &e))?;
        let id = self.dials.insert(SoftDial {
            stream: TcpStream::from_std(stream),
            qp: qp.0,
            no_delay: param.no_delay,
            timeout: param.timeout,
            deadline: now + param.timeout,
            config,
            private_data: param.private_data.to_vec(),
            queued: false,
        })?;
        let source = SoftSource::Dial(id);
        let token = self.token(source);
        let dial = self.dials.get_mut(id)?;
        if let Err(e) = self.registry.register(&mut dial.stream, token, Interest::WRITABLE) {
            self.dials.remove(id)?;
            return Err(RnicError::os("epoll_ctl", &e));
        }
        self.timers.set(source, now + param.timeout);
        let pair = self.qps.get_mut(qp.0)?;
        pair.conn = SoftConn::Dial(id);
        pair.timeout = param.timeout;
        // On loopback the result is often there already.
        self.enqueue(source);
        Ok(())
    }

    /// Looks whether a connect has succeeded or failed.
    pub(super) fn serve_dial(&mut self, id: u32, now: Time) {
        let Ok(dial) = self.dials.get_mut(id) else { return };
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
            Ok(local) => self.start_engine(id, (local, peer), now),
            Err(e) => self.fail_dial(id, RnicError::os("getsockname", &e)),
        }
    }

    /// Gives an established TCP connection its engine.
    fn start_engine(&mut self, id: u32, addrs: (SocketAddr, SocketAddr), now: Time) {
        let Ok(dial) = self.dials.remove(id) else { return };
        self.timers.clear(SoftSource::Dial(id));
        let mut stream = dial.stream;
        let _ = sys::no_delay(&stream, dial.no_delay);
        sys::roomy_within_host(&stream, addrs.0, addrs.1);
        let config = Config { mss: mss(&stream), ..dial.config };
        let made = IwarpEngine::initiator(config, &dial.private_data)
            .and_then(|mut engine| {
                let pair = self.qps.get_mut(dial.qp)?;
                for buf in std::mem::take(&mut pair.early_recvs) {
                    engine.post_recv(buf)?;
                }
                Ok(engine)
            })
            .and_then(|engine| {
                let _ = self.registry.deregister(&mut stream);
                self.add_link(SoftLink::new(stream, engine, SoftLinkOwner::Qp(dial.qp)))
            });
        match made {
            Ok(link) => {
                if let Ok(pair) = self.qps.get_mut(dial.qp) {
                    pair.conn = SoftConn::Link(link);
                    pair.addrs = Some(addrs);
                }
                self.timers.set(SoftSource::Link(link), dial.deadline.max(now));
            }
            Err(error) => self.report_failed_dial(dial.qp, error),
        }
    }

    pub(super) fn dial_timed_out(&mut self, id: u32) {
        if let Ok(dial) = self.dials.get(id) {
            let timeout = dial.timeout;
            self.fail_dial(id, RnicError::Timeout(timeout));
        }
    }

    pub(super) fn fail_dial(&mut self, id: u32, error: RnicError) {
        if let Ok(dial) = self.dials.get(id) {
            let qp = dial.qp;
            self.drop_dial(id);
            self.report_failed_dial(qp, error);
        }
    }

    fn report_failed_dial(&mut self, qp: u32, error: RnicError) {
        self.kill_qp(qp);
        self.events.push_back(RnicEvent::Cm(CmEvent::ConnectFailed { qp: Qp(qp), error }));
    }

    pub(super) fn drop_dial(&mut self, id: u32) {
        if let Ok(mut dial) = self.dials.remove(id) {
            self.timers.clear(SoftSource::Dial(id));
            let _ = self.registry.deregister(&mut dial.stream);
        }
    }

    /// Puts a link into the table and registers it with the reactor.
    pub(super) fn add_link(&mut self, link: SoftLink) -> Result<u32, RnicError> {
        let id = self.links.insert(link)?;
        let token = self.token(SoftSource::Link(id));
        let both = Interest::READABLE | Interest::WRITABLE;
        let link = self.links.get_mut(id)?;
        if let Err(e) = self.registry.register(&mut link.stream, token, both) {
            self.links.remove(id)?;
            return Err(RnicError::os("epoll_ctl", &e));
        }
        self.enqueue(SoftSource::Link(id));
        Ok(id)
    }
}
