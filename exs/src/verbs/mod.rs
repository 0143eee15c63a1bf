//! F5: RDMA devices, through libibverbs and librdmacm.
//!
//! A [`VerbsRnic`] is one device; [`Opener`] opens all devices of the host. They share one event
//! channel of librdmacm (`host`), since a wildcard listener belongs to no device: each of its
//! connection requests names the device by which it came.
//!
//! The shape of its data: numbered tables of the trait's objects; `keys`, a table of what each memory
//! key stands for (`memory`); the CQs of the device (`queues`); queue pairs (`qp`) with their
//! connections (`cm`), start-ups (`startups`) and sends (`send`, `eager`); events of a device as a
//! whole (`device`, `events`). `raw` is the edge to the C libraries, and the only module that calls them.
//!
//! What it promises beyond the trait:
//! - The device's queue pair is freed before the last event of its connection is reported. From then
//!   on no DMA touches memory of its WRs.
//! - One doorbell for a chain of WRs. Notifications are requested only when a thread is about to
//!   sleep, and for sends only if a WR's poster waits for one.
//! - A late discovery (no acknowledgements, a port that is down, a removed device) ends every
//!   outstanding WR.
//!
//! What it must never know: EXS, its messages, sockets of a program. It reads no clock: time comes
//! in with the calls.
//!
//! `progress` and `spin` poll the device. `poll_cq` hands out what they have found. So no user sees a
//! message before the event that establishes its connection.

mod asking;
mod caps;
mod cm;
mod device;
mod dialer;
mod dialing;
mod dmabuf;
mod eager;
mod ends;
mod events;
mod handover;
mod host;
mod info;
mod last_wqe;
mod memory;
mod opener;
mod path;
mod patience;
mod pool;
mod qp;
mod queues;
mod raw;
mod recv;
mod removal;
mod route;
mod send;
mod send_budget;
mod slots;
mod startups;

pub use info::{VerbsDeviceInfo, VerbsPortInfo, devices};
pub use opener::Opener;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::mem::{Access, Key, KeyHasher, Segment};
use crate::rnic::table::IdTable;
use crate::rnic::{
    Caps, ConnParam, ConnReq, Cq, DetachedRequest, Disconnect, DisconnectCause, EagerRecv,
    EagerSend, ExtraReceives, HEAD, ListenOpts, Listener, Mr, Pd, Qp, QpAttr, Ready, RecvWr, Rnic,
    RnicError, RnicEvent, SendWr, Srq, Wc,
};
use crate::sys::IoVec;
use crate::time::Time;
use raw::{Attr, CompChannel, Device, Guard, PostScratch};

/// `IBV_WC_FATAL_ERR`.
const STATUS_FATAL: u32 = 19;

/// Offsets of the reactor's tokens from the RNIC's base.
const TOKEN_CM: usize = 0;
const TOKEN_ASYNC: usize = 1;
const TOKEN_CQ: usize = 2;
const TOKEN_WAKE: usize = 3;
const TOKEN_NODE: usize = 4;

/// One RDMA device: see the module's essay.
pub struct VerbsRnic {
    caps: Caps,
    attr: Attr,
    device: Device,
    host: Arc<host::CmHost>,
    /// Number of this device in `host`.
    index: usize,
    registry: mio::Registry,
    token_base: usize,
    /// Descriptors registered with the reactor: of this device; of the host, shared with other devices;
    /// the watch on the device's node.
    fds: Vec<OwnedFd>,
    shared: Option<OwnedFd>,
    node: Option<OwnedFd>,
    async_ready: bool,
    /// What other RNICs on the device say.
    inbox: Arc<events::DeviceInbox>,
    /// Something is in `inbox`, or a connect has failed.
    woken: bool,
    /// None once the device was removed.
    channel: Option<Arc<CompChannel>>,
    channel_ready: bool,
    node_ready: bool,
    pds: IdTable<memory::DomainEntry>,
    keys: HashMap<Key, memory::KeyEntry, BuildHasherDefault<KeyHasher>>,
    cqs: IdTable<queues::Completions>,
    hw: slab::Slab<queues::HwQueue>,
    srqs: IdTable<queues::SharedEntry>,
    /// The CQ for receives of an SRQ that belong to no queue pair any more.
    srq_cqs: HashMap<u32, Cq>,
    qps: IdTable<qp::VerbsQp>,
    by_num: HashMap<u32, u32, BuildHasherDefault<KeyHasher>>,
    by_serial: HashMap<usize, u32>,
    listeners: IdTable<SocketAddr>,
    timers: BTreeSet<(Time, u32)>,
    startups: startups::StartUps,
    /// Ports that are down, each with the time at which its connections end.
    ports_down: BTreeMap<i32, Time>,
    /// Connections that have failed, to be ended in this turn, and why.
    failed: Vec<(u32, DisconnectCause)>,
    events: VecDeque<RnicEvent>,
    /// Room for events of the host, kept from one turn to the next.
    routed: VecDeque<host::RoutedEvent>,
    scratch: PostScratch,
    /// Completions of the last poll of the device.
    polled: eager::PolledWcs,
    /// Completions in the CQs of the trait that the user has not polled.
    queued_wcs: usize,
    /// Signalled sends outstanding.
    awaited: usize,
    /// Orderly ends in progress.
    closing: usize,
    /// Bytes that the device takes inline, as far as it is known.
    inline: u32,
    last_wqe: last_wqe::LastWqe,
    /// How the send queues of this device are shared out.
    shares: send_budget::Shares,
    now: Time,
    removed: bool,
    /// `RnicEvent::DeviceRemoved` was reported.
    removal_reported: bool,
    /// The device's node in /dev is gone, and the kernel waits until this process frees the device.
    node_unlinked: bool,
}

impl VerbsRnic {
    /// Opens one device by its name.
    ///
    /// # Errors
    /// ENODEV if no device has that name; the errors of libibverbs and librdmacm.
    #[cfg(any(test, feature = "internals"))]
    pub fn open_named(
        registry: &mio::Registry,
        token_base: usize,
        name: &str,
    ) -> Result<VerbsRnic, RnicError> {
        let os = |call| move |e: std::io::Error| RnicError::os(call, &e);
        raw::load()?;
        let devices = Device::not_among(&[]).map_err(os("rdma_get_devices"))?;
        let device = devices.into_iter().find(|d| d.name() == name);
        let none = RnicError::Os { call: "rdma_get_devices", errno: libc::ENODEV };
        let host = host::CmHost::new().map_err(os("rdma_create_event_channel"))?;
        VerbsRnic::new(registry, token_base, device.ok_or(none)?, &host)
    }

    fn new(
        registry: &mio::Registry,
        token_base: usize,
        device: Device,
        host: &Arc<host::CmHost>,
    ) -> Result<VerbsRnic, RnicError> {
        let os = |call| move |e: std::io::Error| RnicError::os(call, &e);
        let attr = opener::usable(device)?;
        let inbox = events::join(device).map_err(os("eventfd"))?;
        let iwarp = attr.iwarp;
        Guard::hold_if(iwarp, device);
        let channel = CompChannel::new(device).map_err(os("ibv_create_comp_channel"))?;
        let registry = registry.try_clone().map_err(os("dup of the reactor"))?;
        let watcher = removal::Watcher { registry: &registry, base: token_base };
        // Each of the host's devices watches it: any of them may be the last one left.
        let shared = watcher.watch(host.fd(), TOKEN_CM).map_err(os("watching librdmacm"))?;
        let fds =
            watcher.watch_device(device, &channel, &inbox).map_err(os("watching the device"))?;
        let node = watcher.watch_node(inbox.node()).map_err(os("watching the device's node"))?;
        Ok(VerbsRnic {
            caps: caps::caps(device, &attr),
            shares: send_budget::Shares::of(attr.max_qp_wr),
            attr,
            device,
            host: Arc::clone(host),
            index: host.join(device),
            registry,
            token_base,
            fds,
            shared: Some(shared),
            node,
            async_ready: true,
            startups: startups::StartUps::new(iwarp, inbox.wake()),
            inbox,
            woken: false,
            channel: Some(channel),
            channel_ready: false,
            // It may have gone before this RNIC had its watch.
            node_ready: true,
            pds: IdTable::new("protection domain"),
            keys: HashMap::default(),
            cqs: IdTable::new("completion queue"),
            hw: slab::Slab::new(),
            srqs: IdTable::new("shared receive queue"),
            srq_cqs: HashMap::new(),
            qps: IdTable::new("queue pair"),
            by_num: HashMap::default(),
            by_serial: HashMap::new(),
            listeners: IdTable::new("listener"),
            timers: BTreeSet::new(),
            ports_down: BTreeMap::new(),
            failed: Vec::new(),
            events: VecDeque::new(),
            routed: VecDeque::new(),
            scratch: PostScratch::default(),
            polled: eager::PolledWcs::default(),
            queued_wcs: 0,
            awaited: 0,
            closing: 0,
            inline: u32::MAX,
            last_wqe: last_wqe::LastWqe::default(),
            now: Time::ZERO,
            removed: false,
            removal_reported: false,
            node_unlinked: false,
        })
    }
}

impl Drop for VerbsRnic {
    fn drop(&mut self) {
        let listeners: Vec<u32> = self.listeners.iter().map(|(id, _)| id).collect();
        for id in listeners {
            self.host.leave((self.index, id));
        }
        self.fds.extend(self.shared.take());
        self.fds.extend(self.node.take());
        self.unwatch();
    }
}

impl Rnic for VerbsRnic {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.alive()?;
        self.alloc_pd()
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        self.dealloc_pd(pd)
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.alive()?;
        self.reg_mr(pd, memory, access)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.dereg_mr(mr)
    }
    fn create_cq(&mut self, _: usize) -> Result<Cq, RnicError> {
        self.create_cq()
    }
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.destroy_cq(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.poll_cq(cq, max, out)
    }
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.arm_cq(cq)
    }
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        self.alive()?;
        self.create_srq(pd, max_wr)
    }
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        self.destroy_srq(srq)
    }
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.post_srq_recv(srq, wr)
    }
    fn lost_receives(&self, srq: Srq) -> usize {
        self.lost_receives_of(srq)
    }
    fn add_receives(&mut self, qp: Qp, from: Srq, count: u16) -> u16 {
        self.add_receives(qp, from, count)
    }
    fn drop_receives(&mut self, qp: Qp) -> ExtraReceives {
        self.drop_receives(qp)
    }
    fn reclaim_receives(&mut self, srq: Srq, first: u64, out: &mut Vec<u64>) -> usize {
        self.reclaim_receives(srq, first, out)
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
        self.alive()?;
        self.create_qp(attr)
    }
    fn destroy_qp(&mut self, qp: Qp) -> Result<(), RnicError> {
        self.destroy_qp(qp)
    }
    #[cfg(any(test, feature = "internals"))]
    fn qp_state(&self, qp: Qp) -> Result<crate::rnic::QpState, RnicError> {
        self.qp_state(qp)
    }

    fn post_send(&mut self, qp: Qp, wr: &SendWr<'_>) -> Result<(), RnicError> {
        self.post_send(qp, wr)
    }
    #[cfg(any(test, feature = "internals"))]
    fn post_recv(&mut self, qp: Qp, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.post_recv(qp, wr)
    }
    fn bind_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.alive()?;
        self.bind_mw(qp, mr, addr, len, access)
    }
    fn lend_mw(
        &mut self,
        qp: Qp,
        mr: Mr,
        addr: u64,
        len: u64,
        access: Access,
    ) -> Result<Key, RnicError> {
        self.alive()?;
        self.lend_mw(qp, mr, addr, len, access)
    }
    fn invalidate_is_costly(&self, key: Key) -> bool {
        self.invalidate_is_costly(key)
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.invalidate_mw(qp, key)
    }
    fn flush(&mut self, qp: Qp, _: Time) {
        self.ring_doorbell(qp.0);
    }
    fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        self.try_send_eager(qp, payload, head)
    }
    fn next_eager(&mut self, _: &mut [u8]) -> Option<EagerRecv> {
        self.take_eager()
    }

    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        self.listen(addr, opts)
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        self.listeners.get(listener.0).copied()
    }
    fn close_listener(&mut self, listener: Listener) -> Result<(), RnicError> {
        self.close_listener(listener)
    }
    fn connect(
        &mut self,
        qp: Qp,
        addr: SocketAddr,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.connect(qp, addr, param, now)
    }
    fn reaches(&self, addr: SocketAddr, bind: Option<SocketAddr>) -> Result<(), RnicError> {
        self.reaches(addr, bind)
    }
    fn accept(
        &mut self,
        req: ConnReq,
        qp: Qp,
        param: &ConnParam<'_>,
        now: Time,
    ) -> Result<(), RnicError> {
        self.accept(req, qp, param, now)
    }
    fn reject(&mut self, req: ConnReq, private_data: &[u8], _: Time) -> Result<(), RnicError> {
        self.reject(req, private_data)
    }
    fn detach_request(&mut self, req: ConnReq) -> Result<DetachedRequest, RnicError> {
        self.detach_request(req)
    }
    fn adopt_request(&mut self, request: DetachedRequest) -> Result<ConnReq, RnicError> {
        self.adopt_request(request)
    }
    fn disconnect(&mut self, qp: Qp, how: Disconnect, now: Time) -> Result<(), RnicError> {
        self.disconnect(qp, how, now)
    }
    fn addrs(&self, qp: Qp) -> Result<(SocketAddr, SocketAddr), RnicError> {
        self.qps.get(qp.0)?.addrs.ok_or_else(|| self.wrong_state(qp, "Rts"))
    }

    fn handle_ready(&mut self, token: usize, _: Ready) {
        match token.wrapping_sub(self.token_base) {
            TOKEN_CM => self.host.note_readable(),
            TOKEN_ASYNC => self.async_ready = true,
            TOKEN_CQ => self.channel_ready = true,
            TOKEN_WAKE => self.woken = true,
            TOKEN_NODE => self.node_ready = true,
            _ => {}
        }
    }

    fn progress(&mut self, now: Time) -> bool {
        self.now = now;
        if std::mem::take(&mut self.channel_ready) {
            self.drain_notifications();
        }
        if std::mem::take(&mut self.async_ready) {
            self.drain_async(now);
        }
        if std::mem::take(&mut self.woken) {
            self.inbox.wake().drain();
            self.take_notes(now);
            self.handle_failed_connects();
        }
        if std::mem::take(&mut self.node_ready) {
            self.node_changed();
        }
        let mut routed = std::mem::take(&mut self.routed);
        let others = self.host.take(self.index, &mut routed);
        for note in routed.drain(..) {
            self.handle_note(note, now);
        }
        self.routed = routed;
        let more = self.poll_hw();
        self.ask_next();
        self.fire_timers(now);
        self.end_failed();
        more || others
    }

    fn spin(&mut self, now: Time) -> bool {
        self.now = now;
        let before = self.polled.handled_total();
        self.poll_hw();
        self.polled.handled_total() != before
    }

    fn poll_memory(&mut self) -> Option<bool> {
        if self.by_num.is_empty() {
            return None;
        }
        Some(self.poll_received() || !self.events.is_empty() || !self.failed.is_empty())
    }
    fn is_quiet(&self) -> bool {
        self.polled.is_handled() && self.queued_wcs == 0 && self.events.is_empty()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.arm_hw() || !self.events.is_empty()
    }

    fn next_timeout(&self) -> Option<Time> {
        let timers = self.timers.first().map(|t| t.0);
        let ports = self.ports_down.values().copied();
        let due = !self.failed.is_empty() || !self.startups.is_idle();
        let now = due.then_some(Time::ZERO);
        ports.chain(timers).chain(now).min()
    }

    fn poll_event(&mut self) -> Option<RnicEvent> {
        // The first message of a connection may establish it.
        self.handle_polled();
        self.events.pop_front()
    }
}
