//! Listeners: a socket listens on all devices that it may use, on one port.
//!
//! RoCE and InfiniBand have a port space of their own, so the software RNIC listens beside them for
//! peers without such a device. An iWARP device takes the host's TCP port on its addresses. It
//! needs no software RNIC there, since peers that come by TCP reach it. But then no socket can
//! listen on that port on the wildcard address. So a wildcard listener becomes a listener on each
//! address that the host has now.
//!
//! Shared memory listens beside the listener of the TCP port. Its names stand for ports, and it
//! binds them only while the port is held. If it cannot listen, the others go on without it.

use std::net::{Ipv4Addr, SocketAddr};

use super::accepts::{Accepts, Arrival};
use super::branch::ListenEnd;
use super::devices::{DeviceTable, SOFT, uses_soft};
use super::domain::Place;
use super::sock::State;
use super::{Engine, Error, SockId};
use crate::progress::grouping::Grouping;
use crate::progress::options::Transport;
use crate::progress::shards::{self, Shard};
use crate::rnic::{ListenOpts, Listener, RnicError, TakesGroups};
use crate::time::Time;
use crate::wire::exs::{Refusal, RefusalCode, VERSIONS};

/// The ports that a listener tries, if the port that one device has chosen is taken on another.
const PORT_TRIES: usize = 16;

const NOT_A_DEVICE: RnicError = RnicError::Os {
    call: "looking for an RDMA device that has this address",
    errno: libc::EADDRNOTAVAIL,
};

/// The kernel's backlog for a listener of an RDMA device. TCP repeats its handshake when a backlog
/// is full. A request that meets a full backlog of librdmacm is lost, and its connect fails. So
/// this backlog is large, and the engine itself keeps the backlog that the program asked for.
const VERBS_BACKLOG: u32 = 1024;

/// The addresses and devices on which a socket will listen.
struct Plan {
    addrs: Vec<SocketAddr>,
    verbs: Vec<usize>,
    soft: bool,
    /// The device of shared memory, and true if the socket uses no other. None: the socket does not
    /// use it.
    shm: Option<(usize, bool)>,
    group: Option<String>,
    opts: ListenOpts,
}

/// The result of a plan: the listeners and the port, or why there are none.
struct Opened {
    on: Vec<(Place, Listener)>,
    port: u16,
    trouble: Option<RnicError>,
}

impl Plan {
    /// Opens the listeners of the plan. Tries other ports while the chosen one is taken, if the plan
    /// leaves the port open.
    fn open(&self, devices: &mut DeviceTable) -> Result<(Vec<(Place, Listener)>, u16), RnicError> {
        let any_port = self.addrs.iter().all(|a| a.port() == 0);
        let mut tries = if any_port { PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            let opened = self.try_open(devices);
            let taken = match opened.trouble {
                None if !opened.on.is_empty() => return Ok((opened.on, opened.port)),
                None => RnicError::Os { call: "listen", errno: libc::EADDRNOTAVAIL },
                Some(e) => e,
            };
            for (place, listener) in opened.on.into_iter().rev() {
                devices[place.device].end_listener(place.domain, listener);
            }
            if tries == 0 || !in_use(&taken) {
                return Err(taken);
            }
        }
    }

    /// Opens the listeners that can be opened. `trouble` is set if the port is taken, if a resource
    /// has run out, or if no listener could be opened.
    fn try_open(&self, devices: &mut DeviceTable) -> Opened {
        let port = self.addrs.first().map_or(0, SocketAddr::port);
        let mut opened = Opened { on: Vec::new(), port, trouble: None };
        let mut trouble = None;
        for &addr in &self.addrs {
            let mut tcp_taken = false;
            let alone = self.shm.filter(|(_, alone)| *alone).map(|(d, _)| d);
            let software = self.soft.then_some(SOFT).or(alone);
            for device in self.verbs.iter().copied().chain(software) {
                if device == SOFT && tcp_taken {
                    continue;
                }
                match self.listen_on(devices, device, addr, &mut opened, false) {
                    Ok(()) => tcp_taken |= devices[device].rnic.caps().owns_tcp_port,
                    // A listener that silently lacks a device would lose peers.
                    Err(e) if in_use(&e) || lacking(&e) => {
                        opened.trouble = Some(e);
                        return opened;
                    }
                    Err(e) => {
                        let name = devices[device].name();
                        crate::trace::info!("not listening on {addr} by {name}: {e}");
                        trouble = Some(e);
                    }
                }
            }
            // The name of shared memory stands for the TCP port, so it comes after that port.
            if let Some((shm, false)) = self.shm
                && tcp_taken
                && let Err(e) = self.listen_on(devices, shm, addr, &mut opened, true)
            {
                if lacking(&e) {
                    opened.trouble = Some(e);
                    return opened;
                }
                crate::trace::warn!("not listening on {addr} by shared memory: {e}");
            }
        }
        if opened.on.is_empty() {
            opened.trouble = match trouble {
                Some(e) if not_here(&e) && !self.soft && self.shm.is_none() => Some(NOT_A_DEVICE),
                other => other,
            };
        }
        opened
    }

    /// Opens a listener of one device.
    fn listen_on(
        &self,
        devices: &mut DeviceTable,
        device: usize,
        mut addr: SocketAddr,
        opened: &mut Opened,
        port_held: bool,
    ) -> Result<(), RnicError> {
        addr.set_port(opened.port);
        let d = &mut devices[device];
        let mut opts = ListenOpts { port_held, ..self.opts };
        if d.transport == Transport::Verbs {
            opts.backlog = opts.backlog.max(VERBS_BACKLOG);
        }
        let domain = d.enter(self.group.as_deref())?;
        let listener = d.rnic.listen(addr, &opts).inspect_err(|_| d.leave(domain))?;
        opened.on.push((Place { device, domain }, listener));
        let bound = d.rnic.listener_addr(listener)?;
        opened.port = bound.port();
        crate::trace::info!("listening on {bound} by {}", d.name());
        Ok(())
    }
}

impl Engine {
    pub(crate) fn listen(&mut self, id: SockId, backlog: u32) -> Result<(), Error> {
        let wanted = backlog.max(1) as usize;
        if let Some(a) = &mut self.sockets.find(id)?.accepts {
            // As listen(2) on a listener: it changes the backlog.
            a.backlog = wanted;
            return Ok(());
        }
        let s = self.sockets.fresh(id, "listen")?;
        s.binding.free_port();
        // If `bind` chose the port and a device has it taken, another port will do.
        let any_port = s.binding.has_any_port();
        let addr = s.binding.addr().unwrap_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        let opts = s.opts.clone();
        let verbs = self.devices.verbs_for(&opts)?;
        let soft = uses_soft(&opts);
        let shm = self.devices.shm_for(&opts)?.map(|d| (d, opts.transport == Transport::Shm));
        let listen_opts = ListenOpts {
            backlog: backlog.max(1),
            v6_only: opts.v6_only,
            handshake_timeout: opts.connect_timeout,
            port_held: false,
            path: opts.path.checked(),
            groups: match opts.link_group {
                Grouping::Off => TakesGroups::No,
                _ => TakesGroups::NotYet,
            },
        };
        let addrs = match soft && !verbs.is_empty() && addr.ip().is_unspecified() {
            true => self.devices.everywhere(addr, opts.v6_only)?,
            false => vec![addr],
        };
        let plan = Plan { addrs, verbs, soft, shm, group: opts.trust_group, opts: listen_opts };
        let opened = match plan.open(&mut self.devices) {
            Err(e) if any_port && in_use(&e) => {
                let addrs = plan.addrs.iter().map(|a| SocketAddr::new(a.ip(), 0)).collect();
                Plan { addrs, ..plan }.open(&mut self.devices)
            }
            other => other,
        };
        let (on, port) = opened.map_err(|cause| Error::Listen { addr, cause })?;
        for &(place, listener) in &on {
            self.sockets.add_listener(place.device, listener, id.index);
        }
        let s = self.sockets.find(id)?;
        s.state = State::Listening;
        let mut bound = SocketAddr::new(addr.ip(), port);
        if let (SocketAddr::V6(b), SocketAddr::V6(a)) = (&mut bound, addr) {
            b.set_scope_id(a.scope_id());
        }
        s.binding.listen(bound);
        s.accepts = Some(Box::new(Accepts::new(wanted, on)));
        if self.neighbours.here() == Shard::FIRST {
            shards::keep_first();
        }
        Ok(())
    }

    /// Ends the listening, as shutdown(2) does. The socket is new again, and accepts that wait end
    /// with EINVAL.
    pub(super) fn shut_listener(&mut self, id: SockId, now: Time) {
        self.end_listening(id, now, ListenEnd::Shut);
        self.check_polls(id.index);
        self.sockets.mark(id.index);
    }

    /// The listening side of `shut_listener` and of `close`.
    pub(super) fn end_listening(&mut self, id: SockId, now: Time, end: ListenEnd) {
        let Ok(s) = self.sockets.find(id) else { return };
        if s.state != State::Listening {
            return;
        }
        let Some(accepts) = s.accepts.take() else { return };
        // From here on a poll reports an error at once, instead of waiting.
        (s.state, s.refused) = (State::Fresh, true);
        s.binding.end_listening();
        // In reverse order: the names of shared memory before the TCP ports that they stand for.
        for (place, listener) in accepts.on.into_iter().rev() {
            self.sockets.remove_listener(place.device, listener);
            self.devices[place.device].end_listener(place.domain, listener);
        }
        let closed = Refusal { code: RefusalCode::Closed, versions: VERSIONS };
        for (device, r) in accepts.waiting {
            self.devices[device].reject(r.req, &closed.emit(), now);
        }
        for accept in accepts.ops {
            self.complete(accept.op, Err(end.why()));
        }
        self.end_branches(&accepts.branches, end);
        for arrival in accepts.ready {
            if let Arrival::Here(child) = arrival {
                self.reset_untaken(child, now);
            }
        }
    }

    /// A device was removed. Its connections end by themselves.
    pub(super) fn drop_device(&mut self, device: usize) {
        if self.devices.note_removal(device) {
            self.drop_listeners_on(device);
        }
    }

    /// A device is gone, and its listeners with it. A socket that listens on other devices goes on.
    /// The accepts of any other socket end with an error.
    fn drop_listeners_on(&mut self, device: usize) {
        for (listener, index) in self.sockets.take_listeners(device) {
            let Some(a) = &mut self.sockets[index].accepts else { continue };
            let on = a.on.iter().position(|on| on.0.device == device && on.1 == listener);
            if let Some((place, listener)) = on.map(|i| a.on.swap_remove(i)) {
                self.devices[place.device].end_listener(place.domain, listener);
            }
            let Some(a) = &mut self.sockets[index].accepts else { continue };
            a.waiting.retain(|(d, _)| *d != device);
            if a.on.is_empty() {
                for accept in std::mem::take(&mut a.ops) {
                    self.complete(accept.op, Err(self.devices[device].removed()));
                }
                self.check_polls(index);
            }
        }
    }
}

fn in_use(e: &RnicError) -> bool {
    matches!(e, RnicError::Os { errno: libc::EADDRINUSE, .. })
}

/// True if the process or the host has run out of descriptors.
fn lacking(e: &RnicError) -> bool {
    matches!(e, RnicError::Os { errno: libc::EMFILE | libc::ENFILE, .. })
}

fn not_here(e: &RnicError) -> bool {
    matches!(e, RnicError::Os { errno: libc::EADDRNOTAVAIL, .. })
}
