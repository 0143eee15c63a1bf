//! F5: the software RNIC: iWARP in user space over the kernel's TCP.
//!
//! [`SoftRnic`] meets the contract of [`Rnic`] with what every machine has. The engine below
//! (`iwarp`) implements the protocol (MPA, DDP, RDMAP); each connection has one. This floor owns
//! everything around it: sockets and their readiness, deadlines, the tables of objects, the keys.
//!
//! The shape of its data: numbered tables (`table`) of protection domains, CQs, SRQs, queue pairs,
//! listeners, dials (TCP connects in progress) and links (TCP connections with an engine). A queue
//! pair is joined to a dial, then to a link. A link has an owner (`link::SoftLinkOwner`). Sources that
//! have something to do are on one ready list. Each gets a turn of bounded size, so that none
//! starves another.
//!
//! What it promises beyond the trait:
//! - Outbound, a batch of FPDUs leaves in one gathered sendmsg(2) straight from user memory, or from
//!   the page cache by sendfile(2). Inbound, payload is received straight into its destination
//!   (`link`).
//! - No allocation per message, and none that a peer can grow without bound.
//! - Readiness is edge-triggered. Flags remember it, and a short read or write counts as "no more",
//!   which spares the call that only returns EAGAIN. `short_write` finds other causes of a short
//!   write a little later.
//! - An orderly end waits for the peer's, at most ten seconds without progress.
//!
//! What it must never know: EXS, its messages, sockets of a program. It reads no clock: time comes
//! in with the calls, as in the floors below.

mod dial;
mod eager;
mod files;
mod handover;
mod link;
mod listen;
mod memory;
mod qp;
mod queues;
mod serve;
mod short_write;
mod timers;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;

use crate::iwarp::{MAX_INLINE, MAX_PRIVATE_DATA, MAX_READS, RxBuf, TxPool};
use crate::mem::{Access, Key, KeyTable, MAX_SGE, Segment};
use crate::rnic::objects::Objects;
use crate::rnic::table;
use crate::rnic::users::MrUsers;
use crate::rnic::{
    Caps, ConnParam, ConnReq, Cq, DetachedRequest, Disconnect, EagerRecv, EagerSend, HEAD,
    ListenOpts, Listener, Mr, Pd, Qp, QpAttr, Ready, RecvWr, Rnic, RnicError, RnicEvent, SendWr,
    Srq, Wc,
};
use crate::sys::{IoVec, RandomSource};
use crate::time::Time;
use timers::SoftSource;

/// Bytes that one WR may move.
const MAX_MSG: u64 = 1 << 30;

/// An RNIC made of software: see the module's essay.
pub struct SoftRnic {
    caps: Caps,
    registry: mio::Registry,
    token_base: usize,
    random: RandomSource,
    keys: KeyTable,
    /// Windows of each MR that has any.
    window_counts: HashMap<Key, usize>,
    /// The queue pairs whose work may refer to an MR, for each MR that any work names.
    users: MrUsers,
    objects: Objects<RxBuf>,
    qps: table::IdTable<qp::SoftQp>,
    listeners: table::IdTable<listen::SoftListener>,
    dials: table::IdTable<dial::SoftDial>,
    links: table::IdTable<link::SoftLink>,
    /// Connection requests that wait for the program's answer: the numbers of their links.
    requests: table::IdTable<u32>,
    /// Links whose connection request has not come, the oldest first, each with the time when it was
    /// accepted. Some entries are stale: their request has come since.
    startups: VecDeque<(u32, Time)>,
    max_startups: usize,
    /// Listeners that wait for a free descriptor.
    listeners_without_fds: Vec<u32>,
    timers: timers::LinkTimers,
    short_writes: short_write::ShortWrites,
    ready: VecDeque<SoftSource>,
    /// Links that `spin` reads, the next one first.
    hot: VecDeque<serve::HotLink>,
    /// When idle links were last looked for, and the place in `links` to go on from.
    last_sweep: Time,
    sweep_pos: usize,
    events: VecDeque<RnicEvent>,
    lookahead: Box<[u8]>,
    tx_pool: TxPool,
    file_pool: files::FileBufferPool,
    /// Completions on their way from an engine to their queues.
    wcs: Vec<Wc>,
    /// Bytes in `lookahead` that were read and not handled; None: there are none.
    unparsed: Option<eager::UnparsedBytes>,
}

impl SoftRnic {
    /// Makes an RNIC whose sockets are registered with `registry` under tokens from
    /// `token_base` up to 2^32 further. Keys are drawn from `random`.
    pub fn new(registry: mio::Registry, token_base: usize, random: RandomSource) -> SoftRnic {
        SoftRnic {
            caps: Caps {
                name: "soft".to_owned(),
                write_imm: false,
                initiator_first: true,
                read_sink_remote_write: true,
                write_acked: false,
                small_reads: true,
                pins: false,
                file_source: true,
                windows: true,
                srq_waits: true,
                owns_tcp_port: true,
                within_host: false,
                doorbell_calls: true,
                random_keys: true,
                pads_private_data: false,
                tells_solicited: true,
                tells_reasons: true,
                max_sge: MAX_SGE,
                max_inline: MAX_INLINE,
                max_msg: MAX_MSG,
                max_ord: MAX_READS,
                max_ird: MAX_READS,
                max_private_data: MAX_PRIVATE_DATA,
                max_send_wr: 256,
                max_srq_wr: usize::MAX,
            },
            registry,
            token_base,
            random,
            keys: KeyTable::new(),
            window_counts: HashMap::new(),
            users: MrUsers::default(),
            objects: Objects::new(),
            qps: table::IdTable::new("queue pair"),
            listeners: table::IdTable::new("listener"),
            dials: table::IdTable::new("connection attempt"),
            links: table::IdTable::new("connection"),
            requests: table::IdTable::new("connection request"),
            startups: VecDeque::new(),
            max_startups: listen::MAX_STARTUPS,
            listeners_without_fds: Vec::new(),
            timers: timers::LinkTimers::default(),
            short_writes: short_write::ShortWrites::default(),
            ready: VecDeque::new(),
            hot: VecDeque::new(),
            last_sweep: Time::ZERO,
            sweep_pos: 0,
            events: VecDeque::new(),
            lookahead: vec![0; link::LOOKAHEAD].into_boxed_slice(),
            tx_pool: TxPool::default(),
            file_pool: files::FileBufferPool::default(),
            wcs: Vec::new(),
            unparsed: None,
        }
    }

    /// An RNIC with keys from the kernel's generator.
    pub fn with_kernel_keys(registry: mio::Registry, token_base: usize) -> io::Result<SoftRnic> {
        Ok(SoftRnic::new(registry, token_base, RandomSource::kernel()?))
    }

    /// Limits the start-ups of connecting peers at a time (1024 if never called). The oldest is dropped
    /// for one more.
    #[cfg(any(test, feature = "internals"))]
    pub fn limit_handshakes(&mut self, max: usize) {
        self.max_startups = max;
    }

    fn token(&self, source: SoftSource) -> mio::Token {
        mio::Token(self.token_base + source.token())
    }
}

impl Rnic for SoftRnic {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn alloc_pd(&mut self) -> Result<Pd, RnicError> {
        self.objects.alloc_pd()
    }
    fn dealloc_pd(&mut self, pd: Pd) -> Result<(), RnicError> {
        self.objects.dealloc_pd(pd)
    }
    fn reg_mr(&mut self, pd: Pd, memory: &Segment, access: Access) -> Result<Mr, RnicError> {
        self.reg_mr(pd, memory, access)
    }
    fn dereg_mr(&mut self, mr: Mr) -> Result<(), RnicError> {
        self.dereg_mr(mr)
    }
    fn create_cq(&mut self, depth: usize) -> Result<Cq, RnicError> {
        self.objects.create_cq(depth)
    }
    #[cfg(any(test, feature = "internals"))]
    fn destroy_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.objects.destroy_cq(cq)
    }
    fn poll_cq(&mut self, cq: Cq, max: usize, out: &mut Vec<Wc>) -> Result<usize, RnicError> {
        self.poll_cq(cq, max, out)
    }
    #[cfg(any(test, feature = "internals"))]
    fn arm_cq(&mut self, cq: Cq) -> Result<(), RnicError> {
        self.objects.arm_cq(cq)
    }
    fn create_srq(&mut self, pd: Pd, max_wr: usize) -> Result<Srq, RnicError> {
        self.objects.create_srq(pd, max_wr)
    }
    fn destroy_srq(&mut self, srq: Srq) -> Result<(), RnicError> {
        self.objects.destroy_srq(srq)
    }
    fn post_srq_recv(&mut self, srq: Srq, wr: &RecvWr<'_>) -> Result<(), RnicError> {
        self.post_srq_recv(srq, wr)
    }
    fn create_qp(&mut self, attr: &QpAttr) -> Result<Qp, RnicError> {
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
        self.bind_mw(qp, mr, addr, len, access)
    }
    fn invalidate_mw(&mut self, qp: Qp, key: Key) -> Result<(), RnicError> {
        self.invalidate_mw(qp, key)
    }
    fn flush(&mut self, qp: Qp, now: Time) {
        self.flush(qp, now);
    }
    fn try_send_eager(
        &mut self,
        qp: Qp,
        payload: &IoVec<'_>,
        head: &mut dyn FnMut(&mut [u8; HEAD]) -> usize,
    ) -> EagerSend {
        self.try_send_eager(qp, payload, head)
    }
    fn next_eager(&mut self, out: &mut [u8]) -> Option<EagerRecv> {
        self.next_eager(out)
    }

    fn listen(&mut self, addr: SocketAddr, opts: &ListenOpts) -> Result<Listener, RnicError> {
        self.listen(addr, opts)
    }
    fn listener_addr(&self, listener: Listener) -> Result<SocketAddr, RnicError> {
        self.listener_addr(listener)
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
    fn reaches(&self, _: SocketAddr, _: Option<SocketAddr>) -> Result<(), RnicError> {
        Ok(())
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
    fn reject(&mut self, req: ConnReq, private_data: &[u8], now: Time) -> Result<(), RnicError> {
        self.reject(req, private_data, now)
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

    fn handle_ready(&mut self, token: usize, ready: Ready) {
        self.handle_ready(token, ready);
    }
    fn progress(&mut self, now: Time) -> bool {
        self.progress(now)
    }
    fn spin(&mut self, now: Time) -> bool {
        self.poll_hot_links(now)
    }
    fn poll_syscall(&mut self) -> Option<bool> {
        self.has_news()
    }
    fn next_timeout(&self) -> Option<Time> {
        // Work that waits for its turn is due now.
        if !self.ready.is_empty() {
            return Some(Time::ZERO);
        }
        self.timers.next().into_iter().chain(self.short_writes.due()).min()
    }
    fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.objects.no_wc_waits()
    }
    fn poll_event(&mut self) -> Option<RnicEvent> {
        self.events.pop_front()
    }
}
