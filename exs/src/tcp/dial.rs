//! The connecting side: a TCP connect, then an engine.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Interest;
use mio::net::TcpStream;

use super::SoftRnic;
use super::deferred::share;
use super::group::{DialPlace, GroupKey, LinkStream};
use super::link::SoftLink;
use crate::driver::{Conn, LinkOwner, Source};
use crate::iwarp::{Config, IwarpEngine};
use crate::rnic::{AttemptNumber, CmEvent, ConnParam, Qp, RnicError};
use crate::sys;
use crate::time::Time;
use crate::wire::group::GroupKind;

/// What a queue pair needs for its connection.
#[derive(Debug)]
pub(super) struct DialPlan {
    pub(super) qp: u32,
    pub(super) addr: SocketAddr,
    bind: Option<SocketAddr>,
    traffic_class: Option<u8>,
    pub(super) no_delay: bool,
    pub(super) timeout: Duration,
    pub(super) deadline: Time,
    pub(super) config: Config,
    pub(super) private_data: Vec<u8>,
    pub(super) attempt: AttemptNumber,
    /// The kind of group that it joins, if any.
    pub(super) group_kind: GroupKind,
    /// Groups that have refused it.
    pub(super) refusals: u32,
    /// Its place among the dials that go on a few at a time; None: it is none of them, or it waits.
    pub(super) place: Option<DialPlace>,
}

impl DialPlan {
    /// The address that the program has chosen for this end.
    pub(super) fn bind(&self) -> Option<SocketAddr> {
        self.bind
    }

    pub(super) fn group_key(&self) -> GroupKey {
        let DialPlan { addr, bind, traffic_class, group_kind, .. } = *self;
        GroupKey { addr, bind, traffic_class, kind: group_kind }
    }
}

/// What a dial waits for.
enum DialWait {
    /// Its TCP connect.
    Connect(TcpStream),
    /// The answer that this group awaits.
    Group(u32),
    /// Its turn among those that go on without a group.
    Turn,
}

/// A connection that has no link yet.
pub(super) struct SoftDial {
    pub(super) plan: DialPlan,
    wait: DialWait,
    /// On the ready list.
    pub(super) queued: bool,
}

impl SoftDial {
    /// A dial that waits for a group.
    pub(super) fn waiting(plan: DialPlan, group: u32) -> SoftDial {
        SoftDial { plan, wait: DialWait::Group(group), queued: false }
    }

    /// A dial that waits for its turn.
    pub(super) fn in_turn(plan: DialPlan) -> SoftDial {
        SoftDial { plan, wait: DialWait::Turn, queued: false }
    }

    /// There is no group for it: it waits for its turn.
    pub(super) fn await_turn(&mut self) {
        self.wait = DialWait::Turn;
    }
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
        let mut plan = DialPlan {
            qp: qp.0,
            addr,
            bind: param.bind,
            traffic_class: param.path.traffic_class,
            no_delay: param.no_delay,
            timeout: param.timeout,
            deadline: now + param.timeout,
            config: self.config(qp, param)?,
            private_data: param.private_data.to_vec(),
            attempt: AttemptNumber::take(),
            group_kind: GroupKind::Many,
            refusals: 0,
            place: None,
        };
        let conn = match self.parts.groups.kind_for(&plan, param.grouping, now) {
            Some(kind) => {
                plan.group_kind = kind;
                self.dial_in_group(plan, now)?
            }
            None if self.parts.groups.paced.has_queue(&addr) => self.dial_in_turn(plan)?,
            None => self.dial_tcp(plan, now)?,
        };
        self.parts.groups.count_dial(addr, now);
        Ok(conn)
    }

    /// Begins a connection of its own for a queue pair.
    pub(super) fn dial_tcp(&mut self, plan: DialPlan, now: Time) -> Result<Conn, RnicError> {
        let stream = sys::connect_nonblocking(&plan.addr, plan.bind.as_ref(), plan.traffic_class)
            .map_err(|e| RnicError::os("connect", &e))?;
        let stream = TcpStream::from_std(stream);
        let deadline = plan.deadline.max(now);
        // On loopback the peer's host answers within the call.
        if plan.addr.ip().to_canonical().is_loopback()
            && let Ok(peer) = stream.peer_addr()
            && let Ok(local) = stream.local_addr()
        {
            let link = self.start_engine(plan, stream, (local, peer))?;
            self.turns.timers.set(Source::Link(link), deadline);
            // The request leaves at once. If it cannot, the next turn says why.
            if self.write_link(link) || self.links.get(link).is_ok_and(|l| !l.ready.writable) {
                self.enqueue(Source::Link(link));
            }
            self.watch_link(link).inspect_err(|_| self.cut_uncounted(link))?;
            return Ok(Conn::Link(link));
        }
        let dial = SoftDial { plan, wait: DialWait::Connect(stream), queued: false };
        let id = self.parts.dials.insert(dial)?;
        let source = Source::Opening(id);
        if let DialWait::Connect(stream) = &mut self.parts.dials.get_mut(id)?.wait
            && let Err(e) = self.reactor.watch(stream, source, Interest::WRITABLE)
        {
            self.parts.dials.remove(id)?;
            return Err(e);
        }
        self.turns.timers.set(source, deadline);
        // The result may be there already.
        self.enqueue(source);
        Ok(Conn::Opening(id))
    }

    /// Closes a link whose dial fails, and was not counted yet.
    fn cut_uncounted(&mut self, link: u32) {
        if let Ok(link) = self.links.get_mut(link) {
            link.dialed = None;
        }
        self.cut_link(link);
    }

    /// Looks whether a connect has succeeded or failed.
    pub(super) fn serve_dial(&mut self, id: u32, now: Time) {
        let Ok(dial) = self.parts.dials.get_mut(id) else { return };
        dial.queued = false;
        let DialWait::Connect(stream) = &dial.wait else { return };
        match stream.take_error() {
            Ok(Some(e)) | Err(e) => return self.fail_dial(id, RnicError::os("connect", &e)),
            Ok(None) => {}
        }
        let peer = match stream.peer_addr() {
            Ok(peer) => peer,
            Err(e) if e.raw_os_error() == Some(libc::ENOTCONN) => return,
            Err(e) => return self.fail_dial(id, RnicError::os("connect", &e)),
        };
        match stream.local_addr() {
            Ok(local) => self.dial_succeeded(id, (local, peer), now),
            Err(e) => self.fail_dial(id, RnicError::os("getsockname", &e)),
        }
    }

    /// A TCP connect has succeeded.
    fn dial_succeeded(&mut self, id: u32, addrs: (SocketAddr, SocketAddr), now: Time) {
        let Ok(dial) = self.parts.dials.remove(id) else { return };
        self.turns.timers.clear(Source::Opening(id));
        let DialWait::Connect(mut stream) = dial.wait else { return };
        self.reactor.forget(&mut stream);
        let (qp, addr, deadline) = (dial.plan.qp, dial.plan.addr, dial.plan.deadline.max(now));
        match self.start_engine(dial.plan, stream, addrs) {
            Ok(link) => {
                self.turns.timers.set(Source::Link(link), deadline);
                if let Ok(pair) = self.qps.get_mut(qp) {
                    pair.conn = Conn::Link(link);
                }
                self.serve_link(link, now);
            }
            Err(error) => {
                self.parts.groups.uncount_dial(addr);
                self.report_failed_dial(qp, error);
            }
        }
    }

    /// Gives an established TCP connection its engine. Returns the link, which no reactor watches yet.
    fn start_engine(
        &mut self,
        plan: DialPlan,
        stream: TcpStream,
        addrs: (SocketAddr, SocketAddr),
    ) -> Result<u32, RnicError> {
        if plan.no_delay {
            let _ = sys::no_delay(&stream, true);
        }
        let mut engine = IwarpEngine::initiator(plan.config, &plan.private_data)?;
        let pair = self.qps.get_mut(plan.qp)?;
        for buf in std::mem::take(&mut pair.recvs) {
            engine.post_recv(buf)?;
        }
        pair.addrs = Some(addrs);
        let stream = LinkStream::Own(share(stream));
        // Nothing comes before the request has left.
        let mut link = SoftLink::new(stream, addrs, engine, LinkOwner::Qp(plan.qp), false);
        link.base.attempt = Some(plan.attempt);
        (link.dialed, link.place) = (Some(plan.addr), plan.place);
        let id = self.links.insert(link)?;
        // The answer is a round trip away.
        self.make_hot(Source::Link(id));
        Ok(id)
    }

    pub(super) fn dial_timed_out(&mut self, id: u32) {
        if let Ok(dial) = self.parts.dials.get(id) {
            let timeout = dial.plan.timeout;
            self.fail_dial(id, RnicError::Timeout(timeout));
        }
    }

    pub(super) fn fail_dial(&mut self, id: u32, error: RnicError) {
        if let Ok(dial) = self.parts.dials.get(id) {
            let qp = dial.plan.qp;
            self.drop_dial(id);
            self.report_failed_dial(qp, error);
        }
    }

    pub(super) fn report_failed_dial(&mut self, qp: u32, error: RnicError) {
        self.kill_qp(qp);
        self.emit(CmEvent::ConnectFailed { qp: Qp(qp), error });
    }

    pub(super) fn drop_dial(&mut self, id: u32) {
        if let Ok(mut dial) = self.parts.dials.remove(id) {
            self.turns.timers.clear(Source::Opening(id));
            self.parts.groups.uncount_dial(dial.plan.addr);
            match &mut dial.wait {
                DialWait::Connect(stream) => self.reactor.forget(stream),
                DialWait::Group(group) => self.parts.groups.forget_dial(*group, id),
                DialWait::Turn => self.parts.groups.paced.forget(&dial.plan.addr, id),
            }
        }
    }
}
