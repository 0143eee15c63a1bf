//! Connecting: the engine tries one device after the other, until a device reaches the peer.
//!
//! Each attempt has a queue pair and a session of its own, since devices differ in what a session
//! must know. After an attempt that fails, the engine begins the next while the time for connecting
//! lasts. An EXS peer that refuses has answered for all devices.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use super::device::Device;
use super::domain::Place;
use super::post::Ticket;
use super::sock::{Sock, State};
use super::{Engine, Error, SockId, unreachable};
use crate::ids::OpId;
use crate::progress::event::{Bufs, EventKind, Readiness};
use crate::progress::host::check_scope;
use crate::progress::options::Transport;
use crate::progress::route::{Route, Verdict};
use crate::rnic::{ConnParam, Qp, RnicError};
use crate::session::{Session, SessionError};
use crate::time::Time;
use crate::trace::info;

/// The most time for an attempt that others can follow. Such an attempt also has at most a third of
/// the time for connecting. So a device whose network swallows what is sent cannot use that time
/// up.
const ATTEMPT_MAX: Duration = Duration::from_secs(3);

/// The name of the shared-memory device.
const SHM_NAME: &str = "shm";

/// A connect under way.
pub(super) struct Dial {
    addr: SocketAddr,
    timeout: Duration,
    deadline: Time,
    /// The devices that the engine has still to try.
    left: VecDeque<usize>,
    /// The names of devices that were not worth a try, or come last, and why.
    passed: Vec<(String, String)>,
    /// The names of devices that were tried, and why they failed.
    failed: Vec<(String, String)>,
    /// The error that the connect will report: the last failure, or the first failure of this
    /// host's own (`is_ours`).
    last: Option<Error>,
}

/// True for a failure of this host or of this process itself: a limit, or a missing right. The
/// answers that other devices get from the peer do not explain it. So the connect ends with this
/// error if no device succeeds.
fn is_ours(error: &Error) -> bool {
    matches!(
        error.errno(),
        libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS | libc::EPERM | libc::EACCES
    )
}

impl Dial {
    /// The address of the peer.
    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Why the engine has taken the device of this attempt.
    fn reason(&self, by: Transport, pinned: bool) -> String {
        if pinned {
            return "it was asked for".to_owned();
        }
        let others = self.failed.iter().map(|(name, why)| format!("{name}: {why}"));
        let passed = self.passed.iter().map(|(name, why)| format!("{name}: {why}"));
        let others: Vec<String> = others.chain(passed).collect();
        let only_shm = others.len() == 1 && others[0].starts_with(SHM_NAME);
        let others = others.join("; ");
        match (by, others.is_empty()) {
            (Transport::Soft, true) => "there is no RDMA device to use".to_owned(),
            (Transport::Soft, false) if only_shm => {
                format!("there is no better way to the peer ({others})")
            }
            (Transport::Soft, false) => format!("no RDMA device has the peer ({others})"),
            (Transport::Shm, true) => "the peer is on this host".to_owned(),
            (Transport::Shm, false) => format!("the peer is on this host ({others})"),
            (_, true) => format!("the way to {} goes by it", self.addr),
            (_, false) => format!("the way to {} goes by it ({others})", self.addr),
        }
    }

    /// Notes the failure of an attempt, or of a device that could not be asked for a way to the
    /// peer.
    fn note(&mut self, name: String, error: Error) {
        let why = match &error {
            Error::Connect { cause, .. } => cause.to_string(),
            Error::Refused { cause, .. } => cause.to_string(),
            other => other.to_string(),
        };
        if !self.last.as_ref().is_some_and(is_ours) {
            self.last = Some(error);
            // The failure that the connect reports is the last of the list.
            self.failed.push((name, why));
        } else {
            self.failed.insert(self.failed.len() - 1, (name, why));
        }
    }

    /// The error of a connect that has failed.
    fn error(mut self) -> Error {
        let told = self.failed.pop();
        // A peer that no device reaches does not share memory either, which explains nothing.
        self.failed.retain(|(name, _)| name != SHM_NAME);
        let before = match (told, &self.failed[..]) {
            (None, _) | (_, []) => String::new(),
            (Some(_), others) => {
                let each = others.iter().map(|(name, why)| format!("by {name}: {why}"));
                format!(" (before that, {})", each.collect::<Vec<_>>().join("; "))
            }
        };
        match self.last.take() {
            Some(Error::Connect { addr, cause, .. }) => Error::Connect { addr, cause, before },
            Some(other) => other,
            None => {
                let each = self.passed.iter().map(|(name, why)| format!("{name}: {why}"));
                let each = each.collect::<Vec<_>>().join("; ");
                Error::NoDevice {
                    why: format!("no RDMA device has a way to {} ({each})", self.addr),
                }
            }
        }
    }
}

/// The destination of a connect to the unspecified address. As with TCP, it is the address that the
/// socket is bound to, or else the loopback address (ip(7): INADDR_ANY; RFC 1122 section 3.2.1.3
/// leaves it open).
///
/// A link-local destination without an interface gets that of the local address: a socket that is
/// bound to a link-local address has an interface (RFC 4007 section 5).
pub(super) fn destination(mut addr: SocketAddr, bind: Option<SocketAddr>) -> SocketAddr {
    if let (SocketAddr::V6(to), Some(SocketAddr::V6(own))) = (&mut addr, bind)
        && to.scope_id() == 0
        && to.ip().is_unicast_link_local()
        && own.ip().is_unicast_link_local()
    {
        to.set_scope_id(own.scope_id());
    }
    let bound = bind.map(|b| b.ip()).filter(|ip| !is_none(*ip));
    let ip = match (addr.ip(), bound) {
        (ip, _) if !is_none(ip) => return addr,
        (IpAddr::V4(_), Some(IpAddr::V4(ip))) => ip.into(),
        (IpAddr::V4(_), _) => Ipv4Addr::LOCALHOST.into(),
        (IpAddr::V6(to), bound) => match bound {
            Some(IpAddr::V6(ip)) if ip.to_ipv4_mapped().is_some() => ip.into(),
            _ if to.to_ipv4_mapped().is_some() => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
            _ => Ipv6Addr::LOCALHOST.into(),
        },
    };
    addr.set_ip(ip);
    addr
}

/// `0.0.0.0`, `::` or `::ffff:0.0.0.0`.
fn is_none(ip: IpAddr) -> bool {
    ip.to_canonical().is_unspecified()
}

impl Device {
    /// Begins an attempt of a socket by this device.
    fn attempt(
        &mut self,
        (index, s): (u32, &Sock),
        addr: SocketAddr,
        timeout: Duration,
        now: Time,
    ) -> Result<(Qp, Place, Session), RnicError> {
        let session = Session::initiator(s.session_config(self.rnic.caps()));
        let domain = self.enter(s.opts.trust_group.as_deref())?;
        // The socket that gets the connection gets its messages, too.
        let made = self.create_qp(domain, s.racing.parent().map_or(index, |p| p.index));
        // The queue pair, if the device has made it, holds the domain from here on.
        self.leave(domain);
        let (qp, place) = (made?, Place { device: self.index, domain });
        let hello = session.hello();
        let param = ConnParam {
            private_data: &hello,
            ird: self.rnic.caps().max_ird,
            ord: self.rnic.caps().max_ord,
            timeout,
            crc: s.opts.crc,
            no_delay: s.opts.no_delay,
            bind: s.binding.addr(),
            path: s.opts.path.checked(),
            grouping: s.grouping,
        };
        match self.rnic.connect(qp, addr, &param, now) {
            Ok(()) => Ok((qp, place, session)),
            Err(e) => {
                self.destroy_qp(place.domain, qp);
                Err(e)
            }
        }
    }
}

impl Engine {
    pub(crate) fn connect(
        &mut self,
        id: SockId,
        ticket: &Ticket<'_>,
        addr: SocketAddr,
        now: Time,
    ) -> Result<(), Error> {
        let dial = self.plan(id, addr, now)?;
        let s = self.sockets.find(id)?;
        s.grouping = s.opts.link_group.rule(ticket.group_use());
        let op = self.book(id, ticket, EventKind::Connect, Bufs::None);
        // An error that is known at once goes to the caller, and no event follows.
        self.launch(id, op, dial, now).inspect_err(|_| drop(self.ops.remove(op)))
    }

    /// The devices that a connect to an address will try.
    pub(super) fn plan(&mut self, id: SockId, addr: SocketAddr, now: Time) -> Result<Dial, Error> {
        let s = self.sockets.fresh(id, "connect")?;
        let (opts, bind) = (s.opts.clone(), s.binding.addr());
        let addr = destination(addr, bind);
        check_scope(addr).map_err(Error::invalid)?;
        let (left, passed, failed) = (VecDeque::new(), Vec::new(), Vec::new());
        let (timeout, last) = (opts.connect_timeout, None);
        let deadline = now + timeout;
        let mut dial = Dial { addr, timeout, deadline, left, passed, failed, last };
        for Verdict { device, name, refused, silent, .. } in
            self.devices.verdicts(&opts, addr, bind, now)?
        {
            match (refused, silent) {
                (Some(cause), _) if opts.transport == Transport::Shm => {
                    return Err(Error::Connect { addr, cause, before: String::new() });
                }
                (Some(source), _) => {
                    let why = source.to_string();
                    let error = Error::Connect { addr, cause: source, before: String::new() };
                    match is_ours(&error) {
                        true => dial.note(name, error),
                        false => dial.passed.push((name, why)),
                    }
                }
                (None, ago) => {
                    dial.left.push_back(device);
                    dial.passed.extend(ago.map(|ago| (name, unreachable::describe(ago))));
                }
            }
        }
        Ok(dial)
    }

    /// Begins a connect, whose end completes the operation `op`.
    pub(super) fn launch(
        &mut self,
        id: SockId,
        op: OpId,
        dial: Dial,
        now: Time,
    ) -> Result<(), Error> {
        let here = self.neighbours.here().index();
        let s = self.sockets.find(id)?;
        s.binding.free_port();
        // Attempts at several addresses of a host have a span each, with the name of one socket.
        let socket = s.racing.parent().unwrap_or(id);
        s.facts.begin(format_args!("{here}.{socket}"), dial.addr);
        (s.state, s.refused) = (State::Connecting { op, addr: dial.addr }, false);
        s.dial = Some(Box::new(dial));
        if let Err(e) = self.next_attempt(id, now) {
            if let Ok(s) = self.sockets.find(id) {
                s.facts.log(|| info!("the connect fails at once: {e}"));
                (s.state, s.dial) = (State::Fresh, None);
                s.facts.end_span();
            }
            return Err(e);
        }
        self.sockets.mark(id.index);
        Ok(())
    }

    /// Begins the next attempt of a connect. An error if no attempt is left.
    fn next_attempt(&mut self, id: SockId, now: Time) -> Result<(), Error> {
        loop {
            let s = self.sockets.find(id)?;
            let Some(mut dial) = s.dial.take() else {
                return Err(Error::invalid("the socket is not connecting"));
            };
            let left = dial.deadline.since(now);
            let next = dial.left.pop_front().filter(|_| !left.is_zero() || dial.last.is_none());
            let Some(device) = next else { return Err(dial.error()) };
            let pinned = s.opts.transport != Transport::Auto;
            // Time is kept for devices by which the peer may answer. A device by which the peer was
            // silent before comes last, and gets no more time than it had then.
            let silent = |d: &usize| self.devices.silent_for(*d, dial.addr.ip(), now).is_some();
            let timeout = match dial.left.iter().all(silent) {
                true if dial.last.is_none() || !silent(&device) => left,
                _ => left.min(ATTEMPT_MAX).min(dial.timeout / 3),
            };
            let (addr, by) = (dial.addr, self.devices[device].transport);
            let reason = dial.reason(by, pinned);
            self.sockets.find(id)?.dial = Some(dial);
            let s = (id.index, &self.sockets[id.index]);
            match self.devices[device].attempt(s, addr, timeout, now) {
                Ok((qp, place, session)) => {
                    let d = &self.devices[device];
                    let (transport, name) = (d.transport, d.name().to_owned());
                    let route = Route { transport, device: name, reason };
                    self.sockets.add_qp(device, qp, id.index);
                    let s = self.sockets.find(id)?;
                    s.facts.set_route(route);
                    s.facts.log_route(|route| {
                        info!("connecting to {addr} by {route}: {}", route.reason);
                    });
                    (s.session, s.qp, s.place) = (Some(Box::new(session)), Some(qp), place);
                    return Ok(());
                }
                Err(source) => self.note_failure(id, device, source),
            }
        }
    }

    fn note_failure(&mut self, id: SockId, device: usize, cause: RnicError) {
        let name = self.devices[device].name().to_owned();
        let Ok(s) = self.sockets.find(id) else { return };
        s.facts.log(|| info!("not connected by {name}: {cause}"));
        if let Some(dial) = s.dial.as_mut() {
            let (addr, before) = (dial.addr, String::new());
            dial.note(name, Error::Connect { addr, cause, before });
        }
    }

    /// An attempt has failed: begins the next, or ends the connect.
    pub(super) fn attempt_failed(&mut self, id: SockId, source: RnicError, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        let device = s.place.device;
        let addr = s.dial.as_ref().map(|d| d.addr);
        // The cache is for RDMA devices alone. Within a host a single process is silent, not an
        // address.
        let is_verbs = self.devices[device].transport == Transport::Verbs;
        if let Some(addr) = addr.filter(|_| is_verbs) {
            match source {
                RnicError::Timeout(_) | RnicError::Os { errno: libc::ETIMEDOUT, .. } => {
                    self.devices.note_silence(device, addr.ip(), now);
                }
                RnicError::Os { errno: libc::ECONNREFUSED, .. } => {
                    self.devices.note_answer(device, addr);
                }
                _ => {}
            }
        }
        self.drop_session(id.index);
        self.note_failure(id, device, source);
        self.go_on(id, now);
    }

    /// The peer has refused. The answer of an EXS peer ends the connect. Otherwise another device
    /// may find an EXS peer.
    pub(super) fn attempt_refused(
        &mut self,
        id: SockId,
        addr: SocketAddr,
        source: SessionError,
        now: Time,
    ) {
        let silent = source == SessionError::RefusedSilently;
        let error = Error::Refused { addr, cause: source };
        let Ok(s) = self.sockets.find(id) else { return };
        let device = s.place.device;
        self.devices.note_answer(device, addr);
        let Ok(s) = self.sockets.find(id) else { return };
        let more = s.dial.as_ref().is_some_and(|d| !d.left.is_empty());
        if !silent || !more {
            return self.connect_failed(id, error, now);
        }
        self.drop_session(id.index);
        let name = self.devices[device].name().to_owned();
        if let Some(dial) = self.sockets.find(id).ok().and_then(|s| s.dial.as_mut()) {
            dial.note(name, error);
        }
        self.go_on(id, now);
    }

    fn go_on(&mut self, id: SockId, now: Time) {
        if let Err(e) = self.next_attempt(id, now) {
            self.connect_failed(id, e, now);
        }
        self.sockets.mark(id.index);
    }

    /// A connect has failed: the socket is as before it.
    pub(super) fn connect_failed(&mut self, id: SockId, error: Error, now: Time) {
        let Ok(s) = self.sockets.find(id) else { return };
        let State::Connecting { op, .. } = s.state else { return };
        if s.racing.parent().is_some() {
            return self.attempt_lost(id, error, now);
        }
        s.facts.log(|| info!("the connect has failed: {error}"));
        s.facts.end_span();
        s.facts.clear_route();
        (s.state, s.refused) = (State::Fresh, true);
        s.dial = None;
        let (polls, racing) = (std::mem::take(&mut s.polls), std::mem::take(&mut s.racing));
        self.end_race(racing, now);
        self.drop_session(id.index);
        self.complete(op, Err(error));
        // The polls wait for this connection, which does not come.
        let ready = Readiness { readable: true, writable: true, error: true };
        for (poll, _) in polls {
            self.complete_poll(poll, ready);
        }
        self.sockets.mark(id.index);
    }

    /// The connection is established: completes the connect.
    pub(super) fn connected(&mut self, index: u32, op: OpId, now: Time) {
        let s: &mut Sock = &mut self.sockets[index];
        if s.racing.parent().is_some() {
            return self.attempt_won(self.sockets.id(index), now);
        }
        s.state = State::Open;
        s.facts.log_connected();
        if let Some(dial) = s.dial.take() {
            self.devices.note_answer(s.place.device, dial.addr);
        }
        self.complete(op, Ok(()));
    }
}
