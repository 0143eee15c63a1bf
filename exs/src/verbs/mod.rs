//! F5: RDMA devices, through libibverbs and librdmacm.
//!
//! A [`VerbsRnic`] is one device; [`Opener`] opens all devices of the host. They share one event
//! channel of librdmacm (`host`), since a wildcard listener belongs to no device: each of its
//! connection requests names the device by which it came.
//!
//! The shape of its data. Each part owns its state, and knows no other part:
//! - `device_profile`: what the device can do (`caps`), and what queue pairs have shown of it;
//! - `memory`: protection domains, and what each memory key stands for; `registrar` registers;
//! - `cqs`, `device_cqs`, `srqs`: the CQs of the trait, those of the device, the SRQs; `awaited`
//!   says whether anyone waits for sends;
//! - `qp_table`: queue pairs (`qp`) by id and by the device's number; `cm_ids`: librdmacm's ids and
//!   listeners; `startups`: what is needed up to an established connection; `failed_qps`:
//!   connections to end, and why;
//! - `watches`: the descriptors in the reactor; `removal`: whether the device is there; deadlines.
//!
//! A queue pair has parts of its own: what it sends (`send_queue`, `send_budget`), its
//! receives (`recv`, `pool`), its windows (`windows`).
//!
//! The methods of [`VerbsRnic`] lead through the parts: what a post does (`send`, `eager`, `recv`,
//! `windows`, `pool`), what a completion does (`queues`), how connections begin and end (`cm`,
//! `dialing`, `ends`, `last_wqe`), events of a device as a whole (`device`, `events`). `raw` is the
//! edge to the C libraries, and the only module that calls them.
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
mod awaited;
mod caps;
mod cm;
mod cm_ids;
mod cqs;
mod device;
mod device_cqs;
mod device_profile;
mod dialer;
mod dialing;
mod dmabuf;
mod eager;
mod ends;
mod events;
mod failed_qps;
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
mod qp_table;
mod queues;
mod raw;
mod recv;
mod registrar;
mod removal;
mod route;
mod send;
mod send_budget;
mod send_queue;
mod slots;
mod srqs;
mod startups;
mod watches;
mod windows;

pub use info::{VerbsDeviceInfo, VerbsPortInfo, devices};
pub use opener::Opener;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use crate::driver::deadlines::Deadlines;
use crate::mem::{Access, Key, Segment};
use crate::rnic::{
    Caps, ConnParam, ConnReq, Cq, DetachedRequest, Disconnect, EagerRecv, EagerSend, ExtraReceives,
    HEAD, ListenOpts, Listener, Mr, Pd, Qp, QpAttr, Ready, RecvWr, Rnic, RnicError, RnicEvent,
    SendWr, Srq, Wc,
};
use crate::sys::IoVec;
use crate::time::Time;
use awaited::AwaitedSends;
use cm_ids::CmIds;
use cqs::CompletionQueues;
use device_cqs::DeviceCqs;
use device_profile::DeviceProfile;
use failed_qps::FailedQps;
use memory::DeviceMemory;
use qp_table::QpTable;
use raw::{CompChannel, Device, Guard, PostScratch};
use srqs::SharedQueues;
use watches::{WatchedFd, Watches};

/// One RDMA device: see the module's essay.
pub struct VerbsRnic {
    // Dropped first: what is not watched does not wake anyone meanwhile.
    cm_ids: CmIds,
    profile: DeviceProfile,
    device: Device,
    /// Its readiness of `Wake` tells that something is in `inbox`, or that a connect has failed.
    watches: Watches,
    presence: removal::Presence,
    /// What other RNICs on the device say.
    inbox: Arc<events::DeviceInbox>,
    memory: DeviceMemory,
    cqs: CompletionQueues,
    device_cqs: DeviceCqs,
    srqs: SharedQueues,
    qps: QpTable<qp::VerbsQp>,
    deadlines: Deadlines<device::Due>,
    startups: startups::StartUps,
    failed: FailedQps,
    events: VecDeque<RnicEvent>,
    scratch: PostScratch,
    awaited: AwaitedSends,
    now: Time,
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
        let mut watches = Watches::new(registry, token_base).map_err(os("dup of the reactor"))?;
        // Each of the host's devices watches it: any of them may be the last one left.
        watches.add(WatchedFd::Cm, host.fd()).map_err(os("watching librdmacm"))?;
        let of_device = device.async_fd().and_then(|events| {
            watches.add(WatchedFd::Async, events)?;
            watches.add(WatchedFd::Completions, channel.fd())?;
            watches.add(WatchedFd::Wake, inbox.wake().as_raw_fd())
        });
        of_device.map_err(os("watching the device"))?;
        // There is no watch without `/proc`, or if the user has no inotify instance left: then the
        // removal of the device may go unnoticed.
        if let Some(node) = inbox.node() {
            let node = node.as_raw_fd();
            watches.add(WatchedFd::Node, node).map_err(os("watching the device's node"))?;
        }
        // What happened before this RNIC had its watches is looked for at its first turn.
        watches.note(WatchedFd::Async);
        watches.note(WatchedFd::Node);
        let max_msg = device.port(1).ok().map(|port| port.max_msg);
        Ok(VerbsRnic {
            cm_ids: CmIds::new(host, device),
            memory: DeviceMemory::new(device, &attr),
            device_cqs: DeviceCqs::new(device, attr.max_cqe, channel),
            profile: DeviceProfile::new(device.name(), max_msg, attr),
            device,
            watches,
            presence: removal::Presence::default(),
            startups: startups::StartUps::new(iwarp, inbox.wake()),
            inbox,
            cqs: CompletionQueues::default(),
            srqs: SharedQueues::default(),
            qps: QpTable::default(),
            deadlines: Deadlines::default(),
            failed: FailedQps::default(),
            events: VecDeque::new(),
            scratch: PostScratch::default(),
            awaited: AwaitedSends::default(),
            now: Time::ZERO,
        })
    }
}

impl Rnic for VerbsRnic {
    fn caps(&self) -> &Caps {
        self.profile.caps()
    }

    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.alive()?;
        self.memory.alloc_pd()
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        self.memory.dealloc_pd(pd)
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.alive()?;
        self.memory.reg_mr(pd, memory, access)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.dereg_mr(mr)
    }
    fn create_cq(&mut self, _: usize) -> Result<Cq, RnicError> {
        self.cqs.create()
    }
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.destroy(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.cqs.poll(cq, max, out)
    }
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.cqs.arm(cq)
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
        self.srqs.lost(srq.0)
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
        self.bind_mw(qp, mr, (addr, len), access)
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
        self.lend_mw(qp, mr, (addr, len), access)
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
        self.cm_ids.listener_addr(listener)
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
        if self.watches.handle_ready(token) == Some(WatchedFd::Cm) {
            // At once: any device of the host may take the events of all.
            self.cm_ids.note_readable();
        }
    }

    fn progress(&mut self, now: Time) -> bool {
        self.now = now;
        if self.watches.take(WatchedFd::Completions) {
            self.device_cqs.drain_notifications();
        }
        if self.watches.take(WatchedFd::Async) {
            self.drain_async(now);
        }
        if self.watches.take(WatchedFd::Wake) {
            self.inbox.wake().drain();
            self.take_notes(now);
            self.handle_failed_connects();
        }
        if self.watches.take(WatchedFd::Node) {
            self.node_changed();
        }
        let others = self.cm_ids.fetch_events();
        while let Some(event) = self.cm_ids.next_event() {
            self.handle_note(event, now);
        }
        let more = self.poll_hw();
        self.ask_next();
        self.fire_timers(now);
        self.end_failed();
        more || others
    }

    fn spin(&mut self, now: Time) -> bool {
        self.now = now;
        let before = self.device_cqs.handled_total();
        self.poll_hw();
        self.device_cqs.handled_total() != before
    }

    fn poll_memory(&mut self) -> Option<bool> {
        if !self.qps.has_numbers() {
            return None;
        }
        Some(self.poll_received() || !self.events.is_empty() || !self.failed.is_empty())
    }
    fn is_quiet(&self) -> bool {
        self.device_cqs.is_handled() && self.cqs.are_empty() && self.events.is_empty()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.arm_hw() || !self.events.is_empty()
    }

    fn next_timeout(&self) -> Option<Time> {
        let due = !self.failed.is_empty() || !self.startups.is_idle();
        if due { Some(Time::ZERO) } else { self.deadlines.next() }
    }

    fn poll_event(&mut self) -> Option<RnicEvent> {
        // The first message of a connection may establish it.
        self.handle_polled();
        self.events.pop_front()
    }
}
